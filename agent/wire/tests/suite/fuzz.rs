//! Fuzz targets: no input panics; whatever parses, encodes and parses again as the same.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-wire --test suite fuzz::v1_bytes_that_parse_encode_as_the_same` runs
//! one guided by coverage.

use ccplane_testing::fuzz::{Fuzz, shape};
use ccplane_wire::{EncodeError, Out, SliceOut, v1, v2};

fn check_v1(bytes: &[u8]) {
    for frame in v1::frames(bytes).flatten() {
        let mut again = Vec::new();
        let agent = v1::ToAgent::parse(frame);
        let datapath = v1::ToDatapath::parse(frame);
        assert!(agent.is_err() || datapath.is_err(), "each message has one direction");
        if let Ok(msg) = agent {
            msg.encode(&mut again).unwrap();
            assert_eq!(v1::ToAgent::parse_all(&again).collect::<Vec<_>>(), [Ok(msg.clone())]);
            too_small(again.len(), |out| msg.encode(out));
        }
        if let Ok(msg) = datapath {
            msg.encode(&mut again).unwrap();
            assert_eq!(v1::ToDatapath::parse_all(&again).collect::<Vec<_>>(), [Ok(msg.clone())]);
            assert_eq!(again[v1::HEADER_BYTES..], *frame.body, "canonical");
            too_small(again.len(), |out| msg.encode(out));
        }
    }
}

fn check_v2(bytes: &[u8]) {
    let mut left = bytes;
    while let Ok(Some((frame, rest))) = v2::Frame::split(left) {
        let this = &left[..left.len() - rest.len()];
        left = rest;
        let mut again = Vec::new();
        let agent = v2::ToAgent::parse(frame);
        if let Ok(Some(msg)) = &agent {
            msg.encode(frame.request, &mut again).unwrap();
            let frame = v2::frames(&again).next().unwrap().unwrap();
            assert_eq!(v2::ToAgent::parse(frame).as_ref(), Ok(&Some(msg.clone())));
            too_small(again.len(), |out| msg.encode(frame.request, out));
        }
        let datapath = v2::ToDatapath::parse(frame);
        if let Ok(Some(msg)) = &datapath {
            let mut bytes = Vec::new();
            msg.encode(frame.request, &mut bytes).unwrap();
            let parsed = v2::ToDatapath::parse(v2::frames(&bytes).next().unwrap().unwrap());
            assert_eq!(parsed.as_ref(), Ok(&Some(msg.clone())));
            too_small(bytes.len(), |out| msg.encode(frame.request, out));
            if !again.is_empty() {
                assert_eq!(again, bytes, "HEARTBEAT and BYE look alike in both directions");
            }
            again = bytes;
        }
        // An older one leaves things out, a newer one has more.
        if !again.is_empty() && frame.minor == v2::MINOR {
            assert_eq!(again, this, "canonical");
        }
        if let Ok(Some(v2::ToAgent::Reports(reports))) = &agent {
            assert_eq!(reports.iter().count(), reports.len());
            assert!(reports.iter().all(|r| r.values.iter().count() == r.values.len()));
        }
    }
}

/// A buffer one byte too small refuses the message and stays as it was.
fn too_small(len: usize, encode: impl Fn(&mut SliceOut<'_>) -> Result<(), EncodeError>) {
    let mut buf = vec![0; len - 1];
    let mut out = SliceOut::new(&mut buf);
    assert!(matches!(encode(&mut out), Err(EncodeError::Full { .. })));
    assert_eq!(out.written(), 0);
}

/// One of the seeds, with some bytes replaced and its end cut off.
fn mutate(seeds: &[Vec<u8>], (seed, edits, cut): &(u8, Vec<(u16, u8)>, u8)) -> Vec<u8> {
    let mut bytes = seeds[usize::from(*seed) % seeds.len()].clone();
    for (at, byte) in edits {
        let at = usize::from(*at) % bytes.len();
        bytes[at] = *byte;
    }
    // Half of the inputs keep their length, so that they get past the header.
    if cut % 2 == 1 {
        bytes.truncate(bytes.len() - usize::from(*cut) % bytes.len());
    }
    bytes
}

#[test]
fn v1_bytes_that_parse_encode_as_the_same() {
    bolero::check!().for_each(check_v1);
}

#[test]
fn mutated_v1_messages_that_parse_encode_as_the_same() {
    let seeds = [crate::support::v1_to_agent(), crate::support::v1_to_datapath()].concat();
    for seed in &seeds {
        assert!(v1::frames(seed).all(|frame| frame.is_ok()));
        check_v1(seed);
    }
    bolero::check!().with_type::<(u8, Vec<(u16, u8)>, u8)>().for_each(|m| check_v1(&mutate(&seeds, m)));
}

#[test]
fn v2_bytes_that_parse_encode_as_the_same() {
    bolero::check!().for_each(check_v2);
}

#[test]
fn mutated_v2_messages_that_parse_encode_as_the_same() {
    let mut seeds: Vec<Vec<u8>> =
        crate::support::v2_to_agent().into_iter().map(|(_, _, bytes)| bytes).collect();
    seeds.extend(crate::support::v2_to_datapath().into_iter().map(|(_, _, bytes)| bytes));
    let flows = [crate::support::stats(), crate::support::deciding()];
    let mut bytes = Vec::new();
    v2::ToAgent::FlowStats { last: false, flows: (&flows).into() }.encode(1, &mut bytes).unwrap();
    seeds.push(bytes);
    for seed in &seeds {
        assert!(v2::frames(seed).all(|frame| frame.is_ok()));
        check_v2(seed);
    }
    bolero::check!().with_type::<(u8, Vec<(u16, u8)>, u8)>().for_each(|m| check_v2(&mutate(&seeds, m)));
}

#[test]
fn v2_bodies_of_every_type_that_parse_encode_as_the_same() {
    // The header is right, so that all of the input reaches the parser of a body.
    bolero::check!().with_type::<(u8, u8, Vec<u8>)>().for_each(|(ty, minor, body)| {
        let len = (v2::HEADER_BYTES + body.len()) as u32;
        let mut bytes =
            [&b"CCPL"[..], &[2, minor % (v2::MINOR + 1), *ty, 0], &len.to_le_bytes(), &[0; 4]].concat();
        bytes.extend(body);
        check_v2(&bytes);
    });
}

/// In which way the first messages are taken: their types, or what is wrong with them.
fn ways(taken: impl Iterator<Item = u64>) -> u64 {
    taken.take(3).fold(0, |all: u64, way| all.rotate_left(21) ^ way)
}

#[test]
fn drawn_v1_messages_that_parse_encode_as_the_same() {
    let seeds = [crate::support::v1_to_agent(), crate::support::v1_to_datapath()].concat();
    Fuzz::new("wire-v1", env!("CARGO_MANIFEST_DIR")).seeds(seeds).max_bytes(512).run(|bytes| {
        check_v1(bytes);
        ways(v1::frames(bytes).map(|frame| match frame {
            Err(error) => shape(&error),
            Ok(frame) => match (v1::ToAgent::parse(frame), v1::ToDatapath::parse(frame)) {
                (Ok(msg), _) => shape(&msg),
                (_, Ok(msg)) => shape(&msg),
                (Err(agent), Err(datapath)) => shape(&agent) ^ shape(&datapath).rotate_left(9),
            },
        }))
    });
}

#[test]
fn drawn_v2_messages_that_parse_encode_as_the_same() {
    let mut seeds: Vec<Vec<u8>> =
        crate::support::v2_to_agent().into_iter().map(|(_, _, bytes)| bytes).collect();
    seeds.extend(crate::support::v2_to_datapath().into_iter().map(|(_, _, bytes)| bytes));
    Fuzz::new("wire-v2", env!("CARGO_MANIFEST_DIR")).seeds(seeds).max_bytes(512).run(|bytes| {
        check_v2(bytes);
        ways(v2::frames(bytes).map(|frame| match frame {
            Err(error) => shape(&error),
            Ok(frame) => match (v2::ToAgent::parse(frame), v2::ToDatapath::parse(frame)) {
                (Ok(Some(msg)), _) => shape(&msg),
                (_, Ok(Some(msg))) => shape(&msg),
                (Err(agent), Err(datapath)) => shape(&agent) ^ shape(&datapath).rotate_left(9),
                (agent, datapath) => shape(&agent) ^ shape(&datapath).rotate_left(9) ^ 1,
            },
        }))
    });
}

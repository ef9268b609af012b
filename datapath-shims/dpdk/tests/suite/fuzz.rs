//! Fuzz targets: no frame panics an interface, and its answers are well formed.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero, `cargo bolero test -p
//! ccplane-dpdk --test suite fuzz::a_history_of_mangled_frames_is_answered_by_well_formed_ones` runs
//! one guided by coverage.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use ccplane_dpdk::net::frame::{self, Frame, Headers, Offload, Verified};
use ccplane_dpdk::net::neighbour::{MAX_NEIGHBOURS, MAX_WAITING_ALL};
use ccplane_dpdk::net::{Interface, InterfaceConfig, Mac, NextHop};
use ccplane_testing::fuzz::{Fuzz, shape};
use etherparse::ArpOperation;

const OURS: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIRS: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn interface() -> Interface {
    let config = InterfaceConfig {
        mac: OURS,
        mtu_bytes: 1500,
        addresses: vec!["10.0.0.1/8".parse().unwrap(), "fd00::1/64".parse().unwrap()],
        gateways: vec!["10.0.0.254".parse().unwrap()],
        neighbours: Vec::new(),
        offload: Offload::default(),
        lenient: true,
    };
    let mut interface = Interface::new(config).unwrap();
    while interface.ready().is_some() {}
    interface
}

/// One of each kind of frame that an interface handles.
fn frames() -> Vec<Vec<u8>> {
    let (v4, v6) = (Ipv4Addr::new(10, 0, 0, 2), Ipv6Addr::from(0xfd00_u128 << 112 | 2));
    let mut all = vec![Vec::new(); 5];
    frame::write_arp(ArpOperation::REQUEST, (v4, THEIRS), (Ipv4Addr::new(10, 0, 0, 1), None), &mut all[0]);
    frame::write_arp(
        ArpOperation::REPLY,
        (v4, THEIRS),
        (Ipv4Addr::new(10, 0, 0, 1), Some(OURS)),
        &mut all[1],
    );
    frame::write_solicitation((v6, THEIRS), Ipv6Addr::from(0xfd00_u128 << 112 | 1), None, &mut all[2]);
    frame::write_advertisement((v6, THEIRS), None, &mut all[3]);
    frame::write_advertisement(
        (v6, THEIRS),
        Some((Ipv6Addr::from(0xfd00_u128 << 112 | 1), OURS)),
        &mut all[4],
    );
    for ends in [["10.0.0.2:9", "10.0.0.1:7"], ["[fd00::2]:9", "[fd00::1]:7"]] {
        let [from, to] = ends.map(|end| end.parse::<SocketAddr>().unwrap());
        let mut frame = vec![0; 100];
        let len = Headers::new([THEIRS, OURS], from, to, 1, Offload::default())
            .unwrap()
            .write(b"payload", &mut frame);
        frame.truncate(len.unwrap());
        all.push(frame);
    }
    all
}

/// Another interface parses every answer.
fn check(interface: &mut Interface, bytes: &[u8], now: Instant) {
    let verified =
        Verified { ip: bytes.first().is_some_and(|b| b & 2 != 0), transport: bytes.len().is_multiple_of(2) };
    if let Ok(Frame::Datagram(datagram)) = interface.receive(bytes, verified, now) {
        assert!(datagram.payload.len() < bytes.len());
        let back = interface.path(Some(datagram.destination.ip()), 7, datagram.source, 3, now);
        if let NextHop::Waits(hop, headers) = back {
            interface.hold(hop, &headers, datagram.payload);
        }
    }
    interface.poll(now);
    while let Some(answer) = interface.ready() {
        assert!(
            frame::parse(&answer, Verified::default(), false).is_ok(),
            "{answer:02x?} after {bytes:02x?}"
        );
    }
}

#[test]
fn any_frame_is_answered_by_well_formed_ones() {
    let now = Instant::now();
    bolero::check!().for_each(|bytes: &[u8]| check(&mut interface(), bytes, now));
}

/// A history on one interface: which frame, its changed byte and value, and the time since the last one (ms).
#[test]
fn a_history_of_mangled_frames_is_answered_by_well_formed_ones() {
    let frames = frames();
    bolero::check!().with_type::<Vec<(u8, Vec<(u8, u8)>, u16)>>().for_each(|history| {
        let (mut interface, mut now) = (interface(), Instant::now());
        for (which, changes, ms) in history {
            let mut frame = frames[usize::from(*which) % frames.len()].clone();
            for (at, value) in changes {
                let at = usize::from(*at) % frame.len();
                frame[at] = *value;
            }
            now += Duration::from_millis((*ms).into());
            check(&mut interface, &frame, now);
        }
    });
}

/// A flood of new neighbours leaves the tables within their bounds, and known neighbours stay reachable.
#[test]
fn a_flood_of_neighbours_stays_within_the_tables() {
    let (mut interface, now) = (interface(), Instant::now());
    let mut frame = Vec::new();
    for n in 0..4 * MAX_NEIGHBOURS as u32 {
        let from = Ipv4Addr::from(0x0a01_0000 + n);
        frame::write_arp(
            ArpOperation::REQUEST,
            (from, THEIRS),
            (Ipv4Addr::new(10, 0, 0, 1), None),
            &mut frame,
        );
        check(&mut interface, &frame, now);
        let to = SocketAddr::new(IpAddr::from(Ipv4Addr::from(0x0a02_0000 + n)), 7);
        if let NextHop::Waits(hop, headers) = interface.path(None, 7, to, 0, now) {
            interface.hold(hop, &headers, &[0; 1000]);
        }
    }
    let held = 4 * MAX_NEIGHBOURS as u64 - interface.drops().unresolved;
    assert!(held <= MAX_WAITING_ALL as u64, "{held} frames wait");
}

#[test]
fn a_drawn_frame_is_answered_by_well_formed_ones() {
    let now = Instant::now();
    let tokens: [&[u8]; 6] =
        [&OURS.0, &THEIRS.0, &[8, 0, 0x45], &[0x86, 0xdd, 0x60], &[8, 6, 0, 1, 8, 0, 6, 4], &[0x81, 0]];
    let target = Fuzz::new("dpdk-frame", env!("CARGO_MANIFEST_DIR")).seeds(frames()).tokens(tokens);
    target.max_bytes(256).run(|bytes| {
        check(&mut interface(), bytes, now);
        // Without checksums, so that what follows them is reached.
        let verified = Verified { ip: true, transport: true };
        match frame::parse(bytes, verified, true) {
            Ok(Frame::Datagram(datagram)) => 2 + u64::from(datagram.source.is_ipv6()),
            Ok(Frame::Resolution(message)) => shape(&message),
            Err(why) => shape(&why),
        }
    });
}

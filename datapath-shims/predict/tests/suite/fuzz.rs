//! Fuzz targets: no datagram panics a server, is answered by more than it was, or changes a weight unless a token was good; no
//! content of a file panics whoever reads it.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero, `cargo bolero test -p
//! ccplane-predict --test suite fuzz::any_datagram_counts_once_and_only_a_good_token_teaches` runs
//! one guided by coverage.

use crate::support::{ask, inputs, request, server};
use ccplane_predict::data::Images;
use ccplane_predict::packet::{MESSAGE_BYTES, kind, offset};
use ccplane_predict::{Ending, Refusal, Server, ServerState};
use ccplane_testing::fuzz::{Fuzz, shape};

const TURNS: [usize; 3] = [0, 1, 0];

/// Gives one datagram to a server, and says how it was taken.
fn check(server: &mut Server, datagram: &[u8]) -> u64 {
    let (slots, counters) = (server.slots().to_vec(), *server.counters());
    let mut reply = [0xee; MESSAGE_BYTES];
    let is_answered = server.handle(datagram, 7, &mut reply);
    let now = *server.counters();
    let counted = [
        now.requests - counters.requests,
        now.right - counters.right,
        now.wrong - counters.wrong,
        now.all_refused() - counters.all_refused(),
    ];
    assert_eq!(counted.iter().sum::<u64>(), 1, "each datagram counts once");
    assert_eq!(is_answered, counted[0] == 1);
    if is_answered {
        assert!(datagram.len() >= reply.len());
        assert_eq!(reply[offset::KIND], kind::REPLY);
        assert_eq!(reply[8..16], datagram[8..16]);
    } else {
        assert_eq!(reply, [0xee; MESSAGE_BYTES]);
    }
    assert!(counted[1] == 1 || slots == server.slots(), "only a good token teaches");
    let refusals = Refusal::ALL.iter().map(|reason| now.refused(*reason) - counters.refused(*reason));
    counted.into_iter().chain(refusals).fold(1, |code, count| code << 1 | count)
}

#[test]
fn any_datagram_counts_once_and_only_a_good_token_teaches() {
    let mut server = server(&TURNS);
    bolero::check!().for_each(|datagram| {
        check(&mut server.clone(), datagram);
    });
    check(&mut server, &request(0, 1, &inputs(0)));
}

#[test]
fn a_drawn_datagram_counts_once_and_only_a_good_token_teaches() {
    let mut fresh = server(&TURNS);
    let reply = ask(&mut fresh, 0, &inputs(1), 3);
    let seeds = [request(0, 1, &inputs(0)), request(1, 2, &inputs(3)), reply.feedback(reply.class).to_vec()];
    // The server goes on from input to input, but for the one token, which would be used up by the first that is good.
    let mut at = fresh.clone();
    let target = Fuzz::new("prediction", env!("CARGO_MANIFEST_DIR")).seeds(seeds).max_bytes(128);
    target.run(|datagram| {
        let code = check(&mut at, datagram);
        if at.counters().right + at.counters().wrong > 0 {
            at = fresh.clone();
        }
        code
    });
}

#[test]
fn a_state_that_is_read_is_written_as_the_same() {
    let mut server = server(&TURNS);
    for n in 0..20 {
        let reply = ask(&mut server, 0, &inputs(1), n << 27);
        crate::support::give_feedback(&mut server, &reply.feedback(1));
    }
    let whole = server.state(Ending::NotYet).encode();
    let seed = whole[..whole.len() - 4].to_vec();
    let target = Fuzz::new("prediction-state", env!("CARGO_MANIFEST_DIR")).seeds([seed]).max_bytes(1024);
    target.run(|content| {
        // Past the checksum, as whoever can write the file can get.
        let file = [content, &crc32c::crc32c(content).to_le_bytes()[..]].concat();
        match ServerState::parse(&file) {
            Ok(state) => {
                assert_eq!(state.encode(), file, "canonical");
                u64::from(state.session.is_some())
            }
            Err(error) => shape(&error),
        }
    });
}

#[test]
fn no_content_of_a_file_panics_its_reader() {
    bolero::check!().for_each(|content| {
        let _ = ServerState::parse(content);
        let _ = Images::parse(content, content);
        if let Some((images, labels)) = content.split_at_checked(content.len() / 2) {
            let _ = Images::parse(images, labels);
        }
    });
}

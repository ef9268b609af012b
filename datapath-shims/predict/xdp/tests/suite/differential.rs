//! The program, run by the kernel on made-up packets, against the reference in user space: the same replies, weights and counts.

use std::sync::Arc;

use crate::support::{
    Headers, KEY, PORT, WIDTHS, below, on_first_processor, portfolio, request, rng, server,
};
use ccplane_infer::Bits;
use ccplane_predict::packet::{MESSAGE_BYTES, Reply, offset};
use ccplane_predict::{Choice, Ending, Portfolio, Refusal, Server, ServerState, Session, WINDOW, Window};
use ccplane_predict_xdp::{Counter, XDP_DROP, XDP_PASS, XDP_TX, XdpServer};
use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// Feedback that is not yet given, at most.
const MAX_WAITING: usize = 1000;

/// A server in XDP beside the reference.
struct Pair {
    xdp: XdpServer,
    reference: Server,
    random: ChaCha8Rng,
}

impl Pair {
    fn new(check: &str, seed: u64, portfolio: Arc<Portfolio>) -> Option<Pair> {
        on_first_processor();
        let xdp = server(check, &portfolio)?;
        let reference = Server::new(portfolio, &Choice::DEFAULT, KEY, None).unwrap();
        Some(Pair { xdp, reference, random: rng(seed) })
    }

    /// Gives both a datagram; returns the reply.
    fn give(&mut self, headers: Headers, datagram: &[u8]) -> Option<Reply> {
        let random = self.random.next_u32();
        let mut expected = [0; MESSAGE_BYTES];
        let answered = self.reference.handle(datagram, random, &mut expected);
        self.xdp.set_random(random);
        let packet = headers.packet(datagram);
        let run = self.xdp.run(&packet).unwrap();
        if !answered {
            assert_eq!(i64::from(run.verdict), XDP_DROP, "{datagram:?}");
            return None;
        }
        assert_eq!(i64::from(run.verdict), XDP_TX, "{datagram:?}");
        assert_eq!(headers.reply(&packet, &run.packet), expected);
        assert!(run.packet.len() <= packet.len());
        Reply::parse(&expected)
    }

    /// Goes on with this token, the ones before taken as given out.
    fn skip_to(&mut self, next: u64) {
        let ServerState { session, epoch, predictors, slots } = self.reference.state(Ending::InOrder);
        let Session { key, window } = session.unwrap();
        let session = Some(Session { key, window: Window::resume(next, window.words().to_vec()).unwrap() });
        let state = ServerState { session, epoch, predictors, slots };
        let portfolio = Arc::clone(self.reference.portfolio());
        self.reference = Server::new(portfolio, &Choice::DEFAULT, KEY, Some(&state)).unwrap();
        self.xdp.skip_to(0, next);
    }

    fn assert_same_weights(&self) {
        for (n, slot) in self.reference.slots().iter().enumerate() {
            assert_eq!(self.xdp.deficits(n), slot.weights.deficits());
            assert_eq!(self.xdp.thresholds(n), slot.weights.thresholds());
        }
    }

    fn assert_same_counts(&self) {
        let counters = self.reference.counters();
        let ours = [Counter::Requests, Counter::Right, Counter::Wrong].map(|counter| self.xdp.count(counter));
        assert_eq!(ours, [counters.requests, counters.right, counters.wrong]);
        for reason in Refusal::ALL {
            assert_eq!(self.xdp.count(Counter::Refused(reason)), counters.refused(reason), "{reason:?}");
        }
        assert_eq!(self.xdp.count(Counter::Overtaken), 0);
        assert_eq!(self.xdp.epoch(), self.reference.epoch());
    }
}

/// A datagram that something was done to.
fn spoiled(random: &mut ChaCha8Rng, mut datagram: Vec<u8>) -> Vec<u8> {
    match below(random, 4) {
        0 => datagram.truncate(below(random, datagram.len() + 1)),
        1 => datagram.extend((0..1 + below(random, 9)).map(|n| n as u8)),
        2 => datagram[below(random, offset::ID)] ^= 1 << below(random, 8),
        _ => {
            let at = below(random, datagram.len());
            datagram[at] ^= 1 << below(random, 8);
        }
    }
    datagram
}

/// Random requests and feedback, late, repeated, spoiled; new predictors now and then.
fn agree(check: &str, seed: u64, steps: usize, portfolios: &[Arc<Portfolio>]) {
    let Some(mut pair) = Pair::new(check, seed, Arc::clone(&portfolios[0])) else { return };
    let inputs = portfolios[0].predictors()[0].snapshot().shape().inputs();
    let classes = portfolios[0].predictors()[0].snapshot().shape().outputs();
    let mut choice = rng(seed + 1);
    let (mut waiting, mut used): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let headers =
            Headers { vlan: below(&mut choice, 4) == 0, v6: below(&mut choice, 3) == 0, ..Headers::PLAIN };
        let kind = below(&mut choice, 100);
        let ask = |choice: &mut ChaCha8Rng| {
            let bytes: Vec<u8> = (0..inputs).map(|_| choice.next_u32() as u8 >> below(choice, 8)).collect();
            request(below(choice, 2) as u8, choice.next_u64(), &bytes)
        };
        let datagram = match kind {
            0..50 => ask(&mut choice),
            50..85 if !waiting.is_empty() => {
                let feedback = waiting.swap_remove(below(&mut choice, waiting.len()));
                used.push(feedback.clone());
                feedback
            }
            85..88 if !used.is_empty() => used.swap_remove(below(&mut choice, used.len())),
            88..94 if !waiting.is_empty() => {
                let at = below(&mut choice, waiting.len());
                spoiled(&mut choice, waiting[at].clone())
            }
            94..99 => {
                let request = ask(&mut choice);
                spoiled(&mut choice, request)
            }
            _ => (0..below(&mut choice, 120)).map(|_| choice.next_u32() as u8).collect(),
        };
        if let Some(reply) = pair.give(headers, &datagram) {
            let truth = if below(&mut choice, 3) > 0 {
                usize::from(reply.class)
            } else {
                below(&mut choice, classes)
            };
            waiting.push(reply.feedback(truth as u8).to_vec());
        }
        if waiting.len() > MAX_WAITING {
            waiting.swap_remove(0);
        }
        pair.assert_same_weights();
        if step % (steps / portfolios.len()) == steps / portfolios.len() - 1 {
            let next = &portfolios[(step * portfolios.len() / steps + 1) % portfolios.len()];
            pair.xdp.push(next).unwrap();
            pair.reference.push(Arc::clone(next)).unwrap();
            pair.assert_same_weights();
        }
    }
    pair.assert_same_counts();
    let counters = pair.reference.counters();
    assert!(counters.requests > steps as u64 / 3 && counters.right > steps as u64 / 10);
    let never = [Refusal::Late, Refusal::Kind].map(|reason| counters.refused(reason) == 0);
    assert_eq!(never, [true, false], "nothing is a million requests late");
    let happened = Refusal::ALL.iter().filter(|reason| counters.refused(**reason) > 0).count();
    assert!(happened >= Refusal::ALL.len() - 1, "{counters:?}");
}

#[test]
fn ten_predictors_answer_and_learn_as_the_reference() {
    let widths = &WIDTHS;
    let portfolios = [1, 2, 3].map(|seed| portfolio(seed, 10, Bits::W8, widths, (0, 16)));
    agree("ten predictors in XDP", 11, 120_000, &portfolios);
}

#[test]
fn other_shapes_answer_and_learn_as_the_reference() {
    for (count, bits, widths, range) in [
        (2, Bits::W16, &[64, 16, 10][..], (-128, 127)),
        (16, Bits::W16, &[5, 7, 6, 3], (0, 255)),
        (3, Bits::W8, &[40, 64, 13, 16], (-100, 90)),
        (1, Bits::W8, &[4, 2], (0, 255)),
    ] {
        let portfolios = [4, 5].map(|seed| portfolio(seed, count, bits, widths, range));
        agree("predictors of other shapes in XDP", 12, 8_000, &portfolios);
    }
}

#[test]
fn a_token_counts_as_long_as_the_window_and_no_longer() {
    let Some(mut pair) = Pair::new("the window in XDP", 13, portfolio(6, 2, Bits::W8, &[4, 2], (0, 255)))
    else {
        return;
    };
    let ask = |pair: &mut Pair| {
        let reply = pair.give(Headers::PLAIN, &request(0, 1, &[1, 2, 3, 4])).unwrap();
        reply.feedback(reply.class).to_vec()
    };
    let early = [ask(&mut pair), ask(&mut pair), ask(&mut pair)];
    pair.skip_to(WINDOW + 1);
    // The first token is as old as the window now, then the second, and the third is older.
    pair.give(Headers::PLAIN, &early[0]);
    ask(&mut pair);
    pair.give(Headers::PLAIN, &early[1]);
    assert_eq!(pair.xdp.count(Counter::Right), 2);
    ask(&mut pair);
    ask(&mut pair);
    pair.give(Headers::PLAIN, &early[2]);
    assert_eq!(pair.xdp.count(Counter::Right), 2);
    pair.assert_same_weights();
    let late = Refusal::Late;
    assert_eq!((pair.xdp.count(Counter::Refused(late)), pair.reference.counters().refused(late)), (1, 1));
}

#[test]
fn what_is_not_for_the_server_is_passed_unchanged() {
    let Some(pair) = Pair::new("other packets in XDP", 14, portfolio(7, 2, Bits::W8, &[4, 2], (0, 255)))
    else {
        return;
    };
    let asked = request(0, 1, &[1, 2, 3, 4]);
    let plain = Headers::PLAIN.packet(&asked);
    let edited = |edits: &[(usize, u8)]| {
        let mut packet = plain.clone();
        edits.iter().for_each(|(at, byte)| packet[*at] = *byte);
        packet
    };
    let mut others = vec![
        Headers { port: PORT + 1, ..Headers::PLAIN }.packet(&asked),
        // ARP; TCP; IP options; a fragment; UDP longer than IP; UDP shorter than its header; IP longer than the packet.
        edited(&[(12, 0x08), (13, 0x06)]),
        edited(&[(23, 6)]),
        edited(&[(14, 0x46)]),
        edited(&[(20, 0x20)]),
        edited(&[(39, plain[39] + 1)]),
        edited(&[(38, 0), (39, 7)]),
        edited(&[(16, 0x01), (38, 0x01)]),
    ];
    others.extend((14..42).map(|length| plain[..length].to_vec()));
    for packet in others {
        let run = pair.xdp.run(&packet).unwrap();
        assert_eq!((i64::from(run.verdict), run.packet), (XDP_PASS, packet));
    }
    assert_eq!(i64::from(pair.xdp.run(&plain).unwrap().verdict), XDP_TX);
}

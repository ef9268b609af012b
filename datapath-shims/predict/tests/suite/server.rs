//! The server against textbook bandits fed by hand, and against everything that strangers may send.

use crate::support::{CLASSES, INPUTS, ask, below, give_feedback, inputs, portfolio, request, rng, server};
use ccplane_bandit::integer::Weights;
use ccplane_predict::packet::{MESSAGE_BYTES, kind, offset};
use ccplane_predict::{
    Choice, Ending, Key, Portfolio, Refusal, Server, ServerCounters, ServerError, ServerState, Token, WINDOW,
};
use rand_core::RngCore;

/// Turns of five predictors: the first and the last agree always.
const TURNS: [usize; 5] = [0, 1, 2, 1, 0];

/// The token of a reply, opened with the key of [`crate::support::server`].
fn token(reply: &ccplane_predict::packet::Reply) -> Token {
    Token::open(reply.feedback(0)[16..].try_into().unwrap(), &Key([9; 16])).unwrap()
}

#[test]
fn answers_and_weights_are_those_of_a_bandit_fed_by_hand() {
    for (slot, choice) in Choice::DEFAULT.into_iter().enumerate() {
        let (mut server, mut random) = (server(&TURNS), rng(slot as u64));
        let mut by_hand = Weights::new(TURNS.len()).unwrap();
        let mut right = 0;
        for sequence in 1..=3_000 {
            let (largest, draw) = (below(&mut random, INPUTS), random.next_u32());
            let reply = ask(&mut server, slot as u8, &inputs(largest), draw);
            let arm = by_hand.draw(draw);
            let class = (largest + TURNS[arm]) % INPUTS;
            let agreed = (0..TURNS.len())
                .filter(|n| if choice == Choice::Exp3 { *n == arm } else { TURNS[*n] == TURNS[arm] })
                .fold(0, |set, n| set | 1 << n);
            let probability = by_hand.probability_of(agreed);
            let expected = Token {
                sequence,
                probability: probability as u32,
                agreed,
                stream: 0,
                class: class as u8,
                epoch: 1,
                slot: slot as u8,
                arm: arm as u8,
            };
            assert_eq!((usize::from(reply.class), token(&reply)), (class, expected));
            // Predictors of turn 0 are right three times in four, those of turn 1 else.
            let truth = (largest + usize::from(sequence.is_multiple_of(4))) % INPUTS;
            give_feedback(&mut server, &reply.feedback(truth as u8));
            if class == truth {
                right += 1;
                by_hand.reward(agreed, probability);
            }
            assert_eq!(server.slots()[slot].weights, by_hand);
            assert_eq!(server.slots()[1 - slot].weights, Weights::new(TURNS.len()).unwrap());
        }
        assert_eq!(*server.counters(), counters(3_000, right, 3_000 - right));
        let best = server.slots()[slot].weights.probability_of(0b10001);
        assert!(best > 9 * (u64::from(u32::MAX) / 10), "{choice:?} has not found the best: {best}");
    }
}

fn counters(requests: u64, right: u64, wrong: u64) -> ServerCounters {
    ServerCounters { requests, right, wrong, ..ServerCounters::default() }
}

/// Sends what is to be refused; nothing else may come of it than its being counted.
#[track_caller]
fn refused(server: &mut Server, datagram: &[u8], reason: Refusal) {
    let before = server.clone();
    let mut reply = [0xaa; MESSAGE_BYTES];
    assert!(!server.handle(datagram, 5, &mut reply), "{reason:?} was answered");
    assert_eq!(reply, [0xaa; MESSAGE_BYTES]);
    assert_eq!(server.counters().refused(reason), before.counters().refused(reason) + 1, "{reason:?}");
    assert_eq!(server.counters().all_refused(), before.counters().all_refused() + 1);
    assert_eq!(server.slots(), before.slots());
    assert_eq!(server.window(), before.window());
}

#[test]
fn what_is_malformed_is_counted_and_dropped() {
    let mut server = server(&TURNS);
    let good = request(0, 1, &inputs(0));
    let with = |at: usize, value: u8| {
        let mut other = good.clone();
        other[at] = value;
        other
    };
    for length in 0..good.len() {
        refused(&mut server, &good[..length], Refusal::Short);
    }
    refused(&mut server, &[good.clone(), vec![0]].concat(), Refusal::Long);
    refused(&mut server, &[good.clone(), vec![0; 2_000]].concat(), Refusal::Long);
    for at in 0..4 {
        refused(&mut server, &with(at, 0), Refusal::Magic);
    }
    for version in [0, 2, 255] {
        refused(&mut server, &with(offset::VERSION, version), Refusal::Version);
    }
    // A reply that is sent to a server is none of its business: two servers do not answer each other for ever.
    for other in [0, kind::REPLY, 4, 255] {
        refused(&mut server, &with(offset::KIND, other), Refusal::Kind);
    }
    for slot in [2, 255] {
        refused(&mut server, &with(offset::SLOT, slot), Refusal::Slot);
    }
    for count in [0, INPUTS as u8 - 1, INPUTS as u8 + 1, 255] {
        refused(&mut server, &with(offset::ARGUMENT, count), Refusal::Inputs);
    }
    let feedback = ask(&mut server, 0, &inputs(0), 5).feedback(0);
    for length in 0..feedback.len() {
        refused(&mut server, &feedback[..length], Refusal::Short);
    }
    refused(&mut server, &[&feedback[..], &[0]].concat(), Refusal::Long);
    let mut untrue = feedback;
    untrue[offset::ARGUMENT] = CLASSES as u8;
    refused(&mut server, &untrue, Refusal::Truth);
    give_feedback(&mut server, &feedback);
    assert_eq!(server.counters().right, 1, "what was refused has not used the token up");
}

#[test]
fn tokens_that_are_forged_or_used_change_nothing() {
    let mut server = server(&TURNS);
    let reply = ask(&mut server, 0, &inputs(1), 5);
    let feedback = reply.feedback(reply.class);
    // Every bit of the token; the epoch's are told apart from the others, as an old token's would be.
    for bit in 0..8 * 32 {
        let mut forged = feedback;
        forged[16 + bit / 8] ^= 1 << (bit % 8);
        let reason = if (128..160).contains(&bit) { Refusal::Outdated } else { Refusal::Forged };
        refused(&mut server, &forged, reason);
    }
    let mut elsewhere = feedback;
    elsewhere[offset::SLOT] = 1;
    refused(&mut server, &elsewhere, Refusal::Forged);
    // Sealed with another key, and sealed well but never given out.
    let content = token(&reply);
    let mut strange = feedback;
    strange[16..].copy_from_slice(&content.seal(&Key([8; 16])));
    refused(&mut server, &strange, Refusal::Forged);
    for (sequence, reason) in [(0, Refusal::Repeated), (2, Refusal::Late), (u64::MAX, Refusal::Late)] {
        strange[16..].copy_from_slice(&Token { sequence, ..content }.seal(&Key([9; 16])));
        refused(&mut server, &strange, reason);
    }
    give_feedback(&mut server, &feedback);
    assert_eq!(*server.counters(), ServerCounters { right: 1, ..*server.counters() });
    for _ in 0..3 {
        refused(&mut server, &feedback, Refusal::Repeated);
    }
    // Another truth for the same token does not count either.
    refused(&mut server, &reply.feedback((reply.class + 1) % CLASSES as u8), Refusal::Repeated);
}

#[test]
fn feedback_may_be_late_by_a_window_and_no_more() {
    let mut server = server(&TURNS);
    let mut random = rng(3);
    let first = ask(&mut server, 0, &inputs(0), 0);
    let second = ask(&mut server, 0, &inputs(0), 0);
    for _ in 0..WINDOW - 1 {
        ask(&mut server, 0, &inputs(0), random.next_u32());
    }
    refused(&mut server, &first.feedback(0), Refusal::Late);
    let before = server.slots()[0].weights;
    give_feedback(&mut server, &second.feedback(second.class));
    assert_ne!(server.slots()[0].weights, before, "{WINDOW} requests late");
}

/// Feedback 0 to 100,000 requests late, some of it repeated, some forged, some never sent: what is learned is the same but for noise.
#[test]
fn late_repeated_and_forged_feedback_does_not_steer() {
    const REQUESTS: usize = 300_000;
    const LATEST: usize = 100_000;
    for slot in [0, 1] {
        let (mut server, mut random) = (server(&[1, 0, 2, 3, 1]), rng(11));
        let mut due: Vec<Vec<[u8; MESSAGE_BYTES]>> = vec![Vec::new(); REQUESTS + LATEST + 1];
        for now in 0..REQUESTS + LATEST {
            for feedback in std::mem::take(&mut due[now]) {
                give_feedback(&mut server, &feedback);
                if below(&mut random, 4) == 0 {
                    give_feedback(&mut server, &feedback);
                    // Whoever wants predictor 0 to win says so of every token that it can make up.
                    let content = Token { agreed: 1, arm: 0, probability: 1 << 20, ..opened(&feedback) };
                    let mut forged = feedback;
                    forged[16..].copy_from_slice(&content.seal(&Key([1; 16])));
                    give_feedback(&mut server, &forged);
                }
            }
            if now < REQUESTS {
                let largest = below(&mut random, INPUTS);
                let reply = ask(&mut server, slot, &inputs(largest), random.next_u32());
                // Predictor 1 is right nine times in ten, 0 and 4 in the tenth.
                let truth = if below(&mut random, 10) == 0 { largest + 1 } else { largest };
                let feedback = reply.feedback((truth % INPUTS) as u8);
                if below(&mut random, 10) > 0 {
                    due[now + below(&mut random, LATEST + 1)].push(feedback);
                }
            }
        }
        let weights = server.slots()[usize::from(slot)].weights;
        // Exploration leaves it 0.9 and a fifth of 0.1.
        let share = weights.probability(1) as f64 / 2f64.powi(32);
        assert!((share - 0.92).abs() < 0.001, "slot {slot}: {share}");
        let counters = server.counters();
        let told = counters.right + counters.wrong;
        assert!((told as f64 / REQUESTS as f64 - 0.9).abs() < 0.01);
        assert_eq!(counters.refused(Refusal::Repeated), counters.refused(Refusal::Forged));
        assert!(counters.refused(Refusal::Forged) > told / 5);
        assert_eq!(counters.all_refused(), 2 * counters.refused(Refusal::Forged));
    }
}

fn opened(feedback: &[u8; MESSAGE_BYTES]) -> Token {
    Token::open(feedback[16..].try_into().unwrap(), &Key([9; 16])).unwrap()
}

#[test]
fn new_predictors_answer_at_once_and_keep_the_weights_of_their_names() {
    let mut server = server(&[0, 1, 2]);
    let mut random = rng(5);
    for _ in 0..2_000 {
        let reply = ask(&mut server, 0, &inputs(2), random.next_u32());
        give_feedback(&mut server, &reply.feedback(2));
    }
    let before = server.slots()[0].weights;
    let old = ask(&mut server, 0, &inputs(2), 0);
    assert_eq!(old.class, 2);
    server.push(portfolio(&[3, 1, 2])).unwrap();
    assert_eq!(server.slots()[0].weights, before);
    assert_eq!(ask(&mut server, 0, &inputs(2), 0).class, 1, "the new predictor 0 answers");
    refused(&mut server, &old.feedback(2), Refusal::Outdated);
    // One predictor fewer, and two more: names keep what they have.
    server.push(portfolio(&[3, 1, 2, 0, 0])).unwrap();
    assert_eq!(server.slots()[0].weights.deficits()[..3], *before.deficits());
    assert_eq!(server.slots()[0].weights.deficits()[3..], [0, 0]);
    let (before, epoch) = (server.slots().to_vec(), server.epoch());
    let other = Portfolio::new(vec![("p0".to_owned(), crate::support::ranged(0, 255))]).unwrap();
    assert_eq!(server.push(other.into()), Err(ServerError::Other));
    assert_eq!((server.slots(), server.epoch()), (before.as_slice(), epoch));
}

#[test]
fn weights_outlive_the_server_and_tokens_an_orderly_end() {
    let mut server = server(&TURNS);
    let mut random = rng(6);
    for _ in 0..500 {
        let reply = ask(&mut server, 0, &inputs(1), random.next_u32());
        give_feedback(&mut server, &reply.feedback(1));
    }
    let (open, used) = (ask(&mut server, 0, &inputs(1), 0), ask(&mut server, 0, &inputs(1), 0));
    give_feedback(&mut server, &used.feedback(1));
    let again = |state: &ServerState, turns: &[usize]| {
        let state = ServerState::parse(&state.encode()).unwrap();
        Server::new(portfolio(turns), &Choice::DEFAULT, Key([3; 16]), Some(&state)).unwrap()
    };
    let in_order = server.state(Ending::InOrder);
    let mut ended = again(&in_order, &TURNS);
    assert_eq!((ended.slots(), ended.window(), ended.epoch()), (server.slots(), server.window(), 1));
    refused(&mut ended, &used.feedback(1), Refusal::Repeated);
    give_feedback(&mut ended, &open.feedback(1));
    assert_eq!(ended.counters().right + ended.counters().wrong, 1);
    // Killed: tokens may have been used after the state was kept, so none is good.
    let mut killed = again(&server.state(Ending::NotYet), &TURNS);
    assert_eq!((killed.slots(), killed.epoch()), (server.slots(), 2));
    refused(&mut killed, &open.feedback(1), Refusal::Outdated);
    // Other predictors: the tokens are of those before.
    let mut changed = again(&in_order, &[0, 1, 2, 3, 0]);
    assert_eq!((changed.slots(), changed.epoch()), (server.slots(), 2));
    refused(&mut changed, &open.feedback(1), Refusal::Outdated);
}

#[test]
fn slots_are_bounded() {
    let of = |count: usize| Server::new(portfolio(&TURNS), &vec![Choice::Exp3; count], Key([0; 16]), None);
    assert!(matches!(of(0), Err(ServerError::Slots { found: 0 })));
    assert!(matches!(of(9), Err(ServerError::Slots { found: 9 })));
    assert_eq!(of(8).unwrap().slots().len(), 8);
}

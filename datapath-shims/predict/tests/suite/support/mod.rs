//! Predictors whose class is known beforehand.

pub mod flood;

use ccplane_infer::Bits;
use ccplane_predict::data::Images;
use ccplane_predict::load::Transport;
use ccplane_predict::packet::{MAX_DATAGRAM_BYTES, MESSAGE_BYTES, Reply, write_request};
use ccplane_predict::{Choice, Key, Portfolio, Refusal, Server, ServerCounters};
use ccplane_snapshot::{
    Admission, Calibration, Feature, Fidelity, Guards, Layer, Network, Parts, PolicySpec, Provenance,
    Snapshot, Trust, TrustedSnapshot,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::sync::Arc;
use std::time::Duration;

/// Time that a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Inputs of these predictors.
pub const INPUTS: usize = 4;
pub const CLASSES: usize = 4;

/// A predictor that answers with the index of the largest input after `turn` places: turn 0 is right where the truth is the largest.
pub fn turned(turn: usize) -> TrustedSnapshot {
    ranged(turn, 254)
}

/// The same, of inputs that reach from 0 to `hi`.
pub fn ranged(turn: usize, hi: i32) -> TrustedSnapshot {
    let inputs = (0..INPUTS).map(|n| Feature { name: format!("x[{n}]"), lo: 0, hi });
    let weights = (0..CLASSES)
        .flat_map(|class| (0..INPUTS).map(move |n| if (n + turn) % INPUTS == class { 100 } else { 0 }));
    let layer = Layer { weights: weights.collect(), biases: vec![0; CLASSES], tables: Vec::new() };
    let network = Network::new(Bits::W8, &[INPUTS, CLASSES], vec![layer], 1, 0).unwrap();
    let parts = Parts {
        spec: PolicySpec::classifier("turned", inputs.collect()).unwrap(),
        network,
        guards: Guards::for_inputs(INPUTS),
        calibration: Calibration { inputs: vec![(0, hi); INPUTS], sums: vec![0] },
        fidelity: Fidelity::default(),
        provenance: Provenance::default(),
    };
    Trust::Any.admit(Snapshot::new(parts).unwrap(), &Admission::default()).unwrap()
}

/// Predictors of these turns, named after their places.
pub fn portfolio(turns: &[usize]) -> Arc<Portfolio> {
    let networks = turns.iter().enumerate().map(|(n, turn)| (format!("p{n}"), turned(*turn)));
    Arc::new(Portfolio::new(networks.collect()).unwrap())
}

pub fn server(turns: &[usize]) -> Server {
    Server::new(portfolio(turns), &Choice::DEFAULT, Key([9; 16]), None).unwrap()
}

/// The inputs whose largest is this one.
pub fn inputs(largest: usize) -> [u8; INPUTS] {
    std::array::from_fn(|n| if n == largest { 200 } else { 50 })
}

pub fn request(slot: u8, id: u64, inputs: &[u8]) -> Vec<u8> {
    let mut bytes = [0; MAX_DATAGRAM_BYTES];
    let length = write_request(&mut bytes, slot, id, inputs);
    bytes[..length].to_vec()
}

/// Asks, and expects an answer.
pub fn ask(server: &mut Server, slot: u8, inputs: &[u8], random: u32) -> Reply {
    let mut reply = [0; MESSAGE_BYTES];
    assert!(server.handle(&request(slot, 77, inputs), random, &mut reply));
    let reply = Reply::parse(&reply).unwrap();
    assert_eq!((reply.id, reply.slot), (77, slot));
    reply
}

/// Gives feedback, which is never answered.
pub fn give_feedback(server: &mut Server, feedback: &[u8]) {
    assert!(!server.handle(feedback, 0, &mut [0; MESSAGE_BYTES]), "feedback was answered");
}

pub fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// A number below `n`.
pub fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    (rng.next_u64() % n as u64) as usize
}

pub fn digits() -> Images {
    Images::digits().unwrap()
}

/// A predictor of digits that knows nothing: any class of its ten.
pub fn turned_digits() -> TrustedSnapshot {
    let (inputs, classes) = (ccplane_predict::data::PIXELS, ccplane_predict::data::CLASSES);
    let mut random = rng(1);
    let weights = (0..inputs * classes).map(|_| (below(&mut random, 61) as i16) - 30);
    let layer = Layer { weights: weights.collect(), biases: vec![0; classes], tables: Vec::new() };
    let parts = Parts {
        spec: ccplane_predict::train::spec("random", 16).unwrap(),
        network: Network::new(Bits::W8, &[inputs, classes], vec![layer], 1, 0).unwrap(),
        guards: Guards::for_inputs(inputs),
        calibration: Calibration { inputs: vec![(0, 16); inputs], sums: vec![0] },
        fidelity: Fidelity::default(),
        provenance: Provenance::default(),
    };
    Trust::Any.admit(Snapshot::new(parts).unwrap(), &Admission::default()).unwrap()
}

/// Asks a server over `client` so many times, some of it refused, and tells what was true; holds each answer against the server in
/// memory, which draws the same random numbers.
pub fn converse(
    mut client: impl Transport,
    in_memory: &mut Server,
    draws: &mut ChaCha8Rng,
    times: usize,
    what: &str,
) {
    let (mut expected, mut reply) = ([0; MESSAGE_BYTES], [0; MAX_DATAGRAM_BYTES]);
    client.wait_at_most(Some(PATIENCE)).unwrap();
    for n in 0..times {
        let asked = request((n % 2) as u8, n as u64, &inputs(n % INPUTS));
        // One that is refused takes a random number, too.
        let broken = &asked[..n % 40];
        assert!(client.send(broken).unwrap(), "{what}: request {n}");
        assert!(!in_memory.handle(broken, draws.next_u32(), &mut expected));
        assert!(client.send(&asked).unwrap(), "{what}: request {n}");
        assert!(in_memory.handle(&asked, draws.next_u32(), &mut expected));
        let received = client.receive(&mut reply).unwrap();
        let length = received.unwrap_or_else(|| panic!("{what}: request {n} stays without reply"));
        assert_eq!(reply[..length], expected, "{what}: request {n}");
        let feedback = Reply::parse(&expected).unwrap().feedback((n % INPUTS) as u8);
        client.send(&feedback).unwrap();
        assert!(!in_memory.handle(&feedback, draws.next_u32(), &mut expected));
    }
    // A last question, so that the last feedback was heard.
    let last = request(0, 0, &inputs(0));
    client.send(&last).unwrap();
    assert!(client.receive(&mut reply).unwrap().is_some(), "{what}: the last request stays without reply");
    in_memory.handle(&last, draws.next_u32(), &mut expected);
}

/// Checks that a server counted a flood as what it was, and no fewer requests than it answered.
pub fn assert_flood_counted(counters: &ServerCounters, answers: u64) {
    assert_eq!(counters.right + counters.wrong, 0);
    let refused = counters.refused(Refusal::Short) + counters.refused(Refusal::Magic);
    assert_eq!(refused, counters.all_refused());
    assert!(refused > flood::FLOOD / 100);
    assert!(counters.requests >= answers);
}

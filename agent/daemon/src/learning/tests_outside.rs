//! Learning processes judged in virtual time: what they offer to simulated flows, and what the agent decides on it.
//!
//! The process is the test itself at the other end of the agent's socket. It speaks when the flows' clock says so, and nothing runs beside.

use super::deployed::Deployments;
use super::learner::Learn;
use super::mailbox::LoopId;
use super::outside::tests::offer_of;
use super::outside::{LearnerSocket, Outside};
use ccplane_alg::Algorithm;
use ccplane_core::{Companion, Core};
use ccplane_learn::{Architecture, Policy};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_quantize::Mlp;
use ccplane_runner::sim::{Simulation, SimulationFlow, run_beside};
use ccplane_sim::Source;
use ccplane_snapshot::Snapshot;
use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

const S: u64 = 1_000_000;
const NAME: &str = "aurora";
const LENGTH_BYTES: usize = 4;
/// The delay of either direction, microseconds.
const DELAY_US: u64 = 15_000;
/// Packets lost at random where the shipped policy gives way to losses that nothing but the link makes, millionths.
const MUCH_PPM: u32 = 100_000;
const STABILITY: f64 = 0.25;

/// A deed of the process.
enum Act {
    Connects,
    Says(Vec<u8>),
    /// Reads nothing from now on, or reads again.
    Reads(bool),
    /// Ends, or is killed.
    Leaves,
}

/// A verdict on an offer of its own, as the process heard it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Heard {
    at_us: u64,
    verdict: String,
    why: String,
}

/// The outcome of a play.
#[derive(PartialEq, Debug)]
struct Played {
    verdicts: Vec<Heard>,
    /// The policies that the process was sent, in order.
    policies: Vec<Policy>,
    rows_heard: usize,
    rows_made: usize,
    /// Packets of all flows that arrived.
    delivered: u64,
}

impl Played {
    fn words(&self) -> Vec<&str> {
        self.verdicts.iter().map(|heard| heard.verdict.as_str()).collect()
    }
}

/// The agent's half of a learner and the process, in one thread.
struct Process {
    outside: Outside,
    slot: u8,
    folder: tempfile::TempDir,
    stream: Option<UnixStream>,
    /// The process's deeds, each at its time on the flows' clock, microseconds.
    script: VecDeque<(u64, Act)>,
    reads: bool,
    incoming: Vec<u8>,
    played: Played,
}

impl Process {
    fn new(script: Vec<(u64, Act)>) -> Process {
        let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        let source = ccplane_algs::Aurora::default().policies().remove(0);
        let snapshot = Arc::new(Snapshot::parse(source.snapshot).unwrap());
        let deployments = Deployments::new(NAME, shipped(), snapshot, None);
        let socket = LearnerSocket::open(folder.path(), NAME).unwrap();
        let played =
            Played { verdicts: Vec::new(), policies: Vec::new(), rows_heard: 0, rows_made: 0, delivered: 0 };
        Process {
            outside: Outside::new(NAME, deployments, socket),
            slot: source.slot,
            folder,
            stream: None,
            script: script.into(),
            reads: true,
            incoming: Vec::new(),
            played,
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Connects => {
                let stream = UnixStream::connect(self.folder.path().join("aurora.learner")).unwrap();
                stream.set_nonblocking(true).unwrap();
                self.stream = Some(stream);
                self.incoming.clear();
            }
            Act::Says(bytes) => self.stream.as_mut().unwrap().write_all(&bytes).unwrap(),
            Act::Reads(reads) => self.reads = reads,
            Act::Leaves => self.stream = None,
        }
    }

    /// Reads what is there.
    fn hear(&mut self, now_us: u64) {
        let Some(stream) = &mut self.stream else { return };
        let mut piece = [0; 1 << 16];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            self.incoming.extend_from_slice(&piece[..count]);
        }
        while let Some(length) = self.incoming.first_chunk::<LENGTH_BYTES>() {
            let end = LENGTH_BYTES + u32::from_le_bytes(*length) as usize;
            if self.incoming.len() < end {
                break;
            }
            let message: Vec<u8> = self.incoming.drain(..end).skip(LENGTH_BYTES).collect();
            self.take(now_us, &message);
        }
    }

    fn take(&mut self, at_us: u64, message: &[u8]) {
        let (kind, content) = message.split_first().unwrap();
        let json = || serde_json::from_slice::<serde_json::Value>(content).unwrap();
        match kind {
            b'P' => self.played.policies.push(Policy::from_bytes(content).unwrap()),
            b'R' => self.played.rows_heard += json().as_array().unwrap().len(),
            b'D' => {
                let told = json();
                let text = |key: &str| told[key].as_str().unwrap().to_owned();
                if told["offered"] == true {
                    self.played.verdicts.push(Heard { at_us, verdict: text("verdict"), why: text("why") });
                }
            }
            kind => panic!("a message of kind {kind}"),
        }
    }
}

impl Companion for Process {
    fn after_turn(&mut self, core: &mut Core, now_us: u64) {
        core.take_decisions().iter().for_each(|decision| self.outside.on_decision(decision));
        for batch in core.take_rows().iter().filter(|batch| batch.algorithm == NAME) {
            self.played.rows_made += batch.rows.len();
            self.outside.take(LoopId(0), batch);
        }
        while self.script.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
            let (_, act) = self.script.pop_front().unwrap();
            self.act(act);
        }
        if let Some(candidate) = self.outside.step(Duration::ZERO) {
            assert!(core.propose(NAME, self.slot, &candidate, now_us));
        }
        if self.reads {
            self.hear(now_us);
        }
    }
}

/// Plays a process beside flows of Aurora over 20 Mb/s that loses this share of their packets.
fn play(loss_ppm: u32, flows: usize, seconds: u64, script: Vec<(u64, Act)>) -> Played {
    let capacity = Capacity::Rate { bit_per_s: 20_000_000 };
    let link = LinkConfig { loss_ppm, ..LinkConfig::new(capacity, DELAY_US * 1000, QueueLimit::Packets(50)) };
    let flow = SimulationFlow::new(NAME, Source::Bulk, 0, None);
    let simulation = Simulation {
        links: vec![link],
        flows: vec![flow; flows],
        ..Simulation::new(DELAY_US, seconds * S, 1)
    };
    let mut process = Process::new(script);
    let ended = run_beside(&simulation, &ccplane_algs::all(), S, &mut |_| true, Some(&mut process)).unwrap();
    let delivered = |flow| ended.datapath.stats(flow).unwrap().transport.delivered;
    Played { delivered: ended.flows.iter().map(|flow| delivered(*flow)).sum(), ..process.played }
}

/// The policy that flows begin with.
fn shipped() -> Policy {
    Policy::from_bytes(&ccplane_algs::Aurora::default().policies()[0].policy).unwrap()
}

/// A policy for links that lose much.
fn for_lossy_links() -> Policy {
    Policy::from_bytes(&ccplane_algs::Aurora::default().reserve()[0]).unwrap()
}

/// The shipped policy with its actions times `factor`.
fn times(factor: f32) -> Policy {
    let policy = shipped();
    let mut layers = policy.actor().layers().to_vec();
    let last = layers.last_mut().unwrap();
    last.weights.iter_mut().chain(&mut last.bias).for_each(|number| *number *= factor);
    let actor = Mlp::new(layers).unwrap();
    policy.with_parameters(actor, policy.critic().clone(), policy.log_std()).unwrap()
}

fn offer(policy: &Policy) -> Act {
    Act::Says(offer_of(STABILITY, &policy.to_bytes().unwrap()))
}

/// Flows that lose much are better off by an offer that is made for such links; the same play comes to the same end at the same time.
#[test]
fn a_good_offer_is_tried_and_adopted() {
    let adopted = || play(MUCH_PPM, 1, 200, vec![(0, Act::Connects), (20 * S, offer(&for_lossy_links()))]);
    let played = adopted();
    assert_eq!(played.words(), ["trial", "promoted"], "{:?}", played.verdicts);
    assert_eq!(played.policies, [shipped(), for_lossy_links()]);
    assert_eq!(played, adopted());
    let without = play(MUCH_PPM, 1, 200, Vec::new());
    assert!(played.delivered > without.delivered, "{} to {}", played.delivered, without.delivered);
}

/// A policy that slows down where the shipped one speeds up is within every bound: only flows can tell.
#[test]
fn a_harmful_offer_is_tried_and_rolled_back() {
    let played = play(0, 1, 200, vec![(0, Act::Connects), (20 * S, offer(&times(-1.0)))]);
    assert_eq!(played.words(), ["trial", "rolled-back"], "{:?}", played.verdicts);
    assert_eq!(played.policies, [shipped()]);
}

#[test]
fn what_is_no_number_has_another_shape_or_knows_no_bounds_is_never_tried() {
    let file = shipped().to_bytes().unwrap();
    let mut no_number = file.clone();
    // Tensors lie at the file's end.
    let last = no_number.len() - size_of::<f32>();
    no_number[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let narrow = Architecture { hidden: vec![8], ..shipped().architecture().clone() };
    let narrow = Policy::initial(narrow, shipped().spec().clone(), 0.0, 1).unwrap();
    let script = vec![
        (0, Act::Connects),
        (10 * S, Act::Says(offer_of(STABILITY, &no_number))),
        (11 * S, Act::Says(offer_of(f64::NAN, &file))),
        (12 * S, offer(&narrow)),
        (13 * S, offer(&times(100.0))),
    ];
    let played = play(0, 1, 20, script);
    assert_eq!(played.words(), ["refused", "refused", "refused", "unsafe"], "{:?}", played.verdicts);
    let why: Vec<&str> = played.verdicts.iter().map(|heard| heard.why.as_str()).collect();
    assert!(why[0].contains("finite") || why[0].contains("NaN"), "{why:?}");
    assert!(why[1].contains("a finite number") && why[2].contains("networks"), "{why:?}");
    assert_eq!(played.policies, [shipped()]);
}

/// A process that hears nothing for a hundred seconds loses rows and no more; what it offers then is judged by what flows do now.
#[test]
fn a_process_that_is_too_slow_costs_rows() {
    let script = vec![
        (0, Act::Connects),
        (S, Act::Reads(false)),
        (101 * S, Act::Reads(true)),
        (102 * S, offer(&shipped())),
    ];
    let played = play(0, 8, 110, script);
    assert!(played.rows_heard < played.rows_made, "{} of {}", played.rows_heard, played.rows_made);
    assert_eq!(played.words(), ["not-necessary"], "{:?}", played.verdicts);
    assert_eq!(played.policies, [shipped()]);
}

/// Half an offer is none. A whole one outlives its process, and is judged without it. Whoever comes next is sent what flows decide by.
#[test]
fn a_process_that_is_killed_harms_nothing() {
    let Act::Says(whole) = offer(&times(-1.0)) else { panic!("an offer is said") };
    let half = whole[..whole.len() / 2].to_vec();
    let script = vec![
        (0, Act::Connects),
        (10 * S, Act::Says(half)),
        (11 * S, Act::Leaves),
        (20 * S, Act::Connects),
        (30 * S, Act::Says(whole)),
        (30 * S, Act::Leaves),
        (200 * S, Act::Connects),
    ];
    let played = play(0, 1, 210, script);
    assert_eq!(played.words(), [""; 0], "nobody is there to hear it");
    assert_eq!(played.policies, [shipped(), shipped(), shipped()]);
}

//! A process that learns, played by a test: what it is told, what comes of its offers, and what it cannot harm.

use super::*;
use crate::learning::twin::tests::{decided, policy_and_snapshot};
use ccplane_alg::Row;
use ccplane_contract::{FlowId, SnapshotUid};
use ccplane_core::{DatapathId, Origin};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

const LOOP: LoopId = LoopId(0);
const DEPLOYED: u32 = 7;

struct Lab {
    outside: Outside,
    policy: Policy,
    folder: tempfile::TempDir,
}

fn set_up() -> Lab {
    let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
    let (policy, snapshot) = policy_and_snapshot(1);
    let hash = snapshot.hash();
    let deployments = Deployments::new("aurora", policy.clone(), snapshot, None);
    let socket = LearnerSocket::open(folder.path(), "aurora").unwrap();
    let mut outside = Outside::new("aurora", deployments, socket);
    outside.on_decision(&Decision { uid: Some(SnapshotUid(DEPLOYED)), ..decided(hash, Verdict::Pushed) });
    Lab { outside, policy, folder }
}

/// A process that has connected and heard of the deployed policy.
fn greeted() -> (Lab, UnixStream) {
    let mut lab = set_up();
    let mut stream = lab.connect();
    receive(&mut stream);
    (lab, stream)
}

impl Lab {
    fn connect(&mut self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("aurora.learner")).unwrap();
        self.step();
        stream
    }

    fn step(&mut self) -> Option<Candidate> {
        self.outside.step(Duration::ZERO)
    }

    /// Rows whose inputs go through their ranges.
    fn rows(&mut self, count: i32, reward: f32) {
        let row = |n: i32| {
            let inputs = (0..30).map(|i| (n * 1009 + i * 4001) % 30_000 - 15_000).collect();
            let (action_q16, follows) = (n * 100, n > 0);
            Row {
                at_us: 5,
                slot: 0,
                snapshot: DEPLOYED,
                inputs,
                action_q16,
                reward,
                follows,
                target_q16: None,
            }
        };
        let rows = (0..count).map(|n| (FlowId(3), row(n))).collect();
        let (datapath, measures) = (DatapathId(0), Vec::new());
        let batch = Batch { datapath, algorithm: "aurora", slot: 0, rows, dropped: 0, measures };
        self.outside.take(LOOP, &batch);
    }

    /// The deployed policy with other last biases, so that it decides otherwise.
    fn other(&self) -> Policy {
        let mut layers = self.policy.actor().layers().to_vec();
        layers.last_mut().unwrap().bias[0] += 0.4;
        let actor = ccplane_quantize::Mlp::new(layers).unwrap();
        self.policy.with_parameters(actor, self.policy.critic().clone(), self.policy.log_std()).unwrap()
    }
}

fn receive(stream: &mut UnixStream) -> (u8, Vec<u8>) {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut message = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut message).unwrap();
    (message[0], message[1..].to_vec())
}

/// A message as a process sends it.
fn message(kind: u8, content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32 + 1).to_le_bytes()[..], &[kind], content].concat()
}

/// The message that offers a policy file, with the measure of its convergence.
pub(in crate::learning) fn offer_of(stability: f64, file: &[u8]) -> Vec<u8> {
    message(b'O', &[&stability.to_le_bytes()[..], file].concat())
}

fn send(stream: &mut UnixStream, kind: u8, content: &[u8]) {
    stream.write_all(&message(kind, content)).unwrap();
}

fn offer(stream: &mut UnixStream, policy: &Policy) {
    stream.write_all(&offer_of(0.25, &policy.to_bytes().unwrap())).unwrap();
}

fn json(content: &[u8]) -> serde_json::Value {
    serde_json::from_slice(content).unwrap()
}

#[test]
fn a_process_hears_of_flows_and_offers_what_it_learned() {
    let mut lab = set_up();
    let mut stream = lab.connect();
    let (kind, content) = receive(&mut stream);
    assert_eq!((kind, Policy::from_bytes(&content).unwrap()), (b'P', lab.policy.clone()));

    lab.rows(100, 1.5);
    assert!(lab.step().is_none());
    let (kind, content) = receive(&mut stream);
    let rows = json(&content);
    assert_eq!((kind, rows.as_array().unwrap().len()), (b'R', 100));
    let row = &rows[2];
    assert_eq!(
        (row["flow"].as_u64(), row["reward"].as_f64(), row["follows"].as_bool()),
        (Some(1), Some(1.5), Some(true))
    );
    assert!((row["action"].as_f64().unwrap() - 200.0 / 65536.0).abs() < 1e-9 && row["current"] == true);
    let observation: Vec<f64> =
        row["observation"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert!(observation.len() == 30 && observation.iter().all(|x| x.abs() <= 1.0));

    let other = lab.other();
    offer(&mut stream, &other);
    let candidate = lab.step().unwrap();
    let Origin::Learned(evidence) = candidate.origin else { panic!("{:?}", candidate.origin) };
    assert_eq!((evidence.converged, evidence.stability, evidence.states), (true, 0.25, 100));
    assert!(evidence.fidelity_mean > 0.05, "{evidence:?}");

    // One at a time: the next offer waits for the verdict.
    offer(&mut stream, &lab.policy.clone());
    assert!(lab.step().is_none());
    lab.outside.on_decision(&decided(candidate.snapshot.hash(), Verdict::Promoted));
    lab.step();
    let (kind, content) = receive(&mut stream);
    assert_eq!((kind, json(&content)["verdict"].as_str()), (b'D', Some("promoted")));
    assert_eq!(json(&content)["offered"], true);
    let (kind, content) = receive(&mut stream);
    assert_eq!((kind, Policy::from_bytes(&content).unwrap()), (b'P', other));
}

#[test]
fn what_does_not_fit_is_refused_and_says_why() {
    let (mut lab, mut stream) = greeted();
    lab.rows(100, 0.0);
    lab.step();
    receive(&mut stream);
    send(&mut stream, b'O', b"12345678 no policy");
    assert!(lab.step().is_none());
    let (kind, content) = receive(&mut stream);
    assert_eq!((kind, json(&content)["verdict"].as_str()), (b'D', Some("refused")));
    let why = json(&content)["why"].as_str().unwrap().to_owned();
    assert!(why.contains("bytes of header"), "{why}");
    let endless_measure = [&f64::NAN.to_le_bytes()[..], &lab.policy.to_bytes().unwrap()].concat();
    send(&mut stream, b'O', &endless_measure);
    assert!(lab.step().is_none());
    assert!(json(&receive(&mut stream).1)["why"].as_str().unwrap().contains("finite"));
    let architecture = ccplane_learn::Architecture { hidden: vec![8], ..lab.policy.architecture().clone() };
    let small = Policy::initial(architecture, lab.policy.spec().clone(), 0.0, 1).unwrap();
    offer(&mut stream, &small);
    assert!(lab.step().is_none());
    assert!(json(&receive(&mut stream).1)["why"].as_str().unwrap().contains("networks"));
    // Too few states say nothing of what flows do.
    let mut fresh = set_up();
    let mut stream = fresh.connect();
    fresh.rows(10, 0.0);
    let other = fresh.other();
    offer(&mut stream, &other);
    assert!(fresh.step().is_none());
    fresh.rows(100, 0.0);
    assert!(fresh.step().is_some(), "it was kept meanwhile");
}

#[test]
fn an_offer_that_no_loop_could_be_asked_to_try_comes_back() {
    let (mut lab, mut stream) = greeted();
    lab.rows(100, 0.0);
    let other = lab.other();
    offer(&mut stream, &other);
    assert!(lab.step().is_some());
    assert_eq!(receive(&mut stream).0, b'R');
    lab.outside.not_asked();
    lab.step();
    let told = json(&receive(&mut stream).1);
    assert_eq!((told["verdict"].as_str(), told["offered"].as_bool()), (Some("not-asked"), Some(true)));
}

#[test]
fn no_row_follows_one_that_was_forgotten() {
    let (mut lab, mut stream) = greeted();
    lab.rows(MAX_ROWS as i32 + 10, 0.0);
    lab.step();
    let rows = json(&receive(&mut stream).1);
    assert_eq!(rows.as_array().unwrap().len(), 10);
    assert!(rows[0]["follows"] == false && rows[1]["follows"] == true, "{rows}");
}

#[test]
fn a_process_that_is_killed_hung_or_talks_nonsense_harms_nothing() {
    let mut lab = set_up();
    // Killed.
    drop(lab.connect());
    lab.rows(10, 0.0);
    assert!(lab.step().is_none());
    assert!(lab.outside.peer.is_none());
    // Hung: it reads nothing, and rows make way.
    let hung = lab.connect();
    for _ in 0..50 {
        lab.rows(1000, 0.0);
        assert!(lab.step().is_none());
    }
    assert!(lab.outside.rows.len() <= MAX_ROWS);
    // Another takes its place.
    let mut stream = lab.connect();
    assert_eq!(receive(&mut stream).0, b'P');
    drop(hung);
    send(&mut stream, b'?', b"");
    lab.step();
    assert!(lab.outside.peer.is_none(), "nonsense ends its say");
    let mut stream = lab.connect();
    stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    lab.step();
    assert!(lab.outside.peer.is_none());
    assert_eq!(receive(&mut lab.connect()).0, b'P');
}

#[test]
fn an_offer_outlives_its_process() {
    let mut lab = set_up();
    let mut stream = lab.connect();
    lab.rows(100, 0.0);
    let other = lab.other();
    offer(&mut stream, &other);
    drop(stream);
    assert!(lab.step().is_some());
    assert!(lab.outside.peer.is_none());
}

#[test]
fn rows_are_current_by_any_datapaths_deployment() {
    let (mut lab, mut stream) = greeted();
    let hash = lab.outside.deployments.snapshot().hash();
    let elsewhere = Decision { uid: Some(SnapshotUid(DEPLOYED + 1)), ..decided(hash, Verdict::Pushed) };
    lab.outside.on_decision(&elsewhere);
    lab.rows(3, 0.0);
    // The decision goes out first, then rows.
    lab.step();
    lab.step();
    assert_eq!(receive(&mut stream).0, b'D');
    let (kind, content) = receive(&mut stream);
    assert_eq!((kind, json(&content)[0]["current"].as_bool()), (b'R', Some(true)));
}

//! One thread ACKs as fast as it can, another does all that an agent may: nothing is torn, nothing lost uncounted.

use crate::common::{ack, info, manual};
use ccplane_contract::suite::images;
use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, Part, ProgramUid, SlotTable};
use ccplane_engine::{EngineConfig, FlowEngine, Handle};
use ccplane_infer::{FlowPolicy, Shape, image};
use ccplane_program::ir::Program;
use ccplane_program::vm::{Decision, Knobs, Policies};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Each ACK says what the agent set, all over, and what a policy that sees only ones decided.
const PROGRAM: &str = "
(def (Report (x 0) (y 0) (z 0) (action 0) (uid 0) (one 1)) (x 0) (y 0) (z 0))
(when true
    (:= Report.x x) (:= Report.y y) (:= Report.z z)
    (history 4 Report.one) (policy 0)
    (:= Report.action Policy.action) (:= Report.uid Policy.snapshot) (report))";
/// The places of the fields in a report; then come these.
const SET: std::ops::Range<usize> = 0..3;
const ACTION: usize = 3;
const UID: usize = 4;
const FIELDS: [&str; 3] = ["x", "y", "z"];
const SLOT: u8 = 0;
const COMMANDS: u32 = 20_000;
/// For both threads to get a processor.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of the history: that many ACKs after a program has started it is full of ones.
const DEPTH: usize = 4;

/// A snapshot that decides by its inputs alone.
fn image(rng: &mut ChaCha8Rng, shape: &Shape, uid: u32) -> Vec<u64> {
    let mut image = images::image(rng, shape, uid);
    image::set_u64(&mut image, image::NOISE_MULT, 0);
    image::set_u32(&mut image, image::TRIP_LIMIT, 0);
    image::set_u32(&mut image, image::FLAGS, 0);
    image
}

/// Returns the action of a snapshot on these inputs.
fn decides(shape: &Shape, image: &[u64], inputs: [i32; DEPTH]) -> i64 {
    let mut table = SlotTable::plain();
    table.define(SLOT, shape).unwrap();
    table.push(SLOT, image, Part::Active).unwrap();
    let mut flow = FlowPolicy::default();
    let mut knobs = Knobs { cwnd_bytes: 10_000, rate_bytes_per_s: 10_000 };
    match table.policies(1, &mut flow).decide(SLOT, &inputs, &mut knobs) {
        Decision::Action { action_q16, .. } => action_q16,
        Decision::Native => panic!("no answer"),
    }
}

struct Agent {
    handle: Handle,
    flow: FlowId,
    rng: ChaCha8Rng,
    shape: Shape,
    fields: Vec<Field>,
    /// The actions of each snapshot, with its history filling and full.
    actions: BTreeMap<u32, Vec<i64>>,
    next: i64,
    last: i64,
    seq: u32,
    missing: u64,
    dropped: u64,
    seen: BTreeMap<i64, u32>,
}

impl Agent {
    fn new(mut handle: Handle, flow: FlowId) -> Agent {
        let shape = Shape::new(ccplane_infer::Bits::W8, &[DEPTH, 8, 1]).unwrap();
        let program: Program = ccplane_program::compile(PROGRAM).unwrap();
        let fields = FIELDS.map(|name| Field::Reg(program.reg(name).unwrap())).to_vec();
        handle.define_slot(SLOT, &shape).unwrap();
        for uid in [1, 2] {
            handle.install(ProgramUid(uid), &program).unwrap();
        }
        let mut agent = Agent {
            handle,
            flow,
            rng: ChaCha8Rng::seed_from_u64(1),
            shape,
            fields,
            actions: BTreeMap::new(),
            next: 1,
            last: 0,
            seq: 0,
            missing: 0,
            dropped: 0,
            seen: BTreeMap::new(),
        };
        agent.push(Part::Active);
        agent.set();
        agent
    }

    fn push(&mut self, part: Part) {
        let uid = 1 + self.actions.len() as u32;
        let image = image(&mut self.rng, &self.shape, uid);
        let filling = (1..=DEPTH).map(|n| std::array::from_fn(|at| i32::from(at + n >= DEPTH)));
        let actions = filling.map(|inputs| decides(&self.shape, &image, inputs)).collect();
        self.actions.insert(uid, actions);
        self.handle.push(SLOT, &image, part).unwrap();
    }

    fn set(&mut self) {
        let fields = self.numbered();
        let uid = ProgramUid(1 + (self.next % 2) as u32);
        self.handle.set_program(self.flow, uid, &fields).unwrap();
    }

    /// All fields the same, and larger than ever before.
    fn numbered(&mut self) -> Vec<(Field, i64)> {
        self.next += 1;
        self.fields.iter().map(|field| (*field, self.next)).collect()
    }

    fn command(&mut self) {
        let changed = match self.rng.next_u32() % 16 {
            0..=7 => {
                let fields = self.numbered();
                self.handle.update(self.flow, &fields)
            }
            8 | 9 => {
                self.set();
                Ok(())
            }
            10 => {
                self.push(Part::Active);
                Ok(())
            }
            11 => {
                self.push(Part::Canary { share: 1 << 15 });
                Ok(())
            }
            12 => self.handle.promote(SLOT),
            13 => self.handle.rollback(SLOT),
            14 => self.handle.share(SLOT, u16::MAX),
            _ => {
                let stats = &self.handle.flows()[0];
                assert_eq!(stats.flow, self.flow);
                assert_eq!(
                    stats.transport.delivered * crate::common::MSS,
                    stats.transport.bytes_acked,
                    "a sample is whole"
                );
                Ok(())
            }
        };
        match changed {
            Ok(()) | Err(DatapathError::NoSnapshot { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }

    /// The queue was full at times, and snapshots were followed while ACKs came.
    fn has_seen_enough(&self) -> bool {
        self.dropped > 0 && self.seen.len() > 20 && self.seq > COMMANDS
    }

    fn listen(&mut self, max: usize) -> usize {
        let mut events = Vec::new();
        let taken = self.handle.poll(max, &mut events);
        for event in events {
            match event {
                Event::Created { flow, .. } => assert_eq!(flow, self.flow),
                Event::Dropped { count } => self.dropped += count,
                Event::Report { seq, values, .. } => self.check(seq, &values),
                Event::Closed { .. } => panic!("it lives"),
            }
        }
        taken
    }

    fn check(&mut self, seq: u32, values: &[i64]) {
        self.missing += u64::from(seq - self.seq) - 1;
        self.seq = seq;
        let (now, set) = (values[0], &values[SET]);
        assert!(set.iter().all(|value| *value == now), "half an update: {set:?}");
        assert!(now >= self.last, "an update came after a later one");
        self.last = now;
        let possible = &self.actions[&(values[UID] as u32)];
        assert!(possible.contains(&values[ACTION]), "a snapshot that was never pushed");
        *self.seen.entry(values[UID]).or_default() += 1;
    }
}

/// Stops the other thread, also where this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// ACKs until it is told to stop; how many.
fn acks(mut flow: FlowEngine, stop: &AtomicBool) -> (FlowEngine, u64) {
    let mut n = 0;
    while !stop.load(Relaxed) {
        flow.on_ack(&ack(n, 10));
        n += 1;
    }
    (flow, n)
}

#[test]
fn nothing_is_torn_and_nothing_is_lost_uncounted() {
    let config =
        EngineConfig { event_capacity: 1024, heartbeat_timeout_us: u64::MAX, ..EngineConfig::new("threads") };
    let (engine, handle, _) = manual(config);
    let flow = engine.flow(info(), 0);
    let mut agent = Agent::new(handle, flow.id());
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let (mut flow, n) = std::thread::scope(|scope| {
        let acking = scope.spawn(|| acks(flow, &stop));
        let stopping = Stop(&stop);
        let mut commands = 0;
        while commands < COMMANDS || (!agent.has_seen_enough() && began.elapsed() < PATIENCE) {
            agent.command();
            // Now and then more reports come than are taken.
            agent.listen(if commands % 100 < 80 { usize::MAX } else { 0 });
            commands += 1;
        }
        drop(stopping);
        acking.join().unwrap()
    });
    while agent.listen(256) > 0 {}
    flow.on_ack(&ack(n, 10));
    agent.listen(256);
    assert_eq!(agent.last, agent.next, "the last update is there");
    let stats = &agent.handle.flows()[0];
    assert_eq!(
        u64::from(agent.seq) + trailing(&agent),
        stats.transport.reports,
        "every report came or was counted"
    );
    assert!(agent.has_seen_enough(), "{} dropped, by snapshots: {:?}", agent.dropped, agent.seen);
    let (policy, decisions) = (stats.policy.unwrap(), flow.last_decision().decisions);
    assert_eq!(policy.decisions, decisions, "the last report's sample is the last");
    drop(flow);
}

/// Reports dropped after the last that came.
fn trailing(agent: &Agent) -> u64 {
    agent.dropped - agent.missing
}

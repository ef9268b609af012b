//! `push.snapshot`: what a push costs, how soon flows decide by a new snapshot, and whether any decision ever sees half of one.
//!
//! A push is what the agent does with the bytes of a snapshot: they are parsed, and their hash and bounds are checked.
//! The snapshot is admitted: every other one by its signature and its terms, the others unsigned. The datapath proves
//! once more that no sum of the network overflows, writes the image into a free buffer and flips the slot.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ccplane_alg::Algorithm;
use ccplane_algs::Aurora;
use ccplane_contract::slots::check_image;
use ccplane_contract::suite::images;
use ccplane_contract::{Datapath, DatapathError, Event, Field, FlowId, Part, ProgramUid};
use ccplane_core::Command;
use ccplane_ebpf::testrun::{Bench, STREAM_ACKS};
use ccplane_ebpf::{EbpfDatapath, clock_us};
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_infer::image::{self, map};
use ccplane_infer::{Bits, Model, Shape};
use ccplane_program::vm::{Prims, ProgramState};
use ccplane_quantize::snapshot::{Admission, DeployOptions, SigningKey, Snapshot, Terms, Trust};
use ccplane_runner::traffic::BulkFlow;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::error::BenchError;
use crate::figure::{Figure, Pair, percentile};
use crate::nn_ebpf::compile;
use crate::plain::{self, Pipe};
use crate::proof::{Proof, SteeredBy, Witness};
use crate::steer;

const SLOT: u8 = 0;
const PROGRAM: ProgramUid = ProgramUid(1);
/// The layers' widths of Aurora's network.
const WIDTHS: [usize; 4] = [30, 32, 16, 1];
const PUSHES: usize = 2000;
/// The pause between pushes, so that they come at any moment of the flow.
const PAUSE: Duration = Duration::from_millis(2);
/// The time between two polls for the row, which wakes nobody.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
const PATIENCE: Duration = Duration::from_secs(2);
/// Different snapshots: not as many as a slot has buffers, or each buffer would always get the same one.
const DIFFERENT: usize = 7;
/// The largest action that an image may have.
const BOUND_Q16: i64 = 1 << 24;
const DECISIONS: u32 = 10_000_000;
/// Decisions that one call makes.
const CHUNK: u32 = 500_000;

/// Decides on each ACK, always from the same rate, heeds nothing of it, and reports when another snapshot decides.
const FOLLOW: &str = "(def (Report (uid 0) (b 0) (c 0)))
    (when (< Ack.now 0) (history 10 Report.uid Report.b Report.c))
    (when true (:= Rate 125000000) (policy 0) (:= Rate 0) (fallthrough))
    (when (|| (< Policy.snapshot Report.uid) (> Policy.snapshot Report.uid))
      (:= Report.uid Policy.snapshot) (report))";

/// Measures `push.snapshot`: pushes of snapshots to a live flow.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let mut figures = live()?;
    figures.push(torn()?);
    Ok(figures)
}

/// Images whose actions on inputs of 0 all differ, with those actions. They change nothing of a flow.
fn different(shape: &Shape) -> Result<Vec<(Vec<u64>, i64)>, BenchError> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut all: Vec<(Vec<u64>, i64)> = Vec::new();
    while all.len() < DIFFERENT {
        let mut image = images::image(&mut rng, shape, 1);
        image::set_u32(&mut image, image::MAP, map::NONE);
        image::set_u32(&mut image, image::ACTION_BOUND_Q16, BOUND_Q16 as u32);
        image::set_u64(&mut image, image::STEP_Q20, 1);
        image::set_u32(&mut image, image::TRIP_LIMIT, 0);
        image::set_u32(&mut image, image::FLAGS, 0);
        image::set_u64(&mut image, image::NOISE_MULT, 0);
        let model = Model::new(shape, &image)
            .ok_or_else(|| BenchError::Missing("an image of its own shape".to_owned()))?;
        let action = model.infer(&[]).action_q16.clamp(-BOUND_Q16, BOUND_Q16);
        if all.iter().all(|(_, other)| *other != action) {
            all.push((image, action));
        }
    }
    Ok(all)
}

fn shape() -> Result<Shape, BenchError> {
    Shape::new(Bits::W8, &WIDTHS).map_err(|e| BenchError::Missing(e.to_string()))
}

/// The image that stands for `uid`.
fn named(images: &mut [(Vec<u64>, i64)], uid: u32) -> &[u64] {
    let image = &mut images[uid as usize % DIFFERENT].0;
    image::set_u32(image, image::UID, uid);
    image
}

/// Measures pushes to a live flow, whole and in parts, and the time from their start to the first ACK that decides by them.
fn live() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let (PushTimes { whole, signed, load, write, first }, proof) = steer::attached("s", pushes)?;
    let tail = |pairs: &[Pair]| {
        let values: Vec<f64> = pairs.iter().map(|(us, _)| *us).collect();
        format!("p90 {:.1} us, p99 {:.1} us", percentile(&values, 0.9), percentile(&values, 0.99))
    };
    let copy = "a plain copy of the image";
    let figures = [
        ("push.snapshot", plain::PIPE, &whole, "from a file's bytes: hash, bounds, proof, write and flip"),
        (
            "push.snapshot.signed",
            "a push without a signature",
            &signed,
            "the same with its signature and terms checked",
        ),
        ("push.snapshot.load", plain::PIPE, &load, "the datapath's part: proof, write and flip"),
        ("push.snapshot.write", copy, &write, "write and flip: the datapath's part less its proof"),
        (
            "push.snapshot.live",
            plain::PIPE,
            &first,
            "from the start of the datapath's part to the first ACK of a live flow that decides by it",
        ),
    ];
    Ok(figures
        .map(|(name, baseline, pairs, what)| {
            let note = format!("{what}; {}", tail(pairs));
            Figure::paired(name, "us", baseline, pairs, &proof).with_note(note)
        })
        .into())
}

/// The time of each push, microseconds, beside its baseline.
#[derive(Default)]
struct PushTimes {
    /// From the snapshot's bytes on, without a signature.
    whole: Vec<Pair>,
    /// The same with a signature, beside the unsigned push before it.
    signed: Vec<Pair>,
    /// The part of a push that the datapath does.
    load: Vec<Pair>,
    /// The datapath's part without the check of the snapshot.
    write: Vec<Pair>,
    /// From the start of the datapath's part to the first ACK that decides by it.
    first: Vec<Pair>,
}

fn pushes(datapath: &mut EbpfDatapath, name: &str) -> Result<(PushTimes, Proof), BenchError> {
    let policies = Aurora::default().policies();
    let shipped = policies.first().ok_or_else(|| BenchError::Missing("Aurora has no policy".into()))?;
    let (bytes, shape) = (shipped.snapshot, *parsed(shipped.snapshot)?.shape());
    let key = SigningKey::generate().map_err(|e| BenchError::Missing(format!("a key to sign with: {e}")))?;
    let signed = parsed(bytes)?.sign(&key, Terms { sequence: 1, expires_s: u64::MAX }).to_bytes();
    let signer = Trust::SignedBy(vec![key.verifying_key()]);
    datapath.define_slot(SLOT, &shape)?;
    push(datapath, bytes, &Trust::Any, NonZeroU32::MIN)?;
    datapath.install(PROGRAM, &compile(FOLLOW)?)?;
    let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&a, &b)?;
    let _traffic = BulkFlow::start(&steer::bulk(name, steer::LONG), &a, &b, Instant::now())?;
    let flow: FlowId = wait_for(datapath, |e| match e {
        Event::Created { flow, .. } => Some(*flow),
        _ => None,
    })?;
    datapath.set_program(flow, PROGRAM, &[])?;
    let (mut took, mut pipe) = (PushTimes::default(), Pipe::new()?);
    let mut witness = Witness::new(SteeredBy::Policy(Some(PROGRAM)));
    for uid in (2..PUSHES as u32 + 2).filter_map(NonZeroU32::new) {
        let is_signed = uid.get() % 2 == 1;
        let (file, trust) = if is_signed { (&signed[..], &signer) } else { (bytes, &Trust::Any) };
        let pushed = push(datapath, file, trust, uid)?;
        let proof = time_us(|| check_image(SLOT, &shape, black_box(&pushed.image)))?;
        let mut copied = vec![0; pushed.image.len()];
        let copy = time_us(|| {
            black_box(&mut copied).copy_from_slice(black_box(&pushed.image));
            Ok(())
        })?;
        let ack_us = wait_for(datapath, |e| match e {
            Event::Report { values, at_us, .. } if values.first() == Some(&uid.get().into()) => Some(*at_us),
            _ => None,
        })?;
        let flows = datapath.flows();
        witness.observe(&flows);
        let pipe_us = pipe.turn_us()?;
        if is_signed {
            took.signed.extend(took.whole.last().map(|(unsigned_us, _)| (pushed.whole_us, *unsigned_us)));
        } else {
            took.whole.push((pushed.whole_us, pipe_us));
        }
        took.load.push((pushed.load_us, pipe_us));
        took.write.push(((pushed.load_us - proof).max(0.0), copy));
        // The ACK's time is when the stack began with it, which may be before the push that it met.
        took.first.push((ack_us.saturating_sub(pushed.at_us) as f64, pipe_us));
        std::thread::sleep(PAUSE);
    }
    let deployed = Proof::exactly("snapshots that decided", took.first.len() as u64, PUSHES as u64)?;
    Ok((took, deployed.and(&witness.prove_steered(1)?)))
}

/// A snapshot that was pushed.
struct Pushed {
    image: Arc<[u64]>,
    /// When the datapath's part began.
    at_us: u64,
    whole_us: f64,
    load_us: f64,
}

/// Pushes a snapshot's bytes as the agent does: parses and checks them, and has the datapath load them.
fn push(
    datapath: &mut EbpfDatapath,
    bytes: &[u8],
    trust: &Trust,
    uid: NonZeroU32,
) -> Result<Pushed, BenchError> {
    let start = Instant::now();
    let admitted = trust.admit(parsed(black_box(bytes))?, &Admission::default());
    let snapshot = admitted.map_err(|e| BenchError::Missing(format!("a snapshot as shipped: {e}")))?;
    let image: Arc<[u64]> = snapshot.image(&DeployOptions { uid, ..DeployOptions::ONLY }).into();
    let command = Command::Push { slot: SLOT, image: Arc::clone(&image), part: Part::Active };
    let (at_us, loading) = (clock_us(), Instant::now());
    command.execute(datapath)?;
    let (load_us, whole_us) = (us(loading), us(start));
    Ok(Pushed { image, at_us, whole_us, load_us })
}

fn parsed(bytes: &[u8]) -> Result<Snapshot, BenchError> {
    Snapshot::parse(bytes).map_err(|e| BenchError::Missing(format!("a snapshot as shipped: {e}")))
}

fn time_us<T>(what: impl FnOnce() -> Result<T, DatapathError>) -> Result<f64, BenchError> {
    let start = Instant::now();
    black_box(what()?);
    Ok(us(start))
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1e3
}

fn wait_for<T>(
    datapath: &mut EbpfDatapath,
    mut found: impl FnMut(&Event) -> Option<T>,
) -> Result<T, BenchError> {
    let (start, mut events) = (Instant::now(), Vec::new());
    while start.elapsed() < PATIENCE {
        datapath.heartbeat();
        datapath.poll(256, &mut events);
        if let Some(value) = events.drain(..).find_map(|e| found(&e)) {
            return Ok(value);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(BenchError::Missing(format!("nothing heard of the flow within {PATIENCE:?}")))
}

/// A program that knows the action of each snapshot, and counts the decisions that are another's. One that was dropped is
/// nobody's.
fn watcher() -> String {
    let names: Vec<String> = (0..DIFFERENT).map(|n| format!("e{n}")).collect();
    let declared: String = names.iter().map(|e| format!("({e} 0)")).collect();
    let chosen: String =
        names.iter().enumerate().map(|(n, e)| format!("(:= want (if (== which {n}) {e}))\n")).collect();
    format!(
        "(def (Report (torn 0)) {declared} (want 0) (which 0) (zero 0))
         (when (< Ack.now 0) (history 30 zero))
         (when true
           (policy 0)
           (:= which (- Policy.snapshot (* {DIFFERENT} (/ Policy.snapshot {DIFFERENT}))))
           {chosen}
           (:= Report.torn (!if (|| (== Policy.snapshot 0) (== want Policy.action)) (+ Report.torn 1))))"
    )
}

/// Decisions run by the kernel on one core, pushes as fast as buffers rest on another.
fn torn() -> Result<Figure, BenchError> {
    let (shape, mut images) = (shape()?, different(&shape()?)?);
    let program = compile(&watcher())?;
    let mut bench = Bench::new()?;
    bench.define_slot(SLOT, &shape);
    bench.push(SLOT, named(&mut images, 1), Part::Active)?;
    let loaded = bench.load(&program, 1)?;
    bench.set(&ProgramState::new(&program, 1 << 16, 0));
    let expected = (0..DIFFERENT).filter_map(|n| {
        let reg = program.reg(&format!("e{n}"))?;
        Some((Field::Reg(reg), images[n].1))
    });
    bench.stage(&loaded, true, &expected.collect::<Vec<_>>());
    let acks = [Prims::default(); STREAM_ACKS];
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    let (pushes, ran) = std::thread::scope(|scope| {
        let pusher = scope.spawn(|| push_on(&bench, &mut images, &stop));
        let run = (0..DECISIONS / CHUNK).try_fold(0, |given_up, _| {
            bench.time(&loaded, &acks, 1, CHUNK).map(|_| given_up + bench.given_up())
        });
        stop.store(true, Relaxed);
        (pusher.join(), run)
    });
    let native = ran?;
    let pushes = pushes.map_err(|_| BenchError::Missing("the pushing thread panicked".to_owned()))??;
    let took = start.elapsed();
    let torn = bench.get().regs[program.reg("Report.torn").map_or(0, usize::from)];
    let decided = u64::from(bench.policy().decisions);
    let dropped = u64::from(DECISIONS).saturating_sub(decided + native);
    let proof = Proof::counted("decisions", decided)?.and(&Proof::counted("pushes", pushes.into())?);
    let pair = (torn as f64, f64::from(DECISIONS));
    let figure = Figure::paired("push.snapshot.torn", "decisions", "all decisions", &[pair], &proof);
    Ok(figure.or_zero().with_note(format!(
        "under {pushes} pushes in {:.1} s; {dropped} that a push overtook were dropped, {native} found no snapshot",
        took.as_secs_f64()
    )))
}

fn push_on(bench: &Bench, images: &mut [(Vec<u64>, i64)], stop: &AtomicBool) -> Result<u32, DatapathError> {
    let mut uid = 1;
    while !stop.load(Relaxed) {
        match bench.push_now(SLOT, named(images, uid + 1), Part::Active) {
            Ok(()) => uid += 1,
            Err(DatapathError::SlotBusy { .. }) => std::hint::spin_loop(),
            Err(e) => return Err(e),
        }
    }
    Ok(uid - 1)
}

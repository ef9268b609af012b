//! `nn.ebpf.aurora`: one inference of a network of Aurora's size inside the kernel, above a program that only finds its
//! inputs, against plain loops in user space; and all of `(policy slot)`, above the same program without it.

use ccplane_contract::Part;
use ccplane_ebpf::testrun::{Bench, InferenceBench, STREAM_ACKS};
use ccplane_infer::{Model, Shape, image};
use ccplane_program::ir::Program;
use ccplane_program::vm::{Prims, ProgramState};

use crate::error::BenchError;
use crate::figure::Figure;
use crate::nn::{Networks, time};
use crate::proof::{self, Proof};

/// Rows of inputs, which stay in the first-level cache, as a flow's record does.
const ROWS_LOG2: u32 = 3;
const RUNS: u32 = 100_000;
const ROUNDS: usize = 15;
const SLOT: u8 = 0;
/// The congestion window, bytes; its size does not matter.
const CWND: i64 = 100_000;

/// A program that asks the policy on each ACK.
const ASK: &str = "(def (Report (a 0) (b 0) (c 0)))
    (when (< Ack.now 0) (history 10 Report.a Report.b Report.c))
    (when true (:= Report.a 0) (policy 0))";
/// The same program without asking the policy.
const IDLE: &str = "(def (Report (a 0) (b 0) (c 0)))
    (when (< Ack.now 0) (history 10 Report.a Report.b Report.c))
    (when true (:= Report.a 0))";

/// Measures `nn.ebpf.aurora`: Aurora's network in the kernel.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let networks = Networks::new()?;
    let [narrow, wide] = &networks.images;
    let decision = Decision::new(&narrow.0, &narrow.1)?;
    let (w8, same8) = inference(&narrow.0, &narrow.1, &networks.states)?;
    let (w16, same16) = inference(&wide.0, &wide.1, &networks.states)?;
    let agreed = same8.and(&same16);
    let mut decided = Vec::new();
    let (mut plain, mut float, mut wide, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let narrow = w8.time(RUNS)?;
        let loops = [
            time(&networks.states, |cells| networks.plain.infer(cells)),
            time(&networks.states, |cells| networks.float.infer(cells)),
        ];
        plain.push((narrow, loops[0]));
        float.push((narrow, loops[1]));
        wide.push((w16.time(RUNS)?, loops[1]));
        let (ns, proof) = decision.time()?;
        decided.push(proof);
        all.push((ns, loops[0]));
    }
    let same = "run by the kernel; the same bits as the oracle on every state";
    let (int8, float32) = ("a plain int8 loop in user space", "a float32 loop in user space");
    Ok(vec![
        Figure::paired("nn.ebpf.aurora", "ns", int8, &plain, &agreed).with_note(same),
        Figure::paired("nn.ebpf.aurora.float", "ns", float32, &float, &agreed),
        Figure::paired("nn.ebpf.aurora.w16", "ns", float32, &wide, &agreed).with_note(same),
        Figure::paired("nn.ebpf.aurora.decision", "ns", int8, &all, &proof::all(&decided)?)
            .with_note("all of (policy slot): snapshot, inference, bound, action map, monitor"),
    ])
}

/// The network in the kernel, which must be the oracle's.
fn inference(
    shape: &Shape,
    image: &[u64],
    states: &[Vec<i32>],
) -> Result<(InferenceBench, Proof), BenchError> {
    let bench = InferenceBench::new(shape, ROWS_LOG2)?;
    bench.set_image(image);
    let model = Model::new(shape, image)
        .ok_or_else(|| BenchError::Missing("an image of its own shape".to_owned()))?;
    let mut same = 0;
    for states in states.chunks(bench.rows()) {
        states.iter().enumerate().for_each(|(row, cells)| bench.set_inputs(row, cells));
        let found = bench.infer(states.len())?;
        same += states.iter().zip(&found).filter(|(cells, found)| model.infer(cells) == **found).count();
    }
    let agreed = Proof::exactly("states with the oracle's bits", same as u64, states.len() as u64)?;
    Ok((bench, agreed))
}

/// Two programs, of which one decides.
struct Decision {
    bench: Bench,
    ask: ccplane_ebpf::testrun::TestProgram,
    idle: ccplane_ebpf::testrun::TestProgram,
}

impl Decision {
    fn new(shape: &Shape, image: &[u64]) -> Result<Decision, BenchError> {
        let mut bench = Bench::new()?;
        bench.define_slot(SLOT, shape);
        // Made-up inputs keep the rate at its minimum, which the monitor would not bear for long.
        let mut image = image.to_vec();
        image::set_u32(&mut image, image::TRIP_LIMIT, 0);
        bench.push(SLOT, &image, Part::Active)?;
        let (ask, idle) = (compile(ASK)?, compile(IDLE)?);
        let (ask_loaded, idle) = (bench.load(&ask, 1)?, bench.load(&idle, 2)?);
        bench.set(&ProgramState::new(&ask, CWND, 0));
        Ok(Decision { bench, ask: ask_loaded, idle })
    }

    fn time(&self) -> Result<(f64, Proof), BenchError> {
        let acks = [Prims::default(); STREAM_ACKS];
        let idle = self.bench.time(&self.idle, &acks, 1, RUNS)?;
        let before = self.bench.policy().decisions;
        let ask = self.bench.time(&self.ask, &acks, 1, RUNS)?;
        let decisions = self.bench.policy().decisions.wrapping_sub(before);
        let decided = Proof::exactly("decisions", decisions.into(), RUNS.into())?;
        Ok((f64::from(ask) - f64::from(idle), decided))
    }
}

/// A program of a benchmark's own.
pub fn compile(source: &str) -> Result<Program, BenchError> {
    ccplane_program::compile(source)
        .map_err(|e| BenchError::Program(e.iter().map(|d| d.to_string()).collect()))
}

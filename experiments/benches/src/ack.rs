//! `ack.ebpf.reno` and `ack.vm.reno`: what an ACK costs under the Reno program, against libccp's VM on the same
//! program. On a live flow that is all of `cong_control`; beside it the dispatcher with a program that returns at once, and
//! the dispatcher with the kernel's own Reno behind it.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, Control, FlowInfo};
use ccplane_algs::RENO;
use ccplane_contract::{Datapath, Event, Field, FlowId, ProgramUid};
use ccplane_ebpf::testrun::{Bench, STREAM_ACKS};
use ccplane_ebpf::{EbpfDatapath, account};
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{Prims, ProgramState};
use ccplane_runner::traffic::BulkFlow;

use crate::error::{BenchError, context};
use crate::figure::{Figure, Pair};
use crate::oracle::{self, Stream};
use crate::proof::{self, Proof, SteeredBy, Witness};
use crate::steer;

pub(crate) const MSS: i64 = 1448;
/// ACKs are this far apart, as at about 1 Gb/s with two segments an ACK.
pub(crate) const GAP_US: u64 = 23;
const RTT_US: i64 = 20_000;
/// The bytes in flight: the product of rate and round trip above.
pub(crate) const FLIGHT: i64 = RTT_US / GAP_US as i64 * 2 * MSS;
pub(crate) const ACKS: u32 = 400_000;
const ROUNDS: usize = 9;

/// A steady flow: ACKs of two segments, round trips that wander by a few per cent, no loss.
pub(crate) fn acks() -> [Prims; STREAM_ACKS] {
    std::array::from_fn(|n| {
        let mut prims = Prims::default();
        prims
            .set(Prim::AckBytesAcked, 2 * MSS)
            .set(Prim::AckPacketsAcked, 2)
            .set(Prim::AckNow, 1_000_000)
            .set(Prim::FlowBytesInFlight, FLIGHT)
            .set(Prim::FlowPacketsInFlight, FLIGHT / MSS)
            .set(Prim::FlowRttSampleUs, RTT_US + (n as i64 * 37) % 700)
            .set(Prim::FlowRateIncoming, 125_000_000)
            .set(Prim::FlowRateOutgoing, 125_000_000);
        prims
    })
}

fn info() -> FlowInfo {
    FlowInfo::example(MSS as u32, 10 * MSS as u64)
}

/// The Reno program, and the fields that it starts with: in congestion avoidance.
pub(crate) fn reno() -> Result<(Program, Vec<(Field, i64)>), BenchError> {
    let program = steer::compile(&RENO)?;
    let mut control = Control::default();
    RENO.flow(&info(), &mut control);
    let mut fields = steer::fields(&program, &control);
    if let Some(reg) = program.reg("ssthresh") {
        fields.push((Field::Reg(reg), FLIGHT / 2));
    }
    fields.push((Field::Cwnd, FLIGHT));
    Ok((program, fields))
}

pub(crate) const LIBCCP: &str = "libccp's VM";

/// `ack.ebpf.reno`: on a live flow, and the fold alone.
pub fn ebpf() -> Result<Vec<Figure>, BenchError> {
    let mut figures = live()?;
    figures.push(stream()?.0);
    Ok(figures)
}

/// `ack.vm.reno`: the reference VM.
pub fn vm() -> Result<Vec<Figure>, BenchError> {
    Ok(vec![stream()?.1])
}

/// The fold alone, run by the kernel on made-up ACKs, and the reference VM on the same.
fn stream() -> Result<(Figure, Figure), BenchError> {
    let (program, fields) = reno()?;
    let nothing = Program::new(Vec::new(), Vec::new(), Vec::new(), Vec::new())
        .map_err(|e| BenchError::Program(vec![e.to_string()]))?;
    let acks = acks();
    let bench = Bench::new()?;
    let (loaded, empty) = (bench.load(&program, 1)?, bench.load(&nothing, 2)?);
    let baseline = Stream::new(steer::source(&RENO), &program, &fields, &acks, GAP_US, ACKS)?;
    let counter = usize::from(register(&program, "Report.acked")?);
    let (mut kernel, mut vm, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let idle = bench.time(&empty, &acks, GAP_US, ACKS)?;
        bench.set(&ProgramState::new(&program, FLIGHT, 0));
        bench.stage(&loaded, true, &fields);
        let busy = bench.time(&loaded, &acks, GAP_US, ACKS)?;
        let (reference, flow) = time_vm(&program, &fields, &acks);
        // A figure of a program that did something else would be worth nothing.
        if bench.get() != flow {
            return Err(BenchError::Missing("the compiled program and the reference VM disagree".into()));
        }
        let (theirs, libccp) = oracle::time_libccp(&baseline)?;
        let counted = flow.regs[counter].max(0) as u64 / (2 * MSS as u64);
        proofs.push(Proof::exactly("ACKs", counted, ACKS.into())?.and(&libccp));
        kernel.push((f64::from(busy) - f64::from(idle), theirs));
        vm.push((reference, theirs));
    }
    let proof = proof::all(&proofs)?;
    let about = "the fold alone, run by the kernel on made-up ACKs; equal to the reference VM to the bit";
    let fold = Figure::paired("ack.ebpf.reno.fold", "ns", LIBCCP, &kernel, &proof).with_note(about);
    Ok((fold, Figure::paired("ack.vm.reno", "ns", LIBCCP, &vm, &proof)))
}

pub(crate) fn register(program: &Program, name: &str) -> Result<u8, BenchError> {
    program.reg(name).ok_or_else(|| BenchError::Program(vec![format!("Reno has no {name}")]))
}

/// Nanoseconds of the reference VM, and where the flow got to.
fn time_vm(program: &Program, fields: &[(Field, i64)], acks: &[Prims; STREAM_ACKS]) -> (f64, ProgramState) {
    let mut flow = ProgramState::new(program, FLIGHT, acks[0].get(Prim::AckNow) + GAP_US as i64);
    ccplane_contract::apply_fields(&mut flow, program, fields);
    let mut report = [0; MAX_REGS];
    let start = Instant::now();
    for n in 0..ACKS as usize {
        let mut prims = acks[n % STREAM_ACKS];
        prims.set(Prim::AckNow, prims.get(Prim::AckNow) + (n as i64 + 1) * GAP_US as i64);
        black_box(flow.invoke(black_box(program), &prims, &mut report));
    }
    (start.elapsed().as_nanos() as f64 / f64::from(ACKS), flow)
}

const RENO_UID: ProgramUid = ProgramUid(1);
const EMPTY_UID: ProgramUid = ProgramUid(2);
const WINDOW: Duration = Duration::from_millis(200);
const BEAT: Duration = Duration::from_millis(20);
/// Flows, and rounds on each; libccp runs between two flows, when nothing else does.
const BLOCKS: usize = 5;
const ROUNDS_EACH: usize = 5;

/// The program that the dispatcher runs.
#[derive(Clone, Copy)]
enum Dispatched {
    Reno,
    /// A program that returns at once.
    Nothing,
    /// The kernel's own Reno, called as the fallback calls it.
    Native,
}

const DISPATCHED: [Dispatched; 3] = [Dispatched::Reno, Dispatched::Nothing, Dispatched::Native];

/// The time of an ACK with each of [`DISPATCHED`], nanoseconds.
type Costs = [f64; DISPATCHED.len()];

/// A flow over a veth pair, and the datapath whose programs are switched.
struct Live<'a> {
    datapath: &'a mut EbpfDatapath,
    flow: FlowId,
    fields: &'a [(Field, i64)],
    witness: Witness,
}

/// Flows over a veth pair, steered by one after the other of [`DISPATCHED`].
fn live() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let (program, mut fields) = reno()?;
    let baseline = Stream::new(steer::source(&RENO), &program, &fields, &acks(), GAP_US, ACKS / 4)?;
    // The window stays the flow's own.
    fields.retain(|(field, _)| *field != Field::Cwnd);
    let (costs, proof) =
        steer::attached("a", |datapath, name| alternate(datapath, name, &program, &fields, &baseline))?;
    let pairs = |of: &dyn Fn(&Costs, f64) -> Pair| -> Vec<Pair> {
        costs.iter().map(|(costs, libccp)| of(costs, *libccp)).collect()
    };
    let paired = |name: &str, baseline: &str, of: &dyn Fn(&Costs, f64) -> Pair, note: &str| {
        Figure::paired(name, "ns", baseline, &pairs(of), &proof).with_note(note)
    };
    let all =
        "all that an ACK costs on a live flow: dispatcher and program, the kernel's accounting included";
    Ok(vec![
        paired("ack.ebpf.reno", LIBCCP, &|[reno, ..], libccp| (*reno, libccp), all),
        paired(
            "ack.ebpf.reno.native",
            "the kernel's Reno behind the same dispatcher",
            &|[reno, _, native], _| (*reno, *native),
            "the same against the dispatcher that calls tcp_reno_cong_avoid, as flows without a program have it",
        ),
        paired(
            "ack.ebpf.dispatcher",
            "dispatcher and Reno's program",
            &|[reno, nothing, _], _| (*nothing, *reno),
            "the dispatcher with a program that returns at once",
        ),
        paired(
            "ack.ebpf.reno.program",
            LIBCCP,
            &|[reno, nothing, _], libccp| (reno - nothing, libccp),
            "the first less the dispatcher's",
        ),
    ])
}

/// Costs beside libccp's, and the proof that the programs ran.
fn alternate(
    datapath: &mut EbpfDatapath,
    name: &str,
    program: &Program,
    fields: &[(Field, i64)],
    baseline: &Stream,
) -> Result<(Vec<(Costs, f64)>, Proof), BenchError> {
    datapath.install(RENO_UID, program)?;
    datapath.install_empty(EMPTY_UID)?;
    let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&a, &b)?;
    let _account = context("account BPF run time", account())?;
    let (mut costs, mut proofs) = (Vec::new(), Vec::new());
    for _ in 0..BLOCKS {
        let traffic = BulkFlow::start(&steer::bulk(name, steer::LONG), &a, &b, Instant::now())?;
        // The native algorithm first: its slow start gives the window that the measurement runs at.
        let mut unknown = Witness::new(SteeredBy::Native);
        let flow = beat(datapath, 2 * WINDOW, &mut unknown)
            .ok_or_else(|| BenchError::Missing("the flow did not start within its time".into()))?;
        let mut live = Live { datapath, flow, fields, witness: unknown };
        let mut block = Vec::new();
        for n in 0..ROUNDS_EACH {
            let mut round = [0.0; DISPATCHED.len()];
            for turn in 0..DISPATCHED.len() {
                // The order alternates.
                let which = (n + turn) % DISPATCHED.len();
                let (ns, proof) = live.per_ack(DISPATCHED[which])?;
                round[which] = ns;
                proofs.push(proof);
            }
            block.push(round);
        }
        drop(traffic);
        for round in block {
            let (libccp, proof) = oracle::time_libccp(baseline)?;
            costs.push((round, libccp));
            proofs.push(proof);
            datapath.heartbeat();
        }
    }
    Ok((costs, proof::all(&proofs)?))
}

impl Live<'_> {
    /// Measures nanoseconds per ACK over the next window, and proves which program ran in it.
    fn per_ack(&mut self, dispatched: Dispatched) -> Result<(f64, Proof), BenchError> {
        let steering = match dispatched {
            Dispatched::Reno => {
                self.datapath.set_program(self.flow, RENO_UID, self.fields)?;
                SteeredBy::Program(Some(RENO_UID))
            }
            Dispatched::Nothing => {
                self.datapath.set_program(self.flow, EMPTY_UID, &[])?;
                SteeredBy::Empty(EMPTY_UID)
            }
            Dispatched::Native => {
                self.datapath.release(self.flow)?;
                SteeredBy::Native
            }
        };
        // It is in force from the next ACK on, and sampled a while later.
        beat(self.datapath, BEAT, &mut Witness::new(steering));
        self.witness = Witness::new(steering);
        let before = self.account()?;
        beat(self.datapath, WINDOW, &mut self.witness);
        let after = self.account()?;
        let proof = Proof::grown("ACKs accounted", before.1, after.1)?.and(&self.witness.prove_part(1)?);
        Ok(((after.0 - before.0) as f64 / (after.1 - before.1) as f64, proof))
    }

    /// Nanoseconds and ACKs that the kernel has accounted to the datapath.
    fn account(&self) -> Result<(u64, u64), BenchError> {
        let accounted = context("read the account", self.datapath.accounted())?;
        accounted.ok_or_else(|| BenchError::Missing("the datapath was attached by another process".into()))
    }
}

/// Lets time pass, with heartbeats and polls of the flows; the flow that started meanwhile, if one did.
fn beat(datapath: &mut EbpfDatapath, time: Duration, witness: &mut Witness) -> Option<FlowId> {
    let start = Instant::now();
    let (mut created, mut events) = (None, Vec::new());
    loop {
        datapath.heartbeat();
        let flows = datapath.flows();
        witness.observe(&flows);
        datapath.poll(1024, &mut events);
        for event in events.drain(..) {
            witness.hear(&event);
            if let Event::Created { flow, .. } = event {
                created = Some(flow);
            }
        }
        if start.elapsed() >= time {
            return created;
        }
        std::thread::sleep(BEAT);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proof::Unproven;
    use crate::rtt;
    use ccplane_contract::Mode;

    /// On a live flow of the kernel: each way in which a figure would not be Reno's is an error.
    #[test]
    fn a_live_flow_that_is_not_steered_is_no_figure() {
        let missing = ccplane_ebpf::checks().into_iter().find(|check| !check.ok).map(|check| check.found);
        if let Some(why) = missing.or((!ccplane_emulator::netns::available()).then(|| "no namespaces".into()))
        {
            ccplane_testing::skipped("a_live_flow_that_is_not_steered_is_no_figure", why);
            return;
        }
        let _alone = crate::cores::alone();
        let (program, mut fields) = reno().unwrap();
        fields.retain(|(field, _)| *field != Field::Cwnd);
        let tried = steer::attached("w", |datapath, name| {
            datapath.install(RENO_UID, &program)?;
            datapath.install_empty(EMPTY_UID)?;
            let (a, b) = (Namespace::anonymous()?, Namespace::anonymous()?);
            veth::connect(&a, &b)?;
            let watch = |datapath: &mut EbpfDatapath| {
                let mut witness = Witness::new(SteeredBy::Program(Some(RENO_UID)));
                let created = beat(datapath, WINDOW, &mut witness);
                (created, witness.prove_part(1))
            };
            let mut found = vec![watch(datapath).1];
            let traffic = BulkFlow::start(&steer::bulk(name, steer::LONG), &a, &b, Instant::now())?;
            let (flow, never) = watch(datapath);
            found.push(never);
            let flow = flow.ok_or_else(|| BenchError::Missing("no flow".into()))?;
            let settle = |datapath: &mut EbpfDatapath| {
                beat(datapath, WINDOW, &mut Witness::new(SteeredBy::Native));
            };
            datapath.set_program(flow, RENO_UID, &fields)?;
            settle(datapath);
            found.push(watch(datapath).1);
            datapath.set_program(flow, EMPTY_UID, &[])?;
            settle(datapath);
            found.push(watch(datapath).1);
            datapath.set_program(flow, RENO_UID, &fields)?;
            settle(datapath);
            // Half of a window under the program, half under the kernel's Reno.
            let mut witness = Witness::new(SteeredBy::Program(Some(RENO_UID)));
            beat(datapath, WINDOW, &mut witness);
            datapath.release(flow)?;
            beat(datapath, WINDOW, &mut witness);
            found.push(witness.prove_part(1));
            drop(traffic);
            // A connection on which nothing is sent.
            let _idle = rtt::idle_flow(name)?;
            let flow = beat(datapath, WINDOW, &mut Witness::new(SteeredBy::Native))
                .ok_or_else(|| BenchError::Missing("no idle flow".into()))?;
            let _account = context("account BPF run time", account())?;
            let mut live = Live { datapath, flow, fields: &fields, witness };
            found.push(match live.per_ack(Dispatched::Reno) {
                Err(BenchError::Unproven(why)) => Err(why),
                Err(other) => return Err(other),
                Ok((_, proof)) => Ok(proof),
            });
            Ok(found)
        });
        let found = tried.unwrap();
        assert_eq!(found[0], Err(Unproven::NoFlow { found: 0, wanted: 1 }), "no flow");
        assert!(matches!(found[1], Err(Unproven::NeverRan { mode: Mode::NativeNoProgram, .. })), "{found:?}");
        assert!(found[2].is_ok(), "under Reno: {found:?}");
        let replaced = matches!(found[3], Err(Unproven::Replaced { found: Some(EMPTY_UID), .. }));
        assert!(replaced, "another program: {found:?}");
        let left = matches!(found[4], Err(Unproven::LeftProgram { mode: Mode::NativeNoProgram, .. }));
        assert!(left, "fell to native: {found:?}");
        let idle = matches!(found[5], Err(Unproven::Idle { what: "ACKs accounted", .. }));
        assert!(idle, "no ACKs: {found:?}");
    }
}

//! Nanoseconds per ACK of the reference VM and of [`FastVm`], in turns, on a program that measures monitor intervals, or on one of your own.
//!
//! `cargo run --release -p ccplane-program --example speed [FILE]`

use ccplane_program::compile;
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::{FastVm, InvokeOutcome, NoPolicies, Prims, ProgramState};
use std::hint::black_box;
use std::time::Instant;

const ACKS: usize = 1024;
const TIMES: usize = 1_000_000;
const ROUNDS: usize = 9;
/// 40 ACKs each 20 ms.
const ACK_US: i64 = 500;

const INTERVALS: &str = "
(def (Report (volatile acked 0) (volatile lost 0) (volatile rtt_sum 0) (volatile rtts 0) (took 0) (inflation 0))
     (early 0) (early_n 0) (mi_us 20000) (half_us 10000) (min_us 2147483647))
(when true
    (:= Report.acked (+ Report.acked (+ Ack.packets_acked Ack.packets_misordered)))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= sampled (< Flow.rtt_sample_us 50000000))
    (:= min_us (min min_us Flow.rtt_sample_us))
    (fallthrough))
(when (&& sampled (< Micros half_us)) (:= early (+ early Flow.rtt_sample_us)) (:= early_n (+ early_n 1)))
(when sampled
    (:= Report.rtt_sum (+ Report.rtt_sum Flow.rtt_sample_us)) (:= Report.rtts (+ Report.rtts 1)))
(when (&& (> Micros mi_us) (> Report.rtts 2))
    (:= Report.took Micros)
    (:= Report.inflation (/ (* 65536 (- (/ Report.rtt_sum Report.rtts) (/ early early_n))) Micros))
    (history 10 Report.inflation Report.acked Report.lost)
    (:= Cwnd (+ Cwnd Report.acked)) (:= early 0) (:= early_n 0) (:= Micros 0) (report))";

fn main() {
    let given = std::env::args().nth(1);
    let source = given.as_deref().map_or(Ok(INTERVALS.to_owned()), std::fs::read_to_string);
    let source = match source {
        Ok(source) => source,
        Err(e) => return eprintln!("{e}"),
    };
    let program = match compile(&source) {
        Ok(program) => program,
        Err(d) => return eprintln!("{}", d[0].render("program", &source)),
    };
    let acks: Vec<Prims> = (0..ACKS as i64).map(ack).collect();
    let mut machine = match FastVm::new(&program) {
        Ok(machine) => machine,
        Err(e) => return eprintln!("{e}"),
    };
    let (mut reference, mut fast, mut every) = (Vec::new(), Vec::new(), 0.0);
    for _ in 0..ROUNDS {
        let mut report = [0; MAX_REGS];
        let start = ProgramState::new(&program, 14_480, 0);
        let (ns, acks_a_report) = time(&acks, start.clone(), |flow, prims| {
            flow.invoke_with(&program, prims, &mut NoPolicies, &mut report)
        });
        reference.push(ns);
        every = acks_a_report;
        let (ns, _) =
            time(&acks, start, |flow, prims| machine.step(flow, prims, &mut NoPolicies, &mut report));
        fast.push(ns);
    }
    let [(reference, best), (fast, fast_best)] = [reference, fast].map(median_and_best);
    println!(
        "{} instructions in {} clauses, a report each {every:.1} ACKs: reference {reference:.1} ns (best {best:.1}), \
         machine {fast:.1} ns (best {fast_best:.1}), ratio {:.2}",
        program.insts().len(),
        program.clauses().len(),
        reference / fast
    );
}

/// Nanoseconds per ACK, and ACKs per report.
fn time(
    acks: &[Prims],
    mut flow: ProgramState,
    mut invoke: impl FnMut(&mut ProgramState, &Prims) -> InvokeOutcome,
) -> (f64, f64) {
    let (start, mut reports) = (Instant::now(), 0);
    for n in 0..TIMES {
        let mut prims = acks[n % ACKS];
        prims.set(Prim::AckNow, n as i64 * ACK_US);
        reports += usize::from(black_box(invoke(&mut flow, &prims)).report);
    }
    black_box(flow);
    (start.elapsed().as_nanos() as f64 / TIMES as f64, TIMES as f64 / reports.max(1) as f64)
}

fn median_and_best(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[ROUNDS / 2], times[0])
}

/// One or two packets, a loss now and then, an RTT that wanders.
fn ack(n: i64) -> Prims {
    let mut prims = Prims::default();
    let packets = 1 + n % 2;
    for (prim, value) in [
        (Prim::AckPacketsAcked, packets),
        (Prim::AckBytesAcked, packets * 1448),
        (Prim::AckLostPktsSample, i64::from(n % 97 == 0)),
        (Prim::FlowRttSampleUs, 40_000 + n * 7919 % 3000),
        (Prim::FlowBytesInFlight, 60_000),
        (Prim::FlowBytesPending, 4 << 20),
        (Prim::FlowPacketsInFlight, 40),
        (Prim::FlowRateIncoming, 3_000_000),
        (Prim::FlowRateOutgoing, 3_000_000),
    ] {
        prims.set(prim, value);
    }
    prims
}

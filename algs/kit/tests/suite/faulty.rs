//! The kit finds what is wrong: algorithms that each break one invariant, and the stream that shows it.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, PolicySource, ProgramSource, Report};
use ccplane_kit::Operation::{Bulk, Loss, Run};
use ccplane_kit::{Bounds, Failure, Operation, PathConfig, Violation, check, check_random, check_scenarios};
use std::sync::Arc;

/// A program, and what the agent's side does on each report.
struct Faulty {
    source: &'static str,
    on_report: fn(&mut Control),
}

impl Algorithm for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "faulty", source: self.source }]
    }
    fn flow(&self, _: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("faulty", &[]);
        Box::new(FaultyFlow(self.on_report))
    }
}

struct FaultyFlow(fn(&mut Control));

impl Flow for FaultyFlow {
    fn on_report(&mut self, _: u64, _: &Report<'_>, control: &mut Control) {
        (self.0)(control);
    }
}

const SOUND: &str = "(def (Report (acked 0)) (x 1))
    (when true (:= Cwnd 120000) (fallthrough))
    (when (> Micros 10000) (:= Micros 0) (report))";

fn algorithm(source: &'static str, on_report: fn(&mut Control)) -> Arc<dyn Algorithm> {
    Arc::new(Faulty { source, on_report })
}

fn scenarios(source: &'static str, on_report: fn(&mut Control)) -> Result<(), Box<Failure>> {
    check_scenarios(&algorithm(source, on_report), &Bounds { floor_percent: 5, ..Bounds::default() })
}

fn violation(source: &'static str, on_report: fn(&mut Control)) -> Violation {
    *scenarios(source, on_report).expect_err("it is faulty").violation
}

#[test]
fn a_sound_algorithm_passes() {
    scenarios(SOUND, |_| ()).unwrap();
}

#[test]
fn windows_out_of_bounds_are_found() {
    let small = "(def (Report (acked 0))) (when true (:= Cwnd 1000) (report))";
    assert!(matches!(violation(small, |_| ()), Violation::Window { cwnd_bytes: 1000, min: 1448, .. }));
    let large = "(def (Report (acked 0))) (when true (:= Cwnd (* Cwnd 2)) (report))";
    assert!(matches!(violation(large, |_| ()), Violation::Window { max, .. } if max == 1 << 30));
}

#[test]
fn rates_out_of_bounds_are_found() {
    let slow = "(def (Report (acked 0))) (when true (:= Rate 999) (report))";
    assert!(matches!(violation(slow, |_| ()), Violation::Rate { rate_bytes_per_s: 999, .. }));
}

#[test]
fn a_program_that_divides_by_zero_is_found() {
    let divides =
        "(def (Report (acked 0)) (x 0)) (when true (:= x (/ Cwnd Ack.packets_misordered)) (report))";
    assert!(matches!(violation(divides, |_| ()), Violation::Fault { operation: 1, faults: 1, .. }));
}

#[test]
fn a_program_that_ceases_to_report_is_found() {
    let silent = "(def (Report (acked 0))) (when (== Report.acked 1) (report))";
    assert!(matches!(violation(silent, |_| ()), Violation::Silent { .. }));
}

/// Asks Aurora's policy, if ever.
struct Mute;

impl Algorithm for Mute {
    fn name(&self) -> &'static str {
        "mute"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        let source = "(def (Report (a 0)) (x 0))
            (when (< Ack.now 0) (history 10 Report.a x x) (policy 0) (report))
            (when true (:= Cwnd 120000))";
        vec![ProgramSource { name: "mute", source }]
    }
    fn policies(&self) -> Vec<PolicySource> {
        ccplane_algs::all().iter().find(|a| a.name() == "aurora").unwrap().policies()
    }
    fn flow(&self, _: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("mute", &[]);
        Box::new(FaultyFlow(|_| ()))
    }
}

#[test]
fn silence_of_what_asks_a_policy() {
    let mute: Arc<dyn Algorithm> = Arc::new(Mute);
    let failure = check_scenarios(&mute, &Bounds { floor_percent: 5, ..Bounds::default() }).unwrap_err();
    assert!(matches!(*failure.violation, Violation::Silent { .. }), "{failure}");
}

#[test]
fn commands_on_unknown_names_are_found() {
    assert!(matches!(violation(SOUND, |c| c.update(&[("y", 1)])), Violation::Refused { .. }));
    assert!(matches!(violation(SOUND, |c| c.set_program("other", &[])), Violation::Refused { .. }));
}

#[test]
fn an_algorithm_that_panics_is_found() {
    let failure = violation(SOUND, |_| panic!("a bug"));
    assert!(matches!(&failure, Violation::Unsteered { reason, .. } if reason.contains("a bug")), "{failure}");
}

#[test]
fn programs_that_do_not_compile_are_found() {
    assert!(matches!(violation("(def)", |_| ()), Violation::Catalog(_)));
}

/// Never grows again once it lost a packet.
const STALLS: &str = "(def (Report (acked 0)) (lost 0))
    (when true (:= lost (+ lost Ack.lost_pkts_sample)) (:= Cwnd 40000) (fallthrough))
    (when (> lost 0) (:= Cwnd 1448) (fallthrough))
    (when (> Micros 10000) (:= Micros 0) (report))";

#[test]
fn stalls_and_the_stream_that_shows_it_is_small() {
    let failure = check_random(&algorithm(STALLS, |_| ()), &Bounds::default(), 64).unwrap_err();
    assert!(matches!(*failure.violation, Violation::Stalled { used_percent: 0..=3, .. }), "{failure}");
    // One packet of trouble is enough.
    assert!(failure.operations.len() <= 2, "{failure}");
    assert!(failure.to_string().starts_with("faulty, random: after operation "), "{failure}");
}

#[test]
fn a_violation_names_its_operation() {
    let operations: [Operation; 4] = [Run { us: 100_000 }, Bulk, Loss { packets: 1 }, Run { us: 200_000 }];
    let on_loss = "(def (Report (acked 0)))
        (when (> Ack.lost_pkts_sample 0) (:= Cwnd 1))
        (when (> Micros 10000) (:= Micros 0) (report))";
    let broken = check(&algorithm(on_loss, |_| ()), PathConfig::default(), &operations, &Bounds::default());
    assert!(matches!(broken, Err(Violation::Window { operation: 3, .. })), "{broken:?}");
}

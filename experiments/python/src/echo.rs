//! The algorithm that Python's are measured against: it hears a report for each ACK and sets one register, in Rust.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};

/// The program that reports on each ACK; `bench.py` has the same.
const SOURCE: &str =
    "(def (Report (acked 0)) (x 0)) (when true (:= Report.acked Ack.bytes_acked) (:= Cwnd 100000) (report))";

pub(crate) struct Echo;

impl Algorithm for Echo {
    fn name(&self) -> &'static str {
        "rust-echo"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "echo", source: SOURCE }]
    }

    fn flow(&self, _info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("echo", &[]);
        Box::new(EchoFlow { reports: 0 })
    }
}

/// The agent's half of one flow.
struct EchoFlow {
    reports: i64,
}

impl Flow for EchoFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, control: &mut Control) {
        control.update(&[("x", self.reports)]);
        self.reports += 1;
    }
}

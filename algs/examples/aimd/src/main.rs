//! AIMD: one segment more per window acknowledged, half the window at a loss. The whole `ccplane` command
//! line, with one algorithm added.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use std::{process::ExitCode, sync::Arc};

const PROGRAM: &str = "
(def (Report (volatile acked 0) (volatile lost 0)) (mss 1448) (credit 0) (calm_at 0) (rtt 100000))
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
    (:= credit (+ credit Ack.bytes_acked))
    (:= rtt (min Flow.rtt_sample_us 1000000))
    (fallthrough))
(when (&& (> Ack.lost_pkts_sample 0) (> Ack.now calm_at))
    (:= Cwnd (max (/ Cwnd 2) mss))
    (:= calm_at (+ Ack.now rtt)))
(when (> credit Cwnd)
    (:= credit (- credit Cwnd))
    (:= Cwnd (+ Cwnd mss)))
(when (> Micros 100000)
    (:= Micros 0)
    (report))
";

struct Aimd;

impl Algorithm for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "aimd", source: PROGRAM }]
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("aimd", &[("mss", i64::from(info.mss_bytes))]);
        Box::new(AimdFlow)
    }
}

struct AimdFlow;

impl Flow for AimdFlow {
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, _control: &mut Control) {
        eprintln!("{now_us}: {:?} bytes acked, {:?} packets lost", report.get("acked"), report.get("lost"));
    }
}

fn main() -> ExitCode {
    ccplane::run(vec![Arc::new(Aimd)])
}

#[cfg(test)]
mod tests {
    #[test]
    fn conforms() {
        ccplane_kit::assert_conforms(std::sync::Arc::new(super::Aimd));
    }
}

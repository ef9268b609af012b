//! AIMD: one segment more per window acknowledged, half the window at a loss. The whole `ccplane` command
//! line, with one algorithm added.

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};
use std::{process::ExitCode, sync::Arc};

struct Aimd;

impl Algorithm for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "aimd", source: include_str!("aimd.fold") }]
    }
    /// Starts a flow: its datapath runs the program on every ACK from now on.
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("aimd", &[("mss", i64::from(info.mss_bytes))]);
        Box::new(AimdFlow)
    }
}

struct AimdFlow;

impl Flow for AimdFlow {
    /// Hears what the program reported, as in `report.get("lost")`. The flow's slow decisions go here: `control.update`
    /// sets registers of its program, such as "Cwnd".
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
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

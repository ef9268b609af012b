use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, ProgramSource, Report};

pub struct Aimd {
    pub interval_us: u32,
}

pub struct AimdFlow {
    mss: i64,
    cwnd: i64,
}

impl Algorithm for Aimd {
    fn name(&self) -> &'static str {
        "aimd"
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: "measure", source: include_str!("measure.fold") }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program("measure", &[("interval", i64::from(self.interval_us))]);
        Box::new(AimdFlow { mss: info.mss_bytes.into(), cwnd: ccplane_alg::field(info.init_cwnd_bytes) })
    }
}

impl Flow for AimdFlow {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, control: &mut Control) {
        let lost = report.get("lost").unwrap_or(0);
        self.cwnd = if lost > 0 { (self.cwnd / 2).max(self.mss) } else { self.cwnd + self.mss };
        control.update(&[("Cwnd", self.cwnd)]);
    }
}

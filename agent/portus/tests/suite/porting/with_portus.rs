use portus::ipc::Ipc;
use portus::lang::Scope;
use portus::{CongAlg, Datapath, DatapathInfo, DatapathTrait, Flow, Report};
use std::collections::HashMap;

pub struct Aimd {
    pub interval_us: u32,
}

pub struct AimdFlow<I: Ipc> {
    control: Datapath<I>,
    scope: Scope,
    mss: u32,
    cwnd: u32,
}

impl<I: Ipc> CongAlg<I> for Aimd {
    type Flow = AimdFlow<I>;

    fn name() -> &'static str {
        "aimd"
    }

    fn datapath_programs(&self) -> HashMap<&'static str, String> {
        HashMap::from([("measure", include_str!("measure.fold").to_string())])
    }

    fn new_flow(&self, mut control: Datapath<I>, info: DatapathInfo) -> AimdFlow<I> {
        let scope = control.set_program("measure", Some(&[("interval", self.interval_us)])).unwrap();
        AimdFlow { control, scope, mss: info.mss, cwnd: info.init_cwnd }
    }
}

impl<I: Ipc> Flow for AimdFlow<I> {
    fn on_report(&mut self, _sock_id: u32, report: Report) {
        let lost = report.get_field("Report.lost", &self.scope).unwrap();
        self.cwnd = if lost > 0 { (self.cwnd / 2).max(self.mss) } else { self.cwnd + self.mss };
        self.control.update_field(&self.scope, &[("Cwnd", self.cwnd)]).unwrap();
    }
}

//! A portus agent that steers every flow as CCP's Reno does, on /tmp/ccp/NAME: the baseline of `agent.rtt`.

use std::collections::HashMap;
use std::process::ExitCode;

use portus::ipc::unix::Socket;
use portus::ipc::{BackendBuilder, Blocking, Ipc};
use portus::lang::Scope;
use portus::{CongAlg, Datapath, DatapathInfo, DatapathTrait, Flow, Report, RunBuilder};

/// The same program as our `ccp-reno`.
const PROGRAM: &str = include_str!("../../../../../algs/src/ccp_reno.fold");

struct CcpReno;

struct CcpRenoFlow<I: Ipc> {
    datapath: Datapath<I>,
    scope: Option<Scope>,
    mss: u32,
    cwnd: u32,
    ssthresh: u32,
    credit: u64,
}

impl<I: Ipc> CongAlg<I> for CcpReno {
    type Flow = CcpRenoFlow<I>;

    fn name() -> &'static str {
        "ccp-reno"
    }

    fn datapath_programs(&self) -> HashMap<&'static str, String> {
        HashMap::from([("ccp-reno", PROGRAM.to_owned())])
    }

    fn new_flow(&self, mut datapath: Datapath<I>, info: DatapathInfo) -> CcpRenoFlow<I> {
        let scope = datapath.set_program("ccp-reno", None).ok();
        CcpRenoFlow { datapath, scope, mss: info.mss, cwnd: info.init_cwnd, ssthresh: 1 << 30, credit: 0 }
    }
}

impl<I: Ipc> Flow for CcpRenoFlow<I> {
    fn on_report(&mut self, _: u32, report: Report) {
        let Some(scope) = &self.scope else { return };
        let get = |name: &str| report.get_field(&format!("Report.{name}"), scope).unwrap_or(0);
        let (acked, lost, timeout) = (get("acked"), get("lost"), get("timeout"));
        if timeout != 0 || lost > 0 {
            self.ssthresh = (self.cwnd / 2).max(2 * self.mss);
            self.cwnd = if timeout != 0 { self.mss } else { self.ssthresh };
        } else if self.cwnd < self.ssthresh {
            self.cwnd = self.cwnd.saturating_add(acked as u32).min(self.ssthresh);
        } else {
            self.credit += acked;
            while self.credit >= u64::from(self.cwnd) {
                self.credit -= u64::from(self.cwnd);
                self.cwnd += self.mss;
            }
        }
        let _ = self.datapath.update_field(scope, &[("Cwnd", self.cwnd)]);
    }
}

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        eprintln!("usage: ccplane-portus NAME");
        return ExitCode::from(2);
    };
    let socket = match Socket::<Blocking>::new(&name) {
        Ok(socket) => socket,
        Err(e) => {
            eprintln!("ccplane-portus: {e:?}");
            return ExitCode::FAILURE;
        }
    };
    match RunBuilder::new(BackendBuilder { sock: socket }).default_alg(CcpReno).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ccplane-portus: {e:?}");
            ExitCode::FAILURE
        }
    }
}

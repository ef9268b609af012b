//! A portus agent that steers every flow as CCP's Reno does, on /tmp/ccp/NAME: the baseline of `agent.rtt`, `agent.rss` and
//! `ipc.ring`. It sleeps on its socket, or with `--poll` looks again and again.

use std::collections::HashMap;
use std::process::ExitCode;

use portus::ipc::unix::Socket;
use portus::ipc::{BackendBuilder, Blocking, Ipc, Nonblocking};
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

fn run<T: Sync + Send + 'static>(socket: Socket<T>) -> portus::Result<()> {
    RunBuilder::new(BackendBuilder { sock: socket }).default_alg(CcpReno).run()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ran = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [name] => Socket::<Blocking>::new(name).and_then(run),
        // `Nonblocking::new` leaves the socket blocking.
        [name, "--poll"] => Socket::<Nonblocking>::new_with_skbuf(name, None, None).and_then(run),
        _ => {
            eprintln!("usage: ccplane-portus NAME [--poll]");
            return ExitCode::from(2);
        }
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("ccplane-portus: {e:?}");
            ExitCode::FAILURE
        }
    }
}

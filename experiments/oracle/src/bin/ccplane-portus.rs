//! A portus agent that steers every flow as CCP's Reno does, on /tmp/ccp/NAME: the baseline of `agent.rtt`, `agent.rss` and
//! `ipc.ring`. It sleeps on its socket, or with `--poll` looks again and again. With `--two` it has a second algorithm, for flows that
//! ask for [`Steady`] by its name. With `--ipc netlink` or `--ipc char` it speaks over ccp-kernel's links instead.

use std::collections::HashMap;
use std::process::ExitCode;

use portus::ipc::unix::Socket;
use portus::ipc::{BackendBuilder, Blocking, Ipc, Nonblocking, kp, netlink};
use portus::lang::Scope;
use portus::{CongAlg, Datapath, DatapathInfo, DatapathTrait, Flow, Report, RunBuilder};

/// The same program as our `ccp-reno`.
const PROGRAM: &str = include_str!("../../../../algs/src/ccp_reno.fold");

/// Reports each second what was acknowledged.
const STEADY: &str = "
(def (Report (volatile acked 0)))
(when true (:= Report.acked (+ Report.acked Ack.bytes_acked)) (fallthrough))
(when (> Micros 1000000) (report) (:= Micros 0))";

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

/// The algorithm `ccp_steady`, which leaves each flow its initial window.
struct Steady;

struct SteadyFlow;

impl<I: Ipc> CongAlg<I> for Steady {
    type Flow = SteadyFlow;

    fn name() -> &'static str {
        "ccp_steady"
    }

    fn datapath_programs(&self) -> HashMap<&'static str, String> {
        HashMap::from([("ccp-steady", STEADY.to_owned())])
    }

    fn new_flow(&self, mut datapath: Datapath<I>, _: DatapathInfo) -> SteadyFlow {
        let _ = datapath.set_program("ccp-steady", None);
        SteadyFlow
    }
}

impl Flow for SteadyFlow {
    fn on_report(&mut self, _: u32, _: Report) {}
}

fn run<I: Ipc>(socket: I) -> portus::Result<()> {
    RunBuilder::new(BackendBuilder { sock: socket }).default_alg(CcpReno).run()
}

fn run_two<T: Sync + Send + 'static>(socket: Socket<T>) -> portus::Result<()> {
    RunBuilder::new(BackendBuilder { sock: socket }).default_alg(CcpReno).additional_alg(Steady).run()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ran = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--ipc", "netlink"] => netlink::Socket::<Blocking>::new().and_then(run),
        ["--ipc", "char"] => kp::Socket::<Blocking>::new().and_then(run),
        [name] => Socket::<Blocking>::new(name).and_then(run),
        [name, "--two"] => Socket::<Blocking>::new(name).and_then(run_two),
        // `Nonblocking::new` leaves the socket blocking.
        [name, "--poll"] => Socket::<Nonblocking>::new_with_skbuf(name, None, None).and_then(run),
        _ => {
            eprintln!("usage: ccplane-portus NAME [--poll | --two] | --ipc netlink | --ipc char");
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

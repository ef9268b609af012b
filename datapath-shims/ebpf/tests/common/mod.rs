//! Helpers for tests on live flows: namespaces with a link, a datapath under a name of its own, traffic.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use ccplane_contract::suite::{report_in, wait_for_event};
use ccplane_contract::{Datapath, Event, FlowId, FlowStats, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, Options, clean, clean_all};
use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::{Emulator, LinkConfig, veth};
use ccplane_runner::tcp_info::TcpInfo;
use ccplane_runner::traffic::{BulkFlow, FlowConfig};
use ccplane_testing::killed::{Marked, Suite};
use ccplane_testing::{Mishap, STALL, WATCHED, lacks, wait_for_ok};
pub use ccplane_testing::{PATIENCE, wait_until};

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(600);
/// Longer than a test's thread waits for a processor.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(1);

/// The link between the two namespaces.
pub enum Link {
    Cable { sender: Namespace, receiver: Namespace },
    Emulated(Emulator),
}

/// Two joined namespaces and the options of a datapath under a name that no other test uses.
pub struct Lab {
    pub link: Link,
    pub options: Options,
    run_dir: tempfile::TempDir,
    _marked: Marked,
}

/// The run directories of these tests.
static LABS: Suite =
    Suite::new("ccplane-ebpf-lab", |run_dir| clean_all(run_dir).map_err(|error| error.to_string()));

impl Lab {
    /// Makes a lab on a plain cable; reports a skip and returns `None` if the machine cannot run the test.
    pub fn new(test: &str) -> Option<Lab> {
        can_run(test).then(|| {
            // Moving flows needs a namespace that can be found by name.
            let (sender, receiver) = (Namespace::create(test).unwrap(), Namespace::anonymous().unwrap());
            veth::connect(&sender, &receiver).unwrap();
            Lab::on(test, Link::Cable { sender, receiver })
        })
    }

    /// Makes a lab on an emulated link; reports a skip and returns `None` if the machine cannot run the test.
    pub fn over(test: &str, link: &LinkConfig) -> Option<Lab> {
        can_run(test).then(|| Lab::on(test, Link::Emulated(Emulator::start(link).unwrap())))
    }

    fn on(test: &str, link: Link) -> Lab {
        let run_dir = tempfile::tempdir().unwrap();
        let _marked = LABS.mark(run_dir.path()).unwrap();
        let options = Options {
            run_dir: run_dir.path().into(),
            name: format!("cct_{test}"),
            heartbeat_timeout: HEARTBEAT_TIMEOUT,
            ..Options::default()
        };
        Lab { link, options, run_dir, _marked }
    }

    pub fn attach(&self) -> EbpfDatapath {
        EbpfDatapath::attach(self.options.clone()).unwrap()
    }

    pub fn sender(&self) -> &Namespace {
        match &self.link {
            Link::Cable { sender, .. } => sender,
            Link::Emulated(emulator) => emulator.sender_ns(),
        }
    }

    pub fn receiver(&self) -> &Namespace {
        match &self.link {
            Link::Cable { receiver, .. } => receiver,
            Link::Emulated(emulator) => emulator.receiver_ns(),
        }
    }

    pub fn emulator(&self) -> &Emulator {
        match &self.link {
            Link::Cable { .. } => panic!("this lab has a cable"),
            Link::Emulated(emulator) => emulator,
        }
    }

    fn receiver_v4(&self) -> IpAddr {
        match &self.link {
            Link::Cable { .. } => veth::ENDS[1],
            Link::Emulated(emulator) => emulator.receiver_addresses().v4.into(),
        }
    }

    pub fn flow_to(&self, receiver: IpAddr, congestion: &str) -> BulkFlow {
        let config = FlowConfig {
            congestion: congestion.into(),
            receiver: SocketAddr::new(receiver, 0),
            duration: LONG,
            bytes: None,
            sample_every: Duration::from_millis(10),
        };
        BulkFlow::start(&config, self.sender(), self.receiver(), Instant::now()).unwrap()
    }

    pub fn flow(&self, congestion: &str) -> BulkFlow {
        self.flow_to(self.receiver_v4(), congestion)
    }

    pub fn own_flow(&self) -> BulkFlow {
        self.flow(&self.options.name)
    }

    pub fn registered(&self) -> bool {
        registered(&self.options.name)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Removes whatever a failed test has left.
        let _ = clean(&self.options);
    }
}

/// Whether live flows can run here; says why not.
pub fn can_run(test: &str) -> bool {
    !lacks(test, ccplane_ebpf::missing()) && !lacks(test, netns::missing())
}

pub fn registered(name: &str) -> bool {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    list.split_whitespace().any(|n| n == name)
}

/// The kernel's own statistics of a flow, once `done` holds of them.
///
/// The kernel is asked now and then only: its newest answer may be older than the datapath's.
pub fn kernel_says(traffic: &BulkFlow, what: &str, done: impl Fn(&TcpInfo) -> bool) -> TcpInfo {
    let latest = || traffic.latest().map(|sample| sample.info);
    wait_until(what, || latest().is_some_and(|info| done(&info)));
    latest().unwrap()
}

/// Asserts that the flow goes on to be acknowledged.
pub fn goes_on(traffic: &BulkFlow, when: &str) {
    let before = kernel_says(traffic, "a sample", |_| true).bytes_acked;
    kernel_says(traffic, when, |info| info.bytes_acked > before);
}

/// Marks the moment before a disturbance of a flow.
pub fn mishap(traffic: &BulkFlow, what: &str) -> Mishap {
    wait_until("a sample", || traffic.latest().is_some());
    Mishap { what: what.to_owned(), at_us: traffic.latest().unwrap().at_us }
}

/// Ends a flow and asserts that it never stalled for longer than [`STALL`].
///
/// It looks from each mishap to the next and from the last one until now.
/// If the last one was shortly before, it waits for as long as shows a stall, and does `meanwhile` then.
pub fn assert_never_stalled(traffic: BulkFlow, mishaps: &[Mishap], mut meanwhile: impl FnMut()) {
    let shows_us = mishaps.last().unwrap().at_us + WATCHED.as_micros() as u64;
    wait_until("a stall would show", || {
        meanwhile();
        traffic.latest().unwrap().at_us > shows_us
    });
    traffic.stop();
    let outcome = traffic.finish().unwrap();
    assert_eq!(outcome.samples_dropped, 0);
    let acked: Vec<_> = outcome.samples.iter().map(|s| (s.at_us, s.info.bytes_acked)).collect();
    ccplane_testing::assert_never_stalled(&acked, mishaps, STALL);
}

/// Polls, with heartbeats, until `done` accepts an event. Later events are left for the next call.
pub fn wait_for<T>(datapath: &mut EbpfDatapath, what: &str, done: impl FnMut(&Event) -> Option<T>) -> T {
    let wait = |d: &mut EbpfDatapath| d.wait(Duration::from_millis(20)).unwrap();
    wait_for_event(datapath, PATIENCE, what, wait, done)
}

/// The id of a flow, once its event arrives.
pub fn created(datapath: &mut EbpfDatapath, flow: &BulkFlow) -> FlowId {
    let (local, remote) = (flow.local(), flow.remote());
    wait_for(datapath, "Created", |e| match e {
        Event::Created { flow, info } if info.local == local => {
            assert_eq!(info.remote, remote);
            Some(*flow)
        }
        _ => None,
    })
}

/// The next report of a flow by a program: its number and values.
pub fn report(datapath: &mut EbpfDatapath, of: FlowId, by: ProgramUid) -> (u32, Vec<i64>) {
    wait_for(datapath, "Report", |e| report_in(e, of, by))
}

/// The flow's statistics once `done` holds of them; sends heartbeats only if `alive`.
pub fn stats(
    datapath: &mut EbpfDatapath,
    of: FlowId,
    alive: bool,
    done: impl Fn(&FlowStats) -> bool,
) -> FlowStats {
    wait_for_ok(PATIENCE, "the flow's statistics", || {
        if alive {
            datapath.heartbeat();
        }
        match datapath.flows().into_iter().find(|f| f.flow == of) {
            Some(stats) if done(&stats) => Ok(stats),
            last => Err(last.map(Box::new)),
        }
    })
}

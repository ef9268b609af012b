//! A datapath behind the channel: the contract's suite through socket and ring, agents that die, learned algorithms.

use crate::common::{Home, wait_for};
use ccplane_channel::hub::{Change, Hub, HubOptions, POLL_EVERY_US, PeerId};
use ccplane_channel::{ServeOptions, Served, Transport, Wake};
use ccplane_contract::suite::behaviour::{Harness, HarnessError, behave};
use ccplane_contract::{Datapath, Event, FlowId, FlowStats, Forward};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source};
use ccplane_testing::{Mishap, STALL, WATCHED, assert_never_stalled};
use nix::sys::signal::Signal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MS: u64 = 1000;
const TIMEOUT_US: u64 = 500 * MS;
/// The virtual time that the simulation goes on between two turns of the serving side.
const STEP_US: u64 = 5 * MS;

fn sim(event_capacity: usize) -> SimDatapath {
    let rate = Capacity::Rate { bit_per_s: 12_000_000 };
    let link = LinkConfig::new(rate, 10_000_000, QueueLimit::Packets(50));
    let config =
        SimConfig { heartbeat_timeout_us: TIMEOUT_US, event_capacity, ..SimConfig::new(vec![link], 1) };
    SimDatapath::new(config).unwrap()
}

/// A simulated datapath that is served through the channel, and the agent's handle on it, in one thread.
struct Remote {
    sim: SimDatapath,
    served: Served,
    hub: Hub,
    peer: PeerId,
    _dir: tempfile::TempDir,
}

impl Remote {
    fn new(transport: Transport) -> Remote {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ccp.sock");
        let options = HubOptions {
            max_peers: 2,
            heartbeat_timeout: Duration::from_micros(TIMEOUT_US),
            session: 1,
            rings: true,
            wake: Wake::Sleep,
        };
        let mut hub = Hub::bind(&path, options).unwrap();
        let options = ServeOptions { transport, ..ServeOptions::new("test").unwrap() };
        let mut served = Served::connect(&path, options);
        let mut sim = sim(1000);
        let mut changes = Vec::new();
        served.turn(&mut sim, 0);
        hub.receive(100, 0, &mut changes);
        let [Change::Joined(peer)] = changes[..] else { panic!("{changes:?}") };
        assert!(served.turn(&mut sim, 0).connected);
        assert_eq!(served.has_ring(), transport == Transport::Ring);
        Remote { sim, served, hub, peer, _dir: dir }
    }

    fn exchange(&mut self) {
        let now_us = self.sim.now_us();
        self.served.turn(&mut self.sim, now_us);
        let mut changes = Vec::new();
        self.hub.receive(10_000, now_us, &mut changes);
        assert!(changes.is_empty(), "{changes:?}");
    }
}

impl Forward for Remote {
    fn inner(&self) -> &dyn Datapath {
        &self.sim
    }
    fn inner_mut(&mut self) -> &mut dyn Datapath {
        self.hub.peer(self.peer).unwrap()
    }
    /// The statistics of now, which the agent would have a round trip later.
    fn forward_flows(&mut self) -> Vec<FlowStats> {
        self.inner_mut().flows();
        self.exchange();
        self.inner_mut().flows()
    }
    fn forward_poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.exchange();
        self.inner_mut().poll(max, events)
    }
}

impl Harness for Remote {
    fn datapath(&mut self) -> &mut dyn Datapath {
        self
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        let start_us = self.sim.now_us();
        self.sim.add_flow(&FlowConfig { start_us, ..FlowConfig::new(Source::Bulk, 10 * MS) })?;
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        Ok(self.sim.close(flow)?)
    }
    /// The agent does nothing meanwhile.
    fn pass(&mut self, us: u64) {
        let until_us = self.sim.now_us() + us;
        while self.sim.now_us() < until_us {
            self.sim.step_until(until_us.min(self.sim.now_us() + STEP_US));
            let now_us = self.sim.now_us();
            self.served.turn(&mut self.sim, now_us);
        }
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        TIMEOUT_US
    }
}

#[test]
fn keeps_the_contract_over_the_socket() {
    let result = behave(&mut || Ok(Box::new(Remote::new(Transport::Socket))));
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}

#[test]
fn keeps_the_contract_over_the_ring() {
    let result = behave(&mut || Ok(Box::new(Remote::new(Transport::Ring))));
    assert!(result.failed.is_empty(), "{result}");
    assert_eq!(result.passed.len(), 20);
}

/// A datapath that dies while the agent is busy, or asleep: no call of a system or a word of its own tells.
#[test]
fn a_datapath_that_dies_is_missed_in_time() {
    for asleep in [true, false] {
        let Remote { sim, served, mut hub, peer, _dir } = Remote::new(Transport::Ring);
        let (mut changes, mut now_us) = (Vec::new(), sim.now_us());
        // Until all is taken, and nothing wakes the agent.
        for _ in 0..3 {
            now_us += POLL_EVERY_US;
            hub.receive(100, now_us, &mut changes);
        }
        let (start, long) = (Instant::now(), Duration::from_secs(60));
        drop(served);
        assert!(changes.is_empty(), "{changes:?}");
        if asleep {
            hub.wait(long).unwrap();
            assert!(start.elapsed() < long, "it is woken");
        } else {
            hub.receive(100, now_us + POLL_EVERY_US - 1, &mut changes);
            assert!(changes.is_empty(), "a system call for nothing: {changes:?}");
        }
        // Processes that other tests start keep the dead one's descriptors until they execute their programs.
        wait_for("the death is noticed", || {
            now_us += POLL_EVERY_US;
            hub.receive(100, now_us, &mut changes);
            (!changes.is_empty()).then_some(())
        });
        assert_eq!(changes, [Change::Left(peer)]);
    }
}

/// A process's datapath: a simulation on a thread of its own, until it is dropped.
pub(crate) struct Serving {
    stop: Arc<AtomicBool>,
    connected: Arc<AtomicBool>,
    started: Instant,
    /// The time for which its thread has waited for a processor, microseconds. The thread is the flow, so that such
    /// time is no stall.
    waited_us: Arc<AtomicU64>,
    /// Returns the time, microseconds, and the acknowledged bytes of the flow at each turn.
    thread: Option<JoinHandle<Vec<(u64, u64)>>>,
}

impl Serving {
    pub(crate) fn start(agent: &Path, transport: Transport) -> Serving {
        let [stop, connected] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (agent, stopped, state) = (agent.to_owned(), Arc::clone(&stop), Arc::clone(&connected));
        let (started, waited_us) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let waited = Arc::clone(&waited_us);
        let thread = std::thread::spawn(move || {
            let options = ServeOptions { transport, ..ServeOptions::new("test").unwrap() };
            let mut served = Served::connect(&agent, options);
            let (mut datapath, mut acked, mut at_us) = (sim(10_000), Vec::new(), 0);
            datapath.add_flow(&FlowConfig::new(Source::Bulk, 10 * MS)).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                // It keeps up with the clock, with an agent or without.
                datapath.step_until(micros(started));
                let now_us = datapath.now_us();
                let turn = served.turn(&mut datapath, now_us);
                state.store(turn.connected, Ordering::Relaxed);
                waited.store(run_delay_us(), Ordering::Relaxed);
                // A wait between the two readings counts in one of them, and would set this clock back.
                at_us = micros(started).saturating_sub(waited.load(Ordering::Relaxed)).max(at_us);
                acked.extend(datapath.flows().first().map(|flow| (at_us, flow.transport.bytes_acked)));
                served.wait(Duration::from_millis(2)).unwrap();
            }
            served.farewell();
            acked
        });
        Serving { stop, connected, started, waited_us, thread: Some(thread) }
    }

    /// Something is about to happen to its flow.
    fn mishap(&self, what: &str) -> Mishap {
        Mishap { what: what.to_owned(), at_us: self.now_us() }
    }

    /// On the clock of the flow's samples.
    fn now_us(&self) -> u64 {
        micros(self.started).saturating_sub(self.waited_us.load(Ordering::Relaxed))
    }

    /// Ends it, whose flow never stalled for longer than [`STALL`].
    fn assert_never_stalled(mut self, mishaps: &[Mishap]) {
        let shows_us = mishaps.last().unwrap().at_us + WATCHED.as_micros() as u64;
        wait_for("it has been watched", || (self.now_us() >= shows_us).then_some(()));
        self.stop.store(true, Ordering::Relaxed);
        let acked = self.thread.take().unwrap().join().unwrap();
        assert!(acked.last().unwrap().0 > mishaps[0].at_us);
        assert_never_stalled(&acked, mishaps, STALL);
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns the time for which this thread has waited for a processor, microseconds: the second number of its
/// schedstat (sched-stats in the kernel's documentation); 0 where the kernel does not count that.
fn run_delay_us() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').nth(1).and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0) / 1000
}

fn micros(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

/// The one flow, once it is steered by `algorithm`.
fn steered(home: &Home, algorithm: &str) -> serde_json::Value {
    wait_for("the flow is steered", || {
        let flow = home.json(&["flows"])["flows"][0].clone();
        (flow["algorithm"] == algorithm && flow["mode"] == "program").then_some(flow)
    })
}

fn a_flow_survives_its_agent_and_is_steered_by_the_next() -> Option<()> {
    for (transport, configured) in
        [(Transport::Ring, "ring"), (Transport::Socket, "ring"), (Transport::Ring, "socket")]
    {
        let home = Home::new(&format!("datapath.unix.transport = \"{configured}\""));
        let mut agent = home.agent();
        let datapath = Serving::start(&home.path("ccp.sock"), transport);
        steered(&home, "cubic");
        let killed = datapath.mishap("kill -9");
        agent.signal(Signal::SIGKILL);
        agent.wait();
        wait_for("its end is noticed", || (!datapath.is_connected()).then_some(()));
        let other = datapath.mishap("the next agent");
        let next = home.agent();
        let flow = steered(&home, "cubic");
        wait_for("it has another agent", || datapath.is_connected().then_some(()));
        let before = flow["bytes_acked"].as_u64();
        assert!(before > Some(0), "the same flow: {flow}");
        datapath.assert_never_stalled(&[killed, other]);
        drop(next);
        let left = std::fs::read_dir(home.dir()).unwrap().filter(|e| {
            e.as_ref().unwrap().file_name().to_string_lossy().starts_with(ccplane_channel::SOCKET_PREFIX)
        });
        assert_eq!(left.count(), 0, "its socket is removed");
    }
    Some(())
}

/// A learned algorithm decides in the datapath of another process.
#[test]
fn a_policy_decides_behind_the_channel() {
    for transport in [Transport::Ring, Transport::Socket] {
        let home = Home::new("default_algorithm = \"aurora\"\nlearn.mode = \"off\"");
        let _agent = home.agent();
        let _datapath = Serving::start(&home.path("ccp.sock"), transport);
        steered(&home, "aurora");
        let policy = wait_for("its policy decides", || {
            let flow = home.json(&["flows"])["flows"][0].clone();
            (flow["policy"]["decisions"].as_u64() > Some(3)).then(|| flow["policy"].clone())
        });
        assert!(policy["snapshot"].is_string(), "{policy}");
    }
}

/// Each time to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        1 a_flow_survives_its_agent_and_is_steered_by_the_next,
    }
}

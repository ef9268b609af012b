//! What a loop of the agent drives: the kernel's datapath, or all datapaths of other processes.

use crate::clock;
use crate::control::FlowRecord;
use crate::metrics::{FlowSample, Totals};
use crate::peers::{Change, Hub, Peer, PeerId};
use crate::qlog::Taps;
use ccplane_contract::{Datapath, FlowStats};
use ccplane_core::{Core, DatapathId, Driven, NATIVE};
use ccplane_ebpf::{EbpfDatapath, EbpfError};
use std::io;
use std::path::Path;
use std::time::Duration;
use tracing::{info, warn};

/// Datagrams taken in one go.
const MAX_DATAGRAMS: usize = 1024;
/// How long rings are looked at without letting others run, who may wait for the core, microseconds.
const LOOK_US: u64 = 10;
/// How soon a full socket is tried again: nothing tells when its owner has read.
const RETRY_FULL: Duration = Duration::from_millis(1);

/// The datapaths of one loop. Made, used and dropped on the loop's thread.
pub(super) trait Source {
    /// Drives every datapath once.
    fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven;

    /// Blocks until a datapath has something, or `timeout` passed.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Between two turns of a loop that does not sleep: lets others run, unless there is something to look at.
    /// Takes and returns the time of the loop's last look at the clock, microseconds.
    fn pause(&mut self, _now_us: u64) -> u64 {
        std::thread::yield_now();
        clock::now_us()
    }

    /// Every flow, with what the core knows of it.
    fn flows(&mut self, core: &Core) -> Vec<FlowRecord>;

    /// Every flow, as far as metrics go.
    fn samples(&mut self, core: &Core) -> Vec<FlowSample>;

    /// Takes over the running flows of another congestion control; `None` if this is not the kernel.
    fn adopt(&mut self, from: &str, netns: Option<&Path>) -> Option<Result<u64, EbpfError>> {
        let _ = (from, netns);
        None
    }

    /// Datagrams that were not heard or not understood.
    fn malformed(&self) -> u64 {
        0
    }

    /// Whether commands that were carried out still wait to be sent.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Takes leave. The core has handed all flows to their native algorithms.
    ///
    /// # Errors
    /// Something is left in the kernel.
    fn detach(self: Box<Self>) -> Result<(), EbpfError>;
}

/// Linux TCP.
pub(super) struct Kernel {
    datapath: EbpfDatapath,
}

impl Kernel {
    const ID: DatapathId = DatapathId(0);

    /// What was just attached under `name`.
    pub(super) fn new(name: &str, mut datapath: EbpfDatapath, core: &mut Core, now_us: u64) -> Kernel {
        let capabilities = datapath.capabilities();
        let (flows_adopted, max_flows) = (datapath.flows().len(), capabilities.max_flows);
        match core.attach(Kernel::ID, capabilities, now_us) {
            Ok(()) => info!(name, flows_adopted, max_flows, "kernel datapath attached"),
            Err(error) => warn!(%error, "attach the kernel datapath"),
        }
        Kernel { datapath }
    }
}

impl Source for Kernel {
    fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven {
        taps.drive(core, Kernel::ID, &mut self.datapath, now_us)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.datapath.wait(timeout)
    }

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        records(Kernel::ID, &mut self.datapath, core)
    }

    fn samples(&mut self, core: &Core) -> Vec<FlowSample> {
        samples(Kernel::ID, &mut self.datapath, core)
    }

    fn adopt(&mut self, from: &str, netns: Option<&Path>) -> Option<Result<u64, EbpfError>> {
        Some(self.datapath.adopt(from, netns))
    }

    fn detach(self: Box<Self>) -> Result<(), EbpfError> {
        let flows = self.datapath.detach()?;
        info!(flows, "kernel datapath detached");
        Ok(())
    }
}

/// The datapaths of other processes.
pub(super) struct Peers {
    hub: Hub,
    joined: Vec<PeerId>,
    changes: Vec<Change>,
}

impl Peers {
    pub(super) fn new(hub: Hub) -> Peers {
        Peers { hub, joined: Vec::new(), changes: Vec::new() }
    }

    fn id(peer: PeerId) -> DatapathId {
        // 2^32 peers would have to join before a number came twice.
        DatapathId(peer.0 as u32)
    }

    fn peer(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.hub.peer(id)
    }

    /// Attaches who joined; drives those that left once more, so that the core sees their flows end.
    fn follow(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven {
        let mut driven = Driven::default();
        for change in std::mem::take(&mut self.changes) {
            match change {
                Change::Joined(id) => {
                    let Some(peer) = self.hub.peer(id) else { continue };
                    match core.attach(Peers::id(id), peer.capabilities(), now_us) {
                        Ok(()) => self.joined.push(id),
                        Err(error) => warn!(%error, "attach a datapath"),
                    }
                }
                Change::Left(id) => {
                    if let Some(peer) = self.hub.peer(id) {
                        add(&mut driven, taps.drive(core, Peers::id(id), peer, now_us));
                    }
                    core.detach(Peers::id(id));
                    self.hub.remove(id);
                    self.joined.retain(|j| *j != id);
                }
            }
        }
        driven
    }
}

impl Source for Peers {
    fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven {
        let datagrams = self.hub.receive(MAX_DATAGRAMS, now_us, &mut self.changes);
        let mut driven = self.follow(core, now_us, taps);
        for id in &self.joined {
            if let Some(peer) = self.hub.peer(*id) {
                add(&mut driven, taps.drive(core, Peers::id(*id), peer, now_us));
            }
        }
        driven.events = driven.events.max(datagrams);
        driven
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.hub.wait(if self.hub.has_backlog() { timeout.min(RETRY_FULL) } else { timeout })
    }

    fn pause(&mut self, now_us: u64) -> u64 {
        match self.hub.spin(now_us, LOOK_US) {
            Some(seen_us) => seen_us,
            None => {
                std::thread::yield_now();
                clock::now_us()
            }
        }
    }

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        let ids = self.joined.clone();
        ids.into_iter()
            .filter_map(|id| self.peer(id).map(|peer| records(Peers::id(id), peer, core)))
            .flatten()
            .collect()
    }

    fn samples(&mut self, core: &Core) -> Vec<FlowSample> {
        let of = |id| self.hub.peer(id).map(|peer| samples(Peers::id(id), peer, core));
        self.joined.iter().copied().filter_map(of).flatten().collect()
    }

    fn malformed(&self) -> u64 {
        self.hub.malformed()
    }

    fn has_backlog(&self) -> bool {
        self.hub.has_backlog()
    }

    fn detach(mut self: Box<Self>) -> Result<(), EbpfError> {
        self.hub.farewell();
        Ok(())
    }
}

pub(super) fn records(id: DatapathId, datapath: &mut dyn Datapath, core: &Core) -> Vec<FlowRecord> {
    let kind = datapath.capabilities().kind;
    let name = |mut record: FlowRecord| {
        if let Some(policy) = &mut record.policy {
            let here = core.slots().filter(|s| s.datapath == id);
            let mut deployments = here.flat_map(|s| [s.active, s.canary, s.last_good]).flatten();
            let deployment = deployments.find(|d| d.uid.0 == policy.uid);
            policy.snapshot = deployment.and_then(|d| d.snapshot).map(|hash| hash.to_string());
        }
        record
    };
    datapath.flows().iter().map(|s| name(FlowRecord::new(kind, s, core.flow(id, s.flow)))).collect()
}

pub(super) fn samples(id: DatapathId, datapath: &mut dyn Datapath, core: &Core) -> Vec<FlowSample> {
    let kind = datapath.capabilities().kind;
    let sample = |s: &FlowStats| FlowSample {
        datapath: kind,
        id: (id, s.flow),
        algorithm: core.flow(id, s.flow).map_or(NATIVE, |f| f.algorithm()),
        mode: s.mode,
        cwnd_packets: s.snd_cwnd,
        srtt_us: s.srtt_us,
        totals: Totals { delivered: s.delivered, lost: s.lost, acked: s.bytes_acked, faults: s.faults },
        policy: s.policy,
    };
    datapath.flows().iter().map(sample).collect()
}

fn add(sum: &mut Driven, one: Driven) {
    sum.events += one.events;
    sum.actions += one.actions;
    sum.refused += one.refused;
}

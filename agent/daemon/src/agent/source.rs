//! What a loop of the agent drives: the kernel's datapath, or all datapaths of other processes.

use crate::control::FlowRecord;
use crate::peers::{Change, Hub, Peer, PeerId};
use ccplane_contract::Datapath;
use ccplane_core::{Core, DatapathId, Driven, drive};
use ccplane_ebpf::{EbpfDatapath, EbpfError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;
use tracing::{info, warn};

/// Datagrams taken in one go.
const MAX_DATAGRAMS: usize = 1024;
/// How soon a full socket is tried again: nothing tells when its owner has read.
const RETRY_FULL: Duration = Duration::from_millis(1);

/// The datapaths of one loop. Made, used and dropped on the loop's thread.
pub(super) trait Source {
    /// Drives every datapath once.
    fn drive(&mut self, core: &mut Core, now_us: u64) -> Driven;

    /// Blocks until a datapath has something, or `timeout` passed.
    fn wait(&mut self, timeout: Duration) -> io::Result<()>;

    /// Every flow, with what the core knows of it.
    fn flows(&mut self, core: &Core) -> Vec<FlowRecord>;

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
    fn detach(self: Box<Self>);
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
    fn drive(&mut self, core: &mut Core, now_us: u64) -> Driven {
        drive(core, Kernel::ID, &mut self.datapath, now_us)
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.datapath.wait(timeout)
    }

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        records(Kernel::ID, &mut self.datapath, core)
    }

    fn adopt(&mut self, from: &str, netns: Option<&Path>) -> Option<Result<u64, EbpfError>> {
        Some(self.datapath.adopt(from, netns))
    }

    fn detach(self: Box<Self>) {
        match self.datapath.detach() {
            Ok(flows) => info!(flows, "kernel datapath detached"),
            Err(error) => {
                warn!(%error, "detach the kernel datapath; `ccplane doctor --clean` removes the rest")
            }
        }
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
    fn follow(&mut self, core: &mut Core, now_us: u64) -> Driven {
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
                        add(&mut driven, drive(core, Peers::id(id), peer, now_us));
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
    fn drive(&mut self, core: &mut Core, now_us: u64) -> Driven {
        let datagrams = self.hub.receive(MAX_DATAGRAMS, now_us, &mut self.changes);
        let mut driven = self.follow(core, now_us);
        for id in &self.joined {
            if let Some(peer) = self.hub.peer(*id) {
                add(&mut driven, drive(core, Peers::id(*id), peer, now_us));
            }
        }
        driven.events = driven.events.max(datagrams);
        driven
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let timeout = if self.hub.has_backlog() { timeout.min(RETRY_FULL) } else { timeout };
        let timeout = u16::try_from(timeout.as_millis()).unwrap_or(u16::MAX);
        let mut fds = [PollFd::new(self.hub.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::from(timeout)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        let ids = self.joined.clone();
        ids.into_iter()
            .filter_map(|id| self.peer(id).map(|peer| records(Peers::id(id), peer, core)))
            .flatten()
            .collect()
    }

    fn malformed(&self) -> u64 {
        self.hub.malformed()
    }

    fn has_backlog(&self) -> bool {
        self.hub.has_backlog()
    }

    fn detach(mut self: Box<Self>) {
        self.hub.farewell();
    }
}

fn records(id: DatapathId, datapath: &mut dyn Datapath, core: &Core) -> Vec<FlowRecord> {
    let kind = datapath.capabilities().kind;
    datapath.flows().iter().map(|s| FlowRecord::new(kind, s, core.flow(id, s.flow))).collect()
}

fn add(sum: &mut Driven, one: Driven) {
    sum.events += one.events;
    sum.actions += one.actions;
    sum.refused += one.refused;
}

//! Datapaths that a loop of the agent drives: the kernel's, or all of other processes.

use crate::config;
use crate::control::{FlowRecord, SteeringRecord};
use crate::metrics::FlowSample;
use crate::qlog::Taps;
use ccplane_channel::clock;
use ccplane_channel::hub::{Change, Hub, Peer, PeerId};
use ccplane_channel::ring::Glance;
use ccplane_contract::{Datapath, FlowId, FlowStats};
use ccplane_core::{Core, DatapathId, Driven, Fallback, NATIVE};
use ccplane_ebpf::packets::{FlowSteering, PacketsDatapath};
use ccplane_ebpf::{EbpfDatapath, EbpfError};
use ccplane_module::{ModuleDatapath, ModuleError};
use ccplane_wait::{Look, Queues, Watched};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;
use tracing::{error, info, warn};

/// Datagrams taken in one go.
const MAX_DATAGRAMS: usize = 1024;
/// The microseconds for which rings are polled before the core is given to whoever waits for it.
const SPIN_US: u64 = 10;
/// Time between two looks at the name of the datapaths' socket, microseconds.
const NAME_EVERY_US: u64 = 1_000_000;
/// The time after which a full socket is tried again: nothing tells when its owner has read.
const RETRY_FULL: Duration = Duration::from_millis(1);

/// The datapaths of one loop. Made, used and dropped on the loop's thread.
pub(super) trait Source {
    /// Drives every datapath once.
    fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven;

    /// Blocks until a datapath has something, `also` becomes readable, or `timeout` passed.
    fn wait(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()>;

    /// Returns the queues that a watcher looks at for this thread.
    fn queues(&mut self) -> io::Result<Queues>;

    /// Waits as [`wait`](Source::wait) does, but is woken by the watcher, not by those who fill the queues.
    fn doze(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>, by: &Watched) -> io::Result<()>;

    /// Lets other threads run between two turns of a loop that does not sleep, unless an event is there.
    ///
    /// Takes and returns the time at which the loop last read the clock, microseconds.
    fn pause(&mut self, _now_us: u64) -> u64 {
        std::thread::yield_now();
        clock::now_us()
    }

    /// Returns the processor core from which the loop was woken last; `None` where that is unknown.
    fn waker_core(&self) -> Option<usize> {
        None
    }

    /// Returns every flow with the core's knowledge of it.
    fn flows(&mut self, core: &Core) -> Vec<FlowRecord>;

    /// Returns every flow's values for the metrics endpoint.
    fn samples(&mut self, core: &Core) -> Vec<FlowSample>;

    /// Takes over the running flows of another congestion control; `None` if this is not the kernel's datapath.
    fn adopt(&mut self, from: &str, netns: Option<&Path>) -> Option<Result<u64, EbpfError>> {
        let _ = (from, netns);
        None
    }

    /// Returns the number of datagrams that were lost or malformed.
    fn malformed(&self) -> u64 {
        0
    }

    /// Returns the number of flows that ended before the agent learned of them, where a datapath counts these.
    fn unseen_flows(&self) -> u64 {
        0
    }

    /// Returns whether accepted commands still wait to be sent.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Detaches from the datapaths, after the core has handed all flows to their native algorithms.
    ///
    /// # Errors
    /// Something is left in the kernel.
    fn detach(self: Box<Self>) -> Result<(), EbpfError>;

    /// Ends without detaching, as a killed agent does: datapaths that the next agent can take over keep their flows.
    ///
    /// # Errors
    /// Something that the next agent cannot take over is left in the kernel.
    fn leave(self: Box<Self>) -> Result<(), EbpfError> {
        self.detach()
    }
}

/// The methods of a [`Source`] whose datapath tells its events through a ring buffer of the kernel.
macro_rules! for_kernel_events {
    () => {
        fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven {
            taps.drive(core, Self::ID, &mut self.datapath, now_us)
        }

        fn wait(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
            self.datapath.events().wait(timeout, also)
        }

        fn queues(&mut self) -> io::Result<Queues> {
            let probe = self.datapath.events().probe();
            Ok(Queues { in_memory: vec![Box::new(probe)], ..Queues::default() })
        }

        fn doze(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>, by: &Watched) -> io::Result<()> {
            if !self.datapath.events().are_there() {
                by.sleep(timeout, also);
            }
            Ok(())
        }

        fn waker_core(&self) -> Option<usize> {
            self.datapath.events().waker_core()
        }

        fn samples(&mut self, core: &Core) -> Vec<FlowSample> {
            samples(Self::ID, &mut self.datapath, core)
        }

        fn unseen_flows(&self) -> u64 {
            self.datapath.events().unseen_flows()
        }
    };
}

/// The kernel's TCP datapath.
pub(super) struct Kernel {
    datapath: EbpfDatapath,
}

impl Kernel {
    const ID: DatapathId = DatapathId(0);

    /// Attaches `core` to the kernel's `datapath`, which was just loaded as `name`.
    pub(super) fn new(name: &str, mut datapath: EbpfDatapath, core: &mut Core, now_us: u64) -> Kernel {
        let capabilities = datapath.capabilities();
        let (flows_adopted, max_flows) = (datapath.flows().len(), capabilities.max_flows);
        if let Some(layout) = datapath.replaced() {
            warn!(
                layout,
                "the kernel datapath of another version was replaced: its flows came along; push again what was pushed by hand"
            );
        }
        match core.attach(Kernel::ID, capabilities, now_us) {
            Ok(()) => info!(name, flows_adopted, max_flows, "kernel datapath attached"),
            Err(error) => warn!(%error, "attach the kernel datapath"),
        }
        Kernel { datapath }
    }
}

impl Source for Kernel {
    for_kernel_events!();

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        records(Kernel::ID, &mut self.datapath, core)
    }

    fn adopt(&mut self, from: &str, netns: Option<&Path>) -> Option<Result<u64, EbpfError>> {
        Some(self.datapath.adopt(from, netns))
    }

    fn detach(self: Box<Self>) -> Result<(), EbpfError> {
        let flows = self.datapath.detach()?;
        info!(flows, "kernel datapath detached");
        Ok(())
    }

    fn leave(mut self: Box<Self>) -> Result<(), EbpfError> {
        let flows = self.datapath.flows().len();
        self.datapath.leave();
        info!(flows, "kernel datapath left to the next agent");
        Ok(())
    }
}

/// The packets of the kernel's TCP flows.
pub(super) struct Packets {
    datapath: PacketsDatapath,
}

impl Packets {
    const ID: DatapathId = DatapathId(0);

    /// Attaches `core` to the packets' `datapath`, which was just loaded.
    pub(super) fn new(datapath: PacketsDatapath, core: &mut Core, now_us: u64) -> Packets {
        let (capabilities, hooking) = (datapath.capabilities(), datapath.hooking());
        let max_flows = capabilities.max_flows;
        match core.attach(Packets::ID, capabilities, now_us) {
            Ok(()) => info!(?hooking, max_flows, "packets' datapath attached"),
            Err(error) => warn!(%error, "attach the packets' datapath"),
        }
        Packets { datapath }
    }
}

impl Source for Packets {
    for_kernel_events!();

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        let mut records = records(Packets::ID, &mut self.datapath, core);
        for record in &mut records {
            let steering = self.datapath.steering(FlowId(record.flow));
            record.steering = steering.map(|FlowSteering { priority, path, decisions }| SteeringRecord {
                priority,
                path,
                decisions,
            });
        }
        records
    }

    fn detach(self: Box<Self>) -> Result<(), EbpfError> {
        self.datapath.detach();
        info!("packets' datapath detached");
        Ok(())
    }
}

/// The kernel's TCP flows under the kernel module.
pub(super) struct Module {
    datapath: ModuleDatapath,
}

impl Module {
    /// Attaches `core` to the module's `datapath`, whose device was just opened.
    pub(super) fn new(device: &Path, datapath: ModuleDatapath, core: &mut Core, now_us: u64) -> Module {
        let capabilities = datapath.capabilities();
        let max_flows = capabilities.max_flows;
        match core.attach(Kernel::ID, capabilities, now_us) {
            Ok(()) => info!(device = %device.display(), max_flows, "kernel module attached"),
            Err(error) => warn!(%error, "attach the kernel module"),
        }
        Module { datapath }
    }
}

/// Opens the module's device as `wanted`; `None` where it is not to be used, or is not there and need not be.
pub(super) fn open_module(
    wanted: &config::Module,
    heartbeat_timeout: Duration,
) -> Result<Option<ModuleDatapath>, EbpfError> {
    if !wanted.is_wanted() {
        return Ok(None);
    }
    match ModuleDatapath::open(&wanted.device, heartbeat_timeout) {
        Ok(datapath) => Ok(Some(datapath)),
        Err(ModuleError::Os { what, path, source }) => {
            Err(EbpfError::Os { what: format!("{what} {}", path.display()), source })
        }
        Err(ModuleError::Greet { path, source }) => {
            Err(EbpfError::Os { what: format!("greet {}", path.display()), source: io::Error::other(source) })
        }
    }
}

impl Source for Module {
    fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven {
        taps.drive(core, Kernel::ID, &mut self.datapath, now_us)
    }

    fn wait(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.datapath.wait_also(if self.has_backlog() { timeout.min(RETRY_FULL) } else { timeout }, also)
    }

    fn queues(&mut self) -> io::Result<Queues> {
        Ok(match self.datapath.glance() {
            Some(glance) => in_memory([glance]),
            None => {
                Queues { descriptors: vec![self.datapath.as_fd().try_clone_to_owned()?], ..Queues::default() }
            }
        })
    }

    fn doze(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>, by: &Watched) -> io::Result<()> {
        if self.datapath.show() {
            return Ok(());
        }
        let timeout = if self.has_backlog() { timeout.min(RETRY_FULL) } else { timeout };
        by.sleep(timeout, also);
        Ok(())
    }

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        records(Kernel::ID, &mut self.datapath, core)
    }

    fn samples(&mut self, core: &Core) -> Vec<FlowSample> {
        samples(Kernel::ID, &mut self.datapath, core)
    }

    fn has_backlog(&self) -> bool {
        self.datapath.has_backlog()
    }

    fn detach(self: Box<Self>) -> Result<(), EbpfError> {
        self.datapath.detach();
        info!("kernel module detached");
        Ok(())
    }

    fn leave(self: Box<Self>) -> Result<(), EbpfError> {
        info!("kernel module left to the next agent");
        Ok(())
    }
}

/// The datapaths of other processes.
pub(super) struct Peers {
    hub: Hub,
    joined: Vec<PeerId>,
    changes: Vec<Change>,
    /// The time of the next look at the socket's name, microseconds; `None` once it led elsewhere.
    next_name_us: Option<u64>,
}

impl Peers {
    pub(super) fn new(hub: Hub) -> Peers {
        Peers { hub, joined: Vec::new(), changes: Vec::new(), next_name_us: Some(0) }
    }

    /// Logs once that new datapaths no longer reach this agent.
    fn check_name(&mut self, now_us: u64) {
        if self.next_name_us.is_none_or(|next_us| now_us < next_us) {
            return;
        }
        self.next_name_us = Some(now_us.saturating_add(NAME_EVERY_US));
        if !self.hub.is_reachable() {
            self.next_name_us = None;
            error!(
                "the datapaths' socket was removed or replaced, as a portus agent does that starts: new datapaths do not reach \
                 this agent; end the other one and restart this one, or give one of them another socket"
            );
        }
    }

    fn id(peer: PeerId) -> DatapathId {
        // 2^32 peers would have to join before a number came twice.
        DatapathId(peer.0 as u32)
    }

    fn peer(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.hub.peer(id)
    }

    /// Attaches the peers that joined, and drives those that left once more, so that the core sees their flows end.
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
        self.check_name(now_us);
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

    fn wait(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.hub.wait_also(if self.hub.has_backlog() { timeout.min(RETRY_FULL) } else { timeout }, also)
    }

    fn queues(&mut self) -> io::Result<Queues> {
        let descriptors = vec![self.hub.as_fd().try_clone_to_owned()?];
        Ok(Queues { descriptors, ..in_memory(self.hub.glances()) })
    }

    fn doze(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>, by: &Watched) -> io::Result<()> {
        if self.hub.rings_changed() {
            by.set_queues(self.queues()?);
        }
        if self.hub.show() {
            return Ok(());
        }
        let timeout = self.hub.longest_sleep(timeout);
        by.sleep(if self.hub.has_backlog() { timeout.min(RETRY_FULL) } else { timeout }, also);
        self.hub.poll_now()
    }

    fn waker_core(&self) -> Option<usize> {
        self.hub.waker_core()
    }

    fn pause(&mut self, now_us: u64) -> u64 {
        match self.hub.spin(now_us, SPIN_US) {
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

    fn leave(self: Box<Self>) -> Result<(), EbpfError> {
        Ok(())
    }
}

/// Returns the queues by which a watcher looks at rings.
fn in_memory(glances: impl IntoIterator<Item = Glance>) -> Queues {
    let look = |glance: Glance| -> Look { Box::new(move || glance.is_ready()) };
    Queues { in_memory: glances.into_iter().map(look).collect(), ..Queues::default() }
}

/// Logs a warning of an algorithm that a kind of datapath cannot run, or whose code failed.
pub(super) fn warn_of_fallback(fallback: &Fallback) {
    let Fallback { kind, algorithm, reason, instead } = fallback;
    match instead {
        Some(NATIVE) => warn!(
            algorithm,
            datapath = kind,
            %reason,
            "an algorithm's code failed: its flow goes on by the datapath's own algorithm"
        ),
        Some(instead) => warn!(algorithm, datapath = kind, %reason, "flows run {instead} instead"),
        None => warn!(
            algorithm,
            datapath = kind,
            %reason,
            "flows keep their first window: this datapath has no algorithm of its own"
        ),
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
        transport: s.transport,
        policy: s.policy,
    };
    datapath.flows().iter().map(sample).collect()
}

fn add(sum: &mut Driven, one: Driven) {
    sum.events += one.events;
    sum.actions += one.actions;
    sum.refused += one.refused;
}

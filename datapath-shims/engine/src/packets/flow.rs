//! One flow as its host decides on it: programs of both hooks, and the priority and path in force.

use super::memory::{HostMemory, Past, PathSample, PathsOf, integer};
use crate::runner::{ProgramRunner, Runnable, Staged};
use ccplane_contract::{Field, FlowInfo};
use ccplane_program::ir::{Hook, MAX_PATHS, MAX_PRIORITY, MAX_REGS, Prim};
use ccplane_program::vm::{InvokeOutcome, Policies, PrimValues, SendPrims};

/// Changes of path whose packets may still be in flight; older ones are forgotten.
const MAX_PATH_CHANGES: usize = 16;
const NS_PER_US: u64 = 1000;

/// A packet on its way out, as its flow's transport sees it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outbound {
    /// The datapath's clock, nanoseconds.
    pub now_ns: u64,
    /// Payload of the packet; 0 for the end of the flow.
    pub payload_bytes: u64,
    /// Payload that the flow sent for the first time before this packet.
    pub bytes_sent: u64,
    /// Payload of the packet that is sent for the first time.
    pub new_bytes: u64,
    /// Payload that the application wrote and the flow has not sent, as far as the send buffer holds it.
    pub bytes_waiting: u64,
    /// Payload in flight before this packet.
    pub bytes_in_flight: u64,
    /// The number of the transmission.
    pub tx: u64,
}

impl Outbound {
    pub(super) fn now_us(&self) -> u64 {
        self.now_ns / NS_PER_US
    }
}

/// The treatment of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Steering {
    /// The priority, 0 (served first) to [`MAX_PRIORITY`].
    pub priority: u8,
    /// The number of the path, below [`MAX_PATHS`].
    pub path: u8,
}

/// A flow that programs on packets decide about.
#[derive(Debug)]
pub struct PacketFlow<R> {
    info: FlowInfo,
    runner: ProgramRunner<R>,
    /// A hash of the flow's addresses and ports, 32 bits.
    hash: u32,
    mss_bytes: u32,
    path_count: u8,
    start_us: u64,
    past: Past,
    /// Its host's paths to its destination, once it has started.
    paths: Option<PathsOf>,
    /// Lost packets of which its paths were told.
    lost_packets: u64,
    bytes_sent: u64,
    bytes_in_flight: u64,
    last_sent_us: Option<u64>,
    /// The priority and the path of its present packets.
    steering: Steering,
    /// The first transmissions on each path since the oldest that may be in flight.
    paths_since: Vec<(u64, u8)>,
}

impl<R: Runnable> PacketFlow<R> {
    /// Makes a flow with so many paths that starts at a time, microseconds.
    pub fn new(info: FlowInfo, path_count: u8, start_us: u64) -> PacketFlow<R> {
        PacketFlow {
            runner: ProgramRunner::new(integer(info.init_cwnd_bytes), info.mss_bytes.into()),
            hash: hash(&info),
            mss_bytes: info.mss_bytes,
            info,
            path_count: path_count.clamp(1, MAX_PATHS as u8),
            start_us,
            past: Past::default(),
            paths: None,
            lost_packets: 0,
            bytes_sent: 0,
            bytes_in_flight: 0,
            last_sent_us: None,
            steering: Steering::default(),
            paths_since: Vec::new(),
        }
    }

    /// The facts that were known when the flow started.
    pub fn info(&self) -> &FlowInfo {
        &self.info
    }

    /// The runner of the flow's send program.
    pub fn runner(&self) -> &ProgramRunner<R> {
        &self.runner
    }

    /// The treatment of the packets that the flow sends now.
    #[inline]
    pub fn steering(&self) -> Steering {
        self.steering
    }

    /// Payload that the flow has sent, bytes.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    /// Payload in flight, bytes, as the transport told last.
    pub fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// Sets the segment size that programs are told, bytes.
    pub fn set_mss(&mut self, mss_bytes: u32) {
        self.mss_bytes = mss_bytes;
    }

    /// Removes the send program, which is returned.
    pub fn release(&mut self) -> Option<R> {
        self.runner.release()
    }

    /// Starts the flow: its past is looked up in the host's memory.
    pub fn start(&mut self, memory: &mut HostMemory, now_us: u64) {
        self.start_us = now_us;
        let (past, paths) = memory.start(&self.info, now_us);
        (self.past, self.paths) = (past, Some(paths));
    }

    /// Decides about the flow's start by a program of `(hook connect)` with these fields; without one the flow has the first priority
    /// and the path of its hash. Returns the program's effects.
    pub fn connect<P: Policies + ?Sized>(
        &mut self,
        program: Option<(R, &[(Field, i64)])>,
        memory: &HostMemory,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> Option<InvokeOutcome> {
        self.connect_by(program, |flow| flow.prims(flow.start_us, memory), policies, report).1
    }

    /// Decides as [`PacketFlow::connect`] does, by these primitives. Returns the program with its registers, too.
    pub(super) fn connect_by<P: Policies + ?Sized>(
        &mut self,
        program: Option<(R, &[(Field, i64)])>,
        prims: impl FnOnce(&PacketFlow<R>) -> SendPrims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> (ProgramRunner<R>, Option<InvokeOutcome>) {
        let mut first = ProgramRunner::new(0, self.info.mss_bytes.into());
        first.begin_from(0, i64::from(self.hash) % i64::from(self.path_count));
        let outcome = program.map(|(program, fields)| {
            let prims = prims(&*self);
            let mut staged = Staged::default();
            staged.stage_program(program, fields);
            first.take(&mut staged, prims.get(Hook::Connect.clock()));
            first.invoke(self.info.mss_bytes.into(), &prims, policies, report)
        });
        self.begin_at(first.flow().priority, first.flow().path);
        (first, outcome)
    }

    /// Puts the decision about the flow's start into force, until a send program decides.
    pub fn begin_at(&mut self, priority: i64, path: i64) {
        self.apply(priority, path, true);
        self.runner.begin_from(priority, path);
    }

    /// Whether the flow's program is to run on this packet: it has sent as much as the program wanted to see, it pauses before this
    /// packet, or it ends. A change by the agent makes any packet a decision, too.
    #[inline]
    pub fn is_due(&self, packet: &Outbound, flowlet_us: u64) -> bool {
        self.runner.running().is_some()
            && !self.runner.lacks_decision()
            && (packet.payload_bytes == 0
                || self.is_asked_for(packet.bytes_sent)
                || self.has_paused(packet, flowlet_us))
    }

    /// Whether the program is to run once the flow has sent so much; where it named no count, or none above 0, it is not.
    #[inline]
    fn is_asked_for(&self, bytes_sent: u64) -> bool {
        let decide_at_bytes = self.runner.flow().decide_at_bytes;
        decide_at_bytes > 0 && integer(bytes_sent) >= decide_at_bytes
    }

    /// Whether a packet is the first of a flowlet.
    #[inline]
    fn has_paused(&self, packet: &Outbound, flowlet_us: u64) -> bool {
        self.last_sent_us.is_none_or(|at_us| packet.now_us().saturating_sub(at_us) >= flowlet_us)
    }

    /// Returns the primitives that both hooks have.
    pub fn prims(&self, now_us: u64, memory: &HostMemory) -> SendPrims {
        let mut prims = SendPrims::default();
        prims
            .set(Prim::Now, integer(now_us))
            .set(Prim::FlowLocalPort, self.info.local.port().into())
            .set(Prim::FlowRemotePort, self.info.remote.port().into())
            .set(Prim::FlowCgroup, integer(self.info.cgroup.unwrap_or(0)))
            .set(Prim::FlowHash, self.hash.into());
        self.past.fill(&mut prims);
        if let Some(paths) = self.paths {
            memory.fill(paths, self.path_count, now_us, &mut prims);
        }
        prims
    }

    /// Adds to `prims` the primitives of one packet.
    pub fn fill(&self, packet: &Outbound, prims: &mut SendPrims) {
        let now_us = packet.now_us();
        let gap_us = self.last_sent_us.map_or(0, |at_us| now_us.saturating_sub(at_us));
        prims
            .set(Prim::Now, integer(now_us))
            .set(Prim::PacketBytes, integer(packet.payload_bytes))
            .set(Prim::FlowBytesSent, integer(packet.bytes_sent))
            .set(Prim::FlowBytesWaiting, integer(packet.bytes_waiting))
            .set(Prim::FlowAgeUs, integer(now_us.saturating_sub(self.start_us)))
            .set(Prim::FlowGapUs, integer(gap_us));
    }

    /// Applies staged changes at this time, microseconds. Returns the program that another one replaced.
    pub fn take(&mut self, staged: &mut Staged<R>, now_us: i64) -> Option<R> {
        self.runner.take(staged, now_us)
    }

    /// Runs the send program.
    pub fn invoke<P: Policies + ?Sized>(
        &mut self,
        prims: &SendPrims,
        policies: &mut P,
        report: &mut [i64; MAX_REGS],
    ) -> InvokeOutcome {
        self.runner.invoke(self.mss_bytes.into(), prims, policies, report)
    }

    /// Puts the program's decision into force, as far as it cannot reorder packets: a priority that is served later at once;
    /// one that is served earlier, and another path, where a flowlet begins. Returns whether anything changed.
    pub fn steer(&mut self, packet: &Outbound, flowlet_us: u64, memory: &mut HostMemory) -> bool {
        let before = self.steering;
        let is_fresh = packet.bytes_in_flight == 0 || self.has_paused(packet, flowlet_us);
        let (priority, path) = (self.runner.flow().priority, self.runner.flow().path);
        self.apply(priority, path, is_fresh);
        if let Some(paths) = self.paths.filter(|_| before.path != self.steering.path) {
            let in_flight = self.bytes_in_flight;
            memory.carry(paths, (before.path, in_flight), (self.steering.path, in_flight));
        }
        before != self.steering
    }

    fn apply(&mut self, priority: i64, path: i64, is_fresh: bool) {
        if is_fresh || priority > self.steering.priority.into() {
            self.steering.priority = priority.clamp(0, MAX_PRIORITY) as u8;
        }
        if is_fresh && path < self.path_count.into() {
            self.steering.path = path.max(0) as u8;
        }
    }

    /// Notes that a packet leaves on the path in force.
    pub fn sent(&mut self, packet: &Outbound) {
        self.last_sent_us = Some(packet.now_us());
        self.bytes_sent = packet.bytes_sent + packet.new_bytes;
        let path = self.steering.path;
        if self.path_count > 1 && self.paths_since.last().is_none_or(|(_, last)| *last != path) {
            if self.paths_since.len() >= MAX_PATH_CHANGES {
                self.paths_since.remove(0);
            }
            self.paths_since.push((packet.tx, path));
        }
    }

    /// Takes the outcome of packets, of which `newest_tx` was sent last; `None` for those that a timer found lost, which are told of
    /// the path in force. The sample's losses are those since the last call, of `lost_packets` in all.
    pub fn on_sample(
        &mut self,
        newest_tx: Option<u64>,
        now_us: u64,
        lost_packets: u64,
        sample: PathSample,
        memory: &mut HostMemory,
    ) {
        let before = std::mem::replace(&mut self.lost_packets, lost_packets);
        let sample = PathSample { lost: lost_packets.saturating_sub(before), ..sample };
        let path = newest_tx.map_or(self.steering.path, |tx| self.path_of(tx));
        if let Some(paths) = self.paths.filter(|_| newest_tx.is_some() || sample.lost > 0) {
            memory.sample(paths, path, now_us, &sample);
        }
    }

    /// Notes the payload in flight, bytes.
    #[inline]
    pub fn set_in_flight(&mut self, bytes: u64, memory: &mut HostMemory) {
        let before = std::mem::replace(&mut self.bytes_in_flight, bytes);
        if let Some(paths) = self.paths.filter(|_| bytes != before) {
            memory.carry(paths, (self.steering.path, before), (self.steering.path, bytes));
        }
    }

    /// Ends the flow in the host's memory, which keeps its size.
    pub fn end(&mut self, memory: &mut HostMemory) {
        self.set_in_flight(0, memory);
        if let Some(paths) = self.paths.take() {
            memory.end(&self.info, paths, self.bytes_sent);
        }
    }

    /// Returns the path that a transmission took.
    fn path_of(&self, tx: u64) -> u8 {
        let since = self.paths_since.iter().rev().find(|(first, _)| *first <= tx);
        since.map_or(self.steering.path, |(_, path)| *path)
    }
}

/// A hash of a flow's addresses and ports, 32 bits.
fn hash(info: &FlowInfo) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |byte: u8| hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    for address in [info.local, info.remote] {
        match address.ip() {
            std::net::IpAddr::V4(ip) => ip.octets().into_iter().for_each(&mut add),
            std::net::IpAddr::V6(ip) => ip.octets().into_iter().for_each(&mut add),
        }
        address.port().to_be_bytes().into_iter().for_each(&mut add);
    }
    // FNV's low bits are weak: MurmurHash3's finaliser spreads them.
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (hash >> 32) as u32 ^ hash as u32
}

//! The flow table on the agent's side: records in memory shared with the kernel programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use ccplane_contract::{Field, FlowId, FlowInfo, FlowStats, Mode, ProgramUid, TransportStats};
use ccplane_infer::{FlowPolicy, Level, Noise};
use ccplane_program::ir::{MAX_CWND_BYTES, MAX_RATE_BYTES_PER_S, Program, Type};

use crate::layout::{INDEX_BITS, mode, rec, stage};
use ccplane_bpf::SharedMap;

/// Tries of a claim while the kernel applies the previous change.
///
/// That takes well under a microsecond, unless a hypervisor takes the processor away in the middle: after the first
/// tries each one yields.
const CLAIM_TRIES: u32 = 100_000;
const CLAIM_SPINS: u32 = 1000;

/// The id of no flow.
pub const FREE: FlowId = FlowId(0);

/// The index of the flow's record, if the flow lives.
pub fn index_of(flow: FlowId) -> u32 {
    (flow.0 & ((1 << INDEX_BITS) - 1)) as u32
}

/// All flow records.
pub struct Table {
    memory: SharedMap,
    records: u32,
    record_bytes: u32,
}

/// A change to be staged.
pub struct Change<'a> {
    /// The program to start; `None` keeps the running one.
    pub program: Option<Start>,
    /// The instance of the program that the change is meant for.
    pub instance: u32,
    /// The window, bytes.
    pub cwnd: Option<i64>,
    /// The pacing rate, bytes per second.
    pub rate: Option<i64>,
    /// Registers with their new values.
    pub regs: &'a [(u8, i64)],
}

/// A program to start.
pub struct Start {
    /// The program's slot, plus 1; or [`crate::layout::STAGE_RELEASE`].
    pub slot: u32,
    /// The program's uid, for readers of the table without the agent; 0 for none.
    pub uid: u32,
}

/// Field updates in the form in which they are staged.
#[derive(Default)]
pub struct Values {
    /// The window, bytes.
    pub cwnd: Option<i64>,
    /// The pacing rate, bytes per second.
    pub rate: Option<i64>,
    /// Registers with their new values.
    pub regs: Vec<(u8, i64)>,
}

impl Values {
    /// Converts field updates as [`ccplane_contract::apply_fields`] does: values that are no decision are left out, the
    /// rest bounded.
    pub fn new(program: &Program, fields: &[(Field, i64)]) -> Values {
        let mut values = Values::default();
        for (field, value) in fields {
            match field {
                Field::Cwnd if *value > 0 => values.cwnd = Some((*value).min(MAX_CWND_BYTES)),
                Field::Rate if *value >= 0 => values.rate = Some((*value).min(MAX_RATE_BYTES_PER_S)),
                Field::Cwnd | Field::Rate => {}
                Field::Reg(r) => match program.regs().get(usize::from(*r)) {
                    Some(decl) if decl.ty == Type::Bool => values.regs.push((*r, i64::from(*value != 0))),
                    _ => values.regs.push((*r, *value)),
                },
            }
        }
        values
    }

    /// The change to these values, with a program to start if there is one, for flows of an instance of a program.
    pub fn change(&self, program: Option<Start>, instance: u32) -> Change<'_> {
        Change { program, instance, cwnd: self.cwnd, rate: self.rate, regs: &self.regs }
    }
}

impl Table {
    /// Wraps `memory`, which maps at least `records` records of `record_bytes`, that begin with a [`rec`].
    pub fn new(memory: SharedMap, records: u32, record_bytes: u32) -> Table {
        Table { memory, records, record_bytes }
    }

    /// The number of records.
    pub fn records(&self) -> u32 {
        self.records
    }

    fn at(&self, index: u32, field: u32) -> usize {
        (index * self.record_bytes + field) as usize
    }
    fn u32(&self, index: u32, field: u32) -> u32 {
        self.memory.u32(self.at(index, field)).load(Relaxed)
    }
    fn u64(&self, index: u32, field: u32) -> u64 {
        self.memory.u64(self.at(index, field)).load(Relaxed)
    }

    /// Lists the live flows with their records.
    pub fn live(&self) -> impl Iterator<Item = (u32, FlowId)> + '_ {
        (0..self.records).map(|index| (index, self.id(index))).filter(|(_, flow)| *flow != FREE)
    }

    /// The record of a flow, if it still lives.
    pub fn index(&self, flow: FlowId) -> Option<u32> {
        let index = index_of(flow);
        (index < self.records && self.id(index) == flow).then_some(index)
    }

    /// The flow at a record; [`FREE`] if there is none.
    pub fn id(&self, index: u32) -> FlowId {
        FlowId(self.memory.u64(self.at(index, rec::ID)).load(Acquire))
    }

    /// Reads a flow's record with `read`, unless the flow ended meanwhile.
    fn of<T>(&self, flow: FlowId, read: impl FnOnce(u32) -> T) -> Option<T> {
        let index = self.index(flow)?;
        let value = read(index);
        // The value is the flow's only if the record still is.
        fence(Acquire);
        (self.u64(index, rec::ID) == flow.0).then_some(value)
    }

    /// A word of a flow's record, if the flow still lives.
    pub fn word(&self, flow: FlowId, field: u32) -> Option<u32> {
        self.of(flow, |index| self.u32(index, field))
    }

    /// The program that the flow runs or is to run, if it still lives and there is one.
    pub fn uid(&self, flow: FlowId) -> Option<ProgramUid> {
        self.word(flow, rec::UID).filter(|uid| *uid != 0).map(ProgramUid)
    }

    /// The slots (plus 1) that the flow runs and is to run; 0 for none.
    pub fn slots(&self, index: u32) -> [u32; 2] {
        let staged = match self.memory.u32(self.at(index, rec::STAGE_STATE)).load(Acquire) {
            stage::EMPTY => 0,
            _ => self.u32(index, rec::STAGE_SLOT),
        };
        [self.u32(index, rec::SLOT), staged]
    }

    /// The instance of the program that was staged last.
    pub fn instance(&self, index: u32) -> u32 {
        self.u32(index, rec::STAGE_INSTANCE)
    }

    /// Whether a change waits for the flow's next ACK.
    pub fn is_staged(&self, index: u32) -> bool {
        self.memory.u32(self.at(index, rec::STAGE_STATE)).load(Acquire) == stage::READY
    }

    /// The fixed properties of a flow, if it still lives.
    pub fn info(&self, flow: FlowId) -> Option<FlowInfo> {
        self.of(flow, |index| self.read_info(index))
    }

    /// The name of the congestion control that the flow's socket chose, if the flow still lives.
    pub fn chosen_name(&self, flow: FlowId) -> Option<String> {
        let read = |index| [0, 8].map(|at| self.u64(index, rec::CHOSEN + at).to_ne_bytes());
        let bytes = self.of(flow, read)?.concat();
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(name).into_owned())
    }

    fn read_info(&self, index: u32) -> FlowInfo {
        let v6 = self.u32(index, rec::FAMILY) != libc::AF_INET as u32;
        let socket = |addr: u32, port: u32| {
            let mut b = [0u8; 16];
            for word in 0..4 {
                let w = self.u32(index, addr + 4 * word);
                b[4 * word as usize..4 * word as usize + 4].copy_from_slice(&w.to_ne_bytes());
            }
            let ip = if v6 {
                IpAddr::V6(Ipv6Addr::from(b)).to_canonical()
            } else {
                IpAddr::V4(Ipv4Addr::new(b[0], b[1], b[2], b[3]))
            };
            SocketAddr::new(ip, self.u32(index, port) as u16)
        };
        let mss_bytes = self.u32(index, rec::FIRST_MSS);
        let cgroup = self.u64(index, rec::CGROUP);
        FlowInfo {
            mss_bytes,
            init_cwnd_bytes: u64::from(self.u32(index, rec::INIT_CWND)) * u64::from(mss_bytes),
            local: socket(rec::LOCAL_ADDR, rec::LOCAL_PORT),
            remote: socket(rec::REMOTE_ADDR, rec::REMOTE_PORT),
            cgroup: (cgroup != 0).then_some(cgroup),
            min_rtt_us: self.min_rtt_us(index),
        }
    }

    /// The last sample of each flow.
    ///
    /// `silent` says that the agent's heartbeat is late by now, which the record itself only learns at the flow's next
    /// ACK.
    pub fn all_stats(&self, silent: bool) -> Vec<FlowStats> {
        self.live()
            .filter_map(|(_, flow)| self.of(flow, |index| self.read_stats(flow, index, silent)))
            .collect()
    }

    /// The smallest round-trip time, microseconds, if the kernel has one.
    fn min_rtt_us(&self, index: u32) -> Option<u32> {
        Some(self.u32(index, rec::MIN_RTT_US)).filter(|us| !matches!(*us, 0 | u32::MAX))
    }

    fn read_stats(&self, flow: FlowId, index: u32, silent: bool) -> FlowStats {
        let uid = self.u32(index, rec::UID);
        FlowStats {
            flow,
            info: self.read_info(index),
            mode: match self.u32(index, rec::MODE) {
                mode::AGENT_SILENT => Mode::NativeAgentSilent,
                // The cause is not the missing agent, unless a program that it has set waits.
                mode::POLICY if self.slots(index)[1] == 0 => Mode::NativePolicy,
                // Under a silent agent a waiting change goes on waiting.
                now if silent && (now == mode::PROGRAM || uid != 0) => Mode::NativeAgentSilent,
                mode::PROGRAM => Mode::Program,
                mode::POLICY => Mode::NativePolicy,
                _ => Mode::NativeNoProgram,
            },
            program: (uid != 0).then_some(ProgramUid(uid)),
            transport: TransportStats {
                snd_cwnd: self.u32(index, rec::SND_CWND),
                snd_ssthresh: TransportStats::ssthresh(self.u32(index, rec::SND_SSTHRESH).into()),
                mss_bytes: self.u32(index, rec::MSS),
                srtt_us: self.u32(index, rec::SRTT_8US) / 8,
                min_rtt_us: self.min_rtt_us(index).unwrap_or(0),
                pacing_rate: self.u64(index, rec::PACING_RATE),
                bytes_acked: self.u64(index, rec::BYTES_ACKED),
                delivered: u64::from(self.u32(index, rec::DELIVERED)),
                lost: u64::from(self.u32(index, rec::LOST)),
                unacked: self.u32(index, rec::PACKETS_OUT),
                faults: self.u64(index, rec::FAULTS),
                reports: u64::from(self.u32(index, rec::SEQ)),
            },
            policy: (uid != 0 && self.u32(index, rec::ASKS) != 0).then(|| self.policy(index)),
            sampled_at_us: self.u64(index, rec::SAMPLED_AT_US),
        }
    }

    /// The policy state of a flow.
    pub fn policy(&self, index: u32) -> FlowPolicy {
        let u32 = |field| self.u32(index, field);
        FlowPolicy {
            noise: Noise(self.u64(index, rec::NOISE)),
            uid: u32(rec::DEPLOYMENT),
            buffer: u32(rec::BUFFER),
            level: match u32(rec::LEVEL) {
                0 => Level::Chosen,
                1 => Level::LastGood,
                _ => Level::Native,
            },
            level_uid: u32(rec::LEVEL_UID),
            penalty: u32(rec::PENALTY),
            decisions: u32(rec::DECISIONS),
            saturated: u32(rec::SATURATED),
            clipped: u32(rec::CLIPPED),
            collapsed: u32(rec::COLLAPSED),
            trips: u32(rec::TRIPS),
        }
    }

    /// Stages a change for the flow's next ACK, merged with what is staged already.
    ///
    /// False if the flow has ended, or its record could not be claimed.
    pub fn stage(&self, flow: FlowId, change: &Change<'_>) -> bool {
        let Some(index) = self.index(flow) else { return false };
        let state = self.memory.u32(self.at(index, rec::STAGE_STATE));
        let Some(previous) = claim(state) else { return false };
        // From here on a new flow on the record would start with EMPTY, and `publish` fail. One that started before
        // shows in the id.
        let publish = |to| state.compare_exchange(stage::WRITING, to, Release, Relaxed).is_ok();
        if self.id(index) != flow {
            publish(stage::EMPTY);
            return false;
        }
        self.write(index, previous == stage::READY, change);
        let staged = publish(stage::READY);
        if let Some(start) = &change.program {
            self.memory.u32(self.at(index, rec::UID)).store(if staged { start.uid } else { 0 }, Relaxed);
        }
        staged
    }

    /// Writes a change into a claimed record; `pending` says that another one waits there.
    fn write(&self, index: u32, pending: bool, change: &Change<'_>) {
        let u32_at = |field| self.memory.u32(self.at(index, field));
        // A staged window or rate outlives a program change; registers of the old program do not.
        let mut bits = if pending { self.u32(index, rec::STAGE_BITS) } else { 0 };
        let goes_on = pending && change.program.is_none();
        let mut masks = STAGE_MASKS.map(|mask| if goes_on { self.u64(index, mask) } else { 0 });
        match &change.program {
            Some(start) => u32_at(rec::STAGE_SLOT).store(start.slot, Relaxed),
            None if !pending => u32_at(rec::STAGE_SLOT).store(0, Relaxed),
            None => {}
        }
        u32_at(rec::STAGE_INSTANCE).store(change.instance, Relaxed);
        if let Some(cwnd) = change.cwnd {
            bits |= 1;
            self.memory.i64(self.at(index, rec::STAGE_CWND)).store(cwnd, Relaxed);
        }
        if let Some(rate) = change.rate {
            bits |= 2;
            self.memory.i64(self.at(index, rec::STAGE_RATE)).store(rate, Relaxed);
        }
        for (reg, value) in change.regs {
            masks[usize::from(*reg) / 64] |= 1 << (reg % 64);
            self.memory.i64(self.at(index, rec::STAGE_REGS + 8 * u32::from(*reg))).store(*value, Relaxed);
        }
        u32_at(rec::STAGE_BITS).store(bits, Relaxed);
        for (field, mask) in STAGE_MASKS.into_iter().zip(masks) {
            self.memory.u64(self.at(index, field)).store(mask, Relaxed);
        }
    }
}

/// Offsets of the masks of staged registers: 64 in each word.
const STAGE_MASKS: [u32; 2] = [rec::STAGE_MASK, rec::STAGE_MASK_HIGH];
const _: () = assert!(ccplane_program::ir::MAX_REGS <= 64 * STAGE_MASKS.len());

/// Takes a record's stage to WRITING; returns its former value, or `None` if the kernel would not let go of it.
fn claim(state: &AtomicU32) -> Option<u32> {
    for n in 0..CLAIM_TRIES {
        let now = state.load(Relaxed);
        // A record left in WRITING was left by an agent that died there: there is only one of us.
        if now != stage::APPLYING && state.compare_exchange(now, stage::WRITING, AcqRel, Relaxed).is_ok() {
            return Some(now);
        }
        if n < CLAIM_SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    None
}

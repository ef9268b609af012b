//! The flow table as the agent sees it: records in memory shared with the kernel programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use ccplane_contract::{Field, FlowId, FlowInfo, FlowStats, Mode, ProgramUid};
use ccplane_program::ir::{MAX_CWND_BYTES, MAX_RATE_BYTES_PER_S, Program, Type};

use crate::layout::{INDEX_BITS, mode, rec, stage};
use crate::sys::Shared;

/// How often a claim is tried while the kernel applies the previous change, which takes well under a
/// microsecond.
const CLAIM_TRIES: u32 = 1_000_000;

/// All records.
pub struct Table {
    memory: Shared,
    records: u32,
}

/// A change to be staged.
pub struct Change<'a> {
    /// Slot (plus 1) and instance of the program to start; `None` keeps the running one.
    pub program: Option<u32>,
    /// The instance that the change is meant for.
    pub instance: u32,
    /// Bytes.
    pub cwnd: Option<i64>,
    /// Bytes per second.
    pub rate: Option<i64>,
    /// Register and value.
    pub regs: &'a [(u8, i64)],
}

/// Field updates in the form in which they are staged.
#[derive(Default)]
pub struct Values {
    /// Bytes.
    pub cwnd: Option<i64>,
    /// Bytes per second.
    pub rate: Option<i64>,
    /// Register and value.
    pub regs: Vec<(u8, i64)>,
}

impl Values {
    /// As [`ccplane_contract::apply_fields`] takes them: what is no decision is left out, the rest bounded.
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
}

impl Table {
    /// `memory` maps at least `records` records.
    pub fn new(memory: Shared, records: u32) -> Table {
        Table { memory, records }
    }

    fn at(&self, index: u32, field: u32) -> usize {
        (index * rec::BYTES + field) as usize
    }
    fn u32(&self, index: u32, field: u32) -> u32 {
        self.memory.u32(self.at(index, field)).load(Relaxed)
    }
    fn u64(&self, index: u32, field: u32) -> u64 {
        self.memory.u64(self.at(index, field)).load(Relaxed)
    }

    /// The records in use.
    pub fn live(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.records).filter(|i| self.memory.u64(self.at(*i, rec::ID)).load(Acquire) != 0)
    }

    /// The record of a flow, if it still lives.
    pub fn index(&self, flow: FlowId) -> Option<u32> {
        let index = (flow.0 & ((1 << INDEX_BITS) - 1)) as u32;
        (index < self.records && self.memory.u64(self.at(index, rec::ID)).load(Acquire) == flow.0).then_some(index)
    }

    /// The flow's name.
    pub fn id(&self, index: u32) -> FlowId {
        FlowId(self.u64(index, rec::ID))
    }

    /// The slot (plus 1) that the flow runs or is to run; 0 for none.
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

    /// What is fixed about a flow.
    pub fn info(&self, index: u32) -> FlowInfo {
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
        let mss_bytes = self.u32(index, rec::MSS);
        let cgroup = self.u64(index, rec::CGROUP);
        FlowInfo {
            mss_bytes,
            init_cwnd_bytes: u64::from(self.u32(index, rec::INIT_CWND)) * u64::from(mss_bytes),
            local: socket(rec::LOCAL_ADDR, rec::LOCAL_PORT),
            remote: socket(rec::REMOTE_ADDR, rec::REMOTE_PORT),
            cgroup: (cgroup != 0).then_some(cgroup),
        }
    }

    /// The last sample of a flow. `silent` says that the agent's heartbeat is late by now, which the record
    /// itself only learns at the flow's next ACK.
    pub fn stats(&self, index: u32, silent: bool) -> FlowStats {
        let uid = self.u32(index, rec::UID);
        let min_rtt_us = self.u32(index, rec::MIN_RTT_US);
        FlowStats {
            flow: self.id(index),
            info: self.info(index),
            mode: match self.u32(index, rec::MODE) {
                mode::AGENT_SILENT => Mode::NativeAgentSilent,
                mode::PROGRAM if silent => Mode::NativeAgentSilent,
                mode::PROGRAM => Mode::Program,
                _ => Mode::NativeNoProgram,
            },
            program: (uid != 0).then_some(ProgramUid(uid)),
            snd_cwnd: self.u32(index, rec::SND_CWND),
            snd_ssthresh: match self.u32(index, rec::SND_SSTHRESH) {
                // TCP_INFINITE_SSTHRESH
                0x7fff_ffff => u32::MAX,
                v => v,
            },
            mss_bytes: self.u32(index, rec::MSS),
            srtt_us: self.u32(index, rec::SRTT_8US) / 8,
            min_rtt_us: if min_rtt_us == u32::MAX { 0 } else { min_rtt_us },
            pacing_rate: self.u64(index, rec::PACING_RATE),
            bytes_acked: self.u64(index, rec::BYTES_ACKED),
            delivered: u64::from(self.u32(index, rec::DELIVERED)),
            lost: u64::from(self.u32(index, rec::LOST)),
            unacked: self.u32(index, rec::PACKETS_OUT),
            faults: self.u64(index, rec::FAULTS),
            reports: u64::from(self.u32(index, rec::SEQ)),
            sampled_at_us: self.u64(index, rec::SAMPLED_AT_US),
        }
    }

    /// Names the program in the record, for whoever reads the table without the agent.
    pub fn set_uid(&self, index: u32, uid: u32) {
        self.memory.u32(self.at(index, rec::UID)).store(uid, Relaxed);
    }

    /// Stages a change for the flow's next ACK, beside what is staged already. False if the record could not be
    /// claimed.
    pub fn stage(&self, index: u32, change: &Change<'_>) -> bool {
        let state = self.memory.u32(self.at(index, rec::STAGE_STATE));
        let mut previous = None;
        for _ in 0..CLAIM_TRIES {
            let now = state.load(Acquire);
            // A record left in WRITING was left by an agent that died there: there is only one of us.
            if now != stage::APPLYING
                && state.compare_exchange(now, stage::WRITING, AcqRel, Relaxed).is_ok()
            {
                previous = Some(now);
                break;
            }
            std::hint::spin_loop();
        }
        let Some(previous) = previous else { return false };
        let u32_at = |field| self.memory.u32(self.at(index, field));
        let pending = previous == stage::READY;
        // A staged window or rate outlives a program change; registers of the old program do not.
        let mut bits = if pending { self.u32(index, rec::STAGE_BITS) } else { 0 };
        let mut mask = if pending && change.program.is_none() { self.u64(index, rec::STAGE_MASK) } else { 0 };
        if !pending || change.program.is_some() {
            u32_at(rec::STAGE_SLOT).store(change.program.unwrap_or(0), Relaxed);
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
            mask |= 1 << reg;
            self.memory.i64(self.at(index, rec::STAGE_REGS + 8 * u32::from(*reg))).store(*value, Relaxed);
        }
        u32_at(rec::STAGE_BITS).store(bits, Relaxed);
        self.memory.u64(self.at(index, rec::STAGE_MASK)).store(mask, Relaxed);
        state.store(stage::READY, Release);
        true
    }
}

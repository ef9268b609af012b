//! The memory that kernel programs and agent share: a control page, one record per flow, the policy slots, and the
//! events in the ring buffer. Offsets in bytes; all words little-endian and naturally aligned.

use ccplane_nn_codegen::bpf::{SCRATCH_BYTES, TABLES_BYTES};
use ccplane_program::ir::{MAX_POLICY_SLOTS, MAX_REGS};

/// Changes whenever anything in this file does; a pinned datapath of another version is not taken over.
pub const LAYOUT_VERSION: u64 = 7;

/// Programs that can be installed at once.
pub const MAX_PROGRAMS: usize = 64;
/// Bytes of the event ring.
pub const RING_BYTES: usize = 1 << 20;

/// Offsets in the control page: a cache line that each ACK reads and only the agent writes, and others.
pub mod ctl {
    /// u64: when the agent last said that it lives, microseconds of CLOCK_MONOTONIC.
    pub const HEARTBEAT_US: u32 = 0;
    /// u64: silence after which flows run the native algorithm, microseconds.
    pub const TIMEOUT_US: u32 = 8;
    /// u64: at most one sample of a flow's statistics per this time, microseconds.
    pub const SAMPLE_US: u32 = 16;

    /// u64: [`super::LAYOUT_VERSION`]. In every version here.
    pub const VERSION: u32 = 64;
    /// u32: the agent's process id.
    pub const AGENT_PID: u32 = 72;
    /// u32: records in the flow table.
    pub const MAX_FLOWS: u32 = 76;
    /// u32: 1 while the agent sleeps on the ring buffer and wants to be woken by the next event.
    pub const WAITING: u32 = 80;

    /// u64: counts flows; makes flow ids unique.
    pub const NEXT_FLOW: u32 = 128;
    /// u64: counts program installs; makes instances unique across restarts of the agent.
    pub const NEXT_INSTANCE: u32 = 136;
    /// u64: events that did not fit the ring buffer.
    pub const DROPPED: u32 = 144;
    /// u64: flows that found the table full.
    pub const TABLE_FULL: u32 = 152;
    /// Size of the page's used part.
    pub const BYTES: u32 = 160;
}

/// Offsets in a flow's record. Its first cache line is what each ACK touches, besides the program's registers.
pub mod rec {
    use super::{MAX_REGS, SCRATCH_BYTES};
    use ccplane_program::ir::MAX_POLICY_INPUTS;

    /// u32: index of its program in the program array, plus 1; 0 for none.
    pub const SLOT: u32 = 0;
    /// u32: [`super::mode`].
    pub const MODE: u32 = 4;
    /// u32: [`super::stage`].
    pub const STAGE_STATE: u32 = 8;
    /// u32: 1 if a retransmission timeout has not been shown to the program yet.
    pub const FLAGS: u32 = 12;
    /// u32: `tp->sacked_out` after the last ACK.
    pub const LAST_SACKED: u32 = 16;
    /// u32: `tp->delivered_ce` after the last ACK.
    pub const LAST_CE: u32 = 20;
    /// u32: `tp->lost` after the last ACK.
    pub const LAST_LOST: u32 = 24;
    /// u32: reports so far.
    pub const SEQ: u32 = 28;
    /// u64: `tp->bytes_acked` after the last ACK.
    pub const LAST_BYTES_ACKED: u32 = 32;
    /// u64: when the statistics were taken, microseconds.
    pub const SAMPLED_AT_US: u32 = 40;
    /// i64: the program's window, bytes.
    pub const CWND: u32 = 48;
    /// i64: the program's rate, bytes per second; 0 for none.
    pub const RATE: u32 = 56;

    /// u64: the flow's id; 0 when the record is free.
    pub const ID: u32 = 64;
    /// i64: the clock when `Micros` was 0, microseconds.
    pub const MICROS_ZERO: u32 = 72;
    /// u64: saturations and divisions by zero.
    pub const FAULTS: u32 = 80;
    /// i64: the program's window when the kernel's last loss episode began, bytes; 0 when there is none to go
    /// back to.
    pub const UNDO_CWND: u32 = 88;
    /// u64: which of the first 64 registers of `STAGE_REGS` count.
    pub const STAGE_MASK: u32 = 96;
    /// i64: bytes.
    pub const STAGE_CWND: u32 = 104;
    /// i64: bytes per second.
    pub const STAGE_RATE: u32 = 112;
    /// u32: the segment size that the program was told last, bytes.
    pub const TOLD_MSS: u32 = 120;
    /// u32: packets delivered since the kernel's recovery began.
    pub const PRR_DELIVERED: u32 = 124;

    /// u32: packets. First of the sampled statistics.
    pub const SND_CWND: u32 = 128;
    /// u32: packets.
    pub const SND_SSTHRESH: u32 = 132;
    /// u32: bytes.
    pub const MSS: u32 = 136;
    /// u32: microseconds, times 8 as the kernel keeps it.
    pub const SRTT_8US: u32 = 140;
    /// u32: microseconds; all ones before the first sample.
    pub const MIN_RTT_US: u32 = 144;
    /// u32: packets.
    pub const PACKETS_OUT: u32 = 148;
    /// u64: bytes per second.
    pub const PACING_RATE: u32 = 152;
    /// u64: bytes.
    pub const BYTES_ACKED: u32 = 160;
    /// u32: packets.
    pub const DELIVERED: u32 = 168;
    /// u32: packets.
    pub const LOST: u32 = 172;
    /// u32: the slot to switch to; 0 to keep the program, [`super::STAGE_RELEASE`] for the native algorithm.
    pub const STAGE_SLOT: u32 = 176;
    /// u32: the instance that the staged change is meant for.
    pub const STAGE_INSTANCE: u32 = 180;
    /// u32: 1 if `STAGE_CWND` counts, 2 if `STAGE_RATE` does.
    pub const STAGE_BITS: u32 = 184;
    /// u32: the installed program's uid, for whoever reads the table without the agent.
    pub const UID: u32 = 188;

    /// u32: AF_INET or AF_INET6. First of what is fixed when the flow starts.
    pub const FAMILY: u32 = 192;
    /// u32: host order.
    pub const LOCAL_PORT: u32 = 196;
    /// u32: host order.
    pub const REMOTE_PORT: u32 = 200;
    /// u32: packets.
    pub const INIT_CWND: u32 = 204;
    /// 16 bytes, network order; an IPv4 address is in the first four.
    pub const LOCAL_ADDR: u32 = 208;
    /// As `LOCAL_ADDR`.
    pub const REMOTE_ADDR: u32 = 224;
    /// u64: the cgroup's id; 0 if unknown.
    pub const CGROUP: u32 = 240;
    /// u32: bytes. The segment size that the agent knows.
    pub const FIRST_MSS: u32 = 248;

    /// i64 each: staged register values.
    pub const STAGE_REGS: u32 = 256;
    /// i64 each: the program's registers.
    pub const REGS: u32 = STAGE_REGS + 8 * MAX_REGS as u32;

    /// u64: which registers of `STAGE_REGS` count, from the 65th on.
    pub const STAGE_MASK_HIGH: u32 = REGS + 8 * MAX_REGS as u32;

    /// u64: the generator of its noise. First of what it keeps for policies, as `ccplane_infer::FlowPolicy` has it.
    pub const NOISE: u32 = STAGE_MASK_HIGH + 8;
    /// u32: the deployment that decided last; 0 for none.
    pub const DEPLOYMENT: u32 = NOISE + 8;
    /// u32: the buffer that held it.
    pub const BUFFER: u32 = NOISE + 12;
    /// u32: `ccplane_infer::Level`.
    pub const LEVEL: u32 = NOISE + 16;
    /// u32: the deployment from which it fell back.
    pub const LEVEL_UID: u32 = NOISE + 20;
    /// u32: the monitor's count.
    pub const TROUBLE: u32 = NOISE + 24;
    /// u32: decisions.
    pub const DECISIONS: u32 = NOISE + 28;
    /// u32: those out of bounds.
    pub const SATURATED: u32 = NOISE + 32;
    /// u32: those on clipped inputs.
    pub const CLIPPED: u32 = NOISE + 36;
    /// u32: those that left the knob at its minimum.
    pub const COLLAPSED: u32 = NOISE + 40;
    /// u32: times that the monitor made it fall back.
    pub const TRIPS: u32 = NOISE + 44;
    /// i64: the last action since the program started, Q16; 0 if there was no answer.
    pub const ACTION: u32 = NOISE + 48;
    /// u32: the deployment that decided it.
    pub const SNAPSHOT: u32 = NOISE + 56;
    /// u32: 1 if the program asks a policy.
    pub const ASKS: u32 = NOISE + 60;

    /// i32 each: the cells of the program's histories.
    pub const HISTORY: u32 = NOISE + 64;
    /// What a decision works on: activations and sums. Private to whoever processes the flow's ACK.
    pub const SCRATCH: u32 = HISTORY + 4 * MAX_POLICY_INPUTS as u32;
    /// Size of a record; a multiple of the cache line.
    pub const BYTES: u32 = (SCRATCH + SCRATCH_BYTES as u32).next_multiple_of(64);
}

/// Records start at cache lines; loads and stores have 16-bit offsets.
const _: () = assert!(rec::BYTES.is_multiple_of(64) && rec::BYTES < i16::MAX as u32);

/// Offsets in the policy slots: one value that programs address directly.
pub mod policy {
    use super::{MAX_POLICY_SLOTS, TABLES_BYTES};
    use ccplane_infer::{BUFFERS, MAX_IMAGE_BYTES};

    /// u64 in a slot's block: which buffer plays which part, `ccplane_infer::Control`. Read once by each decision.
    pub const CONTROL: u32 = 0;
    /// u64: the code of the slot's shape; 0 while it is not defined.
    pub const SHAPE: u32 = 8;
    /// u64 each: when the buffer lost its part, microseconds of CLOCK_MONOTONIC. Only the agent looks at it.
    pub const RETIRED_US: u32 = 16;
    /// Size of a block; the blocks come first.
    pub const SLOT_BYTES: u32 = 64;
    /// The tables of activations.
    pub const TABLES: u32 = SLOT_BYTES * MAX_POLICY_SLOTS as u32;
    /// The images, [`BUFFERS`] for each slot.
    pub const IMAGES: u32 = (TABLES + TABLES_BYTES as u32).next_multiple_of(4096);
    /// Base-2 logarithm of an image's room.
    pub const IMAGE_SHIFT: u32 = MAX_IMAGE_BYTES.trailing_zeros();
    /// Size of it all.
    pub const BYTES: u32 = IMAGES + ((MAX_POLICY_SLOTS * BUFFERS * MAX_IMAGE_BYTES) as u32);

    const _: () = assert!(MAX_IMAGE_BYTES.is_power_of_two() && BUFFERS.is_power_of_two());
    const _: () = assert!(RETIRED_US as usize + 8 * BUFFERS <= SLOT_BYTES as usize);

    /// Where a slot's block is.
    pub fn slot(slot: u8) -> u32 {
        SLOT_BYTES * u32::from(slot)
    }
    /// Where the image in a slot's buffer is.
    pub fn image(slot: u8, buffer: u8) -> u32 {
        IMAGES + ((u32::from(slot) * BUFFERS as u32 + u32::from(buffer)) << IMAGE_SHIFT)
    }
}

/// Values of [`rec::STAGE_STATE`]. The agent takes EMPTY or READY to WRITING and then to READY; the dispatcher
/// takes READY to APPLYING, and the flow's program, which runs next, takes that to EMPTY. Neither side waits for
/// the other within an ACK: what cannot be claimed is left for the next one. A flow that starts on a used record
/// begins with EMPTY, so that a change meant for the flow before it is lost rather than applied.
pub mod stage {
    /// Nothing is staged.
    pub const EMPTY: u32 = 0;
    /// A change waits for the flow's next ACK.
    pub const READY: u32 = 1;
    /// The agent is writing one.
    pub const WRITING: u32 = 2;
    /// The kernel is applying one.
    pub const APPLYING: u32 = 3;
}

/// [`rec::STAGE_INSTANCE`] of a change that no program has a part in.
pub const NO_INSTANCE: u32 = 0;

/// [`rec::STAGE_SLOT`] of a flow that is handed to the native algorithm.
pub const STAGE_RELEASE: u32 = u32::MAX;

/// Values of [`rec::MODE`].
pub mod mode {
    /// The program decides.
    pub const PROGRAM: u32 = 0;
    /// The native algorithm: no program is set.
    pub const NO_PROGRAM: u32 = 1;
    /// The native algorithm: the agent is silent.
    pub const AGENT_SILENT: u32 = 2;
    /// The native algorithm: a policy had no answer.
    pub const POLICY: u32 = 3;
}

/// Bit of [`rec::FLAGS`]: a retransmission timeout happened.
pub const FLAG_TIMEOUT: i32 = 1;

/// Offsets in an event of the ring buffer.
pub mod event {
    /// u32: [`REPORT`], [`CREATED`] or [`CLOSED`].
    pub const KIND: u32 = 0;
    /// u32: the flow's report number.
    pub const SEQ: u32 = 4;
    /// u64: the flow's id; its low 16 bits are the record's index.
    pub const FLOW: u32 = 8;
    /// u32: the reporting program's instance.
    pub const INSTANCE: u32 = 16;
    /// u32: how many values follow.
    pub const LEN: u32 = 20;
    /// u64: the ACK's time, microseconds.
    pub const AT_US: u32 = 24;
    /// i64 each.
    pub const VALUES: u32 = 32;

    /// A program executed `(report)`.
    pub const REPORT: i32 = 1;
    /// A flow started.
    pub const CREATED: i32 = 2;
    /// A flow ended.
    pub const CLOSED: i32 = 3;
}

/// Bits of a flow id that hold its record's index.
pub const INDEX_BITS: u32 = 16;

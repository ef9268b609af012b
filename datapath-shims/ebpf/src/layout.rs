//! The memory that kernel programs and agent share: a control page, one record per flow, the policy slots, and the
//! events in the ring buffer.
//!
//! Offsets are in bytes; all words are little-endian and naturally aligned.

use ccplane_nn_codegen::bpf::{SCRATCH_BYTES, TABLES_BYTES};
use ccplane_program::ir::{MAX_POLICY_SLOTS, MAX_REGS};

/// Version of this layout, which changes with anything in this file, and with what the members in `tcp.rs` do.
///
/// A pinned datapath of another version is replaced.
pub const LAYOUT_VERSION: u64 = 10;

/// Programs that can be installed at once.
pub const MAX_PROGRAMS: usize = 64;
/// Bytes of the event ring.
pub const RING_BYTES: usize = 1 << 20;

/// Offsets in the control page.
///
/// Each ACK reads its first cache line, which only the agent writes.
pub mod ctl {
    /// u64: time of the agent's last heartbeat, microseconds of CLOCK_MONOTONIC.
    pub const HEARTBEAT_US: u32 = 0;
    /// u64: silence after which flows run the native algorithm, microseconds.
    pub const TIMEOUT_US: u32 = 8;
    /// u64: least time between two samples of a flow's statistics, microseconds.
    pub const SAMPLE_US: u32 = 16;

    /// u64: [`super::LAYOUT_VERSION`], at this offset in every version.
    pub const VERSION: u32 = 64;
    /// u32: the agent's process id.
    pub const AGENT_PID: u32 = 72;
    /// u32: records in the flow table.
    pub const MAX_FLOWS: u32 = 76;
    /// u32: 1 while the agent sleeps on the ring buffer and wants to be woken by the next event.
    pub const WAITING: u32 = 80;
    /// u32: one more than the processor on which an event last found the agent asleep; 0 before.
    pub const WAKER_CORE: u32 = 84;

    /// u64: counts flows, to make flow ids unique.
    pub const NEXT_FLOW: u32 = 128;
    /// u64: counts program installs, to make instances unique across restarts of the agent.
    pub const NEXT_INSTANCE: u32 = 136;
    /// u64: events that did not fit the ring buffer.
    pub const DROPPED: u32 = 144;
    /// u64: flows that found the table full.
    pub const TABLE_FULL: u32 = 152;
    /// Size of the page's used part.
    pub const BYTES: u32 = 160;
}

/// Offsets in a flow's record.
///
/// Each ACK touches its first cache line, besides the program's registers.
pub mod rec {
    use super::{MAX_REGS, SCRATCH_BYTES};
    use ccplane_program::ir::MAX_POLICY_INPUTS;

    /// u32: index of the flow's program in the program array, plus 1; 0 for none.
    pub const SLOT: u32 = 0;
    /// u32: who decides, a value of [`super::mode`].
    pub const MODE: u32 = 4;
    /// u32: state of the staged change, a value of [`super::stage`].
    pub const STAGE_STATE: u32 = 8;
    /// u32: 1 if a retransmission timeout has not been shown to the program yet.
    pub const FLAGS: u32 = 12;
    /// u32: `tp->sacked_out` after the last ACK.
    pub const LAST_SACKED: u32 = 16;
    /// u32: `tp->delivered_ce` after the last ACK.
    pub const LAST_CE: u32 = 20;
    /// u32: `tp->lost` after the last ACK.
    pub const LAST_LOST: u32 = 24;
    /// u32: number of reports so far.
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
    /// i64: the program's window when the kernel's last loss episode began, bytes; 0 when there is none to go back to.
    pub const UNDO_CWND: u32 = 88;
    /// u64: bit mask of the valid registers among the first 64 of `STAGE_REGS`.
    pub const STAGE_MASK: u32 = 96;
    /// i64: the staged window, bytes.
    pub const STAGE_CWND: u32 = 104;
    /// i64: the staged rate, bytes per second.
    pub const STAGE_RATE: u32 = 112;
    /// u32: the segment size that the program was told last, bytes.
    pub const PROGRAM_MSS: u32 = 120;
    /// u32: packets delivered since the kernel's recovery began.
    pub const PRR_DELIVERED: u32 = 124;

    /// u32: the congestion window, packets. First of the sampled statistics.
    pub const SND_CWND: u32 = 128;
    /// u32: the slow start threshold, packets.
    pub const SND_SSTHRESH: u32 = 132;
    /// u32: the segment size, bytes.
    pub const MSS: u32 = 136;
    /// u32: the smoothed RTT, microseconds, times 8 as the kernel keeps it.
    pub const SRTT_8US: u32 = 140;
    /// u32: the minimum RTT, microseconds; all ones before the first sample.
    pub const MIN_RTT_US: u32 = 144;
    /// u32: packets sent and not acknowledged.
    pub const PACKETS_OUT: u32 = 148;
    /// u64: the pacing rate, bytes per second.
    pub const PACING_RATE: u32 = 152;
    /// u64: bytes acknowledged since the start.
    pub const BYTES_ACKED: u32 = 160;
    /// u32: packets delivered since the start.
    pub const DELIVERED: u32 = 168;
    /// u32: packets lost since the start.
    pub const LOST: u32 = 172;
    /// u32: the slot to switch to; 0 to keep the program, [`super::STAGE_RELEASE`] for the native algorithm.
    pub const STAGE_SLOT: u32 = 176;
    /// u32: the instance that the staged change is meant for.
    pub const STAGE_INSTANCE: u32 = 180;
    /// u32: 1 if `STAGE_CWND` is valid, plus 2 if `STAGE_RATE` is.
    pub const STAGE_BITS: u32 = 184;
    /// u32: the installed program's uid, for readers of the table without the agent.
    pub const UID: u32 = 188;

    /// u32: the address family, AF_INET or AF_INET6. First of the fields that are fixed when the flow starts.
    pub const FAMILY: u32 = 192;
    /// u32: the local port, host order.
    pub const LOCAL_PORT: u32 = 196;
    /// u32: the remote port, host order.
    pub const REMOTE_PORT: u32 = 200;
    /// u32: the initial window, packets.
    pub const INIT_CWND: u32 = 204;
    /// The local address, 16 bytes in network order; an IPv4 address is in the first four.
    pub const LOCAL_ADDR: u32 = 208;
    /// The remote address, in the form of `LOCAL_ADDR`.
    pub const REMOTE_ADDR: u32 = 224;
    /// u64: the cgroup's id; 0 if unknown.
    pub const CGROUP: u32 = 240;
    /// u32: the segment size that the agent knows, bytes.
    pub const FIRST_MSS: u32 = 248;

    /// i64 each: staged register values.
    pub const STAGE_REGS: u32 = 256;
    /// i64 each: the program's registers.
    pub const REGS: u32 = STAGE_REGS + 8 * MAX_REGS as u32;

    /// u64: bit mask of the valid registers of `STAGE_REGS` from the 65th on.
    pub const STAGE_MASK_HIGH: u32 = REGS + 8 * MAX_REGS as u32;

    /// u64: state of the noise generator. First of the flow's policy state (`ccplane_infer::FlowPolicy`).
    pub const NOISE: u32 = STAGE_MASK_HIGH + 8;
    /// u32: the deployment that decided last; 0 for none.
    pub const DEPLOYMENT: u32 = NOISE + 8;
    /// u32: the buffer that held the deployment.
    pub const BUFFER: u32 = NOISE + 12;
    /// u32: how far the flow has fallen back (`ccplane_infer::Level`).
    pub const LEVEL: u32 = NOISE + 16;
    /// u32: the deployment from which it fell back.
    pub const LEVEL_UID: u32 = NOISE + 20;
    /// u32: the monitor's penalty.
    pub const PENALTY: u32 = NOISE + 24;
    /// u32: number of decisions.
    pub const DECISIONS: u32 = NOISE + 28;
    /// u32: decisions whose action was out of bounds.
    pub const SATURATED: u32 = NOISE + 32;
    /// u32: decisions on clipped inputs.
    pub const CLIPPED: u32 = NOISE + 36;
    /// u32: decisions that left the rate or window at its minimum.
    pub const COLLAPSED: u32 = NOISE + 40;
    /// u32: times that the monitor made the flow fall back.
    pub const TRIPS: u32 = NOISE + 44;
    /// i64: the last action since the program started, Q16; 0 if there was no answer.
    pub const ACTION: u32 = NOISE + 48;
    /// u32: the deployment that decided the last action.
    pub const SNAPSHOT: u32 = NOISE + 56;
    /// u32: 1 if the program asks a policy.
    pub const ASKS: u32 = NOISE + 60;

    /// i64: the flow's priority at its last decision about packets.
    pub const PRIORITY: u32 = NOISE + 64;
    /// i64: the number of the flow's path.
    pub const PATH: u32 = PRIORITY + 8;
    /// i64: the count of sent bytes from which on the program runs again.
    pub const DECIDE_AT: u32 = PRIORITY + 16;

    /// The name of the congestion control that the socket chose, 16 bytes with a zero at the end; fixed when the flow starts.
    pub const CHOSEN: u32 = PRIORITY + 24;

    /// i32 each: the cells of the program's histories.
    pub const HISTORY: u32 = CHOSEN + 16;
    /// Memory for a decision's activations and sums. Private to the processor that handles the flow's ACK.
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

    /// u64 in a slot's block: the control word (`ccplane_infer::Control`). Each decision reads it once.
    pub const CONTROL: u32 = 0;
    /// u64: the code of the slot's shape; 0 while it is not defined.
    pub const SHAPE: u32 = 8;
    /// u64 each: when the buffer lost its part, microseconds of CLOCK_MONOTONIC. Only the agent reads it.
    pub const RETIRED_US: u32 = 16;
    /// Size of a block; the blocks come first.
    pub const SLOT_BYTES: u32 = 64;
    /// The tables of activations.
    pub const TABLES: u32 = SLOT_BYTES * MAX_POLICY_SLOTS as u32;
    /// The images, [`BUFFERS`] for each slot.
    pub const IMAGES: u32 = (TABLES + TABLES_BYTES as u32).next_multiple_of(4096);
    /// Base-2 logarithm of an image's room.
    pub const IMAGE_SHIFT: u32 = MAX_IMAGE_BYTES.trailing_zeros();
    /// Size of the whole map.
    pub const BYTES: u32 = IMAGES + ((MAX_POLICY_SLOTS * BUFFERS * MAX_IMAGE_BYTES) as u32);

    const _: () = assert!(MAX_IMAGE_BYTES.is_power_of_two() && BUFFERS.is_power_of_two());
    const _: () = assert!(RETIRED_US as usize + 8 * BUFFERS <= SLOT_BYTES as usize);

    /// Offset of a slot's block.
    pub fn slot(slot: u8) -> u32 {
        SLOT_BYTES * u32::from(slot)
    }
    /// Offset of the image in a slot's buffer.
    pub fn image(slot: u8, buffer: u8) -> u32 {
        IMAGES + ((u32::from(slot) * BUFFERS as u32 + u32::from(buffer)) << IMAGE_SHIFT)
    }
}

/// Values of [`rec::STAGE_STATE`].
///
/// The agent takes EMPTY or READY to WRITING and then to READY; the dispatcher takes READY to APPLYING, and the flow's
/// program, which runs next, takes that to EMPTY. Neither side waits for the other within an ACK: what cannot be
/// claimed is left for the next one. A flow that starts on a used record begins with EMPTY. So a change meant for the
/// flow before it is lost rather than applied.
pub mod stage {
    /// No change is staged.
    pub const EMPTY: u32 = 0;
    /// A change waits for the flow's next ACK.
    pub const READY: u32 = 1;
    /// The agent is writing one.
    pub const WRITING: u32 = 2;
    /// The kernel is applying one.
    pub const APPLYING: u32 = 3;
}

/// [`rec::STAGE_INSTANCE`] of a change that concerns no program.
pub const NO_INSTANCE: u32 = 0;

/// [`rec::STAGE_SLOT`] of a flow that is handed to the native algorithm.
pub const STAGE_RELEASE: u32 = u32::MAX;

/// Values of [`rec::MODE`]: who decides for a flow.
pub mod mode {
    /// The flow's program decides.
    pub const PROGRAM: u32 = 0;
    /// The native algorithm decides: no program is set.
    pub const NO_PROGRAM: u32 = 1;
    /// The native algorithm decides: the agent is silent.
    pub const AGENT_SILENT: u32 = 2;
    /// The native algorithm decides: a policy had no answer.
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
    /// u32: the number of values that follow.
    pub const LEN: u32 = 20;
    /// u64: the ACK's time, microseconds.
    pub const AT_US: u32 = 24;
    /// i64 each: the values.
    pub const VALUES: u32 = 32;

    /// Event kind: a program executed `(report)`.
    pub const REPORT: i32 = 1;
    /// Event kind: a flow started.
    pub const CREATED: i32 = 2;
    /// Event kind: a flow ended.
    pub const CLOSED: i32 = 3;
}

/// Sizes that go with [`LAYOUT_VERSION`]: whoever changes one, in whatever crate, changes the version too.
const _: () = assert!(
    LAYOUT_VERSION == 10 && ctl::BYTES == 160 && rec::BYTES == 2944 && policy::BYTES == 2_203_648,
    "another layout is another version"
);

/// Bits of a flow id that hold its record's index.
pub const INDEX_BITS: u32 = 16;

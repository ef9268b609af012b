//! The layouts that the recorder's programs and this process share.

/// Open flows that are followed at once.
pub const MAX_OPEN_FLOWS: u32 = 1 << 16;
/// Size of a process's name in the kernel, bytes (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

/// An open flow, in the map whose key is its socket.
pub mod flow {
    /// u64: the flow's number within the recording.
    pub const ID: i16 = 0;
    /// u64: when the flow started.
    pub const START_NS: i16 = 8;
    /// u64: when a write returned or waited last.
    pub const LAST_NS: i16 = 16;
    /// u64: when the burst started; 0 without a burst.
    pub const BURST_START_NS: i16 = 24;
    /// u64: bytes of the burst so far.
    pub const BURST_BYTES: i16 = 32;
    /// u64: bytes written so far.
    pub const SENT: i16 = 40;
    /// The process's name, 16 bytes.
    pub const COMM: i16 = 48;
    /// u64: [`CONNECTED`] and [`NAMED`].
    pub const FLAGS: i16 = 64;
    /// Size of the whole.
    pub const BYTES: u32 = 72;
    /// The flag of a flow that this host opened.
    pub const CONNECTED: i32 = 1;
    /// The flag of a flow whose process is known.
    pub const NAMED: i32 = 2;
}

/// The counts.
pub mod ctl {
    /// u64: flows that have started.
    pub const STARTED: u32 = 0;
    /// u64: flows that found the map full.
    pub const MISSED_FLOWS: u32 = 8;
    /// u64: events that found the ring full.
    pub const LOST_EVENTS: u32 = 16;
    /// Size of the whole.
    pub const BYTES: u32 = 24;
}

/// A record in the ring.
pub mod event {
    /// u32: [`BURST`] or [`END`].
    pub const KIND: u32 = 0;
    /// u32: the flow's flags.
    pub const FLAGS: u32 = 4;
    /// u64: the flow's number within the recording.
    pub const FLOW: u32 = 8;
    /// u64: when the burst or the flow started.
    pub const START_NS: u32 = 16;
    /// u64: bytes of a burst, or those that a flow sent.
    pub const BYTES: u32 = 24;
    /// Size of a burst's record.
    pub const BURST_LEN: u32 = 32;
    /// u64: when the flow ended.
    pub const END_NS: u32 = 32;
    /// u64: bytes that arrived in order.
    pub const RECEIVED: u32 = 40;
    /// The process's name, 16 bytes.
    pub const COMM: u32 = 48;
    /// u32: the address family.
    pub const FAMILY: u32 = 64;
    /// u32: the local port.
    pub const LOCAL_PORT: u32 = 68;
    /// u32: the remote port.
    pub const REMOTE_PORT: u32 = 72;
    /// The local address, 4 or 16 bytes in network order.
    pub const LOCAL: u32 = 80;
    /// The remote address, 4 or 16 bytes in network order.
    pub const REMOTE: u32 = 96;
    /// Size of an ended flow's record.
    pub const END_LEN: u32 = 112;
    /// The kind of a burst that has ended.
    pub const BURST: u32 = 1;
    /// The kind of a flow that has ended.
    pub const END: u32 = 2;
}

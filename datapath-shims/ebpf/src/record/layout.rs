//! The layouts that the recorder's programs and this process share.

/// Open flows that are followed at once.
pub const MAX_OPEN_FLOWS: u32 = 1 << 16;
/// Size of a process's name in the kernel, bytes (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

/// An open flow, in the map whose key is its socket.
pub mod flow {
    pub const ID: i16 = 0;
    pub const START_NS: i16 = 8;
    /// When a write returned or waited last.
    pub const LAST_NS: i16 = 16;
    /// 0 without a burst.
    pub const BURST_START_NS: i16 = 24;
    pub const BURST_BYTES: i16 = 32;
    pub const SENT: i16 = 40;
    pub const COMM: i16 = 48;
    pub const FLAGS: i16 = 64;
    pub const BYTES: u32 = 72;
    /// The flag of a flow that this host opened.
    pub const CONNECTED: i32 = 1;
    /// The flag of a flow whose process is known.
    pub const NAMED: i32 = 2;
}

/// The counts.
pub mod ctl {
    pub const STARTED: u32 = 0;
    pub const MISSED_FLOWS: u32 = 8;
    pub const LOST_EVENTS: u32 = 16;
    pub const BYTES: u32 = 24;
}

/// A record in the ring.
pub mod event {
    pub const KIND: u32 = 0;
    pub const FLAGS: u32 = 4;
    pub const FLOW: u32 = 8;
    pub const START_NS: u32 = 16;
    /// Bytes of a burst, or those that a flow sent.
    pub const BYTES: u32 = 24;
    pub const BURST_LEN: u32 = 32;
    pub const END_NS: u32 = 32;
    pub const RECEIVED: u32 = 40;
    pub const COMM: u32 = 48;
    pub const FAMILY: u32 = 64;
    pub const LOCAL_PORT: u32 = 68;
    pub const REMOTE_PORT: u32 = 72;
    pub const LOCAL: u32 = 80;
    pub const REMOTE: u32 = 96;
    pub const END_LEN: u32 = 112;
    /// The kind of a burst that has ended.
    pub const BURST: u32 = 1;
    /// The kind of a flow that has ended.
    pub const END: u32 = 2;
}

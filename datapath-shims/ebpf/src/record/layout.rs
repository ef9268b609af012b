//! The layouts that the recorder's programs and this process share.

/// Open flows that are followed at once.
pub const MAX_OPEN_FLOWS: u32 = 1 << 16;
/// Size of a process's name in the kernel, bytes (`TASK_COMM_LEN`).
pub const COMM_BYTES: usize = 16;

/// An open flow, in the map whose key is its socket.
pub mod flow {
    /// Offset of the flow's number.
    pub const ID: i16 = 0;
    /// Offset of the time when the connection was established, nanoseconds.
    pub const START_NS: i16 = 8;
    /// When a write returned or waited last.
    pub const LAST_NS: i16 = 16;
    /// 0 without a burst.
    pub const BURST_START_NS: i16 = 24;
    /// Offset of the bytes that the open burst has.
    pub const BURST_BYTES: i16 = 32;
    /// Offset of the bytes that the application wrote so far.
    pub const SENT: i16 = 40;
    /// Offset of the process's name.
    pub const COMM: i16 = 48;
    /// Offset of the flags.
    pub const FLAGS: i16 = 64;
    /// Size of the record, bytes.
    pub const BYTES: u32 = 72;
    /// The flag of a flow that this host opened.
    pub const CONNECTED: i32 = 1;
    /// The flag of a flow whose process is known.
    pub const NAMED: i32 = 2;
}

/// The counts.
pub mod ctl {
    /// Offset of the number of flows that started.
    pub const STARTED: u32 = 0;
    /// Offset of the number of flows for which the map had no room.
    pub const MISSED_FLOWS: u32 = 8;
    /// Offset of the number of records for which the ring had no room.
    pub const LOST_EVENTS: u32 = 16;
    /// Size of the counts, bytes.
    pub const BYTES: u32 = 24;
}

/// A record in the ring.
pub mod event {
    /// Offset of the record's kind.
    pub const KIND: u32 = 0;
    /// Offset of the flow's flags.
    pub const FLAGS: u32 = 4;
    /// Offset of the flow's number.
    pub const FLOW: u32 = 8;
    /// Offset of the time when the burst or the flow began, nanoseconds.
    pub const START_NS: u32 = 16;
    /// Bytes of a burst, or those that a flow sent.
    pub const BYTES: u32 = 24;
    /// Size of a burst's record, bytes.
    pub const BURST_LEN: u32 = 32;
    /// Offset of the time when the flow ended, nanoseconds.
    pub const END_NS: u32 = 32;
    /// Offset of the bytes that the flow received.
    pub const RECEIVED: u32 = 40;
    /// Offset of the process's name.
    pub const COMM: u32 = 48;
    /// Offset of the address family.
    pub const FAMILY: u32 = 64;
    /// Offset of the local port.
    pub const LOCAL_PORT: u32 = 68;
    /// Offset of the remote port.
    pub const REMOTE_PORT: u32 = 72;
    /// Offset of the local address.
    pub const LOCAL: u32 = 80;
    /// Offset of the remote address.
    pub const REMOTE: u32 = 96;
    /// Size of a flow's last record, bytes.
    pub const END_LEN: u32 = 112;
    /// The kind of a burst that has ended.
    pub const BURST: u32 = 1;
    /// The kind of a flow that has ended.
    pub const END: u32 = 2;
}

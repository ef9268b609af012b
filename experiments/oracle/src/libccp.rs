//! The real libccp, driven through its C interface so that its clock is ours.

use std::cell::{Cell, RefCell};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use ::libccp::{Datapath, DatapathBuilder, DatapathOps, LibccpError};
use ccplane_program::ir::{Prim, RegId};
use ccplane_program::stock::{Stock, StockReg};
use ccplane_program::vm::Prims;

/// Blocks from this size on are fresh pages of the kernel; libccp's table of 1,024 flows is larger.
const FRESH_FROM_BYTES: c_int = 64 * 1024;

/// Starts a datapath of the libccp crate whose table of flows is empty.
///
/// The crate does not clear the table that it takes from `malloc`, so a reused block holds flows that never were.
pub fn datapath(ops: impl DatapathOps + 'static, id: u32) -> Result<Datapath, LibccpError> {
    // SAFETY: the call sets one number of the C library's allocator and takes no pointer.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, FRESH_FROM_BYTES) };
    DatapathBuilder::default().with_ops(ops).with_id(id).init()
}

/// Mirrors `struct ccp_primitives` of `ccp.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CcpPrimitives {
    bytes_acked: u32,
    packets_acked: u32,
    bytes_misordered: u32,
    packets_misordered: u32,
    ecn_bytes: u32,
    ecn_packets: u32,
    lost_pkts_sample: u32,
    was_timeout: bool,
    rtt_sample_us: u64,
    rate_outgoing: u64,
    rate_incoming: u64,
    bytes_in_flight: u32,
    packets_in_flight: u32,
    snd_cwnd: u32,
    snd_rate: u64,
    bytes_pending: u32,
}

impl CcpPrimitives {
    fn new(prims: &Prims, cwnd: u32, rate: u64) -> CcpPrimitives {
        let get = |p: Prim| prims.get(p);
        let get32 = |p: Prim| prims.get(p) as u32;
        let rtt_us = get(Prim::FlowRttSampleUs);
        CcpPrimitives {
            bytes_acked: get32(Prim::AckBytesAcked),
            packets_acked: get32(Prim::AckPacketsAcked),
            bytes_misordered: get32(Prim::AckBytesMisordered),
            packets_misordered: get32(Prim::AckPacketsMisordered),
            ecn_bytes: get32(Prim::AckEcnBytes),
            ecn_packets: get32(Prim::AckEcnPackets),
            lost_pkts_sample: get32(Prim::AckLostPktsSample),
            was_timeout: get(Prim::FlowWasTimeout) != 0,
            rtt_sample_us: if rtt_us == i64::MAX { 0 } else { rtt_us as u64 },
            rate_outgoing: get(Prim::FlowRateOutgoing) as u64,
            rate_incoming: get(Prim::FlowRateIncoming) as u64,
            bytes_in_flight: get32(Prim::FlowBytesInFlight),
            packets_in_flight: get32(Prim::FlowPacketsInFlight),
            snd_cwnd: cwnd,
            snd_rate: rate,
            bytes_pending: get32(Prim::FlowBytesPending),
        }
    }
}

/// Mirrors `struct ccp_datapath_info` of `ccp.h`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CcpDatapathInfo {
    init_cwnd: u32,
    mss: u32,
    src_ip: u32,
    src_port: u32,
    dst_ip: u32,
    dst_port: u32,
    cong_alg: [c_char; 64],
}

/// Mirrors `struct ccp_connection` of `ccp.h`.
#[repr(C)]
struct CcpConnection {
    index: u16,
    last_create_msg_sent: u64,
    prims: CcpPrimitives,
    flow_info: CcpDatapathInfo,
    state: *mut c_void,
    impl_: *mut c_void,
    datapath: *mut CcpDatapath,
}

/// Mirrors `struct ccp_datapath` of `ccp.h`.
#[repr(C)]
struct CcpDatapath {
    set_cwnd: extern "C" fn(*mut CcpConnection, u32),
    set_rate_abs: extern "C" fn(*mut CcpConnection, u32),
    send_msg: extern "C" fn(*mut CcpDatapath, *mut c_char, c_int) -> c_int,
    log: *const c_void,
    time_zero: u64,
    now: extern "C" fn() -> u64,
    since_usecs: extern "C" fn(u64) -> u64,
    after_usecs: extern "C" fn(u64) -> u64,
    max_connections: usize,
    ccp_active_connections: *mut CcpConnection,
    fto_us: u64,
    last_msg_sent: u64,
    in_fallback: bool,
    max_programs: usize,
    programs: *mut c_void,
    impl_: *mut c_void,
}

/// Registers of each kind (serialize.h).
const MAX_REPORT_REG: usize = 110;
const MAX_CONTROL_REG: usize = 110;
const MAX_IMPLICIT_REG: usize = 6;
const MAX_TMP_REG: usize = 8;
const MAX_LOCAL_REG: usize = 8;

/// The beginning of `struct ccp_priv_state` (ccp_priv.h): up to the end of its `struct register_file`.
#[repr(C)]
struct CcpPrivState {
    sent_create: bool,
    implicit_time_zero: u64,
    program_index: u16,
    staged_program_index: c_int,
    report: [u64; MAX_REPORT_REG],
    control: [u64; MAX_CONTROL_REG],
    implicit: [u64; MAX_IMPLICIT_REG],
    tmp: [u64; MAX_TMP_REG],
    local: [u64; MAX_LOCAL_REG],
}

unsafe extern "C" {
    fn ccp_init(datapath: *mut CcpDatapath, id: u32) -> c_int;
    fn ccp_free(datapath: *mut CcpDatapath);
    fn ccp_connection_start(
        datapath: *mut CcpDatapath,
        impl_: *mut c_void,
        info: *mut CcpDatapathInfo,
    ) -> *mut CcpConnection;
    fn ccp_connection_free(datapath: *mut CcpDatapath, sid: u16);
    fn ccp_read_msg(datapath: *mut CcpDatapath, buf: *mut c_char, len: c_int) -> c_int;
    fn ccp_invoke(conn: *mut CcpConnection) -> c_int;
}

/// Size of the table of programs.
pub const MAX_PROGRAMS: usize = 4;

/// The time when libccp is initialised, microseconds; not 0, which it takes for "never".
const TIME_ZERO_US: u64 = 1_000_000;

#[derive(Default)]
struct Sink {
    cwnd: Option<u32>,
    rate: Option<u32>,
    report: Option<Vec<u64>>,
}

// libccp's clock callbacks have no argument, so that what they return belongs to the thread.
thread_local! {
    static NOW_US: Cell<u64> = const { Cell::new(TIME_ZERO_US) };
    static SINK: RefCell<Sink> = RefCell::default();
    static AGENT_GONE: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn set_cwnd(_: *mut CcpConnection, cwnd: u32) {
    SINK.with_borrow_mut(|s| s.cwnd = Some(cwnd));
}
extern "C" fn set_rate(_: *mut CcpConnection, rate: u32) {
    SINK.with_borrow_mut(|s| s.rate = Some(rate));
}
extern "C" fn send_msg(_: *mut CcpDatapath, msg: *mut c_char, len: c_int) -> c_int {
    const MEASURE: u8 = 1;
    const HEADER_BYTES: usize = 16;
    if AGENT_GONE.get() {
        return -1;
    }
    // SAFETY: libccp passes a message that it has just serialised, and its length.
    let bytes = unsafe { std::slice::from_raw_parts(msg.cast::<u8>(), usize::try_from(len).unwrap_or(0)) };
    if bytes.first() == Some(&MEASURE) {
        let values = bytes.get(HEADER_BYTES..).unwrap_or_default().as_chunks::<8>().0;
        SINK.with_borrow_mut(|s| s.report = Some(values.iter().map(|v| u64::from_le_bytes(*v)).collect()));
    }
    0
}
extern "C" fn now() -> u64 {
    NOW_US.get()
}
extern "C" fn since_usecs(then: u64) -> u64 {
    NOW_US.get().wrapping_sub(then)
}
extern "C" fn after_usecs(usecs: u64) -> u64 {
    NOW_US.get().wrapping_add(usecs)
}

/// The result and the side effects of one invocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Invocation {
    /// libccp's return value; 0 is success, the rest is in ccp_error.h.
    pub code: i32,
    /// The window that the invocation set, bytes.
    pub cwnd: Option<u32>,
    /// The rate that the invocation set, bytes per second.
    pub rate: Option<u32>,
    /// The report it sent.
    pub report: Option<Vec<u64>>,
}

/// One libccp datapath with one flow.
pub struct Libccp {
    datapath: Box<CcpDatapath>,
    conn: *mut CcpConnection,
    // Points into `datapath` and is pointed to by it.
    _connections: Box<[CcpConnection]>,
}

impl Libccp {
    /// A datapath with room for a few programs. Only one may live on a thread at a time.
    pub fn new() -> Libccp {
        NOW_US.set(TIME_ZERO_US);
        AGENT_GONE.set(false);
        let info = CcpDatapathInfo {
            init_cwnd: 14480,
            mss: 1448,
            src_ip: 1,
            src_port: 2,
            dst_ip: 3,
            dst_port: 4,
            cong_alg: [0; 64],
        };
        let mut connections = Box::new([CcpConnection {
            index: 0,
            last_create_msg_sent: 0,
            prims: CcpPrimitives::default(),
            flow_info: info,
            state: ptr::null_mut(),
            impl_: ptr::null_mut(),
            datapath: ptr::null_mut(),
        }]);
        let mut datapath = Box::new(CcpDatapath {
            set_cwnd,
            set_rate_abs: set_rate,
            send_msg,
            log: ptr::null(),
            time_zero: 0,
            now,
            since_usecs,
            after_usecs,
            max_connections: 1,
            ccp_active_connections: connections.as_mut_ptr(),
            fto_us: 1_000_000,
            last_msg_sent: 0,
            in_fallback: false,
            max_programs: MAX_PROGRAMS,
            programs: ptr::null_mut(),
            impl_: ptr::null_mut(),
        });
        // SAFETY: the structures are complete and, being boxed, do not move as long as `self` lives.
        let conn = unsafe {
            assert_eq!(ccp_init(&mut *datapath, 0), 0, "ccp_init");
            ccp_connection_start(&mut *datapath, ptr::null_mut(), &mut { info })
        };
        assert!(!conn.is_null(), "ccp_connection_start");
        Libccp { datapath, conn, _connections: connections }
    }

    fn message(&mut self, kind: u16, sid: u32, payload: &[u8]) -> i32 {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_le_bytes());
        bytes.extend((payload.len() as u16 + 8).to_le_bytes());
        bytes.extend(sid.to_le_bytes());
        bytes.extend(payload);
        // SAFETY: the buffer holds a whole message of the length given.
        unsafe { ccp_read_msg(&mut *self.datapath, bytes.as_mut_ptr().cast(), bytes.len() as c_int) }
    }

    /// Takes one whole message as an agent sends it; returns libccp's code. The flow's number is 1.
    ///
    /// # Panics
    /// If there is not even a header.
    pub fn receive(&mut self, message: &[u8]) -> i32 {
        const HEADER_BYTES: usize = 8;
        assert!(message.len() >= HEADER_BYTES);
        let mut bytes = message.to_vec();
        // SAFETY: the buffer holds a header, whose length libccp compares with the buffer's.
        unsafe { ccp_read_msg(&mut *self.datapath, bytes.as_mut_ptr().cast(), bytes.len() as c_int) }
    }

    /// Sends INSTALL with these counts and bytes; returns libccp's code.
    pub fn install_raw(&mut self, uid: u32, expressions: u32, instructions: u32, program: &[u8]) -> i32 {
        let mut payload = Vec::new();
        for word in [uid, expressions, instructions] {
            payload.extend(word.to_le_bytes());
        }
        payload.extend(program);
        self.message(2, 0, &payload)
    }

    /// Installs a program; returns libccp's code.
    pub fn install(&mut self, uid: u32, stock: &Stock) -> i32 {
        self.install_raw(uid, stock.num_expressions(), stock.num_instructions(), stock.bytes())
    }

    /// Makes the flow run program `uid` from its next ACK on, with these fields set; returns libccp's code.
    pub fn change_program(&mut self, uid: u32, fields: &[(StockReg, u64)]) -> i32 {
        let mut payload = Vec::new();
        payload.extend(uid.to_le_bytes());
        payload.extend((fields.len() as u32).to_le_bytes());
        payload.extend(update_bytes(fields));
        self.message(4, 1, &payload)
    }

    /// Sets fields of the running program at the next ACK; returns libccp's code.
    pub fn update(&mut self, fields: &[(StockReg, u64)]) -> i32 {
        let mut payload = (fields.len() as u32).to_le_bytes().to_vec();
        payload.extend(update_bytes(fields));
        self.message(3, 1, &payload)
    }

    /// Runs the flow's program on one ACK, given the datapath's window and rate before it. `Ack.now` counts from
    /// when libccp was initialised. Values that libccp's fields do not hold are cut.
    pub fn invoke(&mut self, prims: &Prims, cwnd: u32, rate: u64) -> Invocation {
        NOW_US.set(TIME_ZERO_US + prims.get(Prim::AckNow) as u64);
        SINK.take();
        let prims = CcpPrimitives::new(prims, cwnd, rate);
        // SAFETY: `conn` points into the connection table, which lives as long as `self`.
        let code = unsafe {
            (*self.conn).prims = prims;
            ccp_invoke(self.conn)
        };
        let sink = SINK.take();
        Invocation { code, cwnd: sink.cwnd, rate: sink.rate, report: sink.report }
    }

    /// Whether sending to the agent fails from now on.
    pub fn set_agent_gone(&mut self, gone: bool) {
        AGENT_GONE.set(gone);
    }

    /// Returns the value of one of the flow's registers; `None` for an index that is no register.
    pub fn register(&self, reg: StockReg) -> Option<u64> {
        // SAFETY: libccp allocated the state when the connection started, and frees it with the connection.
        let state = unsafe { &*(*self.conn).state.cast::<CcpPrivState>() };
        let file: &[u64] = match reg.kind {
            0 | 8 => &state.control,
            2 => &state.implicit,
            3 => &state.local,
            5 | 6 => &state.report,
            7 => &state.tmp,
            _ => return None,
        };
        file.get(reg.index as usize).copied()
    }

    /// Times `ccp_invoke` over `times` invocations on these ACKs in turn, `gap_us` apart. Each starts from the window
    /// that the one before left. Returns the nanoseconds of one, the last code that was not 0, and the window at the
    /// end.
    pub fn time(&mut self, acks: &[Prims], gap_us: u64, times: u32, mut cwnd: u32) -> (f64, i32, u32) {
        let acks: Vec<_> =
            acks.iter().map(|p| (p.get(Prim::AckNow) as u64, CcpPrimitives::new(p, 0, 0))).collect();
        let mut code = 0;
        let start = std::time::Instant::now();
        for n in 0..u64::from(times) {
            let (now_us, prims) = acks[n as usize % acks.len()];
            NOW_US.set(TIME_ZERO_US + now_us + n * gap_us);
            // SAFETY: as in `invoke`.
            let result = unsafe {
                (*self.conn).prims = CcpPrimitives { snd_cwnd: cwnd, ..prims };
                ccp_invoke(self.conn)
            };
            if result != 0 {
                code = result;
            }
            cwnd = SINK.with_borrow(|s| s.cwnd).unwrap_or(cwnd);
        }
        (start.elapsed().as_nanos() as f64 / f64::from(times), code, cwnd)
    }
}

impl Default for Libccp {
    fn default() -> Self {
        Libccp::new()
    }
}

impl Drop for Libccp {
    fn drop(&mut self) {
        // SAFETY: both were set up in `new` and are freed once.
        unsafe {
            ccp_connection_free(&mut *self.datapath, 1);
            ccp_free(&mut *self.datapath);
        }
    }
}

/// Encodes `struct UpdateField[]` of `serialize.h`.
fn update_bytes(fields: &[(StockReg, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (reg, value) in fields {
        bytes.push(reg.kind);
        bytes.extend(reg.index.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

/// The register of this name as an update names it.
///
/// # Panics
/// If the agent may not update it.
pub fn update_reg(stock: &Stock, reg: Option<RegId>) -> StockReg {
    match reg.and_then(|r| stock.update_reg(r)) {
        Some(reg) => reg,
        None => panic!("register {reg:?} cannot be updated"),
    }
}

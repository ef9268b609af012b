//! The only file that calls into C: DPDK's ports, queues and packet buffers as types that cannot be misused.

use std::cell::OnceCell;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Frames that one receive call takes, at most.
pub(crate) const BURST: usize = 64;
/// Frames that may wait in [`Tx`] for room in the port's ring.
pub(crate) const BACKLOG: usize = 256;
/// Buffers fetched from the pool at once.
const FETCH: usize = 32;
/// Longest log message of DPDK that an error quotes, bytes.
const SAID_BYTES: usize = 4096;

/// The IPv4 header's checksum is verified (received) or to be filled in (sent). These bits are shim.c's, too.
pub(crate) const SUM_IP: u8 = 1;
/// The UDP or ICMPv6 checksum is verified or to be filled in.
pub(crate) const SUM_UDP: u8 = 2;
/// The packet is IPv6.
pub(crate) const IS_V6: u8 = 4;
/// A checksum was found wrong.
pub(crate) const SUM_BAD: u8 = 8;
/// The frame continues in another buffer.
pub(crate) const IS_CUT: u8 = 16;

/// A packet buffer, `struct rte_mbuf`.
enum Mbuf {}
/// A pool of packet buffers, `struct rte_mempool`.
enum Mempool {}

/// The capabilities of a port, `struct ccpd_info`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Info {
    pub rx_queues: u16,
    pub tx_queues: u16,
    pub mtu_bytes: u16,
    pub mac: [u8; 6],
    pub rx_offloads: u8,
    pub tx_offloads: u8,
}

unsafe extern "C" {
    fn ccpd_start(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn ccpd_log_take(text: *mut c_char, bytes: usize);
    fn ccpd_interface_mtu(name: *const c_char) -> c_int;
    fn ccpd_interface_runs(fd: c_int, name: *const c_char) -> c_int;
    fn ccpd_info(port: u16, info: *mut Info) -> c_int;
    fn ccpd_configure(port: u16, queues: u16) -> c_int;
    fn ccpd_queue(port: u16, queue: u16, mbufs: c_uint, room: u16, pool: *mut *mut Mempool) -> c_int;
    fn ccpd_run(port: u16) -> c_int;
    fn ccpd_close(port: u16);
    fn ccpd_link_up(port: u16) -> c_int;
    fn ccpd_receive(
        port: u16,
        queue: u16,
        mbufs: *mut *mut Mbuf,
        data: *mut *mut u8,
        bytes: *mut u16,
        hints: *mut u8,
        n: c_uint,
    ) -> c_uint;
    fn ccpd_alloc(pool: *mut Mempool, mbufs: *mut *mut Mbuf, data: *mut *mut u8, n: c_uint) -> c_int;
    fn ccpd_free(mbufs: *mut *mut Mbuf, n: c_uint);
    fn ccpd_dress(mbuf: *mut Mbuf, bytes: u16, hints: u8);
    fn ccpd_send(port: u16, queue: u16, mbufs: *mut *mut Mbuf, n: c_uint) -> c_uint;
    // DPDK exports these as they are.
    fn rte_eal_hotplug_add(bus: *const c_char, name: *const c_char, args: *const c_char) -> c_int;
    fn rte_eal_hotplug_remove(bus: *const c_char, name: *const c_char) -> c_int;
    fn rte_eth_dev_get_port_by_name(name: *const c_char, port: *mut u16) -> c_int;
    fn rte_mempool_free(pool: *mut c_void);
    fn rte_thread_register() -> c_int;
    fn rte_thread_unregister();
}

/// An errno that DPDK returned.
pub(crate) type Refusal = nix::errno::Errno;

fn checked(result: c_int) -> Result<(), Refusal> {
    if result < 0 { Err(Refusal::from_raw(result.saturating_neg())) } else { Ok(()) }
}

/// Starts the environment abstraction layer on the calling thread, which becomes its main one. Once a process.
pub(crate) fn start(args: Vec<CString>) -> Result<(), Refusal> {
    let mut argv: Vec<*mut c_char> = args.into_iter().map(CString::into_raw).collect();
    let argc = c_int::try_from(argv.len()).unwrap_or(c_int::MAX);
    argv.push(null_mut());
    // SAFETY: `argv` is `argc` C strings and a null, as main's; the strings are leaked, because DPDK may keep them.
    checked(unsafe { ccpd_start(argc, argv.as_mut_ptr()) })
}

/// Takes the messages that DPDK has logged since the last call.
pub(crate) fn take_log() -> String {
    let mut text = [0_u8; SAID_BYTES];
    // SAFETY: `text` has room for the bytes it is said to have; a terminating NUL is among those written.
    unsafe { ccpd_log_take(text.as_mut_ptr().cast(), text.len()) };
    CStr::from_bytes_until_nul(&text).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The MTU of an interface of the calling thread's network namespace, bytes; `None` if there is no such interface.
pub(crate) fn interface_mtu_bytes(name: &CStr) -> Option<u16> {
    // SAFETY: `name` is a C string.
    let mtu = unsafe { ccpd_interface_mtu(name.as_ptr()) };
    u32::try_from(mtu).ok().map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Whether an interface in the namespace of `socket` is up and has a carrier.
pub(crate) fn interface_runs(socket: BorrowedFd<'_>, name: &CStr) -> bool {
    // SAFETY: `name` is a C string, and the socket is open.
    unsafe { ccpd_interface_runs(socket.as_raw_fd(), name.as_ptr()) == 1 }
}

/// A thread's registration with DPDK, which gives it a cache of packet buffers.
struct Place;

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: called on the thread that registered itself.
        unsafe { rte_thread_unregister() };
    }
}

/// Registers the calling thread with DPDK; if there is no place left, it works without a cache.
fn enter_thread() {
    thread_local! {
        static PLACE: OnceCell<Option<Place>> = const { OnceCell::new() };
    }
    PLACE.with(|place| {
        // SAFETY: EAL runs, or there would be no device whose queue this thread asks.
        place.get_or_init(|| (unsafe { rte_thread_register() } == 0).then_some(Place));
    });
}

/// Locks the control of ports: only one thread at a time may make, start or close one, in DPDK and its drivers.
fn control() -> MutexGuard<'static, ()> {
    static CONTROL: Mutex<()> = Mutex::new(());
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that runs from [`Device::run`] until it is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    port: u16,
    /// The device's name, if it was plugged in here.
    plugged: Option<CString>,
    running: bool,
    pools: Vec<NonNull<Mempool>>,
}

// SAFETY: a port is a number, and DPDK's control functions on it are called with `&mut` or in `drop` only, but for the
// link's state, which any thread may ask. Pools may be used by all threads.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Makes a virtual port, whose `name` begins with its driver's.
    pub fn plug(name: CString, args: &CStr) -> Result<Device, Refusal> {
        let plugging = control();
        // SAFETY: three C strings.
        checked(unsafe { rte_eal_hotplug_add(c"vdev".as_ptr(), name.as_ptr(), args.as_ptr()) })?;
        drop(plugging);
        let mut device = Device { port: 0, plugged: Some(name.clone()), running: false, pools: Vec::new() };
        device.port = Device::find(&name)?.port;
        Ok(device)
    }

    /// Finds a port that EAL discovered when it started.
    pub fn find(name: &CStr) -> Result<Device, Refusal> {
        let mut port = 0;
        // SAFETY: a C string, and a place for the number.
        checked(unsafe { rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut port) })?;
        Ok(Device { port, plugged: None, running: false, pools: Vec::new() })
    }

    pub fn info(&self) -> Result<Info, Refusal> {
        let mut info = Info::default();
        // SAFETY: the port is there; `info` is laid out as C's.
        checked(unsafe { ccpd_info(self.port, &raw mut info) }).map(|()| info)
    }

    /// Sets up the queues, each with its own pool of `mbufs` buffers of `room` bytes, and starts the port.
    pub fn run(&mut self, queues: u16, mbufs: u32, room: u16) -> Result<(), Refusal> {
        let _alone = control();
        // SAFETY: the port is there, and was not started yet: `Port::open` does so once.
        checked(unsafe { ccpd_configure(self.port, queues) })?;
        self.running = true;
        for queue in 0..queues {
            let mut pool = null_mut();
            // SAFETY: the port is configured with that many queues; `pool` has room for the pointer.
            let done = checked(unsafe { ccpd_queue(self.port, queue, mbufs, room, &raw mut pool) });
            self.pools.extend(NonNull::new(pool));
            done?;
        }
        // SAFETY: the port is configured, and all its queues are.
        checked(unsafe { ccpd_run(self.port) })
    }

    pub fn is_up(&self) -> bool {
        // SAFETY: the port is there.
        unsafe { ccpd_link_up(self.port) == 1 }
    }

    fn pool(&self, queue: u16) -> *mut Mempool {
        self.pools.get(usize::from(queue)).map_or(null_mut(), |pool| pool.as_ptr())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _alone = control();
        // SAFETY: nobody else holds the port: queues share its ownership. Buffers of its pools are in no queue any more.
        unsafe {
            if self.running {
                ccpd_close(self.port);
            }
            if let Some(name) = &self.plugged {
                rte_eal_hotplug_remove(c"vdev".as_ptr(), name.as_ptr());
            }
            for pool in self.pools.drain(..) {
                rte_mempool_free(pool.as_ptr().cast());
            }
        }
    }
}

/// The receiving side of a queue, which holds one burst at a time.
pub(crate) struct Rx {
    mbufs: [*mut Mbuf; BURST],
    data: [*mut u8; BURST],
    bytes: [u16; BURST],
    hints: [u8; BURST],
    count: usize,
    /// Index of the next frame to hand out.
    at: usize,
    queue: u16,
    device: Arc<Device>,
}

// SAFETY: the buffers are this side's own, and it is used by one thread at a time.
unsafe impl Send for Rx {}

impl Rx {
    pub fn new(device: &Arc<Device>, queue: u16) -> Rx {
        let (mbufs, data) = ([null_mut(); BURST], [null_mut(); BURST]);
        let (bytes, hints) = ([0; BURST], [0; BURST]);
        Rx { mbufs, data, bytes, hints, count: 0, at: 0, queue, device: device.clone() }
    }

    /// Whether a frame is available, from the last burst or a new one.
    pub fn fill(&mut self) -> bool {
        if self.at < self.count {
            return true;
        }
        self.free();
        enter_thread();
        let (mbufs, data) = (self.mbufs.as_mut_ptr(), self.data.as_mut_ptr());
        let (bytes, hints) = (self.bytes.as_mut_ptr(), self.hints.as_mut_ptr());
        // SAFETY: the port runs and has that queue, of which this is the only receiver; all four arrays are BURST long.
        let got =
            unsafe { ccpd_receive(self.device.port, self.queue, mbufs, data, bytes, hints, BURST as c_uint) };
        self.count = (got as usize).min(BURST);
        self.count > 0
    }

    /// Takes the next frame of the burst with its hints.
    pub fn next(&mut self) -> Option<(&[u8], u8)> {
        let at = self.at;
        (at < self.count).then(|| {
            self.at += 1;
            // SAFETY: the driver wrote that many bytes there, and the buffer is ours until `free`, which needs `&mut self`.
            let frame = unsafe { std::slice::from_raw_parts(self.data[at], usize::from(self.bytes[at])) };
            (frame, self.hints[at])
        })
    }

    fn free(&mut self) {
        // SAFETY: the first `count` buffers came from the port and were not freed yet.
        unsafe { ccpd_free(self.mbufs.as_mut_ptr(), self.count as c_uint) };
        (self.count, self.at) = (0, 0);
    }
}

impl Drop for Rx {
    fn drop(&mut self) {
        self.free();
    }
}

/// The sending side of a queue: frames are written into buffers, kept in order, and given to the port as it has room.
pub(crate) struct Tx {
    spare: [*mut Mbuf; FETCH],
    data: [*mut u8; FETCH],
    spares: usize,
    ready: [*mut Mbuf; BACKLOG],
    count: usize,
    room: usize,
    queue: u16,
    device: Arc<Device>,
}

// SAFETY: the buffers are this side's own, and it is used by one thread at a time.
unsafe impl Send for Tx {}

impl Tx {
    pub fn new(device: &Arc<Device>, queue: u16, room: usize) -> Tx {
        let (spare, data, ready) = ([null_mut(); FETCH], [null_mut(); FETCH], [null_mut(); BACKLOG]);
        Tx { spare, data, spares: 0, ready, count: 0, room, queue, device: device.clone() }
    }

    /// Frames that wait for the port.
    pub fn waiting(&self) -> usize {
        self.count
    }

    /// Queues a frame: `write` fills the buffer and returns the length and hints. False if there is no buffer, or
    /// nothing was written.
    pub fn push(&mut self, write: impl FnOnce(&mut [u8]) -> Option<(usize, u8)>) -> bool {
        if self.count == BACKLOG || !self.has_spare() {
            return false;
        }
        let at = self.spares - 1;
        // SAFETY: a buffer of the pool has `room` bytes behind its headroom, and is ours.
        let frame = unsafe { std::slice::from_raw_parts_mut(self.data[at], self.room) };
        let Some((bytes, hints)) = write(frame) else { return false };
        // SAFETY: as above; no more bytes than there are.
        unsafe { ccpd_dress(self.spare[at], bytes.min(self.room) as u16, hints) };
        self.ready[self.count] = self.spare[at];
        (self.spares, self.count) = (at, self.count + 1);
        true
    }

    /// Gives the port as many frames as it takes.
    pub fn flush(&mut self) {
        if self.count == 0 {
            return;
        }
        let mut sent = 0;
        while sent < self.count {
            let (rest, n) = (self.ready[sent..].as_mut_ptr(), (self.count - sent) as c_uint);
            // SAFETY: the port runs and has that queue, of which this is the only sender; `n` buffers of ours lie there.
            let took = unsafe { ccpd_send(self.device.port, self.queue, rest, n) } as usize;
            if took == 0 {
                break;
            }
            sent += took.min(self.count - sent);
        }
        self.ready.copy_within(sent..self.count, 0);
        self.count -= sent;
    }

    fn has_spare(&mut self) -> bool {
        if self.spares == 0 {
            enter_thread();
            let (spare, data) = (self.spare.as_mut_ptr(), self.data.as_mut_ptr());
            // SAFETY: the device keeps its pools as long as it lives; both arrays are FETCH long.
            let failed = unsafe { ccpd_alloc(self.device.pool(self.queue), spare, data, FETCH as c_uint) };
            self.spares = if failed == 0 { FETCH } else { 0 };
        }
        self.spares > 0
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        // SAFETY: these are ours: fetched and not written, or written and not taken by the port.
        unsafe {
            ccpd_free(self.spare.as_mut_ptr(), self.spares as c_uint);
            ccpd_free(self.ready.as_mut_ptr(), self.count as c_uint);
        }
    }
}

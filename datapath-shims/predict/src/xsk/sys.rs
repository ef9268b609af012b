//! The system calls and shared rings of AF_XDP; all of this module's `unsafe`.
//!
//! Rings are the kernel's (Documentation/networking/af_xdp.rst): each has one producer and one consumer, whose positions only grow.
#![allow(unsafe_code)]

use ccplane_bpf::{self as bpf, AttachTo, MapType, ProgType, ProgramLink, XDP, XdpMode};
use ccplane_nn_codegen::asm::Insn;
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a frame's memory.
pub const FRAME_BYTES: usize = 2048;
/// The name of the map and the program.
const NAME: &str = "ccp_xsk";

/// Creates a map from receive queues to AF_XDP sockets.
pub fn socket_map(queues: u32) -> io::Result<OwnedFd> {
    bpf::map_create(MapType::XskMap, NAME, 4, 4, queues, 0)
}

/// Puts a socket into the map.
pub fn set_socket(map: &OwnedFd, queue: u32, socket: &OwnedFd) -> io::Result<()> {
    bpf::map_update(map, &queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
}

/// Loads an XDP program.
pub fn load(program: &[Insn]) -> io::Result<OwnedFd> {
    let to = AttachTo { btf_id: 0, expected: XDP };
    bpf::prog_load(ProgType::Xdp, NAME, program, to).map_err(|refused| refused.errno)
}

/// Attaches a program to an interface; dropping the link detaches it.
pub fn attach(program: &OwnedFd, interface: u32) -> io::Result<ProgramLink> {
    bpf::link_xdp(program, interface, XdpMode::Any)
}

/// The number of an interface.
pub fn interface(name: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the name ends with 0 and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        number => Ok(number),
    }
}

/// Opens an AF_XDP socket.
pub fn open() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: the kernel has just given us this descriptor.
    if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd) }) }
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (fd, bytes) = (socket.as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is live and of the length given.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_XDP, option, (&raw const *value).cast(), bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Memory mapped from the kernel or shared with it.
struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(bytes: usize, flags: libc::c_int, fd: RawFd, offset: libc::off_t) -> io::Result<Mapping> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, rights, flags, fd, offset) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Mapping { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// The memory that frames are received to and sent from.
pub struct Frames {
    memory: Mapping,
    count: usize,
}

impl Frames {
    /// Makes room for so many frames and tells the socket.
    pub fn new(socket: &OwnedFd, count: usize) -> io::Result<Frames> {
        let bytes = count * FRAME_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let memory = Mapping::new(bytes, flags, -1, 0)?;
        let region = libc::xdp_umem_reg_v1 {
            addr: memory.start.as_ptr() as usize as u64,
            len: bytes as u64,
            chunk_size: FRAME_BYTES as u32,
            headroom: 0,
        };
        set(socket, libc::XDP_UMEM_REG, &region)?;
        Ok(Frames { memory, count })
    }

    /// The bytes from an address to the end of its frame; none if there is no such frame. The caller owns the frame: the kernel has
    /// given it, and has not got it back.
    pub fn get(&mut self, address: u64) -> &mut [u8] {
        let address = address as usize;
        if address >= self.count * FRAME_BYTES {
            return &mut [];
        }
        let bytes = FRAME_BYTES - address % FRAME_BYTES;
        // SAFETY: the range lies within the mapping, in one frame; `&mut self` makes it the only one.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr().cast::<u8>().add(address), bytes) }
    }
}

/// One of a socket's rings, of which this end is the producer or the consumer.
pub struct Ring<T> {
    mapping: Mapping,
    producer: usize,
    consumer: usize,
    flags: usize,
    elements: usize,
    size: u32,
    kind: PhantomData<T>,
}

/// The offsets of a socket's rings in their mappings.
pub type Offsets = libc::xdp_mmap_offsets;

/// Asks for the offsets.
pub fn offsets(socket: &OwnedFd) -> io::Result<Offsets> {
    // SAFETY: a structure of integers, for which zeros are valid.
    let mut offsets: Offsets = unsafe { std::mem::zeroed() };
    let mut bytes = size_of::<Offsets>() as libc::socklen_t;
    let (fd, option) = (socket.as_raw_fd(), libc::XDP_MMAP_OFFSETS);
    // SAFETY: both pointers are to live memory of the lengths given.
    let done =
        unsafe { libc::getsockopt(fd, libc::SOL_XDP, option, (&raw mut offsets).cast(), &raw mut bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(offsets) }
}

/// Sets the size of a socket's ring.
pub fn size_ring(socket: &OwnedFd, option: libc::c_int, size: u32) -> io::Result<()> {
    set(socket, option, &size)
}

impl<T: Copy> Ring<T> {
    /// Maps a ring whose size, a power of two, was set.
    pub fn new(socket: &OwnedFd, page: u64, at: &libc::xdp_ring_offset, size: u32) -> io::Result<Ring<T>> {
        let bytes = at.desc as usize + size as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let mapping = Mapping::new(bytes, flags, socket.as_raw_fd(), page as libc::off_t)?;
        Ok(Ring {
            mapping,
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags: at.flags as usize,
            elements: at.desc as usize,
            size,
            kind: PhantomData,
        })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the kernel has put an aligned word there, which both ends use by atomic operations alone.
        unsafe { AtomicU32::from_ptr(self.mapping.start.as_ptr().cast::<u8>().add(at).cast()) }
    }

    fn element(&self, position: u32) -> *mut T {
        let n = (position & (self.size - 1)) as usize;
        // SAFETY: the element lies within the mapping, whose length follows from the ring's size.
        unsafe { self.mapping.start.as_ptr().cast::<u8>().add(self.elements).cast::<T>().add(n) }
    }

    /// Appends as many elements as there is room for; returns how many.
    pub fn produce(&mut self, elements: &[T]) -> usize {
        let end = self.word(self.producer).load(Ordering::Relaxed);
        let start = self.word(self.consumer).load(Ordering::Acquire);
        let room = (self.size - end.wrapping_sub(start)) as usize;
        let count = elements.len().min(room);
        for (n, element) in elements.iter().enumerate().take(count) {
            // SAFETY: the kernel reads this element only after the store below.
            unsafe { self.element(end.wrapping_add(n as u32)).write(*element) };
        }
        self.word(self.producer).store(end.wrapping_add(count as u32), Ordering::Release);
        count
    }

    /// Takes the elements that are there, oldest first, at most so many.
    pub fn consume(&mut self, most: usize, mut each: impl FnMut(T)) -> usize {
        let start = self.word(self.consumer).load(Ordering::Relaxed);
        let end = self.word(self.producer).load(Ordering::Acquire);
        let count = (end.wrapping_sub(start) as usize).min(most).min(self.size as usize);
        for n in 0..count {
            // SAFETY: the kernel has written this element before it moved its end, and writes it again only after the store
            // below.
            each(unsafe { self.element(start.wrapping_add(n as u32)).read() });
        }
        self.word(self.consumer).store(start.wrapping_add(count as u32), Ordering::Release);
        count
    }

    /// Whether the kernel has to be woken to look at the ring.
    pub fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Binds a socket to a queue of an interface, by copying frames.
pub fn bind(socket: &OwnedFd, interface: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let bytes = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address is live and of the length given.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has the kernel send what waits in the ring.
pub fn kick(socket: &OwnedFd) -> io::Result<()> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: nothing is sent from memory: the pointers are null and the lengths 0.
    let done = unsafe { libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, flags, std::ptr::null(), 0) };
    if done >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let is_passing = matches!(
        error.raw_os_error(),
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN)
    );
    if is_passing { Ok(()) } else { Err(error) }
}

/// Waits until a frame has come or the time is over.
pub fn wait(socket: &OwnedFd, timeout_ms: i32) -> io::Result<()> {
    let mut ready = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live structure.
    if unsafe { libc::poll(&raw mut ready, 1, timeout_ms) } >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

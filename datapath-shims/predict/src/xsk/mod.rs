//! Server and client over an AF_XDP socket: an XDP program hands datagrams to one UDP port to this process, all others go on to the
//! kernel.
//!
//! A server's reply leaves in the memory that its request came in. The kernel answers for the interface's addresses (ARP, neighbour
//! discovery) as ever. One queue of the interface is served, the first.

mod client;
mod sys;

pub use client::XskClient;

use crate::frame::DatagramPlace;
use crate::packet::MESSAGE_BYTES;
use crate::service::Service;
use crate::sockets::TURN;
use ccplane_bpf::ProgramLink;
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Helper, Insn, R, Size};
use ccplane_wait::{WaitStep, Waiter, Wake};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use sys::{FRAME_BYTES, Frames, Ring};

/// Frames of a socket. All of a server's wait to be received to as long as nothing is sent.
const FRAMES: usize = 4096;
/// Elements of each ring: enough for all frames.
const RING: u32 = FRAMES as u32;
/// Frames that are taken at once, at most.
const BATCH: usize = 64;
/// The longest that the kernel takes to release the queue of a socket that was closed.
const RELEASE: Duration = Duration::from_secs(2);
/// The queue that is served.
const QUEUE: u32 = 0;
/// The time for which the server looks for frames before it sleeps, microseconds.
const SPIN_US: u32 = 1000;
/// Looks for frames between two looks at the clock.
const POLLS_BETWEEN_CLOCKS: u32 = 64;

/// Offsets in a frame's UDP header, and of the fields that tell a frame is ours.
const IPV4_UDP: i16 = 34;
const IPV6_UDP: i16 = 54;
const UDP_BYTES: i16 = 8;
const PROTOCOL_UDP: i32 = 17;
/// EtherTypes as a little-endian load gives them.
const TYPE_IPV4: i32 = 0x0008;
const TYPE_IPV6: i32 = 0xdd86;
/// Lets a frame go on to the kernel.
const XDP_PASS: i64 = 2;
/// Offsets in struct xdp_md.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// Reasons why an interface has no such socket.
#[derive(Debug, thiserror::Error)]
pub enum XskError {
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// The program cannot be assembled.
    #[error(transparent)]
    Program(#[from] AsmError),
}

/// An AF_XDP socket on an interface, and the program that leads to it.
pub struct Xsk {
    port: u16,
    frames: Frames,
    fill: Ring<u64>,
    completion: Ring<u64>,
    receive: Ring<libc::xdp_desc>,
    send: Ring<libc::xdp_desc>,
    /// Addresses of frames that wait to be given to the kernel.
    free: Vec<u64>,
    /// Frames on their way out.
    out: usize,
    socket: OwnedFd,
    /// Dropping it takes the program off the interface.
    _link: ProgramLink,
}

/// The addresses of frames.
fn addresses(frames: Range<usize>) -> Vec<u64> {
    frames.map(|n| (n * FRAME_BYTES) as u64).collect()
}

/// Gives the kernel frames to receive to, as many as its ring has room for; it names a frame by its start.
fn give(fill: &mut Ring<u64>, free: &mut Vec<u64>) {
    for address in free.iter_mut() {
        *address -= *address % FRAME_BYTES as u64;
    }
    let given = fill.produce(free);
    free.drain(..given);
}

/// Binds the socket to the interface's queue, and waits for the kernel to release the one that had it before.
fn bind(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        // The kernel frees a closed socket's pool, which holds the queue, on a worker (net/xdp/xsk_buff_pool.c).
        match sys::bind(socket, interface, QUEUE) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy && begun.elapsed() < RELEASE => {
                std::thread::sleep(RELEASE / 100);
            }
            bound => return bound,
        }
    }
}

impl Xsk {
    /// Opens a socket on an interface for the datagrams to a UDP port.
    ///
    /// # Errors
    /// No such interface, not root, or another XDP program is on it.
    pub fn open(interface: &str, port: u16) -> Result<Xsk, XskError> {
        Xsk::with_frames(interface, port, FRAMES)
    }

    /// Opens a socket that receives to its first `receiving` frames; the others are the caller's.
    fn with_frames(interface: &str, port: u16, receiving: usize) -> Result<Xsk, XskError> {
        let failed = |what| move |source| XskError::System { what, source };
        let number = sys::interface(interface).map_err(failed("find the interface"))?;
        let socket = sys::open().map_err(failed("open an AF_XDP socket"))?;
        let frames = Frames::new(&socket, FRAMES).map_err(failed("register frames"))?;
        for option in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            sys::size_ring(&socket, option, RING).map_err(failed("size the rings"))?;
        }
        let at = sys::offsets(&socket).map_err(failed("ask for the rings' places"))?;
        let mapped = failed("map the rings");
        let mut fill = Ring::new(&socket, libc::XDP_UMEM_PGOFF_FILL_RING, &at.fr, RING).map_err(mapped)?;
        let completion =
            Ring::new(&socket, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, RING).map_err(mapped)?;
        let receive = Ring::new(&socket, libc::XDP_PGOFF_RX_RING as u64, &at.rx, RING).map_err(mapped)?;
        let send = Ring::new(&socket, libc::XDP_PGOFF_TX_RING as u64, &at.tx, RING).map_err(mapped)?;
        // Before the program leads anything here: what finds no frame is dropped.
        let mut free = addresses(0..receiving);
        give(&mut fill, &mut free);
        bind(&socket, number).map_err(failed("bind to the interface"))?;
        let map = sys::socket_map(QUEUE + 1).map_err(failed("create a map"))?;
        sys::set_socket(&map, QUEUE, &socket).map_err(failed("fill the map"))?;
        let program = sys::load(&program(&map, port)?).map_err(failed("load the XDP program"))?;
        let link = sys::attach(&program, number).map_err(failed("attach the XDP program"))?;
        Ok(Xsk { port, frames, fill, completion, receive, send, free, out: 0, socket, _link: link })
    }

    /// Serves datagrams until `stop` is set. It spins while there is work, and sleeps after a millisecond without.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn serve(&mut self, service: &mut Service, stop: &AtomicBool) -> io::Result<()> {
        let began = Instant::now();
        let (mut now, mut next_turn, mut polls) = (began, began, 0);
        let mut waiter = Waiter::new(Wake::Spin { us: SPIN_US }, 0);
        while !stop.load(Ordering::Relaxed) {
            let answered = self.answer(service)?;
            polls += 1;
            if answered > 0 {
                waiter.event(nanoseconds(now - began));
            } else if polls < POLLS_BETWEEN_CLOCKS {
                std::hint::spin_loop();
                continue;
            }
            (now, polls) = (Instant::now(), 0);
            if let WaitStep::Sleep { .. } = waiter.next(nanoseconds(now - began)) {
                sys::wait(&self.socket, TURN.as_millis() as i32)?;
            }
            if now >= next_turn {
                service.turn(now);
                next_turn = now + TURN;
            }
        }
        Ok(())
    }

    /// Takes in a batch of frames; returns how many there were.
    fn answer(&mut self, service: &mut Service) -> io::Result<usize> {
        let mut arrived = [libc::xdp_desc { addr: 0, len: 0, options: 0 }; BATCH];
        let mut count = 0;
        self.receive.consume(BATCH, |frame| {
            if let Some(to) = arrived.get_mut(count) {
                *to = frame;
                count += 1;
            }
        });
        let mut replies = 0;
        for n in 0..count {
            let libc::xdp_desc { addr, len, options } = arrived[n];
            match self.reply(addr, len as usize, service) {
                Some(bytes) => {
                    arrived[replies] = libc::xdp_desc { addr, len: bytes as u32, options };
                    replies += 1;
                }
                None => self.free.push(addr),
            }
        }
        if replies > 0 {
            let sent = self.send.produce(&arrived[..replies]);
            self.out += sent;
            // A reply for which there is no room is lost, as any datagram may be.
            self.free.extend(arrived[sent..replies].iter().map(|frame| frame.addr));
        }
        if self.out > 0 {
            if self.send.needs_wakeup() {
                sys::kick(&self.socket)?;
            }
            let Xsk { completion, free, .. } = self;
            self.out -= completion.consume(FRAMES, |address| free.push(address));
        }
        give(&mut self.fill, &mut self.free);
        Ok(count)
    }

    fn reply(&mut self, address: u64, length: usize, service: &mut Service) -> Option<usize> {
        let frame = self.frames.get(address);
        let place = DatagramPlace::find(frame.get(..length)?, self.port)?;
        let mut reply = [0; MESSAGE_BYTES];
        let is_answered = service.handle(place.payload(frame), &mut reply);
        is_answered.then(|| place.reply(frame, &reply)).flatten()
    }
}

/// The XDP program: UDP over plain IPv4 or IPv6 to the port goes to the socket of its queue, if there is one; all else goes on.
fn program(map: &OwnedFd, port: u16) -> Result<Vec<Insn>, AsmError> {
    let (start, end, at) = (R::R2, R::R3, R::R4);
    let mut asm = Asm::default();
    let (pass, v6, ours) = (asm.label(), asm.label(), asm.label());
    let within = |asm: &mut Asm, bytes: i16| {
        asm.mov(at, start);
        asm.alu_imm(Alu::Add, at, i32::from(bytes));
        asm.jump_if(at, Cond::Gt, end, pass);
    };
    // Ports are big-endian, loads little-endian.
    let port = i32::from(port.swap_bytes());
    let is = |asm: &mut Asm, size: Size, offset: i16, value: i32| {
        asm.load(size, at, start, offset);
        asm.jump_if_imm(at, Cond::Ne, value, pass);
    };
    asm.mov(R::R6, R::R1);
    asm.load(Size::B4, start, R::R1, DATA);
    asm.load(Size::B4, end, R::R1, DATA_END);
    within(&mut asm, IPV4_UDP + UDP_BYTES);
    asm.load(Size::B2, at, start, 12);
    asm.jump_if_imm(at, Cond::Eq, TYPE_IPV6, v6);
    asm.jump_if_imm(at, Cond::Ne, TYPE_IPV4, pass);
    is(&mut asm, Size::B1, 14, 0x45);
    is(&mut asm, Size::B1, 23, PROTOCOL_UDP);
    // Neither more fragments nor a later one.
    asm.load(Size::B2, at, start, 20);
    asm.alu_imm(Alu::And, at, 0xff3f);
    asm.jump_if_imm(at, Cond::Ne, 0, pass);
    is(&mut asm, Size::B2, IPV4_UDP + 2, port);
    asm.jump(ours);
    asm.bind(v6);
    within(&mut asm, IPV6_UDP + UDP_BYTES);
    is(&mut asm, Size::B1, 20, PROTOCOL_UDP);
    is(&mut asm, Size::B2, IPV6_UDP + 2, port);
    asm.bind(ours);
    asm.load(Size::B4, R::R2, R::R6, RX_QUEUE);
    asm.map(R::R1, map.as_raw_fd());
    asm.mov_imm(R::R3, XDP_PASS);
    asm.call(Helper::RedirectMap);
    asm.exit();
    asm.bind(pass);
    asm.mov_imm(R::R0, XDP_PASS);
    asm.exit();
    Ok(asm.finish()?.insns)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

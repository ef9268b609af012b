//! The server over a kernel socket by io_uring: one request receives any number of datagrams, and replies leave with the next wait.
//!
//! A buffer holds a datagram until its reply has left, so that a reply's address stays where the kernel reads it.
#![allow(unsafe_code)]

use crate::packet::{MAX_DATAGRAM_BYTES, MESSAGE_BYTES};
use crate::service::Service;
use crate::sockets::TURN;
use io_uring::types::{CancelBuilder, Fd, RecvMsgOut, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Datagrams that are held at once, at most.
const BUFFERS: u16 = 256;
/// Requests that wait to be given to the kernel, at most: a reply or a buffer's return for each buffer, and one to receive.
const ENTRIES: u32 = 512;
/// Bytes of the longest address: sockaddr_in6.
const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();
/// Bytes that the kernel writes before an address.
const HEAD_BYTES: usize = 16;
/// Bytes of a buffer: one more than the longest datagram, so that what is longer is seen to be.
const BUFFER_BYTES: usize = (HEAD_BYTES + ADDRESS_BYTES + MAX_DATAGRAM_BYTES + 1).next_multiple_of(64);
/// The group that all buffers are in.
const GROUP: u16 = 0;
/// Marks of completions; those of replies have their buffer's number.
const RECEIVED: u64 = u64::MAX;
const RETURNED: u64 = u64::MAX - 1;
/// The time for which the end waits for the kernel to let go of all memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// A reply on its way.
struct Lane {
    reply: [u8; MESSAGE_BYTES],
    vector: libc::iovec,
    header: libc::msghdr,
    is_busy: bool,
}

/// Memory that the kernel reads and writes while requests are out; it is never moved, and outlives them.
struct Memory {
    buffers: Box<[[u8; BUFFER_BYTES]]>,
    lanes: Box<[Lane]>,
    receive: Box<libc::msghdr>,
}

/// Serves datagrams of a socket until `stop` is set.
///
/// # Errors
/// The socket is broken, or the kernel has no io_uring, or one older than Linux 6.0.
pub fn serve(socket: &UdpSocket, service: &mut Service, stop: &AtomicBool) -> io::Result<()> {
    let ring = IoUring::builder().setup_coop_taskrun().setup_single_issuer().build(ENTRIES)?;
    let mut server =
        Uring { ring, fd: Fd(socket.as_raw_fd()), memory: memory(), is_receiving: false, replies: 0 };
    let served = server.run(service, stop);
    let ended = server.end();
    served.and(ended)
}

fn memory() -> Memory {
    let lane = || Lane {
        reply: [0; MESSAGE_BYTES],
        vector: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: MESSAGE_BYTES },
        header: no_message(),
        is_busy: false,
    };
    let mut receive = Box::new(no_message());
    receive.msg_namelen = ADDRESS_BYTES as u32;
    Memory {
        buffers: vec![[0; BUFFER_BYTES]; usize::from(BUFFERS)].into(),
        lanes: (0..BUFFERS).map(|_| lane()).collect(),
        receive,
    }
}

/// A message header without address, data and control data.
fn no_message() -> libc::msghdr {
    // SAFETY: a msghdr of zeros has null pointers, lengths of 0 and no flags, all of which are valid.
    unsafe { std::mem::zeroed() }
}

struct Uring {
    ring: IoUring,
    fd: Fd,
    memory: Memory,
    is_receiving: bool,
    /// Replies queued since the last wait.
    replies: usize,
}

impl Uring {
    fn run(&mut self, service: &mut Service, stop: &AtomicBool) -> io::Result<()> {
        for buffer in 0..BUFFERS {
            self.give_back(buffer)?;
        }
        let mut done: Vec<cqueue::Entry> = Vec::with_capacity(2 * ENTRIES as usize);
        let mut next_turn = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if !self.is_receiving {
                self.receive()?;
            }
            self.wait()?;
            done.extend(self.ring.completion());
            for entry in done.drain(..) {
                self.complete(&entry, service)?;
            }
            let now = Instant::now();
            if now >= next_turn {
                service.turn(now);
                next_turn = now + TURN;
            }
        }
        Ok(())
    }

    /// Gives all requests to the kernel, and waits for news or the time of a turn.
    ///
    /// Replies leave at once as a rule, so that what is waited for is one completion more.
    fn wait(&mut self) -> io::Result<()> {
        let wanted = std::mem::take(&mut self.replies) + 1;
        let turn = Timespec::new().nsec(TURN.subsec_nanos()).sec(TURN.as_secs());
        match self.ring.submitter().submit_with_args(wanted, &SubmitArgs::new().timespec(&turn)) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn complete(&mut self, entry: &cqueue::Entry, service: &mut Service) -> io::Result<()> {
        match entry.user_data() {
            RECEIVED => {
                self.is_receiving = cqueue::more(entry.flags());
                match cqueue::buffer_select(entry.flags()) {
                    Some(buffer) if entry.result() >= 0 => self.answer(buffer, service),
                    Some(buffer) => self.give_back(buffer),
                    // All buffers are in use, or the peer of an earlier reply is away.
                    None => passing(entry.result()),
                }
            }
            RETURNED => passing(entry.result()),
            buffer => {
                let buffer = buffer as u16;
                if let Some(lane) = self.memory.lanes.get_mut(usize::from(buffer)) {
                    lane.is_busy = false;
                }
                // A reply that does not leave is lost, as any datagram may be.
                self.give_back(buffer)
            }
        }
    }

    /// Takes in the datagram in a buffer.
    fn answer(&mut self, buffer: u16, service: &mut Service) -> io::Result<()> {
        let n = usize::from(buffer);
        let (Some(bytes), Some(lane)) = (self.memory.buffers.get_mut(n), self.memory.lanes.get_mut(n)) else {
            return Ok(());
        };
        let parsed = RecvMsgOut::parse(bytes, &self.memory.receive);
        let (address_bytes, is_answered) = match &parsed {
            Ok(received) => {
                let length = received.name_data().len();
                (length, service.handle(received.payload_data(), &mut lane.reply))
            }
            Err(()) => (0, false),
        };
        if !is_answered {
            return self.give_back(buffer);
        }
        lane.vector.iov_base = lane.reply.as_mut_ptr().cast();
        lane.header.msg_name = bytes.as_mut_ptr().wrapping_add(HEAD_BYTES).cast();
        lane.header.msg_namelen = address_bytes as u32;
        lane.header.msg_iov = &raw mut lane.vector;
        lane.header.msg_iovlen = 1;
        lane.is_busy = true;
        self.replies += 1;
        let send = opcode::SendMsg::new(self.fd, &raw const lane.header).build().user_data(u64::from(buffer));
        // SAFETY: header, vector, reply and address lie in `Memory`, which stays where it is; the lane and its buffer are not
        // touched until this request is complete, and `end` waits for that.
        unsafe { self.push(&send) }
    }

    /// Lets the kernel write the next datagrams to a buffer.
    fn give_back(&mut self, buffer: u16) -> io::Result<()> {
        let Some(bytes) = self.memory.buffers.get_mut(usize::from(buffer)) else { return Ok(()) };
        let address = bytes.as_mut_ptr();
        let entry = opcode::ProvideBuffers::new(address, BUFFER_BYTES as i32, 1, GROUP, buffer).build();
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(RETURNED);
        // SAFETY: the buffer is one of `Memory`'s, of that length, and not read again until a completion names it.
        unsafe { self.push(&entry) }
    }

    /// Asks for datagrams until further notice.
    fn receive(&mut self) -> io::Result<()> {
        let header: *const libc::msghdr = &raw const *self.memory.receive;
        let entry = opcode::RecvMsgMulti::new(self.fd, header, GROUP).build().user_data(RECEIVED);
        self.is_receiving = true;
        // SAFETY: the header lies in `Memory`, which outlives the request.
        unsafe { self.push(&entry) }
    }

    /// Queues a request; makes room where there is none.
    ///
    /// # Safety
    /// What the request points at stays valid until it is complete.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Takes every request back, so that the kernel has no pointer to this memory left.
    fn end(mut self) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let cancelled = self.ring.submit().and_then(|_| {
            let timeout = Timespec::new().sec(PATIENCE.as_secs());
            match self.ring.submitter().register_sync_cancel(Some(timeout), CancelBuilder::any()) {
                // There was nothing to cancel.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                other => other,
            }
        });
        while self.is_receiving || self.memory.lanes.iter().any(|lane| lane.is_busy) {
            for entry in self.ring.completion() {
                match entry.user_data() {
                    RECEIVED => self.is_receiving = cqueue::more(entry.flags()),
                    RETURNED => {}
                    lane => {
                        if let Some(lane) = self.memory.lanes.get_mut(lane as usize) {
                            lane.is_busy = false;
                        }
                    }
                }
            }
            if Instant::now() > until {
                // Memory that the kernel may still write to is never used again.
                std::mem::forget(self.memory);
                return Err(io::Error::other("the kernel keeps requests of io_uring"));
            }
            std::thread::yield_now();
        }
        cancelled
    }
}

/// Whether a completion's result says that the socket is broken, rather than nothing or something that passes.
fn passing(result: i32) -> io::Result<()> {
    const PASSING: [i32; 8] = [
        libc::ENOBUFS,
        libc::EAGAIN,
        libc::EINTR,
        libc::ECANCELED,
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::ENOMEM,
    ];
    if result >= 0 || PASSING.contains(&-result) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(-result))
    }
}

//! A bulk flow between two network namespaces: TCP's, sampled by TCP_INFO. QUIC's are made in `quic.rs`.
//!
//! Sockets are opened inside the namespaces and then used by two threads of this process. The flow ends after a time or
//! a number of bytes, or when it is stopped or dropped; then both threads are gone and both sockets closed.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ccplane_emulator::netns::Namespace;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::unistd::Pid;

use crate::error::{Context, Error, Result};
use crate::tcp_info::TcpInfo;

/// The time that a connection may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest flow: ten hours.
pub const MAX_DURATION: Duration = Duration::from_secs(36_000);
/// Shortest time between samples.
pub const MIN_SAMPLE_EVERY: Duration = Duration::from_millis(1);
/// Samples that one flow keeps; further ones are counted in [`FlowOutcome::samples_dropped`].
pub const MAX_SAMPLES: usize = 1 << 20;

/// Bytes for one write or read.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// The longest sleep of a thread before it checks whether to stop.
pub(crate) const NAP: Duration = Duration::from_millis(20);
/// The time for which the receiver waits for the connection's end after the sender is done.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);

/// The endpoints, algorithm and end of a bulk flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowConfig {
    /// TCP_CONGESTION, by the name that the kernel has registered.
    pub congestion: String,
    /// The address on which the receiver listens; port 0 lets the kernel choose.
    pub receiver: SocketAddr,
    /// Ends after this time, at most [`MAX_DURATION`].
    pub duration: Duration,
    /// Ends when this many bytes are acknowledged; `None`: by time alone.
    pub bytes: Option<u64>,
    /// Time between samples, at least [`MIN_SAMPLE_EVERY`].
    pub sample_every: Duration,
}

impl FlowConfig {
    fn check(&self) -> Result<()> {
        let refuse = |field, reason| Err(Error::Config { field, reason });
        if self.duration > MAX_DURATION {
            return refuse("duration", format!("{:?} is more than {MAX_DURATION:?}", self.duration));
        }
        if self.sample_every < MIN_SAMPLE_EVERY {
            return refuse(
                "sample_every",
                format!("{:?} is less than {MIN_SAMPLE_EVERY:?}", self.sample_every),
            );
        }
        Ok(())
    }
}

/// The processors that a flow's two threads may run on; none: any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pins {
    pub sender: Option<usize>,
    pub receiver: Option<usize>,
}

/// A flow at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpSample {
    /// Since the epoch given to [`BulkFlow::start`], microseconds.
    pub at_us: u64,
    pub info: TcpInfo,
}

/// Reasons why a flow ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its time was over.
    Duration,
    /// All its bytes were acknowledged.
    Bytes,
    Stopped,
}

/// The result of a flow that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowOutcome {
    /// In order of time; the first right after the connection was made, the last right before it was closed.
    pub samples: Vec<TcpSample>,
    /// Samples that did not fit.
    pub samples_dropped: u64,
    /// Bytes that the receiving application read.
    pub received_bytes: u64,
    pub end: End,
}

/// State that both threads and the handle share.
#[derive(Debug, Default)]
pub(crate) struct SharedBulk {
    pub(crate) stop: AtomicBool,
    pub(crate) sender_done: AtomicBool,
    latest: Mutex<Option<TcpSample>>,
}

impl SharedBulk {
    pub(crate) fn publish(&self, sample: TcpSample) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample);
    }
}

/// A flow under way. Dropping it ends it and waits for its threads.
#[derive(Debug)]
pub struct BulkFlow {
    pub(crate) shared: Arc<SharedBulk>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) sender: Option<JoinHandle<Result<Sent>>>,
    pub(crate) receiver: Option<JoinHandle<Result<u64>>>,
}

/// The sender's result.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) samples: Vec<TcpSample>,
    pub(crate) samples_dropped: u64,
    pub(crate) end: End,
}

impl Sent {
    pub(crate) fn new() -> Sent {
        Sent { samples: Vec::new(), samples_dropped: 0, end: End::Duration }
    }

    pub(crate) fn push(&mut self, sample: TcpSample) {
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push(sample);
        } else {
            self.samples_dropped += 1;
        }
    }
}

impl BulkFlow {
    /// Listens in `receiver`, connects from `sender` and starts to send. Samples and the duration count from `epoch`, so that
    /// flows started together share a time axis.
    ///
    /// # Errors
    /// A refused configuration, a congestion control that the kernel does not have, or what the kernel says; nothing runs then.
    pub fn start(
        config: &FlowConfig,
        sender: &Namespace,
        receiver: &Namespace,
        epoch: Instant,
    ) -> Result<Self> {
        BulkFlow::start_pinned(config, sender, receiver, epoch, Pins::default())
    }

    /// Starts a flow as [`BulkFlow::start`] does, with its threads on processors of the caller's choice.
    ///
    /// # Errors
    /// As [`BulkFlow::start`]; a processor that is not there ends the flow with an error.
    pub fn start_pinned(
        config: &FlowConfig,
        sender: &Namespace,
        receiver: &Namespace,
        epoch: Instant,
        pins: Pins,
    ) -> Result<Self> {
        config.check()?;
        let listener = receiver.run(|| listen(config.receiver))??;
        let remote = listener.local_addr().context("getsockname")?;
        let stream = sender.run(|| connect_with(&config.congestion, remote))??;
        let local = stream.local_addr().context("getsockname")?;
        if !wait(&listener, PollFlags::POLLIN, CONNECT_TIMEOUT)? {
            return Err(Error::ConnectTimeout { remote, timeout_ms: CONNECT_TIMEOUT.as_millis() });
        }
        let (peer, _) = listener.accept().context("accept")?;

        let shared = Arc::new(SharedBulk::default());
        let mut flow = Self { shared: shared.clone(), local, remote, sender: None, receiver: None };
        let spawn = |name: &str| thread::Builder::new().name(format!("{name}-{}", remote.port()));
        flow.receiver = Some(
            spawn("ccp-rx")
                .spawn({
                    let shared = shared.clone();
                    move || {
                        pin(pins.receiver)?;
                        receive(peer, &shared)
                    }
                })
                .context("start the receiver thread")?,
        );
        let config = config.clone();
        flow.sender = Some(
            spawn("ccp-tx")
                .spawn(move || {
                    let sent = pin(pins.sender).and_then(|()| send(stream, &config, epoch, &shared));
                    shared.sender_done.store(true, Ordering::Release);
                    sent
                })
                .context("start the sender thread")?,
        );
        Ok(flow)
    }

    /// Returns the sender's address.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the receiver's address.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the newest sample, if there is one.
    #[must_use]
    pub fn latest(&self) -> Option<TcpSample> {
        *self.shared.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the sender has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.sender.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Asks the flow to end now; does not wait.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Waits for the flow's end.
    ///
    /// # Errors
    /// What broke the connection.
    pub fn finish(mut self) -> Result<FlowOutcome> {
        let sent = join(self.sender.take(), "sender");
        let received = join(self.receiver.take(), "receiver");
        let (sent, received_bytes) = (sent?, received?);
        Ok(FlowOutcome {
            samples: sent.samples,
            samples_dropped: sent.samples_dropped,
            received_bytes,
            end: sent.end,
        })
    }
}

impl Drop for BulkFlow {
    fn drop(&mut self) {
        self.stop();
        // A flow that is dropped has no one to tell how it ended.
        let _ = self.sender.take().map(JoinHandle::join);
        let _ = self.receiver.take().map(JoinHandle::join);
    }
}

pub(crate) fn join<T>(thread: Option<JoinHandle<Result<T>>>, name: &'static str) -> Result<T> {
    thread.and_then(|t| t.join().ok()).unwrap_or(Err(Error::Panicked(name)))
}

/// Whether a TCP socket can use the congestion control `name` here; `Err` says why not.
///
/// # Errors
/// `NoCongestionControl`, `Restricted` or `Os`.
pub fn check_congestion(name: &str) -> Result<()> {
    tcp_socket(AddressFamily::Inet).and_then(|socket| set_congestion(&socket, name))
}

/// Has the calling thread run on one processor from here on.
fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(cpu).context("name a processor")?;
    sched_setaffinity(Pid::from_raw(0), &set).context("sched_setaffinity")
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    // The standard library sets SO_REUSEADDR and close-on-exec.
    TcpListener::bind(address).context("listen")
}

fn tcp_socket(family: AddressFamily) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    socket(family, SockType::Stream, flags, None).context("make a TCP socket")
}

fn set_congestion(socket: &OwnedFd, name: &str) -> Result<()> {
    setsockopt(socket, sockopt::TcpCongestion, &name.into()).map_err(|errno| match errno {
        Errno::ENOENT => Error::NoCongestionControl { name: name.into() },
        Errno::EPERM => Error::Restricted { name: name.into() },
        errno => Error::Os { what: "setsockopt TCP_CONGESTION", errno },
    })
}

/// Starts to connect, without blocking. The congestion control is set first, so that it sees the flow from its start.
pub(crate) fn connect_nonblocking(congestion: &str, remote: SocketAddr) -> Result<TcpStream> {
    let family = if remote.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = tcp_socket(family)?;
    set_congestion(&socket, congestion)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(remote)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(socket)),
        Err(errno) => Err(Error::Os { what: "connect", errno }),
    }
}

/// Connects; the socket is one that does not block.
fn connect_with(congestion: &str, remote: SocketAddr) -> Result<TcpStream> {
    let stream = connect_nonblocking(congestion, remote)?;
    if !wait(&stream, PollFlags::POLLOUT, CONNECT_TIMEOUT)? {
        return Err(Error::ConnectTimeout { remote, timeout_ms: CONNECT_TIMEOUT.as_millis() });
    }
    match nix::sys::socket::getsockopt(&stream, sockopt::SocketError).context("getsockopt SO_ERROR")? {
        0 => Ok(stream),
        error => Err(Error::Os { what: "connect", errno: Errno::from_raw(error) }),
    }
}

/// Waits until `socket` is ready; `false` after `timeout`, which is rounded up to a millisecond, or after a signal.
fn wait(socket: impl AsFd, ready: PollFlags, timeout: Duration) -> Result<bool> {
    let ms = u16::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
    let mut fds = [PollFd::new(socket.as_fd(), ready)];
    match poll(&mut fds, PollTimeout::from(ms)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(Error::Os { what: "poll", errno }),
    }
}

/// Takes samples on time and publishes them.
struct Sampler<'a> {
    stream: &'a TcpStream,
    epoch: Instant,
    every: Duration,
    next: Instant,
    sent: Sent,
    shared: &'a SharedBulk,
}

impl Sampler<'_> {
    fn sample(&mut self, now: Instant) -> Result<TcpInfo> {
        let at_us = now.saturating_duration_since(self.epoch).as_micros() as u64;
        let sample = TcpSample { at_us, info: TcpInfo::of(self.stream)? };
        self.sent.push(sample);
        self.shared.publish(sample);
        // What was missed is not made up for: the next sample is the next on the grid.
        while self.next <= now {
            self.next += self.every;
        }
        Ok(sample.info)
    }
}

fn send(stream: TcpStream, config: &FlowConfig, epoch: Instant, shared: &SharedBulk) -> Result<Sent> {
    let deadline = epoch + config.duration;
    let sent = Sent::new();
    let mut sampler =
        Sampler { stream: &stream, epoch, every: config.sample_every, next: epoch, sent, shared };
    let chunk = [0u8; CHUNK_BYTES];
    let acked_before = sampler.sample(Instant::now())?.bytes_acked;
    let mut to_write = config.bytes.unwrap_or(u64::MAX);
    sampler.sent.end = loop {
        let now = Instant::now();
        if now >= sampler.next {
            sampler.sample(now)?;
        }
        if shared.stop.load(Ordering::Acquire) {
            break End::Stopped;
        }
        if now >= deadline {
            break End::Duration;
        }
        let rest = sampler.next.min(deadline).saturating_duration_since(now).min(NAP);
        if to_write == 0 {
            let acked = TcpInfo::of(&stream)?.bytes_acked - acked_before;
            if acked >= config.bytes.unwrap_or(u64::MAX) {
                break End::Bytes;
            }
            thread::sleep(rest.min(Duration::from_millis(1)));
            continue;
        }
        let len = usize::try_from(to_write).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        match (&stream).write(&chunk[..len]) {
            Ok(n) if config.bytes.is_some() => to_write -= n as u64,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => drop(wait(&stream, PollFlags::POLLOUT, rest)?),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Io { what: "send", error }),
        }
    };
    sampler.sample(Instant::now())?;
    let sent = sampler.sent;
    // Closes by RST: what is still in the buffers is of no use to anyone, and no socket lingers.
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream, sockopt::Linger, &linger).context("setsockopt SO_LINGER")?;
    Ok(sent)
}

/// Reads and discards until the sender closes; returns how many bytes came.
fn receive(mut stream: TcpStream, shared: &SharedBulk) -> Result<u64> {
    stream.set_read_timeout(Some(NAP)).context("setsockopt SO_RCVTIMEO")?;
    let mut chunk = [0u8; CHUNK_BYTES];
    let mut received_bytes = 0;
    let mut give_up: Option<Instant> = None;
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return Ok(received_bytes),
            Ok(n) => received_bytes += n as u64,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(received_bytes),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(Error::Io { what: "receive", error }),
        }
        if shared.sender_done.load(Ordering::Acquire) {
            let give_up = give_up.get_or_insert_with(|| Instant::now() + DRAIN);
            if Instant::now() >= *give_up {
                return Ok(received_bytes);
            }
        }
    }
}

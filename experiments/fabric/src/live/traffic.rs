//! Flows from one network namespace to another: a thread for each connection at either end.
//!
//! A flow begins with its number, by which the receiver knows how much is to come. It has ended when the last byte was read; then the
//! receiver closes the connection.

use crate::error::FabricError;
use crate::fabric::service_port;
use ccplane_emulator::multi::{RECEIVER, SENDER};
use ccplane_netsim::workload::HostArrival;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// Applications of the sender, each with a port of its own.
const APPLICATIONS: u16 = 16;
/// Bytes of one write or read.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes of the number that a flow begins with; no flow is smaller.
const NUMBER_BYTES: usize = 8;
/// The time for which anything waits before it checks whether the run is over.
const NAP: Duration = Duration::from_millis(50);
const NAP_MS: u8 = 50;
/// A run ends after this many times the span of its measured arrivals, and a while, whatever still runs.
const LONGEST_SPANS: u32 = 6;
const LEAST_TIME: Duration = Duration::from_secs(10);
/// The congestion control of the flows, which every kernel has.
const CONGESTION: &str = "cubic";

/// A flow of a live run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LiveFlow {
    pub(super) arrival: HostArrival,
    /// When its connection was begun, and when its last byte was read.
    pub(super) started: Instant,
    pub(super) ended: Option<Instant>,
}

impl LiveFlow {
    fn bytes(&self) -> u64 {
        self.arrival.bytes.max(NUMBER_BYTES as u64)
    }
}

/// The state that both ends share.
pub(super) struct Shared {
    /// Flows that decide when the run is over.
    measured: usize,
    halt: AtomicBool,
    flows: Mutex<Vec<LiveFlow>>,
    /// The number of measured flows that have ended.
    ended: AtomicUsize,
}

impl Shared {
    pub(super) fn new(measured: usize) -> Shared {
        Shared { measured, halt: AtomicBool::new(false), flows: Mutex::default(), ended: AtomicUsize::new(0) }
    }

    /// Ends all that still runs.
    pub(super) fn halt(&self) {
        self.halt.store(true, Ordering::Release);
    }

    fn is_over(&self) -> bool {
        self.halt.load(Ordering::Acquire) || self.ended.load(Ordering::Acquire) >= self.measured
    }

    fn is_halted(&self) -> bool {
        self.halt.load(Ordering::Acquire)
    }

    /// The flows so far, in the order of their start.
    pub(super) fn flows(&self) -> Vec<LiveFlow> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Enters a flow that starts now; returns its number, and how many there are.
    fn begin(&self, arrival: HostArrival) -> (usize, usize) {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.push(LiveFlow { arrival, started: Instant::now(), ended: None });
        (flows.len() - 1, flows.len())
    }

    fn get(&self, number: usize) -> Option<LiveFlow> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).get(number).copied()
    }

    fn end(&self, number: usize) {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(flow) = flows.get_mut(number) else { return };
        flow.ended = Some(Instant::now());
        if number < self.measured {
            self.ended.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// The addresses of an application's flows: the family changes from one application to the next.
fn addresses(application: u16) -> (SocketAddr, SocketAddr) {
    let (from, to): (IpAddr, IpAddr) = match application.is_multiple_of(2) {
        true => (SENDER.v4.into(), RECEIVER.v4.into()),
        false => (SENDER.v6.into(), RECEIVER.v6.into()),
    };
    (SocketAddr::new(from, 0), SocketAddr::new(to, service_port(application)))
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> FabricError {
    move |source| FabricError::Io { what, source }
}

/// Listens at all applications' ports. To be called inside the receiver's namespace.
pub(super) fn bind_all() -> Result<Vec<TcpListener>, FabricError> {
    let listen = |application| {
        let listener = TcpListener::bind(addresses(application).1).map_err(failed("listen"))?;
        listener.set_nonblocking(true).map_err(failed("listen"))?;
        Ok(listener)
    };
    (0..APPLICATIONS).map(listen).collect()
}

/// Takes connections and reads them, each on a thread of its own, until the run is halted.
pub(super) fn accept_all<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    listeners: &'env [TcpListener],
    shared: &'env Shared,
) {
    let mut polled: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::new(listener.as_fd(), PollFlags::POLLIN)).collect();
    while !shared.is_halted() {
        if poll(&mut polled, PollTimeout::from(NAP_MS)).is_err_and(|errno| errno != Errno::EINTR) {
            return;
        }
        let ready = polled.iter().zip(listeners).filter(|(fd, _)| fd.any().unwrap_or(false));
        for (_, listener) in ready {
            while let Ok((stream, _)) = listener.accept() {
                // A connection that ends early is a flow that has not ended.
                scope.spawn(move || read_one(stream, shared).unwrap_or_default());
            }
        }
    }
}

/// Reads one flow to its end.
fn read_one(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(NAP))?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut number = [0; NUMBER_BYTES];
    let mut have = 0;
    while have < NUMBER_BYTES {
        let Some(room) = number.get_mut(have..) else { return Ok(()) };
        match patient(stream.read(room), shared)? {
            Some(0) => return Ok(()),
            Some(bytes) => have += bytes,
            None => {}
        }
    }
    let number = usize::try_from(u64::from_le_bytes(number)).unwrap_or(usize::MAX);
    let Some(flow) = shared.get(number) else { return Ok(()) };
    let mut left = flow.bytes() - NUMBER_BYTES as u64;
    while left > 0 {
        match patient(stream.read(&mut buffer), shared)? {
            Some(0) => return Ok(()),
            Some(bytes) => left = left.saturating_sub(bytes as u64),
            None => {}
        }
    }
    shared.end(number);
    Ok(())
}

/// Returns the bytes that were read or written; `None` where that is to be tried again.
///
/// # Errors
/// The connection has ended, or the run has.
fn patient(done: io::Result<usize>, shared: &Shared) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            _ if shared.is_halted() => Err(error),
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

/// Starts the flows of `arrivals` on time and sends, until those that are measured have ended or have had their time.
/// `priority` is what an application gives a flow of so many bytes. To be called inside the sender's namespace.
pub(super) fn send_all(
    arrivals: impl Iterator<Item = HostArrival>,
    priority: &(dyn Fn(u64) -> u8 + Sync),
    shared: &Shared,
) -> Result<(), FabricError> {
    let failure = Mutex::new(None);
    thread::scope(|scope| {
        let (epoch, mut deadline) = (Instant::now(), None);
        for arrival in arrivals {
            let due = epoch + Duration::from_micros(arrival.start_us);
            while !is_over(shared, deadline) && Instant::now() < due {
                thread::sleep(due.saturating_duration_since(Instant::now()).min(NAP));
            }
            if is_over(shared, deadline) {
                break;
            }
            let (number, count) = shared.begin(arrival);
            if count == shared.measured {
                deadline = Some(Instant::now() + epoch.elapsed() * LONGEST_SPANS + LEAST_TIME);
            }
            let failure = &failure;
            scope.spawn(move || {
                let sent = send_one(number, &arrival, priority(arrival.bytes), shared);
                if let Err(error) = sent
                    && !shared.is_halted()
                {
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    shared.halt();
                }
            });
        }
        shared.halt();
    });
    let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(()), |error| Err(failed("send a flow")(error)))
}

fn is_over(shared: &Shared, deadline: Option<Instant>) -> bool {
    shared.is_over() || deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Sends one flow, and waits until the receiver has closed it.
fn send_one(number: usize, flow: &HostArrival, priority: u8, shared: &Shared) -> io::Result<()> {
    let (from, to) = addresses(flow.application);
    let family = if to.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::TcpCongestion, &OsString::from(CONGESTION))?;
    // The code point fills the upper six bits of the class.
    let class = i32::from(super::code_point(priority)) << 2;
    match to.is_ipv6() {
        true => setsockopt(&fd, sockopt::Ipv6TClass, &class)?,
        false => setsockopt(&fd, sockopt::Ipv4Tos, &class)?,
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(from))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    let mut stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(NAP))?;
    stream.set_read_timeout(Some(NAP))?;
    let mut chunk = vec![0; CHUNK_BYTES];
    chunk[..NUMBER_BYTES].copy_from_slice(&(number as u64).to_le_bytes());
    let mut sent = 0;
    let bytes = flow.bytes.max(NUMBER_BYTES as u64);
    while sent < bytes {
        // The number comes first, however little is taken at a time; after it comes anything.
        let from = usize::try_from(sent).unwrap_or(usize::MAX).min(NUMBER_BYTES);
        let left = usize::try_from(bytes - sent).unwrap_or(usize::MAX);
        let to = from.saturating_add(left).min(CHUNK_BYTES);
        let part = chunk.get(from..to).unwrap_or_default();
        sent += patient(stream.write(part), shared)?.unwrap_or(0) as u64;
    }
    while patient(stream.read(&mut chunk), shared)? != Some(0) {}
    Ok(())
}

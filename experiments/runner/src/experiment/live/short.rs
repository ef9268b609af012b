//! Short flows in the kernel: thousands of connections by two threads, one at each end, each with an epoll.
//!
//! A flow's completion time counts from its connect() until the receiver has read its last byte.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccplane_netsim::workload::Arrival;
use ccplane_results::Completion;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{setsockopt, sockopt};

use crate::error::{Context, Error, Result};
use crate::traffic::connect_nonblocking;

/// Bytes for one write or read.
const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks of one connection before the others have their turn.
const CHUNKS_PER_TURN: usize = 4;
/// Events taken at once.
const EVENTS: usize = 256;
/// The longest wait before a check whether to halt.
const NAP_MS: u64 = 20;
/// The listener's name among the server's events; connections count from 0.
const LISTENER: u64 = u64::MAX;

/// State that both ends and the run share.
#[derive(Debug, Default)]
pub(super) struct SharedFlows {
    pub(super) halt: AtomicBool,
    /// Flows whose connect() was called.
    pub(super) started: AtomicU64,
    pub(super) completed: AtomicU64,
    /// By the client's port: a flow's index and its bytes.
    expected: Mutex<HashMap<u16, (usize, u64)>>,
}

impl SharedFlows {
    fn expect(&self, port: u16, flow: usize, bytes: u64) {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).insert(port, (flow, bytes));
    }

    /// `None` if the flow is not entered yet: its SYN may overtake the entry.
    fn take_expected(&self, port: u16) -> Option<(usize, u64)> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).remove(&port)
    }

    fn halted(&self) -> bool {
        self.halt.load(Ordering::Acquire)
    }
}

/// The sending end's result.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// By flow: when connect() was called; shorter than the arrivals if it was halted.
    connects: Vec<Instant>,
    /// Longest that a flow was late, microseconds.
    pub(super) late_us: u64,
}

/// When the receiver had read each flow's last byte, in that order.
pub(super) type Received = Vec<(usize, Instant)>;

/// A connection of the sending end.
struct Outgoing {
    stream: TcpStream,
    left: u64,
}

/// Starts the flows on time and sends, until all are closed by the receiver or `halt` is set. To be called inside the
/// sender's namespace.
pub(super) fn send(
    arrivals: &[Arrival],
    to: SocketAddr,
    congestion: &str,
    epoch: Instant,
    shared: &SharedFlows,
) -> Result<Sent> {
    let epoll = new_epoll()?;
    let mut sent = Sent::default();
    let mut flows: HashMap<u64, Outgoing> = HashMap::new();
    let mut coming = arrivals.iter().enumerate().peekable();
    let chunk = vec![0u8; CHUNK_BYTES];
    let mut events = [EpollEvent::empty(); EVENTS];
    while !shared.halted() && (coming.peek().is_some() || !flows.is_empty()) {
        let elapsed_us = epoch.elapsed().as_micros() as u64;
        while let Some((index, arrival)) = coming.next_if(|(_, a)| a.start_us <= elapsed_us) {
            sent.late_us = sent.late_us.max(elapsed_us - arrival.start_us);
            sent.connects.push(Instant::now());
            let stream = connect_nonblocking(congestion, to)?;
            let port = stream.local_addr().context("getsockname")?.port();
            shared.expect(port, index, arrival.bytes);
            shared.started.fetch_add(1, Ordering::Relaxed);
            let event = EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLIN, index as u64);
            epoll.add(&stream, event).context("epoll_ctl")?;
            flows.insert(index as u64, Outgoing { stream, left: arrival.bytes });
        }
        let next_us = coming.peek().map_or(u64::MAX, |(_, a)| a.start_us);
        for event in wait(&epoll, &mut events, next_us, epoch)? {
            let Some(flow) = flows.get_mut(&event.data()) else { continue };
            if write_some(flow, &chunk, &epoll, event.data())? {
                flows.remove(&event.data());
            }
        }
    }
    Ok(sent)
}

/// True when the flow is over: the receiver has closed it.
fn write_some(flow: &mut Outgoing, chunk: &[u8], epoll: &Epoll, index: u64) -> Result<bool> {
    for _ in 0..CHUNKS_PER_TURN {
        if flow.left == 0 {
            break;
        }
        let len = usize::try_from(flow.left).unwrap_or(usize::MAX).min(chunk.len());
        match flow.stream.write(chunk.get(..len).unwrap_or(chunk)) {
            Ok(n) => flow.left -= n as u64,
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::NotConnected => {
                return Ok(false);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // The receiver waits for its last byte and counts it as unfinished.
            Err(_) => return Ok(true),
        }
    }
    if flow.left > 0 {
        return Ok(false);
    }
    let mut one = [0u8; 1];
    match flow.stream.read(&mut one) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, index);
            let mut event = event;
            epoll.modify(&flow.stream, &mut event).context("epoll_ctl")?;
            Ok(false)
        }
        _ => {
            // Closes by RST, so that no port lingers in TIME_WAIT: the receiver has everything.
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&flow.stream, sockopt::Linger, &linger).context("setsockopt SO_LINGER")?;
            Ok(true)
        }
    }
}

/// A connection of the receiving end.
struct Incoming {
    stream: TcpStream,
    port: u16,
    /// Its flow, once that is entered, and the bytes to come.
    flow: Option<(usize, u64)>,
}

/// Receives until `halt` is set.
pub(super) fn receive(listener: &TcpListener, shared: &SharedFlows) -> Result<Received> {
    let epoll = new_epoll()?;
    epoll.add(listener.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, LISTENER)).context("epoll_ctl")?;
    let mut flows: HashMap<u64, Incoming> = HashMap::new();
    let mut accepted = 0;
    let mut received = Received::new();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    let mut events = [EpollEvent::empty(); EVENTS];
    while !shared.halted() {
        for event in wait(&epoll, &mut events, u64::MAX, Instant::now())? {
            if event.data() == LISTENER {
                while let Some((stream, peer)) = accept(listener)? {
                    stream.set_nonblocking(true).context("set O_NONBLOCK")?;
                    epoll
                        .add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, accepted))
                        .context("epoll_ctl")?;
                    flows.insert(accepted, Incoming { stream, port: peer.port(), flow: None });
                    accepted += 1;
                }
                continue;
            }
            let Some(flow) = flows.get_mut(&event.data()) else { continue };
            match read_some(flow, &mut chunk, shared) {
                Progress::Open => {}
                Progress::Complete(index) => {
                    received.push((index, Instant::now()));
                    shared.completed.fetch_add(1, Ordering::Relaxed);
                    flows.remove(&event.data());
                }
                Progress::Broken => {
                    flows.remove(&event.data());
                }
            }
        }
    }
    Ok(received)
}

enum Progress {
    Open,
    Complete(usize),
    Broken,
}

fn read_some(incoming: &mut Incoming, chunk: &mut [u8], shared: &SharedFlows) -> Progress {
    if incoming.flow.is_none() {
        incoming.flow = shared.take_expected(incoming.port);
    }
    // The socket stays readable, so the next turn tries again.
    let Some((index, left)) = &mut incoming.flow else { return Progress::Open };
    for _ in 0..CHUNKS_PER_TURN {
        match incoming.stream.read(chunk) {
            Ok(0) => return Progress::Broken,
            Ok(n) => *left = left.saturating_sub(n as u64),
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Progress::Open,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Progress::Broken,
        }
        if *left == 0 {
            return Progress::Complete(*index);
        }
    }
    Progress::Open
}

fn accept(listener: &TcpListener) -> Result<Option<(TcpStream, SocketAddr)>> {
    match listener.accept() {
        Ok(accepted) => Ok(Some(accepted)),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
        Err(e) if e.kind() == ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(Error::Io { what: "accept", error }),
    }
}

fn new_epoll() -> Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("epoll_create")
}

/// Waits for events, at most until `next_us` after `epoch` and not for long.
fn wait(epoll: &Epoll, events: &mut [EpollEvent], next_us: u64, epoch: Instant) -> Result<Vec<EpollEvent>> {
    let elapsed_us = epoch.elapsed().as_micros() as u64;
    let ms = next_us.saturating_sub(elapsed_us).div_ceil(1000).min(NAP_MS);
    let timeout = EpollTimeout::from(u8::try_from(ms).unwrap_or(u8::MAX));
    match epoll.wait(events, timeout) {
        Ok(count) => Ok(events.iter().take(count).copied().collect()),
        Err(Errno::EINTR) => Ok(Vec::new()),
        Err(errno) => Err(Error::Os { what: "epoll_wait", errno }),
    }
}

/// Both ends together: the flows that completed, in order of their start, and how many of those started did not. Flows
/// that arrived before `warmup` are left out.
pub(super) fn completions(
    arrivals: &[Arrival],
    sent: &Sent,
    received: &Received,
    epoch: Instant,
    warmup: Duration,
) -> (Vec<Completion>, u64) {
    let counts =
        |index: usize| arrivals.get(index).is_some_and(|a| Duration::from_micros(a.start_us) >= warmup);
    let mut done: Vec<(usize, Instant)> = received.iter().copied().filter(|(i, _)| counts(*i)).collect();
    done.sort_unstable_by_key(|(index, _)| *index);
    let started = (0..sent.connects.len()).filter(|i| counts(*i)).count() as u64;
    let unfinished = started.saturating_sub(done.len() as u64);
    let completion = |(index, at): (usize, Instant)| {
        let (connect, arrival) = (*sent.connects.get(index)?, arrivals.get(index)?);
        Some(Completion {
            start_us: connect.saturating_duration_since(epoch).as_micros() as u64,
            bytes: arrival.bytes,
            fct_us: at.saturating_duration_since(connect).as_micros() as u64,
        })
    };
    (done.into_iter().filter_map(completion).collect(), unfinished)
}

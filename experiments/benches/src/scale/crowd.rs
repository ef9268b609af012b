//! Many bulk TCP flows between two namespaces: one thread writes to all of them, another reads.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, connect, listen, setsockopt, socket, sockopt,
};

use crate::cores::OneCore;
use crate::error::{BenchError, context};

/// Descriptors beside the connections' own.
const OTHER_DESCRIPTORS: u64 = 256;
/// The most bytes of one write or read.
const CHUNK_BYTES: usize = 64 << 10;
/// Memory of all send buffers together. Beyond the kernel's own limit for TCP it would slow all flows down.
const SEND_BUFFERS_BYTES: usize = 256 << 20;
/// Fewer flows than these have the buffers that the kernel chooses.
const SIZED_FROM: usize = 100;
const MIN_SEND_BUFFER_BYTES: usize = 24 << 10;
/// Sockets that one look at the kernel returns.
const READY: usize = 256;
/// How long a thread sleeps before it checks whether to stop.
const NAP_MS: u8 = 20;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Established connections from the first namespace to the second. They end by reset, so that none lingers.
pub struct Crowd {
    senders: Vec<TcpStream>,
    receivers: Vec<TcpStream>,
}

/// Counts the payload bytes that arrive, and says when to stop.
#[derive(Default)]
pub struct Progress {
    pub received_bytes: AtomicU64,
    stop: AtomicBool,
}

/// Lets this process hold two descriptors for each of `connections`.
pub fn raise_limit(connections: usize) -> Result<(), BenchError> {
    let wanted = 2 * connections as u64 + OTHER_DESCRIPTORS;
    let (soft, hard) = context("read a limit", getrlimit(Resource::RLIMIT_NOFILE).map_err(Into::into))?;
    if soft >= wanted {
        return Ok(());
    }
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted));
    context("raise the limit of open files", raised.map_err(Into::into))
}

/// The receivers' listening socket, and its address.
pub fn listen_in(receiver: &Namespace) -> Result<(TcpListener, SocketAddr), BenchError> {
    let listener = receiver.run(|| TcpListener::bind((veth::ENDS[1], 0)))?;
    let listener = context("listen", listener)?;
    let backlog = Backlog::new(BACKLOG).and_then(|backlog| listen(&listener, backlog));
    context("listen", backlog.map_err(Into::into))?;
    let at = context("its address", listener.local_addr())?;
    Ok((listener, at))
}

/// Connects from the calling thread's namespace, under a congestion control.
fn connect_to(
    at: SocketAddr,
    congestion: &str,
    buffer_bytes: Option<usize>,
) -> Result<TcpStream, BenchError> {
    let connected = || -> nix::Result<TcpStream> {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::TcpCongestion, &congestion.into())?;
        if let Some(bytes) = buffer_bytes {
            setsockopt(&socket, sockopt::SndBuf, &bytes)?;
        }
        // By reset: data on the way is of no use to anyone.
        setsockopt(&socket, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(at))?;
        Ok(TcpStream::from(socket))
    };
    context("connect", connected().map_err(Into::into))
}

/// Opens and closes `connections` one after the other, all of which the receiver accepts.
pub fn burst(
    [sender, receiver]: [&Namespace; 2],
    congestion: &str,
    connections: usize,
) -> Result<(), BenchError> {
    let (listener, at) = listen_in(receiver)?;
    thread::scope(|scope| {
        let accepting =
            scope.spawn(|| (0..connections).try_for_each(|_| context("accept", listener.accept().map(drop))));
        sender.run(|| (0..connections).try_for_each(|_| connect_to(at, congestion, None).map(drop)))??;
        accepting.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

impl Crowd {
    /// Opens `connections` from the first namespace to the second.
    pub fn open(
        [sender, receiver]: [&Namespace; 2],
        congestion: &str,
        connections: usize,
    ) -> Result<Crowd, BenchError> {
        raise_limit(connections)?;
        let (listener, at) = listen_in(receiver)?;
        let buffer_bytes = (connections >= SIZED_FROM)
            .then(|| (SEND_BUFFERS_BYTES / connections).max(MIN_SEND_BUFFER_BYTES));
        let open = || {
            let (mut senders, mut receivers) = (Vec::new(), Vec::new());
            for _ in 0..connections {
                senders.push(connect_to(at, congestion, buffer_bytes)?);
                receivers.push(context("accept", listener.accept())?.0);
            }
            Ok::<_, BenchError>(Crowd { senders, receivers })
        };
        let crowd = sender.run(open)??;
        for stream in crowd.senders.iter().chain(&crowd.receivers) {
            context("make a socket not block", stream.set_nonblocking(true))?;
        }
        Ok(crowd)
    }

    /// Sends on all connections while `observe` runs; then they are closed.
    pub fn run<T>(self, observe: impl FnOnce(&Progress) -> Result<T, BenchError>) -> Result<T, BenchError> {
        let Crowd { senders, receivers } = self;
        let progress = Progress::default();
        let (failed, failure) = mpsc::channel();
        let report = |result: Result<(), BenchError>| {
            if let Err(error) = result {
                // Someone listens: the other end is dropped after the threads.
                let _ = failed.send(error);
            }
        };
        let observed = thread::scope(|scope| {
            scope.spawn(|| {
                let _core = OneCore::nth(0);
                report(each_ready(&senders, EpollFlags::EPOLLOUT, &progress, write_some));
            });
            scope.spawn(|| {
                let _core = OneCore::nth(1);
                report(each_ready(&receivers, EpollFlags::EPOLLIN, &progress, read_some));
            });
            let observed = observe(&progress);
            progress.stop.store(true, Relaxed);
            observed
        });
        // What broke the traffic explains more than what could not be observed.
        failure.try_recv().map_or(observed, Err)
    }
}

/// Serves every socket that is ready, until it is time to stop.
fn each_ready(
    streams: &[TcpStream],
    ready: EpollFlags,
    progress: &Progress,
    mut serve: impl FnMut(&TcpStream, &Progress, &mut [u8]) -> std::io::Result<()>,
) -> Result<(), BenchError> {
    let waiting = || -> nix::Result<Epoll> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (stream, n) in streams.iter().zip(0..) {
            epoll.add(stream.as_fd(), EpollEvent::new(ready, n))?;
        }
        Ok(epoll)
    };
    let epoll = context("wait for sockets", waiting().map_err(Into::into))?;
    let mut events = [EpollEvent::empty(); READY];
    let mut chunk = vec![0; CHUNK_BYTES];
    while !progress.stop.load(Relaxed) {
        let count = match epoll.wait(&mut events, EpollTimeout::from(NAP_MS)) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return context("wait for sockets", Err(errno.into())),
        };
        for event in events.iter().take(count) {
            if let Some(stream) = streams.get(event.data() as usize) {
                context("move data", serve(stream, progress, &mut chunk))?;
            }
        }
    }
    Ok(())
}

fn write_some(mut stream: &TcpStream, _: &Progress, chunk: &mut [u8]) -> std::io::Result<()> {
    unless_blocked(stream.write(chunk)).map(drop)
}

fn read_some(mut stream: &TcpStream, progress: &Progress, chunk: &mut [u8]) -> std::io::Result<()> {
    let received = unless_blocked(stream.read(chunk))?;
    progress.received_bytes.fetch_add(received as u64, Relaxed);
    Ok(())
}

fn unless_blocked(moved: std::io::Result<usize>) -> std::io::Result<usize> {
    match moved {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
        other => other,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ccplane_runner::tcp_info::TcpInfo;

    /// Enough for buffers of a size of our own.
    const FLOWS: usize = SIZED_FROM + 50;

    /// Whether this process may make namespaces; says so where it may not.
    fn pair(test: &str) -> Option<[Namespace; 2]> {
        if !ccplane_emulator::netns::available() {
            ccplane_testing::skipped(test, "needs root and /dev/net/tun");
            return None;
        }
        let ends = [Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap()];
        veth::connect(&ends[0], &ends[1]).unwrap();
        Some(ends)
    }

    #[test]
    fn every_connection_carries_data() {
        let Some([a, b]) = pair("every_connection_carries_data") else { return };
        let crowd = Crowd::open([&a, &b], "reno", FLOWS).unwrap();
        let senders: Vec<TcpStream> = crowd.senders.iter().map(|s| s.try_clone().unwrap()).collect();
        let acked = |stream| TcpInfo::of(stream).unwrap().bytes_acked > 0;
        let received_bytes = crowd
            .run(|progress| {
                while !senders.iter().all(acked) {
                    thread::yield_now();
                }
                Ok(progress.received_bytes.load(Relaxed))
            })
            .unwrap();
        assert_eq!(senders.len(), FLOWS);
        assert!(received_bytes > 0);
    }

    #[test]
    fn a_burst_is_accepted_whole() {
        let Some([a, b]) = pair("a_burst_is_accepted_whole") else { return };
        burst([&a, &b], "reno", 300).unwrap();
    }
}

//! Many bulk TCP flows from one namespace, all of which one thread writes to.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

use ccplane_emulator::netns::Namespace;
use ccplane_runner::tcp_info::TcpInfo;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};

use super::READY;
use crate::cores::OneCore;
use crate::error::{BenchError, context};

/// The most bytes of one write.
const CHUNK_BYTES: usize = 64 << 10;
/// Memory of all send buffers together. Beyond the kernel's own limit for TCP it would slow all flows down.
const SEND_BUFFERS_BYTES: usize = 256 << 20;
/// Fewer flows than these have the buffers that the kernel chooses.
const SIZED_FROM: usize = 100;
const MIN_SEND_BUFFER_BYTES: usize = 24 << 10;
/// The time for which the writing thread sleeps before it checks whether to stop, milliseconds.
const NAP_MS: u8 = 20;

/// Established connections. They end by reset, so that none lingers.
pub struct OpenConnections {
    senders: Vec<TcpStream>,
}

/// Lets this process open as many descriptors as it may.
pub fn raise_limit() -> Result<(), BenchError> {
    context("raise the limit of open files", ccplane_files::raise_descriptor_limit())
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

impl OpenConnections {
    /// Opens `connections` from the namespace to the receiver at `at`.
    pub fn open(
        from: &Namespace,
        at: SocketAddr,
        congestion: &str,
        connections: usize,
    ) -> Result<OpenConnections, BenchError> {
        raise_limit()?;
        let buffer_bytes = (connections >= SIZED_FROM)
            .then(|| (SEND_BUFFERS_BYTES / connections).max(MIN_SEND_BUFFER_BYTES));
        let connect = |_| connect_to(at, congestion, buffer_bytes);
        let senders =
            from.run(|| (0..connections).map(connect).collect::<Result<Vec<_>, BenchError>>())??;
        for stream in &senders {
            context("make a socket not block", stream.set_nonblocking(true))?;
        }
        Ok(OpenConnections { senders })
    }

    /// Payload bytes that the receivers have acknowledged so far, on all connections together.
    pub fn acked_bytes(&self) -> Result<u64, BenchError> {
        let mut sum = 0;
        for stream in &self.senders {
            sum += TcpInfo::of(stream)?.bytes_acked;
        }
        Ok(sum)
    }

    /// Sends on all connections while `observe` runs.
    pub fn run<T>(&self, observe: impl FnOnce() -> Result<T, BenchError>) -> Result<T, BenchError> {
        let stop = AtomicBool::new(false);
        let (failed, failure) = mpsc::channel();
        let observed = thread::scope(|scope| {
            scope.spawn(|| {
                let _core = OneCore::nth(0);
                if let Err(error) = self.write_until(&stop) {
                    // Someone listens: the other end is dropped after this thread.
                    let _ = failed.send(error);
                }
            });
            let observed = observe();
            stop.store(true, Relaxed);
            observed
        });
        // What broke the traffic explains more than what could not be observed.
        failure.try_recv().map_or(observed, Err)
    }

    /// Writes to every socket that has room.
    fn write_until(&self, stop: &AtomicBool) -> Result<(), BenchError> {
        let waiting = || -> nix::Result<Epoll> {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            for (stream, n) in self.senders.iter().zip(0..) {
                epoll.add(stream.as_fd(), EpollEvent::new(EpollFlags::EPOLLOUT, n))?;
            }
            Ok(epoll)
        };
        let epoll = context("wait for sockets", waiting().map_err(Into::into))?;
        let mut events = [EpollEvent::empty(); READY];
        let chunk = vec![0; CHUNK_BYTES];
        while !stop.load(Relaxed) {
            let count = match epoll.wait(&mut events, EpollTimeout::from(NAP_MS)) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => return context("wait for sockets", Err(errno.into())),
            };
            for event in events.iter().take(count) {
                if let Some(stream) = self.senders.get(event.data() as usize) {
                    context("send", write_some(stream, &chunk))?;
                }
            }
        }
        Ok(())
    }
}

fn write_some(mut stream: &TcpStream, chunk: &[u8]) -> std::io::Result<()> {
    match stream.write(chunk) {
        Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::sink::{drain, listen_in};
    use super::*;
    use ccplane_emulator::veth;

    /// Enough for buffers of a size of our own.
    const FLOWS: usize = SIZED_FROM + 50;

    #[test]
    fn every_connection_carries_data() {
        if ccplane_testing::lacks("every_connection_carries_data", ccplane_emulator::netns::missing()) {
            return;
        }
        let _alone = crate::cores::alone();
        let (a, b) = (Namespace::anonymous().unwrap(), Namespace::anonymous().unwrap());
        veth::connect(&a, &b).unwrap();
        let (listener, at) = listen_in(&b).unwrap();
        let (owner, parent) = std::io::pipe().unwrap();
        thread::scope(|scope| {
            let sink = scope.spawn(|| drain(&listener, parent));
            let crowd = OpenConnections::open(&a, at, "reno", FLOWS).unwrap();
            assert_eq!(crowd.senders.len(), FLOWS);
            let acked = |stream| TcpInfo::of(stream).unwrap().bytes_acked > 0;
            let acked_bytes = crowd
                .run(|| {
                    while !crowd.senders.iter().all(acked) {
                        thread::yield_now();
                    }
                    crowd.acked_bytes()
                })
                .unwrap();
            assert!(acked_bytes >= FLOWS as u64);
            drop(crowd);
            // The sink ends with its owner.
            drop(owner);
            sink.join().unwrap().unwrap();
        });
    }
}

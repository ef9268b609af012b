//! The receiving end of many flows, in a process of its own: one process may hardly hold the descriptors of both ends.

use std::collections::HashMap;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{Backlog, listen};

use super::READY;
use crate::agent::Process;
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::oracle;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// The most bytes of one read.
const CHUNK_BYTES: usize = 64 << 10;
// What an event is about; the connections' numbers follow.
const PARENT: u64 = 0;
const LISTENER: u64 = 1;

/// A process that accepts connections and drops what they carry; it ends with its owner, however that ends.
pub struct Sink {
    /// The address on which it listens.
    pub at: SocketAddr,
    _process: Process,
}

impl Sink {
    /// Starts `ccplane bench --sink` around a socket of the namespace.
    pub fn start(namespace: &Namespace) -> Result<Sink, BenchError> {
        let (listener, at) = listen_in(namespace)?;
        let mut command = Command::new(oracle::find("ccplane")?);
        command.args(["bench", "--sink"]).stdin(OwnedFd::from(listener)).stdout(Stdio::piped());
        // A child stays on its parent's core.
        let _core = OneCore::nth(1);
        let process = Process(context("start a receiver", command.spawn())?);
        Ok(Sink { at, _process: process })
    }
}

/// A listening socket in a namespace that [`veth::connect`] has joined as the second, and its address.
pub fn listen_in(namespace: &Namespace) -> Result<(TcpListener, SocketAddr), BenchError> {
    let listener = context("listen", namespace.run(|| TcpListener::bind((veth::ENDS[1], 0)))?)?;
    let longer = Backlog::new(BACKLOG).and_then(|backlog| listen(&listener, backlog));
    context("listen", longer.map_err(Into::into))?;
    let at = context("its address", listener.local_addr())?;
    Ok((listener, at))
}

/// Receives from whoever connects to the socket that is standard input, until nobody reads standard output any more.
///
/// # Errors
/// Standard input is no listening socket, or there are no descriptors left.
pub fn run() -> Result<(), BenchError> {
    let listener = context("take the listening socket", std::io::stdin().as_fd().try_clone_to_owned())?;
    super::crowd::raise_limit()?;
    drain(&TcpListener::from(listener), std::io::stdout())
}

/// Receives from whoever connects, until the other end of `parent`, a pipe's writing end, is closed.
pub fn drain(listener: &TcpListener, parent: impl AsFd) -> Result<(), BenchError> {
    context("make a socket not block", listener.set_nonblocking(true))?;
    let made = || -> nix::Result<Epoll> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        // An error is always told.
        epoll.add(&parent, EpollEvent::new(EpollFlags::empty(), PARENT))?;
        Ok(epoll)
    };
    let epoll = context("wait for sockets", made().map_err(Into::into))?;
    let (mut streams, mut next) = (HashMap::new(), LISTENER + 1);
    let (mut events, mut chunk) = ([EpollEvent::empty(); READY], vec![0; CHUNK_BYTES]);
    loop {
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return context("wait for sockets", Err(errno.into())),
        };
        for event in events.iter().take(count) {
            match event.data() {
                PARENT => return Ok(()),
                LISTENER => accept_all(listener, &epoll, &mut streams, &mut next)?,
                number => {
                    if streams.get(&number).is_some_and(|stream| !goes_on(stream, &mut chunk)) {
                        streams.remove(&number);
                    }
                }
            }
        }
    }
}

fn accept_all(
    listener: &TcpListener,
    epoll: &Epoll,
    streams: &mut HashMap<u64, TcpStream>,
    next: &mut u64,
) -> Result<(), BenchError> {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // It was reset before it was accepted.
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                continue;
            }
            Err(error) => return context("accept", Err(error)),
        };
        context("make a socket not block", stream.set_nonblocking(true))?;
        let added = epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, *next));
        context("wait for sockets", added.map_err(Into::into))?;
        streams.insert(*next, stream);
        *next += 1;
    }
}

/// Reads once; whether more may come.
fn goes_on(mut stream: &TcpStream, chunk: &mut [u8]) -> bool {
    match stream.read(chunk) {
        Ok(bytes) => bytes > 0,
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

//! A kernel socket as a [`Wire`]: segmentation offload both ways and ECN through quinn-udp, with sized buffers.

use crate::links::Links;
use crate::marked;
use crate::wire::{Datagram, Wire};
use bytes::BytesMut;
use ccplane_wait::{BusyPollError, BusyWait};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{RecvMeta, UdpSocketState};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use tracing::{debug, warn};

/// The requested size of each socket buffer, bytes: 30 ms at 4 Gb/s.
pub const BUFFER_BYTES: usize = 16 << 20;
/// Buffers of one receive call; each takes the datagrams of one peer that the kernel merged.
const RECEIVE_BATCH: usize = 16;
/// Longest merged datagrams (`UDP_GRO`), bytes.
const RECEIVE_BYTES: usize = 1 << 16;
/// Time between two checks for news of links, for endpoints that never wait.
const LINKS_EVERY: Duration = Duration::from_millis(50);

/// A UDP socket as a wire.
pub struct UdpWire {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    buffers: Buffers,
    received: Box<[u8]>,
    /// Whether the kernel had no room.
    full: bool,
    /// The code point of what is sent.
    dscp: u8,
    /// Whether it was said that the kernel takes no code points.
    is_unmarked: bool,
    links: Option<Links>,
    /// When news of links was last read; `None` if some waits.
    links_at: Option<Instant>,
    /// Waits that poll the socket's device first, where they were asked for.
    busy: Option<Busy>,
}

/// Waits that poll the socket's device.
struct Busy {
    waits: BusyWait,
    us: u32,
    /// Whether they also wait for room to send.
    wants_room: bool,
    /// Whether it is known that the datagrams come from a device that can be polled, or said that they do not.
    is_checked: bool,
}

/// The tokens of what is waited for.
const SOCKET: u64 = 0;
const LINKS: u64 = 1;

/// The sizes that the kernel granted of [`BUFFER_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// The receive buffer, bytes. If it is too small, bursts are lost here that the path delivered.
    pub receive_bytes: usize,
    /// The send buffer, bytes.
    pub send_bytes: usize,
}

impl UdpWire {
    /// Binds a socket; port 0 for any.
    ///
    /// # Errors
    /// The address is taken or not one of this host's.
    pub fn bind(local: SocketAddr) -> io::Result<UdpWire> {
        UdpWire::over(UdpSocket::bind(local)?)
    }

    /// Takes a bound socket.
    ///
    /// # Errors
    /// The socket cannot be set up for QUIC.
    pub fn over(socket: UdpSocket) -> io::Result<UdpWire> {
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        let buffers = size_buffers(&socket)?;
        let received = vec![0; RECEIVE_BATCH * RECEIVE_BYTES].into_boxed_slice();
        let (links, links_at, busy) = (Links::listen(), None, None);
        let (full, dscp, is_unmarked) = (false, 0, false);
        Ok(UdpWire {
            socket,
            state,
            local,
            buffers,
            received,
            full,
            dscp,
            is_unmarked,
            links,
            links_at,
            busy,
        })
    }

    /// Has the kernel poll the socket's device for up to `us` microseconds in each wait, before the thread sleeps.
    ///
    /// # Errors
    /// The kernel refuses, or has no such waits; all is as it was then.
    pub fn busy_poll(&mut self, us: u32) -> Result<(), BusyPollError> {
        let os = |source| BusyPollError::Os { option: "epoll_ctl", source };
        let waits = BusyWait::new(us)?;
        waits.add(&self.socket, SOCKET).map_err(os)?;
        if let Some(links) = &self.links {
            waits.add(links.fd(), LINKS).map_err(os)?;
        }
        self.busy = Some(Busy { waits, us, wants_room: false, is_checked: false });
        Ok(())
    }

    fn wait_busy(&mut self, timeout: Duration) -> io::Result<()> {
        let (wants_room, mut has_news) = (std::mem::take(&mut self.full), false);
        let Some(busy) = &mut self.busy else { return Ok(()) };
        if busy.wants_room != wants_room {
            busy.waits.set_writable(&self.socket, SOCKET, wants_room)?;
            busy.wants_room = wants_room;
        }
        busy.waits.wait(timeout, |token| has_news |= token == LINKS)?;
        if has_news {
            self.links_at = None;
        }
        Ok(())
    }

    /// Says once where busy polling is in vain, after a datagram has come.
    fn check_device(&mut self) {
        let Some(busy) = self.busy.as_mut().filter(|busy| !busy.is_checked) else { return };
        busy.is_checked = true;
        if ccplane_wait::incoming_napi(self.socket.as_fd()).is_none() {
            warn!("datagrams come from no device that can be polled: busy polling changes nothing");
        }
    }

    /// Sends with the code point; `None` where the kernel does not take that, so that quinn-udp sends without.
    fn send_marked(&mut self, to: &Transmit, payload: &[u8]) -> Option<bool> {
        match marked::send(&self.socket, to, self.dscp, payload) {
            Ok(()) => Some(true),
            Err(Errno::EAGAIN) => {
                self.full = true;
                Some(false)
            }
            // quinn-udp then gives up segmentation, or the control message, for good.
            Err(Errno::EINVAL | Errno::EIO) => {
                if !std::mem::replace(&mut self.is_unmarked, true) {
                    warn!("some datagrams leave without their code point: the kernel does not take it");
                }
                None
            }
            // The error concerns this datagram alone: too large, or without a route.
            Err(error) => {
                debug!(%error, "send a datagram");
                Some(true)
            }
        }
    }

    /// The buffer sizes that the kernel granted.
    pub fn buffers(&self) -> Buffers {
        self.buffers
    }

    /// Moves to another socket, as after a change of network. A client's connections migrate with it.
    ///
    /// # Errors
    /// The address is taken or not one of this host's; the wire is as it was then.
    pub fn rebind(&mut self, local: SocketAddr) -> io::Result<()> {
        let mut wire = UdpWire::bind(local)?;
        if let Some(busy) = &self.busy {
            wire.busy_poll(busy.us).map_err(io::Error::other)?;
        }
        *self = wire;
        Ok(())
    }
}

/// Sizes the buffers, past the system's limit if we may (`CAP_NET_ADMIN`), else up to it.
fn size_buffers(socket: &UdpSocket) -> nix::Result<Buffers> {
    setsockopt(socket, sockopt::RcvBufForce, &BUFFER_BYTES)
        .or_else(|_| setsockopt(socket, sockopt::RcvBuf, &BUFFER_BYTES))?;
    setsockopt(socket, sockopt::SndBufForce, &BUFFER_BYTES)
        .or_else(|_| setsockopt(socket, sockopt::SndBuf, &BUFFER_BYTES))?;
    // The kernel doubles the requested size, for its own use, and reports the double (socket(7)).
    let granted = |kernel_bytes: usize| kernel_bytes / 2;
    Ok(Buffers {
        receive_bytes: granted(getsockopt(socket, sockopt::RcvBuf)?),
        send_bytes: granted(getsockopt(socket, sockopt::SndBuf)?),
    })
}

impl Wire for UdpWire {
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn receive(&mut self, each: &mut dyn FnMut(Datagram)) -> io::Result<usize> {
        let mut metas = [RecvMeta::default(); RECEIVE_BATCH];
        let mut chunks = self.received.chunks_exact_mut(RECEIVE_BYTES);
        let mut slices: [IoSliceMut<'_>; RECEIVE_BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let messages = match self.state.recv((&self.socket).into(), &mut slices, &mut metas) {
            Ok(messages) => messages,
            Err(e) if transient(&e) => return Ok(0),
            Err(e) => return Err(e),
        };
        let mut count = 0;
        for (meta, buffer) in metas.iter().zip(&slices).take(messages) {
            // Each payload has memory of its own, so that one that is kept keeps no others.
            for one in buffer[..meta.len].chunks(meta.stride.max(1)).map(BytesMut::from) {
                let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
                each(Datagram { remote: meta.addr, local_ip: meta.dst_ip, ecn, payload: one });
                count += 1;
            }
        }
        if count > 0 {
            self.check_device();
        }
        Ok(count)
    }

    fn set_dscp(&mut self, dscp: u8) {
        self.dscp = dscp;
    }

    fn send(&mut self, to: &Transmit, payload: &[u8]) -> io::Result<bool> {
        if self.dscp != 0
            && let Some(sent) = self.send_marked(to, payload)
        {
            return Ok(sent);
        }
        let transmit = quinn_udp::Transmit {
            destination: to.destination,
            ecn: to.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: payload,
            segment_size: to.segment_size,
            src_ip: to.src_ip,
        };
        // Any other error concerns this datagram alone, and is logged.
        match self.state.send((&self.socket).into(), &transmit) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.full = true;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn max_segments(&self) -> usize {
        self.state.max_gso_segments().max(1)
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn came_up(&mut self) -> bool {
        let Some(links) = &self.links else { return false };
        let now = Instant::now();
        if self.links_at.is_some_and(|at| now.saturating_duration_since(at) < LINKS_EVERY) {
            return false;
        }
        self.links_at = Some(now);
        links.came_up()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn incoming_core(&self) -> Option<usize> {
        ccplane_wait::affinity::incoming_core(self.socket.as_fd())
    }

    fn poll_device(&mut self, us: u32) {
        if let Err(error) = ccplane_wait::set_busy_poll(self.socket.as_fd(), us) {
            debug!(%error, "interrupts bring the socket's packets");
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        if self.busy.is_some() {
            return self.wait_busy(timeout);
        }
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, std::mem::take(&mut self.full));
        let socket = PollFd::new(self.socket.as_fd(), events);
        let timeout = Some(TimeSpec::from_duration(timeout));
        let waited = match &self.links {
            Some(links) => {
                let mut fds = [socket, PollFd::new(links.fd().as_fd(), PollFlags::POLLIN)];
                let waited = ppoll(&mut fds, timeout, None);
                if fds[1].any() == Some(true) {
                    self.links_at = None;
                }
                waited
            }
            None => ppoll(&mut [socket], timeout, None),
        };
        match waited {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Whether no datagram is there, or the error is the echo of a datagram that a peer or router refused.
fn transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable, WouldBlock,
    };
    matches!(
        error.kind(),
        WouldBlock | Interrupted | ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable
    )
}

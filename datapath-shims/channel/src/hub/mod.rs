//! Datapaths in other processes, over one unix datagram socket and, where both sides want it, rings in shared memory.
//!
//! Each process that sends to the socket is a datapath of its own ([`Peer`]), which the agent drives like any
//! other. Its first datagram tells the protocol: `v2` starts with a magic number that `v1` never has. What does
//! not parse, or comes from another user, is counted and logged, and changes nothing. What comes over links to ccp-kernel
//! ([`KernelLink`]) is `v1`.

mod carrier;
mod kernel_ccp;
mod link;
mod lone;
mod slots;
mod socket;
mod v1;
mod v2;

use crate::Wake;
use crate::clock;
use crate::end::End;
use crate::ring::RecordBuffer;
use crate::ring::{Glance, ReadError};
use crate::socket::SOCKET_PREFIX;
pub use carrier::Carrier;
use ccplane_contract::{Datapath, Forward};
use ccplane_files::SocketError;
use ccplane_wire::DecodeError;
use ccplane_wire::v2::{MAGIC, MAX_FRAME_BYTES, TurnedAway};
use kernel_ccp::Brought;
pub use kernel_ccp::{KernelLink, KernelLinkError};
use link::PeerLink;
pub use lone::{GreetError, LonePeer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{SockType, UnixAddr};
use nix::sys::time::TimeSpec;
pub use socket::SendError;
use socket::{Received, Rejected, Socket};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};
use v1::V1Peer;
use v2::V2Peer;

/// Frames taken from one ring in one go, so that no datapath keeps the others waiting.
const MAX_RING_FRAMES: usize = 256;
/// Time between two polls of the file descriptors while frames come through rings, microseconds. A busy agent finds new and
/// lost datapaths within this time, a sleeping one at once.
pub const POLL_EVERY_US: u64 = 1000;
/// Time between two polls while some datapaths use the socket, microseconds.
const SOCKET_EVERY_US: u64 = 10;
/// Most events of one poll; the next poll returns the rest.
const MAX_POLLED: usize = 64;
/// The socket's token among those that are polled; the others are peers' numbers, which start at 1.
const THE_SOCKET: u64 = 0;
/// The token of the links to ccp-kernel.
const THE_LINKS: u64 = u64::MAX;
/// Longest sleep where a link cannot be waited for.
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Polls of the rings between two reads of the clock.
const POLLS_PER_CLOCK_READ: usize = 32;

/// Names a process that speaks to the socket; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u64);

/// Limits of the socket's users, and the terms that they are told.
#[derive(Clone, Copy, Debug)]
pub struct HubOptions {
    /// Most processes that are served at once.
    pub max_peers: usize,
    /// Silence of the agent after which flows go to the native algorithm.
    pub heartbeat_timeout: Duration,
    /// Differs between two runs of the agent.
    pub session: u64,
    /// Whether datapaths that take rings in shared memory get them.
    pub rings: bool,
    /// The way in which datapaths are asked to wait for the agent.
    pub wake: Wake,
}

/// A datapath's arrival or departure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Joined(PeerId),
    /// One whose flows have all been reported closed, and which can be removed.
    Left(PeerId),
}

/// The socket and the datapaths that use it.
#[derive(Debug)]
pub struct Hub {
    socket: Arc<Socket>,
    options: HubOptions,
    /// The socket, and the descriptor by which each ring's datapath wakes the agent.
    pollable: Epoll,
    buffer: Vec<u8>,
    record: RecordBuffer,
    /// The peers that have a ring.
    rings: Vec<PeerId>,
    /// Whether these are others than the glances that were made last.
    rings_changed: bool,
    /// Links to ccp-kernel that are heard beside the socket.
    links: Vec<KernelLink>,
    /// Whether a link may hold a message.
    links_ready: bool,
    /// Whether there is a link that cannot be waited for.
    has_unpollable: bool,
    /// Whether the socket may hold a datagram.
    socket_ready: bool,
    /// The time of the next poll, microseconds.
    next_poll_us: u64,
    /// Whether some datapath may have left.
    some_left: bool,
    /// The datapath whose ring has ended the agent's sleep last.
    woken_by: Option<PeerId>,
    by_address: HashMap<Address, PeerId>,
    peers: BTreeMap<PeerId, Peer>,
    next_peer: u64,
    malformed: u64,
}

/// The place of a datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Address {
    Unix(UnixAddr),
    /// A link to ccp-kernel, by its place in [`Hub::links`], and the netlink port there; 0 for the kernel's own.
    Kernel {
        link: usize,
        port: u32,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(address) => address.fmt(f),
            Address::Kernel { port: 0, .. } => f.write_str("ccp-kernel"),
            Address::Kernel { port, .. } => write!(f, "netlink port {port}"),
        }
    }
}

/// Reasons why a datagram changed nothing.
#[derive(Debug, thiserror::Error)]
enum Malformed {
    #[error("{0}")]
    Rejected(#[from] Rejected),
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("{0}")]
    Ring(#[from] ReadError),
    #[error("a message of another user, or one that is cut off")]
    Stranger,
    #[error("{limit} datapaths are served, the most allowed")]
    TooManyPeers { limit: usize },
}

impl Hub {
    /// Binds `path`, replacing the socket that a dead agent left.
    ///
    /// # Errors
    /// The path cannot be bound.
    pub fn bind(path: &Path, options: HubOptions) -> Result<Hub, SocketError> {
        let socket = Socket::bind(path)?;
        let error = |errno: Errno| SocketError::io("wait on", path, errno.into());
        let pollable = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(error)?;
        pollable.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, THE_SOCKET)).map_err(error)?;
        Ok(Hub {
            socket: Arc::new(socket),
            options,
            pollable,
            buffer: vec![0; MAX_FRAME_BYTES],
            record: RecordBuffer::default(),
            rings: Vec::new(),
            rings_changed: true,
            links: Vec::new(),
            links_ready: false,
            has_unpollable: false,
            socket_ready: true,
            next_poll_us: 0,
            some_left: false,
            woken_by: None,
            by_address: HashMap::new(),
            peers: BTreeMap::new(),
            next_peer: 1,
            malformed: 0,
        })
    }

    /// Hears a link to ccp-kernel, too.
    ///
    /// # Errors
    /// epoll(7) failed.
    pub fn listen(&mut self, link: KernelLink) -> io::Result<()> {
        match self.pollable.add(&link, EpollEvent::new(EpollFlags::EPOLLIN, THE_LINKS)) {
            // ccp-kernel's device has no poll.
            Err(Errno::EPERM) => self.has_unpollable = true,
            added => added?,
        }
        link.wake();
        self.links.push(link);
        self.links_ready = true;
        Ok(())
    }

    /// Whether the socket's name still leads to it; another process may have put its own there, as portus does.
    pub fn is_reachable(&self) -> bool {
        self.socket.is_reachable()
    }

    /// Datagrams that were rejected or could not be parsed.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// A process at the other end.
    pub fn peer(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    /// Takes the messages in the rings and at most `max` datagrams, received at `now_us`; appends the peers
    /// that joined or left.
    pub fn receive(&mut self, max: usize, now_us: u64, changes: &mut Vec<Change>) -> usize {
        let mut taken = self.receive_rings();
        if self.rings.is_empty() {
            self.socket_ready = true;
            self.links_ready = true;
        } else if now_us >= self.next_poll_us {
            let all_have_rings = self.rings.len() == self.peers.len();
            let every_us = if all_have_rings { POLL_EVERY_US } else { SOCKET_EVERY_US };
            self.next_poll_us = now_us.saturating_add(every_us);
            self.some_left = true;
            if let Err(error) = self.poll_ready(EpollTimeout::ZERO) {
                warn!(%error, "look for datapaths");
            }
        }
        if std::mem::take(&mut self.socket_ready) {
            taken += self.receive_datagrams(max, now_us, changes);
            self.some_left = true;
        }
        if !self.links.is_empty() && (std::mem::take(&mut self.links_ready) || self.has_unpollable) {
            taken += self.receive_links(max, now_us, changes);
            self.some_left = true;
        }
        if std::mem::take(&mut self.some_left) {
            self.collect_gone(changes);
        }
        taken
    }

    fn receive_rings(&mut self) -> usize {
        let mut taken = 0;
        let mut broken = Vec::new();
        for id in &self.rings {
            let Some(Peer(Protocol::V2(peer))) = self.peers.get_mut(id) else { continue };
            match peer.take_ring(&mut self.record, MAX_RING_FRAMES) {
                Ok(frames) => {
                    taken += frames;
                    self.some_left |= peer.is_gone();
                }
                Err(error) => {
                    self.some_left = true;
                    warn!(peer = id.0, %error, "a datapath wrote garbage into its ring");
                    peer.drop_out(&error.to_string());
                    broken.push(error);
                }
            }
        }
        broken.iter().for_each(|error| self.note_malformed(error));
        taken + broken.len()
    }

    fn receive_datagrams(&mut self, max: usize, now_us: u64, changes: &mut Vec<Change>) -> usize {
        let mut taken = 0;
        while taken < max {
            let mut buffer = std::mem::take(&mut self.buffer);
            let outcome = match self.socket.receive(&mut buffer) {
                Ok(Received::Nothing) => None,
                Ok(Received::Rejected(why)) => Some(Err(why.into())),
                Ok(Received::Datagram { bytes, from }) => {
                    Some(self.datagram(buffer.get(..bytes).unwrap_or_default(), from, now_us, changes))
                }
                Err(error) => {
                    warn!(%error, "receive from datapaths");
                    None
                }
            };
            self.buffer = buffer;
            match outcome {
                None => break,
                Some(Ok(())) => {}
                Some(Err(error)) => self.note_malformed(&error),
            }
            taken += 1;
        }
        taken
    }

    fn receive_links(&mut self, max: usize, now_us: u64, changes: &mut Vec<Change>) -> usize {
        let mut taken = 0;
        let mut buffer = std::mem::take(&mut self.buffer);
        for link in 0..self.links.len() {
            while taken < max {
                let outcome = match self.links[link].receive(&mut buffer) {
                    Ok(Brought::Nothing) => break,
                    Ok(Brought::Rejected) => Err(Malformed::Stranger),
                    Ok(Brought::Message { start, end, port }) => {
                        let message = buffer.get(start..end).unwrap_or_default();
                        self.datagram_v1(message, Address::Kernel { link, port }, now_us, changes)
                    }
                    Err(error) => {
                        warn!(%error, "receive from ccp-kernel");
                        break;
                    }
                };
                if let Err(error) = outcome {
                    self.note_malformed(&error);
                }
                taken += 1;
            }
        }
        self.buffer = buffer;
        taken
    }

    /// Blocks until something arrives, or `timeout` passed.
    ///
    /// # Errors
    /// epoll(7) failed.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.wait_also(timeout, None)
    }

    /// Waits as [`Hub::wait`] does, and ends early when `also` becomes readable.
    ///
    /// # Errors
    /// The error of ppoll(2) or epoll(7).
    pub fn wait_also(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
        // Each ring is told that the agent sleeps, and only then polled for the last time.
        let timeout = self.longest_sleep(timeout);
        let quiet = self.ends().all(|(_, end)| end.doze());
        let waited = match also {
            _ if !quiet => Ok(()),
            // epoll(7) by itself counts milliseconds.
            None if is_whole_millis(timeout) => {
                self.poll_ready(EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::MAX))
            }
            also => {
                let ours = PollFd::new(self.pollable.0.as_fd(), PollFlags::POLLIN);
                let count = if also.is_some() { 2 } else { 1 };
                let also = also.unwrap_or(self.pollable.0.as_fd());
                let mut both = [ours, PollFd::new(also, PollFlags::POLLIN)];
                match ppoll(&mut both[..count], Some(TimeSpec::from_duration(timeout)), None) {
                    Ok(_) | Err(Errno::EINTR) => self.poll_ready(EpollTimeout::ZERO),
                    Err(errno) => Err(errno),
                }
            }
        };
        self.ends().for_each(|(_, end)| end.awake());
        Ok(waited?)
    }

    /// Makes looks at the rings, for another thread; they are good until the rings are others.
    pub fn glances(&mut self) -> Vec<Glance> {
        self.rings_changed = false;
        self.ends().map(|(_, end)| end.glance()).collect()
    }

    /// Whether the rings are others than those of the last glances.
    pub fn rings_changed(&self) -> bool {
        self.rings_changed
    }

    /// Shows glances what has been received; returns whether a frame is there.
    pub fn show(&self) -> bool {
        // Each of them, whether or not one before it has a frame.
        self.ends().fold(false, |ready, (_, end)| end.show() | ready)
    }

    /// Sees what is readable behind [`AsFd`], after another thread has looked there.
    ///
    /// # Errors
    /// The error of epoll(7).
    pub fn poll_now(&mut self) -> io::Result<()> {
        Ok(self.poll_ready(EpollTimeout::ZERO)?)
    }

    /// Bounds a sleep by what can only be asked: a link that cannot be waited for.
    pub fn longest_sleep(&self, timeout: Duration) -> Duration {
        if self.has_unpollable { timeout.min(LINK_POLL_INTERVAL) } else { timeout }
    }

    /// Waits at most `timeout` for the socket, and for rings whose datapaths have woken us or are gone.
    fn poll_ready(&mut self, timeout: EpollTimeout) -> Result<(), Errno> {
        let mut polled = [EpollEvent::empty(); MAX_POLLED];
        let count = match self.pollable.wait(&mut polled, timeout) {
            Err(Errno::EINTR) => 0,
            waited => waited?,
        };
        for event in polled.iter().take(count) {
            match event.data() {
                THE_SOCKET => self.socket_ready = true,
                THE_LINKS => self.links_ready = true,
                id => {
                    if let Some(Peer(Protocol::V2(peer))) = self.peers.get_mut(&PeerId(id)) {
                        peer.take_wakes();
                        self.some_left |= peer.is_gone();
                        self.woken_by = Some(PeerId(id));
                    }
                }
            }
        }
        Ok(())
    }

    /// The core from which a datapath has woken the agent last over its ring, as that datapath says; `None` before.
    pub fn waker_core(&self) -> Option<usize> {
        let (_, end) = self.ends().find(|(id, _)| Some(*id) == self.woken_by)?;
        end.waker_core()
    }

    /// Polls the rings without pause, from `now_us` on, until a frame is there or `at_most_us` have passed. Returns the last
    /// reading of the clock if a frame is there.
    pub fn spin(&self, mut now_us: u64, at_most_us: u64) -> Option<u64> {
        let until_us = now_us.saturating_add(at_most_us);
        while !self.rings.is_empty() && now_us < until_us {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.ends().any(|(_, end)| end.is_ready()) {
                    return Some(now_us);
                }
                std::hint::spin_loop();
            }
            now_us = clock::now_us();
        }
        None
    }

    fn ends(&self) -> impl Iterator<Item = (PeerId, &End)> {
        self.rings.iter().filter_map(|id| match self.peers.get(id) {
            Some(Peer(Protocol::V2(peer))) => Some((*id, peer.ring()?)),
            _ => None,
        })
    }

    fn datagram(
        &mut self,
        datagram: &[u8],
        from: UnixAddr,
        now_us: u64,
        changes: &mut Vec<Change>,
    ) -> Result<(), Malformed> {
        if datagram.starts_with(&MAGIC.to_le_bytes()) {
            return self.datagram_v2(datagram, from, changes);
        }
        self.datagram_v1(datagram, Address::Unix(from), now_us, changes)
    }

    fn datagram_v1(
        &mut self,
        datagram: &[u8],
        from: Address,
        now_us: u64,
        changes: &mut Vec<Change>,
    ) -> Result<(), Malformed> {
        if let Some(Peer(Protocol::V1(peer))) = self.known(&from) {
            return Ok(peer.take(datagram, now_us)?);
        }
        // A sender is remembered only after a datagram that parses.
        let link = match from {
            Address::Unix(to) => PeerLink::new(Arc::clone(&self.socket), to),
            Address::Kernel { link, port } => {
                let Some(link) = self.links.get(link) else { return Ok(()) };
                PeerLink::over(link.carrier(port))
            }
        };
        let mut peer = V1Peer::new(link);
        peer.take(datagram, now_us)?;
        self.check_room(from)?;
        self.join(from, Peer(Protocol::V1(peer)), changes);
        Ok(())
    }

    fn datagram_v2(
        &mut self,
        datagram: &[u8],
        from: UnixAddr,
        changes: &mut Vec<Change>,
    ) -> Result<(), Malformed> {
        let mut link = PeerLink::new(Arc::clone(&self.socket), from);
        if let Some(hello) = v2::hello(datagram)? {
            if let Err(full) = self.check_room(Address::Unix(from)) {
                let limit = u32::try_from(self.options.max_peers).unwrap_or(u32::MAX);
                v2::turn_away(&mut link, TurnedAway::TooMany { limit });
                return Err(full);
            }
            if let Some(mut peer) = V2Peer::welcome(link, &hello, &self.options) {
                peer.take(datagram)?;
                self.join(Address::Unix(from), Peer(Protocol::V2(peer)), changes);
            }
            return Ok(());
        }
        match self.known(&Address::Unix(from)) {
            Some(Peer(Protocol::V2(peer))) => Ok(peer.take(datagram)?),
            _ => {
                v2::ask_for_hello(&mut link);
                Ok(())
            }
        }
    }

    fn known(&mut self, from: &Address) -> Option<&mut Peer> {
        self.peers.get_mut(self.by_address.get(from)?)
    }

    /// Whether `from` may join: it is known already, or there is room for one more.
    fn check_room(&self, from: Address) -> Result<(), Malformed> {
        let limit = self.options.max_peers;
        if self.by_address.len() < limit || self.by_address.contains_key(&from) {
            Ok(())
        } else {
            Err(Malformed::TooManyPeers { limit })
        }
    }

    /// Adds a peer, which replaces an earlier one of the same address.
    fn join(&mut self, from: Address, peer: Peer, changes: &mut Vec<Change>) {
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        if let Some(before) = self.by_address.insert(from, id) {
            self.leave(before, changes);
        }
        let ring = peer.ring();
        info!(
            peer = id.0,
            kind = peer.capabilities().kind,
            address = %from,
            ring = ring.is_some(),
            "datapath joined"
        );
        if let Some(ring) = ring {
            self.rings.push(id);
            self.rings_changed = true;
            // Without it, the ring is polled when something else wakes the agent.
            if let Err(error) = self.pollable.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, id.0)) {
                warn!(%error, "wait on a datapath's ring");
            }
        }
        self.peers.insert(id, peer);
        changes.push(Change::Joined(id));
    }

    fn leave(&mut self, id: PeerId, changes: &mut Vec<Change>) {
        self.rings.retain(|with_ring| *with_ring != id);
        self.rings_changed = true;
        if let Some(ring) = self.peers.get(&id).and_then(Peer::ring)
            && let Err(error) = self.pollable.delete(ring)
        {
            debug!(%error, "wait no more on a datapath's ring");
        }
        if let Some(peer) = self.peers.get_mut(&id) {
            info!(peer = id.0, "datapath left");
            peer.close_all();
            changes.push(Change::Left(id));
        }
    }

    fn collect_gone(&mut self, changes: &mut Vec<Change>) {
        let gone: Vec<(Address, PeerId)> = self
            .by_address
            .iter()
            .filter(|(_, id)| self.peers.get(id).is_none_or(Peer::is_gone))
            .map(|(address, id)| (*address, *id))
            .collect();
        for (address, id) in gone {
            self.by_address.remove(&address);
            self.leave(id, changes);
            if let Address::Unix(address) = address {
                self.unlink(&address);
            }
        }
    }

    /// Removes the socket that a datapath of ours has left beside the agent's: one that was killed could not.
    fn unlink(&self, address: &UnixAddr) {
        let Some(path) = address.path().filter(|path| path.parent() == self.socket.path().parent()) else {
            return;
        };
        let named = path.file_name().and_then(|name| name.to_str());
        if named.is_some_and(|name| name.starts_with(SOCKET_PREFIX)) {
            // It has done so itself if it could.
            let _ = ccplane_files::remove_stale_socket(path, SockType::Datagram);
        }
    }

    /// Whether a command waits for room in a process's socket. The next poll of that [`Peer`] tries again.
    pub fn has_backlog(&self) -> bool {
        self.peers.values().any(Peer::has_backlog)
    }

    /// Forgets one that left.
    pub fn remove(&mut self, id: PeerId) {
        self.peers.remove(&id);
    }

    /// Says goodbye to all.
    pub fn farewell(&mut self) {
        for peer in self.peers.values_mut() {
            if let Protocol::V2(peer) = &mut peer.0 {
                peer.farewell();
            }
        }
    }

    /// Logs the 1st, 2nd, 4th, 8th ...: a flood of garbage must not become a flood of log lines.
    fn note_malformed(&mut self, error: &Malformed) {
        self.malformed = self.malformed.saturating_add(1);
        if self.malformed.is_power_of_two() {
            warn!(%error, so_far = self.malformed, "datagram not heard");
        }
    }
}

impl AsFd for Hub {
    /// Readable while the socket, a link or a ring's bell is.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pollable.0.as_fd()
    }
}

fn is_whole_millis(time: Duration) -> bool {
    time.subsec_nanos().is_multiple_of(1_000_000)
}

/// A datapath in another process.
#[derive(Debug)]
pub struct Peer(Protocol);

#[derive(Debug)]
enum Protocol {
    V1(V1Peer),
    V2(V2Peer),
}

impl Peer {
    fn ring(&self) -> Option<&End> {
        match &self.0 {
            Protocol::V1(_) => None,
            Protocol::V2(peer) => peer.ring(),
        }
    }

    fn is_gone(&self) -> bool {
        match &self.0 {
            Protocol::V1(peer) => peer.is_gone(),
            Protocol::V2(peer) => peer.is_gone(),
        }
    }

    fn has_backlog(&self) -> bool {
        match &self.0 {
            Protocol::V1(peer) => peer.has_backlog(),
            Protocol::V2(peer) => peer.has_backlog(),
        }
    }

    fn close_all(&mut self) {
        match &mut self.0 {
            Protocol::V1(peer) => peer.close_all(),
            Protocol::V2(peer) => peer.close_all(),
        }
    }
}

impl Forward for Peer {
    fn inner(&self) -> &dyn Datapath {
        match &self.0 {
            Protocol::V1(peer) => peer,
            Protocol::V2(peer) => peer,
        }
    }

    fn inner_mut(&mut self) -> &mut dyn Datapath {
        match &mut self.0 {
            Protocol::V1(peer) => peer,
            Protocol::V2(peer) => peer,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

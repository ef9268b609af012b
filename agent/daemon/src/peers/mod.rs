//! Datapaths in other processes, over one unix datagram socket and, where both sides want it, rings in shared memory.
//!
//! Each process that sends to the socket is a datapath of its own ([`Peer`]), which the agent drives like any
//! other. Its first datagram tells the protocol: [`v2`] starts with a magic number that [`v1`] never has. What does
//! not parse, or comes from another user, is counted and logged, and changes nothing.

mod link;
mod slots;
mod socket;
mod v1;
mod v2;

use crate::clock;
use crate::rundir::RunDirError;
use ccplane_channel::ring::ReadError;
use ccplane_channel::{End, Record, SOCKET_PREFIX, Wake};
use ccplane_contract::{Datapath, Forward};
use ccplane_wire::DecodeError;
use ccplane_wire::v2::{MAGIC, MAX_FRAME_BYTES, TurnedAway};
use link::Link;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{SockType, UnixAddr};
use socket::{Received, Socket, Unheard};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};
use v1::V1Peer;
use v2::V2Peer;

/// Frames taken from one ring in one go, so that no datapath keeps the others waiting.
const MAX_RING_FRAMES: usize = 256;
/// Time between two looks at what wakes us while frames come through rings, microseconds: a system call. As long as it takes
/// at most to find that a datapath with a ring is gone, or that a new one has come; who sleeps finds it at once.
pub const LOOK_EVERY_US: u64 = 1000;
/// The same while others speak over the socket.
const SOCKET_EVERY_US: u64 = 10;
/// Events of one wait; more are there at the next one.
const MAX_POLLED: usize = 64;
/// The socket among what is waited for; the rest are peers' numbers, which start at 1.
const THE_SOCKET: u64 = 0;
/// Looks at the rings between two looks at the clock.
const LOOKS: usize = 32;

/// Names a process that speaks to the socket; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u64);

/// What the socket's users may take of the agent, and what they are told.
#[derive(Clone, Copy, Debug)]
pub struct HubOptions {
    /// Processes heard at once.
    pub max_peers: usize,
    /// Silence of the agent after which flows go to the native algorithm.
    pub heartbeat_timeout: Duration,
    /// Differs between two runs of the agent.
    pub session: u64,
    /// Whether datapaths that take rings in shared memory get them.
    pub rings: bool,
    /// How datapaths are asked to wait for the agent.
    pub wake: Wake,
}

/// What became of the processes at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new one.
    Joined(PeerId),
    /// One whose flows have all been reported closed, and which can be removed.
    Left(PeerId),
}

/// The socket and who speaks to it.
#[derive(Debug)]
pub struct Hub {
    socket: Arc<Socket>,
    options: HubOptions,
    /// The socket, and what each ring wakes us by.
    pollable: Epoll,
    buffer: Vec<u8>,
    record: Record,
    /// Who has a ring.
    rings: Vec<PeerId>,
    /// The socket has something.
    socket_ready: bool,
    /// When to look again what has something, though nobody has slept.
    next_look_us: u64,
    /// Perhaps somebody has left.
    some_left: bool,
    by_address: HashMap<UnixAddr, PeerId>,
    peers: BTreeMap<PeerId, Peer>,
    next_peer: u64,
    malformed: u64,
}

/// Why a datagram changed nothing.
#[derive(Debug, thiserror::Error)]
enum Malformed {
    #[error("{0}")]
    Unheard(#[from] Unheard),
    #[error("{0}")]
    Decode(#[from] DecodeError),
    #[error("{0}")]
    Ring(#[from] ReadError),
    #[error("{limit} datapaths are served, the most allowed")]
    TooManyPeers { limit: usize },
}

impl Hub {
    /// Binds `path`, replacing the socket that a dead agent left.
    ///
    /// # Errors
    /// The path cannot be bound.
    pub fn bind(path: &Path, options: HubOptions) -> Result<Hub, RunDirError> {
        let socket = Socket::bind(path)?;
        let error = |errno: Errno| RunDirError::io("wait on", path, errno.into());
        let pollable = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(error)?;
        pollable.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, THE_SOCKET)).map_err(error)?;
        Ok(Hub {
            socket: Arc::new(socket),
            options,
            pollable,
            buffer: vec![0; MAX_FRAME_BYTES],
            record: Record::default(),
            rings: Vec::new(),
            socket_ready: true,
            next_look_us: 0,
            some_left: false,
            by_address: HashMap::new(),
            peers: BTreeMap::new(),
            next_peer: 1,
            malformed: 0,
        })
    }

    /// Datagrams that were not heard, or not understood.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// A process at the other end.
    pub fn peer(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.peers.get_mut(&id)
    }

    /// Takes what waits in the rings and at most `max` waiting datagrams, received at `now_us`; appends who joined and
    /// who left.
    pub fn receive(&mut self, max: usize, now_us: u64, changes: &mut Vec<Change>) -> usize {
        let mut taken = self.receive_rings();
        if self.rings.is_empty() {
            self.socket_ready = true;
        } else if now_us >= self.next_look_us {
            let all_have_rings = self.rings.len() == self.peers.len();
            let every_us = if all_have_rings { LOOK_EVERY_US } else { SOCKET_EVERY_US };
            self.next_look_us = now_us.saturating_add(every_us);
            self.some_left = true;
            if let Err(error) = self.look(EpollTimeout::ZERO) {
                warn!(%error, "look for datapaths");
            }
        }
        if std::mem::take(&mut self.socket_ready) {
            taken += self.receive_datagrams(max, now_us, changes);
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
                Ok(Received::Unheard(why)) => Some(Err(why.into())),
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

    /// Blocks until something arrives, or `timeout` passed.
    ///
    /// # Errors
    /// epoll(7) failed.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        // Each ring is told that we sleep, and only then looked at for the last time.
        let quiet = self.ends().all(|(_, end)| end.doze());
        let waited = if quiet {
            self.look(EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::MAX))
        } else {
            Ok(())
        };
        self.ends().for_each(|(_, end)| end.awake());
        Ok(waited?)
    }

    /// What has something, within `timeout`: the socket, and rings whose datapaths have woken us or are gone.
    fn look(&mut self, timeout: EpollTimeout) -> Result<(), Errno> {
        let mut polled = [EpollEvent::empty(); MAX_POLLED];
        let count = match self.pollable.wait(&mut polled, timeout) {
            Err(Errno::EINTR) => 0,
            waited => waited?,
        };
        for event in polled.iter().take(count) {
            match event.data() {
                THE_SOCKET => self.socket_ready = true,
                id => {
                    if let Some(Peer(Protocol::V2(peer))) = self.peers.get_mut(&PeerId(id)) {
                        peer.take_wakes();
                        self.some_left |= peer.is_gone();
                    }
                }
            }
        }
        Ok(())
    }

    /// Looks at the rings without pause, from `now_us` on, until something is there or `at_most_us` have passed; the time
    /// of the last look at the clock if something is there.
    pub fn spin(&self, mut now_us: u64, at_most_us: u64) -> Option<u64> {
        let until_us = now_us.saturating_add(at_most_us);
        while !self.rings.is_empty() && now_us < until_us {
            for _ in 0..LOOKS {
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
        if let Some(Peer(Protocol::V1(peer))) = self.known(&from) {
            return Ok(peer.take(datagram, now_us)?);
        }
        // Only who says something that makes sense is remembered.
        let mut peer = V1Peer::new(Link::new(Arc::clone(&self.socket), from));
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
        let mut link = Link::new(Arc::clone(&self.socket), from);
        if let Some(hello) = v2::hello(datagram)? {
            if let Err(full) = self.check_room(from) {
                let limit = u32::try_from(self.options.max_peers).unwrap_or(u32::MAX);
                v2::turn_away(&mut link, TurnedAway::TooMany { limit });
                return Err(full);
            }
            if let Some(mut peer) = V2Peer::welcome(link, &hello, &self.options) {
                peer.take(datagram)?;
                self.join(from, Peer(Protocol::V2(peer)), changes);
            }
            return Ok(());
        }
        match self.known(&from) {
            Some(Peer(Protocol::V2(peer))) => Ok(peer.take(datagram)?),
            _ => {
                v2::ask_for_hello(&mut link);
                Ok(())
            }
        }
    }

    fn known(&mut self, from: &UnixAddr) -> Option<&mut Peer> {
        self.peers.get_mut(self.by_address.get(from)?)
    }

    /// Whether `from` may join: it is known already, or there is room for one more.
    fn check_room(&self, from: UnixAddr) -> Result<(), Malformed> {
        let limit = self.options.max_peers;
        if self.by_address.len() < limit || self.by_address.contains_key(&from) {
            Ok(())
        } else {
            Err(Malformed::TooManyPeers { limit })
        }
    }

    /// Replaces whoever had the address before.
    fn join(&mut self, from: UnixAddr, peer: Peer, changes: &mut Vec<Change>) {
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
            // Without it, the ring is looked at when something else wakes us.
            if let Err(error) = self.pollable.add(ring, EpollEvent::new(EpollFlags::EPOLLIN, id.0)) {
                warn!(%error, "wait on a datapath's ring");
            }
        }
        self.peers.insert(id, peer);
        changes.push(Change::Joined(id));
    }

    fn leave(&mut self, id: PeerId, changes: &mut Vec<Change>) {
        self.rings.retain(|with_ring| *with_ring != id);
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
        let gone: Vec<(UnixAddr, PeerId)> = self
            .by_address
            .iter()
            .filter(|(_, id)| self.peers.get(id).is_none_or(Peer::is_gone))
            .map(|(address, id)| (*address, *id))
            .collect();
        for (address, id) in gone {
            self.by_address.remove(&address);
            self.leave(id, changes);
            self.unlink(&address);
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
            let _ = crate::rundir::remove_stale_socket(path, SockType::Datagram);
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

#[cfg(test)]
mod tests;

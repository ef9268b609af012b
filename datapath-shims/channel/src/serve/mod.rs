//! The datapath's side: serves any [`Datapath`] to an agent, and reconnects when the agent went away.

mod conversation;
mod programs;
mod thread;

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccplane_contract::{Capabilities, Datapath};
use ccplane_wait::Wake;
use ccplane_wire::DecodeError;
use ccplane_wire::v2::{
    ByeReason, Clock, Features, Hello, MAX_FRAME_BYTES, MINOR, ToAgent, ToDatapath, TurnedAway, Welcome,
    frames,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use tracing::{debug, info, warn};

use crate::end::{End, Parts};
use crate::ring::RecordBuffer;
use crate::socket::{Received, Sent, Socket};
use crate::waker::Waker;
use conversation::{Buffers, Conversation, EndReason};
use programs::Programs;

pub use thread::{ServedLink, spawn};

/// Time between two searches for an agent, microseconds.
const AGAIN_US: u64 = 100_000;
/// The longest time in which an agent has to answer a HELLO, microseconds.
const GREETED_US: u64 = 1_000_000;
/// The time after which something that found no room is tried again: nothing tells when the agent
/// has read.
const RETRY_FULL: Duration = Duration::from_millis(1);
/// Longest kind, and name, that a HELLO carries, bytes.
const MAX_KIND_BYTES: usize = 31;
const MAX_NAME_BYTES: usize = 63;

/// The transport of frames between the datapath and the agent.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Transport {
    /// Rings in shared memory, where the agent offers them; else its socket.
    #[default]
    Ring,
    /// The agent's socket alone.
    Socket,
}

/// The way in which a datapath is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The datapath's name, such as its process's; cut after 63 bytes.
    pub name: String,
    pub transport: Transport,
    /// The way in which the serving thread waits; `None` to follow the agent's configuration.
    pub wake: Option<Wake>,
    /// The clock that the datapath's timestamps count from.
    pub clock: Clock,
    /// The waker that the datapath calls on an event that the agent is to get at once.
    pub waker: Waker,
}

impl ServeOptions {
    /// Creates options for rings where the agent offers them, and for waiting as the agent's configuration asks.
    ///
    /// # Errors
    /// The system gives no eventfd.
    pub fn new(name: &str) -> io::Result<ServeOptions> {
        Ok(ServeOptions {
            name: name.to_owned(),
            transport: Transport::Ring,
            wake: None,
            clock: Clock::Monotonic,
            waker: Waker::new()?,
        })
    }
}

/// The work that one [`Served::turn`] did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Turn {
    /// Whether there is an agent.
    pub connected: bool,
    pub commands: usize,
    /// Events taken from the datapath.
    pub events: usize,
}

impl Turn {
    /// Whether it did anything.
    pub fn is_busy(&self) -> bool {
        self.commands > 0 || self.events > 0
    }
}

/// The reason for which whoever listens at the agent's socket does not serve this datapath.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// HELLO had no answer: agents of CCP's own protocol, such as portus's, answer no message of ours.
    #[error("nothing that is said to it is answered")]
    NoAnswer,
    #[error("the agent turned this datapath away: {0}")]
    TurnedAway(TurnedAway),
    /// The answer is of another protocol, or of another version of ours.
    #[error("its answer is not understood: {0}")]
    Answer(DecodeError),
}

/// A datapath's place at an agent. Nothing here blocks, but [`Served::wait`].
#[derive(Debug)]
pub struct Served {
    agent: PathBuf,
    options: ServeOptions,
    state: State,
    programs: Programs,
    buffers: Buffers,
    /// Calls of the waker that the last turn has looked after.
    calls: u32,
    /// Rings that the agent offered could not be had: they are not asked for again.
    without_ring: bool,
    mismatch: Option<Mismatch>,
}

#[derive(Debug)]
enum State {
    /// No agent is there; when to look again.
    Away {
        again_us: u64,
    },
    /// HELLO was sent and is not answered yet.
    Greeted {
        socket: Socket,
        until_us: u64,
    },
    Connected(Box<Conversation>),
}

impl Served {
    /// Serves the agent whose datapath socket is, or will be, at `agent`. The first turn connects to it.
    pub fn connect(agent: &Path, options: ServeOptions) -> Served {
        Served {
            agent: agent.to_owned(),
            options,
            state: State::Away { again_us: 0 },
            programs: Programs::default(),
            buffers: Buffers { record: RecordBuffer::default(), datagram: vec![0; MAX_FRAME_BYTES].into() },
            calls: 0,
            without_ring: false,
            mismatch: None,
        }
    }

    /// The reason for which whoever listens at the agent's socket does not serve this datapath; `None` if nobody listens, or an
    /// agent serves it.
    pub fn mismatch(&self) -> Option<&Mismatch> {
        self.mismatch.as_ref()
    }

    /// Whether there is an agent.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Connected(_))
    }

    /// Returns the agent's WELCOME, which holds its heartbeat timeout.
    pub fn welcome(&self) -> Option<&Welcome> {
        match &self.state {
            State::Connected(conversation) => Some(conversation.welcome()),
            _ => None,
        }
    }

    /// Whether frames go over rings.
    pub fn has_ring(&self) -> bool {
        matches!(&self.state, State::Connected(conversation) if conversation.ring().is_some())
    }

    /// Returns the way in which the serving thread is to wait.
    pub fn wake(&self) -> Wake {
        self.options.wake.or(self.welcome().map(|w| w.wake)).unwrap_or(Wake::Sleep)
    }

    /// Whether anything has come in since the last turn. With a ring this costs the load of one word.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let State::Connected(conversation) = &self.state else { return false };
        conversation.ring().is_none_or(End::is_ready) || self.options.waker.calls() != self.calls
    }

    /// Takes the agent's commands, calls the datapath, answers, sends events: as far as there is any, and room.
    /// `now_us` is the datapath's clock.
    pub fn turn(&mut self, datapath: &mut dyn Datapath, now_us: u64) -> Turn {
        self.calls = self.options.waker.calls();
        let mut turn = Turn::default();
        match &mut self.state {
            State::Away { again_us } if now_us < *again_us => {}
            State::Away { .. } => self.greet(datapath, now_us),
            State::Greeted { .. } => self.listen(datapath, now_us),
            State::Connected(conversation) => {
                turn.connected = true;
                let turned =
                    conversation.turn(&mut self.buffers, datapath, &mut self.programs, now_us, &mut turn);
                let Err(reason) = turned else { return turn };
                self.end(*reason, datapath, now_us);
            }
        }
        Turn { connected: self.is_connected(), ..Turn::default() }
    }

    fn away(&mut self, now_us: u64) {
        self.state = State::Away { again_us: now_us.saturating_add(AGAIN_US) };
    }

    /// Acts as [`Served::away`] for somebody who does not serve this datapath; each new reason is logged
    /// once.
    fn mismatched(&mut self, mismatch: Mismatch, now_us: u64) {
        if self.mismatch.as_ref() != Some(&mismatch) {
            warn!(why = %mismatch, agent = %self.agent.display(), "this datapath is not served");
            self.mismatch = Some(mismatch);
        }
        self.away(now_us);
    }

    /// Acts as [`Served::away`] for nobody.
    fn alone(&mut self, now_us: u64) {
        self.mismatch = None;
        self.away(now_us);
    }

    fn greet(&mut self, datapath: &mut dyn Datapath, now_us: u64) {
        let socket = match Socket::connect(&self.agent) {
            Ok(socket) => socket,
            Err(error) => {
                debug!(%error, agent = %self.agent.display(), "no agent");
                return self.alone(now_us);
            }
        };
        let Capabilities { kind, max_programs, max_flows, policy, full_language, hooks } =
            datapath.capabilities();
        let wants_ring = self.options.transport == Transport::Ring && !self.without_ring;
        let given = [
            (policy, Features::POLICY),
            (full_language, Features::FULL_LANGUAGE),
            (wants_ring, Features::RING),
            (hooks == ccplane_contract::ON_PACKETS, Features::SEND),
        ];
        let slots = datapath.slots();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let hello = Hello {
            minors: 0..=MINOR,
            clock: self.options.clock,
            features: given.iter().filter(|g| g.0).fold(Features::default(), |all, g| all.with(g.1)),
            now_us,
            max_programs: count(max_programs),
            max_flows: count(max_flows),
            kind: clipped(kind, MAX_KIND_BYTES),
            name: clipped(&self.options.name, MAX_NAME_BYTES),
            slots: slots.as_slice().into(),
        };
        let mut bytes = Vec::new();
        if let Err(error) = ToAgent::Hello(hello).encode(0, &mut bytes) {
            warn!(%error, "this datapath cannot introduce itself");
            return self.away(now_us);
        }
        match socket.send(&bytes) {
            Sent::Yes => {
                self.state = State::Greeted { socket, until_us: now_us.saturating_add(GREETED_US) };
                self.listen(datapath, now_us);
            }
            Sent::Gone => self.alone(now_us),
            // It does not read, or not all that an agent of ours does.
            Sent::Full | Sent::Failed(_) => self.mismatched(Mismatch::NoAnswer, now_us),
        }
    }

    /// For the answer to a HELLO.
    fn listen(&mut self, datapath: &mut dyn Datapath, now_us: u64) {
        let State::Greeted { socket, until_us } = &self.state else { return };
        let (bytes, fds) = match socket.receive(&mut self.buffers.datagram) {
            Received::Datagram { bytes, fds } => (bytes, fds),
            Received::Nothing if now_us < *until_us => return,
            Received::Nothing => return self.mismatched(Mismatch::NoAnswer, now_us),
            Received::Gone => return self.alone(now_us),
        };
        let datagram = self.buffers.datagram.get(..bytes).unwrap_or_default();
        let answer = frames(datagram).next().map(|frame| frame.and_then(ToDatapath::parse));
        match answer {
            Some(Ok(Some(ToDatapath::Welcome(welcome)))) => self.welcomed(welcome, fds, datapath, now_us),
            Some(Ok(Some(ToDatapath::TurnedAway(reason)))) => {
                self.mismatched(Mismatch::TurnedAway(reason), now_us);
            }
            Some(Err(error)) => self.mismatched(Mismatch::Answer(error), now_us),
            // Not an answer; one may follow.
            Some(Ok(_)) | None => {}
        }
    }

    fn welcomed(
        &mut self,
        welcome: Welcome,
        fds: Vec<std::os::fd::OwnedFd>,
        datapath: &mut dyn Datapath,
        now_us: u64,
    ) {
        let ring = match (welcome.ring_bytes, Parts::from_fds(fds)) {
            (0, _) => None,
            (bytes, Some(parts)) => match End::open(parts, bytes as usize) {
                Ok(ring) => Some(ring),
                Err(error) => {
                    warn!(%error, "the agent's rings are not used");
                    return self.go_without_ring(now_us);
                }
            },
            (_, None) => {
                warn!("the agent's rings did not come along");
                return self.go_without_ring(now_us);
            }
        };
        let before = std::mem::replace(&mut self.state, State::Away { again_us: now_us });
        let State::Greeted { socket, .. } = before else { return };
        info!(agent = %self.agent.display(), ring = ring.is_some(), "served");
        self.mismatch = None;
        self.programs.begin(datapath);
        let conversation = Conversation::new(socket, ring, welcome, datapath.flows(), now_us);
        self.state = State::Connected(Box::new(conversation));
    }

    fn go_without_ring(&mut self, now_us: u64) {
        self.without_ring = true;
        self.state = State::Away { again_us: now_us };
    }

    fn end(&mut self, reason: EndReason, datapath: &mut dyn Datapath, now_us: u64) {
        let before = std::mem::replace(&mut self.state, State::Away { again_us: now_us });
        let State::Connected(mut conversation) = before else { return };
        info!(why = %reason, agent = %self.agent.display(), "the agent is looked for again");
        match reason {
            EndReason::Gone | EndReason::Left(_) => {}
            // At once: it is there.
            EndReason::Anew(_) => self.greet(datapath, now_us),
            EndReason::Read(_) | EndReason::Write(_) | EndReason::Decode(_) => {
                conversation.farewell(ByeReason::Protocol, &reason.to_string());
                self.away(now_us);
            }
        }
    }

    /// Blocks until something arrives, the [`Waker`] is called, or `timeout` passed. Returns at once if any of that has
    /// happened since the last turn.
    ///
    /// # Errors
    /// ppoll(2) failed.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let waker = &self.options.waker;
        if !waker.doze(self.calls) {
            return Ok(());
        }
        let (socket, ring, held_up) = match &self.state {
            State::Away { .. } => (None, None, false),
            State::Greeted { socket, .. } => (Some(socket), None, false),
            State::Connected(conversation) => {
                (Some(conversation.socket()), conversation.ring(), conversation.is_held_up())
            }
        };
        if ring.is_some_and(|ring| !ring.doze()) {
            waker.awake();
            return Ok(());
        }
        let timeout = if held_up { timeout.min(RETRY_FULL) } else { timeout };
        let mut fds = vec![PollFd::new(waker.as_fd(), PollFlags::POLLIN)];
        fds.extend(socket.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        fds.extend(ring.map(|ring| PollFd::new(ring.as_fd(), PollFlags::POLLIN)));
        let polled = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None);
        let is_ready = |n: usize| fds.get(n).is_some_and(|fd| fd.any().unwrap_or(true));
        let (socket_ready, ring_ready) = (is_ready(1), is_ready(2));
        waker.awake();
        if let State::Connected(conversation) = &mut self.state {
            conversation.awake(ring_ready, socket_ready);
        }
        match polled {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Takes leave of the agent: the datapath's flows are gone for it.
    pub fn farewell(&mut self) {
        if let State::Connected(conversation) = &mut self.state {
            conversation.farewell(ByeReason::Stopping, "the datapath stops");
        }
        self.state = State::Away { again_us: u64::MAX };
    }
}

/// Returns as much of `text` as `limit` bytes hold.
fn clipped(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

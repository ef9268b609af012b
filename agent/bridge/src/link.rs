//! The link to a portus agent, and when portus counts as gone or silent.

use crate::bridge::{Bridge, BridgeCounters};
use crate::silence::Silence;
use crate::socket::Received;
use crate::transport::{Transport, nobody};
use crate::{Options, PORTUS};
use ccplane_core::{Core, HostReason};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tracing::{info, warn};

/// Time between two looks at a portus that is there, microseconds.
const POLL_US: u64 = 50_000;
/// Time between two tries to reach one that is not, microseconds.
const RETRY_US: u64 = 200_000;
/// Datagrams taken in one turn.
const MAX_DATAGRAMS: usize = 256;
/// Bytes of the longest datagram that is received.
const MAX_DATAGRAM_BYTES: usize = 65_536;

/// The state of portus, as the link sees it.
enum PortusState {
    /// Portus does not listen, or no rule gives it flows.
    Absent,
    /// Portus was greeted. `at`: device and inode of its socket.
    Present { at: (u64, u64) },
    /// Portus listens and does not read.
    Silent { at: (u64, u64) },
}

/// The link to a portus agent, which one loop polls.
pub struct PortusLink {
    options: Options,
    bridge: Bridge,
    transport: Option<Transport>,
    state: PortusState,
    silence: Silence,
    next_poll_us: u64,
    buffer: Vec<u8>,
    /// The last reason for which portus was not reached, which is logged once.
    said: Option<String>,
    warned_of_strangers: bool,
}

impl PortusLink {
    /// Makes a link that reaches for portus once rules give flows to it.
    pub fn new(options: Options) -> PortusLink {
        PortusLink {
            bridge: Bridge::new(PORTUS, options.max_flows, std::process::id()),
            silence: Silence::new(options.silence_us, 0),
            options,
            transport: None,
            state: PortusState::Absent,
            next_poll_us: 0,
            buffer: Vec::new(),
            said: None,
            warned_of_strangers: false,
        }
    }

    /// Becomes readable when portus has answered; `None` while nothing can come.
    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.transport.as_ref().map(Transport::ready)
    }

    /// Returns the bridge's counters.
    pub fn counters(&self) -> BridgeCounters {
        self.bridge.counters()
    }

    /// Passes messages between portus and the core, both ways; returns whether portus asked the core for anything.
    pub fn exchange(&mut self, core: &mut Core, now_us: u64) -> bool {
        if now_us >= self.next_poll_us {
            self.poll(core, now_us);
        }
        if self.transport.is_none() {
            return false;
        }
        let asked = self.receive(core, now_us);
        while let Some(event) = core.next_host_event(PORTUS) {
            self.bridge.event(core, event);
        }
        self.send(core);
        asked
    }

    fn poll(&mut self, core: &mut Core, now_us: u64) {
        self.next_poll_us = now_us.saturating_add(RETRY_US);
        if !core.wants_host(PORTUS) {
            if self.transport.take().is_some() {
                self.state = PortusState::Absent;
                self.bridge.leave(core, HostReason::Unhosted { algorithm: PORTUS });
            }
            return;
        }
        if matches!(self.state, PortusState::Absent) {
            return self.reach(core, now_us);
        }
        self.next_poll_us = now_us.saturating_add(POLL_US);
        let (PortusState::Present { at } | PortusState::Silent { at }) = self.state else { return };
        let path = &self.options.socket;
        let Some(transport) = &self.transport else { return };
        if place(path) != Some(at) || !transport.has_listener(path) {
            return self.lose(core, now_us);
        }
        match (self.silence.check(transport.unread(), now_us), &self.state) {
            (Some(silent_us), PortusState::Present { .. }) => {
                let for_ms = silent_us / 1000;
                warn!(for_ms, "portus is silent: it reads nothing; its flows go to their native algorithm");
                self.bridge.log_counters();
                self.bridge.leave(core, HostReason::Silent { algorithm: PORTUS, for_ms });
                self.state = PortusState::Silent { at };
                if let Some(transport) = &mut self.transport {
                    transport.wait_for_room(false);
                }
            }
            (None, PortusState::Silent { .. }) => {
                info!("portus reads again");
                self.greet(core, at, now_us);
            }
            _ => {}
        }
    }

    /// Tries to reach portus.
    fn reach(&mut self, core: &mut Core, now_us: u64) {
        self.transport.take_if(|transport| !transport.fits(&self.options.socket));
        if self.transport.is_none() {
            match Transport::open(&self.options) {
                Ok(transport) => self.transport = Some(transport),
                Err(why) => return self.unreachable(core, why),
            }
        }
        let Some(transport) = &self.transport else { return };
        let at = place(&self.options.socket).ok_or_else(|| nobody(&self.options.socket));
        match at.and_then(|at| transport.connect(&self.options).map(|()| at)) {
            Ok(at) => self.greet(core, at, now_us),
            Err(why) => self.unreachable(core, why),
        }
    }

    fn unreachable(&mut self, core: &mut Core, why: String) {
        if let Some(transport) = &mut self.transport {
            transport.wait_for_room(false);
        }
        if self.said.as_ref() == Some(&why) {
            return;
        }
        warn!(%why, "portus cannot be reached, its flows run their native algorithm; it is tried again");
        self.bridge.leave(core, HostReason::Unreachable { algorithm: PORTUS, why: Arc::from(&*why) });
        self.said = Some(why);
    }

    fn greet(&mut self, core: &mut Core, at: (u64, u64), now_us: u64) {
        info!(socket = %self.options.socket.display(), "portus listens: it is told of its flows");
        self.said = None;
        self.state = PortusState::Present { at };
        self.silence = Silence::new(self.options.silence_us, now_us);
        self.next_poll_us = now_us.saturating_add(POLL_US);
        self.bridge.arrive(core);
    }

    /// Its socket is gone.
    fn lose(&mut self, core: &mut Core, now_us: u64) {
        self.state = PortusState::Absent;
        self.bridge.log_counters();
        self.unreachable(core, nobody(&self.options.socket));
        // What it left unread is gone with it.
        self.reach(core, now_us);
    }

    fn receive(&mut self, core: &mut Core, now_us: u64) -> bool {
        let Some(transport) = &mut self.transport else { return false };
        self.buffer.resize(MAX_DATAGRAM_BYTES, 0);
        let (mut asked, mut has_gone) = (false, false);
        for _ in 0..MAX_DATAGRAMS {
            match transport.receive(&mut self.buffer) {
                Ok(Received::Bytes(bytes)) => {
                    self.silence.note_answer(now_us);
                    if matches!(self.state, PortusState::Present { .. }) {
                        let datagram = self.buffer.get(..bytes).unwrap_or_default();
                        asked |= self.bridge.datagram(core, datagram);
                    }
                }
                Ok(Received::Gone) => {
                    has_gone = true;
                    break;
                }
                Ok(Received::Stranger) => {
                    if !std::mem::replace(&mut self.warned_of_strangers, true) {
                        warn!("what listens as portus is another user's; it is not heard");
                    }
                }
                // An error that a peer's end left behind is taken with this call; a look tells what is.
                Ok(Received::Nothing) | Err(_) => break,
            }
        }
        // A look may have found that out before.
        if has_gone && !matches!(self.state, PortusState::Absent) {
            self.lose(core, now_us);
        }
        asked
    }

    fn send(&mut self, core: &mut Core) {
        if !matches!(self.state, PortusState::Present { .. }) {
            return;
        }
        let Some(transport) = &mut self.transport else { return };
        let mut full = false;
        while let Some(datagram) = self.bridge.outgoing() {
            match transport.send(datagram) {
                Ok(()) => self.bridge.sent(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    full = true;
                    break;
                }
                Err(_) => {
                    // The next turn's look says what became of it, and reaches again.
                    self.next_poll_us = 0;
                    self.state = PortusState::Absent;
                    return self.unreachable(core, nobody(&self.options.socket));
                }
            }
        }
        transport.wait_for_room(full);
        if self.bridge.has_overflowed() {
            self.next_poll_us = 0;
            self.state = PortusState::Absent;
            self.unreachable(core, "more waits for it than may wait".to_owned());
        }
    }
}

/// Returns device and inode of the file at a path.
fn place(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok()
}

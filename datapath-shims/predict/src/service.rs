//! A server with what a datapath needs around it: randomness, new predictors from other threads, and states to keep.

use crate::packet::MESSAGE_BYTES;
use crate::server::Ending;
use crate::{Portfolio, Server, ServerCounters, ServerError};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Time between two states that are kept while a server runs.
pub const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Messages that wait in either direction, at most.
const MAX_WAITING: usize = 4;

/// A message of a running server about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The weights have changed since the last notice: the content of a file to keep, and the counters.
    Learned { state: Vec<u8>, counters: ServerCounters },
    /// New predictors answer from now on.
    Pushed { names: Vec<String> },
    /// New predictors were refused.
    Refused(ServerError),
}

/// A server that a datapath drives.
pub struct Service {
    server: Server,
    random: ChaCha8Rng,
    pushed: Receiver<Arc<Portfolio>>,
    notices: SyncSender<Notice>,
    next_keep: Instant,
    /// The pieces of feedback that the last kept state knows of.
    kept: u64,
}

/// The other end of a service, for another thread.
pub struct Remote {
    push: SyncSender<Arc<Portfolio>>,
    notices: Receiver<Notice>,
}

impl Service {
    /// Wraps a server; `seed` is that of its draws.
    pub fn new(server: Server, seed: [u8; 32]) -> (Service, Remote) {
        let (push, pushed) = sync_channel(MAX_WAITING);
        let (to, notices) = sync_channel(MAX_WAITING);
        let service = Service {
            server,
            random: ChaCha8Rng::from_seed(seed),
            pushed,
            notices: to,
            next_keep: Instant::now() + KEEP_EVERY,
            kept: 0,
        };
        (service, Remote { push, notices })
    }

    /// The server that is driven.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Takes one datagram in. True if `reply` is to be sent back.
    #[inline]
    pub fn handle(&mut self, datagram: &[u8], reply: &mut [u8; MESSAGE_BYTES]) -> bool {
        let random = self.random.next_u32();
        self.server.handle(datagram, random, reply)
    }

    /// Does what is to be done now and then, and never waits: takes new predictors, hands out a state to keep.
    ///
    /// A datapath calls it at least each tenth of a second, between datagrams.
    pub fn turn(&mut self, now: Instant) {
        while let Ok(portfolio) = self.pushed.try_recv() {
            let names = portfolio.names().map(str::to_owned).collect();
            let notice = match self.server.push(portfolio) {
                Ok(()) => Notice::Pushed { names },
                Err(refused) => Notice::Refused(refused),
            };
            // Who does not listen does not hear.
            let _ = self.notices.try_send(notice);
        }
        if now < self.next_keep {
            return;
        }
        self.next_keep = now + KEEP_EVERY;
        let counters = *self.server.counters();
        if counters.right == self.kept {
            return;
        }
        let state = self.server.state(Ending::NotYet).encode();
        match self.notices.try_send(Notice::Learned { state, counters }) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => self.kept = counters.right,
            // The next turn tries again.
            Err(TrySendError::Full(_)) => {}
        }
    }

    /// Ends the service in order; returns the state to store, and the counters.
    pub fn end(self) -> (Vec<u8>, ServerCounters) {
        (self.server.state(Ending::InOrder).encode(), *self.server.counters())
    }
}

impl Remote {
    /// Hands new predictors to the service; false if it has ended.
    pub fn push(&self, portfolio: Arc<Portfolio>) -> bool {
        self.push.send(portfolio).is_ok()
    }

    /// The next notice, waited for so long; `None` if none came.
    pub fn notice(&self, timeout: Duration) -> Option<Notice> {
        self.notices.recv_timeout(timeout).ok()
    }
}

//! An endpoint: connections over a wire, and the loop that its application turns.

use crate::budget::Memory;
use crate::config::Config;
use crate::connection::{Connection, ConnectionId, Event};
use crate::driver::{Control, Driver};
use crate::wire::Wire;
use quinn_proto::{ClientConfig, ConnectError, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Datagrams from which on a turn goes on to timers and sends, while more may wait.
const RECEIVED_PER_TURN: usize = 256;

/// Connections over one wire. One thread has it: each [`turn`](Endpoint::turn) receives, runs timers and sends; what
/// happened is taken by [`poll`](Endpoint::poll).
pub struct Endpoint<W> {
    wire: W,
    driver: Driver,
    /// The last turn received something: there may be more.
    received: bool,
}

impl<W: Wire> Endpoint<W> {
    /// Over `wire`, without a server.
    pub fn new(wire: W, control: impl Into<Control>, config: Config) -> Endpoint<W> {
        Endpoint::at(wire, control, config, Instant::now())
    }

    /// The same where time is the caller's, for [`turn_at`](Endpoint::turn_at).
    pub fn at(wire: W, control: impl Into<Control>, mut config: Config, now: Instant) -> Endpoint<W> {
        let most_bytes = wire.max_payload_bytes();
        config.max_mtu_bytes = config.max_mtu_bytes.min(most_bytes);
        config.initial_mtu_bytes = config.initial_mtu_bytes.min(most_bytes);
        let driver = Driver::new(wire.local_addr(), wire.may_fragment(), control.into(), config, now);
        Endpoint { wire, driver, received: false }
    }

    /// From now on connections are accepted with this; `None`: no more.
    pub fn serve(&mut self, server: Option<ServerConfig>) {
        self.driver.set_server(server);
    }

    /// Begins a connection; [`Event::Connected`] or [`Event::Closed`] follows.
    ///
    /// # Errors
    /// The address or the name is not one that can be connected to.
    pub fn connect(
        &mut self,
        client: ClientConfig,
        remote: SocketAddr,
        server_name: &str,
    ) -> Result<ConnectionId, ConnectError> {
        self.driver.connect(client, remote, server_name)
    }

    /// A connection, unless it is gone.
    pub fn connection(&mut self, id: ConnectionId) -> Option<Connection<'_>> {
        self.driver.connection(id)
    }

    /// The connections that there are, also those that are being closed.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.driver.ids()
    }

    /// What they hold in memory by the endpoint's count.
    pub fn memory(&self) -> Memory {
        self.driver.memory()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.driver.open()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes what happened, oldest first.
    pub fn poll(&mut self) -> Option<(ConnectionId, Event)> {
        self.driver.events.pop_front()
    }

    /// Waits until there is something to do, at most so long, and does it. Returns with something to
    /// [`poll`](Endpoint::poll), or without.
    ///
    /// # Errors
    /// The wire is broken.
    pub fn turn(&mut self, longest: Duration) -> io::Result<()> {
        if !self.received && !self.driver.is_busy() {
            let now = Instant::now();
            let timer = self.driver.deadline().map(|at| at.saturating_duration_since(now));
            let wait = timer.map_or(longest, |timer| timer.min(longest));
            if !wait.is_zero() {
                self.wire.wait(wait)?;
            }
        }
        self.turn_at(Instant::now())
    }

    /// Does what there is to do at this time, which must not be before that of the last turn, without waiting.
    ///
    /// # Errors
    /// The wire is broken.
    pub fn turn_at(&mut self, now: Instant) -> io::Result<()> {
        let driver = &mut self.driver;
        driver.now = driver.now.max(now);
        // What has come for a connection by now is answered once.
        let mut datagrams = 0;
        while datagrams < RECEIVED_PER_TURN {
            let count = self.wire.receive(&mut |datagram| driver.receive(datagram))?;
            datagrams += count;
            if count == 0 {
                break;
            }
        }
        self.received = datagrams >= RECEIVED_PER_TURN;
        if self.wire.came_up() {
            driver.revive();
        }
        driver.expire();
        driver.tidy();
        driver.transmit(&mut self.wire)
    }

    /// When the next turn is due, unless something arrives or the application does something before.
    pub fn deadline(&self) -> Option<Instant> {
        if self.received || self.driver.is_busy() { Some(self.driver.now) } else { self.driver.deadline() }
    }

    /// The wire.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Goes on over another wire, as when the machine changed its network: a client's connections migrate with it.
    pub fn rebind(&mut self, wire: W) {
        self.driver.set_local(wire.local_addr());
        self.wire = wire;
        for id in self.connections() {
            if let Some(mut connection) = self.connection(id) {
                connection.migrate();
            }
        }
    }

    /// Closes every connection; a turn tells the peers.
    pub fn close(&mut self, code: u32, reason: &str) {
        for id in self.connections() {
            if let Some(mut connection) = self.connection(id) {
                connection.close(code, reason);
            }
        }
    }
}

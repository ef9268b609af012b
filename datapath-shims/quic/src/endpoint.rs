//! An endpoint: connections over a wire, and the loop that its application turns.

use crate::budget::Memory;
use crate::config::Config;
use crate::connection::{Connection, ConnectionId, Event};
use crate::driver::{Control, Driver};
use crate::incoming::CoreNote;
use crate::wire::Wire;
use ccplane_wait::affinity::Follower;
use ccplane_wait::{Mode, WaitStep, Waiter, Wake, sleep_time};
use quinn_proto::{ClientConfig, ConnectError, ServerConfig};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tracing::warn;

/// Datagrams after which a turn goes on to timers and sends, while more may wait.
const RECEIVED_PER_TURN: usize = 256;

/// The microseconds for which the system polls the wire's device, if the endpoint polls too.
pub const DEVICE_POLL_US: u32 = 50;

/// Connections over one wire, for one thread.
///
/// Each [`turn`](Endpoint::turn) receives, runs timers and sends; [`poll`](Endpoint::poll) takes the events.
pub struct Endpoint<W> {
    wire: W,
    driver: Driver,
    /// Whether the last turn received something: there may be more.
    received: bool,
    waiter: Waiter,
    /// Follows the wire's core, from the first wait on.
    follower: Option<Follower>,
    follows: bool,
    /// The cores of the wire's datagrams, where the wire is a socket and the kernel lets us note them.
    note: Option<CoreNote>,
    /// The origin of the waiter's clock.
    began: Instant,
}

impl<W: Wire> Endpoint<W> {
    /// Makes an endpoint over `wire`, without a server.
    pub fn new(wire: W, control: impl Into<Control>, config: Config) -> Endpoint<W> {
        Endpoint::at(wire, control, config, Instant::now())
    }

    /// Makes an endpoint as [`new`](Endpoint::new) does, with time from the caller, for
    /// [`turn_at`](Endpoint::turn_at).
    pub fn at(mut wire: W, control: impl Into<Control>, mut config: Config, now: Instant) -> Endpoint<W> {
        let most_bytes = wire.max_payload_bytes();
        config.max_mtu_bytes = config.max_mtu_bytes.min(most_bytes);
        config.initial_mtu_bytes = config.initial_mtu_bytes.min(most_bytes);
        let follows = config.follow_cores;
        let note = note_cores(&wire, follows);
        let mut waiter = Waiter::new(config.wake, 0);
        if config.wake.mode() != Mode::Sleep {
            wire.poll_device(DEVICE_POLL_US);
        }
        if let Err(error) = ccplane_wait::prepare(&mut waiter) {
            warn!(%error, "measure what a sleep takes");
        }
        let driver = Driver::new(wire.local_addr(), wire.may_fragment(), control.into(), config, now);
        Endpoint { wire, driver, received: false, waiter, follower: None, follows, note, began: now }
    }

    /// Accepts connections with this configuration from now on; `None` for no more.
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

    /// Borrows a connection, unless it is gone.
    pub fn connection(&mut self, id: ConnectionId) -> Option<Connection<'_>> {
        self.driver.connection(id)
    }

    /// Lists the connections, including those that are being closed.
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.driver.ids()
    }

    /// The memory charged to the connections.
    pub fn memory(&self) -> Memory {
        self.driver.memory()
    }

    /// The number of connections.
    pub fn len(&self) -> usize {
        self.driver.open()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the oldest event.
    pub fn poll(&mut self) -> Option<(ConnectionId, Event)> {
        self.driver.events.pop_front()
    }

    /// Waits at most `longest` for work, and does it. Returns with an event to [`poll`](Endpoint::poll), or without.
    ///
    /// # Errors
    /// The wire is broken.
    pub fn turn(&mut self, longest: Duration) -> io::Result<()> {
        if !self.received && !self.driver.is_busy() {
            let now = Instant::now();
            let timer = self.driver.deadline().map(|at| at.saturating_duration_since(now));
            let wait = timer.map_or(longest, |timer| timer.min(longest));
            if !wait.is_zero() {
                let now_ns = nanoseconds(now.saturating_duration_since(self.began));
                // Where it is to poll, the turn itself looks for datagrams.
                if let WaitStep::Sleep { until_ns } = self.waiter.next(now_ns) {
                    self.wire.wait(sleep_time(until_ns, now_ns, wait))?;
                }
                if self.follows {
                    self.follow();
                }
            }
        }
        self.turn_at(Instant::now())
    }

    /// Moves this thread to where the wire's datagrams are handled; where that fails it stays for good.
    fn follow(&mut self) {
        let noted = self.note.as_ref().and_then(CoreNote::core);
        let Some(core) = noted.or_else(|| self.wire.incoming_core()) else { return };
        if self.follower.is_none() {
            self.follower = Follower::new().inspect_err(|error| warn!(%error, "follow a wire's core")).ok();
        }
        let polls = matches!(self.waiter.wake(), Wake::Spin { .. } | Wake::Busy);
        let observed = self.follower.as_mut().map_or(Ok(None), |follower| follower.observe(core, polls));
        if let Err(error) = observed {
            warn!(%error, "follow a wire's core");
            self.follows = false;
        }
    }

    /// Does the work that is due at this time without waiting. The time must not be before that of the last turn.
    ///
    /// # Errors
    /// The wire is broken.
    pub fn turn_at(&mut self, now: Instant) -> io::Result<()> {
        let driver = &mut self.driver;
        driver.now = driver.now.max(now);
        // Datagrams that have come for a connection by now are answered once.
        let mut datagrams = 0;
        while datagrams < RECEIVED_PER_TURN {
            let count = self.wire.receive(&mut |datagram| driver.receive(datagram))?;
            datagrams += count;
            if count == 0 {
                break;
            }
        }
        self.received = datagrams >= RECEIVED_PER_TURN;
        if datagrams > 0 {
            let since_began = now.saturating_duration_since(self.began);
            self.waiter.event(nanoseconds(since_began));
        }
        if self.wire.came_up() {
            driver.revive();
        }
        driver.expire();
        driver.tidy();
        driver.transmit(&mut self.wire)
    }

    /// When the next turn is due, unless a datagram arrives or the application does something before.
    pub fn deadline(&self) -> Option<Instant> {
        if self.received || self.driver.is_busy() { Some(self.driver.now) } else { self.driver.deadline() }
    }

    /// The wire that the endpoint sends and receives on.
    pub fn wire(&self) -> &W {
        &self.wire
    }

    /// Moves to another wire, as after a change of network: a client's connections migrate with it.
    pub fn rebind(&mut self, wire: W) {
        self.driver.set_local(wire.local_addr());
        // The note before is of the other socket's datagrams.
        self.note = note_cores(&wire, self.follows);
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

/// Has the kernel note the cores of the wire's datagrams, where the endpoint follows them and the wire is a socket.
fn note_cores<W: Wire>(wire: &W, follows: bool) -> Option<CoreNote> {
    let socket = wire.socket().filter(|_| follows)?;
    CoreNote::attach(socket).inspect_err(|error| warn!(%error, "follow a wire's core")).ok()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

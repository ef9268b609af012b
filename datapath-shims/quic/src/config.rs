//! The configuration of an endpoint and its connections.

use crate::budget::{LEAST_WINDOW_BYTES, MEMORY_BYTES};
use crate::packets::Packets;
use ccplane_wait::Wake;
use quinn_proto::{IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// Connections of an endpoint, at most; further incoming ones are refused.
pub const MAX_CONNECTIONS: usize = 10_000;

/// The application error code of a connection that is refused for lack of room; its reason says of what.
pub const NO_ROOM: u32 = 2;

/// Changes quinn's settings for which [`Config`] has no field.
pub type Tune = Arc<dyn Fn(&mut TransportConfig) + Send + Sync>;

/// The settings of an endpoint and its connections.
#[derive(Clone)]
pub struct Config {
    /// Silence of the peer after which the connection ends; with a `keep_alive`, counted from one that was not
    /// answered.
    pub idle_timeout: Duration,
    /// Interval at which an idle connection sends keep-alives; `None` for none.
    pub keep_alive: Option<Duration>,
    /// The UDP payload that every path is assumed to carry, bytes, at least 1200; MTU discovery starts there.
    pub initial_mtu_bytes: u16,
    /// The largest UDP payload that MTU discovery tries, bytes.
    pub max_mtu_bytes: u16,
    /// Bytes that a peer may send on one stream before they are read.
    pub stream_window_bytes: u32,
    /// Bytes that a peer may send on all streams before they are read, once the window has grown to it.
    pub receive_window_bytes: u32,
    /// Bytes that may wait to be sent or acknowledged on all streams, if there is memory for them.
    pub send_window_bytes: u64,
    /// Bidirectional streams that a peer may have open at once.
    pub max_bidi_streams: u32,
    /// Unidirectional streams that a peer may have open at once.
    pub max_uni_streams: u32,
    /// Connections at once, at most [`MAX_CONNECTIONS`] and as many as there is memory for
    /// ([`CONNECTION_BYTES`](crate::CONNECTION_BYTES)).
    pub max_connections: usize,
    /// Memory of all connections and their buffers, bytes. Windows grow within it.
    pub memory_bytes: u64,
    /// The way in which a [`turn`](crate::Endpoint::turn) waits for datagrams; where it polls, it returns early and
    /// without an event.
    pub wake: Wake,
    /// Whether the thread that turns the endpoint moves to where its datagrams are handled, or away from there where it polls.
    pub follow_cores: bool,
    /// Decisions about packets on their way out, for connections under an engine ([`Control::Engine`](crate::Control::Engine)); `None`
    /// leaves all packets alike.
    pub packets: Option<Packets>,
    /// The seed of the protocol's random numbers, for runs that are to repeat; keys are always random.
    pub seed: Option<[u8; 32]>,
    /// Called last on every connection's transport configuration.
    pub tune: Option<Tune>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            idle_timeout: Duration::from_secs(10),
            keep_alive: Some(Duration::from_secs(3)),
            initial_mtu_bytes: 1200,
            // Ethernet's MTU, over IPv6.
            max_mtu_bytes: 1452,
            stream_window_bytes: 32 << 20,
            receive_window_bytes: 64 << 20,
            send_window_bytes: 32 << 20,
            // quinn keeps a place for each from the start; those for more than 112 take twice the memory.
            max_bidi_streams: 100,
            max_uni_streams: 100,
            max_connections: MAX_CONNECTIONS,
            memory_bytes: MEMORY_BYTES,
            wake: Wake::Sleep,
            follow_cores: false,
            packets: None,
            seed: None,
            tune: None,
        }
    }
}

impl Config {
    /// The longest time for which a vanished peer may go unnoticed; `None` for ever.
    ///
    /// The peer's last packet is followed by a keep-alive of ours, and the idle timeout counts from there (RFC 9000
    /// section 10.1).
    pub fn missed_within(&self) -> Option<Duration> {
        IdleTimeout::try_from(self.idle_timeout).ok()?;
        Some(self.idle_timeout + self.keep_alive.unwrap_or_default())
    }

    /// The receive window of a connection that has read nothing, bytes.
    fn first_window_bytes(&self) -> u32 {
        // The least window is a small constant.
        self.receive_window_bytes.min(LEAST_WINDOW_BYTES as u32)
    }

    /// Converts to quinn's configuration; its congestion controller is still to be set.
    pub(crate) fn transport(&self) -> TransportConfig {
        let mut transport = TransportConfig::default();
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(self.max_mtu_bytes.max(self.initial_mtu_bytes));
        // A time beyond what the protocol can express (2^62 ms) is none.
        let idle = IdleTimeout::try_from(self.idle_timeout).ok();
        transport
            .max_idle_timeout(idle)
            .keep_alive_interval(self.keep_alive)
            .initial_mtu(self.initial_mtu_bytes)
            .mtu_discovery_config(Some(discovery))
            .stream_receive_window(VarInt::from_u32(self.stream_window_bytes))
            .receive_window(VarInt::from_u32(self.first_window_bytes()))
            .send_window(self.send_window_bytes)
            .max_concurrent_bidi_streams(VarInt::from_u32(self.max_bidi_streams))
            .max_concurrent_uni_streams(VarInt::from_u32(self.max_uni_streams))
            .datagram_receive_buffer_size(None);
        transport
    }
}

//! A QUIC datapath: quinn-proto driven under fold programs.
//!
//! Handshake, streams and loss recovery are quinn's. What is sent when is ours: an [`Endpoint`] asks a connection for
//! datagrams only as its token bucket allows. The flow's program decides the bucket's rate, and the window, too.
//! Programs come through the engine (`ccplane-engine`): its [`Handle`](ccplane_engine::Handle) is the datapath that an
//! agent in the same process drives, or that `ccplane-channel` serves to one elsewhere. Without an agent, flows run the
//! engine's native Reno.
//!
//! ```no_run
//! use ccplane_engine::{EngineConfig, engine};
//! use ccplane_quic::{Config, Endpoint, Event, UdpWire, tls};
//! use std::{sync::Arc, time::Duration};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let pin: tls::Fingerprint = "00".repeat(32).parse()?;
//! let (engine, datapath) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
//! let mut endpoint = Endpoint::new(UdpWire::bind("[::]:0".parse()?)?, engine, Config::default());
//! let server = endpoint.connect(tls::client(tls::Trust::Pinned(pin), b"mine")?, "[::1]:4433".parse()?, "localhost")?;
//! loop {
//!     endpoint.turn(Duration::from_millis(10))?;
//!     while let Some((id, event)) = endpoint.poll() {
//!         println!("{id:?}: {event:?}");
//!     }
//! #   if datapath_is_silent(&datapath) { break }
//! }
//! # let _ = server;
//! # Ok(())
//! # }
//! # fn datapath_is_silent(_: &ccplane_engine::Handle) -> bool { true }
//! ```
//!
//! A peer that is gone is missed in time: with the default [`Config`] a transfer fails within 13 s. Of these, 10 s are
//! the idle timeout and 3 s that of a sign of life ([`Config::missed_within`]).
//!
//! What strangers can make an endpoint hold is bounded: connections and their buffers share [`Config::memory_bytes`],
//! and one network has at most half of the connections. A client beyond [`MAX_UNVALIDATED`] must first show by a token
//! that it receives what is sent to its address, before anything is kept of it. A client that is not let in is told
//! why, with the code [`NO_ROOM`].
//!
//! With [`Config::packets`] programs also decide about packets on their way out: their priority leaves as a code point (DSCP).
//!
//! `examples/transfer.rs` moves a file's worth of bytes, steered by an agent in the same process; `examples/stock_quinn.rs` does so
//! under quinn's own driver, for those who keep it: [`WindowOnly`].
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admission;
mod bucket;
mod budget;
mod config;
mod connection;
mod controller;
mod driver;
mod endpoint;
pub mod files;
mod forward;
mod incoming;
mod links;
mod marked;
mod packets;
mod revival;
mod stamps;
mod sys;
pub mod tls;
mod udp;
mod wire;

pub use admission::MAX_UNVALIDATED;
pub use bucket::BURST;
pub use budget::{Buffer, CONNECTION_BYTES, MEMORY_BYTES, Memory, PART_BYTES};
pub use config::{Config, MAX_CONNECTIONS, NO_ROOM, Tune};
pub use connection::{Connection, ConnectionId, Event, Read, StreamError};
pub use controller::{BACKLOG_BYTES, Observer, QuicFlowState, WindowOnly};
pub use driver::Control;
pub use endpoint::{DEVICE_POLL_US, Endpoint};
pub use forward::Forward;
pub use packets::Packets;
pub use quinn_proto::{self, ConnectError, ConnectionError, Dir, StreamEvent, StreamId};
pub use udp::{BUFFER_BYTES, Buffers, UdpWire};
pub use wire::{Datagram, Wire};

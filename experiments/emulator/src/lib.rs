//! An emulated link between two network namespaces: what mahimahi's `mm-delay` and `mm-link` do, as a library.
//!
//! [`Emulator`] makes two namespaces joined by a link of TUN devices. It carries packets between them under a delay, a
//! rate or a mahimahi trace, a queue and random loss, and removes everything when dropped. [`run_shell`] runs one
//! command behind such a link. The link itself ([`path::Path`]) is sans-IO: time is an argument.
//!
//! Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) and `/dev/net/tun`; a shell makes itself a user namespace where it has
//! none. It changes no sysctl, route or packet filter of the namespace that it is started in. The exception is the TUN
//! device of a shell asked to end there.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod addresses;
mod block;
mod bottleneck;
mod class;
mod config;
pub mod edge;
mod emulator;
mod error;
mod event;
mod half_link;
mod histogram;
pub mod impair;
mod link;
pub mod log;
pub mod multi;
mod netlink;
pub mod netns;
mod offload;
pub mod path;
mod pool;
pub mod queue;
mod refusal;
pub mod shape;
pub mod shell;
mod stats;
#[allow(unsafe_code)]
mod sys;
mod tun;
pub mod veth;

pub use addresses::Addresses;
pub use block::Block;
pub use config::{Direction, LinkConfig, MAX_BUFFER_PACKETS, PathConfig};
pub use emulator::Emulator;
pub use error::{Error, Result};
pub use histogram::DelayHistogram;
pub use impair::{BurstLoss, Impairments, Jitter, Loss, Outages, Policer, Reorder};
pub use multi::MultiPath;
pub use queue::Queue;
pub use refusal::{ConfigError, MAX_DELAY_US};
pub use shape::Shape;
pub use shell::run_shell;
pub use stats::{DirectionStats, LinkStats};

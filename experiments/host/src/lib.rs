//! A host as its network traffic meets it: processors, nodes, interfaces, queues, interrupts, and the settings that decide
//! where packets are worked on.
//!
//! [`Machine`] reads a host's files, [`Topology`] says what is there, [`Setting`] names what can be changed, and [`Journal`]
//! holds the old value of each change before it is made, so that [`Journal::undo`] takes all of them back.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cpus;
mod ethtool;
mod journal;
mod machine;
mod picture;
mod setting;
mod state;
mod topology;

pub use cpus::{CpuSet, CpuSetError, MAX_CPUS};
pub use ethtool::{EthtoolError, Group, Values};
pub use journal::{Applied, Entry, Journal, JournalError, MAX_JOURNAL_BYTES, Outcome, Undone};
pub use machine::{MAX_FILE_BYTES, Machine};
pub use picture::picture;
pub use setting::{Setting, SettingError, UnknownSetting};
pub use state::{State, states};
pub use topology::{Cache, Interface, Interrupt, Node, Processor, Topology};

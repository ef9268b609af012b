//! Linux TCP as a datapath: fold programs run on live flows by a struct_ops congestion control.
//!
//! The agent itself compiles them to BPF instructions, which the kernel verifies and JITs.
//!
//! No compiler and no kernel headers are needed, at build time or at run time: field offsets come from the
//! running kernel's BTF. What is attached is pinned, so that flows go on when the agent dies; [`clean`]
//! removes it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arith;
mod attach;
mod attachment;
mod btf;
mod codegen;
mod datapath;
mod dispatch;
mod error;
mod events;
mod frame;
mod host;
mod kernel;
mod known_flows;
mod layout;
mod listing;
mod lock;
mod maps;
mod movement;
mod options;
mod outside;
pub mod packets;
mod pins;
mod policy;
pub mod probe;
pub mod record;
mod refusal;
mod ring;
mod slots;
mod table;
mod tcp;
pub mod testrun;
mod waiting;

pub use btf::BtfError;
pub use ccplane_bpf::run_when_idle;
pub use ccplane_files::monotonic_us as clock_us;
pub use datapath::{EbpfDatapath, account};
pub use error::EbpfError;
pub use layout::MAX_PROGRAMS;
pub use listing::listing;
pub use options::{MAX_FLOWS, MAX_NAME, MAX_REQUESTS, Options, is_name};
pub use outside::{Check, CleanReport, View, checks, clean, clean_all, missing, read_flows};
pub use waiting::KernelEvents;

//! Linux TCP as a datapath: fold programs compiled to BPF instructions by the agent itself, verified and JITed
//! by the kernel, and run by a struct_ops congestion control on live flows.
//!
//! No compiler and no kernel headers are needed, at build time or at run time: field offsets come from the
//! running kernel's BTF. What is attached is pinned, so that flows go on when the agent dies; [`clean`]
//! removes it.

mod asm;
mod btf;
mod codegen;
mod datapath;
mod error;
mod layout;
mod listing;
mod movement;
mod outside;
mod pins;
pub mod probe;
mod ring;
mod sys;
mod table;
mod tcp;
pub mod testrun;

pub use btf::BtfError;
pub use datapath::{EbpfDatapath, MAX_FLOWS, MAX_PROGRAMS, Options, account};
pub use error::EbpfError;
pub use listing::listing;
pub use sys::monotonic_us as clock_us;
pub use outside::{Check, CleanReport, View, checks, clean, read_flows};

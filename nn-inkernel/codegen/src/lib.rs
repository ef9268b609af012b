//! Integer inference as code for datapaths, BPF instructions and C; the BPF assembler.
//!
//! Both follow [`ccplane_infer`] to the bit, from one image layout: a new snapshot is data, and only a new
//! [`Shape`](ccplane_infer::Shape) is new code.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod asm;
pub mod bpf;
pub mod c;

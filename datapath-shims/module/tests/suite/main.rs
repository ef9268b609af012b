//! The kernel module's interpreter and verifier in user space, beside the reference VM.
#![allow(clippy::unwrap_used)]

mod common;
mod differential;
mod networks;
mod verifier;

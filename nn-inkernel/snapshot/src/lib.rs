//! Snapshots: policies as integers, immutable, and named by the hash of their content.
//!
//! A [`Snapshot`] that exists is right: its network is of a shape that datapaths hold, its sums cannot overflow, its
//! ranges are ranges. [`Snapshot::parse`] proves that anew from the integers of whatever file it is given; nothing a
//! file says about itself is believed. [`Snapshot::image`] gives the words that a datapath's `push` takes.
//!
//! What the integers mean is in `nn-inkernel/ARITHMETIC.md`, what the bytes mean in [`Snapshot::parse`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod build;
mod error;
mod format;
mod hash;
mod keys;
mod limits;
mod network;
mod parts;
mod record;
mod spec;
mod trust;

pub use ccplane_infer as infer;

pub use build::{DeployOptions, Snapshot};
pub use error::SnapshotError;
pub use hash::{Hash, HashError};
pub use keys::{KeyError, Signature, SigningKey, Terms, VerifyingKey};
pub use limits::{FORMAT_VERSION, MAX_SNAPSHOT_BYTES};
pub use network::{Layer, Network, NetworkError};
pub use parts::{Guards, Parts};
pub use record::{Calibration, Fidelity, MAX_TEXT_BYTES, Provenance};
pub use spec::{
    Action, ActionMap, Feature, MAX_BOUND_Q16, MAX_CHANGE_Q20, MAX_KNOB, MAX_NAME_BYTES, PolicySpec,
    SpecError,
};
pub use trust::{Admission, Trust, TrustedSnapshot};

//! Integer inference for datapaths: no float, no allocation, no panics.
//!
//! A datapath holds a snapshot as an *image*: words whose places follow from the network's [`Shape`] alone
//! ([`image`]), so that one generated program serves every snapshot of that shape. [`Model::infer`] is the
//! oracle that every other executor (SIMD, BPF, C) agrees with bit for bit; [`Slot::decide`] is all that
//! `(policy slot)` does: choice of the snapshot, inference, noise, guard rails, action map, monitor.
//!
//! # Arithmetic
//! Activations are integers in `[-A, A]`, A = 127 ([`Bits::W8`]) or 8191 ([`Bits::W16`]).
//!
//! 1. Input: `x = ((clamp(v, lo, hi) - lo) * mult + 2^31 >> 32) - A`.
//! 2. A layer's sums are lanes of a word, 3 of 21 bits or 2 of 32 bits: `lane_j = 2^(b-1) + B_j + sum_i W_ij x_i`,
//!    b = 21 or 32. The builder has proved `sum_i |W_ij| A + |B_j| < 2^(b-1)`. So a lane never borrows from its
//!    neighbour, and wrapping 64-bit arithmetic on whole words is exact.
//! 3. Hidden neuron, W8: `y = table[lane >> 10]`, 2048 entries. W16: with `i = lane >> 21`, `f = lane >> 11 & 1023`,
//!    `y = t[i] + ((t[i+1] - t[i]) * f >> 10)`. Which [`tables`] it uses is data: they hold tanh and relu for
//!    sums that stand for up to `2^e`.
//! 4. Output: `action = (lane - 2^(b-1)) * mult >> shift`, in Q16. A classifier has several outputs on one scale, and its class is the
//!    index of the largest lane, the lowest on a tie.
//!
//! All shifts to the right are arithmetic.
#![no_std]
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "std")]
extern crate std;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod bits;
mod bounds;
mod check;
pub mod image;
mod kernel;
pub mod lanes;
mod model;
mod noise;
mod prepared;
mod shape;
mod simd;
mod slot;
pub mod tables;

pub use bits::Bits;
pub use bounds::{BUFFERS, MAX_CLASSES, MAX_IMAGE_BYTES, MAX_INPUTS, MAX_LAYERS, MAX_WIDTH};
pub use check::{ImageError, check};
pub use kernel::Kernel;
pub use model::{Classified, Inference, Model, Sums};
pub use noise::{NOISE_DEVIATION, Noise, spread};
pub use prepared::Prepared;
pub use shape::{Shape, ShapeError};
pub use slot::{Control, FlowPolicy, Knobs, Level, Slot, Verdict, apply};

//! Multi-armed bandits: which of a few arms is best, learned from the rewards of those that were drawn.
//!
//! - [`Exp3`]: adversarial rewards (Auer, Cesa-Bianchi, Freund and Schapire, SIAM J. Comput. 32(1), 2002, section 3); with a share,
//!   Exp3.S of section 8, whose best arm may change; with a discount, older rewards count less.
//! - [`Exp3Ix`]: implicit exploration, a bound that holds with high probability (Neu, NIPS 2015).
//! - [`Exp4`]: experts advise, each by a distribution over the arms (Auer et al., section 7).
//! - [`Ucb`]: discounted and sliding-window UCB for rewards whose means change (Garivier and Moulines, ALT 2011).
//!
//! Rewards lie in 0 to 1. They may come late and in any order: a [`Draw`] carries the probability that it was made
//! with. So an estimate is unbiased whenever its reward arrives (Joulani, György and Szepesvári, ICML 2013). Randomness
//! is an argument; the same draws and rewards give the same state. There is no I/O and no clock.
//!
//! [`integer`] is Exp3 and Exp4 for datapaths. It alone is left without the feature `std`, and the crate is `no_std` then.
#![cfg_attr(not(feature = "std"), no_std)]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod integer;

#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod exp3;
#[cfg(feature = "std")]
mod exp3ix;
#[cfg(feature = "std")]
mod exp4;
#[cfg(feature = "std")]
mod ucb;
#[cfg(feature = "std")]
mod weights;

#[cfg(feature = "std")]
pub use error::BanditError;
#[cfg(feature = "std")]
pub use exp3::{Exp3, Exp3Config};
#[cfg(feature = "std")]
pub use exp3ix::Exp3Ix;
#[cfg(feature = "std")]
pub use exp4::{Advised, Exp4};
#[cfg(feature = "std")]
pub use ucb::{Estimate, Forgetting, Ucb, UcbConfig};
#[cfg(feature = "std")]
pub use weights::Draw;

/// Most arms of one bandit.
pub const MAX_ARMS: usize = 256;
/// Most experts of one [`Exp4`].
pub const MAX_EXPERTS: usize = 1024;
/// Most rewards that a sliding window holds.
pub const MAX_WINDOW: usize = 1 << 16;

//! Impairments of a direction before its bottleneck: losses, outages, policing, copies, jitter and reordering.
//!
//! In this order: a packet may be copied; each copy may be lost at random, in a burst or in an outage; then the policer may drop it; what
//! is left travels, with jitter or held back. All randomness comes from seeds, a sequence of its own for each process.

mod line;
mod losses;
mod policer;
mod random;

pub(crate) use line::DelayLine;
pub(crate) use losses::Losses;
pub(crate) use policer::TokenBucket;
pub(crate) use random::{Chance, Stream};

use crate::refusal::{ConfigError, MAX_DELAY_US, check_range};

/// Longest mean time on or off, microseconds: about 12 days, as far as mahimahi's clock goes.
pub const MAX_OUTAGE_US: u64 = 1 << 40;
/// Slowest and fastest rate of a policer, bits per second.
pub const POLICER_BIT_PER_S: (u64, u64) = (1_000, 100_000_000_000);
/// Smallest and largest bucket of a policer, bytes: a full packet, a gigabyte.
pub const POLICER_BURST_BYTES: (u64, u64) = (1504, 1 << 30);

/// Random loss of packets as they enter a link, each independent of the others.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Loss {
    /// The probability, 0 to 1.
    pub probability: f64,
    /// Two links with the same seed lose the same packets of the same sequence.
    pub seed: u64,
}

/// Losses in bursts (Gilbert 1960, Elliott 1963): two states, either of which loses packets independently. It begins good.
///
/// In the mean a burst lasts `1 / to_good` packets, and a share `to_bad / (to_bad + to_good)` of packets meets the bad state.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BurstLoss {
    /// Chance to turn bad, for each packet in the good state, 0 to 1.
    pub to_bad: f64,
    /// Chance to turn good, for each packet in the bad state, above 0 to 1.
    pub to_good: f64,
    /// Chance to lose a packet in the good state, 0 to 1; 0 in Gilbert's own model.
    pub loss_good: f64,
    /// Chance to lose a packet in the bad state, 0 to 1.
    pub loss_bad: f64,
}

/// A link that is on and off in turn, each for an exponentially distributed time, as mahimahi's `mm-onoff`. It begins on;
/// while it is off packets that enter are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outages {
    /// Mean time on, microseconds, to [`MAX_OUTAGE_US`]; 0: never on. One of the two is above 0.
    pub mean_on_us: u64,
    /// Mean time off, microseconds, to [`MAX_OUTAGE_US`]; 0: never off.
    pub mean_off_us: u64,
}

/// Delay that varies: each packet takes a further time, uniform from 0 to a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Jitter {
    /// The maximum, microseconds, to [`MAX_DELAY_US`].
    pub max_us: u64,
    /// Whether packets overtake each other; else a late packet holds up those behind it.
    pub reorder: bool,
}

/// Packets held back, so that later ones overtake them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reorder {
    /// Of the packets, which share, 0 to 1.
    pub probability: f64,
    /// For how long, microseconds, to [`MAX_DELAY_US`].
    pub hold_us: u64,
}

/// A token bucket that drops what exceeds it, and delays nothing. It begins full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policer {
    /// Tokens per second, bits, within [`POLICER_BIT_PER_S`].
    pub bit_per_s: u64,
    /// The bucket, bytes, within [`POLICER_BURST_BYTES`].
    pub burst_bytes: u64,
}

/// All of them but [`Loss`]; by default none.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Impairments {
    pub burst_loss: Option<BurstLoss>,
    pub outages: Option<Outages>,
    pub policer: Option<Policer>,
    /// Chance that a packet comes twice, 0 to 1.
    pub duplicate: f64,
    pub jitter: Option<Jitter>,
    pub reorder: Option<Reorder>,
    /// Of all that is random here.
    pub seed: u64,
}

/// Field names of one direction, for refusals.
pub(crate) struct Fields {
    pub(crate) loss: &'static str,
    pub(crate) burst_loss: &'static str,
    pub(crate) outages: &'static str,
    pub(crate) policer: &'static str,
    pub(crate) duplicate: &'static str,
    pub(crate) jitter: &'static str,
    pub(crate) reorder: &'static str,
}

impl Loss {
    pub(crate) fn check(self, field: &'static str) -> Result<(), ConfigError> {
        check_share(field, self.probability)
    }
}

impl Impairments {
    pub(crate) fn check(&self, fields: &Fields) -> Result<(), ConfigError> {
        if let Some(BurstLoss { to_bad, to_good, loss_good, loss_bad }) = self.burst_loss {
            [to_bad, loss_good, loss_bad]
                .into_iter()
                .try_for_each(|share| check_share(fields.burst_loss, share))?;
            check_range(fields.burst_loss, to_good, f64::MIN_POSITIVE, 1.0, "")?;
        }
        if let Some(Outages { mean_on_us, mean_off_us }) = self.outages {
            let low = if mean_on_us == 0 { 1.0 } else { 0.0 };
            check_range(fields.outages, mean_on_us as f64, 0.0, MAX_OUTAGE_US as f64, "us")?;
            check_range(fields.outages, mean_off_us as f64, low, MAX_OUTAGE_US as f64, "us")?;
        }
        if let Some(Policer { bit_per_s, burst_bytes }) = self.policer {
            let ((slow, fast), (small, large)) = (POLICER_BIT_PER_S, POLICER_BURST_BYTES);
            check_range(fields.policer, bit_per_s as f64, slow as f64, fast as f64, "bit/s")?;
            check_range(fields.policer, burst_bytes as f64, small as f64, large as f64, "bytes")?;
        }
        check_share(fields.duplicate, self.duplicate)?;
        if let Some(Jitter { max_us, .. }) = self.jitter {
            check_range(fields.jitter, max_us as f64, 0.0, MAX_DELAY_US as f64, "us")?;
        }
        if let Some(Reorder { probability, hold_us }) = self.reorder {
            check_share(fields.reorder, probability)?;
            check_range(fields.reorder, hold_us as f64, 0.0, MAX_DELAY_US as f64, "us")?;
        }
        Ok(())
    }

    /// Whether packets leave in the order in which they entered.
    pub fn keeps_order(&self) -> bool {
        let jitter = self.jitter.is_some_and(|jitter| jitter.reorder && jitter.max_us > 0);
        let held = self.reorder.is_some_and(|reorder| reorder.probability > 0.0 && reorder.hold_us > 0);
        !jitter && !held
    }
}

fn check_share(field: &'static str, share: f64) -> Result<(), ConfigError> {
    check_range(field, share, 0.0, 1.0, "")
}

//! MOCC's preferences among throughput, latency and loss, and the order in which they are learned.

mod goals;
mod landmarks;
mod replay;

pub use goals::{Goals, TRANSFER_UPDATES};
pub use landmarks::{LANDMARKS, PIVOTS, landmarks};
pub use replay::Replay;

use serde::{Deserialize, Serialize};

/// Weights of throughput, latency and loss in a reward (Ma et al., EuroSys 2022, section 3). They sum to 1.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preference {
    /// Weight of throughput, as a share of the capacity.
    pub throughput: f32,
    /// Weight of the base RTT, as a share of the RTT.
    pub latency: f32,
    /// Weight of the share of packets that arrive.
    pub loss: f32,
}

impl Preference {
    /// One with these weights, scaled so that they sum to 1; `None` if one is negative or not finite, or all are 0.
    pub fn new(throughput: f32, latency: f32, loss: f32) -> Option<Preference> {
        let sum = throughput + latency + loss;
        let good = [throughput, latency, loss].iter().all(|w| *w >= 0.0) && sum > 0.0 && sum.is_finite();
        good.then(|| Preference { throughput: throughput / sum, latency: latency / sum, loss: loss / sum })
    }

    /// Throughput, latency, loss: as they stand at the end of an observation, before normalisation.
    pub fn weights(&self) -> [f32; 3] {
        [self.throughput, self.latency, self.loss]
    }

    /// Returns the distance to another preference: the sum of the weights' differences, 0 to 2.
    pub fn distance(&self, other: &Preference) -> f32 {
        self.weights().iter().zip(other.weights()).map(|(a, b)| (a - b).abs()).sum()
    }
}

//! PIE (RFC 8033): drops arrivals at random, with a probability that a controller of the queueing delay sets.
//!
//! The delay is the queue over the measured rate of departures (section 5.2). mahimahi's queue follows the same draft, but takes delays in
//! milliseconds for seconds and does not undo it in its scaling, so that it reacts tens of times harder; this one is the RFC's.

use ccplane_netsim::trace::OPPORTUNITY_BYTES;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Between updates of the probability, nanoseconds (RFC 8033, section 4.2).
const UPDATE_NS: u64 = 15_000_000;
/// Gains per second of delay (RFC 8033, section 4.2).
const ALPHA: f64 = 0.125;
const BETA: f64 = 1.25;
/// Below this probability a delay under half the reference drops nothing (section 4.1).
const SMALL_PROBABILITY: f64 = 0.2;
/// A queue of up to two full packets drops nothing (section 4.1).
const FEW_BYTES: u64 = 2 * OPPORTUNITY_BYTES as u64;
/// Largest step of a probability above [`LARGE_PROBABILITY`] (section 5.5).
const MAX_STEP: f64 = 0.02;
const LARGE_PROBABILITY: f64 = 0.1;
/// Decay while nothing waits (section 4.2).
const DECAY: f64 = 0.98;
/// Delays above this one, seconds, raise the probability by at least [`MAX_STEP`], as Linux's sch_pie does.
const LONG_DELAY_S: f64 = 0.25;
/// Departures of this many bytes make one measurement of the rate, from a queue of as many (section 5.2).
const RATE_SAMPLE_BYTES: u64 = 1 << 14;
/// Of a new measurement in the mean.
const RATE_WEIGHT: f64 = 0.25;
/// Updates without a packet after which the controller is at rest whatever it was; bounds the work after a pause.
const MAX_CATCH_UP: u64 = 4096;
const NS_PER_S: f64 = 1e9;
const NS_PER_US: u64 = 1_000;

/// The controller's state.
#[derive(Debug)]
pub(super) struct Pie {
    reference_s: f64,
    max_burst_ns: u64,
    random: ChaCha8Rng,
    probability: f64,
    burst_left_ns: u64,
    delay_s: f64,
    delay_before_s: f64,
    /// The rate of departures, bytes per second; 0: not measured yet.
    rate: f64,
    /// The measurement under way: when it began, nanoseconds, and the bytes departed since.
    measuring: Option<(u64, u64)>,
    next_update_ns: u64,
}

impl Pie {
    pub(super) fn new(qdelay_ref_us: u64, max_burst_us: u64, seed: u64, now_ns: u64) -> Pie {
        Pie {
            reference_s: qdelay_ref_us as f64 / 1e6,
            max_burst_ns: max_burst_us * NS_PER_US,
            random: ChaCha8Rng::seed_from_u64(seed),
            probability: 0.0,
            burst_left_ns: max_burst_us * NS_PER_US,
            delay_s: 0.0,
            delay_before_s: 0.0,
            rate: 0.0,
            measuring: None,
            next_update_ns: now_ns + UPDATE_NS,
        }
    }

    /// Whether a packet that comes at `now_ns` to a queue of `queue_bytes` is dropped; `room`: the queue could hold it.
    pub(super) fn refuses(&mut self, now_ns: u64, queue_bytes: u64, room: bool) -> bool {
        self.update(now_ns, queue_bytes);
        !room || self.drops_early(queue_bytes)
    }

    fn drops_early(&mut self, queue_bytes: u64) -> bool {
        let calm = self.delay_before_s < self.reference_s / 2.0 && self.probability < SMALL_PROBABILITY;
        if self.burst_left_ns > 0 || calm || queue_bytes <= FEW_BYTES {
            return false;
        }
        f64::from(self.random.next_u32()) / f64::from(u32::MAX) < self.probability
    }

    /// A packet of `size` bytes begins to leave at `now_ns`; `queue_bytes` wait behind it.
    pub(super) fn departs(&mut self, now_ns: u64, size: u32, queue_bytes: u64) {
        self.update(now_ns, queue_bytes + u64::from(size));
        if self.measuring.is_none() && queue_bytes >= RATE_SAMPLE_BYTES {
            self.measuring = Some((now_ns, 0));
            return;
        }
        let Some((since_ns, bytes)) = &mut self.measuring else { return };
        *bytes += u64::from(size);
        if *bytes >= RATE_SAMPLE_BYTES && now_ns > *since_ns {
            let sample = *bytes as f64 * NS_PER_S / (now_ns - *since_ns) as f64;
            self.rate = if self.rate > 0.0 { self.rate + RATE_WEIGHT * (sample - self.rate) } else { sample };
            self.measuring = (queue_bytes >= RATE_SAMPLE_BYTES).then_some((now_ns, 0));
        }
    }

    /// Catches up on the updates due by `now_ns`, during which the queue held `queue_bytes`.
    fn update(&mut self, now_ns: u64, queue_bytes: u64) {
        if now_ns < self.next_update_ns {
            return;
        }
        let due = (now_ns - self.next_update_ns) / UPDATE_NS + 1;
        self.next_update_ns += due * UPDATE_NS;
        for _ in 0..due.min(MAX_CATCH_UP) {
            self.update_once(queue_bytes);
        }
    }

    fn update_once(&mut self, queue_bytes: u64) {
        self.delay_before_s = self.delay_s;
        self.delay_s = if self.rate > 0.0 { queue_bytes as f64 / self.rate } else { 0.0 };
        let error = ALPHA * (self.delay_s - self.reference_s) + BETA * (self.delay_s - self.delay_before_s);
        let mut step = error * gain_scale(self.probability);
        if self.probability >= LARGE_PROBABILITY {
            step = step.min(MAX_STEP);
        }
        if self.delay_s > LONG_DELAY_S {
            step = step.max(MAX_STEP);
        }
        self.probability = (self.probability + step).clamp(0.0, 1.0);
        if self.delay_s == 0.0 && self.delay_before_s == 0.0 {
            self.probability *= DECAY;
        }
        self.burst_left_ns = self.burst_left_ns.saturating_sub(UPDATE_NS);
        let calm = self.delay_s < self.reference_s / 2.0 && self.delay_before_s < self.reference_s / 2.0;
        if self.probability == 0.0 && calm {
            self.burst_left_ns = self.max_burst_ns;
        }
    }
}

/// Small probabilities take small steps (RFC 8033, section 4.2).
fn gain_scale(probability: f64) -> f64 {
    const SCALES: [(f64, f64); 6] =
        [(1e-6, 2048.0), (1e-5, 512.0), (1e-4, 128.0), (1e-3, 32.0), (1e-2, 8.0), (1e-1, 2.0)];
    SCALES.iter().find(|(below, _)| probability < *below).map_or(1.0, |(_, scale)| 1.0 / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SIZE: u32 = 1504;

    /// Full packets come every `every_us` to a link that takes one a millisecond; returns the mean wait over the last half, in
    /// milliseconds, and when packets were dropped.
    fn run(every_us: u64, seed: u64, ms: u64) -> (f64, Vec<u64>) {
        let mut pie = Pie::new(15_000, 150_000, seed, 0);
        let (mut queue, mut dropped, mut waits) = (std::collections::VecDeque::new(), vec![], vec![]);
        let (mut next_ns, mut bytes) = (0, 0);
        for now in 1..=ms {
            while next_ns <= now * MS {
                if pie.refuses(next_ns, bytes, true) {
                    dropped.push(next_ns / MS);
                } else {
                    bytes += u64::from(SIZE);
                    queue.push_back(next_ns);
                }
                next_ns += every_us * 1000;
            }
            if let Some(arrived_ns) = queue.pop_front() {
                bytes -= u64::from(SIZE);
                pie.departs(now * MS, SIZE, bytes);
                if now > ms / 2 {
                    waits.push((now * MS - arrived_ns) as f64 / MS as f64);
                }
            }
        }
        (waits.iter().sum::<f64>() / waits.len().max(1) as f64, dropped)
    }

    #[test]
    fn a_standing_overload_settles_at_the_reference() {
        // A quarter too much: a fifth must go.
        let (wait_ms, dropped) = run(800, 1, 60_000);
        assert!((11.0..19.0).contains(&wait_ms), "{wait_ms}");
        let late = dropped.iter().filter(|at_ms| **at_ms > 30_000).count();
        assert!((6_500..8_500).contains(&late), "{late} of 37500");
    }

    #[test]
    fn a_burst_passes_and_a_lighter_load_loses_nothing() {
        let (_, dropped) = run(800, 1, 60_000);
        assert!(dropped[0] >= 150, "the first drop comes after a burst's time: {}", dropped[0]);
        assert_eq!(run(1_100, 1, 20_000).1, []);
    }

    #[test]
    fn a_seed_decides() {
        assert_eq!(run(800, 1, 5_000), run(800, 1, 5_000));
        assert_ne!(run(800, 1, 5_000).1, run(800, 2, 5_000).1);
    }

    #[test]
    fn small_probabilities_take_small_steps() {
        let scales = [0.0, 5e-6, 5e-5, 5e-4, 5e-3, 5e-2, 0.5].map(|p| 1.0 / gain_scale(p));
        assert_eq!(scales, [2048.0, 512.0, 128.0, 32.0, 8.0, 2.0, 1.0]);
    }
}

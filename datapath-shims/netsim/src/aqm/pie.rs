//! PIE (RFC 8033), in integers: the arithmetic of Linux `net/sched/sch_pie.c`.

use super::Verdict;
use crate::workload::Random;

/// A probability of 1.
const ONE: u64 = 1 << 56;
/// The time between two updates of the probability (section 4.2), nanoseconds.
const UPDATE_NS: u64 = 15_000_000;
/// A queue of up to two packets drops nothing (section 4.1), bytes.
const SMALL_QUEUE_BYTES: u64 = 2 * 1514;
const NS_PER_S: u64 = 1_000_000_000;
/// Above this delay the probability rises quickly (section 5.1 of the RFC, `calculate_probability` in Linux).
const LARGE_DELAY_NS: u64 = 250_000_000;

/// The state of PIE's controller; the delay is that of the last packet that left.
#[derive(Debug)]
pub struct Pie {
    target_ns: u64,
    max_burst_ns: u64,
    ecn: bool,
    random: Random,
    probability: u64,
    delay_ns: u64,
    /// The delay at the last update, nanoseconds.
    old_delay_ns: u64,
    burst_ns: u64,
    next_update_ns: u64,
    /// The sum of probabilities since the last drop. Below 0.85 no packet is dropped, above 8.5 the next one is (section 5.4).
    accumulated: u64,
}

impl Pie {
    /// Creates a controller whose random drops follow from `seed` and `stream`; with `ecn` it marks while the probability is small.
    #[must_use]
    pub fn new(target_ns: u64, max_burst_ns: u64, ecn: bool, (seed, stream): (u64, u64)) -> Pie {
        Pie {
            target_ns,
            max_burst_ns,
            ecn,
            random: Random::new(seed, stream),
            probability: 0,
            delay_ns: 0,
            old_delay_ns: 0,
            burst_ns: max_burst_ns,
            next_update_ns: UPDATE_NS,
            accumulated: 0,
        }
    }

    /// Judges a packet that arrives at a queue of `queue_bytes`.
    pub fn on_arrival(&mut self, now_ns: u64, queue_bytes: u64, markable: bool) -> Verdict {
        self.update(now_ns, queue_bytes == 0);
        if !self.strikes(queue_bytes) {
            return Verdict::Pass;
        }
        if self.ecn && markable && self.probability <= ONE / 10 { Verdict::Mark } else { Verdict::Drop }
    }

    fn strikes(&mut self, queue_bytes: u64) -> bool {
        let quiet = self.old_delay_ns < self.target_ns / 2 && self.probability < ONE / 5;
        if self.burst_ns > 0 || quiet || queue_bytes <= SMALL_QUEUE_BYTES {
            return false;
        }
        if self.probability == 0 {
            self.accumulated = 0;
        }
        self.accumulated += self.probability;
        if self.accumulated < ONE / 100 * 85 {
            return false;
        }
        let sure = self.accumulated >= ONE / 2 * 17;
        if sure || u64::from(self.random.share()) << 24 < self.probability {
            self.accumulated = 0;
            return true;
        }
        false
    }

    /// Takes the delay of a packet that leaves after it waited for `waited_ns`.
    pub fn on_departure(&mut self, now_ns: u64, waited_ns: u64) {
        self.update(now_ns, false);
        self.delay_ns = waited_ns;
    }

    /// Catches up on the updates that are due.
    fn update(&mut self, now_ns: u64, empty: bool) {
        while self.next_update_ns <= now_ns {
            if empty {
                self.delay_ns = 0;
            }
            self.update_once();
            self.next_update_ns += UPDATE_NS;
            let at_rest = self.probability == 0 && self.delay_ns == 0 && self.old_delay_ns == 0;
            if at_rest && self.next_update_ns <= now_ns {
                self.next_update_ns += (now_ns - self.next_update_ns) / UPDATE_NS * UPDATE_NS;
            }
        }
    }

    fn update_once(&mut self) {
        let delta = self.step();
        // "Increase by at most 2 % once it is above 10 %"; faster again where the delay is large.
        let two_percent = (ONE / 50) as i128;
        let limited = if self.probability >= ONE / 10 { delta.min(two_percent) } else { delta };
        let step = if self.delay_ns > LARGE_DELAY_NS { limited + two_percent } else { limited };
        self.probability = (i128::from(self.probability) + step).clamp(0, i128::from(ONE)) as u64;
        if self.delay_ns == 0 && self.old_delay_ns == 0 {
            self.probability -= self.probability / 64;
            if self.probability < ONE >> 32 {
                self.probability = 0;
            }
        }
        self.burst_ns = self.burst_ns.saturating_sub(UPDATE_NS);
        let half_ns = self.target_ns / 2;
        if self.probability == 0 && self.delay_ns < half_ns && self.old_delay_ns < half_ns {
            self.burst_ns = self.max_burst_ns;
        }
        self.old_delay_ns = self.delay_ns;
    }

    /// Returns the step of the probability: `alpha * (delay - target) + beta * (delay - old delay)`. Alpha is 1/8 and
    /// beta 5/4 per second; both are smaller where the probability is small (section 4.2).
    fn step(&self) -> i128 {
        let shift = gain_shift(self.probability);
        let gain = |sixteenths: u64| i128::from(((ONE / NS_PER_S * sixteenths) >> 4) >> shift);
        let delay_ns = i128::from(self.delay_ns);
        gain(2) * (delay_ns - i128::from(self.target_ns))
            + gain(20) * (delay_ns - i128::from(self.old_delay_ns))
    }
}

/// Returns by how many bits a small probability reduces both gains (section 4.2).
fn gain_shift(probability: u64) -> u32 {
    if probability >= ONE / 10 {
        return 0;
    }
    let powers = [100, 1000, 10_000, 100_000, 1_000_000];
    1 + 2 * powers.iter().take_while(|power| probability < ONE / **power).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn pie(ecn: bool) -> Pie {
        Pie::new(15 * MS, 150 * MS, ecn, (1, 0))
    }

    /// Passes a packet a millisecond, each of which waited for `waited_ns`; returns the drops of each second.
    fn strikes(pie: &mut Pie, from_s: u64, seconds: u64, waited_ns: u64) -> Vec<u64> {
        (from_s..from_s + seconds)
            .map(|s| {
                let struck = |ms: &u64| {
                    let now_ns = (s * 1000 + ms) * MS;
                    let verdict = pie.on_arrival(now_ns, 60_000, false);
                    pie.on_departure(now_ns, waited_ns);
                    verdict == Verdict::Drop
                };
                (0..1000).filter(struck).count() as u64
            })
            .collect()
    }

    #[test]
    fn a_standing_delay_raises_the_probability_and_its_end_lowers_it() {
        let mut p = pie(false);
        let rising = strikes(&mut p, 0, 20, 50 * MS);
        assert!(rising.windows(2).all(|w| w[0] <= w[1] + 15) && rising[19] > 200, "{rising:?}");
        strikes(&mut p, 20, 20, 0);
        assert_eq!(strikes(&mut p, 40, 1, 0), [0]);
    }

    #[test]
    fn pie_drops_nothing_of_a_first_burst() {
        let mut p = pie(false);
        let first = (0..150).filter(|ms| {
            p.on_departure(ms * MS, 400 * MS);
            p.on_arrival(ms * MS, 600_000, false) != Verdict::Pass
        });
        assert_eq!(first.count(), 0);
    }

    #[test]
    fn delay_at_the_target_holds_the_probability() {
        let mut p = pie(false);
        strikes(&mut p, 0, 10, 40 * MS);
        strikes(&mut p, 10, 1, 15 * MS);
        let before = p.probability;
        strikes(&mut p, 11, 10, 15 * MS);
        assert_eq!(p.probability, before);
    }

    #[test]
    fn marks_while_the_probability_is_small() {
        let mut p = pie(true);
        p.burst_ns = 0;
        (p.probability, p.old_delay_ns, p.accumulated) = (ONE / 20, 20 * MS, ONE * 9);
        assert_eq!(p.on_arrival(0, 60_000, true), Verdict::Mark);
        (p.probability, p.accumulated) = (ONE / 5, ONE * 9);
        assert_eq!(p.on_arrival(0, 60_000, true), Verdict::Drop);
    }

    #[test]
    fn small_probabilities_take_small_steps() {
        let probabilities = [0, ONE / 200_000, ONE / 20_000, ONE / 2000, ONE / 200, ONE / 20, ONE / 2];
        assert_eq!(probabilities.map(|p| 1 << gain_shift(p)), [2048, 512, 128, 32, 8, 2, 1]);
    }

    #[test]
    fn a_long_rest_costs_no_time() {
        let mut p = pie(false);
        p.on_arrival(u64::MAX / 2, 0, false);
        assert!(p.next_update_ns > u64::MAX / 2);
    }
}

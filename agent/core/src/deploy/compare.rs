//! Whether a canary is no worse than what it is to replace: Welch's test of non-inferiority on rewards.
//!
//! A measurement is the mean reward of one flow over one batch interval. With `d` the canary's mean less the active
//! snapshot's and `s` its standard error, the canary is *no worse* once `d - t s > -margin`, and *worse* once
//! `d + t s < -margin`; `t` is Student's quantile at Welch's degrees of freedom. It is looked at only when the smaller
//! group has 12, 24, 48, 96 and 192 measurements, each time at a fifth of 5 %, so that looking often proves nothing by
//! chance (Bonferroni). Batch intervals of one flow that follow each other are not independent; the margin and the
//! first looks' width are what is left for that.

/// Measurements of the smaller group at the first look; each further look needs twice as many.
const FIRST_LOOK: u64 = 12;
/// Looks, at most.
pub const MAX_LOOKS: u32 = 5;
/// The standard normal distribution's quantile at 1 - 0.05 / [`MAX_LOOKS`], one-sided.
const NORMAL_QUANTILE: f64 = 2.326_347_874_040_841;
/// The margin is at least this share of the active snapshot's standard deviation: less cannot be told from noise.
const LEAST_MARGIN_DEVIATIONS: f64 = 0.2;

/// Count, mean and variance of measurements, by Welford's recurrence.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Sample {
    /// How many.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    squares: f64,
}

impl Sample {
    /// Takes one in.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.squares += delta * (value - self.mean);
    }

    /// The unbiased variance; 0 for less than two.
    pub fn variance(&self) -> f64 {
        if self.count < 2 { 0.0 } else { self.squares / (self.count - 1) as f64 }
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Sample {
        let mut sample = Sample::default();
        values.into_iter().for_each(|v| sample.add(v));
        sample
    }
}

/// What a look has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finding {
    /// The canary is at most the margin worse.
    NoWorse,
    /// It is more than the margin worse.
    Worse,
    /// Neither is shown.
    Open,
}

/// Two groups at one look.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Comparison {
    /// Flows on the canary.
    pub canary: Sample,
    /// Flows on the active snapshot; before the canary, where all flows took it.
    pub active: Sample,
    /// The canary's mean less the active's.
    pub difference: f64,
    /// How much less is still no worse.
    pub margin: f64,
    /// Half the width of the difference's interval.
    pub uncertainty: f64,
    /// What follows.
    pub finding: Finding,
}

/// The measurements that look number `look` (from 0) needs in the smaller group.
pub(super) fn needed(look: u32) -> u64 {
    FIRST_LOOK << look.min(MAX_LOOKS - 1)
}

/// Compares two groups. `margin_share`: how much less is still no worse, as a share of the active's mean.
pub fn compare(canary: Sample, active: Sample, margin_share: f64) -> Comparison {
    let difference = canary.mean - active.mean;
    let margin = (margin_share * active.mean.abs()).max(LEAST_MARGIN_DEVIATIONS * active.variance().sqrt());
    let of = |s: &Sample| if s.count == 0 { 0.0 } else { s.variance() / s.count as f64 };
    let (a, b) = (of(&canary), of(&active));
    let degrees = |part: f64, s: &Sample| part * part / (s.count.max(2) - 1) as f64;
    let divisor = degrees(a, &canary) + degrees(b, &active);
    let freedom = if divisor > 0.0 { (a + b) * (a + b) / divisor } else { f64::from(u32::MAX) };
    let uncertainty = quantile(freedom) * (a + b).sqrt();
    let finding = if difference - uncertainty > -margin {
        Finding::NoWorse
    } else if difference + uncertainty < -margin {
        Finding::Worse
    } else {
        Finding::Open
    };
    // Without measurements nothing is shown.
    let finding = if canary.count < 2 || active.count < 2 { Finding::Open } else { finding };
    Comparison { canary, active, difference, margin, uncertainty, finding }
}

/// Student's quantile at the level of [`NORMAL_QUANTILE`]: the Cornish-Fisher expansion (Abramowitz and Stegun
/// 26.7.5), within 1 % from 4 degrees of freedom.
fn quantile(freedom: f64) -> f64 {
    let (z, n) = (NORMAL_QUANTILE, freedom.max(1.0));
    let z3 = z * z * z;
    let z5 = z3 * z * z;
    let z7 = z5 * z * z;
    z + (z3 + z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Around `mean`, `spread` to either side.
    fn sample(mean: f64, spread: f64, count: u64) -> Sample {
        (0..count).map(|n| if n % 2 == 0 { mean + spread } else { mean - spread }).collect()
    }

    #[test]
    fn students_quantiles() {
        // One-sided 1 %, from the tables.
        for (freedom, expected) in [(4.0, 3.747), (10.0, 2.764), (30.0, 2.457), (1e6, 2.326)] {
            let found = quantile(freedom);
            assert!((found - expected).abs() < 0.01 * expected, "{freedom}: {found}, not {expected}");
        }
    }

    #[test]
    fn findings() {
        let active = sample(1.0, 0.1, 24);
        let finding = |mean, spread, count| compare(sample(mean, spread, count), active, 0.05).finding;
        assert_eq!(finding(1.2, 0.1, 12), Finding::NoWorse);
        assert_eq!(finding(0.5, 0.1, 12), Finding::Worse);
        assert_eq!(finding(0.95, 0.1, 12), Finding::Open);
        let much = compare(sample(1.0, 0.1, 200), sample(1.0, 0.1, 200), 0.05);
        assert_eq!(much.finding, Finding::NoWorse, "as good, and enough of it");
        assert_eq!(finding(9.0, 0.0, 1), Finding::Open, "one measurement shows nothing");
        assert_eq!(compare(Sample::default(), Sample::default(), 0.05).finding, Finding::Open);
    }

    #[test]
    fn welfords_variance() {
        let s: Sample = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().collect();
        assert!((s.mean - 5.0).abs() < 1e-12 && (s.variance() - 32.0 / 7.0).abs() < 1e-12);
    }
}

//! Rates over time of a few plain shapes, for [`crate::rates::trace_of`].

use ccplane_netsim::trace::MAX_TIMESTAMP_MS;

use crate::error::{Error, check_range};
use crate::rates::{MAX_BIT_PER_S, RateStep};

/// A sawtooth is a staircase of this many milliseconds a stair.
const STAIR_MS: u32 = 10;

/// One rate all along.
///
/// # Errors
/// A rate or a duration out of range.
pub fn constant(bit_per_s: u64, duration_ms: u32) -> Result<Vec<RateStep>, Error> {
    step(&[bit_per_s], duration_ms, duration_ms)
}

/// The given rates in turn, each for `every_ms`, again and again until `duration_ms` are over.
///
/// # Errors
/// No rate, or one out of range; `every_ms` or `duration_ms` 0 or above a day.
pub fn step(bit_per_s: &[u64], every_ms: u32, duration_ms: u32) -> Result<Vec<RateStep>, Error> {
    check_ms("duration", duration_ms)?;
    check_ms("every", every_ms)?;
    check_range("rates", bit_per_s.len() as f64, 1.0, f64::from(u32::MAX), "rates")?;
    bit_per_s.iter().try_for_each(|rate| check_rate("rate", *rate))?;
    let starts = (0..duration_ms).step_by(every_ms as usize);
    let steps = starts.zip(bit_per_s.iter().cycle()).map(|(start_ms, rate)| RateStep {
        duration_ms: every_ms.min(duration_ms - start_ms),
        bit_per_s: *rate,
    });
    Ok(steps.collect())
}

/// From `low` straight up to `high` within `period_ms`, then down at once, again and again.
///
/// # Errors
/// `low` above `high`, or a rate, period or duration out of range.
pub fn sawtooth(low: u64, high: u64, period_ms: u32, duration_ms: u32) -> Result<Vec<RateStep>, Error> {
    check_ms("duration", duration_ms)?;
    check_ms("period", period_ms)?;
    check_rate("high", high)?;
    check_range("low", low as f64, 0.0, high as f64, "bit/s")?;
    let stair = |start_ms: u32| {
        let into_ms = u64::from(start_ms % period_ms);
        // 10^11 times a day in milliseconds is below 2^63.
        let bit_per_s = low + (high - low) * into_ms / u64::from(period_ms);
        RateStep { duration_ms: STAIR_MS.min(duration_ms - start_ms), bit_per_s }
    };
    Ok((0..duration_ms).step_by(STAIR_MS as usize).map(stair).collect())
}

fn check_ms(field: &'static str, ms: u32) -> Result<(), Error> {
    check_range(field, ms.into(), 1.0, MAX_TIMESTAMP_MS as f64, "ms")
}

fn check_rate(field: &'static str, bit_per_s: u64) -> Result<(), Error> {
    check_range(field, bit_per_s as f64, 0.0, MAX_BIT_PER_S as f64, "bit/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::{rates_of, trace_of};

    const MBIT: u64 = 1_000_000;

    #[test]
    fn the_rates_of_a_step_take_turns() {
        let trace = trace_of(&step(&[12 * MBIT, 48 * MBIT], 1000, 3500).unwrap()).unwrap();
        let rates: Vec<u64> = rates_of(&trace, 500).unwrap().iter().map(|s| s.bit_per_s / MBIT).collect();
        assert_eq!(trace.period_ms(), 3500);
        for (rate, expected) in rates.iter().zip([12, 12, 48, 48, 12, 12, 48]) {
            assert!(rate.abs_diff(expected) <= 1, "{rates:?}");
        }
    }

    #[test]
    fn a_sawtooth_rises_and_falls_at_once() {
        let trace = trace_of(&sawtooth(10 * MBIT, 50 * MBIT, 1000, 3000).unwrap()).unwrap();
        let rates: Vec<u64> = rates_of(&trace, 250).unwrap().iter().map(|s| s.bit_per_s / MBIT).collect();
        assert_eq!(rates[..4], [14, 24, 34, 44], "{rates:?}");
        assert!(trace.mean_rate_bit_per_s().abs_diff(30 * MBIT) < MBIT / 2);
        assert_eq!(rates.len(), 12);
    }

    #[test]
    fn refusals_name_the_field() {
        let text = |r: Result<Vec<RateStep>, Error>| r.unwrap_err().to_string();
        assert!(text(constant(MBIT, 0)).starts_with("duration: 0 is outside"));
        assert!(text(step(&[], 1, 1)).starts_with("rates: 0 is outside"));
        assert!(text(step(&[MBIT], 0, 1)).starts_with("every: 0 is outside"));
        assert!(text(sawtooth(2, 1, 1, 1)).starts_with("low: 2 is outside 0..=1 bit/s"));
        assert!(text(sawtooth(1, u64::MAX, 1, 1)).starts_with("high: "));
    }
}

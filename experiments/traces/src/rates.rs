//! Traces as rates over time, and back. Integers throughout.

use ccplane_netsim::trace::{MAX_OPPORTUNITIES, MAX_TIMESTAMP_MS, OPPORTUNITY_BYTES, Trace};

use crate::error::{Error, check_range};

pub use crate::limits::MAX_BIT_PER_S;

/// Bits that one opportunity delivers.
pub const OPPORTUNITY_BITS: u64 = OPPORTUNITY_BYTES as u64 * 8;

/// Thousandths of a bit that one opportunity delivers; a rate in bits per second gives its own number of them each millisecond.
const OPPORTUNITY_MILLIBITS: u64 = OPPORTUNITY_BITS * 1000;

/// A rate for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateStep {
    /// The time for which it holds, milliseconds; above 0.
    pub duration_ms: u32,
    /// The rate, 0 to [`MAX_BIT_PER_S`].
    pub bit_per_s: u64,
}

/// The trace that delivers at the given rates, one step after the other.
///
/// An opportunity comes at the end of the millisecond in which its bits are complete; what a step leaves over counts for the
/// next. If the last one comes before the end, another marks the end, so that the trace lasts as long as its steps: it delivers
/// what they do or less than one opportunity more.
///
/// # Errors
/// No step, a step out of range, a rate of 0 throughout, or more time or opportunities than a trace may have.
pub fn trace_of(steps: &[RateStep]) -> Result<Trace, Error> {
    let mut duration_ms = 0;
    let mut millibits: u128 = 0;
    for step in steps {
        check_range("bit_per_s", step.bit_per_s as f64, 0.0, MAX_BIT_PER_S as f64, "bit/s")?;
        check_range("step", step.duration_ms.into(), 1.0, MAX_TIMESTAMP_MS as f64, "ms")?;
        duration_ms += u64::from(step.duration_ms);
        millibits += u128::from(step.bit_per_s) * u128::from(step.duration_ms);
    }
    check_range("duration", duration_ms as f64, 1.0, MAX_TIMESTAMP_MS as f64, "ms")?;
    if millibits == 0 {
        return Err(Error::NoRate);
    }
    let lines = (millibits / u128::from(OPPORTUNITY_MILLIBITS)) as u64 + 1;
    if lines > MAX_OPPORTUNITIES as u64 {
        return Err(Error::TooLong { found: lines });
    }

    let mut opportunities_ms = Vec::with_capacity(lines as usize);
    let (mut now_ms, mut credit) = (0, 0);
    for step in steps {
        for _ in 0..step.duration_ms {
            now_ms += 1;
            credit += step.bit_per_s;
            while credit >= OPPORTUNITY_MILLIBITS {
                credit -= OPPORTUNITY_MILLIBITS;
                opportunities_ms.push(now_ms);
            }
        }
    }
    if opportunities_ms.last() != Some(&now_ms) {
        opportunities_ms.push(now_ms);
    }
    Ok(Trace::from_opportunities_ms(opportunities_ms)?)
}

/// Returns the rate of a trace's first lap in each interval. The last interval may be shorter, and its rate is over its
/// own length.
///
/// An opportunity at a boundary belongs to the interval that it ends, as [`trace_of`] places it.
///
/// # Errors
/// An interval outside 1 ms to a day.
pub fn rates_of(trace: &Trace, interval_ms: u32) -> Result<Vec<RateStep>, Error> {
    check_range("interval", interval_ms.into(), 1.0, MAX_TIMESTAMP_MS as f64, "ms")?;
    // A trace lasts a day at most, which fits.
    let period_ms = trace.period_ms() as u32;
    let mut counts = vec![0u64; period_ms.div_ceil(interval_ms) as usize];
    for ms in trace.opportunities_ms() {
        counts[(ms.saturating_sub(1) / interval_ms) as usize] += 1;
    }
    let step = |(n, count): (usize, u64)| {
        let start_ms = n as u32 * interval_ms;
        let duration_ms = interval_ms.min(period_ms - start_ms);
        RateStep { duration_ms, bit_per_s: count * OPPORTUNITY_MILLIBITS / u64::from(duration_ms) }
    };
    Ok(counts.into_iter().enumerate().map(step).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(duration_ms: u32, bit_per_s: u64) -> RateStep {
        RateStep { duration_ms, bit_per_s }
    }

    #[test]
    fn a_step_delivers_when_its_bits_are_complete() {
        // 12.032 Mb/s: one a millisecond.
        assert_eq!(trace_of(&[step(3, 12_032_000)]).unwrap().opportunities_ms(), [1, 2, 3]);
        assert_eq!(trace_of(&[step(4, 6_016_000)]).unwrap().opportunities_ms(), [2, 4]);
        assert_eq!(trace_of(&[step(2, 24_064_000)]).unwrap().opportunities_ms(), [1, 1, 2, 2]);
        // Half an opportunity is carried over; silence at the end is kept.
        let carried = [step(1, 6_016_000), step(1, 6_016_000), step(5, 0)];
        assert_eq!(trace_of(&carried).unwrap().opportunities_ms(), [2, 7]);
    }

    #[test]
    fn refusals_say_what_would_be_right() {
        let refusal = |steps: &[RateStep]| trace_of(steps).unwrap_err().to_string();
        assert_eq!(refusal(&[]), "duration: 0 is outside 1..=86400000 ms");
        assert_eq!(refusal(&[step(0, 1)]), "step: 0 is outside 1..=86400000 ms");
        assert_eq!(
            refusal(&[step(9, 0)]),
            "the rate is 0 throughout: a trace needs at least one opportunity"
        );
        assert!(refusal(&[step(86_400_000, MAX_BIT_PER_S)]).starts_with("the trace would have 718085106"));
        assert!(refusal(&[step(1, MAX_BIT_PER_S + 1)]).starts_with("bit_per_s: 100000000001 is outside"));
        let trace = trace_of(&[step(3, 12_032_000)]).unwrap();
        assert!(rates_of(&trace, 0).unwrap_err().to_string().starts_with("interval: 0"));
    }

    proptest! {
        #[test]
        fn rates_of_a_trace_are_those_it_was_made_of(
            mbit in prop::collection::vec(0u64..200, 1..30), interval_ms in 20u32..500,
        ) {
            prop_assume!(mbit.iter().any(|m| *m > 0));
            let steps: Vec<RateStep> = mbit.iter().map(|m| step(interval_ms, m * 1_000_000)).collect();
            let trace = trace_of(&steps).unwrap();
            let again = rates_of(&trace, interval_ms).unwrap();
            prop_assert_eq!(again.len(), steps.len());
            let one = OPPORTUNITY_MILLIBITS / u64::from(interval_ms) + 1;
            // The last holds what the one before left over, and the mark of the end.
            let one = 2 * one;
            for (asked, got) in steps.iter().zip(&again) {
                prop_assert_eq!(got.duration_ms, interval_ms);
                prop_assert!(asked.bit_per_s.abs_diff(got.bit_per_s) <= one, "{:?} {:?}", asked, got);
            }
            let bits_of = |step: &RateStep| step.bit_per_s * u64::from(interval_ms) / 1000;
            let bits = |steps: &[RateStep]| -> u64 { steps.iter().map(bits_of).sum() };
            prop_assert!(bits(&again) + 30 >= bits(&steps) / OPPORTUNITY_BITS * OPPORTUNITY_BITS);
            prop_assert!(bits(&again) <= bits(&steps) + OPPORTUNITY_BITS);
            // Once more around, nothing changes but by the rounding of a rate to whole bits per second.
            let third = rates_of(&trace_of(&again).unwrap(), interval_ms).unwrap();
            for (a, b) in again.iter().zip(&third) {
                prop_assert!(a.bit_per_s.abs_diff(b.bit_per_s) <= one);
            }
        }
    }
}

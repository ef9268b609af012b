//! A synthetic cellular link: a random walk over rates.
//!
//! Real drives (mahimahi's, Winstein et al., NSDI'13) show rates that wander over a decade within seconds, and bursty
//! deliveries within milliseconds. Here the rate steps along a ladder every [`Cellular::step_ms`], mostly to a neighbour and
//! sometimes anywhere, and each millisecond draws its opportunities. Integers only: a seed gives the same bytes everywhere.

use ccplane_netsim::trace::{MAX_OPPORTUNITIES, Trace};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::error::{Error, check_range};
use crate::rates::OPPORTUNITY_BITS;

/// Rates of the ladder; they lie denser at its low end.
const RATES: u32 = 8;
/// Of 256 steps, how many jump to any rate.
const JUMPS: u32 = 10;
/// Of 256 steps, how many go one rung down, and as many up.
const MOVES: u32 = 45;
/// Chances to deliver in one millisecond; bounds the fastest rate.
const CHANCES_PER_MS: u64 = 64;

/// Fastest rate of a synthetic link, kilobits per second.
pub const MAX_CELLULAR_KBIT: u32 = 500_000;
/// Longest synthetic trace, milliseconds: an hour.
pub const MAX_DURATION_MS: u32 = 3_600_000;

/// A synthetic cellular link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cellular {
    /// Of the random sequence.
    pub seed: u64,
    /// Length of the trace, milliseconds; 1 to [`MAX_DURATION_MS`].
    pub duration_ms: u32,
    /// Slowest rate, kilobits per second; above 0.
    pub min_kbit: u32,
    /// Fastest, at least the slowest and at most [`MAX_CELLULAR_KBIT`].
    pub max_kbit: u32,
    /// The time for which a rate holds, milliseconds; above 0.
    pub step_ms: u32,
}

/// Draws the trace of a cellular link.
///
/// # Errors
/// A field out of range, or a trace that could have more lines than one may have.
pub fn cellular(link: &Cellular) -> Result<Trace, Error> {
    let (min, max) = (f64::from(link.min_kbit), f64::from(MAX_CELLULAR_KBIT));
    check_range("duration_ms", link.duration_ms.into(), 1.0, MAX_DURATION_MS.into(), "ms")?;
    check_range("min_kbit", min, 1.0, max, "kbit/s")?;
    check_range("max_kbit", link.max_kbit.into(), min, max, "kbit/s")?;
    check_range("step_ms", link.step_ms.into(), 1.0, MAX_DURATION_MS.into(), "ms")?;

    // Even if every step had the fastest rate.
    let lines = u64::from(link.max_kbit) * u64::from(link.duration_ms) / OPPORTUNITY_BITS + 1;
    if lines > MAX_OPPORTUNITIES as u64 {
        return Err(Error::TooLong { found: lines });
    }
    let mut random = ChaCha8Rng::seed_from_u64(link.seed);
    let mut rung = random.next_u32() % RATES;
    let mut opportunities_ms = Vec::new();
    for ms in 1..link.duration_ms {
        if ms % link.step_ms == 0 {
            rung = next_rung(rung, &mut random);
        }
        // A kilobit per second is a bit per millisecond; of 2^32 draws, `threshold` deliver.
        let threshold = (rate_kbit(link, rung) << 32) / (OPPORTUNITY_BITS * CHANCES_PER_MS);
        for _ in 0..CHANCES_PER_MS {
            if u64::from(random.next_u32()) < threshold {
                opportunities_ms.push(ms);
            }
        }
    }
    // One opportunity at the very end, so that the trace lasts as long as asked for.
    opportunities_ms.push(link.duration_ms);
    Ok(Trace::from_opportunities_ms(opportunities_ms)?)
}

fn rate_kbit(link: &Cellular, rung: u32) -> u64 {
    let (rung, top) = (u64::from(rung), u64::from(RATES - 1));
    u64::from(link.min_kbit) + u64::from(link.max_kbit - link.min_kbit) * rung * rung / (top * top)
}

fn next_rung(rung: u32, random: &mut ChaCha8Rng) -> u32 {
    match random.next_u32() % 256 {
        draw if draw < JUMPS => random.next_u32() % RATES,
        draw if draw < JUMPS + MOVES => rung.saturating_sub(1),
        draw if draw < JUMPS + 2 * MOVES => (rung + 1).min(RATES - 1),
        _ => rung,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const LINK: Cellular =
        Cellular { seed: 1, duration_ms: 20_000, min_kbit: 1_000, max_kbit: 30_000, step_ms: 100 };

    #[test]
    fn a_seed_gives_one_trace() {
        let trace = cellular(&LINK).unwrap();
        assert_eq!(trace, cellular(&LINK).unwrap());
        assert_ne!(trace, cellular(&Cellular { seed: 2, ..LINK }).unwrap());
        assert_eq!(trace.period_ms(), 20_000);
    }

    #[test]
    fn rates_stay_inside_and_vary() {
        let trace = cellular(&LINK).unwrap();
        let mut per_second = [0u64; 20];
        trace
            .opportunities_ms()
            .iter()
            .for_each(|ms| per_second[(*ms as usize / 1000).min(19)] += OPPORTUNITY_BITS);
        let (low, high) = (per_second.iter().min().unwrap(), per_second.iter().max().unwrap());
        assert!(*low > 800_000 && *high < 31_000_000 && high / low >= 3, "{per_second:?}");
        let flat = cellular(&Cellular { min_kbit: 12_000, max_kbit: 12_000, ..LINK }).unwrap();
        assert!(
            (11_800_000..12_200_000).contains(&flat.mean_rate_bit_per_s()),
            "{}",
            flat.mean_rate_bit_per_s()
        );
    }

    #[test]
    fn the_committed_traces_are_what_their_commands_print() {
        for (name, seed, max_kbit) in [("cellular.up", 1, 12_000), ("cellular.down", 2, 30_000)] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
            let link = Cellular { seed, duration_ms: 60_000, min_kbit: 1_000, max_kbit, step_ms: 200 };
            let trace = cellular(&link).unwrap();
            assert!(std::fs::read_to_string(path).unwrap() == trace.to_string(), "{name}");
            assert_eq!(trace.period_ms(), 60_000);
        }
    }

    #[test]
    fn refusals_name_the_field() {
        let refusal = |link| cellular(&link).unwrap_err().to_string();
        assert_eq!(
            refusal(Cellular { max_kbit: 999, ..LINK }),
            "max_kbit: 999 is outside 1000..=500000 kbit/s"
        );
        assert!(refusal(Cellular { duration_ms: 0, ..LINK }).starts_with("duration_ms: 0"));
        assert!(refusal(Cellular { min_kbit: 0, ..LINK }).starts_with("min_kbit: 0"));
        assert!(refusal(Cellular { step_ms: 0, ..LINK }).starts_with("step_ms: 0"));
    }
}

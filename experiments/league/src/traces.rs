//! Traces that are drawn, by names that say all of them: `cellular:1000:12000:200:SEED`.

use ccplane_netsim::trace::Trace;
use ccplane_traces::cellular::{Cellular, cellular};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Length of a drawn trace, milliseconds; it repeats.
const DURATION_MS: u32 = 60_000;
const OPPORTUNITY_BITS: u64 = 1504 * 8;

/// The trace of this name.
///
/// # Errors
/// What is wrong with the name, in words.
pub fn trace(name: &str) -> Result<Trace, String> {
    let (kind, numbers) = name.split_once(':').unwrap_or((name, ""));
    let numbers: Vec<u64> = numbers.split(':').filter_map(|n| n.parse().ok()).collect();
    let made = match (kind, numbers.as_slice()) {
        ("cellular", [min_kbit, max_kbit, step_ms, seed]) => {
            let [min_kbit, max_kbit, step_ms] =
                [min_kbit, max_kbit, step_ms].map(|n| u32::try_from(*n).unwrap_or(u32::MAX));
            let link = Cellular { seed: *seed, duration_ms: DURATION_MS, min_kbit, max_kbit, step_ms };
            return cellular(&link).map_err(|e| e.to_string());
        }
        ("wifi", [kbit, most, gap_ms, seed]) => aggregates(*kbit, *most, *gap_ms, *seed),
        ("lumps", [every_ms, count]) => lumps(*every_ms, *count),
        _ => return Err(format!("no trace is called `{name}`")),
    };
    Trace::from_opportunities_ms(made).map_err(|e| e.to_string())
}

/// Frame aggregation as on Wi-Fi: the medium is won after a random wait, exponential with this mean, and then up to `most` packets
/// leave in a lump, which takes the time of its size at the rate.
fn aggregates(kbit: u64, most: u64, gap_ms: u64, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut at_us = 0u64;
    let mut opportunities = Vec::new();
    while at_us < u64::from(DURATION_MS) * 1000 {
        let uniform = (f64::from(random.next_u32()) + 1.0) / (f64::from(u32::MAX) + 1.0);
        let count = 1 + u64::from(random.next_u32()) % most.max(1);
        at_us += (-uniform.ln() * gap_ms.max(1) as f64 * 1000.0) as u64;
        at_us += count * OPPORTUNITY_BITS * 1000 / kbit.max(1);
        let ms = u32::try_from(at_us / 1000).unwrap_or(u32::MAX).clamp(1, DURATION_MS);
        opportunities.extend(std::iter::repeat_n(ms, count as usize));
    }
    opportunities
}

/// So many at once, again and again.
fn lumps(every_ms: u64, count: u64) -> Vec<u32> {
    let every_ms = u32::try_from(every_ms).unwrap_or(u32::MAX).max(1);
    std::iter::repeat_n(every_ms, count as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_all() {
        let wifi = trace("wifi:100000:16:3:7").unwrap();
        assert_eq!(wifi, trace("wifi:100000:16:3:7").unwrap());
        assert_ne!(wifi, trace("wifi:100000:16:3:8").unwrap());
        assert_eq!(trace("lumps:40:3").unwrap().opportunities_ms(), [40, 40, 40]);
        assert!(trace("cellular:1000:12000:200:1").is_ok());
        assert_eq!(trace("wifi:1").unwrap_err(), "no trace is called `wifi:1`");
    }

    /// 8.5 packets on average, after 3 ms of waiting and 1.02 ms of sending.
    #[test]
    fn aggregates_come_in_lumps_at_their_mean_rate() {
        let wifi = trace("wifi:100000:16:3:7").unwrap();
        let mbit = wifi.mean_rate_bit_per_s() as f64 / 1e6;
        assert!((23.0..28.0).contains(&mbit), "{mbit}");
        let mut moments = wifi.opportunities_ms().to_vec();
        moments.dedup();
        let mean = wifi.opportunities_ms().len() as f64 / moments.len() as f64;
        assert!((8.0..12.0).contains(&mean), "{mean}");
    }
}

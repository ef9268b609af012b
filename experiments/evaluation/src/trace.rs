//! Traces by names that say all of them: the league's, links that fade, and links that are switched between circuits.

use ccplane_netsim::trace::Trace;
use ccplane_traces::rates::{MAX_BIT_PER_S, RateStep, trace_of};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Length of a drawn trace, milliseconds; it repeats.
const DURATION_MS: u32 = 60_000;
/// The distance of a fading rate from its mean, up and down, as a factor.
const FADE: f64 = 4.0;
/// The largest step of a fading rate, as a factor.
const FADE_STEP: f64 = 1.5;
/// One step of so many is an outage.
const OUTAGE_EACH: u32 = 100;
/// Longest phase of a switched link, milliseconds.
const MAX_PHASE_MS: u64 = 10_000;
/// Packet-switched days to each day of a circuit.
const PACKET_DAYS: u32 = 3;

/// The traces that cases name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Traces(ccplane_league::Traces);

impl Traces {
    /// The trace of this name.
    ///
    /// # Errors
    /// What is wrong with the name, in words.
    pub fn trace(&self, name: &str) -> Result<Trace, String> {
        let parts: Vec<&str> = name.split(':').collect();
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("no trace is called `{name}`"));
        let steps = match parts.as_slice() {
            ["fading", kbit, every_ms, seed] => fading(number(kbit)?, number(every_ms)?, number(seed)?),
            ["circuit", kbit, circuit_kbit, day_ms, night_ms] => {
                let (kbit, circuit_kbit) = (number(kbit)?, number(circuit_kbit)?);
                circuit(kbit, circuit_kbit, number(day_ms)?, number(night_ms)?)
            }
            _ => return self.0.trace(name),
        };
        trace_of(&steps).map_err(|e| e.to_string())
    }
}

fn bit_per_s(kbit: u64) -> u64 {
    kbit.saturating_mul(1000).min(MAX_BIT_PER_S)
}

fn phase_ms(ms: u64) -> u32 {
    u32::try_from(ms.clamp(1, MAX_PHASE_MS)).unwrap_or(u32::MAX)
}

/// A minute in which the rate walks at random on a logarithmic scale around its mean, as of a moving station. Now and then it
/// stops.
fn fading(kbit: u64, every_ms: u64, seed: u64) -> Vec<RateStep> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let duration_ms = phase_ms(every_ms);
    let mut factor: f64 = 1.0;
    let count = (DURATION_MS / duration_ms).max(1);
    let step = |_| {
        let uniform = 2.0 * f64::from(random.next_u32()) / f64::from(u32::MAX) - 1.0;
        let walked = factor * FADE_STEP.powf(uniform);
        factor = walked.clamp(1.0 / FADE, FADE);
        let is_out = random.next_u32().is_multiple_of(OUTAGE_EACH);
        let bit_per_s = if is_out { 0 } else { (bit_per_s(kbit) as f64 * factor) as u64 };
        RateStep { duration_ms, bit_per_s: bit_per_s.min(MAX_BIT_PER_S) }
    };
    (0..count).map(step).collect()
}

/// One round of a hybrid data-centre network (as of Helios and TDTCP): three days over packet switches and one over a circuit, with
/// a night, in which nothing passes, at each reconfiguration.
fn circuit(kbit: u64, circuit_kbit: u64, day_ms: u64, night_ms: u64) -> Vec<RateStep> {
    let (day_ms, night_ms) = (phase_ms(day_ms), phase_ms(night_ms));
    let night = RateStep { duration_ms: night_ms, bit_per_s: 0 };
    vec![
        RateStep { duration_ms: PACKET_DAYS * day_ms, bit_per_s: bit_per_s(kbit) },
        night,
        RateStep { duration_ms: day_ms, bit_per_s: bit_per_s(circuit_kbit) },
        night,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traces_name_determines_it() {
        let trace = |name: &str| Traces::default().trace(name);
        let fading = trace("fading:10000:50:7").unwrap();
        assert_eq!(fading, trace("fading:10000:50:7").unwrap());
        assert_ne!(fading, trace("fading:10000:50:8").unwrap());
        assert!((2_500_000..40_000_000).contains(&fading.mean_rate_bit_per_s()));
        assert_eq!(trace("lumps:40:3").unwrap().opportunities_ms(), [40, 40, 40]);
        for wrong in ["fading:1", "fading:x:50:7", "circuit:1:2:3", ""] {
            assert_eq!(trace(wrong).unwrap_err(), format!("no trace is called `{wrong}`"));
        }
    }

    /// Days of 10 Mb/s and of 100 Mb/s: (3 * 20 * 10 + 20 * 100) / 90 Mb/s, and nothing at night.
    #[test]
    fn a_circuit_comes_and_goes() {
        let trace = Traces::default().trace("circuit:10000:100000:20:5").unwrap();
        let mbit = trace.mean_rate_bit_per_s() as f64 / 1e6;
        assert!((mbit - 2600.0 / 90.0).abs() < 0.5, "{mbit}");
        let at: Vec<u32> = trace.opportunities_ms().to_vec();
        let night = |from: u32| at.iter().filter(|ms| (from + 1..=from + 5).contains(*ms)).count();
        // The last opportunity marks the end.
        assert_eq!((night(60), night(85)), (0, 1));
        assert!(at.iter().filter(|ms| (66..=85).contains(*ms)).count() > 150);
    }
}

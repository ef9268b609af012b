//! Traces that are drawn, by names that say all of them: `fitted:ATT-LTE-driving.up:100:SEED`, `wifi:100000:16:3:SEED`.

use std::path::PathBuf;

use ccplane_netsim::trace::Trace;
use ccplane_traces::markov::Model;
use ccplane_traces::rates::{MAX_BIT_PER_S, RateStep, trace_of};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::Deserialize;

use crate::set::Set;

/// Length of a drawn trace, milliseconds; it repeats.
const DURATION_MS: u32 = 60_000;
const OPPORTUNITY_BITS: u64 = 1504 * 8;
/// Models of mahimahi's recorded drives, by `examples/fit.rs`: a name and a model a line.
const MODELS: &str = include_str!("../cellular.jsonl");
/// Seeds that are tried until a drawn minute delivers anything.
const TRIES: u64 = 16;

/// Drives of each set. No two sets share a drive, neither its recording nor its model. Recordings called `-short` are in none: that of
/// Verizon is the drive of that name from 860 s on, that of T-Mobile from 325 s on, for 140 s each.
const DRIVES: [(Set, &[&str]); 3] = [
    (Set::Training, &["Verizon-LTE-driving", "TMobile-UMTS-driving"]),
    (Set::Validation, &["ATT-LTE-driving"]),
    (Set::Test, &["ATT-LTE-driving-2016", "TMobile-LTE-driving", "Verizon-EVDO-driving"]),
];
const DIRECTIONS: [&str; 2] = ["up", "down"];

/// The recorded traces of a set, by file name.
#[must_use]
pub fn recordings(set: Set) -> Vec<String> {
    let drives = DRIVES.iter().filter(|(of, _)| *of == set).flat_map(|(_, drives)| drives.iter());
    drives.flat_map(|drive| DIRECTIONS.map(|direction| format!("{drive}.{direction}"))).collect()
}

/// Sources of traces: models and rules that are inside, and a folder of recorded ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traces {
    /// Mahimahi's, as its package has them.
    pub folder: PathBuf,
}

impl Default for Traces {
    /// The folder where `make` puts the recorded ones.
    fn default() -> Traces {
        Traces { folder: PathBuf::from("target/traces") }
    }
}

impl Traces {
    /// Whether all recorded traces of this set are there.
    #[must_use]
    pub fn has_recorded(&self, set: Set) -> bool {
        recordings(set).iter().all(|name| self.folder.join(name).is_file())
    }

    /// The trace of this name.
    ///
    /// # Errors
    /// What is wrong with the name, in words.
    pub fn trace(&self, name: &str) -> Result<Trace, String> {
        let parts: Vec<&str> = name.split(':').collect();
        let unknown = || format!("no trace is called `{name}`");
        let number = |text: &str| text.parse::<u64>().map_err(|_| unknown());
        match parts.as_slice() {
            ["fitted", of, percent, seed] => fitted(of, number(percent)?, number(seed)?),
            ["recorded", of, share_ppm] => self.recorded(of, number(share_ppm)?),
            ["wifi", kbit, most, gap_ms, seed] => {
                made(aggregates(number(kbit)?, number(most)?, number(gap_ms)?, number(seed)?))
            }
            ["lumps", every_ms, count] => made(lumps(number(every_ms)?, number(count)?)),
            _ => Err(unknown()),
        }
    }

    /// A minute of a recording, from its first opportunity after this share of it.
    fn recorded(&self, of: &str, share_ppm: u64) -> Result<Trace, String> {
        if !Set::ALL.iter().any(|set| recordings(*set).iter().any(|name| name == of)) {
            return Err(format!("no recording is called `{of}`"));
        }
        let whole = Trace::load(&self.folder.join(of)).map_err(|e| e.to_string())?;
        let all = whole.opportunities_ms();
        let from_ms = u64::from(all.last().copied().unwrap_or(0)) * share_ppm.min(1_000_000) / 1_000_000;
        let first = all.partition_point(|ms| u64::from(*ms) < from_ms).min(all.len().saturating_sub(1));
        let start_ms = all.get(first).map_or(0, |ms| ms.saturating_sub(1));
        let minute = all.iter().skip(first).map(|ms| ms - start_ms).take_while(|ms| *ms <= DURATION_MS);
        made(minute.collect())
    }
}

fn made(opportunities_ms: Vec<u32>) -> Result<Trace, String> {
    Trace::from_opportunities_ms(opportunities_ms).map_err(|e| e.to_string())
}

/// A minute of the kind that was recorded, at so many hundredths of its rates.
fn fitted(of: &str, percent: u64, seed: u64) -> Result<Trace, String> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
        model: Model,
    }
    let read = |line: &str| serde_json::from_str::<Named>(line).ok();
    let named = MODELS.lines().filter_map(read).find(|named| named.name == of);
    let Named { model, .. } = named.ok_or_else(|| format!("no model is called `{of}`"))?;
    let mut last = String::new();
    for seed in seed..seed.saturating_add(TRIES) {
        let steps = model.generate(seed, DURATION_MS).map_err(|e| e.to_string())?;
        let scaled = |step: RateStep| {
            let bit_per_s = step.bit_per_s.saturating_mul(percent) / 100;
            RateStep { bit_per_s: bit_per_s.min(MAX_BIT_PER_S), ..step }
        };
        match trace_of(&steps.into_iter().map(scaled).collect::<Vec<RateStep>>()) {
            Ok(trace) => return Ok(trace),
            Err(silent) => last = silent.to_string(),
        }
    }
    Err(last)
}

/// Frame aggregation as on Wi-Fi: the medium is won after a random wait, exponential with this mean. Then up to `most`
/// packets leave in a lump, which takes the time of its size at the rate.
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
    use std::collections::BTreeSet;

    #[test]
    fn a_traces_name_determines_it() {
        let traces = Traces::default();
        let trace = |name: &str| traces.trace(name);
        let wifi = trace("wifi:100000:16:3:7").unwrap();
        assert_eq!(wifi, trace("wifi:100000:16:3:7").unwrap());
        assert_ne!(wifi, trace("wifi:100000:16:3:8").unwrap());
        assert_eq!(trace("lumps:40:3").unwrap().opportunities_ms(), [40, 40, 40]);
        assert_eq!(trace("wifi:1").unwrap_err(), "no trace is called `wifi:1`");
        assert_eq!(
            trace("recorded:../../etc/passwd:1").unwrap_err(),
            "no recording is called `../../etc/passwd`"
        );
        assert_eq!(trace("fitted:none:100:1").unwrap_err(), "no model is called `none`");
    }

    /// Every drive has models, no two sets share one, and a model's minutes have its mean rate.
    #[test]
    fn drives_are_of_one_set_each_and_have_models() {
        let all: Vec<String> = Set::ALL.into_iter().flat_map(recordings).collect();
        assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (12, 12));
        assert!(all.iter().all(|name| !name.contains("-short")), "a cut of another set's drive: {all:?}");
        for name in &all {
            let rates: Vec<u64> = (0..4)
                .map(|seed| Traces::default().trace(&format!("fitted:{name}:100:{seed}")).unwrap())
                .map(|trace| trace.mean_rate_bit_per_s())
                .collect();
            assert!(rates.iter().max() > rates.iter().min(), "{name}: {rates:?}");
            let double = Traces::default().trace(&format!("fitted:{name}:200:1")).unwrap();
            let ratio = double.mean_rate_bit_per_s() as f64 / rates[1] as f64;
            assert!((1.9..2.1).contains(&ratio), "{name}: {ratio}");
        }
    }

    #[test]
    fn a_recording_is_cut_to_a_minute_that_delivers() {
        let directory = tempfile::tempdir().unwrap();
        let lines: String = (0..2000).map(|n| format!("{}\n", 90_000 + n * 100)).collect();
        std::fs::write(directory.path().join("ATT-LTE-driving.up"), lines).unwrap();
        let traces = Traces { folder: directory.path().into() };
        assert!(!traces.has_recorded(Set::Validation));
        let from_silence = traces.trace("recorded:ATT-LTE-driving.up:0").unwrap();
        assert_eq!(from_silence.opportunities_ms()[..3], [1, 101, 201]);
        assert_eq!(from_silence.opportunities_ms().len(), 600);
        let end = traces.trace("recorded:ATT-LTE-driving.up:1000000").unwrap();
        assert_eq!(end.opportunities_ms(), [1]);
    }

    /// 8.5 packets on average, after 3 ms of waiting and 1.02 ms of sending.
    #[test]
    fn aggregates_come_in_lumps_at_their_mean_rate() {
        let wifi = Traces::default().trace("wifi:100000:16:3:7").unwrap();
        let mbit = wifi.mean_rate_bit_per_s() as f64 / 1e6;
        assert!((23.0..28.0).contains(&mbit), "{mbit}");
        let mut moments = wifi.opportunities_ms().to_vec();
        moments.dedup();
        let mean = wifi.opportunities_ms().len() as f64 / moments.len() as f64;
        assert!((8.0..12.0).contains(&mean), "{mean}");
    }
}

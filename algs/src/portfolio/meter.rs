//! Measures the throughput and round trips of an arm's flows on a path, from their datapaths' samples.

use ccplane_alg::PathSample;
use std::collections::BTreeMap;

use super::Utility;

/// Names a flow among those of its prefix.
pub(super) type Key = u64;

/// The progress of one flow in an interval.
#[derive(Clone, Copy, Default, Debug)]
struct Part {
    took_us: u64,
    bytes: u64,
    /// Sum of smoothed round trips by the time that they stood, us^2.
    rtt_us2: f64,
    /// Time in which the application had too little to send.
    limited_us: u64,
    /// Time in which rivals were told of, and in which the arm told either way.
    rivals_us: u64,
    told_us: u64,
    /// Time without a program's decision.
    unsteered_us: u64,
}

/// An interval of a path.
#[derive(Clone, Default, Debug)]
pub(super) struct Meter {
    parts: BTreeMap<Key, Part>,
}

/// The result of an interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Measured {
    /// Logarithm of the utility.
    pub worth: f64,
    pub rtt_us: f64,
    pub bytes_per_s: f64,
    /// Whether the arm says that rivals fill the queue; `None` if it does not tell.
    pub rivals: Option<bool>,
    /// Whether the native algorithm decided for half of the time.
    pub fallen: bool,
}

/// A flow with less of its window in flight than this has too little to send: one part in so many. Windows of paced algorithms are twice
/// what they need.
const LIMITED_PART: u64 = 5;

impl Meter {
    /// Adds what a flow did between two samples.
    pub(super) fn add(&mut self, key: Key, before: &PathSample, now: &PathSample) {
        let took_us = now.at_us.saturating_sub(before.at_us);
        let part = self.parts.entry(key).or_default();
        part.took_us += took_us;
        part.bytes += now.transport.bytes_acked.saturating_sub(before.transport.bytes_acked);
        part.rtt_us2 += f64::from(now.transport.srtt_us) * took_us as f64;
        let in_flight = u64::from(now.transport.unacked) * u64::from(now.transport.mss_bytes);
        part.limited_us += if in_flight * LIMITED_PART < now.cwnd_bytes() { took_us } else { 0 };
        part.unsteered_us += if now.steered { 0 } else { took_us };
        if let Some(rivals) = now.rivals {
            part.told_us += took_us;
            part.rivals_us += if rivals { took_us } else { 0 };
        }
    }

    pub(super) fn forget(&mut self, key: Key) {
        self.parts.remove(&key);
    }

    /// Returns the measurement of all flows together. `None` if nothing arrived (no arm has begun then), or the
    /// applications had too little to send for most of the time.
    pub(super) fn measured(&self, utility: &Utility) -> Option<Measured> {
        let sum = |of: fn(&Part) -> u64| self.parts.values().map(of).sum::<u64>();
        let took_us = sum(|p| p.took_us);
        let nothing = took_us == 0 || sum(|p| p.bytes) == 0;
        if nothing || sum(|p| p.limited_us) * 2 > took_us {
            return None;
        }
        let longest_us = self.parts.values().map(|p| p.took_us).max().unwrap_or(0);
        // A flow that came or went in between has no share to compare.
        let whole = self.parts.values().filter(|p| p.took_us * 2 > longest_us);
        let rates: Vec<f64> = whole.map(|p| p.bytes as f64 * 1e6 / p.took_us.max(1) as f64).collect();
        let bytes_per_s: f64 = rates.iter().sum();
        let rtt_us = (self.parts.values().map(|p| p.rtt_us2).sum::<f64>() / took_us as f64).max(1.0);
        let told_us = sum(|p| p.told_us);
        Some(Measured {
            worth: utility.log(bytes_per_s, rtt_us, jain(&rates)),
            rtt_us,
            bytes_per_s,
            rivals: (told_us * 2 > took_us).then(|| sum(|p| p.rivals_us) * 2 > told_us),
            fallen: sum(|p| p.unsteered_us) * 2 > took_us,
        })
    }
}

/// Jain's index (Jain, Chiu and Hawe, 1984).
fn jain(rates: &[f64]) -> f64 {
    let squares: f64 = rates.iter().map(|r| r * r).sum();
    let sum: f64 = rates.iter().sum();
    if squares > 0.0 { sum * sum / (squares * rates.len() as f64) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::TransportStats;

    /// A second of a flow that has all of its window in flight.
    fn second(meter: &mut Meter, key: Key, kbytes: u64, rtt_us: u32, told: impl FnOnce(&mut PathSample)) {
        let transport = TransportStats {
            unacked: 100,
            srtt_us: rtt_us,
            min_rtt_us: rtt_us,
            ..TransportStats::new(1448, 100)
        };
        let before = PathSample { transport, steered: true, ..PathSample::default() };
        let mut now = PathSample { at_us: 1_000_000, ..before };
        now.transport.bytes_acked = kbytes * 1000;
        told(&mut now);
        meter.add(key, &before, &now);
    }

    fn worth(flows_kbytes: &[u64], rtt_us: u32, utility: &Utility) -> f64 {
        let mut meter = Meter::default();
        for (key, kbytes) in (0..).zip(flows_kbytes) {
            second(&mut meter, key, *kbytes, rtt_us, |_| ());
        }
        meter.measured(utility).unwrap().worth
    }

    /// Throughput squared over the mean RTT, times Jain's index of the path's flows; its exponents are the user's.
    #[test]
    fn an_interval_is_worth_the_leagues_score_unless_the_utility_says_otherwise() {
        let default = Utility::default();
        let by =
            |a: f64, b: f64, factor: f64| assert!((a - b - factor.ln()).abs() < 1e-9, "{a} {b} {factor}");
        by(worth(&[2000], 40_000, &default), worth(&[1000], 40_000, &default), 4.0);
        by(worth(&[1000], 20_000, &default), worth(&[1000], 40_000, &default), 2.0);
        // All for one of two flows: an index of a half or a little more.
        let unfair = worth(&[1999, 1], 40_000, &default) - worth(&[1000, 1000], 40_000, &default);
        assert!((unfair - 0.5f64.ln()).abs() < 0.002, "{unfair}");
        let quick = Utility { throughput: 0.5, fairness: 0.0 };
        assert!(worth(&[1000], 20_000, &quick) > worth(&[2000], 40_000, &quick));
        assert!(worth(&[1000], 20_000, &default) < worth(&[2000], 40_000, &default));
        let either = worth(&[1999, 1], 40_000, &quick) - worth(&[1000, 1000], 40_000, &quick);
        assert!(either.abs() < 1e-9, "{either}");
    }

    #[test]
    fn an_idle_application_tells_nothing_and_a_native_flow_has_fallen() {
        let measured = |told: fn(&mut PathSample)| {
            let mut meter = Meter::default();
            second(&mut meter, 1, 1000, 40_000, told);
            meter.measured(&Utility::default())
        };
        assert!(measured(|_| ()).is_some_and(|m| !m.fallen && m.rivals.is_none()));
        assert!(measured(|now| now.transport.unacked = 10).is_none());
        assert!(measured(|now| now.steered = false).is_some_and(|m| m.fallen));
        assert_eq!(measured(|now| now.rivals = Some(true)).unwrap().rivals, Some(true));
    }
}

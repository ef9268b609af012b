//! The agent's side of one flow: it shows its samples to its path, and follows the path's arm.

use super::PortfolioConfig;
use super::knowledge::Shared;
use super::meter::Key;
use super::prefix::Prefix;
use ccplane_alg::{Choice, Chooser, FlowInfo, Handover, PathSample, RESUMES_WITHIN_US, Switch};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A flow's rate is that of its samples of so long, microseconds, or of two round trips if they are longer.
const RATE_US: u64 = 300_000;
/// Samples that are kept for that.
const MAX_SAMPLES: usize = 64;

/// Least that an arm starts with: segments per round trip.
const LEAST_SEGMENTS: u64 = 4;

pub(super) struct PathChooser {
    shared: Arc<Shared>,
    config: PortfolioConfig,
    prefix: Prefix,
    key: Key,
    arm: &'static str,
    recent: VecDeque<PathSample>,
    /// The measurements that each arm handed over when it was last left.
    left: BTreeMap<&'static str, Handover>,
}

impl PathChooser {
    pub(super) fn new(shared: Arc<Shared>, info: &FlowInfo, config: PortfolioConfig) -> PathChooser {
        let (prefix, key) = (Prefix::of(info.remote.ip()), shared.key());
        PathChooser { shared, config, prefix, key, arm: "", recent: VecDeque::new(), left: BTreeMap::new() }
    }

    fn handover(&self, now: &PathSample) -> Handover {
        let from = self.recent.front().unwrap_or(now);
        let took_us = now.at_us.saturating_sub(from.at_us).max(1);
        let bytes = now.transport.bytes_acked.saturating_sub(from.transport.bytes_acked);
        let srtt_us = now.transport.srtt_us.max(1);
        // Nothing may have arrived of late; a rate of nothing would keep the flow from ever learning more.
        let least = LEAST_SEGMENTS * u64::from(now.transport.mss_bytes) * 1_000_000 / u64::from(srtt_us);
        Handover {
            at_us: now.at_us,
            rate_bytes_per_s: (bytes * 1_000_000 / took_us).max(least),
            srtt_us,
            min_rtt_us: now.transport.min_rtt_us.clamp(1, srtt_us),
        }
    }

    /// Switches to `arm`. It goes on where it was left a moment ago, if that was at a higher rate and with less of
    /// a queue. In place of an arm that has done nothing yet it starts as on a new flow.
    fn switch(&mut self, arm: &'static str, now: &PathSample) -> Switch {
        let replaced = std::mem::replace(&mut self.arm, arm);
        if self.recent.len() < 2 {
            return Switch { arm, from: None };
        }
        let mut from = self.handover(now);
        self.left.insert(replaced, from);
        let own = self.left.get(arm).filter(|own| now.at_us.saturating_sub(own.at_us) < RESUMES_WITHIN_US);
        if let Some(own) = own {
            from.rate_bytes_per_s = from.rate_bytes_per_s.max(own.rate_bytes_per_s);
            from.srtt_us = from.srtt_us.min(own.srtt_us);
        }
        Switch { arm, from: Some(from) }
    }

    fn remember(&mut self, now: &PathSample) {
        let span_us = RATE_US.max(2 * u64::from(now.transport.srtt_us));
        self.recent.push_back(*now);
        let too_old = |s: &PathSample| now.at_us.saturating_sub(s.at_us) > span_us;
        while self.recent.len() > MAX_SAMPLES
            || (self.recent.len() > 2 && self.recent.get(1).is_some_and(too_old))
        {
            self.recent.pop_front();
        }
    }
}

impl Chooser for PathChooser {
    fn first(&mut self, available: &[&'static str]) -> &'static str {
        self.arm = self.shared.paths().join(self.prefix, self.key, available);
        self.arm
    }

    fn on_sample(&mut self, sample: &PathSample) -> Option<Switch> {
        let before = self.recent.back().copied();
        if before.is_some_and(|before| before.at_us >= sample.at_us) {
            return None;
        }
        self.remember(sample);
        let arm = self.shared.paths().feed(self.prefix, self.key, before.as_ref(), sample, &self.config)?;
        if arm == self.arm {
            return None;
        }
        Some(self.switch(arm, sample))
    }

    fn choice(&self) -> Choice {
        self.shared.paths().choice(self.prefix)
    }
}

/// The flow leaves its path on every way out, a panic included.
impl Drop for PathChooser {
    fn drop(&mut self) {
        self.shared.paths().leave(self.prefix, self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::super::path::Expected;
    use super::*;
    use ccplane_alg::Memory;
    use ccplane_contract::TransportStats;

    const ARMS: [&str; 2] = ["dual", "copa"];
    const KNOWN_RTT_US: u32 = 40_000;
    const SAMPLE_US: u64 = 100_000;

    /// A flow to where the second arm was the best one, on a path of [`KNOWN_RTT_US`]; the first one is expected to be the best.
    fn chooser() -> PathChooser {
        let priors = [0.9, 0.5];
        let info = FlowInfo::example(1448, 14_480);
        let mut known = Expected { priors: priors.to_vec(), teller: None }.known().unwrap();
        known.records[0].best = 1;
        known.min_rtt_us = KNOWN_RTT_US;
        let prefix = Prefix::of(info.remote.ip());
        let shared = Arc::new(Shared::new(ARMS.into_iter().zip(priors).collect()));
        shared.import(&file::write(&ARMS, std::iter::once((&prefix, &known)))).unwrap();
        let mut chooser = PathChooser::new(shared, &info, PortfolioConfig::default());
        assert_eq!(chooser.first(&ARMS), "copa");
        chooser
    }

    fn sample(at_us: u64, rtt_us: u32, bytes_acked: u64) -> PathSample {
        let transport = TransportStats {
            unacked: 100,
            srtt_us: rtt_us,
            min_rtt_us: rtt_us,
            bytes_acked,
            ..TransportStats::new(1448, 100)
        };
        PathSample { at_us, transport, steered: true, ..PathSample::default() }
    }

    #[test]
    fn on_another_path_than_was_known_the_arm_starts_as_on_a_new_flow() {
        let afresh = Some(Switch { arm: "dual", from: None });
        for (rtt_us, expected) in [(KNOWN_RTT_US, None), (2 * KNOWN_RTT_US, afresh)] {
            assert_eq!(chooser().on_sample(&sample(SAMPLE_US, rtt_us, 14_480)), expected, "{rtt_us} us");
        }
    }

    #[test]
    fn an_arm_has_its_own_rate_again_soon_and_not_later() {
        const OWN_BYTES_PER_S: u64 = 10_000_000;
        let own_bytes = OWN_BYTES_PER_S * SAMPLE_US / 1_000_000;
        for (away_us, has) in [(RESUMES_WITHIN_US - 1, true), (RESUMES_WITHIN_US, false)] {
            let mut chooser = chooser();
            let mut to = |arm, at_us, from_bytes, to_bytes| {
                let now = sample(at_us, KNOWN_RTT_US, to_bytes);
                chooser.remember(&sample(at_us - SAMPLE_US, KNOWN_RTT_US, from_bytes));
                chooser.remember(&now);
                chooser.switch(arm, &now).from.unwrap().rate_bytes_per_s
            };
            assert_eq!(to("dual", SAMPLE_US, 0, own_bytes), OWN_BYTES_PER_S);
            // Next to nothing arrived since.
            let again = to("copa", SAMPLE_US + away_us, own_bytes, own_bytes + 1448);
            assert_eq!(again == OWN_BYTES_PER_S, has, "{again} after {away_us} us");
        }
    }
}

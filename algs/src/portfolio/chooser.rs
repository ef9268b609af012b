//! The agent's side of one flow: it shows its samples to its path, and follows the path's arm.

use super::PortfolioConfig;
use super::knowledge::Shared;
use super::meter::Key;
use super::prefix::Prefix;
use ccplane_alg::{Choice, Chooser, FlowInfo, Handover, PathSample, Switch};
use std::collections::VecDeque;
use std::sync::Arc;

/// A flow's rate is that of its samples of so long, microseconds, or of two round trips if they are longer.
const RATE_US: u64 = 300_000;
/// Samples that are kept for that.
const MAX_SAMPLES: usize = 64;

pub(super) struct PathChooser {
    shared: Arc<Shared>,
    config: PortfolioConfig,
    prefix: Prefix,
    key: Key,
    arm: &'static str,
    recent: VecDeque<PathSample>,
}

impl PathChooser {
    pub(super) fn new(shared: Arc<Shared>, info: &FlowInfo, config: PortfolioConfig) -> PathChooser {
        let (prefix, key) = (Prefix::of(info.remote.ip()), shared.key());
        PathChooser { shared, config, prefix, key, arm: "", recent: VecDeque::new() }
    }

    fn handover(&self, now: &PathSample) -> Handover {
        let from = self.recent.front().unwrap_or(now);
        let took_us = now.at_us.saturating_sub(from.at_us).max(1);
        let bytes = now.bytes_acked.saturating_sub(from.bytes_acked);
        Handover {
            at_us: now.at_us,
            rate_bytes_per_s: bytes * 1_000_000 / took_us,
            srtt_us: now.srtt_us.max(1),
            min_rtt_us: now.min_rtt_us.clamp(1, now.srtt_us.max(1)),
        }
    }

    fn remember(&mut self, now: &PathSample) {
        let span_us = RATE_US.max(2 * u64::from(now.srtt_us));
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
        self.arm = arm;
        Some(Switch { arm, from: self.handover(sample) })
    }

    fn choice(&self) -> Choice {
        self.shared.paths().choice(self.prefix)
    }
}

/// However it ends.
impl Drop for PathChooser {
    fn drop(&mut self) {
        self.shared.paths().leave(self.prefix, self.key);
    }
}

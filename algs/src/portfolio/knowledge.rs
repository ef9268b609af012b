//! Knowledge of all destinations, shared by their flows.

use super::PortfolioConfig;
use super::file;
use super::meter::Key;
use super::path::{Expected, Known, PortfolioPath, Why};
use super::prefix::Prefix;
use crate::placed::algorithm_of;
use ccplane_alg::{ArmEvidence, Choice, Memory, MemoryError, PathSample, Standing};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Destinations that are remembered; those that had no flow for longest make way.
pub(super) const MAX_PREFIXES: usize = 2048;
/// The arms that can tell of rivals, and are fair to them; a portfolio asks the first of these that it has.
const TELLERS: [&str; 2] = ["neural", "dual"];

/// The paths of one portfolio.
pub(super) struct Shared {
    paths: Mutex<Paths>,
    keys: AtomicU64,
}

pub(super) struct Paths {
    arms: Vec<&'static str>,
    expected: Arc<Expected>,
    live: BTreeMap<Prefix, PortfolioPath>,
    /// Of those without flows, and when each was last used.
    resting: BTreeMap<Prefix, (u64, Known)>,
    uses: u64,
    version: u64,
}

impl Shared {
    pub(super) fn new(arms: Vec<(&'static str, f64)>) -> Shared {
        let place = |of: &str| arms.iter().position(|(name, _)| algorithm_of(name) == of);
        let teller = TELLERS.iter().find_map(|name| place(name));
        let (arms, priors) = arms.into_iter().unzip();
        let expected = Arc::new(Expected { priors, teller });
        let paths =
            Paths { arms, expected, live: BTreeMap::new(), resting: BTreeMap::new(), uses: 0, version: 0 };
        Shared { paths: Mutex::new(paths), keys: AtomicU64::new(0) }
    }

    /// A name for a flow.
    pub(super) fn key(&self) -> Key {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }

    /// No code panics while it holds the lock.
    pub(super) fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Paths {
    fn name(&self, arm: usize) -> &'static str {
        self.arms.get(arm).copied().unwrap_or_default()
    }

    /// A flow comes; the name of its arm.
    pub(super) fn join(&mut self, prefix: Prefix, key: Key, available: &[&'static str]) -> &'static str {
        let has = |(n, arm): (usize, &&'static str)| available.contains(arm).then_some(n);
        let can: Vec<usize> = self.arms.iter().enumerate().filter_map(has).collect();
        if !self.live.contains_key(&prefix) {
            let known =
                self.resting.remove(&prefix).map(|(_, known)| known).or_else(|| self.expected.known());
            let Some(known) = known else { return available.first().copied().unwrap_or_default() };
            self.live.insert(prefix, PortfolioPath::new(known, Arc::clone(&self.expected)));
        }
        let arm = self.live.get_mut(&prefix).map_or(0, |path| path.join(key, can));
        self.name(arm)
    }

    pub(super) fn leave(&mut self, prefix: Prefix, key: Key) {
        let Some(path) = self.live.get_mut(&prefix) else { return };
        if !path.leave(key) {
            return;
        }
        let Some(path) = self.live.remove(&prefix) else { return };
        self.version += 1;
        self.rest(prefix, path.known);
    }

    /// Remembers a path without flows.
    fn rest(&mut self, prefix: Prefix, known: Known) {
        self.uses += 1;
        self.resting.insert(prefix, (self.uses, known));
        while self.resting.len() > MAX_PREFIXES {
            let oldest = self.resting.iter().min_by_key(|(_, (used, _))| *used).map(|(prefix, _)| *prefix);
            let Some(oldest) = oldest else { break };
            self.resting.remove(&oldest);
        }
    }

    /// Takes in a flow's progress between two samples; returns the name of its arm from now on.
    pub(super) fn feed(
        &mut self,
        prefix: Prefix,
        key: Key,
        before: Option<&PathSample>,
        now: &PathSample,
        config: &PortfolioConfig,
    ) -> Option<&'static str> {
        let path = self.live.get_mut(&prefix)?;
        path.feed(key, before, now, config);
        self.version += 1;
        let arm = path.arm_of(key);
        self.arms.get(arm).copied()
    }

    fn evidence(&self, known: &Known) -> Vec<ArmEvidence> {
        let record = known.record();
        let best = record.mean(record.best).unwrap_or(0.0);
        let expected = |arm: usize| self.expected.priors.get(arm).copied().unwrap_or(0.0);
        let of = |(n, arm): (usize, &&'static str)| ArmEvidence {
            arm,
            intervals: record.intervals.get(n).copied().unwrap_or(0),
            worth: record.mean(n).map_or_else(|| expected(n), |mean| (mean - best).min(0.0).exp()),
        };
        self.arms.iter().enumerate().map(of).collect()
    }

    pub(super) fn choice(&self, prefix: Prefix) -> Choice {
        let Some(path) = self.live.get(&prefix) else {
            return Choice { why: "no flow runs".to_owned(), evidence: Vec::new() };
        };
        Choice { why: self.words(path.why), evidence: self.evidence(&path.known) }
    }

    fn words(&self, why: Why) -> String {
        let percent = |by: f64| format!("{:+.0} %", 100.0 * by.exp_m1());
        match why {
            Why::Expected => "expected to be the best, before anything is measured".to_owned(),
            Why::Remembered => "the best on this path before".to_owned(),
            Why::Tried => "on trial".to_owned(),
            Why::Compared { with } => format!("compared with {}", self.name(with)),
            Why::Better { than, by } => format!("worth {} against {}", percent(by), self.name(than)),
            Why::Stays { than, by } => format!("{} was worth {}", self.name(than), percent(by)),
            Why::Fair => "fair to others, who fill the queue".to_owned(),
            Why::AloneAgain => "the others have gone".to_owned(),
            Why::Probes => "looks whether others fill the queue".to_owned(),
            Why::Changed => "the path has changed".to_owned(),
        }
    }
}

impl Memory for Shared {
    fn version(&self) -> u64 {
        self.paths().version
    }

    fn export(&self) -> Vec<u8> {
        let paths = self.paths();
        let mut resting: Vec<(u64, &Prefix, &Known)> =
            paths.resting.iter().map(|(prefix, (used, known))| (*used, prefix, known)).collect();
        resting.sort_unstable_by_key(|(used, ..)| *used);
        let resting = resting.into_iter().map(|(_, prefix, known)| (prefix, known));
        let live = paths.live.iter().map(|(prefix, path)| (prefix, &path.known));
        // Those in use are the last, and stay where there is no room for all.
        let count = paths.resting.len() + paths.live.len();
        file::write(&paths.arms, resting.chain(live).skip(count.saturating_sub(MAX_PREFIXES)))
    }

    fn import(&self, content: &[u8]) -> Result<(), MemoryError> {
        let mut paths = self.paths();
        let read = file::read(content, &paths.arms, &paths.expected)?;
        for (prefix, known) in read.into_iter().rev().take(MAX_PREFIXES).rev() {
            if !paths.live.contains_key(&prefix) {
                paths.rest(prefix, known);
            }
        }
        Ok(())
    }

    fn standings(&self) -> Vec<Standing> {
        let paths = self.paths();
        // What is said of another arm than the best one has its name.
        let said = |path: &PortfolioPath| match path.other_arm() {
            Some(other) => format!("{} {}", paths.name(other), paths.words(path.why)),
            None => paths.words(path.why),
        };
        let live = paths.live.iter().map(|(prefix, path)| (prefix, &path.known, said(path)));
        // Its next flow begins with what is remembered.
        let remembered = paths.words(Why::Remembered);
        let resting = paths.resting.iter().map(|(prefix, (_, known))| (prefix, known, remembered.clone()));
        let of = |(prefix, known, why): (&Prefix, &Known, String)| Standing {
            prefix: prefix.to_string(),
            arm: paths.name(known.record().best),
            why,
            evidence: paths.evidence(known),
        };
        live.chain(resting).map(of).collect()
    }
}

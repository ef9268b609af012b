//! What flows decide by, as a learner goes on from it: the float policies behind a slot's snapshots.
//!
//! Those that were learned are kept in the run directory, which lives as long as the slots do: an agent that takes a slot
//! over finds what its snapshot was made from. Which of them an algorithm's flows decide by is written down beside them, for
//! processes that begin slots of their own with it.

use ccplane_core::{Decision, Verdict};
use ccplane_learn::Policy;
use ccplane_snapshot::{Hash, MAX_SNAPSHOT_BYTES, Snapshot};
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::{info, warn};

/// Learned policies that are remembered, and kept in the directory.
const MAX_KNOWN: usize = 8;
/// Deployments that a roll-back may go back over.
const MAX_HISTORY: usize = 32;
/// A float policy and its snapshot, by the snapshot's name.
const POLICY: &str = "safetensors";
const SNAPSHOT: &str = "snapshot";
/// The name of the snapshot that flows decide by, by their algorithm's.
const ACTIVE: &str = "active";

struct Known {
    hash: Hash,
    policy: Policy,
    snapshot: Arc<Snapshot>,
}

/// The policies of one algorithm's slot.
pub(crate) struct Deployments {
    algorithm: &'static str,
    shipped: Known,
    /// Latest last.
    learned: VecDeque<Known>,
    /// What was deployed to all flows, latest last; never empty.
    history: VecDeque<Hash>,
    directory: Option<PathBuf>,
}

impl Deployments {
    /// Flows begin with `snapshot`, made from `policy`. What is learned is kept in `directory`, if there is one.
    pub(crate) fn new(
        algorithm: &'static str,
        policy: Policy,
        snapshot: Arc<Snapshot>,
        directory: Option<PathBuf>,
    ) -> Deployments {
        let hash = snapshot.hash();
        let shipped = Known { hash, policy, snapshot };
        Deployments { algorithm, shipped, learned: VecDeque::new(), history: [hash].into(), directory }
    }

    /// The float policy that flows decide by, as far as it is known.
    pub(crate) fn policy(&self) -> &Policy {
        &self.latest().policy
    }

    /// Its integers.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.latest().snapshot
    }

    /// A learner has made `snapshot` from `policy`, and offers it.
    pub(crate) fn made(&mut self, policy: Policy, snapshot: Arc<Snapshot>) {
        let hash = snapshot.hash();
        self.learned.retain(|known| known.hash != hash);
        if self.learned.len() >= MAX_KNOWN {
            self.learned.pop_front();
        }
        self.learned.push_back(Known { hash, policy, snapshot });
    }

    /// Follows what the slot decides.
    pub(crate) fn hear(&mut self, decision: &Decision) {
        let Some(hash) = decision.snapshot else { return };
        let before = self.latest().hash;
        match decision.verdict {
            Verdict::Pushed | Verdict::Promoted | Verdict::TakenOver => self.deployed(hash),
            Verdict::RolledBack(_) if self.history.len() > 1 && self.history.back() == Some(&hash) => {
                self.history.pop_back();
            }
            _ => {}
        }
        if self.latest().hash != before {
            self.note();
        }
    }

    /// Writes down what flows decide by.
    fn note(&self) {
        let Some(directory) = &self.directory else { return };
        let name = format!("{}.{ACTIVE}", self.algorithm);
        if let Err(error) = replace(directory, &name, self.latest().hash.to_string().as_bytes()) {
            warn!(algorithm = self.algorithm, %error, directory = %directory.display(), "what flows decide by is not kept");
        }
    }

    /// What flows decide by, of which something is known.
    fn latest(&self) -> &Known {
        self.history.iter().rev().find_map(|hash| self.known(*hash)).unwrap_or(&self.shipped)
    }

    /// The float policy of a snapshot.
    pub(crate) fn policy_of(&self, hash: Hash) -> Option<&Policy> {
        self.known(hash).map(|known| &known.policy)
    }

    fn known(&self, hash: Hash) -> Option<&Known> {
        self.learned.iter().chain([&self.shipped]).find(|known| known.hash == hash)
    }

    fn deployed(&mut self, hash: Hash) {
        if self.known(hash).is_none()
            && let Some((policy, snapshot)) = self.directory.as_deref().and_then(|d| read(d, hash))
        {
            info!(algorithm = self.algorithm, snapshot = %hash, "learning goes on from an earlier agent's policy");
            self.made(policy, snapshot);
        }
        match self.known(hash) {
            Some(known) if hash != self.shipped.hash => self.keep(known),
            Some(_) => {}
            None => warn!(
                algorithm = self.algorithm,
                snapshot = %hash,
                "flows decide by a snapshot whose float policy is not known: learning goes on from the one before"
            ),
        }
        if self.history.len() >= MAX_HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(hash);
    }

    fn keep(&self, known: &Known) {
        let Some(directory) = &self.directory else { return };
        if let Err(error) = write(directory, known) {
            warn!(algorithm = self.algorithm, %error, directory = %directory.display(), "a learned policy is not kept");
        }
    }
}

fn path(directory: &Path, hash: Hash, kind: &str) -> PathBuf {
    directory.join(format!("{hash}.{kind}"))
}

fn write(directory: &Path, known: &Known) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // The snapshot last: where it is, its policy is whole.
    for (kind, bytes) in
        [(POLICY, known.policy.to_bytes().map_err(io::Error::other)?), (SNAPSHOT, known.snapshot.to_bytes())]
    {
        replace(directory, &format!("{}.{kind}", known.hash), &bytes)?;
    }
    let (mut kept, mut active) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|e| e == SNAPSHOT) {
            kept.push((entry.metadata()?.modified()?, path));
        } else if path.extension().is_some_and(|e| e == ACTIVE) {
            active.extend(active_in(&path).map(|hash| self::path(directory, hash, SNAPSHOT)));
        }
    }
    kept.retain(|(_, path)| !active.contains(path));
    kept.sort();
    for (_, old) in kept.iter().rev().skip(MAX_KNOWN) {
        fs::remove_file(old)?;
        fs::remove_file(old.with_extension(POLICY))?;
    }
    Ok(())
}

/// Writes a file that is there whole or not at all.
fn replace(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = directory.join(format!("{name}.{}", std::process::id()));
    fs::write(&unfinished, bytes)?;
    fs::rename(&unfinished, directory.join(name))
}

/// The name of a snapshot that such a file holds.
fn active_in(path: &Path) -> Option<Hash> {
    let mut name = String::new();
    let most = 2 * size_of::<Hash>() as u64;
    File::open(path).ok()?.take(most + 1).read_to_string(&mut name).ok()?;
    name.parse().ok()
}

/// What this algorithm's flows decided by when it was last written down in `directory`; `None` where that was not learned, or
/// cannot be used.
pub(crate) fn latest(directory: &Path, algorithm: &str) -> Option<(Policy, Arc<Snapshot>)> {
    read(directory, active_in(&directory.join(format!("{algorithm}.{ACTIVE}")))?)
}

/// What was kept under this name; `None`, with a word in the log, where it cannot be used.
fn read(directory: &Path, hash: Hash) -> Option<(Policy, Arc<Snapshot>)> {
    let kept = path(directory, hash, SNAPSHOT);
    if !kept.exists() {
        return None;
    }
    let unusable =
        |error: &dyn std::fmt::Display| warn!(snapshot = %hash, %error, "a kept policy cannot be used");
    let policy = Policy::read(&path(directory, hash, POLICY)).inspect_err(|e| unusable(e)).ok()?;
    let mut bytes = Vec::new();
    let file = File::open(kept).inspect_err(|e| unusable(e)).ok()?;
    file.take(MAX_SNAPSHOT_BYTES as u64 + 1).read_to_end(&mut bytes).inspect_err(|e| unusable(e)).ok()?;
    let snapshot = Snapshot::parse(&bytes).inspect_err(|e| unusable(e)).ok()?;
    (snapshot.hash() == hash).then(|| (policy, Arc::new(snapshot)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::twin::tests::{decided, policy_and_snapshot};
    use ccplane_core::Why;

    #[test]
    fn learning_goes_on_from_what_flows_decide_by() {
        let directory = tempfile::tempdir().unwrap();
        let kept = || Some(directory.path().join("policies"));
        let [shipped, one, two] = [1, 2, 3].map(policy_and_snapshot);
        let start = |(policy, snapshot): &(Policy, Arc<Snapshot>)| {
            Deployments::new("aurora", policy.clone(), snapshot.clone(), kept())
        };
        let mut of = start(&shipped);
        for (policy, snapshot) in [&one, &two] {
            of.made(policy.clone(), snapshot.clone());
            assert_ne!(of.snapshot().hash(), snapshot.hash(), "offered is not deployed");
            of.hear(&decided(snapshot.hash(), Verdict::Promoted));
            assert_eq!((of.snapshot().hash(), of.policy()), (snapshot.hash(), policy));
        }
        of.hear(&decided(one.1.hash(), Verdict::RolledBack(Why::Worse)));
        assert_eq!(of.policy(), &two.0, "another was rolled back");
        of.hear(&decided(two.1.hash(), Verdict::RolledBack(Why::Tripped)));
        assert_eq!(of.policy(), &one.0);
        of.hear(&decided(Hash([7; 32]), Verdict::Pushed));
        assert_eq!(of.policy(), &one.0, "of what was pushed by hand nothing is known");

        // An agent that comes later takes the slot over.
        let mut next = start(&shipped);
        next.hear(&decided(two.1.hash(), Verdict::TakenOver));
        assert_eq!(next.policy(), &two.0);
    }

    #[test]
    fn the_directory_keeps_the_latest() {
        let directory = tempfile::tempdir().unwrap();
        let (policy, snapshot) = policy_and_snapshot(0);
        let mut of = Deployments::new("aurora", policy, snapshot, Some(directory.path().to_owned()));
        for n in 1..MAX_KNOWN as u64 + 3 {
            let (policy, snapshot) = policy_and_snapshot(n);
            of.made(policy, snapshot.clone());
            of.hear(&decided(snapshot.hash(), Verdict::Promoted));
        }
        // And which of them is active; of what was active before this one may be one more.
        let count = || fs::read_dir(directory.path()).unwrap().count();
        assert!((2 * MAX_KNOWN + 1..=2 * MAX_KNOWN + 3).contains(&count()), "{}", count());
        let active = latest(directory.path(), "aurora").unwrap().1.hash();
        assert_eq!(active, of.snapshot().hash());

        // Whatever another algorithm learns meanwhile, it stays.
        let (policy, snapshot) = policy_and_snapshot(0);
        let mut other = Deployments::new("mocc", policy, snapshot, Some(directory.path().to_owned()));
        for n in 101..101 + 2 * MAX_KNOWN as u64 {
            let (policy, snapshot) = policy_and_snapshot(n);
            other.made(policy, snapshot.clone());
            other.hear(&decided(snapshot.hash(), Verdict::Promoted));
        }
        assert_eq!(latest(directory.path(), "aurora").unwrap().1.hash(), active);
    }
}

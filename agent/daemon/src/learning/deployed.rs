//! Float policies behind a slot's snapshots, from which a learner goes on.
//!
//! Those that were learned are kept in a folder, which outlives the slots: an agent that takes a slot
//! over finds what its snapshot was made from. Which of them an algorithm's flows decide by is written down beside them, for
//! processes that begin slots of their own with it.

use crate::owned::{Folder, OwnedError};
use ccplane_alg::Algorithm;
use ccplane_core::{Candidate, Decision, Verdict};
use ccplane_learn::{Policy, PolicyError};
use ccplane_snapshot::{Hash, MAX_SNAPSHOT_BYTES, Snapshot, SnapshotError};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Display;
use std::sync::Arc;
use tracing::{info, warn};

/// Learned policies that are remembered, and kept in the directory.
const MAX_KNOWN: usize = 8;
/// Policies that may take the place of what is deployed, at most.
const MAX_OTHERS: usize = 6;
/// Deployments that a roll-back may go back over.
const MAX_HISTORY: usize = 32;
/// A float policy and its snapshot, by the snapshot's name.
const POLICY: &str = "safetensors";
const SNAPSHOT: &str = "snapshot";
/// The name of the snapshot that flows decide by, by their algorithm's.
const ACTIVE: &str = "active";
/// The names of all that an algorithm's learners have written and not removed.
const MANIFEST: &str = "kept";
/// Bytes of a manifest, at most; it has no more than [`MAX_KNOWN`] lines and the active ones.
const MAX_MANIFEST_BYTES: usize = 64 << 10;
/// Bytes of the name of a snapshot, at most.
const MAX_ACTIVE_BYTES: usize = 2 * size_of::<Hash>();
/// Bytes of a policy that learning goes on from, at most.
const MAX_POLICY_BYTES: usize = 64 << 20;

/// Reasons why something is not kept, or what was kept is not used.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error(transparent)]
    Owned(#[from] OwnedError),
    #[error("a kept snapshot: {0}")]
    Snapshot(#[from] SnapshotError),
    #[error("a kept policy: {0}")]
    Policy(#[from] PolicyError),
    #[error("{name} names no snapshot: it was changed, or another version wrote it")]
    Active { name: String },
    #[error("what is kept as snapshot {named} is {found}")]
    Misnamed { named: Hash, found: Hash },
    #[error("snapshot {hash} is kept without its policy")]
    NoPolicy { hash: Hash },
}

struct Known {
    hash: Hash,
    policy: Policy,
    snapshot: Arc<Snapshot>,
}

/// The policies of one algorithm's slot.
pub(crate) struct Deployments {
    algorithm: &'static str,
    shipped: Known,
    /// Float policies for other conditions, as the algorithm brings them.
    reserve: Vec<Policy>,
    /// The learned policies, latest last.
    learned: VecDeque<Known>,
    /// Policies deployed to all flows, latest last; never empty.
    history: VecDeque<Hash>,
    folder: Option<Folder>,
}

impl Deployments {
    /// Flows begin with `snapshot`, made from `policy`. What is learned is kept in `folder`, if there is one.
    pub(crate) fn new(
        algorithm: &'static str,
        policy: Policy,
        snapshot: Arc<Snapshot>,
        folder: Option<Folder>,
    ) -> Deployments {
        let hash = snapshot.hash();
        let shipped = Known { hash, policy, snapshot };
        let (reserve, learned) = (Vec::new(), VecDeque::new());
        Deployments { algorithm, shipped, reserve, learned, history: [hash].into(), folder }
    }

    /// With the policies that `algorithm` brings for other conditions. One that cannot be read, or is none for this slot, is
    /// left out.
    pub(crate) fn with_reserve(mut self, algorithm: &dyn Algorithm) -> Deployments {
        for bytes in algorithm.reserve() {
            match Policy::from_bytes(&bytes) {
                Ok(policy) if policy.spec() == self.shipped.policy.spec() => self.reserve.push(policy),
                Ok(_) => warn!(algorithm = self.algorithm, "a policy in reserve has other inputs"),
                Err(error) => warn!(algorithm = self.algorithm, %error, "a policy in reserve cannot be read"),
            }
        }
        self
    }

    /// Returns policies that flows might decide by instead: those in reserve, and those deployed before.
    pub(crate) fn others(&self) -> Vec<Policy> {
        let active = self.latest().hash;
        let mut others: Vec<Policy> = self.reserve.clone();
        for hash in self.history.iter().rev().chain([&self.shipped.hash]).filter(|hash| **hash != active) {
            if others.len() >= MAX_OTHERS {
                break;
            }
            others.extend(self.policy_of(*hash).filter(|policy| !others.contains(policy)).cloned());
        }
        others.retain(|policy| *policy != *self.policy());
        others
    }

    /// The float policy that flows decide by, as far as it is known.
    pub(crate) fn policy(&self) -> &Policy {
        &self.latest().policy
    }

    /// Returns the policy that ships with the algorithm, or that an earlier agent left.
    pub(crate) fn shipped(&self) -> &Policy {
        &self.shipped.policy
    }

    /// Returns the snapshot in integers.
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

    /// Takes up the candidate that the learner of this name has made from `policy`; says why where there is none.
    pub(crate) fn offered(
        &mut self,
        name: &str,
        policy: Policy,
        made: Result<Candidate, impl Display>,
    ) -> Option<Candidate> {
        match made {
            Ok(candidate) => {
                self.made(policy, candidate.snapshot.shared().clone());
                Some(candidate)
            }
            Err(error) => {
                info!(algorithm = name, %error, verdict = "unsafe", "not pushed");
                None
            }
        }
    }

    /// Handles a decision of the slot.
    pub(crate) fn on_decision(&mut self, decision: &Decision) {
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

    /// Writes down which snapshot flows decide by.
    fn note(&self) {
        let Some(folder) = &self.folder else { return };
        let name = format!("{}.{ACTIVE}", self.algorithm);
        if let Err(error) = folder.replace(&name, self.latest().hash.to_string().as_bytes()) {
            warn!(algorithm = self.algorithm, %error, "what flows decide by is not kept");
        }
    }

    /// Returns the latest deployed policy that is known.
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
            && let Some(folder) = &self.folder
        {
            match read(folder, hash) {
                Ok(Some((policy, snapshot))) => {
                    info!(algorithm = self.algorithm, snapshot = %hash, "learning goes on from an earlier agent's policy");
                    self.made(policy, Arc::new(snapshot));
                }
                Ok(None) => {}
                Err(error) => warn!(snapshot = %hash, %error, "a kept policy cannot be used"),
            }
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
        let Some(folder) = &self.folder else { return };
        if let Err(error) = write(folder, self.algorithm, known) {
            warn!(algorithm = self.algorithm, %error, "a learned policy is not kept");
        }
    }
}

/// Writes down the policies that were learned, and removes the oldest where this algorithm has too many.
///
/// The policy that flows decide by stays, and so do files that the manifest does not list.
fn write(folder: &Folder, algorithm: &str, known: &Known) -> Result<(), KeepError> {
    let _locked = folder.lock()?;
    let mut kept = manifest(folder, algorithm)?;
    let (policy, snapshot) = (name(known.hash, POLICY), name(known.hash, SNAPSHOT));
    if !kept.contains(&known.hash) {
        if folder.read(&snapshot, MAX_SNAPSHOT_BYTES)?.is_some() {
            // Somebody else has put it there, signed perhaps.
            return Ok(());
        }
        kept.push(known.hash);
    }
    // Listed first: what is there and not listed would stay for ever.
    list(folder, algorithm, &kept)?;
    // The snapshot last: where it is, its policy is whole.
    folder.replace(&policy, &known.policy.to_bytes()?)?;
    if folder.read(&snapshot, MAX_SNAPSHOT_BYTES)?.is_none() {
        folder.replace(&snapshot, &known.snapshot.to_bytes())?;
    }
    let active: BTreeSet<Hash> = folder
        .names_ending(&format!(".{ACTIVE}"))?
        .iter()
        .filter_map(|name| active_in(folder, name).ok().flatten())
        .collect();
    let mut surplus = kept.iter().filter(|hash| !active.contains(hash)).count().saturating_sub(MAX_KNOWN);
    let mut removed = Ok(());
    kept.retain(|hash| {
        let goes = surplus > 0 && !active.contains(hash);
        if goes {
            surplus -= 1;
            for kind in [SNAPSHOT, POLICY] {
                removed = std::mem::replace(&mut removed, Ok(())).and(folder.remove(&name(*hash, kind)));
            }
        }
        !goes
    });
    list(folder, algorithm, &kept)?;
    Ok(removed?)
}

/// Lists the policies that this algorithm's learners have kept, oldest first.
fn manifest(folder: &Folder, algorithm: &str) -> Result<Vec<Hash>, OwnedError> {
    let bytes = folder.read(&format!("{algorithm}.{MANIFEST}"), MAX_MANIFEST_BYTES)?.unwrap_or_default();
    // A line that is no hash lists nothing.
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(|line| line.parse().ok()).collect())
}

fn list(folder: &Folder, algorithm: &str, kept: &[Hash]) -> Result<(), OwnedError> {
    let lines: String = kept.iter().map(|hash| format!("{hash}\n")).collect();
    folder.replace(&format!("{algorithm}.{MANIFEST}"), lines.as_bytes())
}

fn name(hash: Hash, kind: &str) -> String {
    format!("{hash}.{kind}")
}

/// The name of a snapshot that such a file holds; `None` where there is no file.
fn active_in(folder: &Folder, name: &str) -> Result<Option<Hash>, KeepError> {
    let Some(bytes) = folder.read(name, MAX_ACTIVE_BYTES)? else { return Ok(None) };
    let hash = String::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    hash.map(Some).ok_or_else(|| KeepError::Active { name: name.to_owned() })
}

/// Reads the learned policy that `folder` names as the algorithm's latest; `None` where none was learned.
///
/// # Errors
/// It cannot be used.
pub(crate) fn latest(folder: &Folder, algorithm: &str) -> Result<Option<(Policy, Snapshot)>, KeepError> {
    match active_in(folder, &format!("{algorithm}.{ACTIVE}"))? {
        Some(hash) => read(folder, hash),
        None => Ok(None),
    }
}

/// Moves what an earlier agent kept of the algorithm in `from` to `to`, unless something of it is there; whether anything was moved.
///
/// # Errors
/// A file cannot be read, written or removed; what was not moved is still in `from`.
pub(crate) fn move_kept(from: &Folder, to: &Folder, algorithm: &str) -> Result<bool, OwnedError> {
    let active = format!("{algorithm}.{ACTIVE}");
    let _locked = to.lock()?;
    if to.has(&active)? || !from.has(&active)? {
        return Ok(false);
    }
    let mut hashes = manifest(from, algorithm)?;
    // One that cannot be read is said where it is to be used.
    hashes.extend(active_in(from, &active).ok().flatten());
    let of =
        |hash: &Hash| [(name(*hash, POLICY), MAX_POLICY_BYTES), (name(*hash, SNAPSHOT), MAX_SNAPSHOT_BYTES)];
    let mut files: Vec<(String, usize)> = hashes.iter().flat_map(of).collect();
    files.push((format!("{algorithm}.{MANIFEST}"), MAX_MANIFEST_BYTES));
    // What flows decide by last: where that is, all of it is.
    files.push((active, MAX_ACTIVE_BYTES));
    for (name, limit) in &files {
        to.copy_from(from, name, *limit)?;
    }
    for (name, _) in files.iter().rev() {
        from.remove(name)?;
    }
    Ok(true)
}

/// Reads the policy kept under this hash; `None` where none was.
fn read(folder: &Folder, hash: Hash) -> Result<Option<(Policy, Snapshot)>, KeepError> {
    let Some(bytes) = folder.read(&name(hash, SNAPSHOT), MAX_SNAPSHOT_BYTES)? else { return Ok(None) };
    let snapshot = Snapshot::parse(&bytes)?;
    if snapshot.hash() != hash {
        return Err(KeepError::Misnamed { named: hash, found: snapshot.hash() });
    }
    let Some(bytes) = folder.read(&name(hash, POLICY), MAX_POLICY_BYTES)? else {
        return Err(KeepError::NoPolicy { hash });
    };
    Ok(Some((Policy::from_bytes(&bytes)?, snapshot)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learning::twin::tests::{decided, policy_and_snapshot};
    use ccplane_core::Why;

    #[test]
    fn learning_goes_on_from_what_flows_decide_by() {
        let directory = tempfile::tempdir().unwrap();
        let kept = || Some(Folder::open(&directory.path().join("policies")).unwrap());
        let [shipped, one, two] = [1, 2, 3].map(policy_and_snapshot);
        let start = |(policy, snapshot): &(Policy, Arc<Snapshot>)| {
            Deployments::new("aurora", policy.clone(), snapshot.clone(), kept())
        };
        let mut of = start(&shipped);
        for (policy, snapshot) in [&one, &two] {
            of.made(policy.clone(), snapshot.clone());
            assert_ne!(of.snapshot().hash(), snapshot.hash(), "offered is not deployed");
            of.on_decision(&decided(snapshot.hash(), Verdict::Promoted));
            assert_eq!((of.snapshot().hash(), of.policy()), (snapshot.hash(), policy));
        }
        of.on_decision(&decided(one.1.hash(), Verdict::RolledBack(Why::Worse)));
        assert_eq!(of.policy(), &two.0, "another was rolled back");
        of.on_decision(&decided(two.1.hash(), Verdict::RolledBack(Why::Tripped)));
        assert_eq!(of.policy(), &one.0);
        of.on_decision(&decided(Hash([7; 32]), Verdict::Pushed));
        assert_eq!(of.policy(), &one.0, "of what was pushed by hand nothing is known");

        // An agent that comes later takes the slot over.
        let mut next = start(&shipped);
        next.on_decision(&decided(two.1.hash(), Verdict::TakenOver));
        assert_eq!(next.policy(), &two.0);
    }

    #[test]
    fn the_directory_keeps_the_latest() {
        let directory = tempfile::tempdir().unwrap();
        let (policy, snapshot) = policy_and_snapshot(0);
        let mut of =
            Deployments::new("aurora", policy, snapshot, Some(Folder::open(directory.path()).unwrap()));
        for n in 1..MAX_KNOWN as u64 + 3 {
            let (policy, snapshot) = policy_and_snapshot(n);
            of.made(policy, snapshot.clone());
            of.on_decision(&decided(snapshot.hash(), Verdict::Promoted));
        }
        let folder = Folder::open(directory.path()).unwrap();
        let active = || latest(&folder, "aurora").unwrap().unwrap().1.hash();
        // And which of them is active, and the manifest; of what was active before this one may be one more.
        let count = || std::fs::read_dir(directory.path()).unwrap().count();
        assert!((2 * MAX_KNOWN + 2..=2 * MAX_KNOWN + 4).contains(&count()), "{}", count());
        let before = active();
        assert_eq!(before, of.snapshot().hash());

        // Whatever another algorithm learns meanwhile, it stays.
        let (policy, snapshot) = policy_and_snapshot(0);
        let mut other =
            Deployments::new("mocc", policy, snapshot, Some(Folder::open(directory.path()).unwrap()));
        for n in 101..101 + 2 * MAX_KNOWN as u64 {
            let (policy, snapshot) = policy_and_snapshot(n);
            other.made(policy, snapshot.clone());
            other.on_decision(&decided(snapshot.hash(), Verdict::Promoted));
        }
        assert_eq!(active(), before);
    }

    #[test]
    fn what_others_have_put_there_stays() {
        let directory = tempfile::tempdir().unwrap();
        let folder = || Folder::open(directory.path()).unwrap();
        let strangers: Vec<(String, Vec<u8>)> = (500..520)
            .map(|n| policy_and_snapshot(n).1)
            .map(|snapshot| (name(snapshot.hash(), SNAPSHOT), snapshot.to_bytes()))
            .collect();
        let also = [("notes.snapshot".to_owned(), b"mine".to_vec()), ("a.safetensors".to_owned(), vec![1])];
        for (name, bytes) in strangers.iter().chain(&also) {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        }
        let (policy, snapshot) = policy_and_snapshot(0);
        let mut of = Deployments::new("aurora", policy, snapshot, Some(folder()));
        // One that is there already, as somebody signed it, is not written anew, nor removed later.
        let theirs = policy_and_snapshot(1);
        let key = ccplane_snapshot::SigningKey::generate().unwrap();
        let terms = ccplane_snapshot::Terms { sequence: 1, expires_s: u64::MAX };
        let signed = Snapshot::clone(&theirs.1).sign(&key, terms).to_bytes();
        std::fs::write(directory.path().join(name(theirs.1.hash(), SNAPSHOT)), &signed).unwrap();
        for n in 1..2 * MAX_KNOWN as u64 + 3 {
            let (policy, snapshot) = policy_and_snapshot(n);
            of.made(policy, snapshot.clone());
            of.on_decision(&decided(snapshot.hash(), Verdict::Promoted));
        }
        for (name, bytes) in strangers.iter().chain(&also) {
            assert_eq!(&std::fs::read(directory.path().join(name)).unwrap(), bytes, "{name}");
        }
        assert_eq!(std::fs::read(directory.path().join(name(theirs.1.hash(), SNAPSHOT))).unwrap(), signed);
        let kept = manifest(&folder(), "aurora").unwrap();
        assert!((MAX_KNOWN..=MAX_KNOWN + 2).contains(&kept.len()), "{kept:?}");
        let own = folder().names_ending(".snapshot").unwrap().len() - strangers.len() - 2;
        assert_eq!(own, kept.len());
    }
}

//! The portfolio of the arms that are configured.

use crate::args::AgentArgs;
use crate::config::{Arm, Config};
use crate::failure::Failure;
use crate::place::Located;
use crate::sequences::{Admissions, RefusedSnapshot};
use ccplane_alg::Algorithm;
use ccplane_algs::Portfolio;
use ccplane_algs::placed::{UnfitSnapshot, WithSnapshot, free_slots};
use ccplane_files::document::Problem;
use ccplane_files::{Bound, ReadError, SocketError};
use ccplane_snapshot::{Hash, MAX_SNAPSHOT_BYTES, Snapshot, SnapshotError};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The file of an arm's snapshot.
const SNAPSHOT: Bound = Bound { what: "a snapshot", bytes: MAX_SNAPSHOT_BYTES as u64 };

/// Reasons to refuse an arm its snapshot.
#[derive(Debug, thiserror::Error)]
enum ArmError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Place(#[from] SocketError),
    #[error("{}: {source}", path.display())]
    Snapshot { path: PathBuf, source: SnapshotError },
    #[error("no agent has kept that snapshot: there is no {}", list(paths))]
    Nowhere { paths: Vec<PathBuf> },
    #[error("{}: it holds snapshot {found}", path.display())]
    Misnamed { path: PathBuf, found: Hash },
    #[error(transparent)]
    Refused(#[from] RefusedSnapshot),
    #[error(transparent)]
    Unfit(#[from] UnfitSnapshot),
    #[error("there are slots for {limit} arms with snapshots of their own")]
    NoSlot { limit: usize },
}

/// The algorithms, with a portfolio of the arms that are configured.
pub(super) fn choosing(
    args: &AgentArgs,
    algorithms: &[Arc<dyn Algorithm>],
    located: &Located,
) -> Result<Vec<Arc<dyn Algorithm>>, Failure> {
    let mut all = algorithms.to_vec();
    let configured = &located.config.portfolio.arms;
    if configured.is_empty() {
        return Ok(all);
    }
    let refuse = |problem| Config::refusal(args.place.config.as_deref(), problem);
    let mut slots = free_slots();
    let mut arms = Vec::with_capacity(configured.len());
    for (n, arm) in configured.iter().enumerate() {
        let refused = |message: String| refuse(Problem::new(format!("portfolio.arms[{n}]"), message));
        // Flows of others' algorithms cannot be tried with an arm's programs: these have none yet.
        let own = || algorithms.iter().filter(|a| !a.is_hosted());
        let Some(found) = own().find(|a| a.name() == arm.algorithm) else {
            let known = own().map(|a| a.name()).collect::<Vec<_>>().join(", ");
            return Err(
                refused(format!("no algorithm is called `{}`; there are: {known}", arm.algorithm)).into()
            );
        };
        let found =
            with_snapshot(found, arm, located, &mut slots).map_err(|error| refused(error.to_string()))?;
        arms.push(found);
    }
    let portfolio = Portfolio::among(arms).map_err(|e| refuse(Problem::new("portfolio.arms", e)))?;
    all.retain(|a| a.name() != portfolio.name());
    all.push(Arc::new(portfolio));
    Ok(all)
}

/// The algorithm under the arm's snapshot, where that names one.
fn with_snapshot(
    algorithm: &Arc<dyn Algorithm>,
    arm: &Arm,
    located: &Located,
    slots: &mut Range<u8>,
) -> Result<Arc<dyn Algorithm>, ArmError> {
    let Some(named) = &arm.snapshot else { return Ok(Arc::clone(algorithm)) };
    let hash: Option<Hash> = named.to_str().and_then(|text| text.parse().ok());
    let path = match hash {
        Some(hash) => learned(located.learned()?, hash)?,
        None => named.clone(),
    };
    let snapshot = Snapshot::parse(&ccplane_files::read(&path, SNAPSHOT)?)
        .map_err(|source| ArmError::Snapshot { path: path.clone(), source })?;
    let found = snapshot.hash();
    if hash.is_some_and(|hash| hash != found) {
        return Err(ArmError::Misnamed { path, found });
    }
    let learn = &located.config.learn;
    let snapshot = Admissions::open(learn.trust(), learn.state.as_deref())?.admit(snapshot, false)?;
    let slot = slots.next().ok_or_else(|| ArmError::NoSlot { limit: free_slots().len() })?;
    Ok(Arc::new(WithSnapshot::new(Arc::clone(algorithm), &snapshot, slot)?))
}

/// The file of a snapshot that agents have learned, in the first of these folders that has it or does not tell.
fn learned(folders: Vec<PathBuf>, hash: Hash) -> Result<PathBuf, ArmError> {
    let name = format!("{hash}.snapshot");
    let paths: Vec<PathBuf> = folders.into_iter().map(|folder| folder.join(&name)).collect();
    // What may not be looked at is read all the same: the refusal then names it.
    let found = paths.iter().find(|path| path.try_exists().unwrap_or(true)).cloned();
    found.ok_or(ArmError::Nowhere { paths })
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", nor ")
}

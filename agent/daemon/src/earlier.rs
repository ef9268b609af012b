//! Files that an earlier build of this agent wrote (`tests/earlier`, whose README says how): each of them is used.

use crate::control::StandingRecord;
use crate::learning::{open_kept, resume_all};
use crate::memory::{Memories, standings};
use crate::owned::Folder;
use crate::place::StateFolder;
use crate::sequences::{Admissions, RefusedSnapshot};
use ccplane_alg::Algorithm;
use ccplane_algs::{Aurora, Portfolio};
use ccplane_snapshot::{SigningKey, Snapshot, SnapshotError, Terms, Trust, VerifyingKey};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn earlier(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/earlier").join(name)
}

/// Copies one of the folders to where an agent of this user may use it, and returns the names of its files.
fn copied(name: &str, to: &Path) -> Vec<String> {
    let folder = Folder::open(to).unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(earlier(name)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        folder.replace(&name, &std::fs::read(entry.path()).unwrap()).unwrap();
        names.push(name);
    }
    names
}

#[test]
fn flows_begin_with_what_it_learned_and_no_file_of_that_is_left_behind() {
    let base = tempfile::tempdir().unwrap();
    let at = StateFolder { folder: base.path().join("state"), former: base.path().join("run") };
    let names = copied("policies", &at.former);
    let aurora: [Arc<dyn Algorithm>; 1] = [Arc::new(Aurora::default())];
    let folder = open_kept(&at, &aurora).unwrap();
    for name in &names {
        let (was, is) = (earlier("policies").join(name), at.folder.join(name));
        assert_eq!(std::fs::read(is).unwrap(), std::fs::read(was).unwrap(), "{name}");
    }
    assert_eq!(std::fs::read_dir(&at.former).unwrap().count(), 0);
    let begun = resume_all(&aurora, &folder, &Admissions::open(Trust::Any, None).unwrap());
    let [begins] = begun.as_slice() else { panic!("{begun:?}") };
    let active = std::fs::read_to_string(earlier("policies/aurora.active")).unwrap();
    assert_eq!(begins.snapshot.hash().to_string(), active);
}

/// The portfolio's knowledge of the one destination in the memory that the earlier build wrote.
fn standing_of(portfolio: Portfolio) -> StandingRecord {
    let state = tempfile::tempdir().unwrap();
    copied("state", state.path());
    let portfolio: [Arc<dyn Algorithm>; 1] = [Arc::new(portfolio)];
    Memories::open(Folder::open(state.path()).unwrap(), &portfolio, Duration::ZERO).unwrap();
    let mut known = standings(&portfolio);
    assert_eq!(known.len(), 1, "{known:?}");
    let standing = known.remove(0);
    assert_eq!(standing.prefix, "127.0.0.0/24");
    standing
}

/// A portfolio of that version's arms has what was measured. Today's knows the destination, and lacks the arm that it had.
#[test]
fn what_it_measured_of_destinations_is_known() {
    let arms = ccplane_algs::all()
        .into_iter()
        .filter(|a| ["dual", "copa", "bbr", "mocc", "vegas", "cubic"].contains(&a.name()));
    let then = standing_of(Portfolio::among(arms.collect()).unwrap());
    assert_eq!(then.arm, "cubic");
    assert!(then.evidence.iter().any(|arm| arm.intervals > 0), "{then:?}");
    let today = standing_of(Portfolio::default());
    assert_eq!(today.arm, "dual");
    assert!(today.evidence.iter().all(|arm| arm.intervals == 0), "{today:?}");
}

#[test]
fn snapshots_that_it_took_are_taken_again_and_older_ones_are_not() {
    let state = tempfile::tempdir().unwrap();
    copied("state", state.path());
    let signer = std::fs::read_to_string(earlier("key.pub")).unwrap();
    let own = SigningKey::generate().unwrap();
    let keys = vec![VerifyingKey::from_text(&signer).unwrap(), own.verifying_key()];
    let admissions = Admissions::open(Trust::SignedBy(keys), Some(state.path())).unwrap();
    let signed = Snapshot::parse(&std::fs::read(earlier("signed.snapshot")).unwrap()).unwrap();
    let older = signed.clone().sign(&own, Terms { sequence: 6, expires_s: u64::MAX });
    admissions.admit(signed, false).unwrap();
    let refused = admissions.admit(older, false).unwrap_err();
    let expected = SnapshotError::Older { sequence: 6, newest: 7 };
    assert!(matches!(&refused, RefusedSnapshot::Snapshot(why) if *why == expected), "{refused}");
}

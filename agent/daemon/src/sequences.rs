//! Sequence numbers of the last signed snapshots admitted, kept on disk by algorithm: an older one is a replay.
//!
//! A file of lines, the first with the format's version, each other an algorithm and a number. It is read and written under a lock, so that agents and file servers
//! share it. What cannot be read or written admits nothing.

use crate::owned::{Folder, OwnedError};
use crate::rundir::SERVICE_STATE;
use ccplane_snapshot::{Admission, Snapshot, SnapshotError, Trust, TrustedSnapshot};
use nix::unistd::geteuid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Its name, in the state folder.
const FILE: &str = "sequences";
/// The file's first line, less the version. Version 1 had none at first: a file without it is read as such.
const HEADER: &str = "ccplane sequences ";
const VERSION: u32 = 1;
/// Bytes of the file, at most.
const MAX_BYTES: usize = 64 << 10;
/// Algorithms that it has room for.
const MAX_ALGORITHMS: usize = 256;

/// Reasons why a snapshot from elsewhere is not taken.
#[derive(Debug, thiserror::Error)]
pub enum RefusedSnapshot {
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    #[error("which sequence numbers were taken is not known: {0}")]
    Unknown(#[from] OwnedError),
    #[error("{}: line {line} is no algorithm and number: remove the file to forget which snapshots were taken", path.display())]
    Corrupt { path: PathBuf, line: usize },
    #[error("{}: version {found} of the format, this agent reads version {VERSION}: run the agent of the file's version, or remove the file to forget which snapshots were taken", path.display())]
    Version { path: PathBuf, found: String },
    #[error(
        "which sequence numbers were taken is not known: set `state` in [learn] to a folder of this user's"
    )]
    NoPlace,
    #[error("{}: signed snapshots of {MAX_ALGORITHMS} algorithms were taken, the most that are remembered", path.display())]
    Full { path: PathBuf },
}

/// Admission of snapshots by signer and sequence number.
#[derive(Debug)]
pub struct Admissions {
    trust: Trust,
    /// The folder in which numbers are kept; opened at the start, before any right is given up.
    state: Option<Folder>,
}

impl Admissions {
    /// By `trust`; numbers are kept in `state`, or where they are by default.
    ///
    /// # Errors
    /// Signatures are asked for and the folder cannot be used.
    pub fn open(trust: Trust, state: Option<&Path>) -> Result<Admissions, RefusedSnapshot> {
        let state = match (&trust, state.map(Path::to_owned).or_else(default_state)) {
            (Trust::Any, _) => None,
            (Trust::SignedBy(_), None) => return Err(RefusedSnapshot::NoPlace),
            (Trust::SignedBy(_), Some(path)) => Some(Folder::open(&path)?),
        };
        let admissions = Admissions { trust, state };
        if let Some(folder) = &admissions.state {
            read(folder)?;
        }
        Ok(admissions)
    }

    /// Takes a snapshot, and remembers that it was taken; or says why not.
    ///
    /// # Errors
    /// [`Trust::admit`] refuses it, or what was taken cannot be read or written.
    pub fn admit(&self, snapshot: Snapshot, allow_older: bool) -> Result<TrustedSnapshot, RefusedSnapshot> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let Some(folder) = &self.state else {
            return Ok(self.trust.admit(snapshot, &Admission { now_s, newest: None, allow_older })?);
        };
        let _locked = folder.lock()?;
        let mut taken = read(folder)?;
        let algorithm = snapshot.spec().algorithm().to_owned();
        let newest = taken.get(&algorithm).copied();
        let trusted = self.trust.admit(snapshot, &Admission { now_s, newest, allow_older })?;
        let sequence = trusted.signature().and_then(|s| s.terms()).map(|terms| terms.sequence);
        if let Some(sequence) = sequence.filter(|n| newest.is_none_or(|newest| *n > newest)) {
            if newest.is_none() && taken.len() >= MAX_ALGORITHMS {
                return Err(RefusedSnapshot::Full { path: folder.path().join(FILE) });
            }
            taken.insert(algorithm, sequence);
            let lines: String = taken.iter().map(|(name, n)| format!("{name} {n}\n")).collect();
            folder.replace(FILE, format!("{HEADER}{VERSION}\n{lines}").as_bytes())?;
        }
        Ok(trusted)
    }
}

fn read(folder: &Folder) -> Result<BTreeMap<String, u64>, RefusedSnapshot> {
    let path = || folder.path().join(FILE);
    let bytes = folder.read(FILE, MAX_BYTES)?.unwrap_or_default();
    let text = String::from_utf8(bytes).map_err(|_| RefusedSnapshot::Corrupt { path: path(), line: 1 })?;
    let line = |(_, line): (usize, &str)| {
        let (name, number) = line.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    let mut lines = text.lines().enumerate().peekable();
    if let Some(found) = lines.peek().and_then(|(_, first)| first.strip_prefix(HEADER)) {
        if found != VERSION.to_string() {
            return Err(RefusedSnapshot::Version { path: path(), found: found.to_owned() });
        }
        lines.next();
    }
    lines.map(|l| line(l).ok_or_else(|| RefusedSnapshot::Corrupt { path: path(), line: l.0 + 1 })).collect()
}

/// Returns the folder for state of this user that outlives a start of the machine.
pub fn default_state() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(PathBuf::from(SERVICE_STATE));
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let base = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    base.or_else(home).map(|base| base.join("ccplane"))
}

//! `ccplane snapshot build`, `inspect`, `verify`, `keygen` and `sign`: files, without an agent.

mod build;
mod show;

pub(crate) use build::build;

use super::output::{print, print_json};
use crate::cli::{SnapshotInspectArgs, SnapshotKeygenArgs, SnapshotSignArgs, SnapshotVerifyArgs};
use ccplane_agent::failure::Failure;
use ccplane_agent::owned::read_secret;
use ccplane_files::{Bound, ReadError};
use ccplane_snapshot::{
    Admission, KeyError, MAX_SNAPSHOT_BYTES, SigningKey, Snapshot, SnapshotError, Terms, Trust, VerifyingKey,
};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// The exit code of `verify` for a signature by a key that was not given.
const NOT_CHECKED: u8 = 3;
const SECONDS_PER_DAY: u64 = 86_400;
/// The bound of a key file.
const KEY: Bound = Bound { what: "a key", bytes: 256 };
/// The bound of a snapshot file.
const SNAPSHOT: Bound = Bound { what: "a snapshot", bytes: MAX_SNAPSHOT_BYTES as u64 };
/// Only its owner reads a secret key.
const SECRET_MODE: u32 = 0o600;

/// A file that is not what it should be: exit code 2.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}: {source}", path.display())]
    Snapshot { path: PathBuf, source: SnapshotError },
    #[error("{}: {source}", path.display())]
    Key { path: PathBuf, source: KeyError },
}

pub(crate) fn inspect(args: &SnapshotInspectArgs) -> Result<(), Failure> {
    let snapshot = read(&args.file).map_err(Failure::input)?;
    if args.json { print_json(&show::Summary::of(&snapshot)) } else { print(&show::text(&snapshot)) }
}

pub(crate) fn verify(args: &SnapshotVerifyArgs) -> Result<ExitCode, Failure> {
    let snapshot = read(&args.file).map_err(Failure::input)?;
    let keys: Result<Vec<VerifyingKey>, FileError> = args.keys.iter().map(|key| verifying_key(key)).collect();
    let keys = keys.map_err(Failure::input)?;
    let wrong = |source| Failure::input(FileError::Snapshot { path: args.file.clone(), source });
    snapshot.check_signature().map_err(wrong)?;
    let hash = snapshot.hash();
    if keys.is_empty() {
        let Some(by) = snapshot.signature() else {
            return print(&format!("{hash}: ok, not signed\n")).map(|()| ExitCode::SUCCESS);
        };
        let (by, terms) = (by.key_hex(), show::terms(by, now_s()));
        print(&format!("{hash}: whole; signature not checked: no key (it names {by}; {terms})\n"))?;
        return Ok(ExitCode::from(NOT_CHECKED));
    }
    let admission = Admission { now_s: now_s(), newest: None, allow_older: args.allow_older };
    let trusted = Trust::SignedBy(keys).admit(snapshot, &admission).map_err(wrong)?;
    let by = trusted.signature().map(|by| format!("{}, {}", by.key_hex(), show::terms(by, now_s())));
    print(&format!("{hash}: ok, signed by {}\n", by.unwrap_or_default()))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn keygen(args: &SnapshotKeygenArgs) -> Result<(), Failure> {
    let key = SigningKey::generate().map_err(Failure::runtime)?;
    let public = public_path(&args.file);
    let create = |path: &Path, mode: u32, text: String| {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| Failure::runtime(FileError::Io { path: path.to_owned(), source }))
    };
    create(&args.file, SECRET_MODE, key.to_text())?;
    create(&public, 0o644, key.verifying_key().to_text())?;
    print(&format!("{}\n{}\n", args.file.display(), public.display()))
}

pub(crate) fn sign(args: &SnapshotSignArgs) -> Result<(), Failure> {
    let snapshot = read(&args.file).map_err(Failure::input)?;
    let text = read_secret(&args.key, KEY.bytes as usize).map_err(Failure::input)?;
    let key = SigningKey::from_text(&text);
    let key = key.map_err(|source| Failure::input(FileError::Key { path: args.key.clone(), source }))?;
    let now_s = now_s();
    let terms = Terms {
        sequence: args.sequence.unwrap_or(now_s),
        expires_s: now_s.saturating_add(args.valid_days.saturating_mul(SECONDS_PER_DAY)),
    };
    write(args.out.as_ref().unwrap_or(&args.file), &snapshot.sign(&key, terms).to_bytes())
}

/// The current time, seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn public_path(secret: &Path) -> PathBuf {
    let mut name = secret.as_os_str().to_owned();
    name.push(".pub");
    PathBuf::from(name)
}

/// Reads a public key from a file.
pub(super) fn verifying_key(path: &Path) -> Result<VerifyingKey, FileError> {
    let key = VerifyingKey::from_text(&key_text(path)?);
    key.map_err(|source| FileError::Key { path: path.to_owned(), source })
}

fn key_text(path: &Path) -> Result<String, FileError> {
    Ok(ccplane_files::read_text(path, KEY)?)
}

fn read(path: &Path) -> Result<Snapshot, FileError> {
    read_file(path).map(|(_, snapshot)| snapshot)
}

/// Reads a file and parses it as a snapshot; returns both.
pub(super) fn read_file(path: &Path) -> Result<(Vec<u8>, Snapshot), FileError> {
    let bytes = ccplane_files::read(path, SNAPSHOT)?;
    let wrong = |source| FileError::Snapshot { path: path.to_owned(), source };
    let snapshot = Snapshot::parse(&bytes).map_err(wrong)?;
    Ok((bytes, snapshot))
}

/// Writes all of a file or nothing, and follows no symbolic link.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(name);
    let write = || {
        OpenOptions::new().write(true).create_new(true).open(&beside)?.write_all(bytes)?;
        fs::rename(&beside, path)
    };
    write().map_err(|source| {
        if source.kind() != io::ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&beside);
        }
        Failure::runtime(FileError::Io { path: path.to_owned(), source })
    })
}

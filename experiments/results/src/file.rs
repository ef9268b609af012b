//! Reads and writes results files.
//!
//! Each record is one line, written at once and synced. A crash can only tear the last line; [`read`] does not count such a line and
//! [`repair`] cuts it off, so that an interrupted plan goes on where it was.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use ccplane_files::{Bound, ReadError};

use crate::model::{Header, ResultRecord, Run, SCHEMA_VERSION};

/// The bound of a results file, which holds a line for each run.
pub const RESULTS: Bound = Bound { what: "a file of results", bytes: 4 << 30 };
/// The longest line, bytes: hours of samples of a hundred flows.
const MAX_LINE_BYTES: u64 = 256 << 20;
/// The size of the pieces in which the end of the file is searched for a torn line, bytes.
const PIECE_BYTES: u64 = 1 << 16;

/// A results file, read.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    pub header: Header,
    /// Its runs, in the order in which they ended.
    pub runs: Vec<Run>,
}

/// Reasons why results could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file could not be read or written.
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: std::io::Error },
    /// The file is not a regular one, or is larger than [`RESULTS`] allows.
    #[error(transparent)]
    Unread(#[from] ReadError),
    /// A line is no record.
    #[error("{path}:{line}: {error}")]
    Json {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        error: serde_json::Error,
    },
    /// The first line is no header, or a further one is.
    #[error("{path}:{line}: expected {expected}")]
    Order {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The record that was expected there.
        expected: &'static str,
    },
    /// Its last line has no end; [`repair`] cuts it off.
    #[error("{path}: its last line is torn")]
    Torn { path: PathBuf },
    /// A line is too long.
    #[error("{path}:{line}: longer than {MAX_LINE_BYTES} bytes")]
    Long {
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
    },
    /// Written by another version.
    #[error("{path}: format version {found}, this ccplane reads {SCHEMA_VERSION}")]
    Version { path: PathBuf, found: u32 },
}

/// Starts a file with its header. It must not be there yet.
///
/// # Errors
/// `Io`.
pub fn create(path: &Path, header: &Header) -> Result<(), ResultsError> {
    let io = |error| ResultsError::Io { path: path.to_owned(), error };
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(io)?;
    write_line(&mut file, &ResultRecord::Header(Box::new(header.clone()))).map_err(io)
}

/// Adds a run, with one write, and waits until it is on disk.
///
/// # Errors
/// `Io`; `Torn` if the file's last line has no end: the run would be lost in it.
pub fn append(path: &Path, run: Run) -> Result<(), ResultsError> {
    let io = |error| ResultsError::Io { path: path.to_owned(), error };
    let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(io)?;
    if torn_bytes(&mut file).map_err(io)? > 0 {
        return Err(ResultsError::Torn { path: path.to_owned() });
    }
    write_line(&mut file, &ResultRecord::Run(Box::new(run))).map_err(io)
}

/// Cuts off a last line without an end, which a crash leaves. Returns how many bytes that were.
///
/// # Errors
/// `Io`.
pub fn repair(path: &Path) -> Result<u64, ResultsError> {
    let io = |error| ResultsError::Io { path: path.to_owned(), error };
    let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
    let torn = torn_bytes(&mut file).map_err(io)?;
    if torn > 0 {
        let whole = file.metadata().map_err(io)?.len().saturating_sub(torn);
        file.set_len(whole).map_err(io)?;
        file.sync_data().map_err(io)?;
    }
    Ok(torn)
}

/// Bytes after the last end of a line.
fn torn_bytes(file: &mut File) -> std::io::Result<u64> {
    let len = file.seek(SeekFrom::End(0))?;
    let mut end = len;
    while end > 0 {
        let start = end.saturating_sub(PIECE_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::new();
        file.take(end - start).read_to_end(&mut piece)?;
        if let Some(at) = piece.iter().rposition(|b| *b == b'\n') {
            return Ok(len - start - at as u64 - 1);
        }
        end = start;
    }
    Ok(len)
}

fn write_line(file: &mut File, record: &ResultRecord) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    file.write_all(&line)?;
    file.sync_data()
}

/// Reads a file. A last line without its end, which a crash leaves, is not counted.
///
/// # Errors
/// The first line that is wrong.
pub fn read(path: &Path) -> Result<Results, ResultsError> {
    let file = ccplane_files::open(path, RESULTS)?;
    // What grows meanwhile is read no further than its bound.
    read_from(BufReader::new(file.take(RESULTS.bytes)), path)
}

/// Reads what a file of the name `path` holds.
///
/// # Errors
/// The first line that is wrong.
pub fn read_from(mut input: impl BufRead, path: &Path) -> Result<Results, ResultsError> {
    let mut header = None;
    let mut runs = Vec::new();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        let read = input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut bytes);
        let length = read.map_err(|error| ResultsError::Io { path: path.to_owned(), error })? as u64;
        if length == MAX_LINE_BYTES {
            return Err(ResultsError::Long { path: path.to_owned(), line });
        }
        if bytes.pop() != Some(b'\n') {
            break;
        }
        let json = |error| ResultsError::Json { path: path.to_owned(), line, error };
        let order = |expected| ResultsError::Order { path: path.to_owned(), line, expected };
        if header.is_none() {
            check_version(&bytes, path)?;
        }
        match (serde_json::from_slice(&bytes).map_err(json)?, &header) {
            (ResultRecord::Header(found), None) => header = Some(*found),
            (ResultRecord::Header(_), Some(_)) => return Err(order("a run")),
            (ResultRecord::Run(_), None) => return Err(order("a header")),
            (ResultRecord::Run(run), Some(_)) => runs.push(*run),
        }
    }
    let header =
        header.ok_or(ResultsError::Order { path: path.to_owned(), line: 1, expected: "a header" })?;
    Ok(Results { header, runs })
}

/// Refuses another version before its fields are read, which may differ.
fn check_version(line: &[u8], path: &Path) -> Result<(), ResultsError> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        schema: u32,
    }
    match serde_json::from_slice::<Versioned>(line) {
        Ok(Versioned { schema: found }) if found != SCHEMA_VERSION => {
            Err(ResultsError::Version { path: path.to_owned(), found })
        }
        _ => Ok(()),
    }
}

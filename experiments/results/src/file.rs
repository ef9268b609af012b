//! Results on disk.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::model::{Header, Record, Run, SCHEMA_VERSION};

/// A results file, read.
#[derive(Clone, PartialEq, Debug)]
pub struct Results {
    /// Its first line.
    pub header: Header,
    /// Its runs, in the order in which they ended.
    pub runs: Vec<Run>,
}

/// Why results could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file system said no.
    #[error("{path}: {error}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        error: std::io::Error,
    },
    /// A line is no record.
    #[error("{path}:{line}: {error}")]
    Json {
        /// Which file.
        path: PathBuf,
        /// Counts from 1.
        line: usize,
        /// Where and why.
        error: serde_json::Error,
    },
    /// The first line is no header, or a further one is.
    #[error("{path}:{line}: expected {expected}")]
    Order {
        /// Which file.
        path: PathBuf,
        /// Counts from 1.
        line: usize,
        /// What had to be there.
        expected: &'static str,
    },
    /// Written by another version.
    #[error("{path}: format version {found}, this ccplane reads {SCHEMA_VERSION}")]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

/// Starts a file with its header. It must not be there yet.
///
/// # Errors
/// `Io`.
pub fn create(path: &Path, header: &Header) -> Result<(), ResultsError> {
    let io = |error| ResultsError::Io { path: path.to_owned(), error };
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(io)?;
    write_line(&mut file, &Record::Header(Box::new(header.clone()))).map_err(io)
}

/// Adds a run, with one write, and waits until it is on disk.
///
/// # Errors
/// `Io`.
pub fn append(path: &Path, run: Run) -> Result<(), ResultsError> {
    let io = |error| ResultsError::Io { path: path.to_owned(), error };
    let mut file = OpenOptions::new().append(true).open(path).map_err(io)?;
    write_line(&mut file, &Record::Run(Box::new(run))).map_err(io)
}

fn write_line(file: &mut File, record: &Record) -> std::io::Result<()> {
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
    let io = |error| ResultsError::Io { path: path.to_owned(), error };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut header = None;
    let mut runs = Vec::new();
    let mut text = String::new();
    for line in 1.. {
        text.clear();
        reader.read_line(&mut text).map_err(io)?;
        if !text.ends_with('\n') {
            break;
        }
        let record = serde_json::from_str(&text).map_err(|error| ResultsError::Json {
            path: path.to_owned(),
            line,
            error,
        })?;
        let order = |expected| ResultsError::Order { path: path.to_owned(), line, expected };
        match (record, &header) {
            (Record::Header(found), None) if found.schema == SCHEMA_VERSION => header = Some(*found),
            (Record::Header(found), None) => {
                return Err(ResultsError::Version { path: path.to_owned(), found: found.schema });
            }
            (Record::Header(_), Some(_)) => return Err(order("a run")),
            (Record::Run(_), None) => return Err(order("a header")),
            (Record::Run(run), Some(_)) => runs.push(*run),
        }
    }
    let header =
        header.ok_or(ResultsError::Order { path: path.to_owned(), line: 1, expected: "a header" })?;
    Ok(Results { header, runs })
}

//! The report on disk.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ccplane_files::Bound;
use serde::{Deserialize, Serialize};

use super::model::{Report, Run, Sample, Totals};

/// The bound of a report.
const REPORT: Bound = Bound { what: "a report", bytes: 256 << 20 };

/// Why a report could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file system said no.
    #[error("{path}: {error}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it said.
        error: std::io::Error,
    },
    /// A sink said no.
    #[error("writing a record: {0}")]
    Sink(std::io::Error),
    /// A chart could not be drawn as a picture.
    #[error("{path}: {why}")]
    Picture {
        /// Which file.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Not the JSON of a report.
    #[error("{path}: {error}")]
    Json {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
}

/// The files of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The page.
    pub html: PathBuf,
    /// The data that it shows.
    pub json: PathBuf,
    /// The same, one record a line.
    pub jsonl: PathBuf,
}

/// Writes `NAME.html`, `NAME.json` and `NAME.jsonl` into `dir`, which is made if it is not there.
///
/// # Errors
/// `Io` names the file.
pub fn write_to(report: &Report, dir: &Path, name: &str) -> Result<Files, ReportError> {
    let file = |extension: &str| dir.join(format!("{name}.{extension}"));
    let files = Files { html: file("html"), json: file("json"), jsonl: file("jsonl") };
    fs::create_dir_all(dir).map_err(|error| ReportError::Io { path: dir.into(), error })?;
    let put = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|error| ReportError::Io { path: path.into(), error })
    };
    let json = serde_json::to_vec_pretty(report)
        .map_err(|error| ReportError::Json { path: files.json.clone(), error })?;
    put(&files.json, &json)?;
    let mut lines = JsonLines::new(Vec::new());
    lines.report(report)?;
    put(&files.jsonl, &lines.into_inner())?;
    put(&files.html, super::page::html(report, &format!("{name}.json")).as_bytes())?;
    Ok(files)
}

/// Reads what [`write_to`] wrote as `NAME.json`.
///
/// # Errors
/// `Io`, or `Json` with line and column.
pub fn read_json(path: &Path) -> Result<Report, ReportError> {
    let read = ccplane_files::read(path, REPORT).map_err(|e| std::io::Error::other(e.reason()));
    let bytes = read.map_err(|error| ReportError::Io { path: path.into(), error })?;
    serde_json::from_slice(&bytes).map_err(|error| ReportError::Json { path: path.into(), error })
}

/// One line of a `.jsonl` file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "kebab-case")]
pub enum Record {
    /// Comes first: what was run.
    Run(Run),
    /// A flow at a moment.
    Sample {
        /// The flow's name.
        flow: String,
        /// What was measured.
        #[serde(flatten)]
        sample: Sample,
    },
    /// A flow's end.
    Totals {
        /// The flow's name.
        flow: String,
        /// What it did.
        #[serde(flatten)]
        totals: Totals,
    },
}

/// Writes records as JSON, one a line, each flushed to the sink at once: a run that is cut short keeps its lines.
#[derive(Debug)]
pub struct JsonLines<W> {
    sink: W,
}

impl<W: Write> JsonLines<W> {
    /// Writes to `sink`.
    pub fn new(sink: W) -> Self {
        Self { sink }
    }

    /// Writes one record.
    ///
    /// # Errors
    /// `Sink`.
    pub fn write(&mut self, record: &Record) -> Result<(), ReportError> {
        let mut line = serde_json::to_vec(record).map_err(|e| ReportError::Sink(e.into()))?;
        line.push(b'\n');
        self.sink.write_all(&line).and_then(|()| self.sink.flush()).map_err(ReportError::Sink)
    }

    /// Writes all records of a report.
    ///
    /// # Errors
    /// `Sink`.
    pub fn report(&mut self, report: &Report) -> Result<(), ReportError> {
        self.write(&Record::Run(report.run.clone()))?;
        for flow in &report.flows {
            for sample in &flow.samples {
                self.write(&Record::Sample { flow: flow.name.clone(), sample: *sample })?;
            }
            self.write(&Record::Totals { flow: flow.name.clone(), totals: flow.totals })?;
        }
        Ok(())
    }

    /// Gives the sink back.
    pub fn into_inner(self) -> W {
        self.sink
    }
}

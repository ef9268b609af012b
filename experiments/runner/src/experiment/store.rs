//! A plan's results on disk: made, checked, resumed.

use std::fs;
use std::path::{Path, PathBuf};

use ccplane_results::{Header, Results, ResultsError, Run, RunOutcome};

/// Reasons why results cannot be written there.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or file cannot be used.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// The existing results cannot be read.
    #[error("{0}; --force starts anew and keeps the file as .old")]
    Results(ResultsError),
    /// The existing results belong to another plan.
    #[error(
        "{}: its runs are of {what}; give another directory with --results, or --force to start anew (the file is kept as .old)",
        path.display()
    )]
    Other {
        path: PathBuf,
        /// The part of the plan that differs.
        what: &'static str,
    },
}

/// An open results file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    /// The results so far, with runs in the order of their end.
    pub results: Results,
}

impl Store {
    /// Opens `path` for the runs of `header`'s plan: makes it, or goes on with it if it was begun by the same plan on the same
    /// kernel. With `force` whatever is there is put aside.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(path: &Path, header: &Header, force: bool) -> Result<Store, StoreError> {
        let io = |error| StoreError::Io { path: path.to_owned(), error };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(io)?;
        }
        if force && path.exists() {
            fs::rename(path, path.with_extension("jsonl.old")).map_err(io)?;
        }
        if path.exists() {
            ccplane_results::repair(path).map_err(StoreError::Results)?;
            if fs::metadata(path).map_err(io)?.len() == 0 {
                // Its header was cut short.
                fs::remove_file(path).map_err(io)?;
            }
        }
        if !path.exists() {
            ccplane_results::create(path, header).map_err(StoreError::Results)?;
            return Ok(Store {
                path: path.to_owned(),
                results: Results { header: header.clone(), runs: Vec::new() },
            });
        }
        let mut results = ccplane_results::read(path).map_err(StoreError::Results)?;
        let other = |what| Err(StoreError::Other { path: path.to_owned(), what });
        if results.header.plan.digest != header.plan.digest {
            return other("another plan, or of this one before it was changed");
        }
        if results.header.host.kernel != header.host.kernel {
            return other("another kernel");
        }
        if results.header.plan != header.plan {
            // Comparisons, texts or the number of repeats have changed, none of which affects the runs that are there.
            results.header.plan = header.plan.clone();
            rewrite(path, &results)?;
        }
        Ok(Store { path: path.to_owned(), results })
    }

    /// Returns the path of the results file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The runs of one contender in one scenario and repeat, in order.
    pub fn runs<'s>(
        &'s self,
        scenario: &'s str,
        contender: &'s str,
        repeat: u32,
    ) -> impl Iterator<Item = &'s Run> {
        self.results
            .runs
            .iter()
            .filter(move |r| r.scenario == scenario && r.contender == contender && r.repeat == repeat)
    }

    /// Whether it was run to its end.
    #[must_use]
    pub fn is_done(&self, scenario: &str, contender: &str, repeat: u32) -> bool {
        self.runs(scenario, contender, repeat).any(|r| matches!(r.outcome, RunOutcome::Ok(_)))
    }

    /// Adds a run; it is on disk on return.
    ///
    /// # Errors
    /// `Results`.
    pub fn append(&mut self, run: Run) -> Result<(), StoreError> {
        ccplane_results::append(&self.path, run.clone()).map_err(StoreError::Results)?;
        self.results.runs.push(run);
        Ok(())
    }
}

/// Replaces the file by one with another header.
fn rewrite(path: &Path, results: &Results) -> Result<(), StoreError> {
    let io = |error| StoreError::Io { path: path.to_owned(), error };
    let new = path.with_extension("jsonl.new");
    if new.exists() {
        fs::remove_file(&new).map_err(io)?;
    }
    ccplane_results::create(&new, &results.header).map_err(StoreError::Results)?;
    for run in &results.runs {
        ccplane_results::append(&new, run.clone()).map_err(StoreError::Results)?;
    }
    fs::rename(&new, path).map_err(io)
}

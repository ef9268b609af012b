//! The report of a plan's runs: one page, its figures as CSV, its charts as SVG and PNG.

use std::fs;
use std::path::{Path, PathBuf};

use ccplane_results::{Outcome, Results};
use maud::{DOCTYPE, html};

use crate::files::ReportError;

/// The files of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Files {
    /// The page.
    pub html: PathBuf,
}

/// Writes the report of `results` into `dir`, which is made if it is not there: `NAME.html` and what it links to.
///
/// # Errors
/// `Io` names the file.
pub fn write(results: &Results, dir: &Path, name: &str) -> Result<Files, ReportError> {
    fs::create_dir_all(dir).map_err(|error| ReportError::Io { path: dir.into(), error })?;
    let files = Files { html: dir.join(format!("{name}.html")) };
    fs::write(&files.html, page(results))
        .map_err(|error| ReportError::Io { path: files.html.clone(), error })?;
    Ok(files)
}

fn page(results: &Results) -> String {
    let header = &results.header;
    html! {
        (DOCTYPE)
        html lang="en" {
            head { meta charset="utf-8"; title { (header.plan.title) } }
            body {
                h1 { (header.plan.title) }
                p { (header.plan.about) }
                table {
                    @for run in &results.runs {
                        tr {
                            td { (run.scenario) } td { (run.contender) } td { (run.repeat) }
                            td {
                                @match &run.outcome {
                                    Outcome::Ok(measured) => (measured.flows.iter().map(|f| f.throughput_bps).sum::<u64>()),
                                    Outcome::Failed { error } => (error),
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    .into_string()
}

//! One self-contained HTML report of an experiment, and the same data as JSON and JSON Lines.
//!
//! [`Report`] is the data; [`html`] draws it into a page that needs no network, no fonts and no script to be
//! read (a short script adds a crosshair and switches flows on and off); [`write_to`] puts page and data next to each
//! other; [`JsonLines`] streams samples while an experiment runs.
//!
//! Measured values are integers in the units that their names end in, so a report holds no NaN or infinity.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod axis;
mod chart;
pub mod experiment;
mod files;
mod format;
mod model;
mod page;
mod scatter;
mod stats;
mod style;
mod tables;

pub use files::{Files, JsonLines, Record, ReportError, read_json, write_to};
pub use model::{Capacity, Datapath, Flow, Link, Phase, Report, Run, Sample, Totals};
pub use page::html;
pub use stats::{Summary, Window, summary};

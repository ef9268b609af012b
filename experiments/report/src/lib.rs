//! The report of a plan's runs: one self-contained HTML page, and its data beside it.
//!
//! [`experiment::write`] draws results ([`ccplane_results`]): links at a glance, verdicts, charts with confidence intervals,
//! tables to paste, the figures as CSV, each chart as SVG and PNG.
//!
//! A page needs no network, no fonts and no script to be read; a short script adds a crosshair and switches lines on
//! and off. All is drawn by one library (`draw`).
//!
//! Measured values are integers in the units that their names end in, so data hold no NaN or infinity.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod draw;
mod error;
pub mod experiment;
mod format;
pub mod shell;
mod statistics;

pub use error::ReportError;
pub use statistics::student_t_quantile;

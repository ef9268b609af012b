//! Reports: one self-contained HTML page each, and its data beside it.
//!
//! - [`experiment::write`] draws the results of a plan's runs ([`ccplane_results`]): verdicts, charts with confidence
//!   intervals, tables to paste, the figures as CSV, each chart as SVG and PNG.
//! - [`Report`] and [`html`] are the demo's: few flows over one link; [`write_to`] puts page and data next to each
//!   other, [`JsonLines`] streams samples while it runs.
//!
//! A page needs no network, no fonts and no script to be read; a short script adds a crosshair and switches lines on
//! and off. Both reports share one drawing library (`draw`).
//!
//! Measured values are integers in the units that their names end in, so data hold no NaN or infinity.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod demo;
mod draw;
pub mod experiment;
mod format;
mod shell;
mod statistics;

pub use demo::{
    BaseRtt, Capacity, Datapath, Decision, Effect, Files, Flow, JsonLines, Learned, Link, Phase, Record,
    Report, ReportError, Run, Sample, Summary, Totals, Window, html, read_json, summary, write_to,
};

//! The report of the demo: few flows, one after the other, over one link.

mod files;
mod learned;
mod model;
mod page;
mod scatter;
mod style;
mod tables;
mod time;
mod window;

pub use files::{Files, JsonLines, Record, ReportError, read_json, write_to};
pub use model::{
    BaseRtt, Capacity, Datapath, Decision, Effect, Flow, Learned, Link, Phase, Report, Run, Sample, Totals,
};
pub use page::html;
pub use window::{Summary, Window, summary};

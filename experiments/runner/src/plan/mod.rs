//! Plans: what to run, in TOML.
//!
//! ```toml
//! title = "Reno against the kernel's Reno"
//! duration_s = 20
//! [[link]]
//! rate_mbit = 24
//! delay_ms = 20
//! [[algorithm]]
//! algorithm = "reno"
//! datapath = "kernel"
//! [[algorithm]]
//! algorithm = "reno"
//! datapath = "ebpf"
//! ```
//!
//! A plan is checked as a whole before anything starts, and what is wrong is refused with its file, line, column and field.
//! Parsing does no I/O: algorithms and traces are arguments.

mod check;
mod error;
mod model;
mod number;
mod random;
pub mod shipped;
mod source;
mod sweep;

use ccplane_files::Bound;
use std::path::Path;
use std::sync::Arc;

use ccplane_alg::Algorithm;
use ccplane_files::document::{DocumentError, Problem};
use ccplane_netsim::trace::Trace;
use ccplane_results::{Contender, Datapath, PLAN_ADVICE, PLAN_VERSION};

pub use error::{NothingLeft, PlanError, why_not_there};
pub use model::{
    Background, BurstLoss, Change, Datagrams, Discipline, Impairments, Medium, OwnPaths, Periods, Plan,
    PlanLink, Policer, Queue, Scenario, ShortBackground, Simulator, Tool, Traffic,
};
pub(crate) use number::decimal;
use source::PlanSource;
use sweep::Point;

/// The largest file of a plan.
pub const PLAN: Bound = Bound { what: "a plan", bytes: 1 << 20 };
/// Scenarios of one plan, sweep included.
pub const MAX_SCENARIOS: usize = 1024;
/// Contenders of one plan.
pub const MAX_CONTENDERS: usize = 64;
/// Bulk flows of one run at once, or senders of an incast, background included.
pub const MAX_FLOWS: u32 = 1024;
/// Short flows of one run.
pub const MAX_ARRIVALS: u64 = 1_000_000;
/// Changes of one link in a run.
pub const MAX_CHANGES: usize = 100;
/// Characters of a name.
pub const MAX_NAME_CHARS: usize = 100;
/// Contenders that run at once: each has a link, and a range of ports of its own.
pub const MAX_AT_ONCE: usize = 8;
/// Runs of one plan.
pub const MAX_RUNS: u64 = 100_000;

const DEFAULT_SAMPLE_MS: u64 = 100;
const DEFAULT_REPEATS: u32 = 5;
const DEFAULT_SEED: u64 = 1;

/// The algorithms and traces that a plan can name.
pub struct Known<'a> {
    pub algorithms: &'a [Arc<dyn Algorithm>],
    /// The kernel's own, where they matter: `None` leaves that to the run.
    pub kernel: Option<&'a [String]>,
    /// A trace by its name or path, or what is wrong with that.
    pub traces: &'a dyn Fn(&str) -> Result<Trace, String>,
    /// A recorded trace's path, absolute, to take where a plan says `cellular.up`, which is synthetic.
    pub cellular: Option<&'a str>,
}

/// Values that replace those of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// The number of repeats.
    pub repeats: Option<u32>,
    /// The length of a run, milliseconds; the plan's other times keep their share of it.
    pub duration_ms: Option<u64>,
    /// The same, but runs get no longer by it.
    pub at_most_ms: Option<u64>,
}

impl Plan {
    /// Parses the text of a plan; `file` names it, in refusals and by its stem.
    ///
    /// # Errors
    /// The first problem, with its line, column and field.
    pub fn parse(
        file: &Path,
        text: &str,
        known: &Known<'_>,
        overrides: Overrides,
    ) -> Result<Plan, PlanError> {
        let refuse = |placed| PlanError::Refused(DocumentError::at(file, text, placed));
        let mut document = ccplane_files::document::parse(text).map_err(refuse)?;
        ccplane_files::document::take_version(&mut document, PLAN_VERSION, PLAN_ADVICE).map_err(refuse)?;
        let placed = |(span, problem): sweep::Refused| refuse((Some(span), problem));
        let ranges = sweep::ranges(document.get_ref()).map_err(placed)?;
        let axes = sweep::axes(document.get_mut(), &ranges).map_err(placed)?;
        let points = sweep::points(&document, &axes).map_err(placed)?;

        let mut first = None;
        let mut scenarios = Vec::new();
        for Point { parameters, document } in points {
            let mut source: PlanSource = ccplane_files::document::value(document.clone()).map_err(refuse)?;
            source.override_by(overrides);
            let drawn = source.random.as_ref().map(|random| random::links(random, source.duration_s.get()));
            source.link.extend(drawn.into_iter().flatten());
            let more = check::scenarios(&source, &parameters, known)
                .map_err(|problem| refuse(ccplane_files::document::locate(&document, problem)))?;
            scenarios.extend(more);
            first.get_or_insert((source, document));
        }
        let Some((source, document)) = first else {
            return Err(refuse((None, Problem::new("sweep", "it has no point"))));
        };
        finish(file, text, &source, scenarios, known)
            .map_err(|problem| refuse(ccplane_files::document::locate(&document, problem)))
    }

    /// Leaves out the contenders on a datapath that is not there, and what they would be compared with.
    ///
    /// # Errors
    /// There is no other contender.
    pub fn leave_out(&mut self, datapath: Datapath) -> Result<(), NothingLeft> {
        let (out, left) = self.contenders.drain(..).partition(|c| c.datapath == datapath);
        self.contenders = left;
        self.left_out.extend(out);
        if self.contenders.is_empty() {
            return Err(NothingLeft { datapath });
        }
        let is_there = |name: &str| self.left_out.iter().all(|c| c.name != name);
        self.comparisons.retain(|c| is_there(&c.of) && is_there(&c.against));
        Ok(())
    }

    /// Returns the number of runs, repeats included.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.scenarios.len() as u64 * self.contenders.len() as u64 * u64::from(self.repeats)
    }
}

fn finish(
    file: &Path,
    text: &str,
    source: &PlanSource,
    scenarios: Vec<Scenario>,
    known: &Known<'_>,
) -> Result<Plan, Problem> {
    let duration_ms = source.duration_s.get();
    let warmup_ms = source.warmup_s.map_or(0, |s| s.get());
    if warmup_ms >= duration_ms {
        return Err(Problem::new("warmup_s", "must be shorter than duration_s"));
    }
    if scenarios.len() > MAX_SCENARIOS {
        let message = format!("{} scenarios, at most {MAX_SCENARIOS} are allowed", scenarios.len());
        return Err(Problem::new("link", message));
    }
    let contenders = check::contenders(&source.algorithm, known)?;
    check::together(&scenarios, &contenders, known)?;
    if source.at_once {
        check::at_once(&scenarios, &contenders)?;
    }
    let contenders: Vec<Contender> = contenders.into_iter().map(|(_, contender)| contender).collect();
    let comparisons = check::comparisons(&source.compare, &scenarios, &contenders)?;
    let mut plan = Plan {
        name: file.file_stem().map_or_else(|| "plan".to_owned(), |s| s.to_string_lossy().into_owned()),
        title: source.title.clone(),
        about: source.about.clone(),
        source: text.to_owned(),
        duration_ms,
        warmup_ms,
        sample_ms: source.sample_ms.map_or(DEFAULT_SAMPLE_MS, |s| s.get()),
        repeats: source.repeats.map_or(DEFAULT_REPEATS, |r| r.small()),
        at_once: source.at_once,
        seed: source.seed.map_or(DEFAULT_SEED, |s| s.get()),
        scenarios,
        contenders,
        comparisons,
        left_out: Vec::new(),
        paper: check::paper(&source.paper),
    };
    // All is checked, also what this build leaves out.
    if cfg!(not(feature = "dpdk")) {
        plan.leave_out(Datapath::Dpdk).map_err(|none| Problem::new("algorithm", none))?;
    }
    if plan.runs() > MAX_RUNS {
        let message = format!("{} runs, at most {MAX_RUNS} are allowed", plan.runs());
        return Err(Problem::new("repeats", message));
    }
    Ok(plan)
}

#[cfg(test)]
mod tests;

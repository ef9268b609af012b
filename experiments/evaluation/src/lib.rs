//! Evaluates an algorithm by the criteria of RFC 9743 (BCP 133), and reports a verdict on each.
//!
//! A [`Criterion`] names a section of the RFC, what it asks, and its [`Check`]s. A check is a [`Metric`] on the links of one
//! [`ScenarioSet`], with a limit: absolute, or relative to what the standards (Reno and CUBIC) do on the same links. [`Case`]s are
//! drawn by number from a seed that no set of the league has; each is a plan, as `ccplane run` takes it. [`judge`] decides by an
//! interval, and nothing else: pass, or concern. Criteria that nothing here can measure say why.
//!
//! Cells are kept in a [`Store`], so that an evaluation goes on where it was interrupted, and the references are played once for
//! many algorithms. [`Evaluation`] is the report: JSON by serde, [`page::html`], [`text::markdown`].
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod case;
mod conformance;
mod criterion;
mod envelope;
mod error;
mod evaluation;
mod live;
mod measure;
pub mod page;
mod play;
mod scenario;
mod store;
pub mod text;
mod trace;
mod verdict;

pub use case::{Case, Contender, MAX_CASES};
pub use conformance::{ConformanceCase, Conformed, KERNEL_NAMES, LinkConformance};
pub use criterion::{Against, CRITERIA, Check, Criterion, Group, Kind};
pub use envelope::{Envelope, Point, conformance};
pub use error::{EvaluationError, StoreError};
pub use evaluation::{
    CaseFigures, CheckResult, CriterionResult, Evaluation, Provenance, Reference, SCHEMA_VERSION, Worst,
};
pub use live::{LiveConfig, conform, live, live_cases, live_cells, live_contenders};
pub use measure::{Cell, Figures, Metric};
pub use play::{Ground, Play, REFERENCES, STANDARDS, contenders, play};
pub use scenario::ScenarioSet;
pub use store::{STORE, Store};
pub use trace::Traces;
pub use verdict::{Bound, Judgement, MIN_CASES, Verdict, judge, relative};

//! A conformance suite for congestion control algorithms, on every datapath.
//!
//! An algorithm's own crate needs this much:
//!
//! ```no_run
//! # struct Mine;
//! # struct MyFlow;
//! # impl ccplane_alg::Flow for MyFlow {
//! #     fn on_report(&mut self, _: u64, _: &ccplane_alg::Report<'_>, _: &mut ccplane_alg::Control) {}
//! # }
//! # impl ccplane_alg::Algorithm for Mine {
//! #     fn name(&self) -> &'static str { "mine" }
//! #     fn programs(&self) -> Vec<ccplane_alg::ProgramSource> { vec![] }
//! #     fn flow(&self, _: &ccplane_alg::FlowInfo, _: &mut ccplane_alg::Control) -> Box<dyn ccplane_alg::Flow> { Box::new(MyFlow) }
//! # }
//! # use std::sync::Arc;
//! // in a #[test]
//! ccplane_kit::assert_conforms(Arc::new(Mine));
//! ```
//!
//! The rig drives the whole algorithm: its agent's side through the real core, its programs on the reference VM. The
//! input is streams of [`Operation`]s: the [standard scenarios](scenario), their beginnings, and random streams that
//! shrink. The rig checks the [invariants](Violation) after each ACK, and that the flow comes back after any trouble.
//! It replays everything on the other [executors](replay), bit for bit, and runs it over [live] datapaths. [`golden`]
//! keeps trajectories in files.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod golden;
pub mod live;
mod monitor;
mod operation;
mod path;
pub mod replay;
mod rig;
pub mod scenario;
pub mod strategy;
mod violation;

pub use operation::Operation;
pub use path::PathConfig;
pub use rig::{Point, Trajectory};
pub use scenario::Scenario;
pub use violation::{Bounds, Failure, Violation};

use ccplane_alg::Algorithm;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRng, TestRunner};
use rig::Rig;
use std::sync::Arc;

/// The time that the flow is measured after trouble, microseconds.
const MEASURED_US: u64 = 1_000_000;
/// Random streams unless the environment variable [`CASES`] says otherwise.
const DEFAULT_CASES: u32 = 32;
/// The environment variable that says how many random streams there are.
pub const CASES: &str = "CCPLANE_CASES";

/// Runs a stream and checks the invariants after each ACK.
///
/// # Errors
/// The first invariant that is broken.
pub fn check(
    algorithm: &Arc<dyn Algorithm>,
    path: PathConfig,
    operations: &[Operation],
    bounds: &Bounds,
) -> Result<Trajectory, Violation> {
    let (rig, points) = run(algorithm, path, operations, bounds)?;
    Ok(rig.into_trajectory(points))
}

/// Like [`check`], and the flow must come back on a clean path afterwards.
///
/// # Errors
/// The first invariant that is broken, or [`Violation::Stalled`].
pub fn check_recovery(
    algorithm: &Arc<dyn Algorithm>,
    path: PathConfig,
    operations: &[Operation],
    bounds: &Bounds,
) -> Result<Trajectory, Violation> {
    let (mut rig, points) = run(algorithm, path, operations, bounds)?;
    let Bounds { settle_us, floor_percent, .. } = *bounds;
    // A hundred round trips, where those are longer than the default path's.
    let settle_us = settle_us.max(100 * u64::from(path.rtt_us + path.queue_us / 2));
    let delivered = rig.calm(settle_us, MEASURED_US)?;
    let used_percent =
        delivered * 100_000_000 / (bounds.reachable(path.rate_bytes_per_s.into()) * MEASURED_US);
    if used_percent < floor_percent {
        let operation = operations.len().saturating_sub(1);
        return Err(Violation::Stalled { operation, settle_us, used_percent, floor_percent });
    }
    Ok(rig.into_trajectory(points))
}

/// Returns the rig after the stream, and a point after each operation.
fn run(
    algorithm: &Arc<dyn Algorithm>,
    path: PathConfig,
    operations: &[Operation],
    bounds: &Bounds,
) -> Result<(Rig, Vec<Point>), Violation> {
    let mut rig = Rig::new(algorithm, path, bounds)?;
    let points = operations.iter().map(|o| rig.operate(*o)).collect::<Result<Vec<_>, _>>()?;
    Ok((rig, points))
}

/// Every standard scenario, and whether the flow comes back after each of its beginnings that ends in trouble.
///
/// # Errors
/// The first failure.
pub fn check_scenarios(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds) -> Result<(), Box<Failure>> {
    for Scenario { name, path, operations } in scenario::all() {
        let ends = (1..=operations.len()).filter(|end| {
            *end == operations.len()
                || !matches!(operations[end - 1], Operation::Run { .. } | Operation::Bulk)
        });
        for end in ends {
            let beginning = &operations[..end];
            check_recovery(algorithm, path, beginning, bounds).map_err(|violation| {
                Box::new(Failure::new(&**algorithm, name, path, beginning, violation))
            })?;
        }
    }
    Ok(())
}

/// `cases` random streams on the default path, always the same ones, and whether the flow comes back after each.
///
/// # Errors
/// The smallest stream found that fails.
pub fn check_random(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds, cases: u32) -> Result<(), Box<Failure>> {
    let path = PathConfig::default();
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let run = |operations: &[Operation]| check_recovery(algorithm, path, operations, bounds);
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy::operations(), |operations| {
        run(&operations).map(drop).map_err(|v| TestCaseError::fail(v.to_string()))
    });
    let operations = match outcome {
        Ok(()) | Err(TestError::Abort(_)) => return Ok(()),
        Err(TestError::Fail(_, operations)) => operations,
    };
    match run(&operations) {
        Ok(_) => Ok(()),
        Err(violation) => Err(Box::new(Failure::new(&**algorithm, "random", path, &operations, violation))),
    }
}

/// Returns the number of random streams to run.
pub fn cases() -> u32 {
    std::env::var(CASES).ok().and_then(|v| v.parse().ok()).unwrap_or(DEFAULT_CASES)
}

/// Asserts that an algorithm passes every check of the [crate], within the default [`Bounds`].
///
/// # Panics
/// With what the algorithm broke, and on what stream.
pub fn assert_conforms(algorithm: Arc<dyn Algorithm>) {
    assert_conforms_within(algorithm, &Bounds::default());
}

/// Asserts that an algorithm passes every check, within bounds of the caller.
///
/// # Panics
/// With what the algorithm broke, and on what stream.
pub fn assert_conforms_within(algorithm: Arc<dyn Algorithm>, bounds: &Bounds) {
    let outcome = check_scenarios(&algorithm, bounds)
        .and_then(|()| check_random(&algorithm, bounds, cases()))
        .and_then(|()| replay::check_everywhere(&algorithm, bounds));
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
    if let Err(failure) = live::simulated(&algorithm, bounds) {
        panic!("{failure}");
    }
}

impl Failure {
    pub(crate) fn new(
        algorithm: &dyn Algorithm,
        scenario: &str,
        path: PathConfig,
        operations: &[Operation],
        violation: Violation,
    ) -> Failure {
        Failure {
            algorithm: algorithm.name(),
            scenario: scenario.to_owned(),
            path,
            operations: operations.to_vec(),
            violation: Box::new(violation),
        }
    }
}

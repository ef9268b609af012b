//! The same on every executor, bit for bit: what went into a program on the reference VM goes into another one.
//!
//! Reports are compared too, so the agent would have answered them alike, and the rest of the script is what it would
//! have been there.

use crate::rig::Trajectory;
use crate::scenario::Scenario;
use crate::violation::{Bounds, Failure, Violation};
use crate::{check, scenario};
use ccplane_alg::Algorithm;
use ccplane_contract::suite::{self, Executor};
use ccplane_sim::SimExecutor;
use std::sync::Arc;

/// Replays what a stream did on an executor.
///
/// # Errors
/// [`Violation::Diverged`] where it does anything else.
pub fn replay(name: &str, executor: &mut dyn Executor, trajectory: &Trajectory) -> Result<(), Violation> {
    suite::check(executor, &trajectory.script)
        .map_err(|divergence| Violation::Diverged { executor: name.to_owned(), divergence })
}

/// Every standard scenario on an executor.
///
/// # Errors
/// The first failure.
pub fn check_on(
    name: &str,
    executor: &mut dyn Executor,
    algorithm: &Arc<dyn Algorithm>,
    bounds: &Bounds,
) -> Result<(), Box<Failure>> {
    for Scenario { name: scenario, path, operations } in scenario::all() {
        check(algorithm, path, &operations, bounds)
            .and_then(|trajectory| replay(name, executor, &trajectory))
            .map_err(|v| Box::new(Failure::new(&**algorithm, scenario, path, &operations, v)))?;
    }
    Ok(())
}

/// Every standard scenario on the simulator's executor and, where it can run here, the kernel's.
///
/// # Errors
/// The first failure.
pub fn check_everywhere(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds) -> Result<(), Box<Failure>> {
    check_on("the simulator", &mut SimExecutor, algorithm, bounds)?;
    #[cfg(feature = "kernel")]
    match ccplane_ebpf::testrun::Bench::new() {
        Ok(mut kernel) => check_on("the kernel", &mut kernel, algorithm, bounds)?,
        Err(e) => {
            ccplane_testing::skipped(
                algorithm.name(),
                format_args!("programs were not run in the kernel: {e}"),
            );
        }
    }
    Ok(())
}

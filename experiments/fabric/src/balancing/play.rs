//! Runs the trials of a plan of load balancing on all cores.

use super::plan::{BalancePlan, Balancer};
use super::uplinks::Uplinks;
use crate::error::FabricError;
use crate::figures::{SizeClass, completions_ns};
use crate::play::on_cores;
use crate::trial::Trial;
use ccplane_alg::Algorithm;
use ccplane_algs::{Path, PathInAgent, Plb};
use ccplane_core::NATIVE;
use ccplane_netsim::workload::{Split, Structure};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One run of a contender.
#[derive(Clone, PartialEq, Debug)]
pub struct BalanceCell {
    /// Index of the sizes in the plan.
    pub sizes: usize,
    pub uplinks: Uplinks,
    pub load_percent: u32,
    pub repeat: u32,
    pub contender: Balancer,
    /// Completion times by [`SizeClass`], ascending, nanoseconds.
    pub completions_ns: [Vec<u64>; 3],
    /// Flows that had not ended when the run did.
    pub unfinished: usize,
    pub dropped: u64,
}

/// Runs every trial, on so many cores. `told` hears of each and says whether to go on.
///
/// # Errors
/// The first trial that cannot be run; `None` where `told` said no.
pub fn play_balance(
    plan: &BalancePlan,
    cores: usize,
    told: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Option<Vec<BalanceCell>>, FabricError> {
    let mut runs = Vec::new();
    for sizes in 0..plan.sizes.len() {
        for uplinks in plan.uplinks.iter().copied() {
            for load_percent in plan.loads_percent.iter().copied() {
                for repeat in 0..plan.repeats {
                    let of = |contender| Run { sizes, uplinks, load_percent, repeat, contender };
                    runs.extend(plan.contenders.iter().copied().map(of));
                }
            }
        }
    }
    let done = AtomicUsize::new(0);
    let one = |run: &Run| {
        let cell = run.play(plan)?;
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        let (name, uplinks) = (run.contender.name(), run.uplinks.name());
        let text = format!("{done} of {}: {name}, {uplinks}, at {} %", runs.len(), run.load_percent);
        Ok(told(&text).then_some(cell))
    };
    on_cores(&runs, cores, &one)
}

#[derive(Clone, Copy)]
struct Run {
    sizes: usize,
    uplinks: Uplinks,
    load_percent: u32,
    repeat: u32,
    contender: Balancer,
}

impl Run {
    fn play(&self, plan: &BalancePlan) -> Result<BalanceCell, FabricError> {
        let mut fabric = plan.fabric.clone();
        self.uplinks.apply(&mut fabric);
        let trial = Trial {
            structure: Structure::new(fabric.shape.hosts(), 0),
            fabric,
            sizes: plan.sizes[self.sizes].clone(),
            load_ppm: self.load_percent * 10_000,
            split: Split::Test,
            seed: plan.seed.wrapping_add(self.repeat.into()),
            warm_up_flows: plan.warm_up_flows,
            flows: plan.flows,
            omniscient: (self.contender == Balancer::Oracle).then_some(self.uplinks),
        };
        let algorithm: Option<Arc<dyn Algorithm>> = match self.contender {
            Balancer::Ecmp | Balancer::Oracle => None,
            Balancer::Plb => Some(Arc::new(Plb)),
            Balancer::LeastLoaded => Some(Arc::new(PathInAgent::least_loaded())),
            Balancer::PathAgent => Some(Arc::new(PathInAgent::shipped().ok_or(FabricError::NoSnapshot)?)),
            Balancer::Path => Some(Arc::new(Path::default())),
        };
        let name = algorithm.as_ref().map_or(NATIVE, |algorithm| algorithm.name());
        let outcome = trial.run(algorithm.as_slice(), name)?;
        Ok(BalanceCell {
            sizes: self.sizes,
            uplinks: self.uplinks,
            load_percent: self.load_percent,
            repeat: self.repeat,
            contender: self.contender,
            completions_ns: SizeClass::ALL.map(|class| completions_ns(&outcome, class)),
            unfinished: outcome.completions.iter().filter(|flow| flow.completion_ns.is_none()).count(),
            dropped: outcome.dropped,
        })
    }
}

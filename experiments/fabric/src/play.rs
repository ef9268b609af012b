//! Runs a plan's trials on all cores.

use crate::error::FabricError;
use crate::figures::{SizeClass, completions_ns};
use crate::learning::alone;
use crate::oracle::Oracle;
use crate::plan::{Contender, FabricPlan, Workload};
use crate::thresholds::{SizedFlow, bytes_of, demotions, exact, thresholds};
use crate::trial::Trial;
use ccplane_alg::Algorithm;
use ccplane_algs::{CENTRE, Pias, Size, SizeInAgent, SizeThresholds, SnapshotPredictor};
use ccplane_core::NATIVE;
use ccplane_netsim::workload::Split;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Load under which thresholds are learned, millionths.
const LEARNING_LOAD_PPM: u32 = 600_000;
/// Flows that thresholds are learned from, and as many again that they are tried on.
const LEARNING_FLOWS: usize = 4000;

/// One run of a contender.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// Index of the workload in the plan.
    pub workload: usize,
    pub load_percent: u32,
    pub contender: Contender,
    pub repeat: u32,
    /// Completion times by [`SizeClass`], ascending, nanoseconds.
    pub completions_ns: [Vec<u64>; 3],
    /// Flows that had not ended when the run did.
    pub unfinished: usize,
    /// Packets that queues dropped.
    pub dropped: u64,
}

/// The thresholds that were learned for one workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prepared {
    pub size: SizeThresholds,
    pub oracle: Oracle,
}

/// All runs of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Played {
    /// For each workload.
    pub prepared: Vec<Prepared>,
    /// In order of workload, load, repeat, contender.
    pub cells: Vec<Cell>,
}

/// Learns the thresholds of every workload, then runs every trial, on so many cores. `told` hears of each step and says whether
/// to go on.
///
/// # Errors
/// The first trial that cannot be run; `None` where `told` said no.
pub fn play(
    plan: &FabricPlan,
    cores: usize,
    told: &(dyn Fn(&str) -> bool + Sync),
) -> Result<Option<Played>, FabricError> {
    let predictor = SnapshotPredictor::shipped().map(Arc::new).ok_or(FabricError::NoSnapshot)?;
    let prepare = |workload: &Workload| {
        let prepared = prepare(plan, workload, &predictor)?;
        Ok(told(&format!("thresholds for {}", workload.name())).then_some(prepared))
    };
    let Some(prepared) = on_cores(&plan.workloads, cores, &prepare)? else { return Ok(None) };
    let runs: Vec<Run> = runs(plan);
    let done = AtomicUsize::new(0);
    let one = |run: &Run| {
        let cell = run.play(plan, &prepared[run.workload], &predictor)?;
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        let text = format!("{done} of {}: {} at {} %", runs.len(), run.contender.name(), run.load_percent);
        Ok(told(&text).then_some(cell))
    };
    let cells = on_cores(&runs, cores, &one)?;
    Ok(cells.map(|cells| Played { prepared, cells }))
}

#[derive(Clone, Copy)]
struct Run {
    workload: usize,
    load_percent: u32,
    repeat: u32,
    contender: Contender,
}

fn runs(plan: &FabricPlan) -> Vec<Run> {
    let mut runs = Vec::with_capacity(plan.runs());
    for workload in 0..plan.workloads.len() {
        for load_percent in plan.loads_percent.iter().copied() {
            for repeat in 0..plan.repeats {
                let run = |contender| Run { workload, load_percent, repeat, contender };
                runs.extend(plan.contenders.iter().copied().map(run));
            }
        }
    }
    runs
}

fn trial(plan: &FabricPlan, workload: &Workload, load_ppm: u32, split: Split, seed: u64) -> Trial {
    Trial {
        fabric: plan.fabric.clone(),
        sizes: workload.sizes.clone(),
        load_ppm,
        structure: workload.structure(plan.fabric.shape.hosts()),
        split,
        seed,
        warm_up_flows: plan.warm_up_flows,
        flows: plan.flows,
        omniscient: None,
    }
}

/// Learns a workload's thresholds from flows of the training split, and tries them on some of the validation split.
fn prepare(
    plan: &FabricPlan,
    workload: &Workload,
    predictor: &Arc<SnapshotPredictor>,
) -> Result<Prepared, FabricError> {
    let flows = |split, thresholds| {
        let trial = trial(plan, workload, LEARNING_LOAD_PPM, split, plan.seed);
        let trial = Trial { flows: LEARNING_FLOWS, ..trial };
        alone(&trial, thresholds, Some(Arc::clone(predictor) as Arc<dyn ccplane_algs::Predictor>))
    };
    let never = [SizeThresholds::NEVER; ccplane_algs::THRESHOLDS];
    let first = flows(Split::Train, SizeThresholds { predicted_q16: never, ..SizeThresholds::default() })?;
    let demotions = demotions(&first);
    let pias = SizeThresholds { demotions, predicted_q16: never };
    let (seen, unseen) = (flows(Split::Train, pias)?, flows(Split::Validation, pias)?);
    let known = |flows: &[SizedFlow]| flows.iter().map(exact).collect::<Vec<_>>();
    let oracle = thresholds(demotions, &known(&seen), &known(&unseen));
    Ok(Prepared {
        size: thresholds(demotions, &seen, &unseen),
        oracle: Oracle {
            sizes: oracle.predicted_q16.map(|action| bytes_of(action.saturating_add(CENTRE << 16))),
        },
    })
}

impl Run {
    fn play(
        &self,
        plan: &FabricPlan,
        prepared: &Prepared,
        predictor: &Arc<SnapshotPredictor>,
    ) -> Result<Cell, FabricError> {
        let workload = &plan.workloads[self.workload];
        let seed = plan.seed.wrapping_add(self.repeat.into());
        let mut trial = trial(plan, workload, self.load_percent * 10_000, Split::Test, seed);
        let algorithm: Option<Arc<dyn Algorithm>> = match self.contender {
            Contender::Fifo => None,
            Contender::Pias => Some(Arc::new(Pias { demotions: prepared.size.demotions })),
            Contender::Size => Some(Arc::new(Size { thresholds: prepared.size })),
            Contender::SizeAgent => Some(Arc::new(SizeInAgent::new(
                prepared.size,
                Arc::clone(predictor) as Arc<dyn ccplane_algs::Predictor>,
            ))),
            Contender::Oracle => {
                trial.fabric.send_buffer_bytes = u64::MAX;
                Some(Arc::new(prepared.oracle))
            }
        };
        let name = algorithm.as_ref().map_or(NATIVE, |algorithm| algorithm.name());
        let outcome = trial.run(algorithm.as_slice(), name)?;
        Ok(Cell {
            workload: self.workload,
            load_percent: self.load_percent,
            contender: self.contender,
            repeat: self.repeat,
            completions_ns: SizeClass::ALL.map(|class| completions_ns(&outcome, class)),
            unfinished: outcome.completions.iter().filter(|flow| flow.completion_ns.is_none()).count(),
            dropped: outcome.dropped,
        })
    }
}

/// Does all of them on so many cores, in their order; `None` if one was `None`.
pub(crate) fn on_cores<T: Sync, R: Send>(
    all: &[T],
    cores: usize,
    one: &(dyn Fn(&T) -> Result<Option<R>, FabricError> + Sync),
) -> Result<Option<Vec<R>>, FabricError> {
    let next = AtomicUsize::new(0);
    let stopped = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(all.len()));
    thread::scope(|scope| {
        for _ in 0..cores.clamp(1, all.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = all.get(n).filter(|_| stopped.load(Ordering::Relaxed) == 0) else {
                        return;
                    };
                    let result = one(item);
                    if !matches!(result, Ok(Some(_))) {
                        stopped.store(1, Ordering::Relaxed);
                    }
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((n, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, result)| result).collect()
}

//! Runs a plan's trials on all cores.

use crate::error::FabricError;
use crate::learning::alone;
use crate::omniscient::PathOracle;
use crate::oracle::Oracle;
use crate::plan::{Contender, FabricPlan, Group, Kind, Slot};
use crate::thresholds::{SizedFlow, bytes_of, demotions, exact, thresholds};
use crate::trial::{Trial, TrialOutcome};
use ccplane_alg::Algorithm;
use ccplane_algs::{
    CENTRE, Path, PathInAgent, Pias, Plb, Predictor, Size, SizeInAgent, SizeThresholds, SnapshotPredictor,
};
use ccplane_core::NATIVE;
use ccplane_netsim::workload::Split;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Load under which thresholds are learned, millionths.
const LEARNING_LOAD_PPM: u32 = 600_000;
/// Flows that thresholds are learned from, and as many again that they are tried on.
const LEARNING_FLOWS: usize = 4000;

/// A run that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ran {
    pub slot: Slot,
    pub outcome: TrialOutcome,
    /// Remarks on the run for the reader.
    pub notes: Vec<String>,
    /// The real time that it took.
    pub took: Duration,
}

/// The thresholds that were learned for one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Prepared {
    size: SizeThresholds,
    oracle: Oracle,
}

/// Does these runs of a plan, on so many cores; thresholds between priorities are learned first. `told` hears of each step, and
/// `ended` takes each run; both say whether to go on. Returns whether all was done.
///
/// # Errors
/// The first trial that cannot be run.
pub fn play(
    plan: &FabricPlan,
    slots: &[Slot],
    cores: usize,
    told: &(dyn Fn(&str) -> bool + Sync),
    ended: &(dyn Fn(Ran) -> bool + Sync),
) -> Result<bool, FabricError> {
    let Some(player) = Player::new(plan, slots, cores, told)? else { return Ok(false) };
    let done = AtomicUsize::new(0);
    let one = |slot: &Slot| {
        let began = Instant::now();
        let outcome = player.run(slot)?;
        let ran = Ran { slot: *slot, outcome, notes: player.notes(slot), took: began.elapsed() };
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        let (name, group) = (slot.contender.name(), plan.groups[slot.group].name(plan.kind));
        let text = format!("{done} of {}: {name}, {group}, at {} %", slots.len(), slot.load_percent);
        Ok((ended(ran) && told(&text)).then_some(()))
    };
    Ok(on_cores(slots, cores, &one)?.is_some())
}

/// Learns a group's thresholds from flows of the training split, and tries them on some of the validation split.
fn prepare(
    plan: &FabricPlan,
    group: &Group,
    predictor: &Arc<SnapshotPredictor>,
) -> Result<Prepared, FabricError> {
    let flows = |split, thresholds| {
        let trial = trial(plan, group, LEARNING_LOAD_PPM, split, plan.seed);
        let trial = Trial { flows: LEARNING_FLOWS, ..trial };
        alone(&trial, thresholds, Some(Arc::clone(predictor) as Arc<dyn Predictor>))
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

/// The trial of a group under a load.
fn trial(plan: &FabricPlan, group: &Group, load_ppm: u32, split: Split, seed: u64) -> Trial {
    let mut fabric = plan.fabric.clone();
    group.uplinks.apply(&mut fabric);
    Trial {
        structure: group.structure(fabric.shape.hosts()),
        fabric,
        sizes: group.sizes.clone(),
        playback: group.playback.clone(),
        load_ppm,
        split,
        seed,
        warm_up_flows: plan.warm_up_flows,
        flows: plan.flows,
        omniscient: None,
    }
}

/// Runs the trials of a plan.
pub(crate) struct Player<'a> {
    plan: &'a FabricPlan,
    predictor: Option<Arc<SnapshotPredictor>>,
    /// The prepared runs by group.
    prepared: BTreeMap<usize, Prepared>,
}

impl<'a> Player<'a> {
    /// Learns the thresholds that these runs need, on so many cores; `None` where `told` says not to go on.
    ///
    /// # Errors
    /// The first flows that cannot be drawn.
    pub(crate) fn new(
        plan: &'a FabricPlan,
        slots: &[Slot],
        cores: usize,
        told: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Option<Player<'a>>, FabricError> {
        if plan.kind != Kind::Scheduling {
            return Ok(Some(Player { plan, predictor: None, prepared: BTreeMap::new() }));
        }
        let predictor = SnapshotPredictor::shipped().map(Arc::new).ok_or(FabricError::NoSnapshot)?;
        let mut asked: Vec<usize> = slots.iter().map(|slot| slot.group).collect();
        asked.sort_unstable();
        asked.dedup();
        let prepare = |n: &usize| {
            let group = &plan.groups[*n];
            let prepared = prepare(plan, group, &predictor)?;
            Ok(told(&format!("thresholds for {}", group.name(plan.kind))).then_some((*n, prepared)))
        };
        let prepared = on_cores(&asked, cores, &prepare)?;
        Ok(prepared.map(|prepared| Player {
            plan,
            predictor: Some(predictor),
            prepared: prepared.into_iter().collect(),
        }))
    }

    /// The sizes from which on flows have the next priority, where sizes are known.
    pub(crate) fn known_sizes(&self, slot: &Slot) -> Option<[u64; ccplane_algs::THRESHOLDS]> {
        self.prepared.get(&slot.group).map(|prepared| prepared.oracle.sizes)
    }

    fn run(&self, slot: &Slot) -> Result<TrialOutcome, FabricError> {
        let group = &self.plan.groups[slot.group];
        let seed = self.plan.seed.wrapping_add(slot.repeat.into());
        let mut trial = trial(self.plan, group, slot.load_percent * 10_000, Split::Test, seed);
        match slot.contender {
            Contender::SizeAgentLate | Contender::PathAgentLate => {
                trial.fabric.hosts.agent_latency_us = self.plan.late_agent_latency_us;
            }
            Contender::KnownSizes => trial.fabric.send_buffer_bytes = u64::MAX,
            Contender::KnownLoads | Contender::PresentLoads => {
                let foresees = slot.contender == Contender::KnownLoads;
                trial.omniscient = Some(PathOracle { uplinks: group.uplinks, foresees });
            }
            _ => {}
        }
        let algorithm = self.algorithm(slot)?;
        let name = algorithm.as_ref().map_or(NATIVE, |algorithm| algorithm.name());
        trial.run(algorithm.as_slice(), name)
    }

    /// The algorithm of a run's hosts; `None` where packets are alike and paths those of hashes, or an oracle's.
    pub(crate) fn algorithm(&self, slot: &Slot) -> Result<Option<Arc<dyn Algorithm>>, FabricError> {
        let thresholds = self.prepared.get(&slot.group).map(|prepared| prepared.size).unwrap_or_default();
        let algorithm: Arc<dyn Algorithm> = match slot.contender {
            Contender::Fifo | Contender::Ecmp | Contender::KnownLoads | Contender::PresentLoads => {
                return Ok(None);
            }
            Contender::Pias => Arc::new(Pias { demotions: thresholds.demotions }),
            Contender::Size => Arc::new(Size::new(thresholds)),
            Contender::SizeAgent | Contender::SizeAgentLate => {
                let predictor = self.predictor.clone().ok_or(FabricError::NoSnapshot)?;
                Arc::new(SizeInAgent::new(thresholds, predictor as Arc<dyn Predictor>))
            }
            Contender::KnownSizes => {
                let oracle = self.prepared.get(&slot.group).map(|prepared| prepared.oracle);
                Arc::new(oracle.ok_or(FabricError::NoSnapshot)?)
            }
            Contender::Plb => Arc::new(Plb::default()),
            Contender::LeastLoaded => Arc::new(PathInAgent::least_loaded()),
            Contender::PathAgent | Contender::PathAgentLate => {
                Arc::new(PathInAgent::shipped().ok_or(FabricError::NoSnapshot)?)
            }
            Contender::Path => Arc::new(Path::default()),
        };
        Ok(Some(algorithm))
    }

    pub(crate) fn notes(&self, slot: &Slot) -> Vec<String> {
        let Some(Prepared { size, oracle }) = self.prepared.get(&slot.group) else { return Vec::new() };
        let (sent, predicted) = (size.demotions.0, octaves(&size.predicted_q16));
        let known = oracle.sizes;
        vec![match slot.contender {
            Contender::Fifo => return Vec::new(),
            Contender::KnownSizes => format!("thresholds of sizes: {known:?} bytes"),
            Contender::Pias => format!("thresholds of bytes sent: {sent:?}"),
            _ => format!("thresholds of bytes sent: {sent:?}; of the prediction, octaves: {predicted}"),
        }]
    }
}

/// Thresholds of the prediction as powers of two of bytes.
fn octaves(actions_q16: &[i32]) -> String {
    let octave = |action: &i32| match *action {
        SizeThresholds::NEVER => "never".to_owned(),
        action => format!("{:.1}", f64::from(action) / 65_536.0 + f64::from(CENTRE)),
    };
    actions_q16.iter().map(octave).collect::<Vec<_>>().join(", ")
}

/// Does all of them on so many cores, in their order; `None` if one was `None`.
pub(crate) fn on_cores<T: Sync, R: Send>(
    all: &[T],
    cores: usize,
    one: &(dyn Fn(&T) -> Result<Option<R>, FabricError> + Sync),
) -> Result<Option<Vec<R>>, FabricError> {
    let next = AtomicUsize::new(0);
    let is_stopped = AtomicBool::new(false);
    let results = Mutex::new(Vec::with_capacity(all.len()));
    thread::scope(|scope| {
        for _ in 0..cores.clamp(1, all.len().max(1)) {
            scope.spawn(|| {
                while !is_stopped.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = all.get(n) else { return };
                    let result = one(item);
                    if !matches!(result, Ok(Some(_))) {
                        is_stopped.store(true, Ordering::Relaxed);
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

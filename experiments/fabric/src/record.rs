//! A plan's runs as records of results, and back.

use crate::figures::{SizeClass, by_class};
use crate::plan::{Contender, FabricPlan, Slot};
use crate::play::Ran;
use crate::trial::TrialOutcome;
use ccplane_results::{
    Contender as ContenderRecord, Datapath, FabricFlows, Header, Host, LinkRecord, Plan as PlanRecord,
    Results, Run, RunFigures, RunOutcome, SCHEMA_VERSION, Scenario,
};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The completion times of one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    pub slot: Slot,
    /// Completion times by [`SizeClass`], ascending, nanoseconds.
    pub completions_ns: [Vec<u64>; SizeClass::ALL.len()],
    /// Flows that had not ended when the run did.
    pub unfinished: usize,
    /// Packets that queues dropped.
    pub dropped: u64,
    pub notes: Vec<String>,
}

/// Returns the first line of a plan's results, which this host begins.
pub fn header(plan: &FabricPlan, host: Host) -> Header {
    let contender = |contender: &Contender| ContenderRecord {
        name: contender.name().to_owned(),
        algorithm: contender.name().to_owned(),
        datapath: datapath(plan, *contender),
        parameters: BTreeMap::new(),
        learning: false,
    };
    let scenarios = (0..plan.groups.len()).flat_map(|group| {
        plan.loads_of(group).iter().map(move |load_percent| scenario(plan, group, *load_percent))
    });
    Header {
        schema: SCHEMA_VERSION,
        plan: PlanRecord {
            name: plan.name.clone(),
            title: plan.title.clone(),
            about: plan.about.clone(),
            source: plan.source.clone(),
            digest: digest(plan),
            repeats: plan.repeats,
            seed: plan.seed,
            ..PlanRecord::default()
        },
        scenarios: scenarios.collect(),
        contenders: plan.contenders.iter().map(contender).collect(),
        host,
    }
}

/// The datapath that carries a contender's flows and decides about their packets.
fn datapath(plan: &FabricPlan, contender: Contender) -> Datapath {
    match contender {
        _ if !plan.is_live => Datapath::Sim,
        Contender::Fifo | Contender::KnownSizes => Datapath::Kernel,
        _ => Datapath::Ebpf,
    }
}

/// SHA-256 of everything that decides what one run does; neither the number of repeats nor texts do.
fn digest(plan: &FabricPlan) -> String {
    let mut decides = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        plan.kind,
        plan.fabric,
        (plan.late_agent_latency_us, plan.seed, plan.flows, plan.warm_up_flows),
        plan.groups,
        (&plan.loads_percent, &plan.recorded_loads_percent),
        plan.contenders,
    );
    if plan.is_live {
        decides.push_str(&format!(" {:?}", plan.live));
    }
    Sha256::digest(decides).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn scenario(plan: &FabricPlan, group: usize, load_percent: u32) -> Scenario {
    let of = &plan.groups[group];
    let parameters = [
        ("sizes", of.sizes.name().to_owned()),
        ("predictable_percent", of.predictable_percent.to_string()),
        ("uplinks", of.uplinks.name().to_owned()),
        ("load_percent", load_percent.to_string()),
    ];
    Scenario {
        name: scenario_name(plan, group, load_percent),
        parameters: parameters.map(|(key, value)| (key.to_owned(), value)).into(),
        link: LinkRecord { description: plan.setting(), mtu_bytes: MTU_BYTES, ..LinkRecord::default() },
        traffic: format!("{} at {load_percent} % of each host's link", of.name(plan.kind)),
    }
}

/// Largest IP packet of a fabric's links, bytes.
const MTU_BYTES: u64 = 1500;

fn scenario_name(plan: &FabricPlan, group: usize, load_percent: u32) -> String {
    format!("{}, {load_percent} %", plan.groups[group].name(plan.kind))
}

/// Returns the record of a run that began then (RFC 3339).
pub fn record(plan: &FabricPlan, ran: &Ran, started_at: String) -> Run {
    let Ran { slot, outcome, notes, took } = ran;
    let measured = RunFigures { fabric: Some(flows(outcome)), notes: notes.clone(), ..RunFigures::default() };
    Run {
        scenario: scenario_name(plan, slot.group, slot.load_percent),
        contender: slot.contender.name().to_owned(),
        repeat: slot.repeat,
        attempt: 1,
        seed: plan.seed.wrapping_add(slot.repeat.into()),
        started_at,
        wall_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        outcome: RunOutcome::Ok(Box::new(measured)),
    }
}

fn flows(outcome: &TrialOutcome) -> FabricFlows {
    let mut flows = FabricFlows { dropped_pkts: outcome.dropped, ..FabricFlows::default() };
    for (n, flow) in (0..).zip(&outcome.completions) {
        let so_far_ns = || outcome.duration_us.saturating_sub(flow.arrival.start_us).saturating_mul(1000);
        flows.bytes.push(flow.arrival.bytes);
        flows.fct_ns.push(flow.completion_ns.unwrap_or_else(so_far_ns));
        if flow.completion_ns.is_none() {
            flows.unfinished.push(n);
        }
    }
    flows
}

/// Returns the runs that results hold, in the order of the plan.
pub fn cells(plan: &FabricPlan, results: &Results) -> Vec<Cell> {
    let mut runs: BTreeMap<(&str, &str, u32), &RunFigures> = BTreeMap::new();
    for run in &results.runs {
        if let RunOutcome::Ok(measured) = &run.outcome {
            runs.insert((&run.scenario, &run.contender, run.repeat), measured);
        }
    }
    let cell = |slot: Slot| {
        let scenario = scenario_name(plan, slot.group, slot.load_percent);
        let measured = runs.get(&(scenario.as_str(), slot.contender.name(), slot.repeat))?;
        let flows = measured.fabric.as_ref()?;
        Some(Cell {
            slot,
            completions_ns: by_class(flows),
            unfinished: flows.unfinished.len(),
            dropped: flows.dropped_pkts,
            notes: measured.notes.clone(),
        })
    };
    plan.slots().into_iter().filter_map(cell).collect()
}

/// Returns the runs of a plan that results do not hold.
pub fn missing(plan: &FabricPlan, results: &Results) -> Vec<Slot> {
    let there: BTreeSet<Slot> = cells(plan, results).into_iter().map(|cell| cell.slot).collect();
    plan.slots().into_iter().filter(|slot| !there.contains(slot)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Kind, PLANS};
    use std::path::Path;
    use std::time::Duration;

    #[test]
    fn results_hold_what_ran_and_tell_what_is_missing() {
        let (name, text) = PLANS[1];
        let plan = FabricPlan::parse(Path::new(name), text, Some(1)).unwrap().quick();
        assert_eq!(plan.kind, Kind::Balancing);
        let header = header(&plan, Host::default());
        assert_eq!(header.scenarios.len(), plan.groups.len() * plan.loads_percent.len());
        let mut results = Results { header, runs: Vec::new() };
        let slots = plan.slots();
        assert_eq!(missing(&plan, &results), slots);
        let trial = crate::learning::training_trial(
            &plan.groups[0].sizes,
            0,
            ccplane_netsim::workload::Split::Test,
            1,
            12,
        );
        let mut outcome = trial.run(&[], ccplane_core::NATIVE).unwrap();
        outcome.completions[3].completion_ns = None;
        let unfinished = outcome.completions.iter().filter(|flow| flow.completion_ns.is_none()).count();
        let ran = Ran { slot: slots[7], outcome, notes: vec!["n".into()], took: Duration::from_secs(1) };
        results.runs.push(record(&plan, &ran, String::new()));
        let cells = cells(&plan, &results);
        assert_eq!((cells.len(), cells[0].slot, cells[0].unfinished), (1, slots[7], unfinished));
        assert_eq!(cells[0].completions_ns.iter().map(Vec::len).sum::<usize>(), 12);
        assert!(!missing(&plan, &results).contains(&slots[7]));
        assert_eq!(missing(&plan, &results).len(), slots.len() - 1);
        let more = FabricPlan { repeats: 9, title: "t".into(), ..plan.clone() };
        let other = FabricPlan { flows: 1 + plan.flows, ..plan.clone() };
        assert_eq!(digest(&more), digest(&plan));
        assert_ne!(digest(&other), digest(&plan));
        let live = plan.clone().as_live(None).unwrap();
        let slower = live.live.clone().map(|setting| crate::LiveSetting { delay_us: 77, ..setting });
        assert_ne!(digest(&FabricPlan { live: slower, ..live.clone() }), digest(&live));
        let kinds: Vec<Datapath> =
            crate::header(&live, Host::default()).contenders.iter().map(|c| c.datapath).collect();
        assert!(kinds.iter().all(|datapath| *datapath == Datapath::Ebpf), "{kinds:?}");
    }
}

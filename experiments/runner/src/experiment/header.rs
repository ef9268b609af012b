//! The first line of a results file, and the digest by which runs are known to belong to a plan.

use std::collections::BTreeMap;

use ccplane_results::{Change, Header, LinkRecord, Plan as PlanRecord, SCHEMA_VERSION, Scenario};
use sha2::{Digest, Sha256};

use crate::capacity;
use crate::host;
use crate::plan::{self, Medium, Plan, Tool, Traffic};

/// Largest IP packet of every link here, bytes.
const MTU_BYTES: u64 = 1500;
/// The header of a plan's results that start now by `command`.
#[must_use]
pub fn header(plan: &Plan, command: String) -> Header {
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
            duration_ms: plan.duration_ms,
            warmup_ms: plan.warmup_ms,
            sample_ms: plan.sample_ms,
            comparisons: plan.comparisons.clone(),
            paper: plan.paper.clone(),
        },
        scenarios: plan.scenarios.iter().map(|s| scenario(s, plan.duration_ms)).collect(),
        contenders: plan.contenders.clone(),
        host: host::here(command),
    }
}

/// SHA-256 of everything that decides what one run does: links with their traces, traffic, contenders, times and the seed.
/// The number of repeats is left out, so that more can be added; so are comparisons and texts.
fn digest(plan: &Plan) -> String {
    let times = (plan.duration_ms, plan.warmup_ms, plan.sample_ms, plan.seed);
    // Debug names every field, so a field that is added changes the digest, as it should.
    let decides = format!("{times:?} {:?} {:?}", plan.scenarios, plan.contenders);
    Sha256::digest(decides).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn scenario(scenario: &plan::Scenario, duration_ms: u64) -> Scenario {
    let link = &scenario.link;
    let base_rtt_us = (link.medium != Medium::Veth).then_some(2 * link.delay_us);
    Scenario {
        name: scenario.name.clone(),
        parameters: scenario.parameters.clone() as BTreeMap<_, _>,
        link: LinkRecord {
            description: link.to_string(),
            base_rtt_us,
            mtu_bytes: MTU_BYTES,
            capacity: capacity::of_link(link, duration_ms),
            changes: link.changes.iter().map(|change| changed(link, change)).collect(),
        },
        traffic: traffic(scenario),
    }
}

fn changed(link: &plan::PlanLink, change: &plan::Change) -> Change {
    Change {
        t_ms: change.at_ms,
        description: change.to_string(),
        base_rtt_us: 2 * link.at(change.at_ms).delay_us,
    }
}

/// Says in words what the contender's single flows have for themselves.
fn own_paths(own: &plan::OwnPaths) -> String {
    let ms = |us: &[u64]| us.iter().map(|us| plan::decimal(*us, 1000)).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    if !own.jitters_us.is_empty() {
        text.push_str(&format!(", jittered by {} ms", ms(&own.jitters_us)));
    }
    if !own.aggregated_acks_us.is_empty() {
        text.push_str(&format!(", acknowledged each {} ms", ms(&own.aggregated_acks_us)));
    }
    if let Some(every) = own.ack_every {
        text.push_str(&format!(", one acknowledgement for {every} segments"));
    }
    if own.conceals_losses {
        text.push_str(", to receivers that conceal losses");
    }
    text
}

fn traffic(scenario: &plan::Scenario) -> String {
    let seconds = |ms: u64| plan::decimal(ms, 1000);
    let flows = |n: u32| if n == 1 { "1 bulk flow".to_owned() } else { format!("{n} bulk flows") };
    let mut text = match &scenario.traffic {
        Traffic::Bulk { flows: n, stagger_ms, tool } => {
            let apart = match stagger_ms {
                0 => String::new(),
                ms => format!(", {} s apart", seconds(*ms)),
            };
            let tool = if *tool == Tool::Iperf3 { " (iperf3)" } else { "" };
            let later = match scenario.start_ms {
                0 => String::new(),
                ms => format!(" from {} s", seconds(ms)),
            };
            let further: Vec<String> =
                scenario.extra_delays_us.iter().map(|us| plan::decimal(*us, 1000)).collect();
            let further = match further.as_slice() {
                [] => String::new(),
                ms => format!(", {} ms further away", ms.join(", ")),
            };
            let own = own_paths(&scenario.own_paths);
            format!("{}{apart}{later}{further}{own}{tool}", flows(*n))
        }
        Traffic::ShortFlows { sizes, load_ppm } => {
            let load = plan::decimal((*load_ppm).into(), 10_000);
            format!("short flows, sizes {}, Poisson arrivals, {load} % load", sizes.name())
        }
        Traffic::Incast { senders, bytes, every_us } => {
            let every = plan::decimal(*every_us, 1000);
            format!("{senders} senders of {bytes} bytes at once, every {every} ms")
        }
    };
    if scenario.ecn {
        text.push_str(", ECN-capable");
    }
    for b in &scenario.background {
        let (from, to) = (seconds(b.start_ms), seconds(b.stop_ms));
        text.push_str(&format!("; beside {} of {} from {from} to {to} s", flows(b.flows), b.algorithm));
    }
    for s in &scenario.short {
        let (from, to) = (seconds(s.start_ms), seconds(s.stop_ms));
        let load = plan::decimal(s.load_ppm.into(), 10_000);
        let (algorithm, sizes) = (&s.algorithm, s.sizes.name());
        text.push_str(&format!(
            "; beside short flows of {algorithm}, sizes {sizes}, {load} % load, from {from} to {to} s"
        ));
    }
    for d in &scenario.datagrams {
        let (from, to) = (seconds(d.start_ms), seconds(d.stop_ms));
        let rate = plan::decimal(d.bit_per_s, 1_000_000);
        let periods = d.periods.map_or_else(String::new, |p| {
            let ms = |us| plan::decimal(us, 1000);
            format!(", about {} ms on and {} ms off,", ms(p.on_us), ms(p.off_us))
        });
        text.push_str(&format!("; beside {rate} Mb/s of UDP{periods} from {from} to {to} s"));
    }
    text
}

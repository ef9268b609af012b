//! Checks the traffic of contenders.

use super::{Checked, refuse};
use crate::plan::MAX_ARRIVALS;
use crate::plan::model::{OwnPaths, PlanLink, Tool, Traffic};
use crate::plan::source::{KindName, Millis, ToolName, TrafficSource};
use ccplane_netsim::workload::FlowSizes;

/// Checks the traffic over one link.
pub(super) fn traffic(source: &TrafficSource, link: &PlanLink, duration_ms: u64) -> Checked<Traffic> {
    let kind = source.kind.unwrap_or(KindName::Bulk);
    let set = [
        ("flows", source.flows.is_some(), &[KindName::Bulk][..]),
        ("start_s", source.start_s.is_some(), &[KindName::Bulk]),
        ("stagger_s", source.stagger_s.is_some(), &[KindName::Bulk]),
        ("extra_delay_ms", !source.extra_delay_ms.is_empty(), &[KindName::Bulk]),
        ("extra_jitter_ms", !source.extra_jitter_ms.is_empty(), &[KindName::Bulk]),
        ("aggregate_acks_ms", !source.aggregate_acks_ms.is_empty(), &[KindName::Bulk]),
        ("ack_every", source.ack_every.is_some(), &[KindName::Bulk]),
        ("conceal_losses", source.conceal_losses.is_some(), &[KindName::Bulk]),
        ("tool", source.tool.is_some(), &[KindName::Bulk]),
        ("distribution", source.distribution.is_some(), &[KindName::ShortFlows]),
        ("load", source.load.is_some(), &[KindName::ShortFlows]),
        ("senders", source.senders.is_some(), &[KindName::Incast]),
        ("bytes", source.bytes.is_some(), &[KindName::ShortFlows, KindName::Incast]),
        ("every_ms", source.every_ms.is_some(), &[KindName::Incast]),
        ("ecn", source.ecn.is_some(), &[KindName::Bulk, KindName::ShortFlows, KindName::Incast]),
    ];
    if let Some((key, ..)) = set.iter().find(|(_, set, kinds)| *set && !kinds.contains(&kind)) {
        let keys: Vec<&str> = set.iter().filter(|(.., k)| k.contains(&kind)).map(|(key, ..)| *key).collect();
        return refuse(
            format!("traffic.{key}"),
            format_args!("not of this kind of traffic, which takes {}", keys.join(", ")),
        );
    }
    match kind {
        KindName::Bulk => bulk(source),
        KindName::ShortFlows => short_flows(source, link, duration_ms),
        KindName::Incast => {
            let (Some(senders), Some(bytes), Some(every)) = (source.senders, source.bytes, source.every_ms)
            else {
                return refuse("traffic", "incast needs senders, bytes (of each) and every_ms");
            };
            let (senders, every_us) = (senders.small(), every.get());
            let flows = u64::from(senders) * (duration_ms * 1000).div_ceil(every_us);
            if flows > MAX_ARRIVALS {
                let message = format!("{flows} flows in one run, at most {MAX_ARRIVALS} are allowed");
                return refuse("traffic.every_ms", message);
            }
            Ok(Traffic::Incast { senders, bytes: bytes.get(), every_us })
        }
    }
}

fn bulk(source: &TrafficSource) -> Checked<Traffic> {
    let tool = match source.tool.unwrap_or(ToolName::Native) {
        ToolName::Native => Tool::Native,
        ToolName::Iperf3 => Tool::Iperf3,
    };
    let flows = source.flows.map_or(1, |f| f.small());
    let stagger_ms = source.stagger_s.map_or(0, |s| s.get());
    if tool == Tool::Iperf3 && stagger_ms > 0 {
        return refuse("traffic.stagger_s", "iperf3 starts its flows together; tool = \"native\" can");
    }
    if tool == Tool::Iperf3 && source.start_s.is_some() {
        return refuse("traffic.start_s", "iperf3 starts its flows at once; tool = \"native\" can wait");
    }
    if tool == Tool::Iperf3 && flows > MAX_IPERF3_FLOWS {
        return refuse("traffic.flows", format_args!("iperf3 takes at most {MAX_IPERF3_FLOWS} flows"));
    }
    Ok(Traffic::Bulk { flows, stagger_ms, tool })
}

/// Jitters of single flows in one plan: each is a link of the simulator's.
const MAX_JITTERS: usize = 32;

/// Checks ways and receivers of the contender's single bulk flows.
pub(super) fn own_paths(source: &TrafficSource) -> Checked<OwnPaths> {
    if source.extra_jitter_ms.len() > MAX_JITTERS {
        return refuse("traffic.extra_jitter_ms", format_args!("at most {MAX_JITTERS} are allowed"));
    }
    let us = |list: &[Millis]| list.iter().map(|ms| ms.get()).collect();
    Ok(OwnPaths {
        jitters_us: us(&source.extra_jitter_ms),
        aggregated_acks_us: us(&source.aggregate_acks_ms),
        ack_every: source.ack_every.and_then(|every| u8::try_from(every.get()).ok()),
        conceals_losses: source.conceal_losses.unwrap_or(false),
    })
}

/// The most flows that `iperf3 --parallel` takes.
const MAX_IPERF3_FLOWS: u32 = 128;

/// Share of the link's rate that short flows ask for unless the plan says, millionths.
pub(super) const DEFAULT_LOAD_PPM: u32 = 500_000;

fn short_flows(source: &TrafficSource, link: &PlanLink, duration_ms: u64) -> Checked<Traffic> {
    let sizes = match (source.distribution.as_deref(), source.bytes) {
        (None, Some(bytes)) => FlowSizes::fixed(bytes.get()),
        (Some(_), Some(_)) => {
            return refuse("traffic.bytes", "`distribution` is set, too; only one can be");
        }
        (name, None) => sizes("traffic.distribution", name)?,
    };
    if link.medium.rate_bit_per_s().is_none() {
        let message = "a load is a share of the link's rate: the link needs rate_mbit or trace";
        return refuse("traffic.kind", message);
    }
    let load_ppm = source.load.map_or(DEFAULT_LOAD_PPM, |l| l.small());
    arrivals("traffic.load", &sizes, load_ppm, link, duration_ms)?;
    Ok(Traffic::ShortFlows { sizes, load_ppm })
}

/// Flow sizes by their distribution's name; web search's without one.
pub(super) fn sizes(field: &str, name: Option<&str>) -> Checked<FlowSizes> {
    let name = name.unwrap_or("web-search");
    let message = || format!("no distribution is called `{name}`; there are web-search, data-mining");
    FlowSizes::named(name).map_or_else(|| refuse(field, message()), Ok)
}

/// Checks the number of short flows.
pub(super) fn arrivals(
    field: &str,
    sizes: &FlowSizes,
    load_ppm: u32,
    link: &PlanLink,
    duration_ms: u64,
) -> Checked<()> {
    let Some(rate_bit_per_s) = link.medium.rate_bit_per_s() else {
        let message = "a load is a share of the link's rate: the link needs rate_mbit or trace";
        return refuse(field, message);
    };
    let bits = u128::from(rate_bit_per_s) * u128::from(duration_ms) / 1000 * u128::from(load_ppm) / 1_000_000;
    let flows = bits / 8 / u128::from(sizes.mean_bytes());
    if flows > u128::from(MAX_ARRIVALS) {
        let message = format!("about {flows} flows in one run, at most {MAX_ARRIVALS} are allowed");
        return refuse(field, message);
    }
    Ok(())
}

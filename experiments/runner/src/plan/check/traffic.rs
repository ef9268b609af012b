//! What contenders send.

use super::{Checked, refuse};
use crate::plan::MAX_ARRIVALS;
use crate::plan::model::{Link, Tool, Traffic};
use crate::plan::source::{KindName, ToolName, TrafficSource};
use ccplane_netsim::workload::FlowSizes;

/// What is sent over this link.
pub(super) fn traffic(source: &TrafficSource, link: &Link, duration_ms: u64) -> Checked<Traffic> {
    let kind = source.kind.unwrap_or(KindName::Bulk);
    let set = [
        ("flows", source.flows.is_some(), &[KindName::Bulk][..]),
        ("stagger_s", source.stagger_s.is_some(), &[KindName::Bulk]),
        ("tool", source.tool.is_some(), &[KindName::Bulk]),
        ("distribution", source.distribution.is_some(), &[KindName::ShortFlows]),
        ("load", source.load.is_some(), &[KindName::ShortFlows]),
        ("senders", source.senders.is_some(), &[KindName::Incast]),
        ("bytes", source.bytes.is_some(), &[KindName::ShortFlows, KindName::Incast]),
        ("every_ms", source.every_ms.is_some(), &[KindName::Incast]),
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
    if tool == Tool::Iperf3 && flows > MAX_IPERF3_FLOWS {
        return refuse("traffic.flows", format_args!("iperf3 takes at most {MAX_IPERF3_FLOWS} flows"));
    }
    Ok(Traffic::Bulk { flows, stagger_ms, tool })
}

/// `iperf3 --parallel` takes so many.
const MAX_IPERF3_FLOWS: u32 = 128;

fn short_flows(source: &TrafficSource, link: &Link, duration_ms: u64) -> Checked<Traffic> {
    let sizes = match (source.distribution.as_deref(), source.bytes) {
        (None, Some(bytes)) => FlowSizes::fixed(bytes.get()),
        (Some(_), Some(_)) => {
            return refuse("traffic.bytes", "`distribution` is set, too; only one can be");
        }
        (name, None) => {
            let name = name.unwrap_or("web-search");
            match FlowSizes::named(name) {
                Some(sizes) => sizes,
                None => {
                    return refuse(
                        "traffic.distribution",
                        format_args!("no distribution is called `{name}`; there are web-search, data-mining"),
                    );
                }
            }
        }
    };
    let Some(rate_bit_per_s) = link.medium.rate_bit_per_s() else {
        return refuse(
            "traffic.kind",
            "a load is a share of the link's rate: the link needs rate_mbit or trace",
        );
    };
    let load_ppm = source.load.map_or(500_000, |l| l.small());
    let bits = u128::from(rate_bit_per_s) * u128::from(duration_ms) / 1000 * u128::from(load_ppm) / 1_000_000;
    let flows = bits / 8 / u128::from(sizes.mean_bytes());
    if flows > u128::from(MAX_ARRIVALS) {
        let message = format!("about {flows} flows in one run, at most {MAX_ARRIVALS} are allowed");
        return refuse("traffic.load", message);
    }
    Ok(Traffic::ShortFlows { sizes, load_ppm })
}

//! A link, its queue and what else happens to packets.

use super::{Checked, refuse};
use crate::plan::Known;
use crate::plan::model::{
    BurstLoss, Discipline, Impairments, MAX_BURST_SHARE_PPM, Medium, PlanLink, Policer, Queue,
};
use crate::plan::source::{LinkSource, MediumName, QueueName};

/// Bytes of a full packet, by which a queue's length in bandwidth-delay products is counted.
const PACKET_BYTES: u64 = 1500;
/// A queue in bandwidth-delay products is never shorter than this.
const MIN_QUEUE_PACKETS: u64 = 4;
const PPM: u64 = 1_000_000;

/// The shipped trace that [`Known::cellular`] stands in for.
const CELLULAR: &str = "cellular.up";

/// Link `n`, without its changes.
pub(super) fn link(n: usize, source: &LinkSource, known: &Known<'_>) -> Checked<PlanLink> {
    let field = |key: &str| format!("link[{n}].{key}");
    let trace = |key, name: &str| {
        let file = known.cellular.filter(|_| name == CELLULAR).unwrap_or(name);
        match (known.traces)(file) {
            Ok(trace) => {
                Ok(Medium::Trace { name: file.rsplit('/').next().unwrap_or(file).to_owned(), trace })
            }
            Err(why) => refuse(field(key), why),
        }
    };
    let medium = match (&source.rate_mbit, &source.trace, source.medium) {
        (Some(rate), None, None) => Medium::Rate(rate.get()),
        (None, Some(name), None) => trace("trace", name)?,
        (None, None, Some(MediumName::Veth)) => Medium::Veth,
        _ => {
            return refuse(
                format!("link[{n}]"),
                "one of rate_mbit = 24, trace = \"cellular.up\" and medium = \"veth\" is needed",
            );
        }
    };
    if medium == Medium::Veth {
        let set = [
            ("delay_ms", source.delay_ms.is_some()),
            ("queue", source.queue.is_some()),
            ("queue_packets", source.queue_packets.is_some()),
            ("queue_bytes", source.queue_bytes.is_some()),
            ("queue_bdp", source.queue_bdp.is_some()),
            ("queue_ecn", source.queue_ecn.is_some()),
            ("loss", source.loss.is_some()),
            ("jitter_ms", source.jitter_ms.is_some()),
            ("reorder", source.reorder.is_some()),
            ("duplicate", source.duplicate.is_some()),
            ("policer_mbit", source.policer_mbit.is_some()),
            ("return_trace", source.return_trace.is_some()),
            ("return_rate_mbit", source.return_rate_mbit.is_some()),
            ("return_queue", source.return_queue.is_some()),
            ("return_queue_packets", source.return_queue_packets.is_some()),
            ("return_loss", source.return_loss.is_some()),
            ("burst_loss", source.burst_loss.is_some()),
            ("change", !source.change.is_empty()),
        ];
        return match set.iter().find(|(_, set)| *set) {
            Some((key, _)) => {
                refuse(field(key), "a veth pair is not emulated; use rate_mbit or trace instead of medium")
            }
            None => Ok(veth()),
        };
    }
    let way_back = match (&source.return_rate_mbit, &source.return_trace) {
        (None, None) => Medium::Unlimited,
        (Some(rate), None) => Medium::Rate(rate.get()),
        (None, Some(name)) => trace("return_trace", name)?,
        (Some(_), Some(_)) => {
            return refuse(field("return_trace"), "return_rate_mbit is set, too; only one can be");
        }
    };
    let Some(delay) = source.delay_ms else {
        return refuse(format!("link[{n}]"), "delay_ms, the delay of each direction, is needed");
    };
    let queue = queue(n, source, medium.rate_bit_per_s(), delay.get())?;
    let loss_ppm = source.loss.map_or(0, |share| share.small());
    let impairments = impairments(n, source)?;
    Ok(PlanLink {
        return_queue: return_queue(n, source, &way_back)?,
        return_loss_ppm: source.return_loss.map_or(0, |share| share.small()),
        medium,
        way_back,
        delay_us: delay.get(),
        queue,
        loss_ppm,
        impairments,
        changes: Vec::new(),
    })
}

/// Returns the queue of the way back, which is unlimited unless the plan sets a length.
fn return_queue(n: usize, source: &LinkSource, way_back: &Medium) -> Checked<Queue> {
    let field = |key: &str| format!("link[{n}].{key}");
    let Some(packets) = source.return_queue_packets else {
        return match source.return_queue {
            None | Some(QueueName::Infinite) => Ok(Queue::default()),
            Some(_) => refuse(field("return_queue"), "return_queue_packets is needed, too"),
        };
    };
    if *way_back == Medium::Unlimited {
        let message = "nothing waits on a way back without return_rate_mbit or return_trace";
        return refuse(field("return_queue_packets"), message);
    }
    let discipline = match source.return_queue {
        None | Some(QueueName::Droptail) => Discipline::DropTail,
        Some(QueueName::Drophead) => Discipline::DropHead,
        Some(_) => return refuse(field("return_queue"), "with a length, droptail or drophead"),
    };
    Ok(Queue { discipline, packets: Some(packets.small()), ..Queue::default() })
}

fn veth() -> PlanLink {
    PlanLink {
        medium: Medium::Veth,
        way_back: Medium::Veth,
        return_queue: Queue::default(),
        return_loss_ppm: 0,
        delay_us: 0,
        queue: Queue::default(),
        loss_ppm: 0,
        impairments: Impairments::default(),
        changes: Vec::new(),
    }
}

/// Mean length of a burst of losses unless the plan says, packets.
const DEFAULT_BURST_PACKETS: u32 = 4;
/// The time for which packets are held back unless the plan says.
const DEFAULT_REORDER_US: u64 = 5_000;
/// A policer's bucket unless the plan says, in time of its rate, milliseconds.
const DEFAULT_POLICER_MS: u64 = 10;
const MIN_POLICER_BYTES: u64 = 15_000;

fn impairments(n: usize, source: &LinkSource) -> Checked<Impairments> {
    let field = |key: &str| format!("link[{n}].{key}");
    if source.reorder_ms.is_some() && source.reorder.is_none() {
        return refuse(field("reorder_ms"), "`reorder`, the share of packets held back, is needed");
    }
    if source.policer_bytes.is_some() && source.policer_mbit.is_none() {
        return refuse(field("policer_bytes"), "`policer_mbit`, the policer's rate, is needed");
    }
    let policer = source.policer_mbit.map(|rate| {
        let default = (rate.get() / 8000 * DEFAULT_POLICER_MS).max(MIN_POLICER_BYTES);
        Policer { bit_per_s: rate.get(), burst_bytes: source.policer_bytes.map_or(default, |b| b.get()) }
    });
    if source.burst_packets.is_some() && source.burst_loss.is_none() {
        return refuse(
            field("burst_packets"),
            "`burst_loss`, the share of packets lost in bursts, is needed",
        );
    }
    let burst_loss = source.burst_loss.map(|share| BurstLoss {
        share_ppm: share.small(),
        packets: source.burst_packets.map_or(DEFAULT_BURST_PACKETS, |p| p.small()),
    });
    if burst_loss.is_some_and(|burst| burst.share_ppm > MAX_BURST_SHARE_PPM) {
        return refuse(field("burst_loss"), "at most half of the packets can be lost in bursts");
    }
    Ok(Impairments {
        burst_loss: burst_loss.filter(|burst| burst.share_ppm > 0),
        jitter_us: source.jitter_ms.map_or(0, |j| j.get()),
        reorder_ppm: source.reorder.map_or(0, |r| r.small()),
        reorder_us: source.reorder_ms.map_or(DEFAULT_REORDER_US, |r| r.get()),
        duplicate_ppm: source.duplicate.map_or(0, |d| d.small()),
        policer,
    })
}

fn discipline(n: usize, source: &LinkSource, kind: QueueName) -> Checked<Discipline> {
    let set = [
        ("codel_target_ms", source.codel_target_ms.is_some(), QueueName::Codel),
        ("codel_interval_ms", source.codel_interval_ms.is_some(), QueueName::Codel),
        ("pie_target_ms", source.pie_target_ms.is_some(), QueueName::Pie),
        ("pie_burst_ms", source.pie_burst_ms.is_some(), QueueName::Pie),
    ];
    if let Some((key, ..)) = set.iter().find(|(_, set, of)| *set && *of != kind) {
        let of = key.split('_').next().unwrap_or_default();
        return refuse(format!("link[{n}].{key}"), format_args!("only with queue = \"{of}\""));
    }
    // What RFC 8289 and RFC 8033 suggest.
    Ok(match kind {
        QueueName::Infinite | QueueName::Droptail => Discipline::DropTail,
        QueueName::Drophead => Discipline::DropHead,
        QueueName::Codel => Discipline::Codel {
            target_us: source.codel_target_ms.map_or(5_000, |t| t.get()),
            interval_us: source.codel_interval_ms.map_or(100_000, |t| t.get()),
        },
        QueueName::Pie => Discipline::Pie {
            target_us: source.pie_target_ms.map_or(15_000, |t| t.get()),
            max_burst_us: source.pie_burst_ms.map_or(150_000, |t| t.get()),
        },
    })
}

fn queue(n: usize, source: &LinkSource, rate_bit_per_s: Option<u64>, delay_us: u64) -> Checked<Queue> {
    let field = |key: &str| format!("link[{n}].{key}");
    let kind = source.queue.unwrap_or(QueueName::Droptail);
    let discipline = discipline(n, source, kind)?;
    if source.queue_ecn.is_some() && !matches!(kind, QueueName::Codel | QueueName::Pie) {
        return refuse(field("queue_ecn"), "only with queue = \"codel\" or \"pie\"");
    }
    let marks = source.queue_ecn.unwrap_or(false);
    let limits = [
        ("queue_packets", source.queue_packets.is_some()),
        ("queue_bytes", source.queue_bytes.is_some()),
        ("queue_bdp", source.queue_bdp.is_some()),
    ];
    if kind == QueueName::Infinite {
        return match limits.iter().find(|(_, set)| *set) {
            Some((key, _)) => refuse(field(key), "an infinite queue has no limit"),
            None => Ok(Queue::default()),
        };
    }
    if source.queue_bdp.is_some() && (source.queue_packets.is_some() || source.queue_bytes.is_some()) {
        return refuse(field("queue_bdp"), "queue_packets or queue_bytes is set, too; only one can be");
    }
    let bytes = source.queue_bytes.map(|b| b.get());
    if let Some(packets) = source.queue_packets {
        return Ok(Queue { discipline, packets: Some(packets.small()), bytes, marks });
    }
    if bytes.is_some() {
        return Ok(Queue { discipline, packets: None, bytes, marks });
    }
    let bdp_ppm = source.queue_bdp.map_or(PPM, |b| b.get());
    let rate = rate_bit_per_s.unwrap_or(0);
    let bdp_bytes = u128::from(rate) * u128::from(2 * delay_us) / 8 / u128::from(PPM);
    let packets = bdp_bytes * u128::from(bdp_ppm) / u128::from(PPM) / u128::from(PACKET_BYTES);
    let packets = u32::try_from(packets.max(MIN_QUEUE_PACKETS.into())).unwrap_or(u32::MAX);
    match packets {
        packets if packets <= ccplane_emulator::MAX_BUFFER_PACKETS => {
            Ok(Queue { discipline, packets: Some(packets), bytes: None, marks })
        }
        _ => refuse(
            field(if source.queue_bdp.is_some() { "queue_bdp" } else { "rate_mbit" }),
            format_args!(
                "a queue of {packets} packets, at most {} are allowed",
                ccplane_emulator::MAX_BUFFER_PACKETS
            ),
        ),
    }
}

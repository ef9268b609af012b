//! Checks the traffic beside every contender: flows of other algorithms, and datagrams.

use super::contender::algorithm;
use super::traffic::{DEFAULT_LOAD_PPM, arrivals, sizes};
use super::{Checked, refuse};
use crate::plan::Known;
use crate::plan::model::{Background, Datagrams, Periods, PlanLink, ShortBackground};
use crate::plan::source::{BackgroundKind, BackgroundSource, LinkSource};
use ccplane_results::Datapath;

/// The traffic beside contenders on one link.
#[derive(Default)]
pub(super) struct Beside {
    pub(super) flows: Vec<Background>,
    pub(super) datagrams: Vec<Datagrams>,
    pub(super) short: Vec<ShortBackground>,
}

/// All of `[[background]]` that crosses the link of this name.
pub(super) fn all(
    sources: &[BackgroundSource],
    (name, link): (Option<&str>, &PlanLink),
    duration_ms: u64,
    known: &Known<'_>,
) -> Checked<Beside> {
    let mut beside = Beside::default();
    let crosses = |links: &Vec<String>| links.iter().any(|l| Some(l.as_str()) == name);
    for (n, source) in sources.iter().enumerate().filter(|(_, s)| s.links.as_ref().is_none_or(crosses)) {
        let field = format!("background[{n}]");
        let times = times(&field, source, duration_ms)?;
        match source.kind.unwrap_or(BackgroundKind::Bulk) {
            BackgroundKind::Bulk => beside.flows.push(bulk(&field, source, times, known)?),
            BackgroundKind::Udp => beside.datagrams.push(udp(&field, source, times)?),
            BackgroundKind::ShortFlows => beside.short.push(short(&field, source, link, times, known)?),
        }
    }
    Ok(beside)
}

/// Checks that each link of the background exists.
pub(super) fn named(sources: &[BackgroundSource], links: &[LinkSource]) -> Checked<()> {
    let names: Vec<&str> = links.iter().filter_map(|link| link.name.as_deref()).collect();
    for (n, source) in sources.iter().enumerate() {
        for (l, name) in source.links.iter().flatten().enumerate() {
            if !names.contains(&name.as_str()) {
                let field = format!("background[{n}].links[{l}]");
                return refuse(
                    field,
                    format_args!("no link is called `{name}`; there are {}", names.join("; ")),
                );
            }
        }
    }
    Ok(())
}

/// Start and stop, milliseconds.
fn times(field: &str, source: &BackgroundSource, duration_ms: u64) -> Checked<(u64, u64)> {
    let start_ms = source.start_s.map_or(0, |s| s.get());
    let stop_ms = source.stop_s.map_or(duration_ms, |s| s.get());
    if start_ms >= stop_ms || stop_ms > duration_ms {
        let key = if source.stop_s.is_some() { "stop_s" } else { "start_s" };
        return refuse(format!("{field}.{key}"), "start_s, stop_s and duration_s must follow each other");
    }
    Ok((start_ms, stop_ms))
}

fn bulk(
    field: &str,
    source: &BackgroundSource,
    (start_ms, stop_ms): (u64, u64),
    known: &Known<'_>,
) -> Checked<Background> {
    unset(field, &of_datagrams(source), "only with kind = \"udp\"")?;
    of_short_flows(field, source)?;
    let Some(name) = &source.algorithm else {
        return refuse(field, "algorithm = \"cubic\", or kind = \"udp\", is needed");
    };
    let datapath = source.datapath.unwrap_or(Datapath::Kernel);
    if !matches!(datapath, Datapath::Kernel | Datapath::Ebpf) {
        let message = "kernel or ebpf; beside simulated contenders it is simulated anyway";
        return refuse(format!("{field}.datapath"), message);
    }
    algorithm(field, name, datapath, &source.parameters, known)?;
    Ok(Background {
        algorithm: name.clone(),
        datapath,
        parameters: source.parameters.clone(),
        flows: source.flows.map_or(1, |f| f.small()),
        start_ms,
        stop_ms,
    })
}

fn of_short_flows(field: &str, source: &BackgroundSource) -> Checked<()> {
    let set = [("distribution", source.distribution.is_some()), ("load", source.load.is_some())];
    unset(field, &set, "only with kind = \"short-flows\"")
}

/// The keys of datagrams alone, and whether they are set.
fn of_datagrams(source: &BackgroundSource) -> [(&'static str, bool); 3] {
    [
        ("rate_mbit", source.rate_mbit.is_some()),
        ("on_ms", source.on_ms.is_some()),
        ("off_ms", source.off_ms.is_some()),
    ]
}

/// Refuses the first of these keys that is set.
fn unset(field: &str, keys: &[(&str, bool)], message: &str) -> Checked<()> {
    match keys.iter().find(|(_, is_set)| *is_set) {
        Some((key, _)) => refuse(format!("{field}.{key}"), message),
        None => Ok(()),
    }
}

fn short(
    field: &str,
    source: &BackgroundSource,
    link: &PlanLink,
    (start_ms, stop_ms): (u64, u64),
    known: &Known<'_>,
) -> Checked<ShortBackground> {
    let message = "not of short flows, which take algorithm, load, distribution, start_s, stop_s";
    unset(field, &of_datagrams(source), message)?;
    let of_bulk = [("flows", source.flows.is_some()), ("datapath", source.datapath.is_some())];
    unset(field, &of_bulk, message)?;
    let Some(name) = &source.algorithm else {
        return refuse(field, "algorithm = \"cubic\" is needed");
    };
    algorithm(field, name, Datapath::Sim, &source.parameters, known)?;
    let sizes = sizes(&format!("{field}.distribution"), source.distribution.as_deref())?;
    let load_ppm = source.load.map_or(DEFAULT_LOAD_PPM, |l| l.small());
    arrivals(&format!("{field}.load"), &sizes, load_ppm, link, stop_ms - start_ms)?;
    Ok(ShortBackground {
        algorithm: name.clone(),
        parameters: source.parameters.clone(),
        sizes,
        load_ppm,
        start_ms,
        stop_ms,
    })
}

fn udp(field: &str, source: &BackgroundSource, (start_ms, stop_ms): (u64, u64)) -> Checked<Datagrams> {
    let set = [
        ("algorithm", source.algorithm.is_some()),
        ("datapath", source.datapath.is_some()),
        ("parameters", !source.parameters.is_empty()),
        ("flows", source.flows.is_some()),
    ];
    unset(field, &set, "not of datagrams, which take rate_mbit, on_ms, off_ms, start_s, stop_s")?;
    of_short_flows(field, source)?;
    let Some(rate) = source.rate_mbit else {
        return refuse(field, "rate_mbit, the datagrams' rate, is needed");
    };
    let periods = match (source.on_ms, source.off_ms) {
        (None, None) => None,
        (Some(on), Some(off)) => Some(Periods { on_us: on.get(), off_us: off.get() }),
        (Some(_), None) => return refuse(format!("{field}.on_ms"), "off_ms is needed, too"),
        (None, Some(_)) => return refuse(format!("{field}.off_ms"), "on_ms is needed, too"),
    };
    Ok(Datagrams { bit_per_s: rate.get(), periods, start_ms, stop_ms })
}

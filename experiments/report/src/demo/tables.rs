//! Key figures and tables.

use maud::{Markup, html};

use super::model::{Datapath, Flow, Report};
use super::style::Group;
use super::window::{Summary, Window, summary};
use crate::draw::Style;
use crate::format;

/// For each algorithm that ran both ways, how ccplane's flow compares with the kernel's own.
pub fn key_figures(report: &Report, groups: &[Group<'_>]) -> Markup {
    let pairs: Vec<(&Flow, &Flow)> = groups
        .iter()
        .filter_map(|g| {
            let native = flow_of(g, Datapath::KernelNative)?;
            let ours = [Datapath::CcplaneEbpf, Datapath::CcplaneQuic, Datapath::Sim];
            let ours = ours.into_iter().find_map(|datapath| flow_of(g, datapath))?;
            Some((ours, native))
        })
        .collect();
    html! {
        @if !pairs.is_empty() {
            div.cards {
                @for (ours, native) in pairs { (card(report, ours, native)) }
            }
        }
    }
}

fn card(report: &Report, ours: &Flow, native: &Flow) -> Markup {
    let a = summary(ours, &report.link.capacity, Window::ALL);
    let b = summary(native, &report.link.capacity, Window::ALL);
    html! {
        div.card {
            h3 { (format::capitalised(&ours.algorithm)) ": " (ours.datapath.label()) " against " (native.datapath.label()) }
            dl {
                div {
                    dt { "throughput" }
                    dd { (format::ratio(divide(a.throughput_bps, b.throughput_bps))) }
                    dd.detail { (format::mbps(a.throughput_bps)) " against " (format::mbps(b.throughput_bps)) " Mb/s" }
                }
                div {
                    dt { "95th percentile RTT" }
                    dd { (format::ratio(divide(a.rtt_p95_us, b.rtt_p95_us))) }
                    dd.detail { (format::ms(a.rtt_p95_us)) " against " (format::ms(b.rtt_p95_us)) " ms" }
                }
            }
        }
    }
}

/// All flows over the whole run.
pub fn whole_run(report: &Report, groups: &[Group<'_>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Flows over the whole run" {
            table {
                thead {
                    tr {
                        (flow_heads())
                        th scope="col" { "Retransmits" small { "packets" } }
                        th scope="col" { "Lost" small { "on the link" } }
                        th scope="col" { "Reports" small { "to agent" } }
                        th scope="col" { "Program" small { "switches" } }
                        th scope="col" { "Faults" small { "arithmetic" } }
                    }
                }
                @for group in groups {
                    tbody {
                        @for (_, flow, style) in &group.flows {
                            @let s = summary(flow, &report.link.capacity, Window::ALL);
                            tr {
                                (flow_cells(group, flow, *style, s, Window::ALL, report))
                                td { (format::count(flow.totals.retransmitted_pkts)) }
                                td { (format::count(flow.totals.lost_pkts)) }
                                @for n in [flow.totals.reports, flow.totals.program_switches, flow.totals.faults] {
                                    td { (n.map_or_else(|| format::NONE.into(), format::count)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// All flows, phase by phase.
pub fn by_phase(report: &Report, groups: &[Group<'_>]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Flows by phase" {
            table {
                thead {
                    tr {
                        (flow_heads())
                        th scope="col" { "Retransmits" small { "packets" } }
                        th scope="col" { "Lost" small { "on the link" } }
                    }
                }
                @for phase in &report.phases {
                    @let window = Window { t0_ms: phase.t0_ms, t1_ms: phase.t1_ms };
                    tbody {
                        tr { th.span colspan="8" scope="rowgroup" { (format::capitalised(&phase.label)) } }
                        @for group in groups {
                            @for (_, flow, style) in &group.flows {
                                @let s = summary(flow, &report.link.capacity, window);
                                tr {
                                    (flow_cells(group, flow, *style, s, window, report))
                                    td { (format::count(s.retransmitted_pkts)) }
                                    td { (format::count(s.lost_pkts)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn flow_heads() -> Markup {
    html! {
        th scope="col" { "Flow" }
        th scope="col" { "Throughput" small { "Mb/s" } }
        th scope="col" { "vs kernel" small { "ratio" } }
        th scope="col" { "Utilisation" small { "of capacity" } }
        th scope="col" { "Mean RTT" small { "ms" } }
        th scope="col" { "p95 RTT" small { "ms" } }
    }
}

fn flow_cells(
    group: &Group<'_>,
    flow: &Flow,
    style: Style,
    s: Summary,
    window: Window,
    report: &Report,
) -> Markup {
    let baseline = flow_of(group, Datapath::KernelNative)
        .filter(|_| flow.datapath != Datapath::KernelNative)
        .and_then(|native| summary(native, &report.link.capacity, window).throughput_bps);
    let width = s.utilisation.filter(|u| u.is_finite()).unwrap_or(0.0).clamp(0.0, 1.0) * 100.0;
    html! {
        th scope="row" {
            i.swatch style=(format!("background:{}", style.css())) {}
            (format::capitalised(group.algorithm)) " " span.unit { (flow.datapath.label()) }
        }
        td { (format::mbps(s.throughput_bps)) }
        td { (format::ratio(divide(s.throughput_bps, baseline))) }
        td.bar { span { (format::percent(s.utilisation)) } i { b style=(format!("width:{width:.1}%;background:{}", style.css())) {} } }
        td { (format::ms(s.rtt_mean_us)) }
        td { (format::ms(s.rtt_p95_us)) }
    }
}

fn flow_of<'a>(group: &Group<'a>, datapath: Datapath) -> Option<&'a Flow> {
    group.flows.iter().map(|(_, flow, _)| *flow).find(|f| f.datapath == datapath)
}

fn divide(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? / b.filter(|b| *b > 0.0)?)
}

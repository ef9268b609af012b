//! The part of the page on a policy that learned beside its flow.

use maud::{Markup, html};

use super::model::{Datapath, Decision, Effect, Flow, Learned};
use super::time::{METRICS, line, panel, read};
use super::window::{Window, summary};
use crate::draw::{Entry, Figure, Mark, Marker, Panel, Readout, Shape, Span, Style, Weight, html as on_page};
use crate::format;

/// How the flow of an algorithm looks, whichever others could not run: ours stand out as lines, the kernel's own are broad pale
/// bands.
const STYLES: [(&str, Style); 4] = [
    ("aurora", Style::line(1, 0)),
    ("aurora-still", Style::line(4, 1)),
    ("cubic", Style::band(0, 0)),
    ("bbr", Style::band(2, 1)),
];
/// Of the marks of decisions, on the first panel, share of its height.
const MARK_HEIGHT: f64 = 0.97;
/// Throughput and round-trip time.
const PANELS: usize = 2;
/// Characters of a hash that are shown.
const HASH_CHARS: usize = 12;

/// The section; nothing if no flow ran.
pub fn section(learned: &Learned) -> Markup {
    let quic = learned.flows.iter().any(|flow| flow.datapath == Datapath::CcplaneQuic);
    let (heading, place) = match quic {
        true => ("Learning under QUIC", "in the datapath"),
        false => ("Learning in the kernel", "in the kernel"),
    };
    html! {
        @if !learned.flows.is_empty() {
            section {
                h2 { (heading) }
                p.hint {
                    "Each flow crosses a link of its own; all links change at the same moment. Aurora’s network decides " (place) ", as a \
                     snapshot in integers. Beside one of the flows the agent learns: where the new policy has converged and decides otherwise, \
                     it goes on trial (framed): the flow takes turns between the two, a few seconds each. Then it is pushed (dotted lines, diamonds) or \
                     rolled back (wedges). The other flow keeps what it came with."
                }
                (windows(learned))
                div.wide { (on_page::figure(&figure(learned), &[])) }
                (decisions(learned))
            }
        }
    }
}

fn style(flow: &Flow) -> Style {
    let known = STYLES.iter().find(|(algorithm, _)| *algorithm == flow.algorithm);
    let other = if flow.datapath == Datapath::KernelNative { Style::band(3, 2) } else { Style::line(3, 2) };
    known.map_or(other, |(_, style)| *style)
}

/// Index and look of the flow that the agent learns beside.
fn learner(learned: &Learned) -> Option<(usize, Style)> {
    let (algorithm, style) = STYLES[0];
    Some((learned.flows.iter().position(|f| f.algorithm == algorithm)?, style))
}

/// What changed for flows.
fn effects(learned: &Learned) -> impl Iterator<Item = &Decision> {
    learned.decisions.iter().filter(|d| d.effect != Effect::None)
}

/// Since when flows decide otherwise.
fn pushes(learned: &Learned) -> impl Iterator<Item = &Decision> {
    learned.decisions.iter().filter(|d| d.effect == Effect::Push)
}

/// From when to when snapshots were on trial, milliseconds; the last one until the run's end, if nothing else ended it.
fn trials(learned: &Learned) -> Vec<(u64, u64)> {
    let mut trials = Vec::new();
    let mut began = None;
    for decision in effects(learned) {
        if let Some(t_ms) = began.take() {
            trials.push((t_ms, decision.t_ms));
        }
        if decision.effect == Effect::Trial {
            began = Some(decision.t_ms);
        }
    }
    trials.extend(began.map(|t_ms| (t_ms, end_ms(learned).max(t_ms))));
    trials
}

fn end_ms(learned: &Learned) -> u64 {
    let samples = learned.flows.iter().filter_map(|f| f.samples.last()).map(|s| s.t_ms);
    samples.chain(learned.phases.iter().map(|p| p.t1_ms)).max().unwrap_or(1)
}

fn figure(learned: &Learned) -> Figure {
    let end_ms = end_ms(learned);
    let areas: [Vec<(u64, f64)>; PANELS] = [
        learned.link.capacity.iter().map(|c| (c.t_ms, c.capacity_bps as f64 / 1e6)).collect(),
        learned.base_rtts.iter().map(|b| (b.t_ms, b.base_rtt_us as f64 / 1e3)).collect(),
    ];
    let phases: Vec<u64> = learned.phases.iter().map(|p| p.t0_ms).collect();
    let panels = METRICS[..PANELS].iter().zip(areas).enumerate().map(|(n, (metric, area))| {
        let values = learned.flows.iter().flat_map(|f| &f.samples).filter_map(metric.value);
        let largest = values.max().unwrap_or(0) as f64 / metric.scale;
        let mut panel = panel(metric, area, largest, end_ms, &phases);
        frame_trials(learned, &mut panel);
        // The flow that learns lies on top.
        let lines = learned.flows.iter().enumerate().rev().map(|(i, flow)| Mark::Line {
            series: i,
            style: style(flow),
            weight: Weight::Full,
            points: line(metric, &flow.samples),
        });
        panel.marks.extend(lines);
        mark_effects(learned, &mut panel, n == 0);
        panel
    });
    let entries = learned.flows.iter().enumerate().map(|(i, flow)| Entry {
        series: i,
        name: flow.name.clone(),
        style: style(flow),
        marker: None,
    });
    let spans = learned.phases.iter().map(|phase| Span {
        from: phase.t0_ms as f64 / 1e3,
        to: phase.t1_ms as f64 / 1e3,
        label: phase.label.clone(),
    });
    let series = learned.flows.iter().enumerate().map(|(i, f)| read(i, &f.samples, &METRICS[..PANELS]));
    Figure {
        title: "Aurora, CUBIC and BBR".into(),
        shape: Shape::Time,
        entries: entries.collect(),
        spans: spans.collect(),
        panels: panels.collect(),
        readout: Some(Readout { end_ms, series: series.collect() }),
        ..Figure::default()
    }
}

/// The times of trials, framed in the colour of the flow that learns.
fn frame_trials(learned: &Learned, panel: &mut Panel) {
    let Some((series, style)) = learner(learned) else { return };
    let top = panel.y.axis.max;
    panel.marks.extend(trials(learned).into_iter().map(|(from_ms, to_ms)| {
        let (from, to) = (from_ms as f64 / 1e3, to_ms as f64 / 1e3);
        let points = vec![(from, 0.0), (from, top), (to, top), (to, 0.0)];
        Mark::Outline { series, style, points }
    }));
}

/// A dotted line for each push and rollback; on the first panel with a mark that names the snapshot.
fn mark_effects(learned: &Learned, panel: &mut Panel, named: bool) {
    let Some((series, style)) = learner(learned) else { return };
    for decision in effects(learned) {
        let marker = match decision.effect {
            Effect::Push => Marker::Diamond,
            Effect::Rollback => Marker::Wedge,
            Effect::None | Effect::Trial => continue,
        };
        let at = decision.t_ms as f64 / 1e3;
        panel.marks.push(Mark::Rule(at));
        if named {
            panel.marks.push(Mark::Point {
                series,
                style,
                marker,
                at: (at, panel.y.axis.max * MARK_HEIGHT),
                label: format!("{} {}: {}", decision.verdict, short(&decision.snapshot), decision.text),
                weight: Weight::Full,
            });
        }
    }
}

/// The first characters of a hash.
fn short(hash: &str) -> &str {
    hash.get(..HASH_CHARS).unwrap_or(hash)
}

/// Before the change, from it to the push that came of it, and after that.
fn stretches(learned: &Learned) -> Vec<(String, Window)> {
    let end_ms = end_ms(learned);
    let Some(changed_ms) = learned.phases.get(1).map(|p| p.t0_ms) else {
        return vec![("the whole run".into(), Window { t0_ms: 0, t1_ms: end_ms })];
    };
    let mut stretches = vec![("before the change".to_owned(), Window { t0_ms: 0, t1_ms: changed_ms })];
    let last = pushes(learned).map(|d| d.t_ms).filter(|t| *t > changed_ms).last();
    match last.filter(|t| *t < end_ms) {
        Some(t) => {
            stretches
                .push(("from the change to the last push".into(), Window { t0_ms: changed_ms, t1_ms: t }));
            stretches.push(("after the last push".into(), Window { t0_ms: t, t1_ms: end_ms }));
        }
        None => stretches.push(("after the change".into(), Window { t0_ms: changed_ms, t1_ms: end_ms })),
    }
    stretches
}

fn windows(learned: &Learned) -> Markup {
    let stretches = stretches(learned);
    html! {
        div.scroll tabindex="0" role="region" aria-label="Flows before and after the push" {
            table {
                thead {
                    tr {
                        th scope="col" { "Flow" }
                        @for (name, window) in &stretches {
                            th scope="col" {
                                "Mb/s" small { (name) ", " (window.t0_ms / 1000) "–" (window.t1_ms / 1000) " s" }
                            }
                            th scope="col" { "p95 RTT" small { "ms" } }
                        }
                    }
                }
                tbody {
                    @for flow in &learned.flows { (row(learned, flow, &stretches)) }
                }
            }
        }
    }
}

fn row(learned: &Learned, flow: &Flow, stretches: &[(String, Window)]) -> Markup {
    html! {
        tr {
            th scope="row" {
                i.swatch style=(format!("background:{}", style(flow).css())) {}
                (flow.name)
            }
            @for (_, window) in stretches {
                @let s = summary(flow, &learned.link.capacity, *window);
                td { (format::mbps(s.throughput_bps)) }
                td { (format::ms(s.rtt_p95_us)) }
            }
        }
    }
}

fn decisions(learned: &Learned) -> Markup {
    html! {
        h3.part { "What the agent decided" }
        @if learned.decisions.is_empty() {
            p.empty { "Nothing: no policy had converged on something else." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Decisions" {
                table {
                    thead {
                        tr {
                            th scope="col" { "When" small { "s" } }
                            th.text scope="col" { "Decision" }
                            th.text scope="col" { "Snapshot" small { "content hash" } }
                            th.text scope="col" { "Why" }
                            th.text scope="col" { "Numbers" }
                        }
                    }
                    tbody {
                        @for decision in &learned.decisions {
                            tr {
                                th scope="row" { (format!("{:.1}", decision.t_ms as f64 / 1e3)) }
                                td.text { @if decision.effect != Effect::None { b { (decision.verdict) } } @else { (decision.verdict) } }
                                td.text { code title=(decision.snapshot) { (short(&decision.snapshot)) } }
                                td.text { (decision.text) }
                                td.text {
                                    @for (n, (name, value)) in decision.numbers.iter().enumerate() {
                                        @if n > 0 { ", " } (name) " " b { (value) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

//! The page.

use maud::{Markup, html};

use super::model::Report;
use super::style::{Group, groups};
use super::time::TimeCharts;
use super::{learned, scatter, tables};
use crate::draw::html as on_page;
use crate::format;
use crate::shell;

/// The report as one HTML page. `data_file` is the name of the JSON file beside it, for the link in its footer.
#[must_use]
pub fn html(report: &Report, data_file: &str) -> String {
    shell::page(&report.title, html! { (content(report)) (footer(report, data_file)) })
}

fn content(report: &Report) -> Markup {
    let groups = groups(report);
    let charts = TimeCharts::new(report);
    html! {
        header {
            p.eyebrow { "ccplane · experiment report" }
            h1 { (report.title) }
            @if !report.summary.is_empty() { p.lead { (report.summary) } }
            (facts(report))
        }
        @if let Some(learned) = &report.learned { (learned::section(learned)) }
        @if groups.is_empty() {
            section { p.empty { "No flow ran. The notes below say why." } }
        } @else {
            section {
                h2 { @if report.learned.is_some() { "The kernel’s own algorithms and ours, in short" } @else { "In short" } }
                (tables::key_figures(report, &groups))
                (tables::whole_run(report, &groups))
            }
            section {
                h2 { "Over time" }
                p.hint { "Columns share their axes. Point at a chart to read all of them at that moment; select a name to hide or show its line." }
                div.grid { @for group in &groups { (over_time(&charts, group)) } }
            }
            section {
                h2 { "Throughput against delay" }
                (scatter::figures(report, &groups))
            }
            @if !report.phases.is_empty() {
                section {
                    h2 { "Phase by phase" }
                    (tables::by_phase(report, &groups))
                }
            }
        }
        @if !report.notes.is_empty() {
            section {
                h2 { "Notes" }
                ul.notes { @for note in &report.notes { li { (note) } } }
            }
        }
    }
}

fn over_time(charts: &TimeCharts<'_>, group: &Group<'_>) -> Markup {
    match charts.figure(group) {
        Some(figure) => on_page::figure(&figure, &[]),
        None => html! {
            figure.time {
                figcaption { h3 { (format::capitalised(group.algorithm)) } }
                p.empty { "No samples were taken." }
            }
        },
    }
}

fn facts(report: &Report) -> Markup {
    let run = &report.run;
    let facts = [
        ("Link", &report.link.description),
        ("Kernel", &run.kernel),
        ("Commit", &run.git_commit),
        ("Started", &run.started_at),
    ];
    html! {
        dl.facts {
            @for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

fn footer(report: &Report, data_file: &str) -> Markup {
    html! {
        footer {
            div {
                h2 { "How to read this" }
                p { b { "Throughput" } " is payload delivered: headers keep a full link at about 96 % of its capacity (the shaded area)." }
                p { b { "Round-trip time" } " is the smoothed estimate of the sender’s stack; its mean and percentiles are over samples at equal intervals." }
                p { b { "Congestion window" } " above its shaded area (bandwidth × delay) is queue; below it, idle link." }
                p { b { "Kernel native" } " flows run the kernel’s own module. " b { "ccplane ebpf" } " flows run a fold program that the agent compiled into the kernel. "
                    b { "ccplane sim" } " flows run the same algorithm file in virtual time." }
            }
            div {
                h2 { "Reproduce" }
                @if !report.run.command.is_empty() { pre { code { (report.run.command) } } }
                p { "Every value on this page is in " a href=(data_file) { (data_file) } ", beside it." }
            }
        }
    }
}

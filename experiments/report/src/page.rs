//! The page.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::TimeCharts;
use crate::model::Report;
use crate::style::groups;
use crate::{scatter, tables};

const STYLE: &str = include_str!("assets/report.css");
const SCRIPT: &str = include_str!("assets/report.js");
/// Nothing is fetched, whatever the data says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// The report as one HTML page. `data_file` is the name of the JSON file beside it, for the link in its footer.
#[must_use]
pub fn html(report: &Report, data_file: &str) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (report.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { (content(report)) (footer(report, data_file)) }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
    .into_string()
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
        @if groups.is_empty() {
            section { p.empty { "No flow ran. The notes below say why." } }
        } @else {
            section {
                h2 { "In short" }
                (tables::key_figures(report, &groups))
                (tables::whole_run(report, &groups))
            }
            section {
                h2 { "Over time" }
                p.hint { "Columns share their axes. Point at a chart to read all of them at that moment; select a name to hide or show its line." }
                div.grid { @for group in &groups { (charts.figure(group)) } }
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

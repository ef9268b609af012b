//! The report of a plan's runs: one HTML page, the same in short as text, and every run's figures as CSV.

use crate::figures::{Figure, Interval, SizeClass};
use crate::plan::{Contender, FabricPlan};
use crate::record::Cell;
use crate::wanted::{PlanVerdict, ratio, values, verdicts};
use ccplane_report::draw::{
    Axis, Entry, Figure as Drawing, Mark, Panel, Scale, Shape, Style, Weight, scene, svg,
};
use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.2em .6em;text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}th{border-bottom:1px solid #999;vertical-align:bottom}.met{color:#063}.missed{color:#a00}";

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn interval(interval: Option<Interval>) -> String {
    interval.map_or_else(|| "–".to_owned(), |i| format!("{:.2} ({:.2} to {:.2})", i.value, i.low, i.high))
}

/// The median over runs of one contender's figure, milliseconds.
fn median_ms(
    cells: &[Cell],
    group: usize,
    load_percent: u32,
    contender: Contender,
    class: SizeClass,
    figure: Figure,
) -> Option<f64> {
    let all = values(cells, group, load_percent, contender, class, figure);
    median(all.into_iter().map(|(_, us)| us / 1000.0).collect())
}

/// Returns the ratios and verdicts as text.
pub fn text(plan: &FabricPlan, cells: &[Cell]) -> String {
    let mut text = String::new();
    for verdict in verdicts(plan, cells) {
        let PlanVerdict { what, found, at_most } = &verdict;
        let _ =
            writeln!(text, "{what}: {}, at most {at_most:.3}: {}", interval(Some(*found)), verdict.word());
    }
    let baseline = plan.kind.baseline();
    for (n, group) in plan.groups.iter().enumerate() {
        let (name, to) = (group.name(plan.kind), baseline.name());
        let _ = writeln!(text, "\n{name}, mean completion times to those of {to}");
        for contender in &plan.contenders {
            let _ = write!(text, "  {:15}", contender.name());
            for class in SizeClass::ALL {
                let pair = (*contender, baseline);
                let found = ratio(cells, n, plan.loads_of(n), pair, class, Figure::Mean);
                let _ = write!(text, "  {}: {}", class.name(), interval(found));
            }
            text.push('\n');
        }
    }
    text
}

/// Returns every run's figures, one line for each class of sizes.
pub fn csv(plan: &FabricPlan, cells: &[Cell]) -> String {
    let mut text = String::from(
        "sizes,predictable_percent,uplinks,load_percent,contender,repeat,class,flows,mean_us,p50_us,p95_us,p99_us,unfinished,dropped_packets\n",
    );
    for cell in cells {
        let group = &plan.groups[cell.slot.group];
        for class in SizeClass::ALL {
            let times = &cell.completions_ns[class as usize];
            let figures =
                Figure::ALL.map(|figure| figure.of(times).map_or_else(String::new, |us| format!("{us:.1}")));
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{},{}",
                group.sizes.name(),
                group.predictable_percent,
                group.uplinks.name(),
                cell.slot.load_percent,
                cell.slot.contender.name(),
                cell.slot.repeat,
                class.name(),
                times.len(),
                figures.join(","),
                cell.unfinished,
                cell.dropped
            );
        }
    }
    text
}

/// Returns the page. `command` runs the plan again.
pub fn html(plan: &FabricPlan, cells: &[Cell], command: &str) -> String {
    let title = escaped(&plan.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n<p>{}</p>\n\
         <p>{}. {} flows a run after {} that do not count; {} of {} runs. <code>{}</code></p>\n\
         <p>Ratios are geometric means over runs of the same flows, with intervals that hold 95 % of the means of runs drawn again (bootstrap).</p>\n",
        escaped(&plan.about),
        escaped(&plan.setting()),
        plan.flows,
        plan.warm_up_flows,
        cells.len(),
        plan.runs(),
        escaped(command),
    );
    page.push_str(
        "<h2>What is wanted</h2>\n<table><tr><th>all loads together<th>ratio (95 %)<th>at most<th></tr>\n",
    );
    for verdict in verdicts(plan, cells) {
        let word = verdict.word();
        let PlanVerdict { what, found, at_most } = verdict;
        let (what, ratio) = (escaped(&what), interval(Some(found)));
        let _ = writeln!(page, "<tr><td>{what}<td>{ratio}<td>{at_most:.3}<td class=\"{word}\">{word}</tr>");
    }
    page.push_str("</table>\n");
    for n in 0..plan.groups.len() {
        group(&mut page, plan, cells, n);
    }
    page.push_str("</html>\n");
    page
}

fn group(page: &mut String, plan: &FabricPlan, cells: &[Cell], n: usize) {
    let _ = writeln!(page, "<h2>{}</h2>", escaped(&plan.groups[n].name(plan.kind)));
    for contender in plan.contenders.iter().copied() {
        let of = cells.iter().find(|cell| (cell.slot.group, cell.slot.contender) == (n, contender));
        for note in of.iter().flat_map(|cell| &cell.notes) {
            let _ = writeln!(page, "<p>{}: {}</p>", contender.name(), escaped(note));
        }
    }
    for class in SizeClass::ALL {
        let _ = writeln!(page, "<h3>Flows {}</h3>", class.name());
        page.push_str(&picture(plan, cells, n, class));
        table(page, plan, cells, n, class);
    }
    let own = || cells.iter().filter(|cell| cell.slot.group == n);
    let unfinished: usize = own().map(|cell| cell.unfinished).sum();
    if unfinished > 0 {
        let _ = writeln!(
            page,
            "<p>{unfinished} flows had not ended with their run; they count with the time that they had.</p>"
        );
    }
}

/// The figures of a class of sizes: a row for each load and contender.
fn table(page: &mut String, plan: &FabricPlan, cells: &[Cell], n: usize, class: SizeClass) {
    let baseline = plan.kind.baseline();
    page.push_str("<table><tr><th>load<th>contender");
    for figure in Figure::ALL {
        let (name, to) = (figure.name(), baseline.name());
        let _ = write!(page, "<th>{name}, ms<th>to {to} (95 %)");
    }
    page.push_str("</tr>\n");
    for load in plan.loads_of(n).iter().copied() {
        for contender in plan.contenders.iter().copied() {
            let _ = write!(page, "<tr><td>{load} %<td>{}", contender.name());
            for figure in Figure::ALL {
                let ms = median_ms(cells, n, load, contender, class, figure);
                let ms = ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.3}"));
                let found = ratio(cells, n, &[load], (contender, baseline), class, figure);
                let _ = write!(page, "<td>{ms}<td>{}", interval(found));
            }
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</table>\n");
}

/// Mean completion times by load, one line for each contender.
fn picture(plan: &FabricPlan, cells: &[Cell], n: usize, class: SizeClass) -> String {
    let mut lines = Vec::new();
    for (series, contender) in plan.contenders.iter().copied().enumerate() {
        let point = |load: &u32| {
            Some((f64::from(*load), median_ms(cells, n, *load, contender, class, Figure::Mean)?))
        };
        let points: Vec<(f64, f64)> = plan.loads_of(n).iter().filter_map(point).collect();
        if !points.is_empty() {
            lines.push((series, contender, points));
        }
    }
    let all = || lines.iter().flat_map(|(_, _, points)| points);
    let (low, high) =
        all().fold((f64::INFINITY, 0.0_f64), |(low, high), (_, ms)| (low.min(*ms), high.max(*ms)));
    if !low.is_finite() {
        return String::new();
    }
    let loads = Scale::new(Axis::covering(100.0), "load", "%");
    let times = Scale::new(Axis::logarithmic(low, high), "mean completion time, median of runs", "ms");
    let mut panel = Panel::new(loads, times);
    let mut entries = Vec::new();
    for (series, contender, points) in lines {
        let style = Style::line(series, series);
        panel.marks.push(Mark::Line { series, style, weight: Weight::Full, points });
        entries.push(Entry { series, name: contender.name().to_owned(), style, marker: None });
    }
    let figure = Drawing {
        title: format!("Flows {}", class.name()),
        subtitle: plan.groups[n].name(plan.kind),
        shape: Shape::Curve,
        entries,
        panels: vec![panel],
        ..Drawing::default()
    };
    svg::inline(&scene::scene(&figure))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PLANS;
    use std::path::Path;

    /// Every contender takes as long as `factor` says, times the size class and the repeat.
    fn cells(plan: &FabricPlan, factor: impl Fn(Contender) -> u64) -> Vec<Cell> {
        let cell = |slot: crate::Slot| Cell {
            slot,
            completions_ns: [1, 10, 100]
                .map(|n| vec![n * factor(slot.contender) * 1000 * u64::from(slot.repeat + 1)]),
            unfinished: 0,
            dropped: 0,
            notes: vec!["learned <this>".into()],
        };
        plan.slots().into_iter().map(cell).collect()
    }

    fn shipped(n: usize) -> FabricPlan {
        let (name, text) = PLANS[n];
        FabricPlan::parse(Path::new(&format!("{name}.toml")), text, Some(3)).unwrap()
    }

    #[test]
    fn ratios_pair_the_same_flows_and_verdicts_follow_from_them() {
        let plan = shipped(0);
        let mut cells = cells(&plan, |contender| match contender {
            Contender::Fifo => 900,
            Contender::Pias => 200,
            Contender::SizeAgentLate => 160,
            Contender::SizeAgent => 125,
            Contender::Size => 100,
            _ => 80,
        });
        let pair = (Contender::Size, Contender::SizeAgent);
        let found = ratio(&cells, 0, &[50], pair, SizeClass::Small, Figure::P99).unwrap();
        assert!((found.value - 0.8).abs() < 1e-9 && (found.high - found.low).abs() < 1e-9, "{found:?}");
        // A run that is not there leaves out its pair only.
        cells.retain(|cell| cell.slot.contender != Contender::SizeAgent || cell.slot.repeat != 1);
        let again = ratio(&cells, 0, &[50], pair, SizeClass::Small, Figure::P99).unwrap();
        assert!((again.value - 0.8).abs() < 1e-9, "{again:?}");
        let short = text(&plan, &cells);
        for line in [
            "size to size-agent, mean of flows to 100 kB: 0.80 (0.80 to 0.80), at most 0.891: met",
            "size to size-agent, mean of flows beyond 10 MB: 0.80 (0.80 to 0.80), at most 0.663: missed",
            "size to size-agent-late, mean of flows beyond 10 MB: 0.62 (0.62 to 0.62), at most 0.663: met",
            "size to oracle, mean of flows to 10 MB: 1.25 (1.25 to 1.25), at most 1.100: missed",
            "size to pias, mean of flows to 10 MB: 0.50 (0.50 to 0.50), at most 1.030: met",
        ] {
            assert!(short.contains(line), "{line}\n{short}");
        }
        assert_eq!(csv(&plan, &cells).lines().count(), 1 + 3 * cells.len());
        let page = html(&plan, &cells, "ccplane run <x>");
        assert!(page.contains("&lt;x&gt;") && page.contains("<svg") && page.contains("learned &lt;this&gt;"));
        assert_eq!(page.matches("<h3>").count(), 3 * plan.groups.len());
    }

    #[test]
    fn balancing_is_held_against_the_agent_where_paths_differ_and_against_hashes_where_they_do_not() {
        let plan = shipped(1);
        let cells = cells(&plan, |contender| match contender {
            Contender::Path => 102,
            Contender::PathAgent => 200,
            _ => 100,
        });
        let short = text(&plan, &cells);
        let is = |line: &str| assert!(short.contains(line), "{line}\n{short}");
        is(
            "web-search, even: path to ecmp, mean of flows to 100 kB: 1.02 (1.02 to 1.02), at most 1.030: met",
        );
        is(
            "web-search, failed uplink: path to path-agent, mean of flows to 100 kB: 0.51 (0.51 to 0.51), at most 0.657: met",
        );
        is(
            "web-search, slow uplink: path to path-agent, mean of flows beyond 10 MB: 0.51 (0.51 to 0.51), at most 0.433: missed",
        );
        is(
            "web-search, slow uplink: path to oracle, mean of flows to 10 MB: 1.02 (1.02 to 1.02), at most 1.100: met",
        );
        assert!(!short.contains("even: path to path-agent"), "{short}");
    }

    #[test]
    fn a_plan_without_runs_has_a_page_without_figures() {
        let page = html(&shipped(1), &[], "c");
        assert!(page.contains("0 of ") && !page.contains("<svg") && !page.contains("class=\"met\""));
    }
}

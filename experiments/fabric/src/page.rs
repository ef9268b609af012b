//! The report of a plan's runs: one HTML page, and the same in short as text.

use crate::figures::{Figure, Interval, SizeClass, geometric_mean};
use crate::plan::{Contender, FabricPlan};
use crate::play::Played;
use ccplane_report::draw::{
    Axis, Entry, Figure as Drawing, Mark, Panel, Scale, Shape, Style, Weight, scene, svg,
};
use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.2em .6em;text-align:right;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}th{border-bottom:1px solid #999;vertical-align:bottom}.met{color:#063}.missed{color:#a00}";

/// A limit on the ratio of two contenders' completion times.
struct Wanted {
    of: Contender,
    against: Contender,
    class: SizeClass,
    /// The degrees to which sizes can be predicted where it is asked, percent.
    predictable_percent: u32,
    at_most: f64,
}

const WANTED: [Wanted; 8] = [
    wanted(Contender::SizeAgent, SizeClass::Small, 100, 1.0 - 0.109),
    wanted(Contender::SizeAgent, SizeClass::Large, 100, 1.0 - 0.337),
    wanted(Contender::Oracle, SizeClass::Small, 100, 1.1),
    wanted(Contender::Oracle, SizeClass::Medium, 100, 1.1),
    wanted(Contender::Oracle, SizeClass::Large, 100, 1.1),
    wanted(Contender::Pias, SizeClass::Small, 0, 1.03),
    wanted(Contender::Pias, SizeClass::Medium, 0, 1.03),
    wanted(Contender::Pias, SizeClass::Large, 0, 1.03),
];

const fn wanted(against: Contender, class: SizeClass, predictable_percent: u32, at_most: f64) -> Wanted {
    Wanted { of: Contender::Size, against, class, predictable_percent, at_most }
}

/// The figures of one contender in the runs of one workload and load, in order of their repeats, microseconds.
fn values(
    played: &Played,
    workload: usize,
    load_percent: u32,
    contender: Contender,
    class: SizeClass,
    figure: Figure,
) -> Vec<Option<f64>> {
    let cells = played.cells.iter().filter(|cell| {
        (cell.workload, cell.load_percent, cell.contender) == (workload, load_percent, contender)
    });
    cells.map(|cell| figure.of(&cell.completions_ns[class as usize])).collect()
}

/// The ratio of one contender's figure to another's on the same flows, over all repeats of these loads.
fn ratio(
    played: &Played,
    workload: usize,
    loads_percent: &[u32],
    (of, against): (Contender, Contender),
    class: SizeClass,
    figure: Figure,
) -> Option<Interval> {
    let mut ratios = Vec::new();
    for load in loads_percent {
        let above = values(played, workload, *load, of, class, figure);
        let below = values(played, workload, *load, against, class, figure);
        ratios.extend(above.into_iter().zip(below).filter_map(|(above, below)| Some(above? / below?)));
    }
    geometric_mean(&ratios)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn interval(interval: Option<Interval>) -> String {
    interval.map_or_else(|| "–".to_owned(), |i| format!("{:.2} ({:.2} to {:.2})", i.value, i.low, i.high))
}

/// One line for each thing that is wanted, on each workload where it is: what it is, the ratio, and whether it is met.
fn verdicts(plan: &FabricPlan, played: &Played) -> Vec<(String, Interval, f64)> {
    let mut lines = Vec::new();
    for (n, workload) in plan.workloads.iter().enumerate() {
        for wanted in WANTED.iter().filter(|w| w.predictable_percent == workload.predictable_percent) {
            let pair = (wanted.of, wanted.against);
            let found = ratio(played, n, &plan.loads_percent, pair, wanted.class, Figure::Mean);
            let Some(found) = found else { continue };
            let what = format!(
                "{}: {} to {}, mean of flows {}",
                workload.name(),
                wanted.of.name(),
                wanted.against.name(),
                wanted.class.name()
            );
            lines.push((what, found, wanted.at_most));
        }
    }
    lines
}

/// Returns the ratios and verdicts as text.
pub fn text(plan: &FabricPlan, played: &Played) -> String {
    let mut text = String::new();
    for (what, found, at_most) in verdicts(plan, played) {
        let verdict = if found.value <= at_most { "met" } else { "missed" };
        let _ = writeln!(text, "{what}: {}, at most {at_most:.3}: {verdict}", interval(Some(found)));
    }
    for (n, workload) in plan.workloads.iter().enumerate() {
        let _ = writeln!(text, "\n{}, mean completion times to pias'", workload.name());
        for contender in &plan.contenders {
            let _ = write!(text, "  {:10}", contender.name());
            for class in SizeClass::ALL {
                let pair = (*contender, Contender::Pias);
                let found = ratio(played, n, &plan.loads_percent, pair, class, Figure::Mean);
                let _ = write!(text, "  {}: {}", class.name(), interval(found));
            }
            text.push('\n');
        }
    }
    text
}

/// Returns every run's figures, one line for each class of sizes.
pub fn csv(plan: &FabricPlan, played: &Played) -> String {
    let mut text = String::from(
        "sizes,predictable_percent,load_percent,contender,repeat,class,flows,mean_us,p50_us,p95_us,p99_us,unfinished,dropped_packets\n",
    );
    for cell in &played.cells {
        let workload = &plan.workloads[cell.workload];
        for class in SizeClass::ALL {
            let times = &cell.completions_ns[class as usize];
            let figures =
                Figure::ALL.map(|figure| figure.of(times).map_or_else(String::new, |us| format!("{us:.1}")));
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{}",
                workload.sizes.name(),
                workload.predictable_percent,
                cell.load_percent,
                cell.contender.name(),
                cell.repeat,
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
pub fn html(plan: &FabricPlan, played: &Played, command: &str) -> String {
    let title = escaped(&plan.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n<p>{}</p>\n\
         <p>{} hosts, {} leaves, {} spines, {} Gb/s, segments of {} bytes; {} flows a run after {} that do not count, {} runs. \
         The agent's decisions take {} us. <code>{}</code></p>\n",
        escaped(&plan.about),
        plan.fabric.shape.hosts(),
        plan.fabric.shape.leaves,
        plan.fabric.shape.spines,
        plan.fabric.edge_bit_per_s / 1_000_000_000,
        plan.fabric.mss_bytes,
        plan.flows,
        plan.warm_up_flows,
        plan.runs(),
        plan.fabric.hosts.agent_latency_us,
        escaped(command),
    );
    page.push_str(
        "<h2>What is wanted</h2>\n<table><tr><th>all loads together<th>ratio (95 %)<th>at most<th></tr>\n",
    );
    for (what, found, at_most) in verdicts(plan, played) {
        let (class, word) = if found.value <= at_most { ("met", "met") } else { ("missed", "missed") };
        let ratio = interval(Some(found));
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{ratio}<td>{at_most:.3}<td class=\"{class}\">{word}</tr>",
            escaped(&what)
        );
    }
    page.push_str("</table>\n");
    for n in 0..plan.workloads.len() {
        workload(&mut page, plan, played, n);
    }
    page.push_str("</html>\n");
    page
}

fn workload(page: &mut String, plan: &FabricPlan, played: &Played, n: usize) {
    let workload = &plan.workloads[n];
    let _ = writeln!(page, "<h2>{}</h2>", escaped(&workload.name()));
    if let Some(prepared) = played.prepared.get(n) {
        let _ = writeln!(
            page,
            "<p>Learned thresholds: of bytes sent {:?}; of the prediction, octaves: {}; of the oracle's sizes {:?}.</p>",
            prepared.size.demotions.0,
            octaves(&prepared.size.predicted_q16),
            prepared.oracle.sizes
        );
    }
    for class in SizeClass::ALL {
        let _ = writeln!(page, "<h3>Flows {}</h3>", class.name());
        page.push_str(&picture(plan, played, n, class));
        page.push_str("<table><tr><th>load<th>contender");
        Figure::ALL.iter().for_each(|figure| {
            let _ = write!(page, "<th>{}, ms", figure.name());
        });
        page.push_str("<th>mean to pias (95 %)<th>p99 to pias (95 %)</tr>\n");
        for load in plan.loads_percent.iter().copied() {
            for contender in plan.contenders.iter().copied() {
                let _ = write!(page, "<tr><td>{load} %<td>{}", contender.name());
                for figure in Figure::ALL {
                    let found =
                        values(played, n, load, contender, class, figure).into_iter().flatten().collect();
                    let ms = median(found).map_or_else(|| "–".to_owned(), |us| format!("{:.3}", us / 1000.0));
                    let _ = write!(page, "<td>{ms}");
                }
                for figure in [Figure::Mean, Figure::P99] {
                    let found = ratio(played, n, &[load], (contender, Contender::Pias), class, figure);
                    let _ = write!(page, "<td>{}", interval(found));
                }
                page.push_str("</tr>\n");
            }
        }
        page.push_str("</table>\n");
    }
    let unfinished: usize =
        played.cells.iter().filter(|cell| cell.workload == n).map(|cell| cell.unfinished).sum();
    if unfinished > 0 {
        let _ = writeln!(
            page,
            "<p>{unfinished} flows had not ended with their run; they count with the time that they had.</p>"
        );
    }
}

/// Thresholds of the prediction as powers of two of bytes.
fn octaves(actions_q16: &[i32]) -> String {
    let octave = |action: &i32| match *action {
        ccplane_algs::SizeThresholds::NEVER => "never".to_owned(),
        action => format!("{:.1}", f64::from(action) / 65_536.0 + f64::from(ccplane_algs::CENTRE)),
    };
    actions_q16.iter().map(octave).collect::<Vec<_>>().join(", ")
}

/// Mean completion times by load, one line for each contender.
fn picture(plan: &FabricPlan, played: &Played, n: usize, class: SizeClass) -> String {
    let mut lines = Vec::new();
    for (series, contender) in plan.contenders.iter().copied().enumerate() {
        let point = |load: &u32| {
            let all =
                values(played, n, *load, contender, class, Figure::Mean).into_iter().flatten().collect();
            Some((f64::from(*load), median(all)? / 1000.0))
        };
        let points: Vec<(f64, f64)> = plan.loads_percent.iter().filter_map(point).collect();
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
        subtitle: plan.workloads[n].name(),
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
    use crate::play::{Cell, Prepared};
    use ccplane_algs::SizeThresholds;
    use std::path::Path;

    /// Every contender takes as long as `factor` says, times the size class.
    fn played(plan: &FabricPlan, factor: impl Fn(Contender) -> u64) -> Played {
        let mut cells = Vec::new();
        for workload in 0..plan.workloads.len() {
            for load_percent in plan.loads_percent.iter().copied() {
                for repeat in 0..plan.repeats {
                    for contender in plan.contenders.iter().copied() {
                        let times =
                            [1, 10, 100].map(|n| vec![n * factor(contender) * 1000 * u64::from(repeat + 1)]);
                        cells.push(Cell {
                            workload,
                            load_percent,
                            contender,
                            repeat,
                            completions_ns: times,
                            unfinished: 0,
                            dropped: 0,
                        });
                    }
                }
            }
        }
        let prepared = Prepared { size: SizeThresholds::default(), oracle: crate::Oracle { sizes: [1; 7] } };
        Played { prepared: vec![prepared; plan.workloads.len()], cells }
    }

    #[test]
    fn ratios_pair_the_same_flows_and_verdicts_follow_from_them() {
        let text = include_str!("../../plans/flow-scheduling.toml");
        let plan = FabricPlan::parse(Path::new("flow-scheduling.toml"), text, Some(3)).unwrap();
        let factor = |contender| match contender {
            Contender::Fifo => 900,
            Contender::Pias => 200,
            Contender::SizeAgent => 125,
            Contender::Size => 100,
            Contender::Oracle => 80,
        };
        let played = played(&plan, factor);
        let found =
            ratio(&played, 0, &[50], (Contender::Size, Contender::SizeAgent), SizeClass::Small, Figure::P99);
        let found = found.unwrap();
        assert!((found.value - 0.8).abs() < 1e-9 && (found.high - found.low).abs() < 1e-9, "{found:?}");
        let short = super::text(&plan, &played);
        assert!(
            short.contains(
                "size to size-agent, mean of flows to 100 kB: 0.80 (0.80 to 0.80), at most 0.891: met"
            ),
            "{short}"
        );
        assert!(short.contains(
            "size to size-agent, mean of flows beyond 10 MB: 0.80 (0.80 to 0.80), at most 0.663: missed"
        ));
        assert!(
            short.contains(
                "size to oracle, mean of flows to 10 MB: 1.25 (1.25 to 1.25), at most 1.100: missed"
            )
        );
        assert_eq!(csv(&plan, &played).lines().count(), 1 + 3 * played.cells.len());
        let page = html(&plan, &played, "ccplane run <x>");
        assert!(page.contains("&lt;x&gt;") && page.contains("<svg"));
        assert_eq!(page.matches("<h3>").count(), 3 * plan.workloads.len());
    }
}

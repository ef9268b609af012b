//! A host's report: one HTML page with its picture, what was measured, learned and found.

use ccplane_report::draw::scene::Scene;
use ccplane_report::draw::{
    Axis, Figure, Mark, Marker, Panel, Scale, Shape, Style, Weight, html as on_page, svg,
};
use ccplane_report::shell;
use maud::{Markup, PreEscaped, html};

use crate::learn::{Frame, Learned};
use crate::picture::{MarkedWork, picture};
use crate::space::Cell;
use crate::state::SettingState;
use crate::table::Table;
use crate::topology::Topology;
use crate::tune::{Trial, Tuned};

/// Rows of the table of measured cells.
const SHOWN_CELLS: usize = 12;
/// Points of a chart, at most.
const MAX_POINTS: usize = 2000;
/// Counters of a component that are named.
const SHOWN_WEIGHTS: usize = 4;

/// A page in the making.
#[derive(Debug)]
pub struct Page {
    title: String,
    lead: String,
    sections: Vec<Markup>,
}

impl Page {
    /// Starts a page; `lead` says where its figures come from.
    pub fn new(title: &str, lead: &str) -> Page {
        Page { title: title.to_owned(), lead: lead.to_owned(), sections: Vec::new() }
    }

    /// Adds the picture of a host and what runs where on it.
    #[must_use]
    pub fn with_host(self, topology: &Topology, interface: Option<&str>, places: &[MarkedWork]) -> Page {
        let scene: Scene = picture(topology, interface, places);
        self.with_section(html! {
            section {
                h2 { "The host" }
                figure.glance { (PreEscaped(svg::inline(&scene))) }
                @if !places.is_empty() {
                    p.hint { "Marks on processors: what runs there in the best setting." }
                }
            }
        })
    }

    /// Adds a section.
    #[must_use]
    pub fn with_section(mut self, section: Markup) -> Page {
        self.sections.push(section);
        self
    }

    /// Returns the page's text.
    pub fn html(&self) -> String {
        let content = html! {
            header {
                p.eyebrow { "ccplane · host" }
                h1 { (self.title) }
                p.lead { (self.lead) }
            }
            @for section in &self.sections { (section) }
        };
        shell::page(&self.title, content)
    }
}

/// Shows a host's settings and why some cannot be changed.
pub fn settings_section(states: &[SettingState]) -> Markup {
    html! {
        section {
            h2 { "Settings" }
            table {
                thead { tr { th { "setting" } th { "value" } th { "largest" } th { "cannot be changed, since" } } }
                tbody {
                    @for state in states {
                        tr {
                            td { (state.setting) }
                            td { (state.value.as_deref().unwrap_or("–")) }
                            td { (state.largest.as_deref().unwrap_or("")) }
                            td { (state.why_not.as_deref().unwrap_or("")) }
                        }
                    }
                }
            }
        }
    }
}

/// Shows measured cells: the defaults, the fastest ones, and all as points.
pub fn swept_section(table: &Table) -> Markup {
    let frame = Frame::of_table(table);
    let space = &table.header.space;
    let default = space.default_cell();
    let mut cells: Vec<(Cell, f64, f64)> = table
        .by_cell()
        .into_iter()
        .zip(&frame.rows)
        .map(|((cell, _), row)| (cell, row.throughput, row.efficiency))
        .collect();
    cells.sort_by(|a, b| b.1.total_cmp(&a.1));
    let unit = unit_of(table);
    let of_default = cells.iter().find(|(cell, ..)| *cell == default).cloned();
    let shown: Vec<&(Cell, f64, f64)> = of_default.iter().chain(cells.iter().take(SHOWN_CELLS)).collect();
    let points = cells.iter().map(|(cell, x, y)| (*x / 1e9, *y, space.shown(cell))).collect();
    html! {
        section {
            h2 { "Measurements" }
            p.hint { (table.header.source.words()) "; " (cells.len()) " of " (space.cells()) " settings" }
            table {
                thead { tr { th { "setting" } th { "Gb/s" } th { (unit) } } }
                tbody {
                    @for (cell, throughput, efficiency) in shown {
                        tr {
                            td { (space.shown(cell)) }
                            td { (format!("{:.2}", throughput / 1e9)) }
                            td { (significant(*efficiency)) }
                        }
                    }
                }
            }
            (scatter("Throughput and efficiency", ("Throughput", "Gb/s"), ("Efficiency", unit), points))
        }
    }
}

fn unit_of(table: &Table) -> &'static str {
    let first = table.by_cell().into_iter().flat_map(|(_, samples)| samples).next();
    first.unwrap_or_default().efficiency().1.words()
}

/// Shows what was learned: errors, groups, the counters that tell them apart, the best coalescing.
pub fn learned_section(learned: &Learned) -> Markup {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let errors = [("throughput", &learned.throughput), ("efficiency", &learned.efficiency)];
    html! {
        section {
            h2 { "Predictions" }
            p.hint {
                (learned.origin) "; " (learned.divided[0]) " settings to learn from, " (learned.divided[1])
                " to choose by, " (learned.divided[2]) " held out to state the error by"
            }
            table {
                thead { tr { th { "quantity" } th { "mean error" } th { "95th percentile" } th { "where the median is predicted" } } }
                tbody {
                    @for (name, error) in errors {
                        tr { td { (name) } td { (percent(error.mean)) } td { (percent(error.p95)) } td { (percent(error.of_median)) } }
                    }
                }
            }
        }
        section {
            h2 { "Groups" }
            table {
                thead { tr { th { "settings" } th { "mean throughput" } th { "mean efficiency" } th { "typical" } } }
                tbody {
                    @for group in &learned.groups.groups {
                        tr {
                            td { (group.settings) }
                            td { (significant(group.mean_throughput)) }
                            td { (significant(group.mean_efficiency)) }
                            td {
                                @for (name, value, share) in &group.typical {
                                    (name) "=" (value) " (" (percent(*share)) ") "
                                }
                            }
                        }
                    }
                }
            }
            table {
                thead { tr { th { "counter" } th { "variance between groups" } } }
                tbody {
                    @for telling in &learned.groups.telling {
                        tr { td { (telling.counter) } td { (percent(telling.share)) } }
                    }
                }
            }
            ul {
                @for component in &learned.groups.components {
                    li {
                        (percent(component.share)) " of all variance: "
                        @for (name, weight) in component.weights.iter().take(SHOWN_WEIGHTS) {
                            (name) " " (format!("{weight:+.2}")) "; "
                        }
                    }
                }
            }
        }
        @if !learned.coalescing.is_empty() {
            section {
                h2 { "Coalescing" }
                table {
                    thead { tr { th { "under" } th { "microseconds" } th { "frames" } } }
                    tbody {
                        @for best in &learned.coalescing {
                            tr {
                                td { @for (name, value) in &best.under { (name) "=" (value) " " } }
                                td { (best.usecs) }
                                td { (best.frames) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Shows a search: its trials in turn, and what came of it; `says` is the verdict.
pub fn tuned_section(tuned: &Tuned, says: &str) -> Markup {
    let best_so_far = |most: &mut f64, trial: &Trial| {
        *most = trial.ratio.map_or(*most, |ratio| ratio.max(*most));
        Some(*most)
    };
    let line = tuned.trials.iter().scan(1.0, best_so_far).enumerate();
    let line: Vec<(f64, f64)> = line.map(|(n, best)| (n as f64 + 1.0, best)).collect();
    let points = tuned.trials.iter().enumerate().filter_map(|(n, trial)| {
        let label = if trial.is_taken_back { "taken back: " } else { "" };
        Some((n as f64 + 1.0, trial.ratio?, format!("{label}{}", trial.shown)))
    });
    let taken_back = tuned.trials.iter().filter(|trial| trial.is_taken_back).count();
    html! {
        section {
            h2 { "Search" }
            p { (says) }
            p.hint {
                "Noise of the defaults: " (format!("{:.2} %", tuned.noise * 100.0)) ". "
                (taken_back) " of " (tuned.trials.len()) " trials were worse than the best by more than noise, and taken back at once."
            }
            (chart("Trials", ("Trial", ""), ("Over the defaults", "ratio"), points.collect(), line))
        }
    }
}

type Axes<'a> = (&'a str, &'a str);

fn scatter(title: &str, x: Axes<'_>, y: Axes<'_>, points: Vec<(f64, f64, String)>) -> Markup {
    chart(title, x, y, points, Vec::new())
}

fn chart(
    title: &str,
    x: Axes<'_>,
    y: Axes<'_>,
    points: Vec<(f64, f64, String)>,
    line: Vec<(f64, f64)>,
) -> Markup {
    let most = |of: fn(&(f64, f64, String)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    let scale = |(title, unit): Axes<'_>, largest: f64| Scale::new(Axis::covering(largest), title, unit);
    let mut panel = Panel::new(scale(x, most(|p| p.0)), scale(y, most(|p| p.1)));
    let every = points.len().div_ceil(MAX_POINTS).max(1);
    panel.marks.extend(points.into_iter().step_by(every).map(|(x, y, label)| Mark::Point {
        series: 0,
        style: Style::line(0, 0),
        marker: Marker::Circle,
        at: (x, y),
        label,
        weight: Weight::Faint,
    }));
    if !line.is_empty() {
        let style = Style::line(1, 0);
        panel.marks.push(Mark::Line { series: 1, style, weight: Weight::Full, points: line });
    }
    let shape = if panel.marks.len() > 1 { Shape::Scatter } else { Shape::Curve };
    let figure = Figure { title: title.to_owned(), shape, panels: vec![panel], ..Figure::default() };
    on_page::figure(&figure, &[])
}

/// A number with four significant digits.
fn significant(value: f64) -> String {
    match value.abs() {
        size if size >= 1e4 => format!("{value:.3e}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Costs, ModelHost};
    use crate::subject::Subject;

    /// A model is called one, each processor of the best placement has its mark, and foreign text is escaped.
    #[test]
    fn a_page_shows_who_runs_where() {
        let model = ModelHost::new("2x4".parse().unwrap(), Costs::default(), 4, 1).unwrap();
        let topology = model.topology();
        let processors: Vec<u32> = (0..8).collect();
        let cell = model.space().default_cell();
        let places: Vec<MarkedWork> = model
            .space()
            .places(&cell, 4, &processors)
            .into_iter()
            .map(|(name, processors)| MarkedWork { name, processors })
            .collect();
        assert_eq!(places.iter().map(|p| p.processors.len()).collect::<Vec<_>>(), [4, 4, 4]);
        let marked = Page::new("<b>", "a model").with_host(&topology, None, &places).html();
        let plain = Page::new("<b>", "a model").with_host(&topology, None, &[]).html();
        let paths = |html: &str| html.matches("<path").count();
        // A mark for each processor, and one in the legend.
        assert_eq!(paths(&marked), paths(&plain) + 3 * 5);
        assert!(marked.contains("&lt;b&gt;") && marked.contains("modelled, not measured"), "{marked}");
    }
}

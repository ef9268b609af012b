//! The cells of `wake` as one table, a row for each cell and quantity and a column for each way, and as one plot.
//!
//! Both are made from the figures' names, so that figures of another bench in the same run do not matter.

use super::{BASELINE, BASELINE_WORDS, LOADS, Place, QUANTILES, QUEUES, WAYS};
use crate::figure::Figure;
use ccplane_report::draw::style::COLOURS;
use ccplane_report::draw::{
    Axis, Entry, Figure as Drawn, Mark, Marker, Panel, Scale, Shape, Style, Weight, scene::scene, svg,
};
use std::collections::BTreeMap;

/// The quantity beside the quantiles: processor time a wake.
const CPU: &str = "cpu";
/// The quantiles that are plotted.
const PLOTTED: [&str; 2] = ["p50", "p99"];

/// The values of all cells, microseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// The columns: the baseline, then each way that was measured.
    ways: Vec<String>,
    /// By cell and quantity, then by way.
    values: BTreeMap<(String, String), BTreeMap<String, f64>>,
}

/// Parts of a figure's name: way, cell and quantity.
fn parts(name: &str) -> Option<(&str, &str, &str)> {
    let rest = name.strip_prefix("wake.")?;
    let place = [Place::SameCore, Place::OtherCore].iter().find_map(|place| rest.find(place.name()))?;
    let (way, cell) = (rest[..place].strip_suffix('.')?, &rest[place..]);
    // A quantity may have a dot of its own, as p99.9 has.
    let (dot, _) = cell.match_indices('.').nth(2)?;
    Some((way, &cell[..dot], &cell[dot + 1..]))
}

/// All cells in the order in which they are measured.
fn cells() -> impl Iterator<Item = (Place, usize, &'static str)> {
    [Place::SameCore, Place::OtherCore].into_iter().flat_map(|place| {
        QUEUES
            .into_iter()
            .flat_map(move |queues| LOADS.into_iter().map(move |load| (place, queues, load.name)))
    })
}

fn cell_name((place, queues, load): (Place, usize, &str)) -> String {
    format!("{}.{load}.{queues}", place.name())
}

impl Table {
    /// Collects the cells among figures; `None` where there are none.
    pub fn of(figures: &[Figure]) -> Option<Table> {
        let mut ways: Vec<String> = Vec::new();
        let mut values: BTreeMap<(String, String), BTreeMap<String, f64>> = BTreeMap::new();
        for figure in figures {
            let Some((way, cell, quantity)) = parts(&figure.name) else { continue };
            let row = values.entry((cell.to_owned(), quantity.to_owned())).or_default();
            row.insert(way.to_owned(), figure.value);
            if figure.baseline_name.starts_with(BASELINE_WORDS) {
                row.insert(BASELINE.to_owned(), figure.baseline);
            }
            if !ways.iter().any(|known| known == way) {
                ways.push(way.to_owned());
            }
        }
        // As in the list of ways, and behind them what is measured beside them.
        let known = |way: &String| WAYS.iter().position(|known| known.name == way).unwrap_or(WAYS.len());
        ways.sort_by(|a, b| known(a).cmp(&known(b)).then_with(|| a.cmp(b)));
        ways.insert(0, BASELINE.to_owned());
        (!values.is_empty()).then_some(Table { ways, values })
    }

    /// The headings of its columns.
    pub fn header(&self) -> Vec<&str> {
        ["cell", "us"].into_iter().chain(self.ways.iter().map(String::as_str)).collect()
    }

    /// The texts of its rows.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let quantities: Vec<&str> = QUANTILES.iter().map(|(_, label)| *label).chain([CPU]).collect();
        let mut rows = Vec::new();
        for cell in cells().map(cell_name) {
            for quantity in &quantities {
                let Some(values) = self.values.get(&(cell.clone(), (*quantity).to_owned())) else { continue };
                let texts = self.ways.iter().map(|way| values.get(way).map_or("-".into(), |v| shown(*v)));
                rows.push([cell.clone(), (*quantity).to_owned()].into_iter().chain(texts).collect());
            }
        }
        rows
    }

    /// Draws it as a file of SVG: a panel for each place and quantile, a line for each way.
    pub fn svg(&self) -> String {
        svg::write(&scene(&self.drawn()))
    }

    fn drawn(&self) -> Drawn {
        let panels = [Place::SameCore, Place::OtherCore]
            .into_iter()
            .flat_map(|place| PLOTTED.map(|quantile| self.panel(place, quantile)))
            .collect();
        let entries = self.ways.iter().enumerate().map(|(series, name)| Entry {
            series,
            name: name.clone(),
            style: style(series),
            marker: Some(Marker::nth(series)),
        });
        Drawn {
            name: "wake".to_owned(),
            title: "From an event to the thread that waits for it".to_owned(),
            subtitle: "by way to wait, load and number of queues".to_owned(),
            shape: Shape::Curve,
            entries: entries.collect(),
            panels,
            ..Drawn::default()
        }
    }

    fn panel(&self, place: Place, quantile: &str) -> Panel {
        let cells: Vec<_> = cells().filter(|(at, ..)| *at == place).collect();
        let row = |cell| self.values.get(&(cell_name(cell), quantile.to_owned()));
        let all = || cells.iter().filter_map(|cell| row(*cell)).flat_map(BTreeMap::values).copied();
        let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
        let end = cells.len() as f64 + 1.0;
        let mut x = Scale::new(Axis { min: 0.0, max: end, step: 1.0, logarithmic: false }, "", "");
        let labelled = |(n, (_, queues, load)): (usize, &(Place, usize, &str))| {
            (n as f64 + 1.0, format!("{load}, {queues}"))
        };
        x.labels = cells.iter().enumerate().map(labelled).collect();
        let y = Scale::new(Axis::logarithmic(least, most), format!("{}, {quantile}", place.name()), "us");
        let mut panel = Panel::new(x, y);
        for (series, way) in self.ways.iter().enumerate() {
            let points: Vec<(f64, f64)> = cells
                .iter()
                .enumerate()
                .filter_map(|(n, cell)| Some((n as f64 + 1.0, *row(*cell)?.get(way)?)))
                .collect();
            if points.is_empty() {
                continue;
            }
            let style = style(series);
            panel.marks.push(Mark::Line { series, style, weight: Weight::Full, points: points.clone() });
            panel.marks.extend(points.into_iter().map(|at| Mark::Point {
                series,
                style,
                marker: Marker::nth(series),
                at,
                label: format!("{way}: {} us", shown(at.1)),
                weight: Weight::Full,
            }));
        }
        panel
    }
}

/// Takes the colours in turn, with other dashes each time round.
fn style(series: usize) -> Style {
    Style::line(series % COLOURS, series / COLOURS)
}

/// A value with three significant digits or more.
fn shown(us: f64) -> String {
    match us {
        us if us >= 100.0 => format!("{us:.0}"),
        us if us >= 10.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::proof::Proof;

    fn figure(name: &str, value: f64, baseline: (f64, &str)) -> Figure {
        let proof = Proof::counted("wakes", 1).unwrap();
        Figure::paired(name, "us", baseline.1, &[(value, baseline.0)], &proof)
    }

    fn table() -> Table {
        let pipe = |value, at| figure(at, value, (30.0, "a pipe, p50"));
        Table::of(&[
            figure("sim.speed", 1.0, (1.0, "a heap")),
            figure("wake.auto.vs-best", 1.0, (1.0, "the best other way, p50")),
            figure("wake.auto.vs-best.same-core.idle.1", 1.0, (1.0, "the best other way, p50")),
            figure("wake.dispatch.queues.10.p50", 1.0, (1.0, "a dispatcher that looks at each, p50")),
            figure("wake.auto.share.1ms", 1.0, (10.0, "its budget")),
            figure("wake.futex.awake.other-core.idle.1.p50", 4.0, (40.0, "futex without, p50")),
            pipe(0.25, "wake.spin.other-core.idle.1.p50"),
            pipe(123.4, "wake.futex.other-core.idle.1.p50"),
            figure("wake.futex.other-core.idle.1.p99.9", 400.0, (500.0, "a pipe, p99.9")),
        ])
        .unwrap()
    }

    #[test]
    fn cells_are_rows_and_ways_are_columns() {
        let table = table();
        assert_eq!(table.header(), ["cell", "us", "pipe", "futex", "spin", "futex.awake"]);
        let rows: Vec<String> = table.rows().iter().map(|row| row.join(" ")).collect();
        assert_eq!(rows, ["other-core.idle.1 p50 30.0 123 0.25 4.00", "other-core.idle.1 p99.9 500 400 - -"]);
    }

    #[test]
    fn figures_of_other_benches_make_no_table() {
        assert_eq!(Table::of(&[figure("sim.speed", 1.0, (1.0, "a heap"))]), None);
    }

    #[test]
    fn a_plot_has_a_line_for_each_way_and_names_the_loads() {
        let table = table();
        let drawn = table.drawn();
        let lines = |panel: &Panel| panel.marks.iter().filter(|m| matches!(m, Mark::Line { .. })).count();
        // Same core: nothing was measured. Other core: p50 of four ways, and no p99.
        assert_eq!(drawn.panels.iter().map(lines).collect::<Vec<_>>(), [0, 0, 4, 0]);
        let svg = table.svg();
        for text in ["futex.awake", "spin", "back-to-back, 100", "other-core, p99"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}

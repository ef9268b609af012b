//! Plots as self-contained SVG files, and a sparkline for the terminal.

use ccplane_netsim::trace::Trace;
use ccplane_report::draw::{
    Axis, Entry, Figure, Mark, Panel, Scale, Shape, Style, Weight, scene::scene, svg, thinned,
};

use crate::error::Error;
use crate::log::{Bin, DelayPoint, LinkLog};
use crate::rates::{RateStep, rates_of};

/// The most points of a line, and columns of a plot, which shows no finer detail.
const COLUMNS: u32 = 1_600;
/// The shortest interval over which a trace's rate is averaged, milliseconds.
const FINEST_MS: u32 = 100;
/// The line of a trace's rate averages this many of the intervals that the area shows.
const CALM: u32 = 10;
/// Block characters of a sparkline, from zero to the highest rate.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BLUE: usize = 0;
const ORANGE: usize = 1;
const GREY: usize = 5;
/// The dash pattern of horizontal lines at a mean or a percentile.
const LEVEL_DASHES: usize = 1;

/// Draws a trace's rate over time and returns the SVG document.
///
/// # Errors
/// None for a verified trace.
pub fn trace(trace: &Trace, title: &str) -> Result<String, Error> {
    let period_ms = trace.period_ms() as u32;
    let seconds = f64::from(period_ms) / 1e3;
    let fine_ms = period_ms.div_ceil(COLUMNS).next_multiple_of(FINEST_MS);
    let calm_ms = fine_ms * CALM;
    let fine = steps(&rates_of(trace, fine_ms)?);
    let mean = trace.mean_rate_bit_per_s() as f64 / 1e6;
    let mut plot = Plot::new(title, (0.0, seconds));
    plot.figure.subtitle =
        format!("{seconds:.1} s, {} opportunities of 1504 bytes", trace.opportunities_ms().len());
    plot.panel("Rate", "Mb/s", highest(&fine));
    plot.area(&every(fine_ms), fine);
    plot.stairs(&every(calm_ms), BLUE, &steps(&rates_of(trace, calm_ms)?));
    plot.level(format!("mean {mean:.2}"), GREY, mean);
    Ok(plot.svg())
}

/// Draws a link log's rates and delays over time, as `mm-throughput-graph` and `mm-delay-graph` do, and returns the SVG document.
///
/// # Errors
/// A log without figures, or bins that are too many ([`LinkLog::bins`]).
pub fn log(log: &LinkLog, bin_ms: u32, title: &str) -> Result<String, Error> {
    let figures = log.figures()?;
    let bins = log.bins(bin_ms)?;
    let bin_s = f64::from(bin_ms) / 1e3;
    let (start, end) = (bins.first().map_or(0.0, |b| b.t_s), bins.last().map_or(bin_s, |b| b.t_s + bin_s));
    let rate = |value: fn(&Bin) -> f64| -> Vec<(f64, f64)> {
        bins.iter().map(|b| (b.t_s, value(b))).chain(bins.last().map(|b| (end, value(b)))).collect()
    };
    let (capacity, ingress) = (rate(|b| b.capacity_mbit_per_s), rate(|b| b.ingress_mbit_per_s));
    let egress = rate(|b| b.throughput_mbit_per_s);
    let mut plot = Plot::new(title, (start, end));
    let used =
        figures.utilisation.map_or(String::new(), |u| format!(", {:.1} % of capacity used", u * 100.0));
    let queue = if log.queue.is_empty() { String::new() } else { format!(", queue {}", log.queue) };
    plot.figure.subtitle = format!("{:.1} s{used}{queue}", f64::from(figures.duration_ms) / 1e3);
    plot.panel(
        "Throughput",
        "Mb/s",
        [&capacity, &ingress, &egress].map(|r| highest(r)).into_iter().fold(0.0, f64::max),
    );
    plot.area(&format!("capacity (mean {:.2})", figures.capacity_mbit_per_s), capacity);
    plot.stairs(&format!("ingress (mean {:.2})", figures.ingress_mbit_per_s), ORANGE, &ingress);
    plot.stairs(&format!("egress (mean {:.2})", figures.throughput_mbit_per_s), BLUE, &egress);

    let points = |delays: &mut dyn Iterator<Item = DelayPoint>| {
        let mut points: Vec<_> = delays.map(|p| (f64::from(p.at_ms) / 1e3, f64::from(p.delay_ms))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let of_packets = points(&mut log.delays());
    let signal = points(&mut log.signal_delays().into_iter());
    plot.panel("Queueing delay", "ms", highest(&of_packets).max(highest(&signal)));
    plot.range("delay of packets", BLUE, &of_packets);
    plot.line("signal delay", ORANGE, thinned(signal, COLUMNS as usize));
    let (packets, signal) = (figures.queueing_delay_p95_ms, figures.signal_delay_p95_ms);
    plot.level(format!("95th percentile of packets {packets}"), BLUE, packets.into());
    plot.level(format!("of signal delay {signal}"), ORANGE, signal.into());
    Ok(plot.svg())
}

/// A figure over time in the making; what is added goes into its last panel.
struct Plot {
    figure: Figure,
    start_s: f64,
    end_s: f64,
}

impl Plot {
    fn new(title: &str, (start_s, end_s): (f64, f64)) -> Plot {
        let figure = Figure { title: title.to_owned(), shape: Shape::Curve, ..Figure::default() };
        Plot { figure, start_s, end_s }
    }

    fn panel(&mut self, title: &str, unit: &str, highest: f64) {
        let time = Axis { max: self.end_s, ..Axis::between(self.start_s, self.end_s) };
        let panel =
            Panel::new(Scale::new(time, "Time", "s"), Scale::new(Axis::covering(highest), title, unit));
        self.figure.panels.push(panel);
    }

    fn mark(&mut self, mark: Mark) {
        if let Some(panel) = self.figure.panels.last_mut() {
            panel.marks.push(mark);
        }
    }

    /// Adds a line of the legend and returns its number.
    fn entry(&mut self, name: String, style: Style) -> usize {
        let series = self.figure.entries.len();
        self.figure.entries.push(Entry { series, name, style, marker: None });
        series
    }

    fn area(&mut self, name: &str, steps: Vec<(f64, f64)>) {
        if let Some(panel) = self.figure.panels.last_mut() {
            panel.area = name.to_owned();
        }
        self.mark(Mark::Area(steps));
    }

    fn line(&mut self, name: &str, colour: usize, points: Vec<(f64, f64)>) {
        let style = Style::line(colour, 0);
        let series = self.entry(name.to_owned(), style);
        self.mark(Mark::Line { series, style, weight: Weight::Full, points });
    }

    /// Adds a line whose values hold until the next point.
    fn stairs(&mut self, name: &str, colour: usize, steps: &[(f64, f64)]) {
        let corners = steps.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
        self.line(name, colour, corners.chain(steps.last().copied()).collect());
    }

    /// Adds a dashed horizontal line.
    fn level(&mut self, name: String, colour: usize, at: f64) {
        let style = Style::line(colour, LEVEL_DASHES);
        let series = self.entry(name, style);
        let points = vec![(self.start_s, at), (self.end_s, at)];
        self.mark(Mark::Line { series, style, weight: Weight::Full, points });
    }

    /// Adds a band from the least to the greatest value of each column that has points, which are in order of time.
    fn range(&mut self, name: &str, colour: usize, points: &[(f64, f64)]) {
        let style = Style::band(colour, 0);
        let series = self.entry(name.to_owned(), style);
        let width_s = (self.end_s - self.start_s) / f64::from(COLUMNS);
        for (column, lowest, highest) in columns(points, self.start_s, width_s) {
            let left = self.start_s + f64::from(column) * width_s;
            let points = vec![(left, lowest, highest), (left + width_s, lowest, highest)];
            self.mark(Mark::Band { series, style, points });
        }
    }

    fn svg(&self) -> String {
        svg::write(&scene(&self.figure)).trim_end().to_owned()
    }
}

/// Returns each column that has points, with its least and its greatest value.
fn columns(points: &[(f64, f64)], start_s: f64, width_s: f64) -> Vec<(u32, f64, f64)> {
    let column = |point: &(f64, f64)| ((point.0 - start_s) / width_s) as u32;
    let extremes = |chunk: &[(f64, f64)]| {
        let (low, high) = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = chunk.iter().fold((low, high), |(low, high), p| (low.min(p.1), high.max(p.1)));
        (column(&chunk[0]), low, high)
    };
    points.chunk_by(|a, b| column(a) == column(b)).map(extremes).collect()
}

fn highest(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|p| p.1).fold(0.0, f64::max)
}

/// Returns a trace's rate as one line of `columns` block characters, the highest being the fastest.
///
/// # Errors
/// None for a verified trace.
pub fn sparkline(trace: &Trace, columns: u32) -> Result<String, Error> {
    // A trace lasts a day at most, which fits.
    let period_ms = trace.period_ms() as u32;
    let rates = rates_of(trace, period_ms.div_ceil(columns.max(1)))?;
    let most = rates.iter().map(|s| s.bit_per_s).max().unwrap_or(0).max(1);
    let top = LEVELS.len() as u64 - 1;
    Ok(rates.iter().map(|s| LEVELS[((s.bit_per_s * top + most / 2) / most) as usize]).collect())
}

fn every(ms: u32) -> String {
    if ms.is_multiple_of(1000) { format!("over {} s", ms / 1000) } else { format!("over {ms} ms") }
}

/// Returns each step's start in seconds with its rate in Mb/s, and the end of the last step.
fn steps(steps: &[RateStep]) -> Vec<(f64, f64)> {
    let mut now_ms: u64 = 0;
    let mut points = Vec::with_capacity(steps.len() + 1);
    for step in steps {
        points.push((now_ms as f64 / 1e3, step.bit_per_s as f64 / 1e6));
        now_ms += u64::from(step.duration_ms);
    }
    points.extend(steps.last().map(|s| (now_ms as f64 / 1e3, s.bit_per_s as f64 / 1e6)));
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::trace_of;
    use crate::shape;

    #[test]
    fn a_sparkline_rises_with_the_rate() {
        let wave = shape::step(&[0, 10_000_000, 20_000_000, 40_000_000], 1000, 4000).unwrap();
        assert_eq!(sparkline(&trace_of(&wave).unwrap(), 4).unwrap(), "▁▃▅█");
        assert_eq!(sparkline(&Trace::parse("1\n").unwrap(), 60).unwrap(), "█");
    }

    #[test]
    fn pictures_are_whole_escaped_and_small() {
        let hour = trace_of(&shape::sawtooth(1_000_000, 20_000_000, 60_000, 3_600_000).unwrap()).unwrap();
        let svg = trace(&hour, "a <b> & c").unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>") && svg.contains("a &lt;b&gt; &amp; c"));
        assert!(!svg.contains("NaN"));
        assert!(svg.len() < 100_000, "{}", svg.len());

        let mut text = String::from("# base timestamp: 0\n");
        (1..200_000).for_each(|ms| {
            text.push_str(&format!("{ms} # 1504\n{ms} + 1504\n{} - 1504 {}\n", ms + 9, ms % 7))
        });
        let read = LinkLog::parse(&text).unwrap();
        let svg = log(&read, 500, "up.log").unwrap();
        assert!(
            svg.contains("Queueing delay")
                && svg.contains("95th percentile of packets 6")
                && !svg.contains("NaN")
        );
        assert!(svg.len() < 300_000, "{}", svg.len());
        assert!(log(&LinkLog::default(), 500, "").is_err());
    }

    #[test]
    fn columns_keep_the_extremes() {
        let points: Vec<_> =
            (0..100_000).map(|n| (f64::from(n), if n == 777 { 9.0 } else { f64::from(n % 3) })).collect();
        let found = columns(&points, 0.0, 100.0);
        assert_eq!(found.len(), 1000);
        assert_eq!((found[7], found[8]), ((7, 0.0, 9.0), (8, 0.0, 2.0)));
        assert_eq!(columns(&[(5.0, 1.0), (950.0, 2.0)], 0.0, 100.0), [(0, 1.0, 1.0), (9, 2.0, 2.0)]);
    }
}

//! Pictures: self-contained SVG, light or dark as the reader's screen is, and a sparkline for the terminal.

mod axis;
mod svg;

use ccplane_netsim::trace::Trace;

use crate::error::Error;
use crate::log::LinkLog;
use crate::rates::{Step, rates_of};
use svg::{Form, Mark, Panel, Picture, Series};

/// Columns of a picture: finer detail cannot be seen, and is averaged (rates) or thinned to its extremes (delays).
const COLUMNS: u32 = 1_600;
/// Finest interval of a trace's rate.
const FINEST_MS: u32 = 100;
/// The calm line of a trace's rate averages this many fine intervals.
const CALM: u32 = 10;
/// From nothing to the most.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A trace's rate over time as an SVG document.
///
/// # Errors
/// None that a verified trace can have.
pub fn trace(trace: &Trace, title: &str) -> Result<String, Error> {
    let period_ms = trace.period_ms() as u32;
    let fine_ms = period_ms.div_ceil(COLUMNS).next_multiple_of(FINEST_MS);
    let calm_ms = fine_ms * CALM;
    let series = |label: String, form, colour, interval_ms| -> Result<Series, Error> {
        Ok(Series { label, form, colour, points: stairs(&rates_of(trace, interval_ms)?) })
    };
    let mean = trace.mean_rate_bit_per_s() as f64 / 1e6;
    let panel = Panel {
        title: "Rate",
        unit: "Mb/s",
        series: vec![
            series(every(fine_ms), Form::Area, 0, fine_ms)?,
            series(every(calm_ms), Form::Stairs, 1, calm_ms)?,
        ],
        marks: vec![Mark { label: format!("mean {mean:.2}"), at: mean, colour: 2 }],
    };
    let seconds = f64::from(period_ms) / 1e3;
    let subtitle = format!("{seconds:.1} s, {} opportunities of 1504 bytes", trace.opportunities_ms().len());
    Ok(Picture { title: title.into(), subtitle, seconds: (0.0, seconds), panels: vec![panel] }.svg())
}

/// A link log's rates and delays over time as an SVG document: what `mm-throughput-graph` and `mm-delay-graph` show.
///
/// # Errors
/// A log without figures, or bins that are too many ([`LinkLog::bins`]).
pub fn log(log: &LinkLog, bin_ms: u32, title: &str) -> Result<String, Error> {
    let figures = log.figures()?;
    let bins = log.bins(bin_ms)?;
    let bin_s = f64::from(bin_ms) / 1e3;
    let (start, end) = (bins.first().map_or(0.0, |b| b.t_s), bins.last().map_or(bin_s, |b| b.t_s + bin_s));
    let rate = |label: &str, form, colour, mean: f64, value: fn(&crate::log::Bin) -> f64| Series {
        label: format!("{label} (mean {mean:.2})"),
        form,
        colour,
        points: bins.iter().map(|b| (b.t_s, value(b))).chain(bins.last().map(|b| (end, value(b)))).collect(),
    };
    let throughput = Panel {
        title: "Throughput",
        unit: "Mb/s",
        series: vec![
            rate("capacity", Form::Area, 0, figures.capacity_mbit_per_s, |b| b.capacity_mbit_per_s),
            rate("ingress", Form::Stairs, 3, figures.ingress_mbit_per_s, |b| b.ingress_mbit_per_s),
            rate("egress", Form::Stairs, 1, figures.throughput_mbit_per_s, |b| b.throughput_mbit_per_s),
        ],
        marks: Vec::new(),
    };
    let points = |delays: &mut dyn Iterator<Item = crate::log::DelayPoint>| {
        delays.map(|p| (f64::from(p.at_ms) / 1e3, f64::from(p.delay_ms))).collect::<Vec<_>>()
    };
    let (packets, signal) = (figures.queueing_delay_p95_ms, figures.signal_delay_p95_ms);
    let delay = Panel {
        title: "Queueing delay",
        unit: "ms",
        series: vec![
            Series {
                label: "of packets".into(),
                form: Form::Dots,
                colour: 1,
                points: thinned(points(&mut log.delays()), (start, end)),
            },
            Series {
                label: "signal delay".into(),
                form: Form::Line,
                colour: 3,
                points: thinned(points(&mut log.signal_delays().into_iter()), (start, end)),
            },
        ],
        marks: vec![
            Mark { label: format!("95th percentile of packets {packets}"), at: packets.into(), colour: 1 },
            Mark { label: format!("of signal delay {signal}"), at: signal.into(), colour: 3 },
        ],
    };
    let used =
        figures.utilisation.map_or(String::new(), |u| format!(", {:.1} % of capacity used", u * 100.0));
    let queue = if log.queue.is_empty() { String::new() } else { format!(", queue {}", log.queue) };
    let subtitle = format!("{:.1} s{used}{queue}", f64::from(figures.duration_ms) / 1e3);
    Ok(Picture { title: title.into(), subtitle, seconds: (start, end), panels: vec![throughput, delay] }
        .svg())
}

/// A trace's rate as one line of `columns` block characters, the highest being the fastest.
///
/// # Errors
/// None that a verified trace can have.
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

/// Each step's start in seconds and its rate in Mb/s, and the end of the last.
fn stairs(steps: &[Step]) -> Vec<(f64, f64)> {
    let mut now_ms: u64 = 0;
    let mut points = Vec::with_capacity(steps.len() + 1);
    for step in steps {
        points.push((now_ms as f64 / 1e3, step.bit_per_s as f64 / 1e6));
        now_ms += u64::from(step.duration_ms);
    }
    points.extend(steps.last().map(|s| (now_ms as f64 / 1e3, s.bit_per_s as f64 / 1e6)));
    points
}

/// Of the points in each column the lowest and the highest, in order of time.
fn thinned(mut points: Vec<(f64, f64)>, (start, end): (f64, f64)) -> Vec<(f64, f64)> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let column = |p: &(f64, f64)| ((p.0 - start) / (end - start) * f64::from(COLUMNS)) as i64;
    let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
    let extremes = |chunk: &[(f64, f64)]| {
        let pair = chunk.iter().min_by(by_value).zip(chunk.iter().max_by(by_value));
        let (low, high) = pair.unwrap_or((&(0.0, 0.0), &(0.0, 0.0)));
        if low.0 <= high.0 { [*low, *high] } else { [*high, *low] }
    };
    let mut thin: Vec<_> = points.chunk_by(|a, b| column(a) == column(b)).flat_map(extremes).collect();
    thin.dedup();
    thin
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
        assert!(svg.contains("prefers-color-scheme: dark") && !svg.contains("NaN"));
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
    fn thinning_keeps_the_extremes() {
        let points =
            (0..100_000).map(|n| (f64::from(n), if n == 777 { 9.0 } else { f64::from(n % 3) })).collect();
        let thin = thinned(points, (0.0, 100_000.0));
        assert!(thin.len() <= 2 * COLUMNS as usize && thin.contains(&(777.0, 9.0)));
        assert!(thin.is_sorted_by(|a, b| a.0 <= b.0));
    }
}

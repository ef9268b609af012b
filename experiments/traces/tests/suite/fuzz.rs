//! Fuzz targets: no text panics a parser; what is read has the figures, pictures and numbers that it must.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`.

use ccplane_testing::fuzz::{Fuzz, shape};
use ccplane_traces::log::LinkLog;
use ccplane_traces::plot;
use ccplane_traces::rates::{rates_of, trace_of};
use ccplane_traces::series::{Unit, parse, write};

const LOG: &str = "# mahimahi mm-link (Uplink) [12] > up.log\n# command line: mm-link 12 12\n# queue: infinite\n\
                   # init timestamp: 1795259227714\n# base timestamp: 35\n36 # 1504\n37 + 56\n38 d 2 3008\n38 # 1504\n\
                   40 - 56 3\n41 + 1504\n44 - 1504 3\n";
/// Longest series whose trace is laid out.
const SHORT_MS: u64 = 10_000;

fn check_log(text: &str) {
    let Ok(log) = LinkLog::parse(text) else { return };
    let events = text.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(log.events.len(), events);
    if let Ok(figures) = log.figures() {
        assert!(figures.throughput_mbit_per_s.is_finite() && figures.duration_ms > 0);
        assert!(figures.queueing_delay_p50_ms <= figures.queueing_delay_p95_ms);
        assert!(figures.to_string().starts_with("Average capacity: "));
        if log.bins(500).is_ok_and(|bins| bins.len() < 10_000) {
            assert!(plot::log(&log, 500, "fuzz").unwrap().ends_with("</svg>"));
        }
    }
}

fn check_series(text: &str, interval_ms: Option<u32>) {
    for unit in [Unit::Mbps, Unit::Pps] {
        let Ok(steps) = parse(text, unit, interval_ms) else { continue };
        let again = parse(&write(&steps, unit, true), unit, steps.last().map(|s| s.duration_ms)).unwrap();
        assert_eq!(again.len(), steps.len());
        for (a, b) in again.iter().zip(&steps) {
            assert!(a.duration_ms == b.duration_ms && a.bit_per_s.abs_diff(b.bit_per_s) <= 1);
        }
        let short = steps.iter().map(|s| u64::from(s.duration_ms)).sum::<u64>() <= SHORT_MS;
        let Ok(trace) = (if short { trace_of(&steps) } else { continue }) else { continue };
        assert!(rates_of(&trace, 100).unwrap().iter().any(|s| s.bit_per_s > 0));
    }
}

/// The log with lines cut out, doubled and rewritten.
fn mutate(edits: &[(u8, u8, u32, u32)]) -> String {
    let mut lines: Vec<String> = LOG.lines().map(str::to_owned).collect();
    for (at, what, a, b) in edits {
        let at = usize::from(*at) % lines.len().max(1);
        let line = match what % 7 {
            0 => format!("{a} + {b}"),
            1 => format!("{a} # {b}"),
            2 => format!("{a} - 1504 {b}"),
            3 => format!("{a} d {b} 3"),
            4 => format!("# base timestamp: {a}"),
            5 => lines.get(at).cloned().unwrap_or_default(),
            _ => format!("{} - 1504 {}", a % 10_000 + 100, b % 60),
        };
        lines.insert(at, line);
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_log_of_any_text_is_refused_or_has_sound_figures() {
    check_log(LOG);
    bolero::check!().for_each(|bytes: &[u8]| check_log(&String::from_utf8_lossy(bytes)));
}

#[test]
fn a_log_with_other_lines_is_refused_or_has_sound_figures() {
    bolero::check!().with_type::<Vec<(u8, u8, u32, u32)>>().for_each(|edits| check_log(&mutate(edits)));
}

#[test]
fn a_series_of_any_text_is_refused_or_reads_back_as_itself() {
    check_series("time_s,mbps\n0,1\n0.25,2\n", None);
    bolero::check!().for_each(|bytes: &[u8]| check_series(&String::from_utf8_lossy(bytes), Some(100)));
}

#[test]
fn a_series_of_any_numbers_is_refused_or_reads_back_as_itself() {
    bolero::check!().with_type::<(Vec<(u32, u32)>, bool, u16)>().for_each(|(pairs, timed, ms)| {
        let line = |(a, b): &(u32, u32)| {
            let value = f64::from(*b) / 1e4;
            if *timed { format!("{},{value}\n", f64::from(*a) / 1e5) } else { format!("{value}\n") }
        };
        let text: String = pairs.iter().map(line).collect();
        check_series(&text, Some(u32::from(*ms)));
    });
}

#[test]
fn a_drawn_log_is_refused_or_has_sound_figures() {
    let tokens = [
        "\n",
        " # 1504",
        " + 56",
        " - 1504 3",
        " d 2 3008",
        "# queue: infinite\n",
        "# base timestamp: 0\n",
        "37",
        "4294967296",
    ];
    let short =
        "# mahimahi mm-link (Uplink) [12] > up.log\n# base timestamp: 35\n36 # 1504\n37 + 56\n40 - 56 3\n";
    let target = Fuzz::new("mm-link-log", env!("CARGO_MANIFEST_DIR")).seeds([LOG, short]).tokens(tokens);
    target.max_bytes(512).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        match LinkLog::parse(&text) {
            Ok(log) => {
                let events = text.lines().filter(|line| !line.starts_with('#')).count();
                assert_eq!(log.events.len(), events);
                let Ok(figures) = log.figures() else { return 1 };
                assert!(figures.throughput_mbit_per_s.is_finite() && figures.duration_ms > 0);
                assert!(figures.queueing_delay_p50_ms <= figures.queueing_delay_p95_ms);
                2 + events.min(8) as u64
            }
            Err(error) => shape(&error),
        }
    });
}

#[test]
fn a_drawn_series_is_refused_or_reads_back_as_itself() {
    let tokens = ["\n", ",", "time_s,mbps\n", "pps\n", "#", "0.25", "-1", "1e999", "4294967296", "nan"];
    let seeds = ["time_s,mbps\n0,1\n0.25,2\n", "mbps\n1\n2.5\n", "0,12\n1,0\n3.5,6\n", "100\n200\n"];
    let target = Fuzz::new("rate-series", env!("CARGO_MANIFEST_DIR")).seeds(seeds).tokens(tokens);
    target.max_bytes(256).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        check_series(&text, Some(100));
        match parse(&text, Unit::Mbps, Some(100)) {
            Ok(steps) => 1 + steps.len().min(8) as u64,
            Err(error) => shape(&error),
        }
    });
}

//! ccplane's link shells beside the real mahimahi's, and our figures of a log beside those of its own graphs.
#![allow(clippy::unwrap_used)]

use ccplane_benches::mahimahi::{Load, Mahimahi, Pair, differences, links};
use ccplane_testing::within_tries;
use ccplane_traces::log::{Figures, LinkLog};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A short pair of runs on a machine that does other things: the benchmark is stricter.
const SECONDS: u32 = 6;
/// A pause of the machine spoils one pair of runs; links that are not alike spoil each pair.
const TRIES: u32 = 4;
/// Largest relative difference of utilisation, whatever the load.
const UTILISATION: f64 = 0.02;
/// Of the 95th percentile of the delay, when the queue is always full.
const DELAY_OF_A_FLOOD: f64 = 0.03;
/// When CUBIC fills and drains it: a few seconds hold one or two of its peaks.
const DELAY_OF_CUBIC: f64 = 0.35;

#[test]
fn links_and_figures_are_those_of_the_real_mahimahi() {
    let check = "links_and_figures_are_those_of_the_real_mahimahi";
    let Some(mahimahi) = ccplane_testing::found(check, Mahimahi::find()) else { return };
    let mut runs: Vec<(&str, String, Load)> =
        links().into_iter().map(|(name, trace)| (name, trace, Load::Cubic)).collect();
    if runs.len() < 2 {
        ccplane_testing::skipped(
            "the comparison with mahimahi over LTE",
            "`.ci/traces target/traces` fetches the trace",
        );
    }
    runs.push(("flooded", runs[0].1.clone(), Load::Flood));
    std::thread::scope(|scope| {
        for (name, trace, load) in &runs {
            let mahimahi = &mahimahi;
            scope.spawn(move || {
                let ccplane = Path::new(env!("CARGO_BIN_EXE_ccplane"));
                let compare = |_| {
                    let dir = tempfile::tempdir().unwrap();
                    let kept = Some(dir.path());
                    let pairs = mahimahi.compare(ccplane, (trace, *load), (1, SECONDS), kept).unwrap();
                    for log in ["ours.log", "theirs.log"] {
                        assert_graphs_agree(mahimahi, dir.path(), log);
                    }
                    are_alike(name, *load, &pairs)
                };
                within_tries(&format!("a link like mahimahi's: {name}"), TRIES, compare);
            });
        }
    });
}

/// The figure that differs too much, if one does.
fn are_alike(name: &str, load: Load, pairs: &[Pair]) -> Result<(), String> {
    let Pair { ours, theirs } = &pairs[0];
    let shown = |f: &Figures| (f.utilisation, f.queueing_delay_p95_ms);
    let capacity = ours.capacity_mbit_per_s / theirs.capacity_mbit_per_s;
    assert!((0.99..1.01).contains(&capacity), "{name}: the same trace delivers the same: {capacity}");
    let [utilisation, delay] = differences(pairs);
    let delay_limit = if load == Load::Flood { DELAY_OF_A_FLOOD } else { DELAY_OF_CUBIC };
    if utilisation <= UTILISATION && delay <= delay_limit {
        return Ok(());
    }
    let (ours, theirs) = (shown(ours), shown(theirs));
    Err(format!(
        "differ by {utilisation} in utilisation, {delay} in delay: ours {ours:?}, mahimahi's {theirs:?}"
    ))
}

/// mahimahi's two graphs print what we print, to the last digit.
fn assert_graphs_agree(mahimahi: &Mahimahi, dir: &Path, log: &str) {
    let text = fs::read_to_string(dir.join(log)).unwrap();
    let ours = LinkLog::parse(&text).unwrap().figures().unwrap().to_string();
    // mahimahi 0.98 logs no drops and its throughput graph refuses them.
    let without_drops: String =
        text.lines().filter(|l| !l.contains(" d ")).map(|line| format!("{line}\n")).collect();
    let plain = dir.join(format!("{log}.plain"));
    fs::write(&plain, without_drops).unwrap();
    // The graphs draw with gnuplot after they have printed; what they draw does not matter here.
    let gnuplot = dir.join("gnuplot");
    fs::write(&gnuplot, "#!/bin/sh\nexec cat >/dev/null\n").unwrap();
    fs::set_permissions(&gnuplot, Permissions::from_mode(0o755)).unwrap();
    let graph = |name: &str, arguments: &[&str]| {
        let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("perl");
        command.arg(mahimahi.script(name)).args(arguments).arg(&plain).env("PATH", path);
        match command.output() {
            Ok(output) => Some(String::from_utf8(output.stderr).unwrap()),
            Err(error) => {
                ccplane_testing::skipped(&format!("mahimahi's {name}"), format_args!("perl: {error}"));
                None
            }
        }
    };
    if let Some(theirs) = graph("mm-throughput-graph", &["500"]) {
        assert_eq!(theirs, ours, "{log}");
    }
    if let Some(theirs) = graph("mm-delay-graph", &[]) {
        let delays: Vec<&str> = ours.lines().skip(2).collect();
        assert_eq!(theirs.lines().collect::<Vec<_>>(), delays, "{log}");
    }
}

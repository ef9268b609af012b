//! `ccplane host measure`: a sweep over placements and settings.

use super::subject::{Bar, Host, Opened};
use crate::cli::HostMeasureArgs;
use crate::commands::output::{print, print_json, shown, table};
use crate::commands::signals::{SIGNALLED, stop_on_signals};
use ccplane_agent::failure::Failure;
use ccplane_host::{
    Cell, Frame, Page, Row, RowOutcome, Source, SweepEnd, SweepOptions, SweepStep, Table, TableError,
    swept_section,
};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Combinations that are shown.
const SHOWN: usize = 10;

/// The JSON output of `ccplane host measure`.
#[derive(Serialize)]
struct SweepOutput<'a> {
    source: &'a Source,
    /// The origin of the figures in words; a model is called one.
    origin: String,
    results: &'a Path,
    measured: u64,
    failed: u64,
    /// Reasons of all failures so far, each once.
    reasons: Vec<String>,
    left: u64,
    /// The reason why it ended before all was measured; null where it did not.
    ended_by: Option<String>,
    cells: Vec<Line>,
}

/// A combination with the means of its measurements.
#[derive(Serialize)]
struct Line {
    setting: String,
    throughput_bps: f64,
    efficiency: f64,
}

pub(super) fn measure(args: &HostMeasureArgs) -> Result<ExitCode, Failure> {
    let mut opened = Opened::new(&args.subject, &args.journal.journal)?;
    if opened.is_named && !args.subject.apply {
        return print(&opened.dry_run()).map(|()| ExitCode::SUCCESS);
    }
    say_what_is_missing(&opened);
    let mut results = Table::open(&args.results, opened.header.clone()).map_err(|error| match error {
        TableError::Other { .. } | TableError::BadLine { .. } => Failure::input(error),
        error => Failure::runtime(error),
    })?;
    let options = SweepOptions {
        cells: args.cells,
        repeats: args.repeats,
        seed: args.subject.seed,
        budget: args.subject.budget_s.map(Duration::from_secs),
    };
    let stop = stop_on_signals()?;
    let mut bar = Bar::new();
    let mut told = |step: &SweepStep<'_>| {
        let says = match step.outcome {
            Ok(sample) => format!("{:.2} Gb/s  {}", sample.throughput_bps() / 1e9, step.cell),
            Err(why) => format!("failed: {why}"),
        };
        bar.draw(step.done, step.total, &says);
    };
    let stopped = || stop.load(Ordering::Relaxed);
    let swept = ccplane_host::sweep(opened.subject(), &mut results, &options, &stopped, &mut told);
    drop(bar);
    let swept = swept.map_err(Failure::runtime)?;
    let lines = lines(&results);
    write_beside(args, &mut opened, &results)?;
    let (ended_by, code) = match &swept.end {
        SweepEnd::All => (None, ExitCode::SUCCESS),
        SweepEnd::Budget => (Some("the time is used up".to_owned()), ExitCode::SUCCESS),
        SweepEnd::Stopped => (Some("a signal".to_owned()), ExitCode::from(SIGNALLED)),
        SweepEnd::Fault(fault) => (Some(fault.to_string()), ExitCode::FAILURE),
    };
    if args.journal.json {
        print_json(&SweepOutput {
            source: &results.header.source,
            origin: results.header.source.words(),
            results: &args.results,
            measured: swept.measured,
            failed: swept.failed,
            reasons: reasons(&results),
            left: swept.left,
            ended_by,
            cells: lines,
        })?;
    } else {
        let rows: Vec<Vec<String>> = lines.iter().take(SHOWN).map(row).collect();
        let mut text = format!("# {}\n", results.header.source.words());
        text += &table(&["setting", "Gb/s", unit(&results)], &rows);
        text += &format!(
            "{} measured, {} failed, {} left: {}\n",
            swept.measured,
            swept.failed,
            swept.left,
            args.results.display()
        );
        reasons(&results).iter().take(SHOWN).for_each(|why| text += &format!("# failed: {}\n", shown(why)));
        print(&text)?;
    }
    match swept.end {
        SweepEnd::Fault(fault) => Err(Failure::runtime(fault)),
        _ => Ok(code),
    }
}

/// Says on standard error what is not measured here, and why.
pub(super) fn say_what_is_missing(opened: &Opened) {
    if let Host::Live(live) = &opened.host
        && let Some(why) = live.why_no_instructions()
    {
        eprintln!(
            "ccplane: instructions are not counted: {why}; efficiency is in bytes per processor second"
        );
    }
}

fn reasons(results: &Table) -> Vec<String> {
    let why = |row: &Row| match &row.outcome {
        RowOutcome::Failed(why) => Some(why.clone()),
        RowOutcome::Measured(_) => None,
    };
    let all: BTreeSet<String> = results.rows().iter().filter_map(why).collect();
    all.into_iter().collect()
}

fn unit(results: &Table) -> &'static str {
    let first = results.by_cell().into_iter().flat_map(|(_, samples)| samples).next();
    first.unwrap_or_default().efficiency().1.words()
}

fn row(line: &Line) -> Vec<String> {
    vec![
        line.setting.clone(),
        format!("{:.3}", line.throughput_bps / 1e9),
        format!("{:.4e}", line.efficiency),
    ]
}

/// Returns the measured combinations, the fastest first.
fn lines(results: &Table) -> Vec<Line> {
    let frame = Frame::of_table(results);
    let cells = results.by_cell().into_iter().zip(&frame.rows).map(|((cell, _), row)| Line {
        setting: results.header.space.shown(&cell),
        throughput_bps: row.throughput,
        efficiency: row.efficiency,
    });
    let mut lines: Vec<Line> = cells.collect();
    lines.sort_by(|a, b| b.throughput_bps.total_cmp(&a.throughput_bps));
    lines
}

fn fastest(results: &Table) -> Cell {
    let frame = Frame::of_table(results);
    let cells = results.by_cell().into_iter().zip(&frame.rows);
    let best = cells.max_by(|(_, a), (_, b)| a.throughput.total_cmp(&b.throughput));
    best.map_or_else(|| results.header.space.default_cell(), |((cell, _), _)| cell)
}

/// Writes the further files that the options ask for.
fn write_beside(args: &HostMeasureArgs, opened: &mut Opened, results: &Table) -> Result<(), Failure> {
    if let Some(path) = &args.csv {
        results.write_csv(File::create(path)?).map_err(Failure::runtime)?;
    }
    if results.rows().is_empty() {
        return Ok(());
    }
    let best = fastest(results);
    if let Some(path) = &args.report {
        let page = Page::new("What this host carries", &results.header.source.words())
            .with_host(&opened.topology(), Some(opened.interface()), &opened.places(&best))
            .with_section(swept_section(results));
        std::fs::write(path, page.html())?;
    }
    if let (Some(folder), Host::Live(live)) = (&args.flames, &mut opened.host) {
        std::fs::create_dir_all(folder)?;
        let default = results.header.space.default_cell();
        for (name, cell) in [("defaults.svg", &default), ("best.svg", &best)] {
            match live.draw_flames(cell, &folder.join(name)) {
                Ok(Ok(())) => {}
                Ok(Err(why)) => eprintln!("ccplane: no flame graph: {why}"),
                Err(fault) => eprintln!("ccplane: no flame graph: {fault}"),
            }
        }
    }
    Ok(())
}

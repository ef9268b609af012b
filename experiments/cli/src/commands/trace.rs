//! Checks, draws and makes link traces, and reads link logs: `ccplane trace`.

use super::output::{print, print_json, table};
use crate::cli::{
    CellularArgs, ConvertArgs, GenerateArgs, LogArgs, Made, SeriesUnit, ShapeCommand, TraceArgs, TraceCommand,
};
use ccplane_agent::failure::Failure;
use ccplane_files::Bound;
use ccplane_netsim::trace::{MAX_TIMESTAMP_MS, Trace, TraceError};
use ccplane_traces::cellular::{Cellular, cellular};
use ccplane_traces::log::{Bin, Figures, LinkLog};
use ccplane_traces::markov::{DEFAULT_STEP_MS, Model};
use ccplane_traces::rates::{MAX_BIT_PER_S, RateStep, rates_of, trace_of};
use ccplane_traces::summary::{Summary, summary};
use ccplane_traces::{Error, plot, series, shape};
use serde::Serialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The largest file that is read.
const INPUT: Bound = Bound { what: "a trace, a model or a log", bytes: 256 << 20 };
/// The width of a sparkline, characters.
const SPARKLINE_COLUMNS: u32 = 72;
/// The interval of a series made from a trace.
const DEFAULT_INTERVAL_MS: u32 = 100;
/// The time for which a rate of the random walk holds.
const WALK_STEP_MS: u32 = 200;
const STDIN: &str = "-";

/// A failure to read the input or to write the output.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("{}: cannot be written: {source}", file.display())]
    Unwritable { file: PathBuf, source: io::Error },
    #[error("{}: {source}", file.display())]
    JsonModel { file: PathBuf, source: serde_json::Error },
    #[error("{}: {source}", file.display())]
    TomlModel { file: PathBuf, source: toml::de::Error },
    #[error("{field}: {mbit} is outside 0..={} Mb/s", MAX_BIT_PER_S / 1_000_000)]
    Rate { field: &'static str, mbit: f64 },
    #[error("{wrong} of {all} files are no traces")]
    NotTraces { wrong: usize, all: usize },
}

pub(crate) fn trace(args: &TraceArgs) -> Result<(), Failure> {
    match &args.command {
        TraceCommand::Check { files } => check(files),
        TraceCommand::Summarise { files, json } => summarise(files, *json),
        TraceCommand::Plot { file, output } => draw(file, output.as_deref()),
        TraceCommand::Generate(args) => generate(args),
        TraceCommand::Convert(args) => convert(args),
        TraceCommand::Log(args) => log(args),
    }
}

/// Checks every file, so that one run names all faults.
fn check(files: &[PathBuf]) -> Result<(), Failure> {
    let mut errors = Vec::new();
    for file in files {
        match load(file) {
            Ok(trace) => print(&format!(
                "{}: ok: {:.3} s, {} opportunities\n",
                file.display(),
                trace.period_ms() as f64 / 1e3,
                trace.opportunities_ms().len()
            ))?,
            Err(error) => errors.push(error),
        }
    }
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.swap_remove(0)),
        wrong => {
            errors.iter().for_each(|error| eprintln!("ccplane: {}", error.message()));
            Err(Failure::input(FileError::NotTraces { wrong, all: files.len() }))
        }
    }
}

#[derive(Serialize)]
struct Named<'a, T> {
    file: String,
    #[serde(flatten)]
    figures: &'a T,
}

fn summarise(files: &[PathBuf], json: bool) -> Result<(), Failure> {
    let traces: Vec<Trace> = files.iter().map(|file| load(file)).collect::<Result<_, _>>()?;
    for (file, trace) in files.iter().zip(&traces) {
        let figures = summary(trace).map_err(Failure::input)?;
        let file = file.display().to_string();
        if json {
            print_json(&Named { file, figures: &figures })?;
        } else {
            print(&summary_text(&file, trace, &figures)?)?;
        }
    }
    Ok(())
}

fn summary_text(file: &str, trace: &Trace, s: &Summary) -> Result<String, Failure> {
    let header = ["over", "min", "p5", "p25", "p50", "p75", "p95", "max", "Mb/s; std dev / mean"];
    let rows: Vec<Vec<String>> = s
        .windows
        .iter()
        .map(|w| {
            let rates = [
                w.min_mbit_per_s,
                w.p5_mbit_per_s,
                w.p25_mbit_per_s,
                w.p50_mbit_per_s,
                w.p75_mbit_per_s,
                w.p95_mbit_per_s,
                w.max_mbit_per_s,
                w.coefficient_of_variation,
            ];
            let cells = rates.iter().map(|rate| format!("{rate:.2}"));
            std::iter::once(format!("{} ms", w.window_ms)).chain(cells).collect()
        })
        .collect();
    Ok(format!(
        "{file}: {:.3} s, {} opportunities, mean {:.2} Mb/s, longest outage {} ms\n{}{}\n",
        s.duration_ms as f64 / 1e3,
        s.opportunities,
        s.mean_mbit_per_s,
        s.longest_outage_ms,
        table(&header, &rows),
        plot::sparkline(trace, SPARKLINE_COLUMNS).map_err(Failure::input)?
    ))
}

fn draw(file: &Path, output: Option<&Path>) -> Result<(), Failure> {
    let trace = load(file)?;
    match output {
        Some(output) => {
            let svg = plot::trace(&trace, &file.display().to_string()).map_err(Failure::input)?;
            write(Some(output), &svg)
        }
        None => {
            let line = plot::sparkline(&trace, SPARKLINE_COLUMNS).map_err(Failure::input)?;
            let rates = rates_of(&trace, (trace.period_ms() as u32).div_ceil(SPARKLINE_COLUMNS));
            let most = rates.map_err(Failure::input)?.iter().map(|s| s.bit_per_s).max().unwrap_or(0);
            let (seconds, most) = (trace.period_ms() as f64 / 1e3, most as f64 / 1e6);
            print(&format!("{line}\n0 to {most:.2} Mb/s, {seconds:.1} s\n"))
        }
    }
}

fn generate(args: &GenerateArgs) -> Result<(), Failure> {
    let (steps, made) = match &args.shape {
        ShapeCommand::Constant { mbit, made } => {
            (shape::constant(bit_per_s("rate", *mbit)?, ms(made.duration_s)), made)
        }
        ShapeCommand::Step { mbit, every_s, made } => {
            let rates: Vec<u64> = mbit.iter().map(|m| bit_per_s("rate", *m)).collect::<Result<_, _>>()?;
            (shape::step(&rates, ms(*every_s), ms(made.duration_s)), made)
        }
        ShapeCommand::Sawtooth { low_mbit, high_mbit, period_s, made } => {
            let (low, high) = (bit_per_s("low", *low_mbit)?, bit_per_s("high", *high_mbit)?);
            (shape::sawtooth(low, high, ms(*period_s), ms(made.duration_s)), made)
        }
        ShapeCommand::Cellular(args) => return generate_cellular(args),
    };
    write_steps(&steps.map_err(Failure::input)?, made)
}

fn generate_cellular(args: &CellularArgs) -> Result<(), Failure> {
    let duration_ms = ms(args.made.duration_s);
    let output = args.made.output.as_deref();
    let model = match (&args.fit, &args.model) {
        (Some(file), _) => {
            let fitted = Model::fit(&load(file)?, args.step_ms.unwrap_or(DEFAULT_STEP_MS));
            fitted.map_err(Failure::input)?
        }
        (None, Some(file)) => load_model(file)?,
        (None, None) => {
            let kbit = |field, mbit| bit_per_s(field, mbit).map(|bits| (bits / 1000) as u32);
            let link = Cellular {
                seed: args.seed,
                duration_ms,
                min_kbit: kbit("low", args.low_mbit)?,
                max_kbit: kbit("high", args.high_mbit)?,
                step_ms: args.step_ms.unwrap_or(WALK_STEP_MS),
            };
            return write(output, &cellular(&link).map_err(Failure::input)?.to_string());
        }
    };
    if args.print_model {
        let text = match output {
            Some(path) if is_toml(path) => toml::to_string(&model).map_err(Failure::runtime)?,
            _ => serde_json::to_string(&model).map_err(Failure::runtime)? + "\n",
        };
        return write(output, &text);
    }
    write_steps(&model.generate(args.seed, duration_ms).map_err(Failure::input)?, &args.made)
}

fn load_model(file: &Path) -> Result<Model, Failure> {
    let text = read(file)?;
    let file = file.to_owned();
    if is_toml(&file) {
        toml::from_str(&text).map_err(|source| Failure::input(FileError::TomlModel { file, source }))
    } else {
        serde_json::from_str(&text).map_err(|source| Failure::input(FileError::JsonModel { file, source }))
    }
}

fn convert(args: &ConvertArgs) -> Result<(), Failure> {
    let input = |error: Error| Failure::input(error.in_file(&args.file));
    let text = match (args.from, args.to) {
        (Some(unit), _) => {
            let steps = series::parse(&read(&args.file)?, unit.into(), args.interval_ms).map_err(input)?;
            trace_of(&steps).map_err(input)?.to_string()
        }
        (None, unit) => {
            let steps = rates_of(&load(&args.file)?, args.interval_ms.unwrap_or(DEFAULT_INTERVAL_MS));
            let unit = unit.unwrap_or(SeriesUnit::Mbps);
            series::write(&steps.map_err(input)?, unit.into(), args.times)
        }
    };
    write(args.output.as_deref(), &text)
}

#[derive(Serialize)]
struct LogFigures<'a> {
    queue: &'a str,
    #[serde(flatten)]
    figures: Figures,
    bin_ms: u32,
    bins: Vec<Bin>,
}

fn log(args: &LogArgs) -> Result<(), Failure> {
    let input = |error: Error| Failure::input(error.in_file(&args.file));
    let log = LinkLog::parse(&read(&args.file)?).map_err(input)?;
    let figures = log.figures().map_err(input)?;
    if let Some(output) = &args.output {
        let svg = plot::log(&log, args.bin_ms, &args.file.display().to_string()).map_err(input)?;
        write(Some(output), &svg)?;
    }
    if args.json {
        let bins = log.bins(args.bin_ms).map_err(input)?;
        let figures = LogFigures { queue: &log.queue, figures, bin_ms: args.bin_ms, bins };
        return print_json(&Named { file: args.file.display().to_string(), figures: &figures });
    }
    print(&format!(
        "{figures}Median per-packet queueing delay: {} ms\nPackets delivered: {}, logged as dropped: {}\n",
        figures.queueing_delay_p50_ms, figures.packets, figures.dropped_packets
    ))
}

impl From<SeriesUnit> for series::Unit {
    fn from(unit: SeriesUnit) -> series::Unit {
        match unit {
            SeriesUnit::Pps => series::Unit::Pps,
            SeriesUnit::Mbps => series::Unit::Mbps,
        }
    }
}

fn load(file: &Path) -> Result<Trace, Failure> {
    let text = read(file)?;
    Trace::parse(&text).map_err(|e| Failure::input(TraceError { file: Some(file.to_owned()), ..e }))
}

/// Reads a file or standard input.
fn read(file: &Path) -> Result<String, Failure> {
    let bytes = if file == Path::new(STDIN) {
        ccplane_files::read_from(io::stdin().lock(), file, INPUT)
    } else {
        ccplane_files::read(file, INPUT)
    };
    bytes.and_then(|bytes| ccplane_files::text(bytes, file)).map_err(Failure::input)
}

fn write_steps(steps: &[RateStep], made: &Made) -> Result<(), Failure> {
    write(made.output.as_deref(), &trace_of(steps).map_err(Failure::input)?.to_string())
}

fn write(output: Option<&Path>, text: &str) -> Result<(), Failure> {
    match output {
        Some(file) if file != Path::new(STDIN) => {
            let file = file.to_owned();
            fs::write(&file, text).map_err(|source| Failure::runtime(FileError::Unwritable { file, source }))
        }
        _ => print(text),
    }
}

fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

fn bit_per_s(field: &'static str, mbit: f64) -> Result<u64, Failure> {
    let bits = (mbit * 1e6).round();
    if (0.0..=MAX_BIT_PER_S as f64).contains(&bits) {
        Ok(bits as u64)
    } else {
        Err(Failure::input(FileError::Rate { field, mbit }))
    }
}

/// Converts seconds, whose range the command line has checked, to milliseconds.
fn ms(seconds: f64) -> u32 {
    (seconds * 1e3).round().clamp(1.0, MAX_TIMESTAMP_MS as f64) as u32
}

//! `ccplane train`: policies from nothing.

mod progress;

use super::output::{print, print_json, table};
use crate::cli::{Backend, Learns, Links, TrainArgs};
use ccplane_agent::failure::Failure;
use ccplane_env::recipe::{Adaptation, Line, Recipe, VISITED_EPISODES};
use ccplane_learn::curves::JsonLines;
use ccplane_learn::{
    BackEnd, Checkpoint, Observer, Policy, Preference, Stop, TorchOptions, TrainConfig, TrainReport,
    train as run,
};
use ccplane_quantize::Options;
use ccplane_snapshot::{Fidelity, Provenance};
use clap::ValueEnum;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code after a second signal: that of a process which SIGINT ended.
const SIGNALLED: i32 = 130;

/// Reasons why a training does not begin, or end.
#[derive(Debug, thiserror::Error)]
enum TrainError {
    #[error("--config published is Aurora's; MOCC has none")]
    NotPublished,
    #[error("networks of neural, size and path are trained and quantised by `ccplane train --algorithm`")]
    NotNeural,
    #[error("--adapt teaches MOCC a preference: it needs --algorithm mocc")]
    NotMocc,
    #[error("a preference of {0:?}: three percents that are not all 0 are needed")]
    Preference(Vec<u8>),
    #[error("stopped after {steps} decisions, kept in {}: the same command with --resume goes on", kept.display())]
    Stopped { steps: u64, kept: PathBuf },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// The content of `NAME.json`, which `--json` prints.
#[derive(Serialize)]
struct Summary {
    algorithm: &'static str,
    command: String,
    seed: u64,
    steps: u64,
    seconds: f64,
    /// The reason why training ended: `steps` or `plateau`.
    ended: &'static str,
    /// Of the best evaluation, without exploration.
    mean_reward: Option<f32>,
    snapshot: String,
    fidelity: Fidelity,
    /// Mean figures over held-out links.
    held_out: Vec<Line>,
}

/// The files in the output directory.
struct Files {
    dir: PathBuf,
    name: String,
}

impl Files {
    fn path(&self, extension: &str) -> PathBuf {
        self.dir.join(format!("{}.{extension}", self.name))
    }
}

pub(crate) fn train(args: &TrainArgs) -> Result<(), Failure> {
    if args.algorithm == Learns::Neural {
        return super::judging::train(args);
    }
    if args.algorithm == Learns::Size {
        return super::sizing::train(args);
    }
    if args.algorithm == Learns::Path {
        return super::pathing::train(args);
    }
    let recipe = configured(args)?;
    let name = match args.config {
        Links::Real => recipe.algorithm.name().to_owned(),
        links => format!("{}-{}", recipe.algorithm.name(), named(links)),
    };
    let files = Files { dir: args.out.clone(), name };
    std::fs::create_dir_all(&files.dir).map_err(|e| file(&files.dir, e))?;
    if let Some(percents) = &args.adapt {
        return adapt(args, &recipe, &files, percents);
    }
    let began = std::time::Instant::now();
    let report = learn(args, &recipe, &files)?;
    let ended = match report.stop {
        Stop::Steps => "steps",
        Stop::Plateau => "plateau",
        Stop::Observer => {
            let (steps, kept) = (report.progress.steps, files.path("checkpoint"));
            return Err(Failure::runtime(TrainError::Stopped { steps, kept }));
        }
    };
    let mut policy = report.best.clone();
    policy.provenance.command = command(args);
    policy.write(&files.path("safetensors")).map_err(Failure::runtime)?;
    let provenance = Provenance {
        algorithm: recipe.algorithm.name().to_owned(),
        seed: args.seed,
        ..policy.snapshot_provenance()
    };
    let options = Options { provenance, ..Options::default() };
    let snapshot = recipe.snapshot(&policy, VISITED_EPISODES, &options).map_err(Failure::runtime)?;
    write(&files.path("snapshot"), &snapshot.to_bytes())?;
    let summary = Summary {
        algorithm: recipe.algorithm.name(),
        command: command(args),
        seed: args.seed,
        steps: report.progress.steps,
        seconds: began.elapsed().as_secs_f64(),
        ended,
        mean_reward: report.progress.best_reward,
        snapshot: snapshot.hash().to_string(),
        fidelity: *snapshot.fidelity(),
        held_out: recipe.compare(&policy, &snapshot).map_err(Failure::runtime)?,
    };
    let text = serde_json::to_string_pretty(&summary).map_err(Failure::runtime)?;
    write(&files.path("json"), format!("{text}\n").as_bytes())?;
    if args.json { print_json(&summary) } else { print(&text_of(&summary, &files)) }
}

/// The recipe by which an algorithm learns on these links.
pub(crate) fn recipe(algorithm: Learns, links: Links) -> Result<Recipe, Failure> {
    let recipe = match (algorithm, links) {
        (Learns::Aurora, Links::Real) => Recipe::aurora(),
        (Learns::Aurora, Links::Published) => Recipe::published(),
        (Learns::Mocc, Links::Real) => Recipe::mocc(),
        (Learns::Neural | Learns::Size | Learns::Path, _) => {
            return Err(Failure::input(TrainError::NotNeural));
        }
        (Learns::Mocc, Links::Published) => return Err(Failure::input(TrainError::NotPublished)),
        (Learns::Aurora, Links::Lossy) => Recipe::aurora().map(Recipe::lossy),
        (Learns::Mocc, Links::Lossy) => Recipe::mocc().map(Recipe::lossy),
    };
    recipe.map_err(Failure::runtime)
}

/// The name on the command line.
fn named(links: Links) -> String {
    links.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn configured(args: &TrainArgs) -> Result<Recipe, Failure> {
    let mut recipe = recipe(args.algorithm, args.config)?;
    recipe.train.seed = args.seed;
    recipe.train.total_steps = args.steps.unwrap_or(recipe.train.total_steps);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    recipe.train.threads = args.threads.map_or(cores, usize::from);
    Ok(recipe)
}

fn learn(args: &TrainArgs, recipe: &Recipe, files: &Files) -> Result<TrainReport, Failure> {
    let path = files.path("checkpoint");
    let resume = if args.resume { Some(Checkpoint::read(&path).map_err(Failure::input)?) } else { None };
    let initial = recipe.initial().map_err(Failure::runtime)?;
    let back_end = match args.backend {
        Backend::Native => BackEnd::Native,
        Backend::Torch => BackEnd::Torch(TorchOptions::default()),
    };
    let mut learner = back_end.learner(&initial, recipe.ppo).map_err(Failure::input)?;
    let mut environments = recipe.environments().map_err(Failure::input)?;
    let digest = recipe.digest().map_err(Failure::runtime)?;
    let config = TrainConfig { identity: format!("{digest} {back_end:?}"), ..recipe.train.clone() };
    let mut observers = curves(files, resume.as_ref())?;
    observers.push(Box::new(Keeping(path)));
    observers.push(Box::new(progress::Shown::new()));
    observers.push(Box::new(Signals::handled()?));
    run(&mut *learner, &mut environments, &config, resume.as_ref(), &mut observers).map_err(Failure::runtime)
}

/// Observers that write the training's curves. When training resumes, each decision appears on them once.
fn curves(files: &Files, resume: Option<&Checkpoint>) -> Result<Vec<Box<dyn Observer>>, Failure> {
    let path = files.path("jsonl");
    let lines = match resume.map(|from| from.progress.steps) {
        Some(steps) => JsonLines::resume(&path, steps),
        None => JsonLines::create(&path),
    };
    Ok(vec![Box::new(lines.map_err(|e| file(&path, e))?)])
}

/// Ends the training after the update that is under way.
struct Signals(Arc<AtomicBool>);

impl Signals {
    fn handled() -> io::Result<Signals> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The first one asks, the second one ends.
            flag::register_conditional_shutdown(signal, SIGNALLED, Arc::clone(&stop))?;
            flag::register(signal, Arc::clone(&stop))?;
        }
        Ok(Signals(stop))
    }
}

impl Observer for Signals {
    fn stopped(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An observer that keeps the last checkpoint.
struct Keeping(PathBuf);

impl Observer for Keeping {
    fn checkpoint(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        checkpoint.write(&self.0).map_err(io::Error::other)
    }
}

/// Runs the adaptation of MOCC to new preferences.
fn adapt(args: &TrainArgs, recipe: &Recipe, files: &Files, percents: &[u8]) -> Result<(), Failure> {
    if args.algorithm != Learns::Mocc {
        return Err(Failure::input(TrainError::NotMocc));
    }
    let preference = match percents {
        [throughput, latency, loss] => {
            Preference::new((*throughput).into(), (*latency).into(), (*loss).into())
        }
        _ => None,
    };
    let preference = preference.ok_or_else(|| Failure::input(TrainError::Preference(percents.to_vec())))?;
    let policy = Policy::read(&files.path("safetensors")).map_err(Failure::input)?;
    let adaptation: Adaptation = recipe.adapt(&policy, preference).map_err(Failure::runtime)?;
    let text = serde_json::to_string_pretty(&adaptation).map_err(Failure::runtime)?;
    write(&files.path("adapt.json"), format!("{text}\n").as_bytes())?;
    if args.json {
        return print_json(&adaptation);
    }
    let steps = |steps: Option<u64>| steps.map_or_else(|| "never".to_owned(), |n| n.to_string());
    print(&format!(
        "from nothing: reward {:.4}, 90 % of its best evaluation after {} decisions\nadapted: {:.4}, after {}\n\
         old preferences: {:.4} before, {:.4} after\n",
        adaptation.scratch_reward,
        steps(adaptation.scratch_steps_to_90),
        adaptation.adapted_reward,
        steps(adaptation.adapted_steps_to_90),
        adaptation.old_before,
        adaptation.old_after,
    ))
}

/// The command that makes the same files.
fn command(args: &TrainArgs) -> String {
    let algorithm = match args.algorithm {
        Learns::Aurora => "aurora",
        Learns::Mocc => "mocc",
        Learns::Neural => "neural",
        Learns::Size => "size",
        Learns::Path => "path",
    };
    let config = named(args.config);
    let steps = args.steps.map_or_else(String::new, |n| format!(" --steps {n}"));
    let backend = match args.backend {
        Backend::Native => "",
        Backend::Torch => " --backend torch",
    };
    format!("ccplane train --algorithm {algorithm} --config {config} --seed {}{steps}{backend}", args.seed)
}

fn text_of(summary: &Summary, files: &Files) -> String {
    let header = ["held-out links", "of link", "RTT / path's", "queue p95 ms", "loss", "Jain"];
    let rows: Vec<Vec<String>> = summary
        .held_out
        .iter()
        .map(|l| {
            vec![
                l.name.clone(),
                format!("{:.1} %", l.used * 100.0),
                format!("{:.2}", l.rtt_ratio),
                format!("{:.1}", l.queue_p95_ms),
                format!("{:.2} %", l.loss * 100.0),
                l.jain.map_or_else(|| "-".to_owned(), |jain| format!("{jain:.3}")),
            ]
        })
        .collect();
    format!(
        "{} decisions in {:.0} s, ended by {}; best evaluation {:.4}\n{}{}\n{}\n",
        summary.steps,
        summary.seconds,
        summary.ended,
        summary.mean_reward.unwrap_or(0.0),
        table(&header, &rows),
        files.path("safetensors").display(),
        files.path("snapshot").display(),
    )
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|e| file(path, e))
}

fn file(path: &Path, source: io::Error) -> Failure {
    Failure::runtime(TrainError::File { path: path.to_owned(), source })
}

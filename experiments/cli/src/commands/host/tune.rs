//! `ccplane host tune`: a search for settings that carry more.

use super::advice;
use super::measure::say_what_is_missing;
use super::subject::{Bar, Host, Opened};
use crate::cli::{HostTuneArgs, ObjectiveName, SearchName};
use crate::commands::output::{print, print_json};
use crate::commands::signals::{SIGNALLED, stop_on_signals};
use ccplane_agent::failure::Failure;
use ccplane_host::{
    DEFAULT_REPEATS, Objective, Page, Search, Source, Told, TuneEnd, TuneOptions, Tuned, tuned_section,
};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The JSON output of `ccplane host tune`.
#[derive(Serialize)]
struct Output<'a> {
    source: &'a Source,
    /// The origin of the figures in words; a model is called one.
    origin: String,
    #[serde(flatten)]
    tuned: &'a Tuned,
    verdict: String,
    /// Whether the best settings are in force on this host.
    applied: bool,
    /// The commands that bring a host into the best setting; empty where there is nothing to do.
    commands: Vec<String>,
    /// The cores for an agent's loops under the best setting; empty where it says nothing of them.
    agent_cores: Vec<u32>,
    /// The reason why it ended before all trials were made; null where it did not.
    ended_by: Option<String>,
}

pub(super) fn tune(args: &HostTuneArgs) -> Result<ExitCode, Failure> {
    let mut opened = Opened::new(&args.subject, &args.journal.journal)?;
    if opened.is_named && !args.subject.apply {
        return print(&opened.dry_run()).map(|()| ExitCode::SUCCESS);
    }
    if args.objective == ObjectiveName::Efficiency {
        say_what_is_missing(&opened);
    }
    let options = TuneOptions {
        search: match args.search {
            SearchName::Perceptron => Search::Perceptron,
            SearchName::Random => Search::Random,
            SearchName::Exhaustive => Search::Exhaustive,
        },
        objective: match args.objective {
            ObjectiveName::Throughput => Objective::Throughput,
            ObjectiveName::Efficiency => Objective::Efficiency,
        },
        trials: args.trials,
        seed: args.subject.seed,
        budget: args.subject.budget_s.map(Duration::from_secs),
    };
    let stop = stop_on_signals()?;
    let mut bar = Bar::new();
    let mut told = |told: &Told<'_>| match told {
        Told::Defaults { done } => bar.draw(*done as u64, DEFAULT_REPEATS as u64, "defaults"),
        Told::Trial { done, total, trial } => {
            let says = match (trial.ratio, &trial.why_not) {
                (Some(ratio), _) => format!("{ratio:.3} of the defaults  {}", trial.shown),
                (None, why) => format!("failed: {}", why.as_deref().unwrap_or_default()),
            };
            bar.draw(*done, *total, &says);
        }
        Told::Checking { done, total } => bar.draw(*done as u64, *total as u64, "the best once more"),
    };
    let stopped = || stop.load(Ordering::Relaxed);
    let nodes = opened.header.nodes.clone();
    let tuned = ccplane_host::tune(opened.subject(), &nodes, &options, &stopped, &mut told);
    drop(bar);
    let tuned = tuned.map_err(Failure::runtime)?;
    let is_applied = opened.is_named && tuned.is_better;
    if let Some(best) = tuned.best.as_ref().filter(|_| is_applied) {
        advice::write(&args.journal.journal, &opened.agent_cores(&best.cell)).map_err(Failure::runtime)?;
    }
    if let (true, Host::Live(live)) = (is_applied, &mut opened.host) {
        live.keep();
    }
    say(args, &opened, &tuned, is_applied)?;
    match tuned.end {
        TuneEnd::All | TuneEnd::Budget => Ok(ExitCode::SUCCESS),
        TuneEnd::Stopped => Ok(ExitCode::from(SIGNALLED)),
        TuneEnd::Fault(fault) => Err(Failure::runtime(fault)),
    }
}

fn say(args: &HostTuneArgs, opened: &Opened, tuned: &Tuned, is_applied: bool) -> Result<(), Failure> {
    let source = &opened.header.source;
    let best = tuned.best.as_ref().filter(|_| tuned.is_better).map(|best| &best.cell);
    let commands = best.map(|cell| opened.commands(cell)).unwrap_or_default();
    let agent_cores = best.map(|cell| opened.agent_cores(cell)).unwrap_or_default();
    if let Some(path) = &args.report {
        let default = opened.header.space.default_cell();
        let places = opened.places(best.unwrap_or(&default));
        let page = Page::new("A search for better settings", &source.words())
            .with_host(&opened.topology(), Some(opened.interface()), &places)
            .with_section(tuned_section(tuned, &tuned.verdict()));
        std::fs::write(path, page.html())?;
    }
    if args.journal.json {
        let ended_by = match &tuned.end {
            TuneEnd::All => None,
            TuneEnd::Budget => Some("the time is used up".to_owned()),
            TuneEnd::Stopped => Some("a signal".to_owned()),
            TuneEnd::Fault(fault) => Some(fault.to_string()),
        };
        return print_json(&Output {
            source,
            origin: source.words(),
            tuned,
            verdict: tuned.verdict(),
            applied: is_applied,
            commands,
            agent_cores,
            ended_by,
        });
    }
    let mut text = format!("# {}\n{}\n", source.words(), tuned.verdict());
    commands.iter().for_each(|command| text += &format!("{command}\n"));
    if !agent_cores.is_empty() {
        // An agent is woken where the kernel works on its flows' packets; on the same core that costs a fraction.
        let lines = format!("[agent]\ncores = {agent_cores:?}");
        text += &format!("# for an agent of this host, in its configuration:\n{lines}\n");
        if is_applied {
            let file = advice::path(&args.journal.journal);
            text +=
                &format!("# or, so that it follows the next search, too:\n[agent]\ncores_file = {file:?}\n");
        }
    }
    if is_applied {
        text += "# these settings are in force, but for taskset; `ccplane host undo` takes them back\n";
    } else if !commands.is_empty() {
        text += "# nothing of this host was changed\n";
    }
    print(&text)
}

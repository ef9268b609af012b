//! `ccplane host`: a host's settings shown, measured, learned from, tuned, changed and taken back.

mod advice;
mod learn;
mod measure;
mod subject;
mod tune;

use super::output::{print, print_json, shown, table};
use crate::cli::{HostCommand, HostSetArgs, HostShowArgs, HostUndoArgs};
use ccplane_agent::failure::Failure;
use ccplane_host::{
    Applied, Journal, JournalError, Machine, Page, Setting, SettingState, Topology, UndoOutcome, Undone,
    settings_section, states,
};
use ccplane_report::draw::svg;
use serde::Serialize;
use std::process::ExitCode;

/// Reasons why an argument is refused.
#[derive(Debug, thiserror::Error)]
enum BadArgument {
    #[error("this host has no interface {0:?}; it has {1}")]
    NoInterface(String, String),
    #[error("{0:?} is no change: write SETTING=VALUE")]
    NoChange(String),
}

/// The JSON output of `ccplane host show`.
#[derive(Serialize)]
struct Shown<'a> {
    topology: &'a Topology,
    settings: &'a [SettingState],
}

/// The JSON output of `ccplane host set`.
#[derive(Serialize)]
struct Set<'a> {
    /// Whether the changes were made.
    applied: bool,
    changes: &'a [Applied],
    commands: Vec<String>,
}

/// The JSON output of `ccplane host undo`.
#[derive(Serialize)]
struct Back<'a> {
    undone: &'a [Undone],
}

pub(crate) fn host(command: &HostCommand) -> Result<ExitCode, Failure> {
    let machine = Machine::this();
    match command {
        HostCommand::Show(args) => show(&machine, args).map(|()| ExitCode::SUCCESS),
        HostCommand::Measure(args) => measure::measure(args),
        HostCommand::Learn(args) => learn::learn(args).map(|()| ExitCode::SUCCESS),
        HostCommand::Tune(args) => tune::tune(args),
        HostCommand::Set(args) => set(&machine, args).map(|()| ExitCode::SUCCESS),
        HostCommand::Undo(args) => undo(&machine, args),
    }
}

fn show(machine: &Machine, args: &HostShowArgs) -> Result<(), Failure> {
    let topology = Topology::of(machine);
    let interface = match &args.interface {
        None => None,
        Some(name) => Some(topology.interface(name).ok_or_else(|| {
            let names: Vec<&str> = topology.interfaces.iter().map(|i| i.name.as_str()).collect();
            Failure::input(BadArgument::NoInterface(name.clone(), names.join(", ")))
        })?),
    };
    let settings = states(machine, &topology, interface);
    if let Some(file) = &args.svg {
        let picture = ccplane_host::picture(&topology, args.interface.as_deref(), &[]);
        std::fs::write(file, svg::write(&picture)).map_err(Failure::runtime)?;
    }
    if let Some(file) = &args.html {
        let page =
            Page::new("This host", "Processors, interfaces, interrupts and settings, as they are now.")
                .with_host(&topology, args.interface.as_deref(), &[])
                .with_section(settings_section(&settings));
        std::fs::write(file, page.html()).map_err(Failure::runtime)?;
    }
    if args.json {
        return print_json(&Shown { topology: &topology, settings: &settings });
    }
    print(&text(&topology, &settings))
}

fn text(topology: &Topology, settings: &[SettingState]) -> String {
    let processors = topology.processors.iter().map(|p| {
        let number = |n: Option<u32>| n.map_or("-".into(), |n| n.to_string());
        let cache = p.caches.iter().max_by_key(|cache| cache.level);
        let largest =
            cache.map_or("-".into(), |c| format!("L{} {} KiB of {}", c.level, c.bytes / 1024, c.shared_by));
        let interrupts: u64 = topology.interrupts.iter().filter_map(|irq| irq.counts.get(&p.number)).sum();
        let node = number(topology.node_of(p.number));
        vec![
            p.number.to_string(),
            node,
            number(p.package),
            p.siblings.to_string(),
            largest,
            interrupts.to_string(),
        ]
    });
    let head = ["cpu", "node", "package", "siblings", "last cache", "device interrupts"];
    let mut out = table(&head, &processors.collect::<Vec<_>>());
    out.push('\n');
    let row = |s: &SettingState| {
        let value = s.value.as_deref().unwrap_or("-");
        let value = s.largest.as_ref().map_or(value.to_owned(), |largest| format!("{value} of {largest}"));
        let irq = |number| topology.interrupts.iter().find(|irq| irq.number == number);
        let about = match (&s.why_not, &s.setting) {
            (Some(why), _) => format!("cannot be changed: {why}"),
            (None, Setting::Interrupt(number)) => irq(*number).map_or(String::new(), |irq| irq.name.clone()),
            (None, _) => String::new(),
        };
        vec![s.setting.to_string(), shown(&value), shown(&about)]
    };
    out + &table(&["setting", "value", ""], &settings.iter().map(row).collect::<Vec<_>>())
}

fn set(machine: &Machine, args: &HostSetArgs) -> Result<(), Failure> {
    let parse = |text: &String| {
        let (name, value) =
            text.split_once('=').ok_or_else(|| Failure::input(BadArgument::NoChange(text.clone())))?;
        let setting: Setting = name.parse().map_err(Failure::input)?;
        let value = setting.value(value).map_err(Failure::input)?;
        Ok((setting, value))
    };
    let changes = args.changes.iter().map(parse).collect::<Result<Vec<_>, Failure>>()?;
    let commands: Result<Vec<String>, _> =
        changes.iter().map(|(setting, value)| setting.command(value)).collect();
    let commands = commands.map_err(Failure::input)?;
    let applied = if args.apply {
        let mut journal = Journal::open(machine, &args.journal.journal).map_err(Failure::runtime)?;
        journal.apply(&changes).map_err(Failure::runtime)?
    } else {
        Vec::new()
    };
    if args.journal.json {
        return print_json(&Set { applied: args.apply, changes: &applied, commands });
    }
    if !args.apply {
        let lines: String = commands.iter().map(|command| format!("{command}\n")).collect();
        return print(&format!("{lines}# nothing was changed: --apply makes the changes\n"));
    }
    let line = |a: &Applied| match a.old == a.new {
        true => format!("{}: {} already\n", a.setting, a.new),
        false => format!("{}: {}, was {}\n", a.setting, a.new, a.old),
    };
    print(&applied.iter().map(line).collect::<String>())
}

fn undo(machine: &Machine, args: &HostUndoArgs) -> Result<ExitCode, Failure> {
    let undone =
        Journal::open(machine, &args.journal.journal).and_then(|mut journal| journal.undo(args.force));
    let undone = undone.map_err(|error| match error {
        JournalError::BadLine { .. } => Failure::input(error),
        error => Failure::runtime(error),
    })?;
    // An agent is not to follow what is no longer in force.
    let is_advice_gone = advice::remove(&args.journal.journal).map_err(Failure::runtime)?;
    if args.journal.json {
        print_json(&Back { undone: &undone })?;
    } else if undone.is_empty() && !is_advice_gone {
        print("nothing to take back\n")?;
    } else {
        let line = |u: &Undone| {
            let end = match &u.outcome {
                UndoOutcome::Restored => format!("{} again", u.old),
                UndoOutcome::WasOld => format!("{} already", u.old),
                UndoOutcome::OlderBoot => "was changed before the last boot, which took it back".to_owned(),
                UndoOutcome::ChangedSince { found } => {
                    format!("{found}, as somebody else has set it; --force brings {} back", u.old)
                }
                UndoOutcome::Gone { why } => format!("gone: {why}"),
                UndoOutcome::Refused { why } => format!("not taken back: {why}"),
            };
            format!("{}: {}\n", u.setting, shown(&end))
        };
        let mut text: String = undone.iter().map(line).collect();
        if is_advice_gone {
            text += &format!("{}: removed\n", advice::path(&args.journal.journal).display());
        }
        print(&text)?;
    }
    let is_refused = undone.iter().any(|u| matches!(u.outcome, UndoOutcome::Refused { .. }));
    Ok(if is_refused { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

//! The page of the command line, from clap's definition.

use super::heading;
use clap::{Arg, ArgAction, Command};
use std::fmt::Write as _;

/// Flags that only a build with DPDK has: the page is the same without.
const OF_DPDK: [&str; 4] = ["port", "address", "gateway", "neighbour"];
/// The commands that have them.
const OVER_DPDK: [&str; 2] = ["ccplane quic", "ccplane predict"];

pub fn page() -> String {
    let mut command = ccplane::command_line();
    command.build();
    let mut out = heading("The command line", "clap's definition, experiments/cli/src/cli.rs");
    out.push_str(
        "`ccplane help COMMAND` prints the same. `--port`, `--address`, `--gateway` and `--neighbour`, of `quic` and `predict serve` in a build \
        with DPDK, are left out here.\n\n",
    );
    section(&mut out, "ccplane", &command, 1);
    out
}

fn section(out: &mut String, path: &str, command: &Command, depth: usize) {
    if depth > 1 {
        writeln!(out, "{} {path}\n", "#".repeat(depth.min(3))).unwrap();
    }
    if let Some(about) = command.get_long_about().or(command.get_about()) {
        writeln!(out, "{about}\n").unwrap();
    }
    let shown =
        |argument: &&Arg| !argument.is_hide_set() && !is_of_dpdk(path, argument) && !is_help(argument);
    let (positionals, flags): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().filter(shown).partition(|argument| argument.is_positional());
    writeln!(out, "```text\n{}\n```\n", usage(path, command, &positionals, &flags)).unwrap();
    for argument in positionals.into_iter().chain(flags) {
        writeln!(out, "- {}", described(argument)).unwrap();
    }
    out.push('\n');
    if let Some(more) = command.get_after_help() {
        writeln!(out, "```text\n{}\n```\n", more.to_string().trim_end()).unwrap();
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help" && !inner.is_hide_set())
    {
        section(out, &format!("{path} {}", inner.get_name()), inner, depth + 1);
    }
}

fn is_of_dpdk(path: &str, argument: &Arg) -> bool {
    let over = OVER_DPDK.iter().any(|command| path.starts_with(command));
    over && argument.get_long().is_some_and(|long| OF_DPDK.contains(&long))
}

fn is_help(argument: &Arg) -> bool {
    ["help", "version"].contains(&argument.get_id().as_str())
}

/// The form of a command, as clap prints it where nothing is left out.
fn usage(path: &str, command: &Command, positionals: &[&Arg], flags: &[&Arg]) -> String {
    let mut words = vec![path.to_owned()];
    if flags.iter().any(|flag| !flag.is_required_set()) {
        words.push("[OPTIONS]".to_owned());
    }
    let required = flags.iter().filter(|flag| flag.is_required_set());
    words.extend(required.map(|flag| form(flag)));
    words.extend(positionals.iter().map(|argument| form(argument)));
    if command.has_subcommands() {
        words.push("<COMMAND>".to_owned());
    }
    words.join(" ")
}

/// An argument as it is typed.
fn form(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let values: Vec<String> = names.iter().map(|name| format!("<{name}>")).collect();
    let values = values.join(" ");
    let takes = matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    let many = argument.get_num_args().is_some_and(|count| count.max_values() > 1) || is_repeated(argument);
    let dots = if many { "..." } else { "" };
    match (argument.get_short(), argument.get_long()) {
        (None, None) if argument.is_required_set() => values + dots,
        (None, None) => format!("[{}]{dots}", names.join(" ")),
        (short, long) => {
            let short = short.map(|letter| format!("-{letter}"));
            let names: Vec<String> = short.into_iter().chain(long.map(|name| format!("--{name}"))).collect();
            if takes { format!("{} {values}", names.join(", ")) } else { names.join(", ") }
        }
    }
}

fn is_repeated(argument: &Arg) -> bool {
    argument.is_positional() && matches!(argument.get_action(), ArgAction::Append)
}

/// An argument with its help, its default and its values.
fn described(argument: &Arg) -> String {
    let mut out = format!("`{}`", form(argument));
    if let Some(help) = argument.get_long_help().or(argument.get_help()) {
        let help = help.to_string();
        let help: Vec<&str> = help.split_whitespace().collect();
        write!(out, ": {}", help.join(" ")).unwrap();
    }
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    let is_flag = !matches!(argument.get_action(), ArgAction::Set | ArgAction::Append);
    if !is_flag && !defaults.is_empty() {
        write!(out, " Default: {}.", defaults.join(", ")).unwrap();
    }
    if let Some(variable) = argument.get_env() {
        write!(out, " Environment: `{}`.", variable.to_string_lossy()).unwrap();
    }
    let values = if is_flag { Vec::new() } else { argument.get_possible_values() };
    for value in values.iter().filter(|value| !value.is_hide_set() && value.get_name() != "true") {
        let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
        write!(out, "\n  - `{}`{help}", value.get_name()).unwrap();
    }
    out
}

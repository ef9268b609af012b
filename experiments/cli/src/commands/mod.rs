//! The subcommands: each module runs one, with the arguments that [`crate::cli`] has parsed.

mod bench;
mod control;
mod demo;
mod deployments;
mod distill;
mod doctor;
mod evaluate;
mod fabric;
mod flows;
mod host;
mod judging;
mod league;
mod manuals;
mod monitor;
mod new;
mod pathing;
mod predict;
mod prog;
mod qlog;
mod qlog_file;
mod quic;
mod record;
mod run;
mod shells;
mod sim;
mod sizing;
mod snapshot;
mod trace;
mod train;
mod trained;
mod variants;

pub(crate) use bench::bench;
pub(crate) use control::{adopt, programs, reload, status, stop};
pub(crate) use demo::demo;
pub(crate) use distill::distill;
pub(crate) use doctor::doctor;
pub(crate) use evaluate::evaluate;
pub(crate) use flows::flows;
pub(crate) use host::host;
pub(crate) use league::league;
pub(crate) use manuals::manuals;
pub(crate) use monitor::{top, web};
pub(crate) use new::new;
pub(crate) use predict::predict;
pub(crate) use prog::prog;
pub(crate) use qlog::qlog;
pub(crate) use quic::quic;
pub(crate) use record::record;
pub(crate) use run::run;
pub(crate) use shells::{mm_delay, mm_impair, mm_link, mm_loss, mm_onoff};
pub(crate) use sim::sim;
pub(crate) use trace::trace;
pub(crate) use train::train;

use crate::cli::SnapshotCommand;
use ccplane_agent::failure::Failure;
pub(crate) use ccplane_agent::output::print;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The exit code of a process that a signal has stopped.
const SIGNALLED: u8 = 130;

/// The command line that was parsed, which from Python is not the process's own.
pub(crate) struct Invoked {
    /// The name of the program, which for an outside crate is its own.
    program: String,
    /// The whole line, to be shown.
    line: String,
}

impl Invoked {
    /// Takes the arguments, the program's name first.
    pub(crate) fn new(arguments: &[OsString]) -> Invoked {
        let words: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
        let name = arguments.first().and_then(|path| Path::new(path).file_name());
        let program = name.map_or_else(|| "ccplane".to_owned(), |name| name.to_string_lossy().into_owned());
        Invoked { program, line: words.join(" ") }
    }
}

/// Makes the first SIGINT or SIGTERM ask to stop and the second one end the process.
fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, SIGNALLED.into(), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

pub(crate) fn snapshot(command: &SnapshotCommand) -> Result<ExitCode, Failure> {
    match command {
        SnapshotCommand::Verify(args) => return snapshot::verify(args),
        SnapshotCommand::Build(args) => snapshot::build(args),
        SnapshotCommand::Inspect(args) => snapshot::inspect(args),
        SnapshotCommand::Keygen(args) => snapshot::keygen(args),
        SnapshotCommand::Sign(args) => snapshot::sign(args),
        SnapshotCommand::List(args) => deployments::list(args),
        SnapshotCommand::Push(args) => deployments::push(args),
        SnapshotCommand::Rollback(args) => deployments::rollback(args),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Prints one JSON object on one line, without characters that control a terminal.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(Failure::runtime)?;
    // JSON escapes control characters below 32 only; any that are left lie within strings.
    let json = |c: char| format!("\\u{:04x}", u32::from(c));
    print(&format!("{}\n", escaped(&text, json)))
}

/// Escapes the characters of foreign text that control a terminal or change the direction of text.
fn shown(text: &str) -> String {
    escaped(text, |c| c.escape_default().to_string())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let controls = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if controls(c) { escape(c) } else { c.to_string() }).collect()
}

/// The number of spaces between the columns of a table.
const COLUMN_GAP: u16 = 2;

/// Formats rows under a header, with columns aligned at the left and two spaces between them.
fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header.to_vec()).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, COLUMN_GAP));
    }
    format!("{}\n", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align() {
        let text = table(&["a", "long"], &[vec!["wide".into(), "x".into()], vec!["b".into(), "y".into()]]);
        assert_eq!(text, "a     long\nwide  x\nb     y\n");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            shown("\u{1b}]0;x\u{7} \u{9b}2J \u{202e}é\r\n"),
            "\\u{1b}]0;x\\u{7} \\u{9b}2J \\u{202e}é\\r\\n"
        );
        let json = escaped("\u{9b}\u{7f}", |c| format!("\\u{:04x}", u32::from(c)));
        assert_eq!(json, "\\u009b\\u007f");
    }
}

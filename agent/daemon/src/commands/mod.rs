//! What each subcommand does.

mod bench;
mod control;
mod demo;
mod deployments;
mod distill;
mod doctor;
mod flows;
mod judging;
mod league;
mod prog;
mod qlog;
mod quic;
mod run;
mod shells;
mod sim;
mod snapshot;
mod trace;
mod train;

pub(crate) use bench::bench;
pub(crate) use control::{adopt, programs, reload, status, stop};
pub(crate) use demo::demo;
pub(crate) use distill::distill;
pub(crate) use doctor::doctor;
pub(crate) use flows::flows;
pub(crate) use league::league;
pub(crate) use prog::prog;
pub(crate) use qlog::qlog;
pub(crate) use quic::quic;
pub(crate) use run::run;
pub(crate) use shells::{mm_delay, mm_impair, mm_link, mm_loss, mm_onoff};
pub(crate) use sim::sim;
pub(crate) use trace::trace;
pub(crate) use train::train;

use crate::cli::SnapshotCommand;
use crate::failure::Failure;
use serde::Serialize;
use std::io::{self, Write};
use std::process::ExitCode;

/// `ccplane snapshot`
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

/// Prints one JSON object on one line, with nothing in it that a terminal obeys.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(Failure::runtime)?;
    // JSON escapes control characters below 32 only; whichever are left are within strings.
    let json = |c: char| format!("\\u{:04x}", u32::from(c));
    print(&format!("{}\n", escaped(&text, json)))
}

/// Text of someone else's, as it may be shown: what a terminal would obey, or what changes the direction of text, is escaped.
fn shown(text: &str) -> String {
    escaped(text, |c| c.escape_default().to_string())
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if obeyed(c) { escape(c) } else { c.to_string() }).collect()
}

/// Prints text.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
        other => Ok(other?),
    }
}

/// Rows under a header, columns aligned at the left, two spaces between.
fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = line(&mut header.iter().copied());
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
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
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(
            shown("\u{1b}]0;x\u{7} \u{9b}2J \u{202e}é\r\n"),
            "\\u{1b}]0;x\\u{7} \\u{9b}2J \\u{202e}é\\r\\n"
        );
        let json = escaped("\u{9b}\u{7f}", |c| format!("\\u{:04x}", u32::from(c)));
        assert_eq!(json, "\\u009b\\u007f");
    }
}

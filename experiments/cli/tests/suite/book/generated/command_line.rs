//! The page of the command line: what clap prints of each command.

use super::heading;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

/// Flags that only a build with DPDK has: the page is the same without.
const OF_DPDK: [&str; 4] = ["--port <PORT>", "--address <", "--gateway <", "--neighbour <"];
/// The commands that have them.
const OVER_DPDK: [&str; 2] = ["quic", "predict"];
/// Columns by which a line is set in that goes on with the help of a flag.
const CONTINUED: usize = 10;
/// The heading above a command's own commands.
const COMMANDS: &str = "\nCommands:\n";

pub fn page() -> String {
    let mut out = heading("The command line", "what `ccplane help` prints");
    out.push_str(
        "`--port`, `--address`, `--gateway` and `--neighbour` of `quic` and `predict serve`, in a build with DPDK, are left out here.\n\n",
    );
    section(&mut out, &[]);
    out
}

/// Writes what is printed of a command, and of those below it.
fn section(out: &mut String, path: &[&str]) {
    let help = help(path);
    if !path.is_empty() {
        writeln!(out, "{} ccplane {}\n", "#".repeat(1 + path.len()), path.join(" ")).unwrap();
    }
    writeln!(out, "```text\n{}\n```\n", help.trim_end()).unwrap();
    let inner = help.split(COMMANDS).nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap_or_default();
    // A command's name is set in by two; the lines that go on with what it does, by more.
    let names = inner.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    for name in names.filter(|name| !name.is_empty() && *name != "help") {
        section(out, &[path, &[name]].concat());
    }
}

/// The long help of a command, as where there is no terminal.
fn help(path: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ccplane"));
    command
        .arg("help")
        .args(path)
        .stdin(Stdio::null())
        .env_remove("CCPLANE_CONFIG")
        .env_remove("CCPLANE_SOCKET");
    let output = command.output().unwrap();
    assert!(output.status.success(), "ccplane help {path:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let help = lines.join("\n");
    if path.first().is_some_and(|first| OVER_DPDK.contains(first)) { without_dpdk(&help) } else { help }
}

/// The help without the flags of DPDK. Each flag has one line, since columns and breaks depend on which flags there are.
fn without_dpdk(help: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in help.lines() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if indent >= CONTINUED {
            while lines.last().is_some_and(String::is_empty) {
                lines.pop();
            }
            let Some(last) = lines.last_mut() else { continue };
            // Between a flag and what it does are two spaces.
            let gap = if last.trim_start().contains("  ") { " " } else { "  " };
            *last = format!("{last}{gap}{bare}");
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.retain(|line| !OF_DPDK.iter().any(|flag| line.trim_start().starts_with(flag)));
    lines.dedup_by(|line, before| line.is_empty() && before.is_empty());
    let words = |line: &String| {
        line.split("  ").map(str::trim).filter(|w| !w.is_empty()).collect::<Vec<_>>().join("  ")
    };
    let indent = |line: &str| " ".repeat(line.len() - line.trim_start().len());
    lines.iter().map(|line| format!("{}{}\n", indent(line), words(line))).collect()
}

//! The pages that are made from the code: each says what it was made from.

mod command_line;
mod configuration;
mod primitives;

use super::page::root;
use ccplane_alg::Algorithm;
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

/// Name and text of each page.
pub fn pages() -> Vec<(&'static str, String)> {
    vec![
        ("language.md", language()),
        ("primitives.md", primitives::page()),
        ("algorithms.md", algorithms()),
        ("command-line.md", command_line::page()),
        ("configuration.md", configuration::page()),
        ("wire.md", wire()),
    ]
}

/// A page's first lines.
fn heading(title: &str, from: &str) -> String {
    format!("# {title}\n\n<!-- Made by `make book` from {from}: change that. -->\n\n")
}

fn source(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The comment that a source file begins with, as a page: headings one level down, links to code as code, marked blocks of Rust.
fn front_comment(path: &str) -> String {
    let (mut out, mut fenced) = (String::new(), false);
    for line in source(path).lines().take_while(|line| line.starts_with("//!")) {
        let line = line.strip_prefix("//!").unwrap_or_default();
        let line = line.strip_prefix(' ').unwrap_or(line);
        match line {
            "```" if !fenced => {
                fenced = true;
                writeln!(out, "<!-- from {path} -->\n```rust").unwrap();
            }
            fence if fence.starts_with("```") => {
                fenced = !fenced;
                writeln!(out, "{line}").unwrap();
            }
            // Documentation tests run such lines, and readers do not see them.
            hidden if fenced && hidden.starts_with("# ") => {}
            line if fenced => writeln!(out, "{line}").unwrap(),
            line if line.starts_with('#') => writeln!(out, "#{line}").unwrap(),
            line => writeln!(out, "{}", without_links(line)).unwrap(),
        }
    }
    out
}

/// The text with links to items as code alone.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("[`") {
        let Some(end) = rest[at..].find("`]").map(|end| at + end) else { break };
        out.push_str(&rest[..at]);
        out.push_str(&rest[at + 1..=end]);
        rest = &rest[end + 2..];
        if rest.starts_with('(') {
            rest = rest.split_once(')').map_or("", |(_, rest)| rest);
        }
    }
    out + rest
}

/// The constants of a source file that bound something, as a table.
fn limits(paths: &[&str]) -> String {
    let mut out = String::from("| | at most |\n|---|---|\n");
    for path in paths {
        let text = source(path);
        let mut about = String::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("/// ") {
                about = format!("{about} {comment}").trim().to_owned();
                continue;
            }
            let limit = line.strip_prefix("pub const MAX_").and_then(|line| line.split_once(" = "));
            if let Some((_, value)) = limit {
                writeln!(out, "| {} | {} |", without_links(&about), number(value.trim_end_matches(';')))
                    .unwrap();
            }
            about.clear();
        }
    }
    out
}

/// A value as people write it: shifts are powers of two.
fn number(value: &str) -> String {
    match value.split_once(" << ") {
        Some(("1", bits)) => format!("2^{bits}"),
        _ => value.to_owned(),
    }
}

fn language() -> String {
    let from = "the comments of agent/program/src/lang/mod.rs and agent/program/src/ir.rs";
    let comment = front_comment("agent/program/src/lang/mod.rs");
    let machine = front_comment("agent/program/src/ir.rs");
    let limits =
        limits(&["agent/program/src/ir.rs", "agent/program/src/lang/mod.rs", "agent/program/src/hook.rs"]);
    format!(
        "{}What a program can read at each hook is [a page of its own](primitives.md). {comment}\n## What a program means\n\n{machine}\n## Limits\n\n{limits}",
        heading("The language", from)
    )
}

fn wire() -> String {
    let from = "the comments of agent/wire/src";
    let [all, new, old] =
        ["lib", "v2/mod", "v1/mod"].map(|file| front_comment(&format!("agent/wire/src/{file}.rs")));
    format!(
        "{}{all}\n## Version 2: ccplane's\n\n{new}\n## Version 1: CCP's\n\n{old}",
        heading("Messages", from)
    )
}

fn algorithms() -> String {
    let mut out = heading("Algorithms and their parameters", "`ccplane_algs`");
    out.push_str(
        "A rule, a plan and `ccplane league` name an algorithm by the first column. A policy slot holds the network that its programs ask.\n\n",
    );
    table(&mut out, "On ACKs", &ccplane_algs::all());
    table(&mut out, "On packets", &ccplane_algs::on_packets());
    out
}

fn table(out: &mut String, title: &str, algorithms: &[Arc<dyn Algorithm>]) {
    let list = |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    writeln!(
        out,
        "## {title}\n\n| algorithm | programs | policy slots | improved on live flows |\n|---|---|---|---|"
    )
    .unwrap();
    for algorithm in algorithms {
        let programs = algorithm.programs().iter().map(|program| program.name.to_owned()).collect();
        let slots = algorithm.policies().iter().map(|policy| policy.slot.to_string()).collect();
        let learns = match (algorithm.learns(), algorithm.is_supervised()) {
            (false, _) => "no",
            (true, true) => "from what flows turned out to be",
            (true, false) => "from rewards",
        };
        writeln!(out, "| `{}` | {} | {} | {learns} |", algorithm.name(), list(programs), list(slots))
            .unwrap();
    }
    out.push_str("\n| algorithm | parameter | | default | from | to |\n|---|---|---|---|---|---|\n");
    for algorithm in algorithms {
        for parameter in algorithm.parameters() {
            let ccplane_alg::Parameter { name, about, default, min, max } = parameter;
            let about = about.replace('|', "\\|");
            writeln!(out, "| `{}` | `{name}` | {about} | {default} | {min} | {max} |", algorithm.name())
                .unwrap();
        }
    }
    out.push('\n');
}

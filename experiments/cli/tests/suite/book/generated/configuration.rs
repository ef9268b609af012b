//! The page of the configuration, from the documented defaults that a test of the agent holds against its types.

use super::heading;
use ccplane_agent::config::DEFAULT_TOML;
use std::fmt::Write as _;

/// The line at which the example of a rule begins.
const RULES: &str = "# Which algorithm steers which flows";

pub fn page() -> String {
    let (keys, rules) = DEFAULT_TOML.split_once(RULES).expect("an example of a rule");
    let mut out = heading("The configuration", "agent/daemon/src/config/default.toml");
    out.push_str(
        "TOML, in `/etc/ccplane.toml` or where `--config` says. `ccplane agent --print-default-config` prints all of it, and `--check-config` checks a \
        file. A key that is left out keeps its default; one that is not known is refused, with line and column. *Unset* keys have no default.\n\n",
    );
    let mut comment: Vec<&str> = Vec::new();
    let (mut is_first, mut section) = (true, "");
    for line in keys.lines().chain([""]) {
        let bare = line.strip_prefix("# ").unwrap_or(line);
        let key = bare.split_once(" = ").filter(|(key, _)| is_key(key));
        if line.is_empty() {
            // The file's own first lines say what is said above.
            if !is_first && !comment.is_empty() {
                writeln!(out, "{}\n", text(&comment, "")).unwrap();
            }
            is_first = false;
            comment.clear();
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
            writeln!(out, "\n## `[{section}]`\n").unwrap();
        } else if let Some((key, value)) = key {
            let unset = line.starts_with('#');
            let value = if unset { format!("*Unset*; for example `{value}`") } else { format!("`{value}`") };
            writeln!(out, "- **`{}{key}`**: {value}. {}", prefix(section), text(&comment, "  ")).unwrap();
            comment.clear();
        } else if let Some(words) = line.strip_prefix('#') {
            comment.push(words.strip_prefix(' ').unwrap_or(words));
        }
    }
    let rules: Vec<&str> =
        rules.lines().map(|line| line.strip_prefix("# ").unwrap_or(line.trim_start_matches('#'))).collect();
    let at = rules.iter().position(|line| *line == "[[rule]]").expect("the rule of the example");
    let (words, example) = rules.split_at(at);
    let said = format!("{}{}", RULES.trim_start_matches("# "), words.join(" "));
    let comments = example.iter().map(|line| {
        line.replace("#                                  # ", "                                   # ")
    });
    let example: Vec<String> = comments.collect();
    write!(out, "\n## `[[rule]]`\n\n{}\n\n```toml\n{}\n```\n", said.trim(), example.join("\n").trim_end())
        .unwrap();
    out
}

fn is_key(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn prefix(section: &str) -> String {
    if section.is_empty() { String::new() } else { format!("{section}.") }
}

/// A comment as text: lines that are set in become a list.
fn text(comment: &[&str], indent: &str) -> String {
    let mut out = String::new();
    for line in comment {
        match line.strip_prefix("  ") {
            Some(item) if item.starts_with('"') => {
                let (value, about) = item.split_once(':').unwrap_or((item, ""));
                write!(
                    out,
                    "\n{indent}- `{value}`:{}",
                    about.split_whitespace().fold(String::new(), |a, w| a + " " + w)
                )
                .unwrap();
            }
            _ => {
                let gap = if out.is_empty() { "" } else { " " };
                write!(out, "{gap}{}", line.trim()).unwrap();
            }
        }
    }
    out
}

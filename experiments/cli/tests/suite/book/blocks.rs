//! Blocks of code, held against what they are for.
//!
//! | language | what is asked of it |
//! |---|---|
//! | none, `text` | nothing: a drawing, or output |
//! | `console` | `ccplane` takes each of its command lines, the Makefile has each target; marked `run`, `.ci/follow` runs them |
//! | `toml` | it is a configuration, a plan, or a manifest |
//! | `lisp` | it compiles; marked `after TEXT`, behind that text |
//! | `rust` | the documentation tests of the page's crate run it |
//! | `python` | the Python package's tests run its page's blocks |
//!
//! Any block may be marked `from FILE` instead: it is a part of that file, which the project compiles or runs.

use super::page::{Block, Page, root};
use ccplane_agent::config::Config;
use ccplane_runner::plan::{Known, Overrides, Plan};
use std::fs;
use std::path::Path;

/// The words that begin a command line of ours, where the page's reader has built it.
const OURS: [&str; 2] = ["ccplane", "target/release/ccplane"];
/// The page whose blocks of Python are run.
const PYTHON: &str = "experiments/python/README.md";
/// Words that separate commands on a line.
const SEPARATORS: [&str; 5] = ["|", "||", "&", "&&", ";"];

/// Returns the reason why a block does not work; `None` where it does.
pub fn fault(page: &Page, block: &Block) -> Option<String> {
    let (mark, rest) =
        block.mark.as_deref().map_or(("", ""), |mark| mark.split_once(' ').unwrap_or((mark, "")));
    match (mark, &*block.language) {
        ("from", _) => part_of(rest, &block.text),
        ("", "" | "text") => None,
        ("" | "run", "console") => console(&block.text),
        ("" | "file", "toml") => toml(&block.text),
        ("" | "after" | "file", "lisp") => {
            lisp(if mark == "after" { format!("{rest}\n{}", block.text) } else { block.text.clone() })
        }
        ("", "rust") => documentation_test(page, block),
        ("", "python") if page.path == Path::new(PYTHON) => None,
        (mark, language) => Some(format!("no test is known for `{language}` marked `{mark}`")),
    }
}

/// Lines of a text that mean something, without the signs of doc comments; one space stands for several.
fn lines(text: &str) -> Vec<String> {
    let bare = text.lines().map(|line| {
        let line = line.trim();
        line.strip_prefix("//!").or(line.strip_prefix("///")).unwrap_or(line).trim()
    });
    let words = bare.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|line| !line.is_empty()).collect()
}

/// Whether the text is a part of the file.
fn part_of(file: &str, text: &str) -> Option<String> {
    let Ok(whole) = fs::read_to_string(root().join(file)) else { return Some(format!("there is no {file}")) };
    let (whole, part) = (lines(&whole), lines(text));
    let is_part = !part.is_empty() && whole.windows(part.len()).any(|window| window == part);
    (!is_part).then(|| format!("{file} has other lines"))
}

/// Whether documentation tests of the crate whose front page this is run the block.
fn documentation_test(page: &Page, block: &Block) -> Option<String> {
    let library = page.path.parent()?.join("src/lib.rs");
    let source = fs::read_to_string(root().join(&library)).unwrap_or_default();
    let is_run =
        source.contains("#[doc = include_str!(\"../README.md\")]") && !block.attributes.contains("ignore");
    (!is_run).then(|| format!("{} does not run it", library.display()))
}

fn lisp(text: String) -> Option<String> {
    let errors = ccplane_program::compile(&text).err()?;
    Some(errors.iter().map(|error| error.render("the program", &text)).collect())
}

fn toml(text: &str) -> Option<String> {
    let config = Config::parse(Path::new("configuration"), text, None).err()?;
    let algorithms = ccplane_algs::all();
    let traces = |name: &str| Err(format!("no trace {name}"));
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    let plan = Plan::parse(Path::new("plan.toml"), text, &known, Overrides::default()).err()?;
    let manifest = toml::from_str::<toml::Table>(text).ok();
    if manifest.is_some_and(|table| table.contains_key("dependencies")) {
        return None;
    }
    Some(format!("neither a configuration nor a plan:\n{config}\n{plan}"))
}

fn console(text: &str) -> Option<String> {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<&str> = makefile.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let typed = text.lines().filter_map(|line| line.strip_prefix("$ ").or(line.strip_prefix("# ")));
    if typed.clone().count() == 0 {
        return Some("a line without a prompt is output, and here are no others".to_owned());
    }
    typed.into_iter().find_map(|line| {
        let Some(words) = shlex::split(line) else { return Some(format!("no command line: {line}")) };
        words.split(|word| SEPARATORS.contains(&word.as_str())).find_map(|command| refused(command, &targets))
    })
}

/// Returns the reason why one command would be refused, as far as that can be told without running it.
fn refused(command: &[String], targets: &[&str]) -> Option<String> {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    match command.as_slice() {
        ["make", target, ..] if target.starts_with("test-") => None,
        ["make", target, ..] => {
            let is_one = targets.contains(target) || target.contains('=');
            (!is_one).then(|| format!("the Makefile has no target {target}"))
        }
        ["cargo", "run", rest @ ..] => {
            let arguments = rest.iter().position(|word| *word == "--").map_or(&[][..], |at| &rest[at + 1..]);
            let other = rest.iter().any(|word| ["-p", "--example", "--bin"].contains(word));
            if other { None } else { taken(arguments) }
        }
        ["ccplaned", arguments @ ..] => taken(&[&["agent"][..], arguments].concat()),
        // Its flags are there in builds with it, such as those of `make test`.
        [_, arguments @ ..] if arguments.contains(&"--port") && !cfg!(feature = "dpdk") => None,
        [first, arguments @ ..] if OURS.contains(first) => taken(arguments),
        _ => None,
    }
}

/// Whether `ccplane` takes the arguments.
fn taken(arguments: &[&str]) -> Option<String> {
    // A redirection is the shell's.
    let arguments =
        arguments.split(|word| word.starts_with('>') || word.starts_with("2>")).next().unwrap_or_default();
    let words = ["ccplane"].iter().chain(arguments);
    let refusal = ccplane::command_line().try_get_matches_from(words).err()?;
    (refusal.exit_code() != 0).then(|| format!("ccplane {}: {refusal}", arguments.join(" ")))
}

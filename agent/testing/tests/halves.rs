//! The page of halves names tests that exist, in the files that it links.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

/// The page, and the folder that its links start from.
const PAGE: &str = include_str!("../../docs/halves.md");
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs");
/// The end of a test's name that the page cuts short.
const CUT: &str = "...";

/// The links' targets by label, from lines such as `[label]: path`.
fn targets(page: &str) -> BTreeMap<&str, &str> {
    page.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

/// Finds all links of the form `[text][label]`.
fn links(page: &str) -> Vec<(&str, &str)> {
    let ends = page.match_indices("][").map(|(at, _)| at);
    let link = |at: usize| {
        let text = &page[page[..at].rfind('[').unwrap() + 1..at];
        (text, page[at + 2..].split(']').next().unwrap())
    };
    ends.map(link).collect()
}

/// The links of a page that lead nowhere, where `read` gives what a target holds: a text that is a test's name has to be in it.
fn broken(page: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let targets = targets(page);
    let is_broken = |(text, label): &(&str, &str)| {
        let Some(content) = targets.get(label).and_then(|target| read(target)) else { return true };
        let named = text.trim_end_matches(CUT);
        let is_name =
            named.contains('_') && named.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c));
        let end = if text.ends_with(CUT) { "" } else { "(" };
        is_name && !content.contains(&format!("fn {named}{end}"))
    };
    let broken = links(page).into_iter().filter(is_broken);
    broken.map(|(text, label)| format!("[{text}][{label}]")).collect()
}

#[test]
fn each_cell_names_a_test_that_exists() {
    let read = |target: &str| std::fs::read_to_string(Path::new(FOLDER).join(target)).ok();
    assert_eq!(broken(PAGE, read), [""; 0]);
    assert!(links(PAGE).len() > 30, "{:?}", links(PAGE));
}

#[test]
fn a_cell_without_its_test_is_found() {
    let page = "| [a_b_c][one] | [a_b...][one] | [x_y][one] | [words][one] | [a_b_c][two] | [words][gone] |\n[one]: 1\n[gone]: 3\n";
    let read = |target: &str| (target == "1").then(|| "fn a_b_c() {}".to_owned());
    assert_eq!(broken(page, read), ["[x_y][one]", "[a_b_c][two]", "[words][gone]"]);
}

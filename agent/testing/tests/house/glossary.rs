//! The glossary of ARCHITECTURE.md is short, and each of its words stands in the code.

use std::collections::BTreeSet;

/// The file with the glossary.
const ARCHITECTURE: &str = include_str!("../../../../ARCHITECTURE.md");
/// The heading above the glossary's table.
const HEADING: &str = "## Glossary";
/// Words that a newcomer is asked to learn, at most.
const MAX_WORDS: usize = 40;

/// Every identifier in the workspace's sources.
fn identifiers() -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    crate::sources::each("", &[], |_, source| {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        found.extend(
            code.flat_map(|line| line.split(|c| !is_part(c))).filter(|w| !w.is_empty()).map(str::to_owned),
        );
    });
    found
}

#[test]
fn each_word_stands_in_the_code() {
    let section = ARCHITECTURE.split(HEADING).nth(1).expect("ARCHITECTURE.md has a glossary");
    let rows = section.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| **"));
    let words: Vec<Vec<&str>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
    assert!((1..=MAX_WORDS).contains(&words.len()), "{} words", words.len());
    let identifiers = identifiers();
    let mut missing = Vec::new();
    for word in &words {
        let names: Vec<&str> = word[3].split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{} names no identifier", word[1]);
        missing.extend(names.into_iter().filter(|name| !identifiers.contains(*name)));
    }
    assert_eq!(missing, [""; 0], "the code has no such names");
}

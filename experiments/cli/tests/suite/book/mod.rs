//! The book: its table of contents, its links, the pages that are made from the code, and every block of code in it.
//!
//! `.ci/follow` runs the blocks that are marked `run` or `file`; `.ci/book` has mdBook build it and looks up each link of what comes out.

mod blocks;
mod generated;
mod page;

use page::{Book, FOLDER, Page, SUMMARY, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The environment variable that has pages written instead of compared.
const BLESS: &str = "CCPLANE_BLESS";
/// Pages that are about one folder of data.
const NOT_IN_THE_BOOK: [&str; 2] =
    ["datapath-shims/predict/data/digits/README.md", "experiments/report/src/assets/font/README.md"];

/// The Markdown files of the checkout.
fn files() -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !name.starts_with('.') && !["target", "results"].contains(&name.as_str()) {
                folders.push(path);
            } else if kind.is_file() && name.ends_with(".md") {
                found.insert(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn the_table_of_contents_has_each_page_once() {
    let Book { summary, pages } = Book::read();
    assert_eq!(pages.len(), summary.links.len(), "a page has two places");
    let outside: BTreeSet<PathBuf> = NOT_IN_THE_BOOK.iter().chain([&SUMMARY]).map(PathBuf::from).collect();
    // Its reports are made by one command, which that folder's page says.
    let is_report = |file: &PathBuf| file.starts_with("experiments/evaluations");
    let mut missing = files();
    missing.retain(|file| !pages.contains_key(file) && !outside.contains(file) && !is_report(file));
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn each_link_leads_to_a_file_and_a_heading() {
    let book = Book::read();
    let broken: Vec<String> =
        book.pages.values().chain([&book.summary]).flat_map(|page| book.broken(page)).collect();
    assert_eq!(broken, [""; 0]);
    assert!(book.pages.values().map(|page| page.links.len()).sum::<usize>() > 150);
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text = "# One\n# One\n[a](#one-1) [b](#one-2) [c](../../README.md#how-fast) [d](../../README.md#x)\n\
        [e](book.toml) [f](gone.toml) [g](SUMMARY.md) [h](../report/src/assets/font/README.md)\n\
        [i](https://example.org/x.md) `[j](k.md)`\n";
    let page = Page::parse(&Path::new(FOLDER).join("page.md"), text);
    let mut book = Book::read();
    book.pages.insert(page.path.clone(), page.clone());
    let found: Vec<String> =
        book.broken(&page).into_iter().map(|b| b.split(": ").nth(1).unwrap().to_owned()).collect();
    assert_eq!(found, ["#one-2", "../../README.md#x", "gone.toml", "../report/src/assets/font/README.md"]);
}

#[test]
fn pages_that_are_made_from_the_code_say_what_it_says() {
    let folder = root().join(FOLDER).join("generated");
    let pages = generated::pages();
    for (name, text) in &pages {
        let path = folder.join(name);
        if std::env::var_os(BLESS).is_some() {
            fs::write(&path, text).unwrap();
        }
        let there = fs::read_to_string(&path).unwrap_or_default();
        let differs = there.lines().zip(text.lines()).position(|(there, made)| there != made);
        assert!(
            there == *text,
            "{name}, line {}: `make book` writes it anew",
            differs.unwrap_or(there.lines().count().min(text.lines().count())) + 1
        );
    }
    let names: BTreeSet<&str> = pages.iter().map(|(name, _)| *name).collect();
    let there: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(there.iter().all(|name| names.contains(name.as_str())), "{there:?}");
}

#[test]
fn each_block_of_code_works() {
    let book = Book::read();
    let mut faults = Vec::new();
    for page in book.pages.values() {
        faults.extend(page.blocks.iter().filter_map(|block| {
            let why = blocks::fault(page, block)?;
            Some(format!("{}:{}: {why}", page.path.display(), block.line))
        }));
    }
    assert_eq!(faults, [""; 0]);
    assert!(book.pages.values().map(|page| page.blocks.len()).sum::<usize>() > 60);
}

#[test]
fn a_block_that_does_not_work_is_found() {
    let text = "```console\n$ ccplane rnu plan.toml\n```\n```console\n$ make demo\n$ make tea\n```\n\
        ```toml\n[learn]\nmode = \"of\"\n```\n```lisp\n(when)\n```\n```python\n1\n```\n```rust\nfn f() {}\n```\n\
        <!-- from Makefile -->\n```make\n.PHONY: gone\n```\n<!-- rum -->\n```console\n$ ls\n```\n";
    let page = Page::parse(&Path::new(FOLDER).join("page.md"), text);
    let faults: Vec<bool> = page.blocks.iter().map(|block| blocks::fault(&page, block).is_some()).collect();
    assert_eq!(faults, [true; 8]);
    let good = "```console\n$ ccplane run plan.toml | cat  # a comment\n```\n```\na drawing\n```\n\
        <!-- from Makefile -->\n```make\nCCPLANE := target/release/ccplane\n```\n";
    let page = Page::parse(&Path::new(FOLDER).join("page.md"), good);
    assert_eq!(
        page.blocks.iter().filter_map(|block| blocks::fault(&page, block)).collect::<Vec<_>>(),
        [""; 0]
    );
}

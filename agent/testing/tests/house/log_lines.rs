//! Every warning and error that the agent may log stands in the operator's table, and nothing else does.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;

/// The operator's page.
const PAGE: &str = include_str!("../../../docs/log.md");
/// Folders of what the agent, and datapaths that serve it, are made of.
const FOLDERS: [&str; 10] = [
    "agent/daemon/src",
    "agent/core/src",
    "agent/bridge/src",
    "agent/wait/src",
    "agent/learn/src",
    "datapath-shims/channel/src",
    "datapath-shims/ebpf/src",
    "datapath-shims/module/src",
    "datapath-shims/quic/src",
    "algs/src",
];

/// The heading of the page's table of spans, its last one.
const SPANS: &str = "## Spans";

/// Collects the messages of these macros, also of those within other macros.
fn messages(tokens: TokenStream, macros: &[&str], found: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let is_log = at >= 2
            && matches!(&tokens[at - 2], TokenTree::Ident(name) if macros.iter().any(|one| name == one))
            && matches!(&tokens[at - 1], TokenTree::Punct(mark) if mark.as_char() == '!')
            && group.delimiter() == Delimiter::Parenthesis;
        if is_log {
            found.insert(message(group.stream()).unwrap_or_else(|| panic!("no message: {group}")));
        }
        messages(group.stream(), macros, found);
    }
}

/// The message of a log line: the literal that stands alone between commas.
fn message(arguments: TokenStream) -> Option<String> {
    let tokens: Vec<TokenTree> = arguments.into_iter().collect();
    let is_comma = |token: Option<&TokenTree>| match token {
        None => true,
        Some(TokenTree::Punct(mark)) => mark.as_char() == ',',
        Some(_) => false,
    };
    let mut texts = tokens.iter().enumerate().filter_map(|(at, token)| {
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        let alone = is_comma(before) && is_comma(tokens.get(at + 1));
        let TokenTree::Literal(literal) = token else { return None };
        alone.then(|| syn::parse_str::<syn::LitStr>(&literal.to_string()).ok()).flatten()
    });
    texts.next_back().map(|text| text.value())
}

/// The first cell of each row of a part's tables, where two backticks stand for one.
fn listed(part: &str) -> BTreeSet<String> {
    let mut listed = BTreeSet::new();
    for row in part.lines().filter(|line| line.starts_with("| `")) {
        let cell = row.trim_start_matches("| `").split("` | ").next().unwrap();
        let what_to_do = row.rsplit(" | ").next().unwrap().trim_end_matches(" |");
        assert!(what_to_do.len() > 10, "nothing to do: {row}");
        assert!(listed.insert(cell.replace("``", "`")), "twice: {row}");
    }
    listed
}

/// Holds what the agent's sources have against a part of the page.
fn compare(macros: &[&str], part: &str, least: usize) {
    let mut found = BTreeSet::new();
    for folder in FOLDERS {
        crate::sources::each(folder, &[], |_, source| messages(source.parse().unwrap(), macros, &mut found));
    }
    assert!(found.len() >= least, "{} messages were found", found.len());
    let listed = listed(part);
    let missing: Vec<&String> = found.difference(&listed).collect();
    let gone: Vec<&String> = listed.difference(&found).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not in agent/docs/log.md: {missing:#?}; only there: {gone:#?}"
    );
}

#[test]
fn operators_find_every_line_of_the_log() {
    compare(&["warn", "error"], PAGE.split_once(SPANS).unwrap().0, 60);
}

#[test]
fn no_source_logs_beyond_those_that_the_page_is_held_against() {
    let mut elsewhere = BTreeSet::new();
    crate::sources::each("", &["tests", "examples"], |path, source| {
        if !FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            messages(source.parse().unwrap(), &["warn", "error", "info_span", "debug_span"], &mut elsewhere);
        }
    });
    assert!(elsewhere.is_empty(), "their folders are missing in FOLDERS: {elsewhere:?}");
}

#[test]
fn spans_keep_the_names_that_the_page_has() {
    compare(&["info_span", "debug_span"], PAGE.split_once(SPANS).unwrap().1, 2);
}

#[test]
fn messages_are_found_within_other_macros_and_beside_fields() {
    let source = r#"
        fn f() { select! { () = end => { error!(why = "a field", %id, "within {}", 1); } } }
        fn g() { warn!("continued \
                        line"); info!("not this one"); log.error("nor this"); }
    "#;
    let mut found = BTreeSet::new();
    messages(source.parse().unwrap(), &["warn", "error"], &mut found);
    assert_eq!(found, ["continued line", "within {}"].map(str::to_owned).into());
}

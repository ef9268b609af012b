//! The operators and commands, each with its spellings, and "did you mean".

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::ir::Op;

/// The words that may stand right after `(` inside a clause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    Op(Op),
    Report,
    Fallthrough,
    History,
    Policy,
}

/// Spelling, and what it means. The first spelling of an operator is the one that is printed.
const HEADS: [(&str, Head); 32] = [
    (":=", Head::Op(Op::Bind)),
    ("bind", Head::Op(Op::Bind)),
    ("+", Head::Op(Op::Add)),
    ("add", Head::Op(Op::Add)),
    ("-", Head::Op(Op::Sub)),
    ("sub", Head::Op(Op::Sub)),
    ("*", Head::Op(Op::Mul)),
    ("mul", Head::Op(Op::Mul)),
    ("/", Head::Op(Op::Div)),
    ("div", Head::Op(Op::Div)),
    ("==", Head::Op(Op::Eq)),
    ("eq", Head::Op(Op::Eq)),
    ("<", Head::Op(Op::Lt)),
    ("lt", Head::Op(Op::Lt)),
    (">", Head::Op(Op::Gt)),
    ("gt", Head::Op(Op::Gt)),
    ("<=", Head::Op(Op::Le)),
    (">=", Head::Op(Op::Ge)),
    ("min", Head::Op(Op::Min)),
    ("max", Head::Op(Op::Max)),
    ("wrapped_max", Head::Op(Op::MaxWrap)),
    ("&&", Head::Op(Op::And)),
    ("and", Head::Op(Op::And)),
    ("||", Head::Op(Op::Or)),
    ("or", Head::Op(Op::Or)),
    ("ewma", Head::Op(Op::Ewma)),
    ("if", Head::Op(Op::If)),
    ("!if", Head::Op(Op::NotIf)),
    ("report", Head::Report),
    ("fallthrough", Head::Fallthrough),
    ("history", Head::History),
    ("policy", Head::Policy),
];

pub(super) fn head(text: &str) -> Option<Head> {
    HEADS.iter().find(|(t, _)| *t == text).map(|(_, h)| *h)
}

/// The canonical spelling of an operator.
pub(crate) fn spelling(op: Op) -> &'static str {
    match op {
        Op::History => "history",
        Op::Policy => "policy",
        _ => HEADS.iter().find(|(_, h)| *h == Head::Op(op)).map_or("?", |(t, _)| t),
    }
}

/// The operator or command that `text` was probably meant to be.
pub(super) fn suggest_head(text: &str) -> Option<String> {
    suggest(text, HEADS.iter().map(|(t, _)| *t).filter(|t| t.len() > 1))
}

/// The candidate that `text` was probably meant to be.
pub(super) fn suggest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates.filter(|c| *c != text) {
        // `rtt_sample_us` for `Flow.rtt_sample_us`.
        let same_field = candidate.rsplit_once('.').is_some_and(|(_, field)| field == text);
        let distance = if same_field { 0 } else { edit_distance(text, candidate) };
        if distance <= text.len().max(candidate.len()) / 3 && best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate.to_string())
}

/// Levenshtein distance in bytes, letter case ignored.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.bytes().enumerate() {
            let swap = row[j] + usize::from(!x.eq_ignore_ascii_case(&y));
            next.push(swap.min(row[j + 1] + 1).min(next[j] + 1));
        }
        row = next;
    }
    row[b.len()]
}

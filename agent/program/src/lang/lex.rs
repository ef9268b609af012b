//! Source text to tokens with matched parentheses.

use alloc::borrow::ToOwned;
use alloc::vec::Vec;

use super::diag::{Diagnostic, Diags, Problem, Span};
use super::{MAX_DEPTH, MAX_SOURCE_BYTES};
use crate::ir::INFINITY;

/// A token with its place in the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token {
    pub kind: TokenKind,
    pub span: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenKind {
    /// `(`, and the index of the token that closes it.
    Open {
        close: usize,
    },
    Close,
    /// A run of letters, digits, `.` and `_` that starts with no digit.
    Word,
    Number(i64),
    /// An operator made of symbols.
    Symbol,
}

const INFINITY_TEXT: &str = "+infinity";

/// Longest first, so that the first match is the longest.
const SYMBOLS: [&str; 13] = ["!if", ":=", "==", ">=", "<=", "&&", "||", "+", "-", "*", "/", "<", ">"];

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '.' || c == '_'
}

struct Lexer<'s> {
    at: usize,
    tokens: Vec<Token>,
    /// Indices of the parentheses that are still open.
    open: Vec<usize>,
    diags: Diags<'s>,
}

/// The tokens of `source`. Every `(` is matched, and nesting is at most [`MAX_DEPTH`] deep.
pub(super) fn lex(source: &str) -> Result<Vec<Token>, Vec<Diagnostic>> {
    let mut lexer = Lexer { at: 0, tokens: Vec::new(), open: Vec::new(), diags: Diags::new(source) };
    if source.len() > MAX_SOURCE_BYTES {
        lexer
            .refuse(Span::default(), Problem::SourceTooLong { bytes: source.len(), limit: MAX_SOURCE_BYTES });
        return lexer.diags.into_result(lexer.tokens);
    }
    while !lexer.diags.is_full() && lexer.token() {}
    for &i in &lexer.open {
        lexer.diags.refuse(lexer.tokens[i].span, Problem::Unclosed);
    }
    lexer.diags.into_result(lexer.tokens)
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.diags.source[self.at..]
    }

    fn refuse(&mut self, span: Span, problem: Problem) {
        self.diags.refuse(span, problem);
    }

    fn push(&mut self, kind: TokenKind, bytes: usize) {
        self.tokens.push(Token { kind, span: Span::new(self.at, self.at + bytes) });
        self.at += bytes;
    }

    /// Reads one token or comment; false at the end of the text, or where going on makes no sense.
    fn token(&mut self) -> bool {
        let rest = self.rest().trim_start_matches([' ', '\t', '\r', '\n']);
        self.at = self.diags.source.len() - rest.len();
        let Some(first) = rest.chars().next() else { return false };
        match first {
            '#' => self.at += rest.find('\n').unwrap_or(rest.len()),
            '(' => {
                if self.open.len() == MAX_DEPTH {
                    self.refuse(Span::new(self.at, self.at + 1), Problem::TooDeep { limit: MAX_DEPTH });
                    // Its siblings would all say the same.
                    self.open.clear();
                    return false;
                }
                self.open.push(self.tokens.len());
                self.push(TokenKind::Open { close: 0 }, 1);
            }
            ')' => {
                match self.open.pop() {
                    Some(i) => self.tokens[i].kind = TokenKind::Open { close: self.tokens.len() },
                    None => self.refuse(Span::new(self.at, self.at + 1), Problem::Unopened),
                }
                self.push(TokenKind::Close, 1);
            }
            _ => self.atom(rest, first),
        }
        true
    }

    fn atom(&mut self, rest: &'s str, first: char) {
        // Right after `(` stands an operator: `(-1 2)` subtracts, as in portus.
        let at_head = matches!(self.tokens.last(), Some(t) if matches!(t.kind, TokenKind::Open { .. }));
        let negative = rest.strip_prefix('-').is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()));
        if !at_head && rest.starts_with(INFINITY_TEXT) {
            self.push(TokenKind::Number(INFINITY), INFINITY_TEXT.len());
            self.separated();
        } else if first.is_ascii_digit() || (!at_head && negative) {
            self.number(rest);
        } else if is_word(first) {
            let bytes = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            self.push(TokenKind::Word, bytes);
            if !at_head {
                self.separated();
            }
        } else if let Some(symbol) = SYMBOLS.iter().find(|s| rest.starts_with(**s)) {
            self.push(TokenKind::Symbol, symbol.len());
        } else {
            self.refuse(Span::new(self.at, self.at + first.len_utf8()), Problem::BadChar(first));
            self.at += first.len_utf8();
        }
    }

    fn number(&mut self, rest: &str) {
        let sign = usize::from(rest.starts_with('-'));
        let bytes = sign + rest[sign..].find(|c| !is_word(c)).unwrap_or(rest.len() - sign);
        let text = &rest[..bytes];
        let span = Span::new(self.at, self.at + bytes);
        let mut value = 0;
        if !text[sign..].bytes().all(|b| b.is_ascii_digit()) {
            self.refuse(span, Problem::BadNumber(text.to_owned()));
        } else {
            match text.parse() {
                Ok(v) => value = v,
                Err(_) => self.refuse(span, Problem::NumberTooLarge(text.to_owned())),
            }
        }
        self.push(TokenKind::Number(value), bytes);
        self.separated();
    }

    /// Refuses an atom that runs into another one, such as `5-3`.
    fn separated(&mut self) {
        let ends = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n' | '(' | ')' | '#');
        if self.rest().starts_with(|c| !ends(c))
            && let Some(last) = self.tokens.last()
        {
            let span = last.span;
            self.refuse(span, Problem::Unseparated(span.text(self.diags.source).to_owned()));
        }
    }
}

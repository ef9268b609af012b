//! Tokens to abstract syntax. Each form is read on its own, so one mistake hides no other.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::MAX_NAME_BYTES;
use super::ast::{Decl, Expr, ExprKind, Literal, Name, Source, Stmt, StmtKind, When};
use super::diag::{Diagnostic, Diags, Problem, Span};
use super::lex::{Token, TokenKind, lex};
use super::words::{Head, head, spelling, suggest_head};
use crate::ir::{Hook, Op};

/// Parses the text of a program into its syntax tree.
///
/// # Errors
/// Everything that is wrong with its form, in source order.
pub fn parse(source: &str) -> Result<Source, Vec<Diagnostic>> {
    let tokens = lex(source)?;
    let mut parser = Parser { tokens, diags: Diags::new(source) };
    let program = parser.program();
    parser.diags.into_result(program)
}

struct Parser<'s> {
    tokens: Vec<Token>,
    diags: Diags<'s>,
}

/// The tokens between a pair of parentheses, one index for each item.
type Items = Vec<usize>;

impl Parser<'_> {
    fn refuse(&mut self, span: Span, problem: Problem) {
        self.diags.refuse(span, problem);
    }

    fn text(&self, item: usize) -> &str {
        self.tokens[item].span.text(self.diags.source)
    }

    fn is_word(&self, item: usize, word: &str) -> bool {
        self.tokens[item].kind == TokenKind::Word && self.text(item) == word
    }

    /// The items from token `from` up to token `to`.
    fn items(&self, from: usize, to: usize) -> Items {
        let mut items = Items::new();
        let mut next = from;
        while next < to {
            items.push(next);
            next = match self.tokens[next].kind {
                TokenKind::Open { close } => close + 1,
                _ => next + 1,
            };
        }
        items
    }

    /// The items of a list; `None` if `item` is no list.
    fn list(&self, item: usize) -> Option<Items> {
        match self.tokens[item].kind {
            TokenKind::Open { close } => Some(self.items(item + 1, close)),
            _ => None,
        }
    }

    /// All of an item, to its closing parenthesis.
    fn span(&self, item: usize) -> Span {
        let first = self.tokens[item];
        match first.kind {
            TokenKind::Open { close } => Span::new(first.span.start, self.tokens[close].span.end),
            _ => first.span,
        }
    }

    fn expected(&mut self, expected: &'static str, item: usize) {
        let token = self.tokens[item];
        let found = match token.kind {
            TokenKind::Open { .. } => match self.list(item).as_deref() {
                Some([]) => "`()`".to_string(),
                Some([head, ..]) if self.list(*head).is_none() => format!("`({} ...)`", self.text(*head)),
                _ => "a list".to_string(),
            },
            TokenKind::Number(_) => format!("the number `{}`", self.text(item)),
            TokenKind::Symbol => format!("the operator `{}`", self.text(item)),
            TokenKind::Word | TokenKind::Close => format!("`{}`", self.text(item)),
        };
        let span = token.span;
        self.refuse(span, Problem::Expected { expected, found });
    }

    /// Refuses the text because something is missing right after `item`'s last token.
    fn missing(&mut self, expected: &'static str, item: Option<usize>) {
        let (span, found) = match item.map(|i| self.span(i)) {
            Some(s) => (Span::new(s.end - 1, s.end), "nothing"),
            None => (Span::new(self.diags.source.len(), self.diags.source.len()), "the end of the program"),
        };
        self.refuse(span, Problem::Expected { expected, found: found.to_string() });
    }

    fn program(&mut self) -> Source {
        let mut program = Source { hook: Hook::Ack, decls: Vec::new(), clauses: Vec::new() };
        let forms = self.items(0, self.tokens.len());
        let mut rest = forms.as_slice();
        if let [first, tail @ ..] = rest
            && let Some([word, names @ ..]) = self.list(*first).as_deref()
            && self.is_word(*word, "hook")
        {
            program.hook = self.hook(*first, names);
            rest = tail;
        }
        match rest {
            [] => self.missing("a program that begins with `(def ...)`", None),
            [first, tail @ ..] => match self.list(*first).as_deref() {
                Some([word, decls @ ..]) if self.is_word(*word, "def") => {
                    program.decls = self.decls(decls);
                    rest = tail;
                }
                _ => self.expected("`(def ...)` at the beginning of the program", *first),
            },
        }
        for &form in rest {
            match self.list(form).as_deref() {
                Some([word, items @ ..]) if self.is_word(*word, "when") => {
                    program.clauses.extend(self.clause(form, items));
                }
                _ => self.expected("a clause `(when condition statement...)`", form),
            }
        }
        if rest.is_empty() && !forms.is_empty() {
            self.missing("at least one clause `(when condition statement...)`", None);
        }
        program
    }

    /// Parses the names of `(hook name)`.
    fn hook(&mut self, form: usize, names: &[usize]) -> Hook {
        let hook = match names {
            [name] => Hook::named(self.text(*name)),
            _ => None,
        };
        if hook.is_none() {
            self.expected("`(hook ack)`, `(hook send)` or `(hook connect)`", *names.first().unwrap_or(&form));
        }
        hook.unwrap_or_default()
    }

    fn decls(&mut self, items: &[usize]) -> Vec<Decl> {
        let mut decls = Vec::new();
        let mut seen_report = false;
        for &item in items {
            match self.list(item).as_deref() {
                Some([word, fields @ ..]) if self.is_word(*word, "Report") => {
                    if seen_report {
                        self.expected("only one `(Report ...)`", item);
                    } else if fields.is_empty() {
                        self.missing("at least one declaration in `(Report ...)`", Some(item));
                    }
                    seen_report = true;
                    for &field in fields {
                        decls.extend(self.decl(field, true));
                    }
                }
                _ => decls.extend(self.decl(item, false)),
            }
        }
        decls
    }

    /// Parses a declaration, `([volatile] name value)`.
    fn decl(&mut self, item: usize, in_report: bool) -> Option<Decl> {
        const FORM: &str = "a declaration `([volatile] name initial-value)`";
        let Some(items) = self.list(item) else {
            self.expected(FORM, item);
            return None;
        };
        let (volatile, items) = match items.as_slice() {
            [word, rest @ ..] if self.is_word(*word, "volatile") => (true, rest),
            all => (false, all),
        };
        let &[name, value] = items else {
            match items.get(2) {
                Some(&extra) => self.expected("`)` after the initial value", extra),
                None => self.missing(FORM, Some(item)),
            }
            return None;
        };
        let mut name = self.name(name)?;
        if in_report {
            if name.text.starts_with("Report.") {
                let reason = "inside `(Report ...)` the prefix is added for you";
                self.refuse(name.span, Problem::BadName { name: name.text, reason });
                return None;
            }
            name.text = format!("Report.{}", name.text);
        }
        let init = match self.literal(value) {
            Some(literal) => literal,
            None => {
                self.expected("an initial value: a number, `+infinity`, `true` or `false`", value);
                return None;
            }
        };
        Some(Decl { name, in_report, volatile, init })
    }

    fn literal(&self, item: usize) -> Option<Literal> {
        match (self.tokens[item].kind, self.text(item)) {
            (TokenKind::Number(n), _) => Some(Literal::Num(n)),
            (TokenKind::Word, "true") => Some(Literal::Bool(true)),
            (TokenKind::Word, "false") => Some(Literal::Bool(false)),
            _ => None,
        }
    }

    fn name(&mut self, item: usize) -> Option<Name> {
        let span = self.tokens[item].span;
        if self.tokens[item].kind != TokenKind::Word || self.literal(item).is_some() {
            self.expected("a name", item);
            return None;
        }
        let text = self.text(item).to_owned();
        match name_problem(&text) {
            None => Some(Name { text, span }),
            Some(problem) => {
                self.refuse(span, problem);
                None
            }
        }
    }

    fn clause(&mut self, form: usize, items: &[usize]) -> Option<When> {
        let [guard, body @ ..] = items else {
            self.missing("a condition after `when`", Some(form));
            return None;
        };
        let guard = self.expr(*guard);
        let statements: Vec<Option<Stmt>> = body.iter().map(|item| self.statement(*item)).collect();
        Some(When {
            span: self.span(form),
            guard: guard?,
            body: statements.into_iter().collect::<Option<_>>()?,
        })
    }

    /// Splits a call into its operator and operands, and refuses anything else.
    fn call(&mut self, item: usize, items: &[usize]) -> Option<(Head, Items)> {
        let Some((&first, operands)) = items.split_first() else {
            self.expected("an operator and its operands", item);
            return None;
        };
        if !matches!(self.tokens[first].kind, TokenKind::Word | TokenKind::Symbol) {
            self.expected("an operator", first);
            return None;
        }
        let text = self.text(first);
        if let Some(head) = head(text) {
            return Some((head, operands.to_vec()));
        }
        let alone = operands.is_empty();
        let suggestion =
            suggest_head(text).filter(|s| !alone || matches!(s.as_str(), "report" | "fallthrough"));
        let problem = Problem::UnknownOperator { found: text.to_owned(), suggestion, alone };
        let span = self.tokens[first].span;
        self.refuse(span, problem);
        None
    }

    fn statement(&mut self, item: usize) -> Option<Stmt> {
        let span = self.span(item);
        let Some(items) = self.list(item) else {
            if self.expr(item).is_some() {
                self.refuse(span, Problem::UnusedValue);
            }
            return None;
        };
        let (head, operands) = self.call(item, &items)?;
        let kind = match head {
            Head::Op(Op::Bind) => {
                let (name, value) = self.bind(item, &operands)?;
                StmtKind::Bind(name, value)
            }
            Head::Op(_) => {
                if self.expr(item).is_some() {
                    self.refuse(span, Problem::UnusedValue);
                }
                return None;
            }
            Head::Report => {
                self.arity(item, "report", 0, operands.len())?;
                StmtKind::Report
            }
            Head::Fallthrough => {
                self.arity(item, "fallthrough", 0, operands.len())?;
                StmtKind::Fallthrough
            }
            Head::Policy => {
                self.arity(item, "policy", 1, operands.len())?;
                StmtKind::Policy(self.integer("the number of a policy slot", operands[0])?)
            }
            Head::History => {
                let [depth, names @ ..] = operands.as_slice() else {
                    self.missing("`(history intervals register...)`", Some(item));
                    return None;
                };
                if names.is_empty() {
                    self.missing("at least one register in `(history ...)`", Some(item));
                }
                let depth = self.integer("how many intervals the history keeps", *depth);
                let regs: Vec<Option<Name>> = names.iter().map(|n| self.name(*n)).collect();
                StmtKind::History(depth?, regs.into_iter().collect::<Option<_>>()?)
            }
        };
        Some(Stmt { span, kind })
    }

    fn integer(&mut self, expected: &'static str, item: usize) -> Option<i64> {
        match self.tokens[item].kind {
            TokenKind::Number(n) => Some(n),
            _ => {
                self.expected(expected, item);
                None
            }
        }
    }

    fn arity(&mut self, item: usize, op: &'static str, expected: usize, found: usize) -> Option<()> {
        if expected == found {
            return Some(());
        }
        let span = self.span(item);
        self.refuse(span, Problem::WrongOperands { op, expected, found });
        None
    }

    fn bind(&mut self, item: usize, operands: &[usize]) -> Option<(Name, Expr)> {
        self.arity(item, spelling(Op::Bind), 2, operands.len())?;
        let target = match self.tokens[operands[0]].kind {
            TokenKind::Word => self.name(operands[0]),
            _ => {
                self.expected("the name of what is bound", operands[0]);
                None
            }
        };
        let value = self.value(operands[1], true);
        Some((target?, value?))
    }

    fn expr(&mut self, item: usize) -> Option<Expr> {
        self.value(item, false)
    }

    /// An expression; `bound` if it is the right side of a bind. As deep as the parentheses, which are bounded.
    fn value(&mut self, item: usize, bound: bool) -> Option<Expr> {
        let span = self.span(item);
        let Some(items) = self.list(item) else {
            let kind = match self.literal(item) {
                Some(literal) => ExprKind::Literal(literal),
                None if self.tokens[item].kind == TokenKind::Word => ExprKind::Name(self.name(item)?.text),
                None => {
                    self.expected("a number, a name or `(operator ...)`", item);
                    return None;
                }
            };
            return Some(Expr { span, kind });
        };
        let (head, operands) = self.call(item, &items)?;
        let command = match head {
            Head::Op(Op::Bind) => {
                let (name, value) = self.bind(item, &operands)?;
                return Some(Expr { span, kind: ExprKind::Bind(name, Box::new(value)) });
            }
            Head::Op(op) => {
                if op.reads_dst() && !bound {
                    self.refuse(span, Problem::OnlyInBind(spelling(op)));
                }
                let mut exprs: Vec<Option<Expr>> = operands.iter().map(|o| self.expr(*o)).collect();
                self.arity(item, spelling(op), 2, operands.len())?;
                let (b, a) = (exprs.pop()??, exprs.pop()??);
                return Some(Expr { span, kind: ExprKind::Op(op, Box::new(a), Box::new(b)) });
            }
            Head::Report => "report",
            Head::Fallthrough => "fallthrough",
            Head::History => "history",
            Head::Policy => "policy",
        };
        self.refuse(span, Problem::NotAValue(command));
        None
    }
}

const _: () = assert!(MAX_NAME_BYTES == 64, "the text below says so");

/// Returns the reason why this word cannot be a name.
fn name_problem(text: &str) -> Option<Problem> {
    let reason = if text.starts_with("__") {
        return Some(Problem::ReservedName(String::from(text)));
    } else if text.len() > MAX_NAME_BYTES {
        "it is longer than 64 bytes"
    } else if ["true", "false"].iter().any(|p| text.starts_with(p)) {
        "stock CCP would read it as a boolean followed by another name"
    } else if text.starts_with("volatile") {
        "stock CCP would read it as the keyword followed by another name"
    } else {
        return None;
    };
    Some(Problem::BadName { name: String::from(text), reason })
}

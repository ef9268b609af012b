//! The compiler's diagnostics about a source text that it refuses.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::MAX_DIAGNOSTICS;
use crate::ir::{Type, VerifyError};

/// A range of a source text, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset past the last byte.
    pub end: usize,
}

impl Span {
    /// Makes the span of the bytes `start..end`.
    pub const fn new(start: usize, end: usize) -> Span {
        Span { start, end }
    }
    /// The source text it covers; empty if it lies outside of `source`.
    pub fn text(self, source: &str) -> &str {
        source.get(self.start..self.end).unwrap_or_default()
    }
}

/// The faults of a source text; the `Display` form is the first line of the rendered diagnostic.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Problem {
    /// The text is longer than a program may be.
    SourceTooLong { bytes: usize, limit: usize },
    /// A character that no token starts with.
    BadChar(char),
    /// A token runs into the next one without white space.
    Unseparated(String),
    /// A number that continues with letters.
    BadNumber(String),
    /// A number outside of the signed 64-bit range.
    NumberTooLarge(String),
    /// A parenthesis that is never closed.
    Unclosed,
    /// A closing parenthesis without an opening one.
    Unopened,
    /// Parentheses nested too deep.
    TooDeep { limit: usize },
    /// The grammar wants something else here.
    Expected { expected: &'static str, found: String },
    /// A word in operator position that is no operator.
    UnknownOperator {
        found: String,
        /// The operator that was probably meant.
        suggestion: Option<String>,
        /// Whether the operator stands alone in its parentheses, as in `(timeout)`.
        alone: bool,
    },
    /// An operator with too few or too many operands.
    WrongOperands { op: &'static str, expected: usize, found: usize },
    /// A statement that computes a value and drops it.
    UnusedValue,
    /// `(report)` and the like, used as a value.
    NotAValue(&'static str),
    /// `ewma`, `if` or `!if` somewhere else than as the right side of a bind.
    OnlyInBind(&'static str),
    /// A bind inside an operand of `if` or `!if`, where it would run in both cases.
    BindInConditional,
    /// A name that starts with `__`.
    ReservedName(String),
    /// A name that stock CCP would read as something else, or that is no name.
    BadName { name: String, reason: &'static str },
    /// A register declared twice.
    Duplicate {
        name: String,
        /// The line of the first declaration.
        first_line: usize,
    },
    /// A register that would hide a primitive, `Cwnd`, `Rate` or `Micros`.
    Shadows(String),
    /// A name that means nothing here.
    UnknownName {
        name: String,
        /// The name that was probably meant.
        suggestion: Option<String>,
    },
    /// A local that is read before the first bind gave it a value.
    ReadBeforeBind(String),
    /// A local that nothing reads.
    NeverRead {
        name: String,
        /// The name that was probably meant.
        suggestion: Option<String>,
    },
    /// A bind to a primitive.
    ReadOnly(String),
    /// A value of the wrong type.
    WrongType {
        expected: Type,
        found: Type,
        /// The operator or register that demands the type.
        by: String,
    },
    /// More of something than a program may have.
    TooMany { what: &'static str, limit: usize },
    /// A literal outside its range.
    OutOfRange { what: &'static str, found: i64, min: i64, max: i64 },
    /// The verifier of the IR refused what the checker let through.
    Unverified(VerifyError),
}

fn type_name(ty: Type) -> &'static str {
    match ty {
        Type::Num => "a number",
        Type::Bool => "a boolean",
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::SourceTooLong { bytes, limit } => {
                write!(f, "the program is {bytes} bytes long, at most {limit} are allowed")
            }
            Problem::BadChar(c) => write!(f, "unexpected character `{}`", c.escape_debug()),
            Problem::Unseparated(text) => write!(f, "white space is missing after `{text}`"),
            Problem::BadNumber(text) => write!(f, "`{text}` is neither a number nor a name"),
            Problem::NumberTooLarge(text) => write!(f, "`{text}` does not fit a signed 64-bit number"),
            Problem::Unclosed => write!(f, "this parenthesis is never closed"),
            Problem::Unopened => write!(f, "this parenthesis closes nothing"),
            Problem::TooDeep { limit } => write!(f, "parentheses nested more than {limit} deep"),
            Problem::Expected { expected, found } => write!(f, "expected {expected}, found {found}"),
            Problem::UnknownOperator { found, .. } => write!(f, "expected an operator, found `{found}`"),
            Problem::WrongOperands { op, expected, found } => {
                write!(
                    f,
                    "`{op}` takes {expected} operand{}, found {found}",
                    if *expected == 1 { "" } else { "s" }
                )
            }
            Problem::UnusedValue => write!(f, "the value of this expression is not used"),
            Problem::NotAValue(what) => write!(f, "expected a value, found the command `({what})`"),
            Problem::OnlyInBind(op) => write!(f, "`{op}` is allowed only as the right side of a bind"),
            Problem::BindInConditional => write!(f, "a bind inside a conditional would run in both cases"),
            Problem::ReservedName(name) => write!(f, "the name `{name}` is reserved"),
            Problem::BadName { name, reason } => write!(f, "`{name}` cannot be a name: {reason}"),
            Problem::Duplicate { name, first_line } => {
                write!(f, "`{name}` was declared before, on line {first_line}")
            }
            Problem::Shadows(name) => write!(f, "`{name}` is built in and cannot be declared"),
            Problem::UnknownName { name, .. } => write!(f, "unknown name `{name}`"),
            Problem::ReadBeforeBind(name) => write!(f, "`{name}` has no value before its first bind"),
            Problem::NeverRead { name, .. } => write!(f, "the local `{name}` is never read"),
            Problem::ReadOnly(name) => write!(f, "`{name}` is a measurement and cannot be bound"),
            Problem::WrongType { expected, found, by } => {
                write!(f, "expected {} for {by}, found {}", type_name(*expected), type_name(*found))
            }
            Problem::TooMany { what, limit } => write!(f, "more than {limit} {what}"),
            Problem::OutOfRange { what, found, min, max } => {
                write!(f, "{what} must be between {min} and {max}, found {found}")
            }
            Problem::Unverified(error) => write!(f, "{error}"),
        }
    }
}

impl Problem {
    /// Describes the text at the fault; `None` where the caret says it all.
    pub fn found(&self) -> Option<String> {
        match self {
            Problem::BadChar(c) => Some(format!("`{}`", c.escape_debug())),
            Problem::Unseparated(t) | Problem::BadNumber(t) | Problem::NumberTooLarge(t) => {
                Some(format!("`{t}`"))
            }
            Problem::Expected { found, .. } => Some(found.clone()),
            Problem::UnknownOperator { found, .. } => Some(format!("`{found}`")),
            Problem::WrongOperands { found, .. } => Some(format!("{found} operands")),
            Problem::NotAValue(what) => Some(format!("the command `({what})`")),
            Problem::WrongType { found, .. } => Some(type_name(*found).to_string()),
            Problem::OutOfRange { found, .. } => Some(found.to_string()),
            Problem::UnknownName { name, .. }
            | Problem::ReservedName(name)
            | Problem::BadName { name, .. }
            | Problem::ReadBeforeBind(name)
            | Problem::ReadOnly(name)
            | Problem::Shadows(name) => Some(format!("`{name}`")),
            _ => None,
        }
    }

    /// Describes the text that was expected at the fault, as the label under the caret.
    pub fn expected(&self) -> Option<String> {
        Some(match self {
            Problem::BadChar(_) => "a parenthesis, a number, a name or an operator".to_string(),
            Problem::Unseparated(_) => "white space or a parenthesis".to_string(),
            Problem::BadNumber(_) | Problem::NumberTooLarge(_) => "a number".to_string(),
            Problem::Unclosed => "a `)` that matches this `(`".to_string(),
            Problem::Expected { expected, .. } => (*expected).to_string(),
            Problem::UnknownOperator { .. } => "an operator".to_string(),
            Problem::WrongOperands { expected, .. } => format!("{expected} operands"),
            Problem::UnusedValue => "a bind or a command".to_string(),
            Problem::NotAValue(_) => "a value".to_string(),
            Problem::WrongType { expected, .. } => type_name(*expected).to_string(),
            Problem::OutOfRange { min, max, .. } => format!("{min} to {max}"),
            Problem::UnknownName { .. } | Problem::ReadBeforeBind(_) => {
                "a name that has a value here".to_string()
            }
            Problem::ReadOnly(_) => "a register, `Cwnd`, `Rate` or `Micros`".to_string(),
            _ => return None,
        })
    }

    /// Suggests a correction, where there is one.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Problem::UnknownOperator { suggestion: Some(s), .. }
            | Problem::UnknownName { suggestion: Some(s), .. }
            | Problem::NeverRead { suggestion: Some(s), .. } => return Some(format!("did you mean `{s}`?")),
            Problem::UnknownOperator { found, alone: true, .. } => {
                return Some(format!("to read a register, write `{found}` without parentheses"));
            }
            Problem::UnknownOperator { .. } => "the operator comes first: `(+ a b)`",
            Problem::UnknownName { .. } => "declare it in `(def ...)`, or bind it first: `(:= name value)`",
            Problem::NeverRead { .. } => "to send it to the agent, declare it in `(def (Report (name 0)))`",
            Problem::ReadBeforeBind(_) => {
                "declare it in `(def ...)` if it is to keep its value from ACK to ACK"
            }
            Problem::NumberTooLarge(_) => "the largest number is written `+infinity`",
            Problem::BadNumber(_) => "names start with a letter or `_`",
            Problem::UnusedValue => "to keep the value, bind it: `(:= name value)`",
            Problem::NotAValue(_) => "make it a statement of its own",
            Problem::OnlyInBind(_) => "write `(:= name (op a b))` first, then use `name`",
            Problem::BindInConditional => "bind before the conditional",
            Problem::ReservedName(_) => "names that start with `__` belong to the datapath",
            Problem::Shadows(_) => "choose another name",
            Problem::ReadOnly(_) => "bind a register of another name",
            Problem::WrongType { expected: Type::Bool, found: Type::Num, .. } => {
                "compare it with something, as in `(> x 0)`, or declare the register with `false`"
            }
            Problem::WrongType { .. } => "choose a number on a condition with `(:= x (if condition number))`",
            Problem::TooMany { what: "temporaries", .. } => "bind a part of the expression to a local first",
            _ => return None,
        };
        Some(text.to_string())
    }
}

/// One refusal: where, what, and how to mend it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The part of the source that it is about.
    pub span: Span,
    /// Line of the span's start, from 1.
    pub line: usize,
    /// Column of the span's start in characters, from 1.
    pub column: usize,
    /// The fault, from which follow the text found, the text expected and a hint.
    pub problem: Problem,
}

impl Diagnostic {
    /// A diagnostic about `span` of `source`.
    pub fn new(source: &str, span: Span, problem: Problem) -> Diagnostic {
        let before = source.get(..span.start).unwrap_or(source);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        Diagnostic {
            span,
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            problem,
        }
    }

    /// The diagnostic with its source line, a caret and a hint, as a compiler shows it. Ends with a new line.
    pub fn render(&self, file_name: &str, source: &str) -> String {
        let line = source.split('\n').nth(self.line - 1).unwrap_or_default().trim_end_matches('\r');
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        // Tabs stay tabs, so that the caret stands right at any tab width.
        let indent: String =
            line.chars().take(self.column - 1).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let rest = line.chars().count().saturating_sub(self.column - 1);
        let carets = "^".repeat(self.span.text(source).chars().count().min(rest).max(1));
        let label = self.problem.expected().map(|e| format!(" expected {e}")).unwrap_or_default();
        let mut out = format!(
            "error: {}\n{gutter}--> {file_name}:{}:{}\n{gutter} |\n{number} | {line}\n{gutter} | {indent}{carets}{label}\n",
            self.problem, self.line, self.column,
        );
        if let Some(hint) = self.problem.hint() {
            out.push_str(&format!("{gutter} = help: {hint}\n"));
        }
        out
    }
}

/// The diagnostics of one pass over a source text, at most [`MAX_DIAGNOSTICS`].
pub(super) struct Diags<'s> {
    pub source: &'s str,
    list: Vec<Diagnostic>,
}

impl<'s> Diags<'s> {
    pub fn new(source: &'s str) -> Diags<'s> {
        Diags { source, list: Vec::new() }
    }

    pub fn refuse(&mut self, span: Span, problem: Problem) {
        if !self.is_full() {
            self.list.push(Diagnostic::new(self.source, span, problem));
        }
    }

    /// Like [`Self::refuse`], but only once for the whole text.
    pub fn refuse_once(&mut self, span: Span, problem: Problem) {
        if self.list.iter().all(|d| d.problem != problem) {
            self.refuse(span, problem);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX_DIAGNOSTICS
    }

    /// `value`, or the diagnostics in source order if there are any.
    pub fn into_result<T>(mut self, value: T) -> Result<T, Vec<Diagnostic>> {
        if self.list.is_empty() {
            return Ok(value);
        }
        self.list.sort_by_key(|d| d.span.start);
        Err(self.list)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.problem)
    }
}

impl core::error::Error for Diagnostic {}

//! The abstract syntax of a fold program, with spans.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::diag::Span;
use crate::ir::{Hook, Op};

/// The syntax tree of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// The place where the program decides.
    pub hook: Hook,
    /// Declarations, in source order.
    pub decls: Vec<Decl>,
    /// Clauses, in source order.
    pub clauses: Vec<When>,
}

/// A name and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    pub text: String,
    pub span: Span,
}

/// The declaration of one register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decl {
    /// The name that the program uses, `Report.` included.
    pub name: Name,
    /// Declared inside `(Report ...)`.
    pub in_report: bool,
    /// Reset after each report.
    pub volatile: bool,
    pub init: Literal,
}

/// A number or truth value as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Literal {
    /// A number; `+infinity` is [`crate::ir::INFINITY`].
    Num(i64),
    Bool(bool),
}

/// A clause, written as `(when guard statement...)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct When {
    pub span: Span,
    pub guard: Expr,
    pub body: Vec<Stmt>,
}

/// A statement of a clause, with its place in the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stmt {
    pub span: Span,
    pub kind: StmtKind,
}

/// The statements that a clause may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StmtKind {
    /// Written as `(:= name value)`.
    Bind(Name, Expr),
    Report,
    Fallthrough,
    /// Written as `(history k name...)`.
    History(i64, Vec<Name>),
    /// Written as `(policy slot)`.
    Policy(i64),
}

/// An expression with its place in the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expr {
    pub span: Span,
    pub kind: ExprKind,
}

/// The forms that an expression may have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExprKind {
    Literal(Literal),
    /// The value of a register or a primitive.
    Name(String),
    /// `(op a b)`; never [`Op::Bind`], [`Op::History`] or [`Op::Policy`].
    Op(Op, Box<Expr>, Box<Expr>),
    /// `(:= name value)`, whose value is that of `name` afterwards.
    Bind(Name, Box<Expr>),
}

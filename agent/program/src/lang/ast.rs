//! The abstract syntax of a fold program, with spans.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use super::diag::Span;
use crate::ir::Op;

/// A whole program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Source {
    /// Declarations, in source order.
    pub decls: Vec<Decl>,
    /// Clauses, in source order.
    pub clauses: Vec<When>,
}

/// A name and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    /// Its text.
    pub text: String,
    /// Where it stands.
    pub span: Span,
}

/// One declaration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decl {
    /// The name that the program uses, `Report.` included.
    pub name: Name,
    /// Declared inside `(Report ...)`.
    pub in_report: bool,
    /// Reset after each report.
    pub volatile: bool,
    /// Initial value.
    pub init: Literal,
}

/// A literal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Literal {
    /// A number; `+infinity` is [`crate::ir::INFINITY`].
    Num(i64),
    /// `true` or `false`.
    Bool(bool),
}

/// `(when guard statement...)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct When {
    /// The whole clause.
    pub span: Span,
    /// When it runs.
    pub guard: Expr,
    /// What it does.
    pub body: Vec<Stmt>,
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stmt {
    /// The whole statement.
    pub span: Span,
    /// What it does.
    pub kind: StmtKind,
}

/// What a statement does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StmtKind {
    /// `(:= name value)`
    Bind(Name, Expr),
    /// `(report)`
    Report,
    /// `(fallthrough)`
    Fallthrough,
    /// `(history k name...)`
    History(i64, Vec<Name>),
    /// `(policy slot)`
    Policy(i64),
}

/// An expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expr {
    /// The whole expression.
    pub span: Span,
    /// What it computes.
    pub kind: ExprKind,
}

/// What an expression computes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExprKind {
    /// A literal.
    Literal(Literal),
    /// The value of a register or a primitive.
    Name(String),
    /// `(op a b)`; never [`Op::Bind`], [`Op::History`] or [`Op::Policy`].
    Op(Op, Box<Expr>, Box<Expr>),
    /// `(:= name value)`, whose value is that of `name` afterwards.
    Bind(Name, Box<Expr>),
}

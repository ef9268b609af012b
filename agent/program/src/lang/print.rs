//! Abstract syntax to source text. `compile(print(p)) == compile(p)`, and printing is idempotent.

use core::fmt::{self, Write};

use super::ast::{Decl, Expr, ExprKind, Literal, Source, StmtKind, When};
use super::words::spelling;
use crate::ir::{Hook, INFINITY, Op};

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hook != Hook::Ack {
            writeln!(f, "(hook {})", self.hook.name())?;
        }
        f.write_str("(def")?;
        if self.decls.iter().any(|d| d.in_report) {
            f.write_str("\n    (Report")?;
            for decl in self.decls.iter().filter(|d| d.in_report) {
                write!(f, "\n        {decl}")?;
            }
            f.write_str("\n    )")?;
        }
        for decl in self.decls.iter().filter(|d| !d.in_report) {
            write!(f, "\n    {decl}")?;
        }
        f.write_str(if self.decls.is_empty() { ")\n" } else { "\n)\n" })?;
        self.clauses.iter().try_for_each(|clause| write!(f, "{clause}"))
    }
}

impl fmt::Display for Decl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volatile = if self.volatile { "volatile " } else { "" };
        let full = self.name.text.as_str();
        let name = if self.in_report { full.strip_prefix("Report.").unwrap_or(full) } else { full };
        write!(f, "({volatile}{name} {})", self.init)
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Num(INFINITY) => f.write_str("+infinity"),
            Literal::Num(n) => write!(f, "{n}"),
            Literal::Bool(b) => write!(f, "{b}"),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(when {}", self.guard)?;
        for stmt in &self.body {
            write!(f, "\n    {}", stmt.kind)?;
        }
        f.write_str(if self.body.is_empty() { ")\n" } else { "\n)\n" })
    }
}

impl fmt::Display for StmtKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StmtKind::Bind(name, value) => write!(f, "({} {} {value})", spelling(Op::Bind), name.text),
            StmtKind::Report => f.write_str("(report)"),
            StmtKind::Fallthrough => f.write_str("(fallthrough)"),
            StmtKind::Policy(slot) => write!(f, "(policy {slot})"),
            StmtKind::History(depth, names) => {
                write!(f, "(history {depth}")?;
                names.iter().try_for_each(|name| write!(f, " {}", name.text))?;
                f.write_char(')')
            }
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ExprKind::Literal(literal) => write!(f, "{literal}"),
            ExprKind::Name(name) => f.write_str(name),
            ExprKind::Op(op, a, b) => write!(f, "({} {a} {b})", spelling(*op)),
            ExprKind::Bind(name, value) => write!(f, "({} {} {value})", spelling(Op::Bind), name.text),
        }
    }
}

//! An algorithm's program as the placements need it: what its policy sees, and its clauses to change.

use ccplane_program::lang::ast::{Decl, Source, Stmt, StmtKind};
use ccplane_program::lang::parse;

/// A program that asks one policy.
#[derive(Clone, Debug)]
pub struct Asking {
    /// Its clauses and declarations.
    pub source: Source,
    /// The slot that it asks.
    pub slot: u8,
    /// Its histories in order: intervals, and the registers of each as the program spells them.
    pub histories: Vec<(usize, Vec<String>)>,
}

impl Asking {
    /// Reads a program; `None` if it is none, or asks no policy or several.
    pub fn of(text: &str) -> Option<Asking> {
        let source = parse(text).ok()?;
        let statements = || source.clauses.iter().flat_map(|clause| &clause.body);
        let mut slots = statements().filter_map(|s| match s.kind {
            StmtKind::Policy(slot) => u8::try_from(slot).ok(),
            _ => None,
        });
        let slot = slots.next().filter(|_| slots.next().is_none())?;
        let histories = statements().filter_map(|s| match &s.kind {
            StmtKind::History(depth, names) => {
                let names = names.iter().map(|name| name.text.clone()).collect();
                usize::try_from(*depth).ok().map(|depth| (depth, names))
            }
            _ => None,
        });
        let histories = histories.collect();
        drop(slots);
        Some(Asking { slot, histories, source })
    }

    /// Reads statements as they stand in a clause; `None` if they are none.
    pub fn statements(text: &str) -> Option<Vec<Stmt>> {
        let parsed = parse(&format!("(def) (when true {text})")).ok()?;
        Some(parsed.clauses.into_iter().flat_map(|clause| clause.body).collect())
    }

    /// Adds declarations and clauses, written as a program of their own; the clauses come before clause `at`. `None` if the text is
    /// none.
    pub fn insert(&mut self, at: usize, text: &str) -> Option<()> {
        let added = parse(text).ok()?;
        self.source.decls.extend(added.decls);
        let at = at.min(self.source.clauses.len());
        self.source.clauses.splice(at..at, added.clauses);
        Some(())
    }

    /// Adds registers, written as in a program. `None` if they are none.
    pub fn declare(&mut self, registers: &str) -> Option<()> {
        let added = parse(&format!("(def {registers}) (when true (report))")).ok()?;
        self.source.decls.extend(added.decls);
        Some(())
    }

    /// Replaces each statement that `of` says something about by those statements, or by none. `None` if they are no statements.
    pub fn replace(&mut self, mut of: impl FnMut(&StmtKind) -> Option<String>) -> Option<()> {
        for clause in &mut self.source.clauses {
            let mut body = Vec::with_capacity(clause.body.len());
            for statement in clause.body.drain(..) {
                match of(&statement.kind) {
                    None => body.push(statement),
                    Some(text) if text.is_empty() => {}
                    Some(text) => {
                        body.extend(Asking::statements(&text)?);
                    }
                }
            }
            clause.body = body;
        }
        Some(())
    }

    /// Returns the declaration of a register.
    pub fn decl(&self, name: &str) -> Option<&Decl> {
        self.source.decls.iter().find(|d| d.name.text == name)
    }
}

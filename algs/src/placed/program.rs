//! An algorithm's program as the placements need it: what its policy sees, and its clauses to change.

use ccplane_program::lang::ast::{Decl, Source, StmtKind};
use ccplane_program::lang::parse;

/// A program that asks one policy.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    /// Its clauses and declarations.
    pub(super) source: Source,
    /// The slot that it asks.
    pub(super) slot: u8,
    /// Its histories in order: intervals, and the registers of each as the program spells them.
    pub(super) histories: Vec<(usize, Vec<String>)>,
}

impl Asking {
    /// Reads a program; `None` if it is none, or asks no policy or several.
    pub(super) fn of(text: &str) -> Option<Asking> {
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

    /// Adds declarations and clauses, written as a program of their own; the clauses come before clause `at`.
    pub(super) fn insert(&mut self, at: usize, text: &str) -> Option<()> {
        let added = parse(text).ok()?;
        self.source.decls.extend(added.decls);
        let at = at.min(self.source.clauses.len());
        self.source.clauses.splice(at..at, added.clauses);
        Some(())
    }

    /// Replaces each statement that `of` says something about by the statements of a clause's text.
    pub(super) fn replace(&mut self, mut of: impl FnMut(&StmtKind) -> Option<&'static str>) -> Option<()> {
        for clause in &mut self.source.clauses {
            let mut body = Vec::with_capacity(clause.body.len());
            for statement in clause.body.drain(..) {
                match of(&statement.kind) {
                    None => body.push(statement),
                    Some("") => {}
                    Some(text) => {
                        let added = parse(&format!("(def) (when true {text})")).ok()?;
                        body.extend(added.clauses.into_iter().flat_map(|c| c.body));
                    }
                }
            }
            clause.body = body;
        }
        Some(())
    }

    /// A register's declaration.
    pub(super) fn decl(&self, name: &str) -> Option<&Decl> {
        self.source.decls.iter().find(|d| d.name.text == name)
    }
}

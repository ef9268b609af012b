//! An algorithm's program in a form that others derive theirs from: its policy's inputs, and clauses that can change.

use ccplane_program::lang::ast::{Decl, Source, Stmt, StmtKind};
use ccplane_program::lang::parse;

/// The source of a fold program that asks one policy.
#[derive(Clone, Debug)]
pub struct PolicyProgram {
    pub source: Source,
    /// The slot of its policy.
    pub slot: u8,
    /// Its histories in order: the number of intervals, and the registers of each as the program spells them.
    pub histories: Vec<(usize, Vec<String>)>,
}

impl PolicyProgram {
    /// Parses a program; `None` if the text is none, or asks no policy or several.
    pub fn of(text: &str) -> Option<PolicyProgram> {
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
        Some(PolicyProgram { slot, histories, source })
    }

    /// Parses the statements of a clause; `None` if the text is none.
    pub fn statements(text: &str) -> Option<Vec<Stmt>> {
        let parsed = parse(&format!("(def) (when true {text})")).ok()?;
        Some(parsed.clauses.into_iter().flat_map(|clause| clause.body).collect())
    }

    /// Adds declarations and clauses, written as a program of their own; the clauses come before clause `at`.
    ///
    /// `None` if the text is no program.
    pub fn insert(&mut self, at: usize, text: &str) -> Option<()> {
        let added = parse(text).ok()?;
        self.source.decls.extend(added.decls);
        let at = at.min(self.source.clauses.len());
        self.source.clauses.splice(at..at, added.clauses);
        Some(())
    }

    /// Declares registers, written as in a program; `None` if the text is none.
    pub fn declare(&mut self, registers: &str) -> Option<()> {
        let added = parse(&format!("(def {registers}) (when true (report))")).ok()?;
        self.source.decls.extend(added.decls);
        Some(())
    }

    /// Replaces each statement by the text that `of` returns for it; an empty text removes it, and `None` keeps it.
    ///
    /// `None` if a text is no statements.
    pub fn replace(&mut self, mut of: impl FnMut(&StmtKind) -> Option<String>) -> Option<()> {
        for clause in &mut self.source.clauses {
            let mut body = Vec::with_capacity(clause.body.len());
            for statement in clause.body.drain(..) {
                match of(&statement.kind) {
                    None => body.push(statement),
                    Some(text) if text.is_empty() => {}
                    Some(text) => {
                        body.extend(PolicyProgram::statements(&text)?);
                    }
                }
            }
            clause.body = body;
        }
        Some(())
    }

    /// Returns the program's text where these statements stand for what asks its policy; `None` if they are none.
    pub fn asking(mut self, statements: &str) -> Option<String> {
        self.replace(|statement| match statement {
            StmtKind::Policy(_) => Some(statements.to_owned()),
            _ => None,
        })?;
        Some(self.source.to_string())
    }

    /// Returns the declaration of a register.
    pub fn decl(&self, name: &str) -> Option<&Decl> {
        self.source.decls.iter().find(|d| d.name.text == name)
    }
}

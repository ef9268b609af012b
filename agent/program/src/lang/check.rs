//! Abstract syntax to IR: names, types, limits, and one instruction for each operation.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::ast::{Expr, ExprKind, Literal, Name, Source, Stmt, StmtKind, When};
use super::diag::{Diagnostic, Diags, Problem, Span};
use super::words::{spelling, suggest};
use crate::ir::{
    Clause, Dst, HistoryDecl, Hook, Inst, Op, Prim, Program, RegDecl, RegId, RegKind, Src, Type,
};
use crate::ir::{
    MAX_CLAUSES, MAX_HISTORIES, MAX_HISTORY_DEPTH, MAX_INSTS, MAX_POLICY_INPUTS, MAX_POLICY_SLOTS, MAX_REGS,
    MAX_TMPS,
};

/// Checks a program and lowers it. `source` is the text it was parsed from, for the diagnostics.
///
/// # Errors
/// Everything that is wrong with its meaning, in source order.
pub fn check(source: &str, program: &Source) -> Result<Program, Vec<Diagnostic>> {
    run(source, program, Unread::Refused)
}

/// Checks as [`check`] does, and takes locals that nothing reads, as portus does.
///
/// # Errors
/// Everything else that is wrong with its meaning, in source order.
pub fn check_as_portus(source: &str, program: &Source) -> Result<Program, Vec<Diagnostic>> {
    run(source, program, Unread::Taken)
}

/// The treatment of locals that nothing reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unread {
    Refused,
    Taken,
}

fn run(source: &str, program: &Source, unread: Unread) -> Result<Program, Vec<Diagnostic>> {
    let mut checker = Checker {
        hook: program.hook,
        regs: Vec::new(),
        insts: Vec::new(),
        inst_spans: Vec::new(),
        clauses: Vec::new(),
        histories: Vec::new(),
        live_tmps: 0,
        refused: Vec::new(),
        diags: Diags::new(source),
    };
    checker.declare(program);
    if checker.diags.is_empty() {
        if let Some(excess) = program.clauses.get(MAX_CLAUSES) {
            checker.refuse(excess.span, Problem::TooMany { what: "clauses", limit: MAX_CLAUSES });
        }
        for clause in program.clauses.iter().take(MAX_CLAUSES) {
            checker.clause(clause);
        }
        if unread == Unread::Refused {
            checker.unread_locals();
        }
    }
    checker.finish()
}

/// A register under construction.
struct Reg {
    decl: RegDecl,
    span: Span,
    /// A value can be read: declared, or bound by now.
    set: bool,
    read: bool,
}

struct Checker<'s> {
    hook: Hook,
    regs: Vec<Reg>,
    insts: Vec<Inst>,
    /// The place in the text of each instruction.
    inst_spans: Vec<Span>,
    clauses: Vec<Clause>,
    histories: Vec<HistoryDecl>,
    /// Temporaries that hold a value still to be read, one bit each.
    live_tmps: u32,
    /// Names that a diagnostic was issued for; one each is enough.
    refused: Vec<String>,
    diags: Diags<'s>,
}

/// The meaning of a name.
enum Place {
    Reg(RegId),
    Prim(Prim),
    Cwnd,
    Rate,
    Priority,
    Path,
    DecideAt,
    Micros,
    PolicyAction,
    PolicySnapshot,
}

impl Place {
    /// Whether programs of the hook have it.
    fn is_of(&self, hook: Hook) -> bool {
        match self {
            Place::Prim(prim) => prim.is_of(hook),
            Place::Cwnd | Place::Rate => hook.sets_window(),
            Place::Priority | Place::Path | Place::DecideAt => !hook.sets_window(),
            Place::Reg(_) | Place::Micros | Place::PolicyAction | Place::PolicySnapshot => true,
        }
    }
}

const BUILT_IN: [(&str, Place); 8] = [
    ("Cwnd", Place::Cwnd),
    ("Rate", Place::Rate),
    ("Priority", Place::Priority),
    ("Path", Place::Path),
    ("DecideAt", Place::DecideAt),
    ("Micros", Place::Micros),
    ("Policy.action", Place::PolicyAction),
    ("Policy.snapshot", Place::PolicySnapshot),
];

/// Prefixes that only declared registers and primitives have.
const PREFIXES: [&str; 6] = ["Report.", "Flow.", "Ack.", "Policy.", "Packet.", "Peer."];

impl Checker<'_> {
    fn refuse(&mut self, span: Span, problem: Problem) {
        self.diags.refuse(span, problem);
    }

    fn finish(self) -> Result<Program, Vec<Diagnostic>> {
        let source = self.diags.source;
        self.diags.into_result(())?;
        let ends: Vec<usize> = source.match_indices('\n').map(|(end, _)| end).collect();
        let line = |span: Span| ends.partition_point(|end| *end < span.start) as u32 + 1;
        let reg_lines = self.regs.iter().map(|r| line(r.span)).collect();
        let inst_lines = self.inst_spans.iter().map(|span| line(*span)).collect();
        let regs = self.regs.into_iter().map(|r| r.decl).collect();
        Program::at(self.hook, regs, self.insts, self.clauses, self.histories)
            .map(|program| program.with_lines(reg_lines, inst_lines))
            .map_err(|error| vec![Diagnostic::new(source, Span::default(), Problem::Unverified(error))])
    }

    /// Numbers the declared registers as portus does: those of `(Report ...)`, then other `Report.` ones, then
    /// the rest, each in source order.
    fn declare(&mut self, program: &Source) {
        let is_report = |d: &&super::ast::Decl| d.name.text.starts_with("Report.");
        let in_struct = program.decls.iter().filter(|d| d.in_report);
        let direct = program.decls.iter().filter(|d| !d.in_report).filter(is_report);
        let control = program.decls.iter().filter(|d| !is_report(d));
        for decl in in_struct.chain(direct).chain(control) {
            let kind = if is_report(&decl) { RegKind::Report } else { RegKind::Control };
            let (ty, init) = match decl.init {
                Literal::Num(n) => (Type::Num, n),
                Literal::Bool(b) => (Type::Bool, i64::from(b)),
            };
            let name = decl.name.text.clone();
            let span = decl.name.span;
            match self.lookup(&name) {
                None => {}
                Some(Place::Reg(r)) => {
                    let first_line =
                        Diagnostic::new(self.diags.source, self.regs[usize::from(r)].span, Problem::Unopened)
                            .line;
                    self.refuse(span, Problem::Duplicate { name, first_line });
                    continue;
                }
                Some(_) => {
                    self.refuse(span, Problem::Shadows(name));
                    continue;
                }
            }
            let decl = RegDecl { name, kind, ty, volatile: decl.volatile, init };
            if self.add_reg(decl, span, true).is_none() {
                return;
            }
        }
    }

    fn add_reg(&mut self, decl: RegDecl, span: Span, set: bool) -> Option<RegId> {
        if self.regs.len() == MAX_REGS {
            self.diags.refuse_once(span, Problem::TooMany { what: "registers", limit: MAX_REGS });
            self.refused.push(decl.name);
            return None;
        }
        self.regs.push(Reg { decl, span, set, read: false });
        Some((self.regs.len() - 1) as RegId)
    }

    fn lookup(&self, name: &str) -> Option<Place> {
        if let Some(i) = self.regs.iter().position(|r| r.decl.name == name) {
            return Some(Place::Reg(i as RegId));
        }
        let prim = self.hook.prims().find(|p| p.name() == name).map(Place::Prim);
        let built_in = || BUILT_IN.into_iter().find(|(n, _)| *n == name).map(|(_, place)| place);
        prim.or_else(built_in).filter(|place| place.is_of(self.hook))
    }

    fn suggest(&self, name: &str) -> Option<String> {
        let regs = self.regs.iter().map(|r| r.decl.name.as_str());
        let built_in = BUILT_IN.iter().filter(|(_, place)| place.is_of(self.hook)).map(|(n, _)| *n);
        suggest(name, regs.chain(self.hook.prims().map(|p| p.name())).chain(built_in))
    }

    fn unknown(&mut self, name: &str, span: Span) {
        if !self.diags.is_full() && !self.refused.iter().any(|n| n == name) {
            let suggestion = self.suggest(name);
            self.refuse(span, Problem::UnknownName { name: name.to_owned(), suggestion });
            self.refused.push(name.to_owned());
        }
    }

    fn want(&mut self, span: Span, by: &str, expected: Type, found: Type) -> Option<()> {
        if expected == found {
            return Some(());
        }
        self.refuse(span, Problem::WrongType { expected, found, by: format!("`{by}`") });
        None
    }

    fn emit(&mut self, span: Span, op: Op, dst: Dst, a: Src, b: Src) {
        if self.insts.len() == MAX_INSTS {
            return self.diags.refuse_once(span, Problem::TooMany { what: "instructions", limit: MAX_INSTS });
        }
        self.insts.push(Inst { op, dst, a, b });
        self.inst_spans.push(span);
    }

    fn clause(&mut self, when: &When) {
        let start = self.insts.len();
        self.live_tmps = 0;
        let guard = self.expr(&when.guard);
        let guard =
            guard.and_then(|(src, ty)| self.want(when.guard.span, "when", Type::Bool, ty).map(|()| src));
        let guard_insts = self.insts.len() - start;
        for stmt in &when.body {
            self.live_tmps = 0;
            self.statement(stmt);
        }
        self.clauses.push(Clause {
            start: start as u16,
            guard_insts: guard_insts as u16,
            body_insts: (self.insts.len() - start - guard_insts) as u16,
            guard: guard.unwrap_or(Src::Bool(false)),
        });
    }

    fn statement(&mut self, stmt: &Stmt) {
        let none = Src::Imm(0);
        match &stmt.kind {
            StmtKind::Bind(name, value) => {
                self.bind(name, value, stmt.span);
            }
            StmtKind::Report => self.emit(stmt.span, Op::Bind, Dst::ShouldReport, none, Src::Bool(true)),
            StmtKind::Fallthrough => {
                self.emit(stmt.span, Op::Bind, Dst::ShouldContinue, none, Src::Bool(true))
            }
            StmtKind::Policy(slot) => {
                let max = MAX_POLICY_SLOTS as i64 - 1;
                if self.in_range(stmt.span, "the policy slot", *slot, 0, max) {
                    self.emit(stmt.span, Op::Policy, Dst::ShouldReport, Src::Imm(*slot), none);
                }
            }
            StmtKind::History(depth, names) => self.history(stmt.span, *depth, names),
        }
    }

    fn in_range(&mut self, span: Span, what: &'static str, found: i64, min: i64, max: i64) -> bool {
        let ok = (min..=max).contains(&found);
        if !ok {
            self.refuse(span, Problem::OutOfRange { what, found, min, max });
        }
        ok
    }

    fn history(&mut self, span: Span, depth: i64, names: &[Name]) {
        let in_range = self.in_range(span, "the intervals of a history", depth, 1, MAX_HISTORY_DEPTH as i64);
        if names.len() > MAX_REGS {
            self.refuse(span, Problem::TooMany { what: "registers in a history", limit: MAX_REGS });
        }
        let mut regs = Vec::new();
        for name in names {
            match self.lookup(&name.text) {
                Some(Place::Reg(r)) if self.regs[usize::from(r)].set => {
                    self.regs[usize::from(r)].read = true;
                    regs.push(r);
                }
                Some(Place::Reg(_)) => self.refuse(name.span, Problem::ReadBeforeBind(name.text.clone())),
                Some(_) => {
                    let found = format!("`{}`, which is built in", name.text);
                    self.refuse(name.span, Problem::Expected { expected: "a register", found });
                }
                None => self.unknown(&name.text, name.span),
            }
        }
        if !in_range || regs.len() != names.len() {
            return;
        }
        let decl = HistoryDecl { depth: depth as u8, regs };
        // Two statements that keep the same registers append to the same history.
        let index = self.histories.iter().position(|h| *h == decl).unwrap_or(self.histories.len());
        if index == MAX_HISTORIES {
            return self
                .diags
                .refuse_once(span, Problem::TooMany { what: "histories", limit: MAX_HISTORIES });
        }
        if index == self.histories.len() {
            let cells: usize = self.histories.iter().map(HistoryDecl::cells).sum();
            if cells + decl.cells() > MAX_POLICY_INPUTS {
                let problem = Problem::TooMany { what: "history cells", limit: MAX_POLICY_INPUTS };
                return self.diags.refuse_once(span, problem);
            }
            self.histories.push(decl);
        }
        self.emit(span, Op::History, Dst::ShouldReport, Src::Imm(index as i64), Src::Imm(0));
    }

    /// Returns the place that a bind writes to, and the type it must have; `None` for a local that gets its type from
    /// this bind.
    fn target(&mut self, name: &Name) -> Option<(Dst, Src, Option<Type>)> {
        match self.lookup(&name.text) {
            Some(Place::Reg(r)) => {
                let reg = &self.regs[usize::from(r)];
                if !reg.set {
                    self.refuse(name.span, Problem::ReadBeforeBind(name.text.clone()));
                    return None;
                }
                Some((Dst::Reg(r), Src::Reg(r), Some(reg.decl.ty)))
            }
            Some(Place::Cwnd) => Some((Dst::Cwnd, Src::Cwnd, Some(Type::Num))),
            Some(Place::Rate) => Some((Dst::Rate, Src::Rate, Some(Type::Num))),
            Some(Place::Priority) => Some((Dst::Priority, Src::Priority, Some(Type::Num))),
            Some(Place::Path) => Some((Dst::Path, Src::Path, Some(Type::Num))),
            Some(Place::DecideAt) => Some((Dst::DecideAt, Src::DecideAt, Some(Type::Num))),
            Some(Place::Micros) => Some((Dst::Micros, Src::Micros, Some(Type::Num))),
            Some(Place::Prim(_) | Place::PolicyAction | Place::PolicySnapshot) => {
                self.refuse(name.span, Problem::ReadOnly(name.text.clone()));
                None
            }
            None if self.refused.contains(&name.text) => None,
            None if PREFIXES.iter().any(|p| name.text.starts_with(p)) => {
                self.unknown(&name.text, name.span);
                None
            }
            None => {
                let name_text = name.text.clone();
                let decl = RegDecl {
                    name: name_text,
                    kind: RegKind::Local,
                    ty: Type::Num,
                    volatile: false,
                    init: 0,
                };
                let r = self.add_reg(decl, name.span, false)?;
                Some((Dst::Reg(r), Src::Reg(r), None))
            }
        }
    }

    fn bind(&mut self, name: &Name, value: &Expr, span: Span) -> Option<(Src, Type)> {
        let target = self.target(name);
        let ty = match target {
            // Still look for what is wrong on the right side.
            None => {
                if !matches!(&value.kind, ExprKind::Op(op, ..) if op.reads_dst()) {
                    self.expr(value);
                }
                None
            }
            Some((dst, src, wanted)) => self.bind_value(name, value, span, (dst, wanted)).map(|ty| (src, ty)),
        };
        if let Some((Dst::Reg(r), _, None)) = target {
            match ty {
                Some((_, ty)) => {
                    let reg = &mut self.regs[usize::from(r)];
                    reg.decl.ty = ty;
                    reg.set = true;
                }
                // Later uses of this local would only repeat the complaint.
                None => {
                    self.refused.push(name.text.clone());
                    self.regs[usize::from(r)].read = true;
                    self.regs[usize::from(r)].decl.name = String::new();
                }
            }
        }
        ty
    }

    /// Emits the right side of a bind, into `dst` directly. `wanted` is the type that `dst` has, if it has one.
    fn bind_value(
        &mut self,
        name: &Name,
        value: &Expr,
        span: Span,
        (dst, wanted): (Dst, Option<Type>),
    ) -> Option<Type> {
        let ExprKind::Op(op, a, b) = &value.kind else {
            let (src, ty) = self.expr(value)?;
            let ty = self.bindable(name, value.span, (dst, wanted), ty)?;
            self.free(src);
            self.emit(span, Op::Bind, dst, Src::Imm(0), src);
            return Some(ty);
        };
        if op.reads_dst() && wanted.is_none() {
            self.refuse(name.span, Problem::ReadBeforeBind(name.text.clone()));
            return None;
        }
        let (a_src, b_src, ty) = self.operands(*op, a, b)?;
        let ty = self.bindable(name, value.span, (dst, wanted), ty)?;
        self.emit(value.span, *op, dst, a_src, b_src);
        Some(ty)
    }

    /// The type of `dst` once a value of type `found` is bound to it. A register that holds numbers takes a
    /// boolean as 0 or 1: `(:= Report.timeout Flow.was_timeout)`.
    fn bindable(
        &mut self,
        name: &Name,
        span: Span,
        (dst, wanted): (Dst, Option<Type>),
        found: Type,
    ) -> Option<Type> {
        let wanted = wanted.unwrap_or(found);
        if wanted != Type::Num || !matches!(dst, Dst::Reg(_)) {
            self.want(span, &name.text, wanted, found)?;
        }
        Some(wanted)
    }

    /// Evaluates and checks both operands, and frees their temporaries; also the type of the result.
    fn operands(&mut self, op: Op, a: &Expr, b: &Expr) -> Option<(Src, Src, Type)> {
        if matches!(op, Op::If | Op::NotIf)
            && let Some(bind) = [a, b].into_iter().find_map(find_bind)
        {
            self.refuse(bind, Problem::BindInConditional);
            return None;
        }
        let left = self.expr(a);
        let right = self.expr(b);
        let ((a_src, a_ty), (b_src, b_ty)) = (left?, right?);
        let by = spelling(op);
        let (a_want, b_want, ty) = match op {
            Op::And | Op::Or => (Type::Bool, Type::Bool, Type::Bool),
            Op::Eq | Op::Lt | Op::Gt | Op::Le | Op::Ge => (Type::Num, Type::Num, Type::Bool),
            Op::If | Op::NotIf => (Type::Bool, b_ty, b_ty),
            _ => (Type::Num, Type::Num, Type::Num),
        };
        let ok = self.want(a.span, by, a_want, a_ty);
        self.want(b.span, by, b_want, b_ty)?;
        ok?;
        self.free(a_src);
        self.free(b_src);
        Some((a_src, b_src, ty))
    }

    fn free(&mut self, src: Src) {
        if let Src::Tmp(t) = src {
            self.live_tmps &= !(1 << t);
        }
    }

    fn expr(&mut self, expr: &Expr) -> Option<(Src, Type)> {
        match &expr.kind {
            ExprKind::Literal(Literal::Num(n)) => Some((Src::Imm(*n), Type::Num)),
            ExprKind::Literal(Literal::Bool(b)) => Some((Src::Bool(*b), Type::Bool)),
            ExprKind::Name(name) => self.read(name, expr.span),
            ExprKind::Bind(name, value) => {
                let (src, ty) = self.bind(name, value, expr.span)?;
                if let Src::Reg(r) = src {
                    self.regs[usize::from(r)].read = true;
                }
                Some((src, ty))
            }
            ExprKind::Op(op, a, b) => {
                let (a_src, b_src, ty) = self.operands(*op, a, b)?;
                let tmp = self.live_tmps.trailing_ones();
                if tmp as usize >= MAX_TMPS {
                    self.refuse(expr.span, Problem::TooMany { what: "temporaries", limit: MAX_TMPS });
                    return None;
                }
                self.live_tmps |= 1 << tmp;
                self.emit(expr.span, *op, Dst::Tmp(tmp as u8), a_src, b_src);
                Some((Src::Tmp(tmp as u8), ty))
            }
        }
    }

    fn read(&mut self, name: &str, span: Span) -> Option<(Src, Type)> {
        match self.lookup(name) {
            Some(Place::Reg(r)) => {
                let reg = &mut self.regs[usize::from(r)];
                reg.read = true;
                if reg.set {
                    return Some((Src::Reg(r), reg.decl.ty));
                }
                self.refuse(span, Problem::ReadBeforeBind(name.to_owned()));
                None
            }
            Some(Place::Prim(p)) => Some((Src::Prim(p), p.ty())),
            Some(Place::Cwnd) => Some((Src::Cwnd, Type::Num)),
            Some(Place::Rate) => Some((Src::Rate, Type::Num)),
            Some(Place::Priority) => Some((Src::Priority, Type::Num)),
            Some(Place::Path) => Some((Src::Path, Type::Num)),
            Some(Place::DecideAt) => Some((Src::DecideAt, Type::Num)),
            Some(Place::Micros) => Some((Src::Micros, Type::Num)),
            Some(Place::PolicyAction) => Some((Src::PolicyAction, Type::Num)),
            Some(Place::PolicySnapshot) => Some((Src::PolicySnapshot, Type::Num)),
            None => {
                self.unknown(name, span);
                None
            }
        }
    }

    fn unread_locals(&mut self) {
        let unread: Vec<(String, Span)> = self
            .regs
            .iter()
            .filter(|r| r.decl.kind == RegKind::Local && !r.read)
            .map(|r| (r.decl.name.clone(), r.span))
            .collect();
        for (name, span) in unread {
            let suggestion = self.suggest(&name);
            self.refuse(span, Problem::NeverRead { name, suggestion });
        }
    }
}

/// The first bind inside an expression.
fn find_bind(expr: &Expr) -> Option<Span> {
    match &expr.kind {
        ExprKind::Bind(..) => Some(expr.span),
        ExprKind::Op(_, a, b) => find_bind(a).or_else(|| find_bind(b)),
        _ => None,
    }
}

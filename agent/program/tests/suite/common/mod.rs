//! Programs from bytes, so that property tests and fuzzers shrink them, and a naive evaluator.

use std::collections::BTreeMap;

use ccplane_program::ir::{
    Hook, INFINITY, MAX_CWND_BYTES, MAX_PATHS, MAX_PRIORITY, MAX_RATE_BYTES_PER_S, Op, Prim, Type,
};
use ccplane_program::lang::Span;
use ccplane_program::lang::ast::{Decl, Expr, ExprKind, Literal, Name, Source, Stmt, StmtKind, When};
use ccplane_program::vm::{EWMA_DENOM, NoPolicies, PrimValues, Prims, ProgramState, SendPrims, wrapped_max};

/// Choices taken from bytes; all 0 once they are used up.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }
    /// Numbers near what matters.
    pub fn number(&mut self) -> i64 {
        const CORNERS: [i64; 10] = [0, 1, -1, 10, i64::MIN, i64::MAX, i64::MAX - 1, 1 << 31, 1 << 40, -4000];
        match self.below(4) {
            0 => CORNERS[self.below(CORNERS.len())],
            1 => i64::from(self.byte()) << self.below(56),
            _ => i64::from(self.byte()),
        }
    }
    pub fn prims(&mut self, now_us: i64) -> Prims {
        let mut prims = Prims::default();
        for prim in Prim::ACK {
            let value = if prim == Prim::AckNow { now_us } else { self.number() };
            prims.set(prim, value);
        }
        prims
    }
    pub fn send_prims(&mut self, hook: Hook, now_us: i64) -> SendPrims {
        let mut prims = SendPrims::default();
        for prim in hook.prims() {
            let value = if prim == hook.clock() { now_us } else { self.number() };
            prims.set(prim, value);
        }
        prims
    }
}

/// The names that programs of a hook set, beside registers and `Micros`.
pub fn outputs(hook: Hook) -> &'static [&'static str] {
    if hook.sets_window() { &["Cwnd", "Rate"] } else { &["Priority", "Path", "DecideAt"] }
}

struct Builder<'a, 'b> {
    hook: Hook,
    choices: &'a mut Choices<'b>,
    regs: Vec<(String, Type)>,
    locals: Vec<(String, Type)>,
}

fn name(text: &str) -> Name {
    Name { text: text.to_string(), span: Span::default() }
}

fn expr(kind: ExprKind) -> Expr {
    Expr { span: Span::default(), kind }
}

fn stmt(kind: StmtKind) -> Stmt {
    Stmt { span: Span::default(), kind }
}

/// A program that compiles, of the whole language.
pub fn program(choices: &mut Choices<'_>) -> Source {
    let hook = Hook::ALL[choices.below(Hook::ALL.len())];
    let mut builder = Builder { hook, choices, regs: Vec::new(), locals: Vec::new() };
    let decls = builder.decls();
    let clauses = 1 + builder.choices.below(4);
    let mut clauses: Vec<When> = (0..clauses).map(|_| builder.clause()).collect();
    // Every local is read somewhere.
    if let Some(last) = clauses.last_mut() {
        for (local, ty) in builder.locals {
            let target = if ty == Type::Num { "Report.num" } else { "Report.flag" };
            last.body.push(stmt(StmtKind::Bind(name(target), expr(ExprKind::Name(local)))));
        }
    }
    Source { hook, decls, clauses }
}

impl Builder<'_, '_> {
    fn decls(&mut self) -> Vec<Decl> {
        let mut decls = Vec::new();
        let mut declare = |text: String, in_report, volatile, init| {
            let ty = if matches!(init, Literal::Num(_)) { Type::Num } else { Type::Bool };
            self.regs.push((text.clone(), ty));
            decls.push(Decl { name: name(&text), in_report, volatile, init });
        };
        declare("Report.num".into(), true, false, Literal::Num(0));
        declare("Report.flag".into(), false, true, Literal::Bool(false));
        for n in 0..self.choices.below(6) {
            let init = match self.choices.below(3) {
                0 => Literal::Bool(self.choices.below(2) == 1),
                _ => Literal::Num(self.choices.number()),
            };
            let (in_report, volatile) = (self.choices.below(2) == 1, self.choices.below(2) == 1);
            let prefix = if in_report { "Report." } else { "" };
            declare(format!("{prefix}x{n}"), in_report, volatile, init);
        }
        decls
    }

    fn clause(&mut self) -> When {
        let guard = self.value(Type::Bool, 3, true);
        let body = (0..self.choices.below(6)).map(|_| self.statement()).collect();
        When { span: Span::default(), guard, body }
    }

    fn statement(&mut self) -> Stmt {
        stmt(match self.choices.below(12) {
            0 => StmtKind::Report,
            1 => StmtKind::Fallthrough,
            2 => StmtKind::Policy(self.choices.below(16) as i64),
            3 => StmtKind::History(
                1 + self.choices.below(2) as i64,
                vec![name("Report.num"), name("Report.flag")],
            ),
            4 | 5 => {
                let ty = self.ty();
                let value = self.value(ty, 3, true);
                let local = format!("l{}", self.locals.len());
                self.locals.push((local.clone(), ty));
                StmtKind::Bind(name(&local), value)
            }
            _ => {
                let (target, ty) = self.target();
                let takes_booleans = target != "Micros" && !outputs(self.hook).contains(&target.as_str());
                StmtKind::Bind(name(&target), self.right_side(ty, takes_booleans))
            }
        })
    }

    fn ty(&mut self) -> Type {
        if self.choices.below(3) == 0 { Type::Bool } else { Type::Num }
    }

    fn target(&mut self) -> (String, Type) {
        let implicit = outputs(self.hook).iter().chain(&["Micros"]).map(|n| (n.to_string(), Type::Num));
        let all: Vec<_> = self.regs.iter().chain(&self.locals).cloned().chain(implicit).collect();
        all[self.choices.below(all.len())].clone()
    }

    fn right_side(&mut self, ty: Type, takes_booleans: bool) -> Expr {
        // A register of numbers takes a boolean.
        let ty = if takes_booleans && self.choices.below(8) == 0 { Type::Bool } else { ty };
        let (op, left, right) = match self.choices.below(6) {
            0 => (Op::If, Type::Bool, ty),
            1 => (Op::NotIf, Type::Bool, ty),
            2 if ty == Type::Num => (Op::Ewma, Type::Num, Type::Num),
            _ => return self.value(ty, 3, true),
        };
        let binds = op == Op::Ewma;
        let (a, b) = (self.value(left, 2, binds), self.value(right, 2, binds));
        expr(ExprKind::Op(op, Box::new(a), Box::new(b)))
    }

    fn value(&mut self, ty: Type, depth: usize, binds: bool) -> Expr {
        const NUM: [Op; 7] = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Min, Op::Max, Op::MaxWrap];
        const COMPARE: [Op; 5] = [Op::Eq, Op::Lt, Op::Gt, Op::Le, Op::Ge];
        const BOOL: [Op; 2] = [Op::And, Op::Or];
        let (ops, operands): (&[Op], Type) = match (ty, self.choices.below(8)) {
            (_, 0..=2) => return self.atom(ty),
            _ if depth == 0 => return self.atom(ty),
            (_, 3) if binds => {
                let target = if ty == Type::Num { "Report.num" } else { "Report.flag" };
                let value = self.value(ty, depth - 1, true);
                return expr(ExprKind::Bind(name(target), Box::new(value)));
            }
            (Type::Num, _) => (&NUM, Type::Num),
            (Type::Bool, 4 | 5) => (&BOOL, Type::Bool),
            (Type::Bool, _) => (&COMPARE, Type::Num),
        };
        let op = ops[self.choices.below(ops.len())];
        let a = self.value(operands, depth - 1, binds);
        let b = self.value(operands, depth - 1, binds);
        expr(ExprKind::Op(op, Box::new(a), Box::new(b)))
    }

    fn atom(&mut self, ty: Type) -> Expr {
        let names: Vec<String> = self
            .regs
            .iter()
            .chain(&self.locals)
            .filter(|(_, t)| *t == ty)
            .map(|(n, _)| n.clone())
            .chain(self.hook.prims().filter(|p| p.ty() == ty).map(|p| p.name().to_string()))
            .chain(
                outputs(self.hook)
                    .iter()
                    .chain(&["Micros"])
                    .filter(|_| ty == Type::Num)
                    .map(|n| n.to_string()),
            )
            .collect();
        expr(match (self.choices.below(3), ty) {
            (0, Type::Num) => ExprKind::Literal(Literal::Num(self.choices.number())),
            (0, Type::Bool) => ExprKind::Literal(Literal::Bool(self.choices.below(2) == 1)),
            _ => ExprKind::Name(names[self.choices.below(names.len())].clone()),
        })
    }
}

/// Walks the syntax tree, with registers by name: what a program means, with no compiler in between.
pub struct Naive {
    pub values: BTreeMap<String, i64>,
    pub faults: u64,
    pub reported: bool,
    fallthrough: bool,
    micros_zero_us: i64,
}

enum Operand {
    Value(i64),
    Name(String),
}

impl Naive {
    pub fn new(program: &Source, cwnd_bytes: i64, now_us: i64) -> Naive {
        let mut values: BTreeMap<String, i64> =
            program.decls.iter().map(|d| (d.name.text.clone(), literal(d.init))).collect();
        values.insert("Cwnd".into(), cwnd_bytes);
        for output in ["Rate", "Priority", "Path", "DecideAt"] {
            values.insert(output.into(), 0);
        }
        Naive { values, faults: 0, reported: false, fallthrough: false, micros_zero_us: now_us }
    }

    /// Runs one ACK; the values of the registers before volatile ones are reset, if it reports.
    pub fn invoke(&mut self, program: &Source, prims: &impl PrimValues) -> Option<BTreeMap<String, i64>> {
        (self.reported, self.fallthrough) = (false, false);
        let before = self.values.clone();
        let now_us = prims.get(program.hook.clock());
        self.values.insert("the clock".into(), now_us);
        self.values.insert("Micros".into(), now_us.saturating_sub(self.micros_zero_us));
        for prim in program.hook.prims() {
            self.values.insert(prim.name().into(), prims.get(prim));
        }
        for clause in &program.clauses {
            let guard = self.eval(&clause.guard, None);
            if self.get(guard) == 0 {
                continue;
            }
            for statement in &clause.body {
                match &statement.kind {
                    StmtKind::Bind(target, value) => self.bind(&target.text, value, now_us),
                    StmtKind::Report => self.reported = true,
                    StmtKind::Fallthrough => self.fallthrough = true,
                    StmtKind::History(..) | StmtKind::Policy(_) => {}
                }
            }
            if !self.fallthrough {
                break;
            }
        }
        for (output, range) in [
            ("Cwnd", 1..=i64::MAX),
            ("Rate", 0..=i64::MAX),
            ("Priority", 0..=MAX_PRIORITY),
            ("Path", 0..=MAX_PATHS as i64 - 1),
        ] {
            if !range.contains(&self.values[output]) {
                self.values.insert(output.into(), before[output]);
            }
        }
        self.values.insert("Cwnd".into(), self.values["Cwnd"].min(MAX_CWND_BYTES));
        self.values.insert("Rate".into(), self.values["Rate"].min(MAX_RATE_BYTES_PER_S));
        self.reported.then(|| {
            let report = self.values.clone();
            for decl in program.decls.iter().filter(|d| d.volatile) {
                self.values.insert(decl.name.text.clone(), literal(decl.init));
            }
            report
        })
    }

    fn bind(&mut self, target: &str, value: &Expr, now_us: i64) {
        let value = self.eval(value, Some((target, now_us)));
        let value = self.get(value);
        self.values.insert(target.into(), value);
        if target == "Micros" {
            self.micros_zero_us = now_us.saturating_sub(value);
        }
    }

    fn get(&self, operand: Operand) -> i64 {
        match operand {
            Operand::Value(v) => v,
            // A local that no clause has bound yet.
            Operand::Name(name) => self.values.get(&name).copied().unwrap_or(0),
        }
    }

    fn eval(&mut self, expr: &Expr, target: Option<(&str, i64)>) -> Operand {
        match &expr.kind {
            ExprKind::Literal(l) => Operand::Value(literal(*l)),
            ExprKind::Name(name) => Operand::Name(name.clone()),
            ExprKind::Bind(name, value) => {
                let now_us = self.values["the clock"];
                self.bind(&name.text, value, now_us);
                Operand::Name(name.text.clone())
            }
            ExprKind::Op(op, a, b) => {
                // Both sides run first, then both are read.
                let (a, b) = (self.eval(a, None), self.eval(b, None));
                let (a, b) = (self.get(a), self.get(b));
                let old = target.map_or(0, |(name, _)| self.values.get(name).copied().unwrap_or(0));
                Operand::Value(self.apply(*op, a, b, old))
            }
        }
    }

    /// An exact result, saturated.
    fn saturate(&mut self, exact: i128) -> i64 {
        let value = exact.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        self.faults += u64::from(i128::from(value) != exact);
        value
    }

    fn apply(&mut self, op: Op, a: i64, b: i64, old: i64) -> i64 {
        let (wide_a, wide_b) = (i128::from(a), i128::from(b));
        match op {
            Op::Add => self.saturate(wide_a + wide_b),
            Op::Sub => self.saturate(wide_a - wide_b),
            Op::Mul => self.saturate(wide_a * wide_b),
            Op::Div if b == 0 => {
                self.faults += 1;
                0
            }
            Op::Div => self.saturate(wide_a / wide_b),
            Op::Eq => i64::from(a == b),
            Op::Lt => i64::from(a < b),
            Op::Gt => i64::from(a > b),
            Op::Le => i64::from(a <= b),
            Op::Ge => i64::from(a >= b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::MaxWrap => wrapped_max(a, b),
            Op::And => i64::from(a != 0 && b != 0),
            Op::Or => i64::from(a != 0 || b != 0),
            Op::Ewma if old == 0 => b,
            Op::Ewma => {
                let kept = self.saturate(wide_a * i128::from(old));
                let weight = self.saturate(i128::from(EWMA_DENOM) - wide_a);
                let fresh = self.saturate(i128::from(weight) * wide_b);
                self.saturate(i128::from(kept) + i128::from(fresh)) / EWMA_DENOM
            }
            Op::If => {
                if a != 0 {
                    b
                } else {
                    old
                }
            }
            Op::NotIf => {
                if a == 0 {
                    b
                } else {
                    old
                }
            }
            Op::Bind | Op::History | Op::Policy => INFINITY,
        }
    }
}

fn literal(literal: Literal) -> i64 {
    match literal {
        Literal::Num(n) => n,
        Literal::Bool(b) => i64::from(b),
    }
}

/// Whatever the text, the compiler answers, and its diagnostics point into the text.
pub fn compiler_answers(text: &str) {
    match ccplane_program::compile(text) {
        Ok(program) => {
            assert!(!ccplane_program::disasm::disassemble(&program).is_empty());
            // Lowering answers too, with bytes that match its counts.
            if let Ok(stock) = ccplane_program::stock::lower(&program) {
                let entries = (stock.num_expressions() + stock.num_instructions()) as usize;
                assert_eq!(stock.bytes().len(), entries * ccplane_program::stock::ENTRY_BYTES);
            }
            let ast = ccplane_program::lang::parse(text).expect("it compiles, so it parses");
            let printed = ast.to_string();
            assert_eq!(ccplane_program::compile(&printed).as_ref(), Ok(&program), "{printed}");
            assert_eq!(ccplane_program::lang::parse(&printed).expect("printed").to_string(), printed);
        }
        Err(diags) => {
            assert!(!diags.is_empty());
            for diag in diags {
                assert!(diag.line >= 1 && diag.column >= 1);
                assert!(diag.span.start <= diag.span.end && diag.span.end <= text.len());
                assert!(diag.render("x.fold", text).starts_with("error: "));
            }
        }
    }
}

/// The compiled program on the VM does what the syntax tree says, on `acks` ACKs drawn from `choices`.
pub fn vm_does_what_the_text_says(choices: &mut Choices<'_>, acks: usize) {
    let ast = program(choices);
    match ast.hook {
        Hook::Ack => agree(choices, acks, &ast, |choices, now_us| choices.prims(now_us)),
        hook => agree(choices, acks, &ast, |choices, now_us| choices.send_prims(hook, now_us)),
    }
}

fn agree<'c, M: PrimValues>(
    choices: &mut Choices<'c>,
    invocations: usize,
    ast: &Source,
    measure: impl Fn(&mut Choices<'c>, i64) -> M,
) {
    let text = ast.to_string();
    let compiled = match ccplane_program::compile(&text) {
        Ok(p) => p,
        Err(d) => panic!("{}", d[0].render("x.fold", &text)),
    };
    let mut now_us = i64::from(choices.byte());
    let mut flow = ProgramState::new(&compiled, 14480, now_us);
    let mut naive = Naive::new(ast, 14480, now_us);
    let (mut machine, mut fast) = (ccplane_program::vm::FastVm::new(&compiled), flow.clone());
    for _ in 0..invocations {
        let prims = measure(choices, now_us);
        let mut report = [0; ccplane_program::ir::MAX_REGS];
        let outcome = flow.invoke_with(&compiled, &prims, &mut NoPolicies, &mut report);
        let expected = naive.invoke(ast, &prims);
        assert_eq!(outcome.report, expected.is_some(), "{text}");
        if let Ok(machine) = &mut machine {
            let mut same = [0; ccplane_program::ir::MAX_REGS];
            let fast_outcome = machine.invoke_with(&mut fast, &prims, &mut NoPolicies, &mut same);
            assert_eq!((&fast, fast_outcome, same), (&flow, outcome, report), "{text}");
        }
        for (n, decl) in compiled.regs().iter().enumerate() {
            let value = |values: &BTreeMap<String, i64>| values.get(&decl.name).copied().unwrap_or(0);
            assert_eq!(flow.regs[n], value(&naive.values), "{}\n{text}", decl.name);
            if let Some(expected) = &expected {
                assert_eq!(report[n], value(expected), "{}\n{text}", decl.name);
            }
            assert!(decl.ty == Type::Num || matches!(flow.regs[n], 0 | 1), "{text}");
        }
        assert_eq!(flow.cwnd_bytes, naive.values["Cwnd"], "{text}");
        assert_eq!(flow.rate_bytes_per_s, naive.values["Rate"], "{text}");
        let decided = [("Priority", flow.priority), ("Path", flow.path), ("DecideAt", flow.decide_at_bytes)];
        for (output, value) in decided {
            assert_eq!(value, naive.values[output], "{output}\n{text}");
        }
        assert_eq!(flow.faults, naive.faults, "{text}");
        assert!((1..=MAX_CWND_BYTES).contains(&flow.cwnd_bytes), "{text}");
        assert!((0..=MAX_RATE_BYTES_PER_S).contains(&flow.rate_bytes_per_s), "{text}");
        now_us += i64::from(choices.byte()) * 100;
    }
}

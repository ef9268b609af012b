//! Random programs and ACKs.

use ccplane_program::ir::{Prim, Type};
use ccplane_program::vm::Prims;

use crate::rng::Rng;

/// The language features that a generated program may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    Portus,
    /// All that libccp can run, with `>=`, `<=`, and stateful operators on any target.
    Stock,
}

struct Reg {
    name: String,
    ty: Type,
    local: bool,
    read: bool,
}

struct Generator<'r> {
    rng: &'r mut Rng,
    dialect: Dialect,
    regs: Vec<Reg>,
    locals: usize,
    /// Inside a conditional, where binds are refused.
    conditional: bool,
    out: String,
}

/// The source of a random program that our compiler accepts.
pub fn program(rng: &mut Rng, dialect: Dialect) -> String {
    let mut generator =
        Generator { rng, dialect, regs: Vec::new(), locals: 0, conditional: false, out: String::new() };
    generator.program();
    generator.out
}

/// A random ACK at `now_us` after libccp's start.
pub fn ack(rng: &mut Rng, now_us: u64) -> Prims {
    let mut prims = Prims::default();
    for prim in Prim::ACK {
        let value = match prim {
            Prim::AckNow => now_us as i64,
            Prim::FlowWasTimeout => i64::from(rng.one_in(20)),
            Prim::FlowRttSampleUs if rng.one_in(8) => 0,
            _ if rng.one_in(3) => 0,
            Prim::FlowRateIncoming | Prim::FlowRateOutgoing => rng.below(1 << 30) as i64,
            _ => {
                let bits = rng.below(20);
                rng.below(1 << bits) as i64
            }
        };
        prims.set(prim, value);
    }
    prims
}

impl Generator<'_> {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn space(&mut self) {
        let space = *self.rng.pick(&[" ", " ", " ", "  ", "\n\t", "\r\n"]);
        self.push(space);
    }

    fn program(&mut self) {
        self.push("(def ");
        let before = self.rng.below(3);
        self.decls("c", before);
        // One of each type, so that there is always something to bind.
        self.push("(Report (num 0) (volatile flag false) ");
        let first = self.regs.len();
        for (name, ty) in [("num", Type::Num), ("flag", Type::Bool)] {
            self.regs.push(Reg { name: name.to_string(), ty, local: false, read: true });
        }
        let reports = self.rng.below(5);
        self.decls("r", reports);
        for reg in &mut self.regs[first..] {
            reg.name = format!("Report.{}", reg.name);
        }
        self.push(") ");
        let after = self.rng.below(3);
        self.decls("Control.d", after);
        self.push(")\n");
        let clauses = 1 + self.rng.below(4);
        for n in 0..clauses {
            self.clause(n + 1 == clauses);
        }
    }

    fn decls(&mut self, prefix: &str, count: usize) {
        for n in 0..count {
            let name = format!("{prefix}{n}");
            let volatile = if self.rng.one_in(3) { "volatile " } else { "" };
            let ty = if self.rng.one_in(4) { Type::Bool } else { Type::Num };
            let init = match ty {
                Type::Bool => self.rng.pick(&["true", "false"]).to_string(),
                Type::Num if self.rng.one_in(8) => "+infinity".to_string(),
                Type::Num => self.rng.below(1000).to_string(),
            };
            self.push(&format!("({volatile}{name} {init}) "));
            self.regs.push(Reg { name, ty, local: false, read: true });
        }
    }

    fn clause(&mut self, last: bool) {
        self.push("(when ");
        if self.rng.one_in(3) {
            self.push("true");
        } else {
            self.operation(Type::Bool, 2);
        }
        for _ in 0..1 + self.rng.below(5) {
            self.space();
            self.bind_statement();
        }
        if last {
            let unread: Vec<usize> = (0..self.regs.len()).filter(|i| !self.regs[*i].read).collect();
            for i in unread {
                let name = self.regs[i].name.clone();
                let value = if self.regs[i].ty == Type::Num { format!("(+ {name} 0)") } else { name };
                let target = self.target(self.regs[i].ty);
                self.push(&format!(" (:= {target} {value})"));
            }
        }
        if self.rng.one_in(3) {
            self.push(" (report)");
        }
        if self.rng.one_in(2) {
            self.push(" (fallthrough)");
        }
        self.push(")\n");
    }

    /// A declared register of this type.
    fn target(&mut self, ty: Type) -> String {
        let names: Vec<&String> =
            self.regs.iter().filter(|r| r.ty == ty && !r.local).map(|r| &r.name).collect();
        self.rng.pick(&names).to_string()
    }

    fn bind_statement(&mut self) {
        let ty = if self.rng.one_in(4) { Type::Bool } else { Type::Num };
        let op = *self.rng.pick(&[":=", "bind"]);
        let known_local: Vec<String> =
            self.regs.iter().filter(|r| r.ty == ty && r.local).map(|r| r.name.clone()).collect();
        let (name, stateful) = match self.rng.below(10) {
            0 | 1 if self.locals < 6 => {
                self.locals += 1;
                let name = format!("l{}", self.locals);
                self.push(&format!("({op} {name} "));
                let depth = self.depth();
                self.value(ty, depth);
                self.push(")");
                self.regs.push(Reg { name, ty, local: true, read: false });
                return;
            }
            2 if !known_local.is_empty() => {
                (self.rng.pick(&known_local).clone(), self.dialect == Dialect::Stock)
            }
            3 if ty == Type::Num => {
                let implicit = *self.rng.pick(&["Cwnd", "Rate", "Micros"]);
                (implicit.to_string(), self.dialect == Dialect::Stock)
            }
            // A register of numbers takes a boolean, too.
            4 => (self.target(Type::Num), true),
            _ => (self.target(ty), true),
        };
        self.push(&format!("({op} {name}"));
        self.space();
        match self.rng.below(6) {
            0 if stateful => {
                let op = *self.rng.pick(&["if", "!if"]);
                self.push(&format!("({op} "));
                self.conditional = true;
                self.operation(Type::Bool, 1);
                self.space();
                self.value(ty, 2);
                self.conditional = false;
                self.push(")");
            }
            1 if stateful && ty == Type::Num => {
                let weight = self.rng.below(11);
                self.push(&format!("(ewma {weight} "));
                self.value(ty, 2);
                self.push(")");
            }
            _ => {
                let depth = self.depth();
                self.value(ty, depth);
            }
        }
        self.push(")");
    }

    /// Mostly as people write, sometimes too deep for libccp.
    fn depth(&mut self) -> usize {
        *self.rng.pick(&[1, 2, 2, 3, 3, 3, 4, 6])
    }

    fn value(&mut self, ty: Type, depth: usize) {
        if depth > 0 && !self.rng.one_in(3) { self.operation(ty, depth) } else { self.atom(ty) }
    }

    fn operation(&mut self, ty: Type, depth: usize) {
        if depth > 0 && !self.conditional && self.rng.one_in(25) {
            // A nested bind.
            let target = self.target(ty);
            self.push(&format!("(:= {target} "));
            self.operation(ty, depth - 1);
            self.push(")");
            return;
        }
        let next = depth.saturating_sub(1);
        match ty {
            Type::Bool if depth > 0 && self.rng.one_in(3) => {
                let op = *self.rng.pick(&["&&", "||", "and ", "or "]);
                self.push(&format!("({op}"));
                self.value(Type::Bool, next);
                self.space();
                self.value(Type::Bool, next);
            }
            Type::Bool => {
                let portus = ["==", "<", ">", "eq ", "lt ", "gt ", ">", "<"];
                let all = ["==", "<", ">", ">=", "<=", ">= ", "<= "];
                let op = if self.dialect == Dialect::Portus {
                    *self.rng.pick(&portus)
                } else {
                    *self.rng.pick(&all)
                };
                self.push(&format!("({op}"));
                self.value(Type::Num, next);
                self.space();
                self.value(Type::Num, next);
            }
            Type::Num => self.arithmetic(next),
        }
        self.push(")");
    }

    fn arithmetic(&mut self, depth: usize) {
        let literal = 1 + self.rng.below(9);
        match self.rng.below(12) {
            0..=2 => {
                let op = *self.rng.pick(&["+", "add "]);
                self.push(&format!("({op}"));
            }
            3 | 4 => {
                let op = *self.rng.pick(&["max ", "min ", "min\n", "wrapped_max "]);
                self.push(&format!("({op}"));
            }
            5 if self.rng.one_in(5) => self.push("(- "),
            6 if self.rng.one_in(3) => self.push("(* "),
            7 if self.rng.one_in(5) => self.push("(/ "),
            8 | 9 => {
                let op = *self.rng.pick(&["/", "div ", "mul "]);
                self.push(&format!("({op}"));
                self.value(Type::Num, depth);
                self.push(&format!(" {literal}"));
                return;
            }
            _ => {
                // A difference that does not underflow.
                self.push(&format!("(sub (max {literal}"));
                self.space();
                self.value(Type::Num, depth);
                self.push(&format!(") {literal}"));
                return;
            }
        }
        self.value(Type::Num, depth);
        self.space();
        self.value(Type::Num, depth);
    }

    fn atom(&mut self, ty: Type) {
        let regs: Vec<usize> = (0..self.regs.len()).filter(|i| self.regs[*i].ty == ty).collect();
        if !regs.is_empty() && self.rng.one_in(2) {
            let i = *self.rng.pick(&regs);
            self.regs[i].read = true;
            let name = self.regs[i].name.clone();
            return self.push(&name);
        }
        let text = match (ty, self.rng.below(8)) {
            (Type::Bool, 0..=3) => self.rng.pick(&["true", "false"]).to_string(),
            (Type::Bool, _) => Prim::FlowWasTimeout.name().to_string(),
            (Type::Num, 0 | 1) => self.rng.below(100).to_string(),
            (Type::Num, 2) if self.rng.one_in(20) => "+infinity".to_string(),
            (Type::Num, 2) => self.rng.pick(&["Cwnd", "Rate", "Micros"]).to_string(),
            (Type::Num, _) => Prim::ACK[self.rng.below(Prim::ACK.len() - 1)].name().to_string(),
        };
        self.push(&text);
    }
}

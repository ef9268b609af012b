//! Compiles a fold program to BPF instructions, bit for bit as the reference VM runs it.
//!
//! The code keeps the flow's record in R7 and the invocation's flags in R9. The [`Host`] puts primitives on the stack;
//! the first temporaries live in R3-R5. Saturation is handled out of line, so that the common path stays straight.

mod staged;

pub use staged::{choose_program, claim_program, claim_staged, end_change};

use ccplane_program::ir::Src;
use ccplane_program::ir::{
    Dst, Hook, INFINITY, Inst, MAX_CWND_BYTES, MAX_PATHS, MAX_PRIORITY, MAX_RATE_BYTES_PER_S, Op, Prim,
    Program, RegKind,
};
use ccplane_program::vm::EWMA_DENOM;

use crate::arith::{fault, saturate_by_sign, saturating_sub_uncounted, slow_div, slow_mul, wrapped_distance};
use crate::frame::{
    FLAG_ASKED, FLAG_CONTINUE, FLAG_NATIVE, FLAG_REPORT, FLAGS, REC, STACK_A, STACK_B, STACK_CWND_BEFORE,
    STACK_EWMA, STACK_MICROS, STACK_RATE_BEFORE, STACK_TMPS, TMP_REGS, load_prim, prim_place, reg_off,
    tmp_slot,
};
use crate::layout::{rec, stage};
use crate::policy::{self, Slots};
use ccplane_nn_codegen::asm::{Alu, Asm, AsmError, Cond, Insn, Label, R, Size};

/// The environment of a program: how it finds its flow and primitives, and how its decisions are applied.
pub trait Host {
    /// Puts the flow's record in R7 and claims its staged changes; may leave with `exit`. R6 and R8 are the host's own
    /// throughout.
    fn enter(&self, asm: &mut Asm);
    /// Puts a primitive in R1; may use R0-R5. `Ack.now` is loaded first and lies on the stack afterwards.
    fn load_prim(&self, asm: &mut Asm, prim: Prim);
    /// Puts the flow's segment size in R1; may use R2 besides.
    fn load_mss(&self, asm: &mut Asm);
    /// Applies the window and rate in the record.
    fn apply(&self, asm: &mut Asm);
    /// Sends the report registers. If the program `asks` policies, it wakes nobody where [`FLAGS`] has [`FLAG_ASKED`].
    /// Volatile registers are reset after it.
    fn report(&self, asm: &mut Asm, report_len: usize, asks: bool);
    /// Hands the flow to the native algorithm, from its next ACK on.
    fn give_up(&self, asm: &mut Asm);
    /// Emits the program's return.
    fn leave(&self, asm: &mut Asm);
}

/// A compiled program with the origin of its instructions.
pub struct Compiled {
    /// Instructions ready to be loaded.
    pub insns: Vec<Insn>,
    /// For each IR instruction in order of emission: the start of its code, and its index.
    places: Vec<(usize, usize)>,
    /// For each policy slot that the program asks: the start of the subprogram that decides there.
    deciders: Vec<(usize, u8)>,
}

impl Compiled {
    /// Wraps code that comes from no IR.
    pub fn plain(insns: Vec<Insn>) -> Compiled {
        Compiled { insns, places: Vec::new(), deciders: Vec::new() }
    }

    /// The policy slot that the subprogram with BPF instruction `at` decides in; `None` for the program itself.
    pub fn slot_at(&self, at: usize) -> Option<u8> {
        let n = self.deciders.partition_point(|(start, _)| *start <= at);
        Some(self.deciders.get(n.checked_sub(1)?)?.1)
    }

    /// The IR instruction whose code holds BPF instruction `at`; `None` for the host's own code.
    pub fn ir_at(&self, at: usize) -> Option<usize> {
        let n = self.places.partition_point(|(start, _)| *start <= at);
        let (_, ir) = self.places.get(n.checked_sub(1)?)?;
        (*ir != usize::MAX).then_some(*ir)
    }
}

/// Compiles `program` for `host`. `instance` tells its staged changes from those of other programs.
///
/// A policy slot without a shape has no answer.
///
/// # Errors
/// Only when a jump gets too long for BPF, which the bounds of the IR make very unlikely.
pub fn compile(
    program: &Program,
    instance: u32,
    host: &dyn Host,
    slots: &Slots,
) -> Result<Compiled, AsmError> {
    let mut asm = Asm::default();
    let deciders: Vec<(u8, Label)> = program.policy_slots().into_iter().map(|s| (s, asm.label())).collect();
    let asks = !deciders.is_empty();
    let mut g = Gen { asm, program, deciders, cold: Vec::new(), places: Vec::new() };
    host.enter(&mut g.asm);
    g.load_prims(host);
    let staged = g.asm.label();
    let staged_done = g.asm.label();
    g.asm.load(Size::B4, R::R1, REC, rec::STAGE_STATE as i16);
    g.asm.jump_if_imm(R::R1, Cond::Eq, stage::APPLYING as i32, staged);
    g.asm.bind(staged_done);
    let told = g.follow_mss(host);
    g.before();
    g.clauses();
    g.after();
    host.apply(&mut g.asm);
    let (report, done, native, left) = (g.asm.label(), g.asm.label(), g.asm.label(), g.asm.label());
    if program.writes(Dst::ShouldReport) {
        g.asm.jump_if_imm(FLAGS, Cond::Set, FLAG_REPORT, report);
    }
    g.asm.bind(done);
    if asks {
        g.asm.jump_if_imm(FLAGS, Cond::Set, FLAG_NATIVE, native);
    }
    g.asm.bind(left);
    host.leave(&mut g.asm);

    if asks {
        g.asm.bind(native);
        host.give_up(&mut g.asm);
        g.asm.jump(left);
    }
    if program.writes(Dst::ShouldReport) {
        g.asm.bind(report);
        host.report(&mut g.asm, program.report_len(), asks);
        g.reset(|d| d.volatile && d.kind != RegKind::Local);
        g.asm.jump(done);
    }
    g.asm.bind(staged);
    g.apply_staged(instance, staged_done);
    if let Some(told) = told {
        g.update_mss(told);
    }
    g.emit_cold();
    g.places.push((g.asm.len(), usize::MAX));
    let mut deciders = Vec::new();
    for (slot, entry) in std::mem::take(&mut g.deciders) {
        deciders.push((g.asm.len(), slot));
        g.asm.bind(entry);
        policy::decide(&mut g.asm, slots, slot);
    }
    let done = g.asm.finish()?;
    let places = g.places.iter().map(|(at, ir)| (done.moved[*at], *ir)).collect();
    let deciders = deciders.into_iter().map(|(at, slot)| (done.moved[at], slot)).collect();
    Ok(Compiled { insns: done.insns, places, deciders })
}

/// Code that rarely runs, emitted after the program.
struct Cold {
    entry: Label,
    back: Label,
    ir: usize,
    what: ColdCode,
}

enum ColdCode {
    /// Saturates R0, a wrapped sum or difference.
    Saturate,
    /// Sets R0 to this constant.
    Constant(i64),
    /// Computes R0 = R1 * R2 for any values.
    Mul,
    /// Computes R0 = R1 / R2 for any values.
    Div,
    /// Computes R0 = R1 / this, for a negative R1.
    DivBy(i32),
}

struct Gen<'a> {
    asm: Asm,
    program: &'a Program,
    /// The slots that the program asks, and the subprograms that decide there.
    deciders: Vec<(u8, Label)>,
    cold: Vec<Cold>,
    places: Vec<(usize, usize)>,
}

impl Gen<'_> {
    fn load_prims(&mut self, host: &dyn Host) {
        // The clock is always loaded: staged program changes and `Micros` use it.
        let clock = self.program.hook().clock();
        let rest = self.program.hook().prims().filter(|p| *p != clock && self.program.reads_prim(*p));
        for prim in std::iter::once(clock).chain(rest) {
            host.load_prim(&mut self.asm, prim);
            let (base, off) = prim_place(prim);
            self.asm.store(Size::B8, base, off, R::R1);
        }
    }

    fn uses_micros(&self) -> bool {
        let reads = |s: Src| s == Src::Micros;
        self.program
            .insts()
            .iter()
            .any(|i| reads(i.a) || reads(i.b) || (i.op.reads_dst() && i.dst == Dst::Micros))
    }

    /// Emits the initial state of an invocation, before the first clause.
    fn before(&mut self) {
        self.asm.mov_imm(FLAGS, 0);
        if self.uses_micros() {
            // now - zero, saturating, and uncounted: the program did not ask for the subtraction.
            let asm = &mut self.asm;
            let done = asm.label();
            load_prim(asm, R::R1, self.program.hook().clock());
            asm.load(Size::B8, R::R2, REC, rec::MICROS_ZERO as i16);
            saturating_sub_uncounted(asm, done);
            asm.bind(done);
            asm.store(Size::B8, R::R10, STACK_MICROS, R::R0);
        }
        for (dst, off, slot) in self.guarded() {
            if self.program.writes(dst) {
                self.asm.load(Size::B8, R::R1, REC, off);
                self.asm.store(Size::B8, R::R10, slot, R::R1);
            }
        }
    }

    /// The outputs that not every value is a decision for, each with its place and that of the value before.
    fn guarded(&self) -> [(Dst, i16, i16); 2] {
        match self.program.hook() {
            Hook::Ack => [
                (Dst::Cwnd, rec::CWND as i16, STACK_CWND_BEFORE),
                (Dst::Rate, rec::RATE as i16, STACK_RATE_BEFORE),
            ],
            Hook::Send | Hook::Connect => [
                (Dst::Priority, rec::PRIORITY as i16, STACK_CWND_BEFORE),
                (Dst::Path, rec::PATH as i16, STACK_RATE_BEFORE),
            ],
        }
    }

    /// Emits the bounds of window and rate: a window that is not positive, or a negative rate, is no decision. Nor is a
    /// priority or path out of range.
    fn after(&mut self) {
        for (dst, off, slot) in self.guarded() {
            if !self.program.writes(dst) {
                continue;
            }
            let asm = &mut self.asm;
            let (keep, store, done) = (asm.label(), asm.label(), asm.label());
            let (cond, max) = match dst {
                Dst::Cwnd => (Cond::Sgt, MAX_CWND_BYTES),
                Dst::Rate => (Cond::Sge, MAX_RATE_BYTES_PER_S),
                _ => {
                    let limit = if dst == Dst::Path { MAX_PATHS as i32 } else { MAX_PRIORITY as i32 + 1 };
                    asm.load(Size::B8, R::R1, REC, off);
                    // As an unsigned number a negative one is beyond the limit, too.
                    asm.jump_if_imm(R::R1, Cond::Lt, limit, done);
                    asm.load(Size::B8, R::R1, R::R10, slot);
                    asm.store(Size::B8, REC, off, R::R1);
                    asm.bind(done);
                    continue;
                }
            };
            asm.load(Size::B8, R::R1, REC, off);
            asm.jump_if_imm(R::R1, cond, 0, keep);
            asm.load(Size::B8, R::R1, R::R10, slot);
            asm.jump(store);
            asm.bind(keep);
            asm.mov(R::R2, R::R1);
            asm.alu_imm(Alu::Rsh, R::R2, max.trailing_zeros() as i32);
            asm.jump_if_imm(R::R2, Cond::Eq, 0, done);
            asm.mov_imm(R::R1, max);
            asm.bind(store);
            asm.store(Size::B8, REC, off, R::R1);
            asm.bind(done);
        }
    }

    /// Emits the initial values of the registers for which `which` holds.
    fn reset(&mut self, which: impl Fn(&ccplane_program::ir::RegDecl) -> bool) {
        for (n, decl) in self.program.regs().iter().enumerate() {
            if which(decl) {
                store_const(&mut self.asm, REC, reg_off(n as u8), decl.init);
            }
        }
    }

    fn clauses(&mut self) {
        let end = self.asm.label();
        let program = self.program;
        let continues = self.program.writes(Dst::ShouldContinue);
        for clause in program.clauses() {
            let next = self.asm.label();
            let guard = clause.guard_range();
            self.guard(guard, clause.guard, next);
            let body = &program.insts()[clause.body_range()];
            for (n, inst) in clause.body_range().zip(body) {
                self.inst(n, inst);
            }
            // A body that always falls through needs no test.
            let last_flag = body.iter().rev().find(|i| i.dst == Dst::ShouldContinue);
            let always = last_flag.is_some_and(|i| i.op == Op::Bind && i.b == Src::Bool(true));
            if !always {
                if continues {
                    self.asm.jump_if_imm(FLAGS, Cond::Set, FLAG_CONTINUE, next);
                }
                self.asm.jump(end);
            }
            self.asm.bind(next);
        }
        self.asm.bind(end);
        self.places.push((self.asm.len(), usize::MAX));
    }

    /// Emits a guard, which jumps to `next` when it does not hold.
    fn guard(&mut self, range: std::ops::Range<usize>, value: Src, next: Label) {
        let insts = &self.program.insts()[range.clone()];
        let (last, before) = match insts.split_last() {
            Some((last, before)) if value != Src::Bool(true) => (Some(last), before),
            _ => (None, insts),
        };
        for (n, inst) in range.clone().zip(before) {
            self.inst(n, inst);
        }
        if let Some(last) = last {
            self.places.push((self.asm.len(), range.end - 1));
            // The usual guard ends in a comparison: jump on it directly, without making a truth value first.
            if let (Some(cond), true) = (condition(last.op), is_tmp(last.dst, value)) {
                let a = self.operand(last.a, R::R1);
                if let Some(imm) = small_imm(last.b) {
                    self.asm.jump_if_imm(a, cond.opposite(), imm, next);
                } else {
                    let b = self.operand(last.b, R::R2);
                    self.asm.jump_if(a, cond.opposite(), b, next);
                }
                return;
            }
            self.inst(range.end - 1, last);
        }
        match value {
            Src::Bool(true) => {}
            Src::Bool(false) => self.asm.jump(next),
            _ => {
                let v = self.operand(value, R::R1);
                self.asm.jump_if_imm(v, Cond::Eq, 0, next);
            }
        }
    }

    /// The register that holds `src`: a temporary's own, or `scratch` after loading it.
    fn operand(&mut self, src: Src, scratch: R) -> R {
        match src {
            Src::Tmp(t) if usize::from(t) < TMP_REGS.len() => TMP_REGS[usize::from(t)],
            _ => {
                self.read(src, scratch);
                scratch
            }
        }
    }

    fn read(&mut self, src: Src, to: R) {
        let asm = &mut self.asm;
        match src {
            Src::Imm(v) => asm.mov_imm(to, v),
            Src::Bool(v) => asm.mov_imm(to, i64::from(v)),
            Src::Reg(r) => asm.load(Size::B8, to, REC, reg_off(r)),
            Src::Tmp(t) => match TMP_REGS.get(usize::from(t)) {
                Some(reg) => asm.mov(to, *reg),
                None => asm.load(Size::B8, to, R::R10, tmp_slot(t)),
            },
            Src::Prim(p) => load_prim(asm, to, p),
            Src::Cwnd => asm.load(Size::B8, to, REC, rec::CWND as i16),
            Src::Rate => asm.load(Size::B8, to, REC, rec::RATE as i16),
            Src::Priority => asm.load(Size::B8, to, REC, rec::PRIORITY as i16),
            Src::Path => asm.load(Size::B8, to, REC, rec::PATH as i16),
            Src::DecideAt => asm.load(Size::B8, to, REC, rec::DECIDE_AT as i16),
            Src::Micros => asm.load(Size::B8, to, R::R10, STACK_MICROS),
            Src::PolicyAction => asm.load(Size::B8, to, REC, rec::ACTION as i16),
            Src::PolicySnapshot => asm.load(Size::B4, to, REC, rec::SNAPSHOT as i16),
        }
    }

    /// Emits the store of `from`; R1 and R2 may be lost.
    fn write(&mut self, dst: Dst, from: R) {
        let asm = &mut self.asm;
        match dst {
            Dst::Reg(r) => asm.store(Size::B8, REC, reg_off(r), from),
            Dst::Tmp(t) => match TMP_REGS.get(usize::from(t)) {
                Some(reg) => asm.mov(*reg, from),
                None => asm.store(Size::B8, R::R10, tmp_slot(t), from),
            },
            Dst::Cwnd => asm.store(Size::B8, REC, rec::CWND as i16, from),
            Dst::Rate => asm.store(Size::B8, REC, rec::RATE as i16, from),
            Dst::Priority => asm.store(Size::B8, REC, rec::PRIORITY as i16, from),
            Dst::Path => asm.store(Size::B8, REC, rec::PATH as i16, from),
            Dst::DecideAt => asm.store(Size::B8, REC, rec::DECIDE_AT as i16, from),
            Dst::Micros => {
                let done = asm.label();
                asm.mov(R::R2, from);
                asm.store(Size::B8, R::R10, STACK_MICROS, R::R2);
                load_prim(asm, R::R1, self.program.hook().clock());
                saturating_sub_uncounted(asm, done);
                asm.bind(done);
                asm.store(Size::B8, REC, rec::MICROS_ZERO as i16, R::R0);
            }
            Dst::ShouldReport | Dst::ShouldContinue => {
                let flag = if dst == Dst::ShouldReport { FLAG_REPORT } else { FLAG_CONTINUE };
                let done = asm.label();
                asm.alu_imm(Alu::And, FLAGS, !flag);
                asm.jump_if_imm(from, Cond::Eq, 0, done);
                asm.alu_imm(Alu::Or, FLAGS, flag);
                asm.bind(done);
            }
        }
    }

    fn bind_const(&mut self, dst: Dst, value: i64) {
        match dst {
            Dst::Reg(r) => store_const(&mut self.asm, REC, reg_off(r), value),
            Dst::Cwnd => store_const(&mut self.asm, REC, rec::CWND as i16, value),
            Dst::Rate => store_const(&mut self.asm, REC, rec::RATE as i16, value),
            Dst::Priority => store_const(&mut self.asm, REC, rec::PRIORITY as i16, value),
            Dst::Path => store_const(&mut self.asm, REC, rec::PATH as i16, value),
            Dst::DecideAt => store_const(&mut self.asm, REC, rec::DECIDE_AT as i16, value),
            Dst::ShouldReport if value != 0 => self.asm.alu_imm(Alu::Or, FLAGS, FLAG_REPORT),
            Dst::ShouldContinue if value != 0 => self.asm.alu_imm(Alu::Or, FLAGS, FLAG_CONTINUE),
            _ => {
                self.asm.mov_imm(R::R0, value);
                self.write(dst, R::R0);
            }
        }
    }

    fn inst(&mut self, n: usize, inst: &Inst) {
        self.places.push((self.asm.len(), n));
        match inst.op {
            Op::Bind => match inst.b {
                Src::Imm(v) => self.bind_const(inst.dst, v),
                Src::Bool(v) => self.bind_const(inst.dst, i64::from(v)),
                src => {
                    let v = self.operand(src, R::R0);
                    self.write(inst.dst, v);
                }
            },
            Op::If | Op::NotIf => {
                let skip = self.asm.label();
                let a = self.operand(inst.a, R::R1);
                let cond = if inst.op == Op::If { Cond::Eq } else { Cond::Ne };
                self.asm.jump_if_imm(a, cond, 0, skip);
                let b = self.operand(inst.b, R::R0);
                self.write(inst.dst, b);
                self.asm.bind(skip);
            }
            Op::Ewma => self.ewma(n, inst),
            Op::History => {
                if let Src::Imm(history) = inst.a {
                    policy::append(&mut self.asm, self.program, history as usize, REC);
                }
            }
            Op::Policy => self.ask(n, inst),
            _ => {
                self.arith(n, inst);
                self.write(inst.dst, R::R0);
            }
        }
    }

    /// Emits the call of the slot's subprogram; temporaries that are needed after it are saved on the stack.
    fn ask(&mut self, n: usize, inst: &Inst) {
        let entry = self.deciders.iter().find(|(slot, _)| inst.a == Src::Imm((*slot).into())).map(|d| d.1);
        let Some(entry) = entry else { return };
        let live = self.live_tmps(n);
        let slot = |t: usize| STACK_TMPS - 8 * t as i16;
        for t in &live {
            self.asm.store(Size::B8, R::R10, slot(*t), TMP_REGS[*t]);
        }
        let decided = self.asm.label();
        self.asm.mov(R::R1, REC);
        self.asm.call_sub(entry);
        self.asm.alu_imm(Alu::Or, FLAGS, FLAG_ASKED);
        self.asm.jump_if_imm(R::R0, Cond::Ne, policy::NATIVE, decided);
        policy::forget(&mut self.asm, REC);
        self.asm.alu_imm(Alu::Or, FLAGS, FLAG_NATIVE);
        self.asm.bind(decided);
        for t in &live {
            self.asm.load(Size::B8, TMP_REGS[*t], R::R10, slot(*t));
        }
    }

    /// Temporaries in registers that the block of instruction `n` writes before it and reads after it.
    fn live_tmps(&self, n: usize) -> Vec<usize> {
        let (clauses, insts) = (self.program.clauses(), self.program.insts());
        let guards = clauses.iter().map(|c| (c.guard_range(), Some(c.guard)));
        let bodies = clauses.iter().map(|c| (c.body_range(), None));
        let Some((block, guard)) = guards.chain(bodies).find(|(block, _)| block.contains(&n)) else {
            return Vec::new();
        };
        let live = |t: &usize| {
            let is = |src: Src| matches!(src, Src::Tmp(tmp) if usize::from(tmp) == *t);
            let written = insts[block.start..n].iter().any(|i| is_tmp(i.dst, Src::Tmp(*t as u8)));
            let read = insts[n + 1..block.end].iter().any(|i| is(i.a) || is(i.b));
            written && (read || guard.is_some_and(is))
        };
        (0..TMP_REGS.len()).filter(live).collect()
    }

    /// Emits R0 = a op b.
    fn arith(&mut self, n: usize, inst: &Inst) {
        match (inst.op, small_imm(inst.b)) {
            (Op::Add, Some(b)) if b >= 0 => {
                self.read(inst.a, R::R1);
                self.asm.mov(R::R0, R::R1);
                self.asm.alu_imm(Alu::Add, R::R0, b);
                self.cold_if(n, (R::R0, Cond::Slt, R::R1), ColdCode::Constant(i64::MAX));
            }
            (Op::Sub, Some(b)) if b >= 0 => {
                self.read(inst.a, R::R1);
                self.asm.mov(R::R0, R::R1);
                self.asm.alu_imm(Alu::Sub, R::R0, b);
                self.cold_if(n, (R::R0, Cond::Sgt, R::R1), ColdCode::Constant(i64::MIN));
            }
            (Op::Div, Some(b)) if b > 0 => {
                self.read(inst.a, R::R1);
                let (entry, back) = self.cold_label(n, ColdCode::DivBy(b));
                self.asm.jump_if_imm(R::R1, Cond::Slt, 0, entry);
                self.asm.mov(R::R0, R::R1);
                self.asm.alu_imm(Alu::Div, R::R0, b);
                self.asm.bind(back);
            }
            (op, imm) => {
                self.read(inst.a, R::R1);
                if let (Some(cond), Some(imm)) = (condition(op), imm) {
                    return self.truth(|asm, yes| asm.jump_if_imm(R::R1, cond, imm, yes));
                }
                self.read(inst.b, R::R2);
                self.binary(n, op);
            }
        }
    }

    /// Emits R0 = R1 op R2; R1 and R2 are lost.
    fn binary(&mut self, n: usize, op: Op) {
        let asm = &mut self.asm;
        match op {
            Op::Add | Op::Sub => {
                asm.mov(R::R0, R::R1);
                if op == Op::Add {
                    // Overflow: both operands' signs differ from the sum's.
                    asm.alu(Alu::Add, R::R0, R::R2);
                    asm.alu(Alu::Xor, R::R1, R::R0);
                    asm.alu(Alu::Xor, R::R2, R::R0);
                } else {
                    // Overflow: the operands' signs differ, and the difference's from the first one's.
                    asm.alu(Alu::Sub, R::R0, R::R2);
                    asm.alu(Alu::Xor, R::R2, R::R1);
                    asm.alu(Alu::Xor, R::R1, R::R0);
                }
                asm.alu(Alu::And, R::R1, R::R2);
                let (entry, back) = self.cold_label(n, ColdCode::Saturate);
                self.asm.jump_if_imm(R::R1, Cond::Slt, 0, entry);
                self.asm.bind(back);
            }
            Op::Mul => {
                // Two factors within 31 bits cannot overflow.
                asm.mov(R::R0, R::R1);
                asm.alu(Alu::Or, R::R0, R::R2);
                asm.alu_imm(Alu::Rsh, R::R0, 31);
                let (entry, back) = self.cold_label(n, ColdCode::Mul);
                self.asm.jump_if_imm(R::R0, Cond::Ne, 0, entry);
                self.asm.mov(R::R0, R::R1);
                self.asm.alu(Alu::Mul, R::R0, R::R2);
                self.asm.bind(back);
            }
            Op::Div => {
                asm.mov(R::R0, R::R1);
                asm.alu(Alu::Or, R::R0, R::R2);
                let (entry, back) = self.cold_label(n, ColdCode::Div);
                self.asm.jump_if_imm(R::R0, Cond::Slt, 0, entry);
                self.asm.jump_if_imm(R::R2, Cond::Eq, 0, entry);
                self.asm.mov(R::R0, R::R1);
                self.asm.alu(Alu::Div, R::R0, R::R2);
                self.asm.bind(back);
            }
            Op::Min | Op::Max => {
                let done = asm.label();
                asm.mov(R::R0, R::R1);
                asm.jump_if(R::R1, if op == Op::Min { Cond::Sle } else { Cond::Sge }, R::R2, done);
                asm.mov(R::R0, R::R2);
                asm.bind(done);
            }
            Op::And | Op::Or => {
                asm.mov(R::R0, R::R1);
                asm.alu(if op == Op::And { Alu::And } else { Alu::Or }, R::R0, R::R2);
            }
            Op::MaxWrap => self.wrapped_max(),
            _ => {
                if let Some(cond) = condition(op) {
                    self.truth(|asm, yes| asm.jump_if(R::R1, cond, R::R2, yes));
                }
            }
        }
    }

    /// Emits R0 = 1 if `jump` jumps, else 0.
    fn truth(&mut self, jump: impl FnOnce(&mut Asm, Label)) {
        let yes = self.asm.label();
        self.asm.mov_imm(R::R0, 1);
        jump(&mut self.asm, yes);
        self.asm.mov_imm(R::R0, 0);
        self.asm.bind(yes);
    }

    /// Emits R0 = wrapped_max(R1, R2), as the VM defines it.
    fn wrapped_max(&mut self) {
        let asm = &mut self.asm;
        let (done, first) = (asm.label(), asm.label());
        asm.mov(R::R0, R::R2);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, done);
        asm.mov(R::R0, R::R1);
        asm.jump_if_imm(R::R2, Cond::Eq, 0, done);
        asm.zext32(R::R1);
        asm.zext32(R::R2);
        wrapped_distance(asm, R::R1, R::R2);
        asm.store(Size::B8, R::R10, STACK_A, R::R0);
        wrapped_distance(asm, R::R2, R::R1);
        asm.store(Size::B8, R::R10, STACK_B, R::R2);
        asm.load(Size::B8, R::R2, R::R10, STACK_A);
        asm.jump_if(R::R2, Cond::Lt, R::R0, first);
        asm.load(Size::B8, R::R0, R::R10, STACK_B);
        asm.jump(done);
        asm.bind(first);
        asm.mov(R::R0, R::R1);
        asm.bind(done);
    }

    /// Emits dst = (a*dst + (10-a)*b) / 10, or b when dst is 0.
    fn ewma(&mut self, n: usize, inst: &Inst) {
        let old = match inst.dst {
            Dst::Reg(r) => Src::Reg(r),
            Dst::Cwnd => Src::Cwnd,
            Dst::Rate => Src::Rate,
            Dst::Priority => Src::Priority,
            Dst::Path => Src::Path,
            Dst::DecideAt => Src::DecideAt,
            _ => Src::Micros,
        };
        let (first, done) = (self.asm.label(), self.asm.label());
        self.read(old, R::R2);
        self.asm.jump_if_imm(R::R2, Cond::Eq, 0, first);
        self.read(inst.a, R::R1);
        self.binary(n, Op::Mul);
        // `Mul` uses STACK_A and STACK_B on its slow path; the product waits in the old value's place.
        self.asm.store(Size::B8, R::R10, STACK_EWMA, R::R0);
        self.asm.mov_imm(R::R1, EWMA_DENOM);
        self.read(inst.a, R::R2);
        self.binary(n, Op::Sub);
        self.asm.mov(R::R1, R::R0);
        self.read(inst.b, R::R2);
        self.binary(n, Op::Mul);
        self.asm.mov(R::R2, R::R0);
        self.asm.load(Size::B8, R::R1, R::R10, STACK_EWMA);
        self.binary(n, Op::Add);
        self.asm.mov(R::R1, R::R0);
        self.asm.mov_imm(R::R2, EWMA_DENOM);
        self.binary(n, Op::Div);
        self.asm.jump(done);
        self.asm.bind(first);
        self.read(inst.b, R::R0);
        self.asm.bind(done);
        self.write(inst.dst, R::R0);
    }

    fn cold_label(&mut self, ir: usize, what: ColdCode) -> (Label, Label) {
        let (entry, back) = (self.asm.label(), self.asm.label());
        self.cold.push(Cold { entry, back, ir, what });
        (entry, back)
    }

    fn cold_if(&mut self, ir: usize, (a, cond, b): (R, Cond, R), what: ColdCode) {
        let (entry, back) = self.cold_label(ir, what);
        self.asm.jump_if(a, cond, b, entry);
        self.asm.bind(back);
    }

    fn emit_cold(&mut self) {
        for cold in std::mem::take(&mut self.cold) {
            self.places.push((self.asm.len(), cold.ir));
            self.asm.bind(cold.entry);
            let asm = &mut self.asm;
            match cold.what {
                ColdCode::Saturate => {
                    saturate_by_sign(asm);
                    fault(asm);
                }
                ColdCode::Constant(v) => {
                    asm.mov_imm(R::R0, v);
                    fault(asm);
                }
                ColdCode::Mul => slow_mul(asm, cold.back),
                ColdCode::Div => slow_div(asm, cold.back),
                ColdCode::DivBy(b) => {
                    // The magnitude of i64::MIN, as unsigned, is right too.
                    asm.mov(R::R0, R::R1);
                    asm.neg(R::R0);
                    asm.alu_imm(Alu::Div, R::R0, b);
                    asm.neg(R::R0);
                }
            }
            asm.jump(cold.back);
        }
    }
}

/// Emits `*(i64 *)(base + off) = value`; R1 may be lost.
fn store_const(asm: &mut Asm, base: R, off: i16, value: i64) {
    match i32::try_from(value) {
        Ok(v) => asm.store_imm(Size::B8, base, off, v),
        Err(_) => {
            asm.mov_imm(R::R1, value);
            asm.store(Size::B8, base, off, R::R1);
        }
    }
}

fn condition(op: Op) -> Option<Cond> {
    Some(match op {
        Op::Eq => Cond::Eq,
        Op::Lt => Cond::Slt,
        Op::Gt => Cond::Sgt,
        Op::Le => Cond::Sle,
        Op::Ge => Cond::Sge,
        _ => return None,
    })
}

fn small_imm(src: Src) -> Option<i32> {
    match src {
        Src::Imm(v) => i32::try_from(v).ok(),
        _ => None,
    }
}

/// Whether `src` reads the temporary that `dst` writes.
fn is_tmp(dst: Dst, src: Src) -> bool {
    matches!((dst, src), (Dst::Tmp(d), Src::Tmp(s)) if d == s)
}

/// Emits the replacement of R1 by [`INFINITY`] where it is not positive: an ACK without an RTT sample.
pub fn no_sample_is_infinity(asm: &mut Asm) {
    let sample = asm.label();
    asm.jump_if_imm(R::R1, Cond::Sgt, 0, sample);
    asm.mov_imm(R::R1, INFINITY);
    asm.bind(sample);
}

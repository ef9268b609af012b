//! Random programs and ACK streams, valid by construction, weighted to the values where arithmetic breaks.
//!
//! The same seed gives the same script on every machine, so that a seed is enough to report a failure.

use super::deploy::deploy;
use super::draws::{below, chance, pick};
use super::executor::{START_MSS_BYTES, Script, ScriptStep};
use super::operation::{AckStream, Operation};
use crate::command::Field;
use crate::fields::MSS_REGISTER;
use crate::ids::FlowId;
use ccplane_program::ir::{
    Clause, Dst, HistoryDecl, Hook, Inst, MAX_CLAUSES, MAX_CWND_BYTES, MAX_HISTORIES, MAX_HISTORY_DEPTH,
    MAX_INSTS, MAX_POLICY_INPUTS, MAX_POLICY_SLOTS, MAX_RATE_BYTES_PER_S, MAX_REGS, MAX_TMPS, Op, Prim,
    Program, RegDecl, RegKind, Src, Type, VerifyError,
};
use ccplane_program::vm::{Prims, SendPrims};
use rand_core::RngCore;

/// The largest `n` with `n * n` below 2^63.
const SQRT_MAX: i64 = 3_037_000_499;

/// Values on both sides of every boundary that an executor may get wrong.
pub const EDGES: [i64; 32] = [
    i64::MIN,
    i64::MIN + 1,
    i64::MIN / 10,
    -SQRT_MAX - 1,
    -(1 << 32),
    -(1 << 31) - 1,
    -(1 << 31),
    -10,
    -1,
    0,
    1,
    2,
    9,
    10,
    11,
    1448,
    1_000_000,
    (1 << 31) - 1,
    1 << 31,
    (1 << 31) + 1,
    (1 << 32) - 1,
    1 << 32,
    (1 << 32) + 1,
    SQRT_MAX,
    SQRT_MAX + 1,
    MAX_CWND_BYTES,
    MAX_CWND_BYTES + 1,
    MAX_RATE_BYTES_PER_S + 1,
    i64::MAX / 10,
    i64::MAX / 10 + 1,
    i64::MAX - 1,
    i64::MAX,
];

/// The largest random programs and streams. Sizes are drawn evenly up to these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The hook of all programs of a script.
    pub hook: Hook,
    /// Registers of each kind.
    pub regs_per_kind: u32,
    pub clauses: u32,
    /// Instructions of one guard or one body.
    pub block_insts: u32,
    /// Programs in a script.
    pub programs: u32,
    /// Operations in a script.
    pub operations: u32,
    /// Whether programs keep histories and ask policies, which a script then deploys; and follow the segment size.
    pub policies: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            hook: Hook::Ack,
            regs_per_kind: 6,
            clauses: 6,
            block_insts: 8,
            programs: 3,
            operations: 40,
            policies: false,
        }
    }
}

const NUM_OPS: [Op; 9] =
    [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Min, Op::Max, Op::MaxWrap, Op::Ewma, Op::Bind];
const COMPARISONS: [Op; 5] = [Op::Eq, Op::Lt, Op::Gt, Op::Le, Op::Ge];

/// A number: an edge, or of random length, or small.
pub fn number(rng: &mut impl RngCore) -> i64 {
    match below(rng, 4) {
        0 | 1 => EDGES[below(rng, EDGES.len() as u32) as usize],
        2 => (rng.next_u64() as i64) >> below(rng, 64),
        _ => i64::from(below(rng, 100)) - 20,
    }
}

/// The primitives of one ACK: any numbers at all.
pub fn prims(rng: &mut impl RngCore) -> Prims {
    let mut prims = Prims::default();
    for prim in Prim::ACK {
        prims.set(prim, number(rng));
    }
    prims
}

/// The primitives of one packet or flow's start: any numbers at all.
pub fn send_prims(rng: &mut impl RngCore, hook: Hook) -> SendPrims {
    let mut prims = SendPrims::default();
    for prim in hook.prims() {
        prims.set(prim, number(rng));
    }
    prims
}

/// A program within `shape` and within the limits of [`ccplane_program::ir`].
///
/// # Errors
/// None: what the generator makes is valid. The verifier's word, all the same.
pub fn program(rng: &mut impl RngCore, shape: &Shape) -> Result<Program, VerifyError> {
    numbered(rng, shape, 0)
}

/// A program that asks no slots but its own two.
fn numbered(rng: &mut impl RngCore, shape: &Shape, number: u8) -> Result<Program, VerifyError> {
    let regs = registers(rng, shape);
    let histories = if shape.policies { histories(rng, &regs) } else { Vec::new() };
    let slots = [2 * number, 2 * number + 1].map(|slot| slot % MAX_POLICY_SLOTS as u8);
    let mut build =
        Build { rng, hook: shape.hook, regs, histories, slots, policies: shape.policies, insts: Vec::new() };
    let mut clauses = Vec::new();
    for _ in 0..=below(build.rng, shape.clauses.clamp(1, MAX_CLAUSES as u32)) {
        let clause = build.clause(shape);
        if build.insts.len() > MAX_INSTS || clauses.len() == MAX_CLAUSES {
            build.insts.truncate(usize::from(clause.start));
            break;
        }
        clauses.push(clause);
    }
    Program::at(shape.hook, build.regs, build.insts, clauses, build.histories)
}

/// Programs, and operations on a flow that runs them; with policies at most half as many programs as there are slots.
///
/// # Errors
/// As [`program`].
pub fn script(rng: &mut impl RngCore, shape: &Shape) -> Result<Script, VerifyError> {
    let most = if shape.policies { shape.programs.min(MAX_POLICY_SLOTS as u32 / 2) } else { shape.programs };
    let count = 1 + below(rng, most.max(1));
    let programs = (0..count).map(|n| numbered(rng, shape, n as u8)).collect::<Result<Vec<_>, _>>()?;
    let mut running = 0;
    let operations: Vec<Operation> = (0..1 + below(rng, shape.operations.max(1)))
        .map(|_| operation(rng, &programs, &mut running))
        .collect();
    let cwnd_bytes = 1 + i64::from(below(rng, 1 << 20));
    let mut script = Script::new(programs, cwnd_bytes, AckStream::steps(&operations));
    if shape.hook == Hook::Connect {
        // A flow starts once, with the segment size that it has: what is staged is staged before.
        script.steps.retain(|step| !matches!(step, ScriptStep::Invoke(_) | ScriptStep::SegmentSize { .. }));
        script.steps.push(ScriptStep::Invoke(Prims::default()));
    }
    if shape.hook != Hook::Ack {
        for step in &mut script.steps {
            if matches!(step, ScriptStep::Invoke(_)) {
                *step = ScriptStep::Decide(Box::new(send_prims(rng, shape.hook)));
            }
        }
    }
    if shape.policies {
        script.flow = FlowId(rng.next_u64());
        deploy(rng, &mut script);
    }
    Ok(script)
}

fn operation(rng: &mut impl RngCore, programs: &[Program], running: &mut usize) -> Operation {
    match below(rng, 16) {
        0..=4 => Operation::Ack { packets: 1 + below(rng, 10), rtt_us: below(rng, 300_000) },
        5..=8 => Operation::Raw(prims(rng)),
        9 => Operation::Loss { misordered: below(rng, 4), lost: 1 + below(rng, 4) },
        10 => Operation::Ecn { packets: 1 + below(rng, 4) },
        11 => Operation::Timeout,
        12 => match below(rng, 4) {
            0 => Operation::TimePasses { us: below(rng, 2_000_000) },
            1 => Operation::MtuChange { mss_bytes: 500 + below(rng, 8500) as u16 },
            2 => Operation::AppLimited { pending_bytes: below(rng, 1 << 21) },
            _ => Operation::Idle { us: below(rng, 2_000_000) },
        },
        13 | 14 => Operation::UpdateField(fields(rng, &programs[*running])),
        _ => {
            *running = below(rng, programs.len() as u32) as usize;
            Operation::SetProgram { program: *running, fields: fields(rng, &programs[*running]) }
        }
    }
}

fn fields(rng: &mut impl RngCore, program: &Program) -> Vec<(Field, i64)> {
    let mut settable = vec![Field::Cwnd, Field::Rate];
    let control = program.regs().iter().enumerate().filter(|(_, r)| r.kind == RegKind::Control);
    settable.extend(control.map(|(n, _)| Field::Reg(n as u8)));
    (0..below(rng, 4)).filter_map(|_| Some((pick(rng, &settable)?, number(rng)))).collect()
}

fn registers(rng: &mut impl RngCore, shape: &Shape) -> Vec<RegDecl> {
    let mut regs = Vec::new();
    // Half of the room is for control registers, so that some that are set stand behind the 64th.
    for (kind, prefix, share) in
        [(RegKind::Report, "Report.r", 4), (RegKind::Control, "c", 2), (RegKind::Local, "l", 4)]
    {
        let most = shape.regs_per_kind.min(MAX_REGS as u32 / share);
        for n in 0..below(rng, most + 1) {
            let ty = if chance(rng, 25) { Type::Bool } else { Type::Num };
            let local = kind == RegKind::Local;
            let init = match ty {
                _ if local => 0,
                Type::Bool => i64::from(chance(rng, 50)),
                Type::Num => number(rng),
            };
            let volatile = !local && chance(rng, 40);
            regs.push(RegDecl { name: format!("{prefix}{n}"), kind, ty, volatile, init });
        }
    }
    if shape.policies && chance(rng, 75) {
        follow_segment_size(rng, &mut regs);
    }
    regs
}

/// The first control register that can follows the segment size.
fn follow_segment_size(rng: &mut impl RngCore, regs: &mut [RegDecl]) {
    let first = regs.iter_mut().find(|r| r.kind == RegKind::Control && r.ty == Type::Num);
    if let Some(decl) = first {
        decl.name = MSS_REGISTER.to_owned();
        if chance(rng, 75) {
            decl.init = START_MSS_BYTES.into();
        }
    }
}

/// Most programs keep one, in all shapes that fit.
fn histories(rng: &mut impl RngCore, regs: &[RegDecl]) -> Vec<HistoryDecl> {
    let (mut histories, mut cells) = (Vec::new(), 0);
    if regs.is_empty() || chance(rng, 15) {
        return histories;
    }
    for _ in 0..1 + below(rng, MAX_HISTORIES as u32) {
        let width = 1 + below(rng, 4) as usize;
        let most = (MAX_POLICY_INPUTS - cells) / width;
        if most == 0 {
            break;
        }
        let depth = 1 + below(rng, most.min(MAX_HISTORY_DEPTH) as u32) as u8;
        let regs = (0..width).map(|_| below(rng, regs.len() as u32) as u8).collect();
        let history = HistoryDecl { depth, regs };
        cells += history.cells();
        histories.push(history);
    }
    histories
}

type Tmps = [Option<Type>; MAX_TMPS];

struct Build<'a, R: RngCore> {
    rng: &'a mut R,
    hook: Hook,
    regs: Vec<RegDecl>,
    histories: Vec<HistoryDecl>,
    slots: [u8; 2],
    policies: bool,
    insts: Vec<Inst>,
}

impl<R: RngCore> Build<'_, R> {
    fn clause(&mut self, shape: &Shape) -> Clause {
        let start = self.insts.len() as u16;
        let mut tmps = [None; MAX_TMPS];
        // Guards are short, and often true, so that bodies run.
        let guard_insts = self.block(shape.block_insts.min(3), &mut tmps);
        let guard = if chance(self.rng, 40) { Src::Bool(true) } else { self.src(Type::Bool, &tmps) };
        let body_insts = self.block(shape.block_insts, &mut [None; MAX_TMPS]);
        Clause { start, guard_insts, body_insts, guard }
    }

    fn block(&mut self, most: u32, tmps: &mut Tmps) -> u16 {
        let count = below(self.rng, most + 1);
        for _ in 0..count {
            let inst = self.inst(tmps);
            self.insts.push(inst);
        }
        count as u16
    }

    fn inst(&mut self, tmps: &mut Tmps) -> Inst {
        use Type::{Bool, Num};
        if !self.histories.is_empty() && chance(self.rng, 15) {
            let (op, a) = if chance(self.rng, 60) {
                (Op::History, below(self.rng, self.histories.len() as u32).into())
            } else {
                (Op::Policy, self.slots[below(self.rng, 2) as usize].into())
            };
            return Inst { op, dst: Dst::ShouldReport, a: Src::Imm(a), b: Src::Imm(0) };
        }
        // Operation, its operands' types, its result's.
        let (op, a, b, result) = match below(self.rng, 20) {
            0..=9 => (self.one_of(&NUM_OPS), Num, Num, Num),
            10..=12 => (self.one_of(&COMPARISONS), Num, Num, Bool),
            13 | 14 => (self.one_of(&[Op::And, Op::Or]), Bool, Bool, Bool),
            15 | 16 => (Op::Bind, Num, Bool, Bool),
            n => {
                let op = self.one_of(&[Op::If, Op::NotIf]);
                let ty = if n == 17 && self.has_reg(Bool) { Bool } else { Num };
                (op, Bool, ty, ty)
            }
        };
        let (a, b) = (self.src(a, tmps), self.src(b, tmps));
        let dst = self.dst(result, op.reads_dst());
        if let Dst::Tmp(t) = dst {
            tmps[usize::from(t)] = Some(result);
        }
        Inst { op, dst, a, b }
    }

    fn one_of(&mut self, ops: &[Op]) -> Op {
        pick(self.rng, ops).unwrap_or(Op::Bind)
    }

    fn has_reg(&self, ty: Type) -> bool {
        self.regs.iter().any(|r| r.ty == ty)
    }

    fn any_reg(&mut self, ty: Type) -> Option<u8> {
        let of_type = self.regs.iter().enumerate().filter(|(_, r)| r.ty == ty);
        let of_type: Vec<u8> = of_type.map(|(n, _)| n as u8).collect();
        pick(self.rng, &of_type)
    }

    fn src(&mut self, ty: Type, tmps: &Tmps) -> Src {
        let set: Vec<u8> = (0..MAX_TMPS as u8).filter(|t| tmps[usize::from(*t)] == Some(ty)).collect();
        let kind = below(self.rng, 8);
        let written = match kind {
            0..=2 => self.any_reg(ty).map(Src::Reg),
            3 | 4 => pick(self.rng, &set).map(Src::Tmp),
            _ => None,
        };
        if let Some(src) = written {
            return src;
        }
        match (ty, kind) {
            (Type::Num, 5) => {
                let mut all = match self.hook {
                    Hook::Ack => vec![Src::Cwnd, Src::Rate, Src::Micros],
                    Hook::Send | Hook::Connect => vec![Src::Priority, Src::Path, Src::DecideAt, Src::Micros],
                };
                if self.policies {
                    all.extend([Src::PolicyAction, Src::PolicySnapshot]);
                }
                pick(self.rng, &all).unwrap_or(Src::Micros)
            }
            (Type::Num, 6) => self.number_prim(),
            (Type::Num, _) => Src::Imm(number(self.rng)),
            (Type::Bool, 5 | 6) if self.hook == Hook::Ack => Src::Prim(Prim::FlowWasTimeout),
            (Type::Bool, _) => Src::Bool(chance(self.rng, 60)),
        }
    }

    fn number_prim(&mut self) -> Src {
        let prims: Vec<Prim> = self.hook.prims().filter(|p| p.ty() == Type::Num).collect();
        pick(self.rng, &prims).map_or(Src::Imm(0), Src::Prim)
    }

    /// One of the hook's first two outputs, or in place of the second its third.
    fn output(&mut self, n: usize) -> Dst {
        match self.hook {
            Hook::Ack => [Dst::Cwnd, Dst::Rate][n],
            Hook::Send | Hook::Connect if n == 1 && chance(self.rng, 50) => Dst::DecideAt,
            Hook::Send | Hook::Connect => [Dst::Priority, Dst::Path][n],
        }
    }

    fn dst(&mut self, ty: Type, reads_dst: bool) -> Dst {
        let kind = below(self.rng, 10);
        let reg = if kind < 5 || reads_dst { self.any_reg(ty) } else { None };
        if let Some(r) = reg {
            return Dst::Reg(r);
        }
        match (ty, kind) {
            (Type::Num, 8) => Dst::Micros,
            (Type::Num, 9) => self.output(1),
            (Type::Num, _) if kind == 7 || reads_dst => self.output(0),
            // Few clauses would run if most of them stopped the invocation.
            (Type::Bool, 7 | 8) => Dst::ShouldContinue,
            (Type::Bool, 9) => Dst::ShouldReport,
            _ => Dst::Tmp(below(self.rng, MAX_TMPS as u32) as u8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Executor, Reference};
    use rand_chacha::ChaCha8Rng;
    use rand_core::SeedableRng;
    use std::collections::HashSet;

    fn rng(seed: u64) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(seed)
    }

    #[test]
    fn every_program_verifies_at_every_size() {
        let large = Shape { regs_per_kind: 1000, clauses: 1000, block_insts: 60, ..Shape::default() };
        for seed in 0..300 {
            program(&mut rng(seed), &Shape::default()).unwrap();
            program(&mut rng(seed), &large).unwrap();
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_script() {
        let one = |seed| script(&mut rng(seed), &Shape::default()).unwrap();
        assert_eq!(one(5), one(5));
        assert_ne!(one(5), one(6));
    }

    /// A generator that misses an operation, or whose programs do nothing, would test nothing.
    #[test]
    fn covers_the_language() {
        let (mut ops, mut dsts, mut srcs) = (HashSet::new(), HashSet::new(), HashSet::new());
        let (mut invocations, mut faulted, mut reports, mut windows) = (0, 0, 0, 0);
        let (mut followed, mut decided, mut snapshots, mut native, mut levels) =
            (0, 0, HashSet::new(), 0, HashSet::new());
        for seed in 0..1000 {
            let shape = Shape { policies: seed % 2 == 1, ..Shape::default() };
            let mut script = script(&mut rng(seed), &shape).unwrap();
            for inst in script.programs.iter().flat_map(|p| p.insts()) {
                ops.insert(inst.op);
                dsts.insert(std::mem::discriminant(&inst.dst));
                srcs.extend([inst.a, inst.b].map(|s| std::mem::discriminant(&s)));
            }
            let seen = Reference.execute(&script).unwrap();
            invocations += seen.len();
            faulted += usize::from(seen.last().is_some_and(|o| o.faults > 0));
            reports += seen.iter().filter(|o| o.report.is_some()).count();
            for policy in seen.iter().filter_map(|o| o.policy.as_ref()) {
                snapshots.insert((seed, policy.snapshot));
                native += usize::from(policy.native);
                levels.insert(policy.flow.level as u32);
            }
            decided += seen.last().and_then(|o| o.policy.as_ref()).map_or(0, |p| p.flow.decisions);
            script.steps.retain(|step| !matches!(step, ScriptStep::SegmentSize { .. }));
            followed += usize::from(Reference.execute(&script).unwrap() != seen);
            windows += seen.windows(2).filter(|w| w[0].cwnd_bytes != w[1].cwnd_bytes).count();
        }
        assert_eq!((ops.len(), dsts.len(), srcs.len()), (20, 7, 10));
        assert!(invocations > 5000 && faulted > 100, "{invocations} invocations, {faulted} faulted");
        assert!(reports > 300 && windows > 300, "{reports} reports, {windows} window changes");
        assert!(followed > 20, "{followed} followed the segment size");
        assert!(
            decided > 2000 && snapshots.len() > 500,
            "{decided} decisions by {} snapshots",
            snapshots.len()
        );
        assert!(native > 200 && levels.len() == 3, "{native} native, levels {levels:?}");
    }
}

//! A guard's conjunction as a chain of tests: the first that fails leaves the clause.
//!
//! Most clauses of most programs do not run on most ACKs, and most of their guards fail by their first test. What a test
//! leaves out must change nothing that anyone sees: temporaries end with their guard, but saturations are counted.

use crate::ir::{Dst, Inst, Op, Src};
use alloc::vec::Vec;

/// A value without which the guard does not hold.
#[derive(Clone, Copy)]
pub(super) struct Test {
    /// The instruction of the guard before which it is tested.
    pub(super) before: usize,
    pub(super) value: Src,
}

/// A guard's tests in order, and the instructions that only join them and so are left out.
pub(super) struct Chain {
    pub(super) tests: Vec<Test>,
    pub(super) joins: Vec<usize>,
}

impl Chain {
    /// Makes the chain of a guard: `insts`, of which `guard` is what counts.
    pub(super) fn new(insts: &[Inst], guard: Src) -> Chain {
        let at_end = Chain { tests: [Test { before: insts.len(), value: guard }].into(), joins: Vec::new() };
        if insts
            .iter()
            .any(|inst| !matches!(inst.dst, Dst::Tmp(_)) || matches!(inst.op, Op::History | Op::Policy))
        {
            return at_end;
        }
        // From here on, whatever is left out is not missed.
        let silent = insts.iter().rposition(is_heard).map_or(0, |last| last + 1);
        let mut chain = Chain { tests: Vec::new(), joins: Vec::new() };
        chain.split(insts, insts.len(), guard);
        for test in &mut chain.tests {
            match test.value {
                // It may be another by then.
                Src::Tmp(_) if test.before < silent => return at_end,
                _ => test.before = test.before.max(silent),
            }
        }
        chain.tests.sort_by_key(|test| test.before);
        chain
    }

    /// Adds the tests of a value as it is before instruction `before`.
    fn split(&mut self, insts: &[Inst], before: usize, value: Src) {
        let computed = match value {
            Src::Tmp(_) => insts[..before].iter().rposition(|inst| is_of(inst, value)),
            _ => None,
        };
        let Some(at) = computed else { return self.tests.push(Test { before: 0, value }) };
        let inst = &insts[at];
        if inst.op == Op::And && reads(&insts[at + 1..], value) <= usize::from(before < insts.len()) {
            self.joins.push(at);
            self.split(insts, at, inst.a);
            self.split(insts, at, inst.b);
        } else {
            self.tests.push(Test { before: at + 1, value });
        }
    }
}

/// Whether an instruction's result is this temporary.
fn is_of(inst: &Inst, tmp: Src) -> bool {
    matches!((inst.dst, tmp), (Dst::Tmp(dst), Src::Tmp(src)) if dst == src)
}

/// Whether an instruction may saturate, which is counted.
fn is_heard(inst: &Inst) -> bool {
    matches!(inst.op, Op::Add | Op::Sub | Op::Mul | Op::Div | Op::Ewma)
}

/// Counts the reads of a temporary before it is another.
fn reads(insts: &[Inst], tmp: Src) -> usize {
    let mut reads = 0;
    for inst in insts {
        reads += usize::from(inst.op != Op::Bind && inst.a == tmp) + usize::from(inst.b == tmp);
        if is_of(inst, tmp) {
            break;
        }
    }
    reads
}

//! Tests the refusals of stock bytecode, and that nothing panics. `oracle/tests/lift.rs` tests the rest against
//! libccp.

use ccplane_program::compile;
use ccplane_program::ir::{INFINITY, RegKind, VerifyError};
use ccplane_program::stock::{LiftError, Lifted, StockReg, lift, lower, measured, reported};
use ccplane_program::vm::{Prims, ProgramState};
use proptest::prelude::*;

const SOURCE: &str = "
    (def (Report (volatile acked 0) (least +infinity)) (gain 3) (volatile seen false))
    (when (|| seen (> Ack.lost_pkts_sample 0))
        (:= twice (* gain 2))
        (:= Cwnd (+ Cwnd (* twice 10)))
        (:= seen false)
        (fallthrough))
    (when true
        (:= Report.acked (+ Report.acked Ack.bytes_acked))
        (:= Report.least (min Report.least Flow.rtt_sample_us))
        (:= seen (!if Flow.was_timeout (> Ack.bytes_acked 1000)))
        (report))";

fn bytes() -> (usize, Vec<u8>) {
    let stock = lower(&compile(SOURCE).unwrap()).unwrap();
    (stock.num_expressions() as usize, stock.bytes().to_vec())
}

/// One expression whose condition has so many instructions, and whose body the rest.
fn assemble(condition: u32, insts: &[[u8; 16]]) -> Result<Lifted, LiftError> {
    let mut bytes = Vec::new();
    for word in [0, condition, condition, insts.len() as u32 - condition] {
        bytes.extend(u32::to_le_bytes(word));
    }
    lift(1, &[bytes, insts.concat()].concat())
}

/// Encodes an instruction of operation, result, left and right.
fn inst(op: u8, [res, left, right]: [(u8, u8); 3]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = op;
    for (at, (kind, index)) in [(1, res), (6, left), (11, right)] {
        (bytes[at], bytes[at + 1]) = (kind, index);
    }
    bytes
}

const ADD: u8 = 0;
const BIND: u8 = 1;
const DEF: u8 = 2;
const IF: u8 = 7;
const FLAG: (u8, u8) = (2, 0);
const CWND: (u8, u8) = (2, 4);
const ONE: (u8, u8) = (1, 1);
const WHEN_TRUE: [u8; 16] = [BIND, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 1, 0, 0, 0];

#[test]
fn registers_keep_their_places_and_lose_their_names() {
    let (expressions, bytes) = bytes();
    let lifted = lift(expressions, &bytes).unwrap();
    let regs: Vec<_> = lifted.program.regs().iter().map(|r| (&r.name[..], r.volatile, r.init)).collect();
    assert_eq!(regs[..2], [("Report.r0", true, 0), ("Report.r1", false, INFINITY)]);
    assert_eq!(regs[2..5], [("c0", false, 3), ("c1", true, 0), ("l0", false, 0)]);
    assert_eq!(lifted.program.report_len(), 2);
    for (reg, kind, index) in [(2, 0, 0), (3, 0, 1), (3, 8, 1)] {
        assert_eq!(lifted.update_reg(StockReg { kind, index }), Some(reg));
    }
    for (kind, index) in [(0, 2), (0, 256), (5, 0), (3, 0), (2, 4)] {
        assert_eq!(lifted.update_reg(StockReg { kind, index }), None, "{kind} {index}");
    }
    assert!(lifted.program.regs()[4..].iter().all(|r| r.kind == RegKind::Local));
    assert_eq!(lifted.stock_reg(4), Some(StockReg { kind: 3, index: 0 }));
    assert_eq!(lifted.stock_reg(64), None);
}

/// libccp's tables hold numbers only: where a truth value is used as one, and the reverse, it is converted.
#[test]
fn numbers_and_truth_values_are_converted() {
    // Cwnd += was_timeout + 1; a guard that is a number.
    let timeout = (4, 14);
    let lifted = assemble(1, &[inst(ADD, [FLAG, ONE, ONE]), inst(ADD, [CWND, timeout, ONE])]).unwrap();
    let mut flow = ProgramState::new(&lifted.program, 100, 0);
    let mut prims = Prims::default();
    flow.invoke(&lifted.program, &prims, &mut [0; ccplane_program::ir::MAX_REGS]);
    assert_eq!(flow.cwnd_bytes, 1);
    prims.set(ccplane_program::ir::Prim::FlowWasTimeout, 1);
    flow.invoke(&lifted.program, &prims, &mut [0; ccplane_program::ir::MAX_REGS]);
    assert_eq!(flow.cwnd_bytes, 2);
    // A comparison into the window, and a sum as the decision to report.
    let (gt, report) = (6, (2, 2));
    let lifted =
        assemble(1, &[WHEN_TRUE, inst(gt, [CWND, CWND, ONE]), inst(ADD, [report, CWND, ONE])]).unwrap();
    let mut flow = ProgramState::new(&lifted.program, 100, 0);
    assert!(flow.invoke(&lifted.program, &Prims::default(), &mut [0; ccplane_program::ir::MAX_REGS]).report);
    assert_eq!(flow.cwnd_bytes, 1);
}

#[test]
fn what_no_compiler_emits_is_refused() {
    let (expressions, bytes) = bytes();
    assert_eq!(lift(expressions, &bytes[1..]), Err(LiftError::Short));
    assert_eq!(lift(bytes.len(), &bytes), Err(LiftError::Short));
    assert_eq!(lift(1, &[[7; 16], [0; 16]].concat()), Err(LiftError::BadRange { clause: 0 }));
    let tmp = |n| (7, n);
    let body = |second| assemble(1, &[WHEN_TRUE, second]);
    for (second, error) in [
        (inst(15, [CWND, ONE, ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [ONE, ONE, ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [(4, 0), ONE, ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [tmp(8), ONE, ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [CWND, (4, 15), ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [CWND, (9, 0), ONE]), LiftError::Malformed { inst: 1 }),
        // Not defined.
        (inst(ADD, [CWND, (0, 0), ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [CWND, (6, 0), ONE]), LiftError::Malformed { inst: 1 }),
        (inst(ADD, [(2, 6), ONE, ONE]), LiftError::Malformed { inst: 1 }),
        // Not written before it is read.
        (inst(ADD, [CWND, tmp(0), ONE]), LiftError::Unsupported { inst: 1 }),
        (inst(ADD, [FLAG, ONE, ONE]), LiftError::Unsupported { inst: 1 }),
        (inst(ADD, [CWND, FLAG, ONE]), LiftError::Unsupported { inst: 1 }),
        (inst(IF, [tmp(0), ONE, ONE]), LiftError::Unsupported { inst: 1 }),
        (inst(DEF, [(0, 0), (0, 0), ONE]), LiftError::Unsupported { inst: 1 }),
    ] {
        assert_eq!(body(second), Err(error), "{second:?}");
    }
    assert_eq!(assemble(1, &[inst(BIND, [CWND, CWND, ONE])]), Err(LiftError::NoFlag { clause: 0 }));
    let def = |index| inst(DEF, [(0, index), (0, index), ONE]);
    assert_eq!(assemble(0, &[def(1)]), Err(LiftError::Definitions));
    assert_eq!(assemble(0, &[def(0), def(0)]), Err(LiftError::Definitions));
    let many: Vec<_> = (0..96).map(def).collect();
    assert!(matches!(assemble(0, &many), Err(LiftError::Verify(VerifyError::TooMany { found: 98, .. }))));
    let local = inst(BIND, [(3, 255), CWND, ONE]);
    assert!(matches!(assemble(0, &[local]), Err(LiftError::Verify(VerifyError::TooMany { .. }))));
}

#[test]
fn measured_undoes_reported() {
    for (value, wire) in [(0, 0), (5, 5), (1 << 62, 1 << 62), (INFINITY, u64::from(u32::MAX))] {
        assert_eq!((measured(value), reported(wire)), (wire, value));
    }
    assert_eq!(measured(-5), 0);
}

proptest! {
    /// A whole program with a few bytes changed lifts or is refused; what lifts runs.
    #[test]
    fn damaged_programs_do_no_harm(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        expressions in 0..5usize,
    ) {
        let (_, mut bytes) = bytes();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(lifted) = lift(expressions, &bytes) {
            let mut flow = ProgramState::new(&lifted.program, 14_480, 0);
            for _ in 0..3 {
                flow.invoke(&lifted.program, &Prims::default(), &mut [0; ccplane_program::ir::MAX_REGS]);
            }
        }
    }

    /// Entries of small numbers, which name what exists.
    #[test]
    fn random_entries_do_no_harm(
        entries in prop::collection::vec((0..16u8, [(0..10u8, 0..4u8), (0..10u8, 0..4u8), (0..10u8, 0..4u8)]), 0..20),
        condition in 0..20u32,
    ) {
        let insts: Vec<_> = entries.into_iter().map(|(op, regs)| inst(op, regs)).collect();
        let condition = condition.min(insts.len() as u32);
        if let Ok(lifted) = assemble(condition, &insts) {
            ProgramState::new(&lifted.program, 14_480, 0).invoke(&lifted.program, &Prims::default(), &mut [0; ccplane_program::ir::MAX_REGS]);
        }
    }
}

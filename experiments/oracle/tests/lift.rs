//! Stock bytecode lifted to our IR, against the real libccp, and against the programs that it was lowered from.
#![allow(clippy::unwrap_used)]

use ccplane_oracle::cases;
use ccplane_oracle::comparison::{CWND, Tally, compare};
use ccplane_oracle::generate::{Dialect, ack, program};
use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::portus::{Verdict, compile as portus};
use ccplane_oracle::rng::Rng;
use ccplane_program::compile;
use ccplane_program::ir::MAX_REGS;
use ccplane_program::stock::{ENTRY_BYTES, LiftError, Lifted, lift, lower};
use ccplane_program::vm::ProgramState;

const ACKS: usize = 40;
const UID: u32 = 7;
/// libccp's number of temporaries among the types of registers.
const TMP: u8 = 7;

/// Runs portus's bytes on libccp, and the program lifted from them on our VM.
fn run(seed: u64, rng: &mut Rng, bytes: &[u8], expressions: usize, lifted: &Lifted, tally: &mut Tally) {
    let mut theirs = Libccp::new();
    let instructions = bytes.len() / ENTRY_BYTES - expressions;
    assert_eq!(theirs.install_raw(UID, expressions as u32, instructions as u32, bytes), 0);
    theirs.change_program(UID, &[]);
    let update_reg = |r| {
        let reg = lifted.stock_reg(r).unwrap();
        assert_eq!(lifted.update_reg(reg), Some(r));
        reg
    };
    // A truth value in the source must stay one.
    let values = |_| 2;
    compare(&lifted.program, &mut theirs, update_reg, values, rng, tally, &format!("seed {seed}"));
}

#[test]
fn what_portus_compiles_does_here_what_it_does_on_libccp() {
    let mut tally = Tally::default();
    for seed in 0..cases(3000) {
        let rng = &mut Rng::new(seed);
        let source = program(rng, Dialect::Portus);
        let Verdict::Bytes(bytes) = portus(&source) else { continue };
        let expressions = source.matches("(when").count();
        match lift(expressions, &bytes) {
            Ok(lifted) => {
                tally.programs += 1;
                run(seed, rng, &bytes, expressions, &lifted, &mut tally);
            }
            // More temporaries than libccp has.
            Err(LiftError::Malformed { inst }) => {
                let inst = &bytes[(expressions + inst) * ENTRY_BYTES..][..ENTRY_BYTES];
                assert!([1, 6, 11].iter().any(|at| inst[*at] == TMP && inst[at + 1] >= 8), "{inst:?}");
                tally.refused += 1;
            }
            Err(other) => panic!("seed {seed}: {other}\n{source}"),
        }
    }
    println!("{tally:?}");
    assert!(tally.refused * 2 < tally.programs, "{tally:?}");
    tally.assert_enough();
}

/// Lowered and lifted again, a program is what it was, also where libccp would abandon it.
#[test]
fn lowering_and_lifting_keep_what_a_program_does() {
    let mut programs = 0;
    for seed in 0..cases(3000) {
        let rng = &mut Rng::new(seed ^ 0x11f7);
        let source = program(rng, Dialect::Stock);
        let original = compile(&source).unwrap();
        let Ok(stock) = lower(&original) else { continue };
        let lifted = lift(stock.num_expressions() as usize, stock.bytes()).unwrap();
        programs += 1;
        let mut now_us = 1000;
        let mut flows = [&original, &lifted.program].map(|p| ProgramState::new(p, i64::from(CWND), now_us));
        for n in 0..ACKS {
            let prims = ack(rng, now_us as u64);
            let mut reports = [[0; MAX_REGS]; 2];
            let [ours, again] = &mut flows;
            let first = ours.invoke(&original, &prims, &mut reports[0]);
            let second = again.invoke(&lifted.program, &prims, &mut reports[1]);
            let context = || format!("seed {seed}, ACK {n}\n{source}");
            assert_eq!(first, second, "{}", context());
            let windows = [&ours, &again].map(|f| (f.cwnd_bytes, f.rate_bytes_per_s));
            assert_eq!(windows[0], windows[1], "{}", context());
            for (r, decl) in original.regs().iter().enumerate() {
                let reg = stock.reg(r as u8).unwrap();
                let lifted_reg = (0..MAX_REGS as u8)
                    .find(|l| {
                        lifted
                            .stock_reg(*l)
                            .is_some_and(|l| (l.index, same_file(l.kind, reg.kind)) == (reg.index, true))
                    })
                    .unwrap();
                let (a, b) = (ours.regs[r], again.regs[usize::from(lifted_reg)]);
                assert_eq!(a, b, "{}; {}", decl.name, context());
            }
            if first.report {
                let len = original.report_len();
                assert_eq!(reports[0][..len], reports[1][..len], "{}", context());
            }
            now_us += rng.below(3000) as i64;
        }
    }
    assert!(programs * 10 > cases(3000) * 9, "{programs}");
}

/// Whether libccp keeps registers of both kinds in one array: volatile or not.
fn same_file(a: u8, b: u8) -> bool {
    a == b || matches!((a, b), (0, 8) | (6, 5))
}

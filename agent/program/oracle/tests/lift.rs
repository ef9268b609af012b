//! Stock bytecode lifted to our IR, against the real libccp, and against the programs that it was lowered from.
#![allow(clippy::unwrap_used)]

use ccplane_oracle::cases;
use ccplane_oracle::generate::{Dialect, ack, program};
use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::model::Model;
use ccplane_oracle::portus::{Verdict, compile as portus};
use ccplane_oracle::rng::Rng;
use ccplane_program::compile;
use ccplane_program::ir::{MAX_REGS, RegKind};
use ccplane_program::stock::{ENTRY_BYTES, LiftError, Lifted, lift, lower, reported};
use ccplane_program::vm::Flow;

const ACKS: usize = 40;
const UID: u32 = 7;
const CWND: u32 = 14_480;
/// libccp's number of temporaries among the types of registers.
const TMP: u8 = 7;

#[derive(Default, Debug)]
struct Tally {
    programs: u64,
    refused: u64,
    acks: u64,
    in_domain: u64,
    reports: u64,
}

/// Runs portus's bytes on libccp, and what we lift from them on our VM.
fn run(seed: u64, rng: &mut Rng, bytes: &[u8], expressions: usize, lifted: &Lifted, tally: &mut Tally) {
    let program = &lifted.program;
    let listing = ccplane_program::disasm::disassemble(program);
    let mut theirs = Libccp::new();
    let instructions = bytes.len() / ENTRY_BYTES - expressions;
    assert_eq!(theirs.install_raw(UID, expressions as u32, instructions as u32, bytes), 0);
    theirs.change_program(UID, &[]);
    let mut now_us = 1 + rng.below(1000) as u64;
    let (mut cwnd, mut rate) = (CWND, 0u64);
    let mut ours = Flow::new(program, i64::from(cwnd), now_us as i64);
    let mut model = Model::new(program, now_us);
    let controls: Vec<u8> = (0..program.regs().len() as u8)
        .filter(|r| program.regs()[usize::from(*r)].kind == RegKind::Control)
        .collect();
    for n in 0..ACKS {
        if !controls.is_empty() && rng.one_in(10) {
            let r = *rng.pick(&controls);
            // What is a truth value in the source must stay one.
            let value = rng.below(2) as u64;
            let reg = lifted.stock_reg(r).unwrap();
            assert_eq!(lifted.update_reg(reg), Some(r));
            theirs.update(&[(reg, value)]);
            model.set(r, value);
            ours.regs[usize::from(r)] = value as i64;
        }
        let prims = ack(rng, now_us);
        let got = theirs.invoke(&prims, cwnd, rate);
        let want = model.invoke(program, &prims, cwnd, rate);
        let context = || format!("seed {seed}, ACK {n}: {prims:?}\n{got:?}\n{want:?}\n{listing}");
        tally.acks += 1;
        assert_eq!((got.code, &got.report), (want.code, &want.report), "{}", context());
        if got.code == 0 {
            assert_eq!(got.cwnd, (want.cwnd > 0).then_some(want.cwnd as u32), "{}", context());
            assert_eq!(got.rate, (want.rate != 0).then_some(want.rate as u32), "{}", context());
        }
        let mut report = [0; MAX_REGS];
        let outcome = ours.invoke(program, &prims, &mut report);
        if model.in_domain {
            tally.in_domain += 1;
            assert_eq!(outcome.report, got.report.is_some(), "{}", context());
            if let Some(theirs) = &got.report {
                tally.reports += 1;
                let theirs: Vec<i64> = theirs.iter().map(|v| reported(*v)).collect();
                assert_eq!(report[..program.report_len()], theirs, "{}", context());
            }
        }
        let cut = want.cwnd >= u64::from(u32::MAX)
            || want.rate >= u64::from(u32::MAX)
            || (want.rate == 0 && rate != 0);
        model.in_domain &= !(cut && got.code == 0);
        cwnd = got.cwnd.unwrap_or(cwnd);
        rate = got.rate.map_or(rate, u64::from);
        now_us += rng.below(3000) as u64;
    }
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
    assert!(tally.in_domain * 3 > tally.acks && tally.reports * 10 > tally.in_domain, "{tally:?}");
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
        let mut flows = [&original, &lifted.program].map(|p| Flow::new(p, i64::from(CWND), now_us));
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

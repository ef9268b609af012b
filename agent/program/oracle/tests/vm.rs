//! Our VM, and a model of libccp's arithmetic, against the real libccp on random programs and ACKs.

use ccplane_oracle::generate::{Dialect, ack, program};
use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::model::Model;
use ccplane_oracle::rng::Rng;
use ccplane_oracle::{cases, libccp};
use ccplane_program::compile;
use ccplane_program::ir::{MAX_REGS, Program, RegKind, Type};
use ccplane_program::stock::{Refusal, Stock, lower, reported};
use ccplane_program::vm::Flow;

const ACKS: usize = 40;
const UID: u32 = 7;

#[derive(Default, Debug)]
struct Tally {
    programs: u64,
    refused: u64,
    acks: u64,
    in_domain: u64,
    aborts: u64,
    reports: u64,
}

/// Runs one program; every disagreement names the seed.
fn run(seed: u64, rng: &mut Rng, source: &str, program: &Program, stock: &Stock, tally: &mut Tally) {
    let context = || format!("seed {seed}\n{source}\n{}", ccplane_program::disasm::disassemble(program));
    let mut theirs = Libccp::new();
    assert_eq!(theirs.install(UID, stock), 0, "{}", context());
    theirs.change_program(UID, &[]);
    let mut now_us = 1 + rng.below(1000) as u64;
    let (mut cwnd, mut rate) = (14480u32, 0u64);
    let mut ours = Flow::new(program, i64::from(cwnd), now_us as i64);
    let mut model = Model::new(program, now_us);
    let controls: Vec<u8> = (0..program.regs().len() as u8)
        .filter(|r| program.regs()[usize::from(*r)].kind == RegKind::Control)
        .collect();
    for n in 0..ACKS {
        if !controls.is_empty() && rng.one_in(10) {
            let r = *rng.pick(&controls);
            let is_bool = program.regs()[usize::from(r)].ty == Type::Bool;
            let value = rng.below(if is_bool { 2 } else { 5000 }) as u64;
            theirs.update(&[(libccp::update_reg(stock, Some(r)), value)]);
            model.set(r, value);
            ours.regs[usize::from(r)] = value as i64;
        }
        let prims = ack(rng, now_us);
        let got = theirs.invoke(&prims, cwnd, rate);
        let want = model.invoke(program, &prims, cwnd, rate);
        let context = || format!("ACK {n}: {prims:?}\n{got:?}\n{want:?}\n{}", context());
        tally.acks += 1;

        // The model is libccp, aborts and wrong products included.
        assert_eq!((got.code, &got.report), (want.code, &want.report), "{}", context());
        if got.code == 0 {
            assert_eq!(got.cwnd, (want.cwnd > 0).then_some(want.cwnd as u32), "{}", context());
            assert_eq!(got.rate, (want.rate != 0).then_some(want.rate as u32), "{}", context());
        } else {
            tally.aborts += 1;
            assert!(!model.in_domain, "{}", context());
        }

        // Our VM is the model for as long as no value left the range that both show alike.
        let mut report = [0; MAX_REGS];
        let outcome = ours.invoke(program, &prims, &mut report);
        if model.in_domain {
            tally.in_domain += 1;
            assert_eq!(outcome.report, got.report.is_some(), "{}", context());
            if let Some(theirs) = &got.report {
                tally.reports += 1;
                let theirs: Vec<i64> = theirs.iter().map(|v| reported(*v)).collect();
                assert_eq!(report[..stock.report_len()], theirs, "{}", context());
            }
            let cut = |v: u64| if v == u64::from(u32::MAX) { i64::MAX } else { v as i64 };
            let want_cwnd = if want.cwnd == 0 { i64::from(cwnd) } else { cut(want.cwnd).min(1 << 40) };
            assert_eq!(ours.cwnd_bytes, want_cwnd, "{}", context());
            assert_eq!(ours.rate_bytes_per_s, cut(want.rate).min(1 << 40), "{}", context());
            assert_eq!(ours.faults, 0, "{}", context());
        }
        // libccp's setters take 32 bits, and leave the rate alone when it is 0.
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
fn random_programs_do_the_same_on_libccp() {
    let mut tally = Tally::default();
    for seed in 0..cases(4000) {
        let rng = &mut Rng::new(seed);
        let dialect = if rng.one_in(2) { Dialect::Portus } else { Dialect::Stock };
        let source = program(rng, dialect);
        let compiled =
            compile(&source).unwrap_or_else(|d| panic!("seed {seed}: {}", d[0].render("x", &source)));
        match lower(&compiled) {
            Ok(stock) => {
                tally.programs += 1;
                run(seed, rng, &source, &compiled, &stock, &mut tally);
            }
            Err(Refusal::TooMany { .. } | Refusal::TooManyTmps { .. }) => tally.refused += 1,
            Err(refusal) => panic!("seed {seed}: {refusal}\n{source}"),
        }
    }
    println!("{tally:?}");
    // A test that compares little proves little.
    assert!(tally.refused * 10 < tally.programs, "{tally:?}");
    assert!(tally.in_domain * 3 > tally.acks && tally.reports * 10 > tally.in_domain, "{tally:?}");
    assert!(tally.aborts > tally.programs / 10, "{tally:?}");
}

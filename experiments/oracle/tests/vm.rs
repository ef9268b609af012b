//! Our VM, and a model of libccp's arithmetic, against the real libccp on random programs and ACKs.

use ccplane_oracle::comparison::{Tally, compare};
use ccplane_oracle::generate::{Dialect, program};
use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::rng::Rng;
use ccplane_oracle::{cases, libccp};
use ccplane_program::compile;
use ccplane_program::ir::{Program, Type};
use ccplane_program::stock::{Refusal, Stock, lower};

const UID: u32 = 7;

/// Runs one program; every disagreement names the seed.
fn run(seed: u64, rng: &mut Rng, source: &str, program: &Program, stock: &Stock, tally: &mut Tally) {
    let context = format!("seed {seed}\n{source}");
    let mut theirs = Libccp::new();
    assert_eq!(theirs.install(UID, stock), 0, "{context}");
    theirs.change_program(UID, &[]);
    let update_reg = |r| libccp::update_reg(stock, Some(r));
    let values = |r| if program.regs()[usize::from(r)].ty == Type::Bool { 2 } else { 5000 };
    compare(program, &mut theirs, update_reg, values, rng, tally, &context);
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
    assert!(tally.refused * 10 < tally.programs, "{tally:?}");
    tally.assert_enough();
    assert!(tally.aborts > tally.programs / 10, "{tally:?}");
}

//! The C half against the reference VM and the reference inference, bit for bit, under AddressSanitizer and
//! UndefinedBehaviorSanitizer.
//!
//! `CCPLANE_CASES` random programs; `make module-differential` asks for a million.

use ccplane_contract::Field;
use ccplane_contract::suite::{Executor, Reference, Script, ScriptStep, cases, conform, random};
use ccplane_module::user::Interpreter;
use ccplane_program::ir::{Clause, Dst, Inst, Op, Program, RegDecl, RegKind, Src, Type};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Random programs of a test run.
const CASES: u64 = 30_000;
/// Scripts of one request.
const BATCH: u64 = 500;

fn cases_wanted() -> u64 {
    std::env::var("CCPLANE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES)
}

#[test]
fn it_passes_the_suite() {
    let Some(mut interpreter) = crate::common::sanitized("the module's interpreter on the suite") else {
        return;
    };
    let result = conform(&mut interpreter, 500, 17);
    assert!(result.failed.is_empty(), "{result}");
    assert!(result.passed.len() > 500 + cases::all().unwrap().len() / 2, "{result}");
}

/// A program of one clause, with more different constants than there are cells, most of them in pairs.
fn many_constants(rng: &mut ChaCha8Rng) -> Program {
    let reg = |n| RegDecl {
        name: format!("c{n}"),
        kind: RegKind::Control,
        ty: Type::Num,
        volatile: false,
        init: n,
    };
    let ops = [Op::Add, Op::Sub, Op::Mul, Op::Div, Op::Min, Op::Max, Op::MaxWrap, Op::Ewma, Op::Bind];
    let insts: Vec<Inst> = (0..400)
        .map(|_| {
            let mut src = || match rng.next_u32() % 6 {
                0 => Src::Reg((rng.next_u32() % 8) as u8),
                _ => Src::Imm(rng.next_u64() as i64 >> (rng.next_u32() % 60)),
            };
            let (a, b) = (src(), src());
            let dst = match rng.next_u32() % 10 {
                0 => Dst::Micros,
                1 => Dst::Cwnd,
                n => Dst::Reg((n - 2) as u8),
            };
            Inst { op: ops[rng.next_u32() as usize % ops.len()], dst, a, b }
        })
        .collect();
    let clause = Clause { start: 0, guard_insts: 0, body_insts: 400, guard: Src::Bool(true) };
    Program::new((0..8).map(reg).collect(), insts, vec![clause], Vec::new()).unwrap()
}

#[test]
fn constants_without_a_cell_count_as_others_do() {
    let check = "the module's interpreter on many constants";
    let Some(mut interpreter) = crate::common::sanitized(check) else { return };
    for seed in 0..100 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let programs = vec![many_constants(&mut rng)];
        let steps = (0..5).map(|_| ScriptStep::Invoke(random::prims(&mut rng))).collect();
        let script = Script::new(programs, 14_480, steps);
        assert_eq!(interpreter.execute(&script).unwrap(), Reference.execute(&script).unwrap(), "seed {seed}");
    }
}

#[test]
fn only_control_registers_are_set_from_outside() {
    let check = "the module's interpreter on fields of all kinds";
    let Some(mut interpreter) = crate::common::sanitized(check) else { return };
    let mut left_alone = 0;
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let program = random::program(&mut rng, &random::Shape::default()).unwrap();
        left_alone += program.regs().iter().filter(|reg| reg.kind != RegKind::Control).count();
        let fields = (0..=u8::MAX).map(Field::Reg).chain([Field::Cwnd, Field::Rate]);
        let update = ScriptStep::Update(fields.map(|field| (field, random::number(&mut rng))).collect());
        let steps = vec![update, ScriptStep::Invoke(random::prims(&mut rng))];
        let script = Script::new(vec![program], 14_480, steps);
        assert_eq!(interpreter.execute(&script).unwrap(), Reference.execute(&script).unwrap(), "seed {seed}");
    }
    assert!(left_alone > 100, "{left_alone} registers of other kinds");
}

/// Shapes of programs in turn: small ones, with policies, and as large as they may get.
fn script(seed: u64) -> Script {
    let shape = match seed % 50 {
        0 => random::Shape {
            regs_per_kind: 96,
            clauses: 64,
            block_insts: 40,
            operations: 10,
            ..Default::default()
        },
        n => random::Shape { policies: n % 3 == 0, ..Default::default() },
    };
    random::script(&mut ChaCha8Rng::seed_from_u64(seed), &shape).unwrap()
}

/// Runs scripts in both; the number of their programs and of invocations.
fn compare(interpreter: &mut Interpreter, seeds: std::ops::Range<u64>) -> (u64, u64) {
    let scripts: Vec<Script> = seeds.clone().map(script).collect();
    let found = interpreter.run(&scripts).unwrap_or_else(|e| panic!("seeds {seeds:?}: {e}"));
    let mut invocations = 0;
    for ((script, found), seed) in scripts.iter().zip(&found).zip(seeds) {
        let expected = Reference.execute(script).unwrap();
        invocations += found.len() as u64;
        let differs = expected.iter().zip(found).position(|(e, f)| e != f);
        if let Some(n) = differs {
            panic!("seed {seed}, invocation {n}: expected {:?}, found {:?}", expected[n], found[n]);
        }
        assert_eq!(expected.len(), found.len(), "seed {seed}");
    }
    (scripts.iter().map(|script| script.programs.len() as u64).sum(), invocations)
}

#[test]
fn random_programs_give_the_references_bits() {
    let check = "the module's interpreter on random programs";
    let Some(mut interpreter) = crate::common::sanitized(check) else { return };
    let (wanted, mut programs, mut invocations, mut seed) = (cases_wanted(), 0, 0, 1 << 32);
    while programs < wanted {
        let (more, ran) = compare(&mut interpreter, seed..seed + BATCH);
        (programs, invocations, seed) = (programs + more, invocations + ran, seed + BATCH);
    }
    println!("{programs} programs, {invocations} invocations");
    assert!(invocations > programs, "{invocations} invocations of {programs} programs");
}

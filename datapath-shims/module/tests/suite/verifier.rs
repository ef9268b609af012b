//! The C half's verifier against the project's own: the same programs are accepted, and the same ones refused, at the
//! same place for the same reason. What is accepted runs within its memory, on any numbers, and ends.

use ccplane_contract::suite::random;
use ccplane_module::user::{CVerdict, Interpreter};
use ccplane_program::ir::{
    Clause, Dst, HistoryDecl, Inst, MAX_CLAUSES, MAX_INSTS, MAX_REGS, MAX_TMPS, Op, Prim, Program, RegDecl,
    RegKind, Src, Type, VerifyError,
};
use ccplane_wire::DecodeError;
use ccplane_wire::v2::{decode_program, encode_program};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Mutants of a test run.
const CASES: u64 = 30_000;
const BATCH: usize = 2_000;
/// ACKs that an accepted program runs on.
const RUNS: u64 = 16;

/// Codes and places of `vm.h`.
const SHORT: u32 = 1;
const LONG: u32 = 2;
const TOO_MANY: u32 = 3;
const UNKNOWN: u32 = 4;
const TEXT: u32 = 5;
const VARINT: u32 = 6;
const BAD_INDEX: u32 = 7;
const BAD_TYPE: u32 = 8;
const BAD_CLAUSE: u32 = 9;
const UNSET_TMP: u32 = 10;
const REG_ORDER: u32 = 11;
const BAD_INIT: u32 = 12;
const BAD_HISTORY: u32 = 13;
const AT_REG: u32 = 1;
const AT_HISTORY: u32 = 2;
const AT_CLAUSE: u32 = 3;
const AT_INST: u32 = 4;

/// The answers of the C half that stand for Rust's `error`: codes, places, and the index, where it tells one.
fn expected(error: &DecodeError) -> (&'static [u32], &'static [u32], Option<usize>) {
    const WHOLE: &[u32] = &[0];
    match error {
        DecodeError::Short { .. } => (&[SHORT], WHOLE, Some(0)),
        DecodeError::Length { .. } => (&[LONG], WHOLE, Some(0)),
        DecodeError::TooMany { .. } => (&[TOO_MANY], WHOLE, Some(0)),
        DecodeError::Unknown { .. } => (&[UNKNOWN, VARINT], WHOLE, Some(0)),
        DecodeError::Text { .. } => (&[TEXT], WHOLE, Some(0)),
        DecodeError::At { what, index, error } => {
            let place: &[u32] = match *what {
                "register" => &[AT_REG],
                "history" => &[AT_HISTORY],
                "clause" => &[AT_CLAUSE],
                "instruction" => &[AT_INST],
                other => panic!("an unknown place: {other}"),
            };
            (expected(error).0, place, Some(*index))
        }
        DecodeError::Program(error) => verify_error(error),
        other => panic!("no error of a program: {other}"),
    }
}

fn verify_error(error: &VerifyError) -> (&'static [u32], &'static [u32], Option<usize>) {
    // The reference names the clause of a wrong guard as if it were an instruction.
    const INST: &[u32] = &[AT_INST, AT_CLAUSE];
    match error {
        VerifyError::TooMany { .. } => (&[TOO_MANY], &[0, AT_HISTORY], None),
        VerifyError::BadIndex { inst } => (&[BAD_INDEX], INST, Some(*inst)),
        VerifyError::BadType { inst } => (&[BAD_TYPE], INST, Some(*inst)),
        VerifyError::UnsetTmp { inst } => (&[UNSET_TMP], INST, Some(*inst)),
        VerifyError::BadClause { clause } => (&[BAD_CLAUSE], &[AT_CLAUSE], Some(*clause)),
        VerifyError::RegOrder => (&[REG_ORDER], &[0], Some(0)),
        VerifyError::BadInit { reg } => (&[BAD_INIT], &[AT_REG], Some(*reg)),
        VerifyError::BadHistory { history } => (&[BAD_HISTORY], &[AT_HISTORY], Some(*history)),
        other => panic!("an unknown refusal: {other}"),
    }
}

/// Holds verdicts against the project's decoder; the number of accepted programs, and the codes that were seen.
fn compare(interpreter: &mut Interpreter, all: &[Vec<u8>], seed: u64) -> (usize, Vec<u32>) {
    let verdicts = interpreter.verify(all, RUNS, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    let (mut accepted, mut codes) = (0, Vec::new());
    for (bytes, found) in all.iter().zip(verdicts) {
        codes.push(found.code);
        // A program of another hook, which datapaths on packets take.
        if let [regs, histories, ..] = bytes[..]
            && usize::from(regs) <= MAX_REGS
            && histories >> 6 != 0
        {
            assert_eq!((found.code, found.place), (UNKNOWN, 0), "{bytes:?}");
            continue;
        }
        match decode_program(bytes) {
            Ok(_) => {
                assert_eq!(found, CVerdict { code: 0, place: 0, index: 0 }, "{bytes:?}");
                accepted += 1;
            }
            Err(error) => {
                let (codes, places, index) = expected(&error);
                let same = codes.contains(&found.code) && places.contains(&found.place);
                let index = index.is_none_or(|index| index == found.index as usize);
                assert!(same && index, "{error}: {found:?}, {bytes:?}");
            }
        }
    }
    (accepted, codes)
}

fn encode(program: &Program) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_program(program, &mut bytes).unwrap();
    bytes
}

/// Changes, removes, repeats and inserts bytes; small values are more often of a kind that means something.
fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.next_u32() % 3 {
        let at = rng.next_u32() as usize % (bytes.len() + 1);
        let byte = (rng.next_u32() >> (rng.next_u32() % 8)) as u8
            % if rng.next_u32().is_multiple_of(2) { 255 } else { 12 };
        match rng.next_u32() % 8 {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 if at < bytes.len() => bytes[at] ^= 1 << (byte % 8),
            4 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1),
            _ if at < bytes.len() => bytes[at] = byte,
            _ => bytes.push(byte),
        }
    }
}

fn cases_wanted() -> u64 {
    std::env::var("CCPLANE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES)
}

#[test]
fn mutated_programs_get_the_projects_verdict() {
    let Some(mut interpreter) = crate::common::sanitized("the module's verifier on mutants") else { return };
    let (mut accepted, mut seen, mut done) = (0, [0u64; 14], 0);
    while done < cases_wanted() {
        let mut rng = ChaCha8Rng::seed_from_u64(done);
        let mut all = Vec::new();
        while all.len() < BATCH {
            let shape = random::Shape { policies: rng.next_u32() % 2 == 0, ..random::Shape::default() };
            let whole = encode(&random::program(&mut rng, &shape).unwrap());
            for n in 0..10 {
                let mut bytes = whole.clone();
                if n > 0 {
                    mutate(&mut rng, &mut bytes);
                }
                all.push(bytes);
            }
        }
        let (more, codes) = compare(&mut interpreter, &all, done);
        accepted += more;
        codes.iter().for_each(|code| seen[*code as usize] += 1);
        done += BATCH as u64;
    }
    println!("{done} mutants, {accepted} accepted; by code {seen:?}");
    assert!(accepted as u64 > done / 8, "{accepted} of {done} were accepted");
    // Registers out of order, for one, take two right changes at once: `each_rule_is_kept_at_its_place` has those.
    assert!(seen.iter().filter(|n| **n > 0).count() >= 11, "{seen:?}");
}

#[test]
fn random_bytes_get_the_projects_verdict() {
    let Some(mut interpreter) = crate::common::sanitized("the module's verifier on random bytes") else {
        return;
    };
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let all: Vec<Vec<u8>> = (0..20_000)
        .map(|_| {
            let small = rng.next_u32() % 2 == 0;
            (0..rng.next_u32() % 200)
                .map(|_| if small { rng.next_u32() as u8 % 8 } else { rng.next_u32() as u8 })
                .collect()
        })
        .collect();
    compare(&mut interpreter, &all, 3);
}

#[test]
fn every_shipped_program_is_accepted() {
    let Some(mut interpreter) = crate::common::sanitized("the module's verifier on shipped programs") else {
        return;
    };
    let sources = ccplane_algs::all().into_iter().flat_map(|algorithm| algorithm.programs());
    let all: Vec<Vec<u8>> = sources.map(|p| encode(&ccplane_program::compile(p.source).unwrap())).collect();
    assert!(all.len() >= 10, "{} programs", all.len());
    assert_eq!(compare(&mut interpreter, &all, 1).0, all.len());
}

fn number(kind: RegKind, name: String) -> RegDecl {
    RegDecl { name, kind, ty: Type::Num, volatile: kind != RegKind::Local, init: 0 }
}

/// Every limit at once: what the IR allows must fit what the C half has room for.
#[test]
fn the_largest_programs_are_accepted() {
    let Some(mut interpreter) = crate::common::sanitized("the module's verifier on the largest programs")
    else {
        return;
    };
    let regs: Vec<RegDecl> = (0..MAX_REGS).map(|n| number(RegKind::Report, format!("Report.r{n}"))).collect();
    let big = |n: usize| Src::Imm(i64::MAX / 3 + n as i64);
    // Different constants everywhere, all primitives, all temporaries; each instruction moves Micros.
    let insts: Vec<Inst> = (0..MAX_INSTS)
        .map(|n| match n % 16 {
            0 => Inst { op: Op::Bind, dst: Dst::Tmp((n / 16 % MAX_TMPS) as u8), a: big(n), b: big(n) },
            1 => Inst {
                op: Op::Add,
                dst: Dst::Reg((n % MAX_REGS) as u8),
                a: Src::Prim(Prim::ACK[n / 16 % 14]),
                b: big(n),
            },
            _ => Inst { op: Op::Add, dst: Dst::Micros, a: big(n), b: big(MAX_INSTS + n) },
        })
        .collect();
    let per_clause = MAX_INSTS / MAX_CLAUSES;
    let clauses: Vec<Clause> = (0..MAX_CLAUSES)
        .map(|n| Clause {
            start: (n * per_clause) as u16,
            guard_insts: 0,
            body_insts: per_clause as u16,
            guard: Src::Prim(Prim::FlowWasTimeout),
        })
        .collect();
    let histories = vec![HistoryDecl { depth: 32, regs: vec![0, 95] }];
    let largest = Program::new(regs.clone(), insts, clauses.clone(), histories).unwrap();
    let one = |guard| Clause { start: 0, guard_insts: 0, body_insts: 0, guard };
    let all = [
        encode(&largest),
        encode(&Program::new(Vec::new(), Vec::new(), Vec::new(), Vec::new()).unwrap()),
        encode(
            &Program::new(regs, Vec::new(), vec![one(Src::Bool(false)); MAX_CLAUSES], Vec::new()).unwrap(),
        ),
    ];
    assert_eq!(compare(&mut interpreter, &all, 1).0, all.len());
}

/// Each rule of the IR by a program that breaks it and no other, at a known place.
#[test]
fn each_rule_is_kept_at_its_place() {
    let Some(mut interpreter) = crate::common::sanitized("the module's verifier on each rule") else {
        return;
    };
    // Header: registers, histories, clauses, instructions (16 bits).
    let reg = |flags: u8, init: u8| [1, 0, b'a', flags, init];
    let program = |head: [u8; 4], parts: &[&[u8]]| {
        let mut bytes = vec![head[0], head[1], head[2], head[3], 0];
        parts.iter().for_each(|part| bytes.extend(*part));
        bytes
    };
    let clause: &[u8] = &[0, 0, 1, 0, 2];
    let cases: Vec<(&str, Vec<u8>, [u32; 3])> = vec![
        ("nothing", vec![], [SHORT, 0, 0]),
        ("a byte behind", vec![0, 0, 0, 0, 0, 0], [LONG, 0, 0]),
        ("97 registers", vec![97, 0, 0, 0, 0], [TOO_MANY, 0, 0]),
        ("a name that is not text", program([1, 0, 0, 0], &[&[1, 0, 0xff, 0, 0]]), [TEXT, AT_REG, 0]),
        ("an unknown kind", program([1, 0, 0, 0], &[&reg(3, 0)]), [UNKNOWN, AT_REG, 0]),
        ("an overlong number", program([1, 0, 0, 0], &[&[0, 0, 0, 0x80, 0]]), [VARINT, AT_REG, 0]),
        ("locals before reports", program([2, 0, 0, 0], &[&reg(2, 0), &reg(0, 0)]), [REG_ORDER, 0, 0]),
        ("a local that starts at 1", program([1, 0, 0, 0], &[&reg(2, 2)]), [BAD_INIT, AT_REG, 0]),
        ("a bool that starts at 2", program([2, 0, 0, 0], &[&reg(0, 0), &reg(4, 4)]), [BAD_INIT, AT_REG, 1]),
        ("a history of nothing", program([1, 1, 0, 0], &[&reg(0, 0), &[1, 0]]), [BAD_HISTORY, AT_HISTORY, 0]),
        ("a history for ever", program([1, 1, 0, 0], &[&reg(0, 0), &[33, 1, 0]]), [TOO_MANY, AT_HISTORY, 0]),
        ("65 cells", program([1, 3, 0, 0], &[&reg(0, 0), &[32, 1, 0, 32, 1, 0, 1, 1, 0]]), [TOO_MANY, 0, 0]),
        (
            "a history of no register",
            program([1, 1, 0, 0], &[&reg(0, 0), &[1, 1, 1]]),
            [BAD_HISTORY, AT_HISTORY, 0],
        ),
        ("a guard that is a number", program([0, 0, 1, 0], &[&[0, 0, 0, 0, 6]]), [BAD_TYPE, AT_CLAUSE, 0]),
        ("a clause too long", program([0, 0, 1, 0], &[&[0, 0, 1, 0, 2]]), [BAD_CLAUSE, AT_CLAUSE, 0]),
        (
            "no clause for it",
            program([1, 0, 0, 1], &[&reg(0, 0), &[0, 0, 0, 1, 6]]),
            [BAD_CLAUSE, AT_CLAUSE, 0],
        ),
        (
            "an unknown operation",
            program([1, 0, 1, 1], &[&reg(0, 0), clause, &[20, 0, 0, 6, 6]]),
            [UNKNOWN, AT_INST, 0],
        ),
        (
            "a register that is none",
            program([1, 0, 1, 1], &[&reg(0, 0), clause, &[0, 0, 1, 6, 6]]),
            [BAD_INDEX, AT_INST, 0],
        ),
        (
            "a bit plus a number",
            program([1, 0, 1, 1], &[&reg(0, 0), clause, &[1, 0, 0, 1, 6]]),
            [BAD_TYPE, AT_INST, 0],
        ),
        (
            "an unset temporary",
            program([1, 0, 1, 1], &[&reg(0, 0), clause, &[0, 0, 0, 6, 4, 0]]),
            [UNSET_TMP, AT_INST, 0],
        ),
        ("temporary 16", program([0, 0, 1, 1], &[clause, &[0, 1, 16, 6, 6]]), [BAD_INDEX, AT_INST, 0]),
        (
            "a slot that is none",
            program([0, 0, 1, 1], &[clause, &[19, 5, 0, 32, 6]]),
            [BAD_INDEX, AT_INST, 0],
        ),
        (
            "a slot in a register",
            program([1, 0, 1, 1], &[&reg(0, 0), clause, &[19, 5, 3, 0, 6]]),
            [BAD_TYPE, AT_INST, 0],
        ),
    ];
    let all: Vec<Vec<u8>> = cases.iter().map(|(_, bytes, _)| bytes.clone()).collect();
    compare(&mut interpreter, &all, 1);
    let verdicts = interpreter.verify(&all, 0, 1).unwrap();
    for ((what, _, [code, place, index]), found) in cases.into_iter().zip(verdicts) {
        assert_eq!(found, CVerdict { code, place, index }, "{what}");
    }
}

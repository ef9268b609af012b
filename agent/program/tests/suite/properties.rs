//! Tests properties of any text, any program and any ACK.

use crate::common::{Choices, compiler_answers, program, vm_does_what_the_text_says};
use ccplane_program::ir::{
    Clause, Dst, Hook, Inst, MAX_REGS, Op, Prim, Program, RegDecl, RegKind, Src, Type,
};
use ccplane_program::vm::ProgramState;
use proptest::collection::vec;
use proptest::prelude::*;

const TOKENS: [&str; 46] = [
    "(",
    ")",
    "(",
    ")",
    "(def ",
    "(when ",
    "(Report ",
    "(volatile ",
    "(report)",
    "(fallthrough)",
    "(history ",
    "(policy ",
    "(:= ",
    "(bind ",
    "(if ",
    "(!if ",
    "(ewma ",
    "(+ ",
    "(- ",
    "(>= ",
    "(wrapped_max ",
    "(&& ",
    "true",
    "false",
    "+infinity",
    "-1",
    "0",
    "5",
    "99999999999999999999",
    "Report.a",
    "a",
    "b",
    "Cwnd",
    "Rate",
    "Priority",
    "(hook send)",
    "Micros",
    "Ack.now",
    "Flow.was_timeout",
    "__x",
    "# comment\n",
    " ",
    "\n",
    "\t",
    "é",
    "-",
];

/// Replaces, removes and inserts bytes, at character boundaries.
fn mutate(text: &str, edits: &[(u16, u8, u8)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for &(at, kind, byte) in edits {
        let at = usize::from(at) % (chars.len() + 1);
        let token = TOKENS[usize::from(byte) % TOKENS.len()];
        match kind % 4 {
            0 if at < chars.len() => drop(chars.remove(at)),
            1 if at < chars.len() => chars[at] = char::from(byte),
            2 => drop(chars.splice(at..at, token.chars())),
            _ => chars.truncate(at.max(chars.len() / 2)),
        }
    }
    chars.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gets_an_answer(text in any::<String>()) {
        compiler_answers(&text);
    }

    #[test]
    fn any_tokens_get_an_answer(tokens in vec(proptest::sample::select(&TOKENS[..]), 0..60)) {
        compiler_answers(&tokens.join(" "));
        compiler_answers(&tokens.concat());
    }

    #[test]
    fn any_mutation_of_a_program_gets_an_answer(
        bytes in vec(any::<u8>(), 0..300),
        edits in vec(any::<(u16, u8, u8)>(), 1..6),
    ) {
        let text = program(&mut Choices(&bytes)).to_string();
        compiler_answers(&text);
        compiler_answers(&mutate(&text, &edits));
    }

    #[test]
    fn the_vm_does_what_the_text_says(bytes in vec(any::<u8>(), 0..900)) {
        vm_does_what_the_text_says(&mut Choices(&bytes), 8);
    }

    #[test]
    fn any_verified_program_runs(bytes in vec(any::<u8>(), 20..400)) {
        let choices = &mut Choices(&bytes);
        let program = verified(choices);
        let mut flow = ProgramState::new(&program, 14480, 0);
        flow.regs = std::array::from_fn(|_| choices.number());
        for _ in 0..5 {
            let now_us = choices.number();
            let prims = choices.prims(now_us);
            flow.invoke(&program, &prims, &mut [0; MAX_REGS]);
            prop_assert!(flow.cwnd_bytes > 0 && flow.rate_bytes_per_s >= 0);
        }
        // Stock lowering answers for programs that no compiler made, too.
        let _ = ccplane_program::stock::lower(&program);
    }
}

/// A program assembled from instructions that the verifier lets through, one after the other.
fn verified(choices: &mut Choices<'_>) -> Program {
    let hook = Hook::ALL[choices.below(Hook::ALL.len())];
    let regs: Vec<RegDecl> =
        [(RegKind::Report, Type::Num), (RegKind::Control, Type::Bool), (RegKind::Local, Type::Num)]
            .into_iter()
            .enumerate()
            .map(|(n, (kind, ty))| RegDecl { name: format!("r{n}"), kind, ty, volatile: n == 0, init: 0 })
            .collect();
    let build = |insts: &[Inst], guard| {
        let clause = Clause { start: 0, guard_insts: 0, body_insts: insts.len() as u16, guard };
        Program::at(hook, regs.clone(), insts.to_vec(), vec![clause], Vec::new())
    };
    let mut insts = Vec::new();
    while !choices.0.is_empty() && insts.len() < 40 {
        let op = Op::ALL[choices.below(Op::ALL.len())];
        let dst = match choices.below(12) {
            0 => Dst::Cwnd,
            1 => Dst::Rate,
            10 => Dst::Priority,
            11 => Dst::Path,
            2 => Dst::Micros,
            3 => Dst::ShouldReport,
            4 => Dst::ShouldContinue,
            5 => Dst::Reg(choices.byte() % 4),
            _ => Dst::Tmp(choices.byte() % 17),
        };
        let (a, b) = (src(choices), src(choices));
        insts.push(Inst { op, dst, a, b });
        if build(&insts, Src::Bool(true)).is_err() {
            insts.pop();
        }
    }
    build(&insts, Src::Bool(true)).expect("each step was verified")
}

fn src(choices: &mut Choices<'_>) -> Src {
    match choices.below(13) {
        0 => Src::Imm(choices.number()),
        1 => Src::Bool(choices.below(2) == 1),
        2 => Src::Reg(choices.byte() % 4),
        3 => Src::Prim(Prim::ALL[choices.below(Prim::ALL.len())]),
        4 => Src::Cwnd,
        5 => Src::Rate,
        6 => Src::Micros,
        7 => Src::PolicyAction,
        8 => Src::PolicySnapshot,
        9 => Src::Priority,
        10 => Src::DecideAt,
        _ => Src::Tmp(choices.byte() % 17),
    }
}

/// libccp's crate exports a symbol `log` in place of the C library's; nothing of ours does.
#[test]
fn float_logarithms_are_right_beside_our_crates() {
    let program = ccplane_program::compile("(def (a 0)) (when true (:= Cwnd a))").expect("compiles");
    assert_eq!(program.insts().len(), 1);
    let ln = std::hint::black_box(2.0f64).ln();
    assert!((ln - std::f64::consts::LN_2).abs() < 1e-12);
}

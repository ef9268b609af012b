//! Verified defects of libccp 1.2.0 and portus 0.9.0 that concern programs: each is shown to be theirs, and not to
//! be ours.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccplane_oracle::libccp::{Invocation, Libccp, update_reg};
use ccplane_oracle::portus::{Verdict, compile as portus};
use ccplane_program::compile;
use ccplane_program::ir::{
    Clause, Dst, Inst, MAX_REGS, Op, Program, RegDecl, RegKind, Src, Type, VerifyError,
};
use ccplane_program::lang::Problem;
use ccplane_program::stock::{ENTRY_BYTES, Refusal, STOCK_INFINITY, lower, reported};
use ccplane_program::vm::{Flow, Prims};

const UID: u32 = 7;
const CWND: u32 = 14480;

fn compiled(source: &str) -> Program {
    compile(source).unwrap_or_else(|d| panic!("{}", d[0].render("test.fold", source)))
}

/// One ACK of a program on libccp, as portus compiles it.
fn portus_on_libccp(source: &str) -> Invocation {
    let Verdict::Bytes(bytes) = portus(source) else { panic!("portus refuses {source}") };
    let expressions = source.matches("(when").count();
    let instructions = bytes.len() / ENTRY_BYTES - expressions;
    let mut libccp = Libccp::new();
    assert_eq!(libccp.install_raw(UID, expressions as u32, instructions as u32, &bytes), 0);
    libccp.change_program(UID, &[]);
    libccp.invoke(&Prims::default(), CWND, 0)
}

/// One ACK of a program on libccp, as we lower it: the report.
fn ours_on_libccp(source: &str) -> Option<Vec<i64>> {
    let stock = lower(&compiled(source)).unwrap_or_else(|r| panic!("{r}\n{source}"));
    let mut libccp = Libccp::new();
    assert_eq!(libccp.install(UID, &stock), 0);
    libccp.change_program(UID, &[]);
    let invocation = libccp.invoke(&Prims::default(), CWND, 0);
    invocation.report.map(|values| values.iter().map(|v| reported(*v)).collect())
}

/// One ACK of a program on our VM: the report and the flow afterwards.
fn ours(source: &str) -> (Option<Vec<i64>>, Flow) {
    let program = compiled(source);
    let mut flow = Flow::new(&program, i64::from(CWND), 0);
    let mut report = [0; MAX_REGS];
    let outcome = flow.invoke(&program, &Prims::default(), &mut report);
    (outcome.report.then(|| report[..program.report_len()].to_vec()), flow)
}

/// Ten operators in one expression: portus gives each a temporary, libccp has eight.
#[test]
fn more_than_eight_temporaries() {
    let sum = (1..=10).fold("0".to_string(), |sum, n| format!("(+ {sum} {n})"));
    let source = format!("(def (Report (sum 0)))\n(when true (:= Report.sum {sum}) (report))");
    let theirs = portus_on_libccp(&source);
    assert_eq!(theirs.code, 0, "libccp says that all is well");
    assert_ne!(theirs.report, Some(vec![55]), "and reports a wrong sum");
    assert_eq!(ours(&source).0, Some(vec![55]));
    assert_eq!(ours_on_libccp(&source), Some(vec![55]));

    // Where even reuse does not help, a refusal says so.
    let deep = format!("{}1{}", "(+ (+ 1 1) ".repeat(9), ")".repeat(9));
    let deep = format!("(def (Report (sum 0)))\n(when true)\n(when true (:= Report.sum {deep}) (report))");
    assert_eq!(lower(&compiled(&deep)), Err(Refusal::TooManyTmps { clause: 1, limit: 8 }));
}

fn binds(count: usize) -> String {
    format!("(def (Report (a 0)))\n(when true {} (report))", "(:= Report.a 1) ".repeat(count))
}

/// libccp accepts 256 instructions; its index is an u8 and never passes the last one. Beyond that it writes over
/// the end of its table. (One initialisation, one flag, one report.)
#[test]
fn programs_of_256_instructions_hang() {
    if in_child("hang") {
        portus_on_libccp(&binds(253));
        return;
    }
    let mut child = child("programs_of_256_instructions_hang", "hang");
    assert!(!ended_within(&mut child, Duration::from_millis(1500)), "libccp returned");
    child.kill().and_then(|()| child.wait()).expect("the child ends");

    assert_eq!(lower(&compiled(&binds(252))).map(|s| s.num_instructions()), Ok(255));
    assert_eq!(ours_on_libccp(&binds(252)), Some(vec![1]));
    let limit = Refusal::TooMany { what: "instructions", found: 256, limit: 255 };
    assert_eq!(lower(&compiled(&binds(253))), Err(limit));
    assert!(matches!(lower(&compiled(&binds(700))), Err(Refusal::TooMany { found: 703, .. })));
    assert_eq!(ours(&binds(700)).0, Some(vec![1]));
    assert!(compile(&binds(1100)).is_err());
}

/// Where portus's two instructions for each operation are too many, one does.
#[test]
fn long_programs_are_lowered_without_detours() {
    let source =
        format!("(def (Report (a 0)))\n(when true {} (report))", "(:= Report.a (+ Report.a 1)) ".repeat(200));
    assert_eq!(ours_on_libccp(&source), Some(vec![200]));
}

/// libccp takes register numbers from messages as they are; ours are checked before there is a program.
#[test]
fn register_numbers_are_checked() {
    let program = |dst, b| {
        let reg =
            RegDecl { name: "a".into(), kind: RegKind::Control, ty: Type::Num, volatile: false, init: 0 };
        let clause = Clause { start: 0, guard_insts: 0, body_insts: 1, guard: Src::Bool(true) };
        Program::new(vec![reg], vec![Inst { op: Op::Bind, dst, a: Src::Imm(0), b }], vec![clause], vec![])
    };
    assert!(program(Dst::Reg(0), Src::Imm(1)).is_ok());
    for (dst, b) in [(Dst::Reg(1), Src::Imm(1)), (Dst::Tmp(16), Src::Imm(1)), (Dst::Reg(0), Src::Reg(200))] {
        assert_eq!(program(dst, b), Err(VerifyError::BadIndex { inst: 0 }));
    }
    let stock = lower(&compiled("(def (a 0) (Report (b 0)))(when true)")).expect("lowers");
    assert_eq!(stock.update_reg(0), None, "reports are not updated");
    assert!(stock.update_reg(1).is_some());
    assert_eq!(stock.update_reg(2), None);
    assert_eq!(stock.update_reg(255), None);
}

/// libccp leaves the program at an underflow, an overflow or a division by zero: no report, no window.
#[test]
fn nothing_aborts_midway() {
    for (expr, code, value) in [("(- 0 1)", -94, -1), ("(/ 1 0)", -92, 0)] {
        let source = format!(
            "(def (Report (a 0) (b 0)))\n(when true (:= Report.a {expr}) (:= Report.b 7) (:= Cwnd 1) (report))"
        );
        assert_eq!(portus_on_libccp(&source), Invocation { code, ..Invocation::default() });
        let (report, flow) = ours(&source);
        assert_eq!(report, Some(vec![value, 7]));
        assert_eq!(flow.cwnd_bytes, 1);
        assert_eq!(flow.faults, u64::from(value == 0));
    }
}

/// libccp's check misses most overflowing products.
#[test]
fn products_saturate() {
    let source = "(def (Report (a 1073741824)))\n(when true \
        (:= Report.a (* Report.a Report.a)) (:= Report.a (* Report.a 24)) (report))";
    let theirs = portus_on_libccp(source);
    assert_eq!((theirs.code, theirs.report), (0, Some(vec![(1u64 << 60).wrapping_mul(24)])));
    let (report, flow) = ours(source);
    assert_eq!((report, flow.faults), (Some(vec![i64::MAX]), 1));
}

/// Linking the `libccp` crate replaces the C library's `log`, so that `f64::ln` runs libccp's logger.
#[test]
fn float_logarithms_break_beside_libccp() {
    if in_child("log") {
        Libccp::new();
        let ln = std::hint::black_box(2.0f64).ln();
        assert!((ln - std::f64::consts::LN_2).abs() < 1e-9);
        return;
    }
    let mut child = child("float_logarithms_break_beside_libccp", "log");
    assert!(!child.wait().expect("the child ends").success(), "the logarithm is right");
    // That ours is right beside our crates is tested where libccp is not linked: agent/program/tests.
}

/// portus prints a line for an update of an unknown field, and compiles.
#[test]
fn updates_of_unknown_fields_are_refused() {
    let source = "(def (a 0))\n(when true (:= Cwnd a))";
    assert!(portus::lang::compile(source.as_bytes(), &[("typo", 1)]).is_ok());
    assert_eq!(compiled(source).reg("typo"), None);
}

/// libccp's infinity has 32 bits, an initial value of 0x3fffffff becomes it, and other numbers have 31 bits.
#[test]
fn immediates() {
    let source = |init: &str| format!("(def (Report (a {init})))\n(when true (report))");
    assert_eq!(portus_on_libccp(&source("+infinity")).report, Some(vec![u64::from(STOCK_INFINITY)]));
    assert_eq!(ours(&source("+infinity")).0, Some(vec![i64::MAX]));
    assert_eq!(ours_on_libccp(&source("+infinity")), Some(vec![i64::MAX]));

    assert_eq!(portus_on_libccp(&source("1073741823")).report, Some(vec![u64::from(STOCK_INFINITY)]));
    assert_eq!(ours(&source("1073741823")).0, Some(vec![1_073_741_823]));
    assert!(matches!(
        lower(&compiled(&source("1073741823"))),
        Err(Refusal::Init { value: 1_073_741_823, .. })
    ));

    for init in ["2147483648", "-1"] {
        assert!(matches!(lower(&compiled(&source(init))), Err(Refusal::Init { .. })));
        let body = format!("(def (Report (a 0)))\n(when true (:= Report.a {init}) (report))");
        assert!(matches!(lower(&compiled(&body)), Err(Refusal::Immediate { inst: 0, .. })));
    }
}

/// portus compiles `||` to an addition.
#[test]
fn true_or_true_is_true() {
    let source = "(def (Report (a true)))\n(when true (:= Report.a (|| Report.a true)) (report))";
    assert_eq!(portus_on_libccp(source).report, Some(vec![2]));
    assert_eq!(ours(source).0, Some(vec![1]));
    assert_eq!(ours_on_libccp(source), Some(vec![1]));
}

/// libccp does not clear locals when a flow changes its program.
#[test]
fn locals_start_at_zero() {
    let first = lower(&compiled("(def (a 0))\n(when true (:= l 42) (:= a l))")).expect("lowers");
    let source = "(def (Report (a 0)))\n(when (< Cwnd 1) (:= l 1) (fallthrough))\n(when true (:= Report.a l) (report))";
    let program = compiled(source);
    let Verdict::Bytes(theirs) = portus(source) else { panic!("portus refuses {source}") };
    let stock = lower(&program).expect("lowers");
    let mut libccp = Libccp::new();
    libccp.install(1, &first);
    libccp.install_raw(2, 2, (theirs.len() / ENTRY_BYTES - 2) as u32, &theirs);
    libccp.install(3, &stock);
    let mut run = |uid| {
        libccp.change_program(uid, &[]);
        libccp.invoke(&Prims::default(), CWND, 0).report
    };
    run(1);
    assert_eq!(run(2), Some(vec![42]), "the local of the program before");
    run(1);
    assert_eq!(run(3), Some(vec![0]));
    assert_eq!(ours(source).0, Some(vec![0]));
}

/// libccp cuts the rate to 32 bits.
#[test]
fn rates_beyond_32_bits() {
    let source = "(def (a 1073741824))\n(when true (:= Rate (* a 5)))";
    assert_eq!(portus_on_libccp(source).rate, Some(1 << 30));
    assert_eq!(ours(source).1.rate_bytes_per_s, 5 << 30);
}

/// portus panics on comments inside a clause, and on stateful operators bound to anything but a register.
#[test]
fn portus_panics() {
    for source in [
        "(def (a 0))\n(when true # a comment\n (:= a 1))",
        "(def (a 0))\n(when true (:= Cwnd (ewma 2 a)))",
        "(def (a 0))\n(when true (:= l 1) (:= l (if (> a 0) 2)) (:= a l))",
        "(def (Report (a true)))\n(when Report.a (report))",
    ] {
        assert_eq!(portus(source), Verdict::Panicked, "{source}");
        lower(&compiled(source)).unwrap_or_else(|r| panic!("{r}\n{source}"));
    }
}

/// portus makes a new local of each name that it does not know.
#[test]
fn misspelt_names_are_refused() {
    for body in ["(:= Report.ackd 1)", "(:= Report.acked ackd)", "ackd"] {
        let source = format!("(def (Report (acked 0)))\n(when true {body})");
        assert!(matches!(portus(&source), Verdict::Bytes(_)), "{source}");
        assert!(compile(&source).is_err(), "{source}");
    }
    let diags = compile("(def (Report (acked 0)))\n(when true (:= Report.ackd 1))").expect_err("refused");
    assert!(
        matches!(&diags[0].problem, Problem::UnknownName { suggestion: Some(s), .. } if s == "Report.acked")
    );
}

/// An update and a program change reach the register that our lowering names.
#[test]
fn updates_reach_their_registers() {
    let source =
        "(def (z 1) (volatile y 2) (Report (sum 0)))\n(when true (:= Report.sum (+ (* z 100) y)) (report))";
    let program = compiled(source);
    let stock = lower(&program).expect("lowers");
    let (z, y) = (update_reg(&stock, program.reg("z")), update_reg(&stock, program.reg("y")));
    let mut libccp = Libccp::new();
    libccp.install(UID, &stock);
    libccp.change_program(UID, &[(z, 5)]);
    let report = |libccp: &mut Libccp| libccp.invoke(&Prims::default(), CWND, 0).report;
    assert_eq!(report(&mut libccp), Some(vec![502]));
    assert_eq!(libccp.update(&[(y, 9), (z, 7)]), 0);
    assert_eq!(report(&mut libccp), Some(vec![709]));
    assert_eq!(report(&mut libccp), Some(vec![702]), "volatile");
}

const CHILD: &str = "CCPLANE_ORACLE_CHILD";

/// Whether this process is the child that is to show defect `name`.
fn in_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|v| v == name)
}

/// Runs this test alone in a process of its own.
fn child(test: &str, name: &str) -> Child {
    let exe = std::env::current_exe().expect("the test's own path");
    Command::new(exe)
        .args(["--exact", test])
        .env(CHILD, name)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the test starts itself")
}

fn ended_within(child: &mut Child, limit: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if child.try_wait().expect("the child can be asked").is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// libccp asks the clock for each `Ack.now`, so a lowering that reads it twice compares two instants.
#[test]
fn the_clock_is_read_once() {
    const NOW: [u8; 5] = [4, 5, 0, 0, 0];
    for guard in ["(>= Ack.now at)", "(<= Ack.now at)", "(>= at Ack.now)", "(<= at Ack.now)"] {
        let stock = lower(&compiled(&format!("(def (at 1))\n(when {guard})"))).expect("lowers");
        let instructions = &stock.bytes()[ENTRY_BYTES..];
        let reads: usize = instructions
            .chunks(ENTRY_BYTES)
            .map(|i| usize::from(i[6..11] == NOW) + usize::from(i[11..16] == NOW))
            .sum();
        assert_eq!(reads, 1, "{guard}");
    }
    for (guard, holds) in [(">=", true), ("<=", true), (">", false)] {
        let source =
            format!("(def (Report (a 0)))\n(when ({guard} Ack.now Ack.now) (:= Report.a 1) (report))");
        assert_eq!(ours_on_libccp(&source), holds.then(|| vec![1]), "{guard}");
    }
}

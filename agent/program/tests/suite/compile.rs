//! Tests the programs that the compiler accepts, the code that it emits, and its diagnostics.

use ccplane_program::compile;
use ccplane_program::disasm::disassemble;
use ccplane_program::ir::{Dst, Hook, INFINITY, Inst, MAX_REGS, Op, Prim, Program, RegKind, Src, Type};
use ccplane_program::lang::{MAX_DEPTH, MAX_DIAGNOSTICS, parse};
use ccplane_program::vm::{NoPolicies, ProgramState, SendPrims};

const RENO: &str = "
# Counts, and reports once per window or on loss.
(def
    (Report
        (volatile acked 0)
        (minrtt +infinity)
        (volatile timeout false)
    )
    (ssthresh -1)
)
(when true
    (:= Report.acked (+ Report.acked Ack.bytes_acked))
    (:= Report.minrtt (min Report.minrtt Flow.rtt_sample_us))
    (:= Report.timeout Flow.was_timeout)
    (fallthrough)
)
(when (|| Report.timeout (> Ack.lost_pkts_sample 0)) # at once
    (report)
    (:= Micros 0)
)
(when (>= Micros Report.minrtt)
    (bind half (div Cwnd 2))
    (:= Cwnd (if (lt Cwnd ssthresh) (* half 4)))
    (report)
)";

fn compiled(source: &str) -> Program {
    match compile(source) {
        Ok(p) => p,
        Err(diags) => panic!("{}", diags.iter().map(|d| d.render("test.fold", source)).collect::<String>()),
    }
}

/// The first line of each diagnostic, with its place.
fn refusals(source: &str) -> Vec<String> {
    compile(source).expect_err("accepted").iter().map(ToString::to_string).collect()
}

/// Returns the message of each diagnostic.
fn messages(source: &str) -> Vec<String> {
    compile(source).expect_err("accepted").iter().map(|d| d.problem.to_string()).collect()
}

/// Refusals of `body` as the only clause of a program with a few registers; column counts from the body.
fn refused(body: &str) -> String {
    let source = format!("(def (Report (acked 0) (volatile loss false)) (c 1) (ok true))\n{body}");
    refusals(&source).join("; ")
}

#[test]
fn a_program_compiles_to_direct_instructions() {
    let p = compiled(RENO);
    let names: Vec<_> =
        p.regs().iter().map(|r| (r.name.as_str(), r.kind, r.ty, r.volatile, r.init)).collect();
    assert_eq!(
        names,
        [
            ("Report.acked", RegKind::Report, Type::Num, true, 0),
            ("Report.minrtt", RegKind::Report, Type::Num, false, INFINITY),
            ("Report.timeout", RegKind::Report, Type::Bool, true, 0),
            ("ssthresh", RegKind::Control, Type::Num, false, -1),
            ("half", RegKind::Local, Type::Num, false, 0),
        ]
    );
    assert_eq!(p.clauses().len(), 3);
    assert_eq!(p.clauses()[0].guard, Src::Bool(true));
    assert_eq!(
        p.insts()[0],
        Inst { op: Op::Add, dst: Dst::Reg(0), a: Src::Reg(0), b: Src::Prim(Prim::AckBytesAcked) }
    );
    // Guard of the second clause: the comparison's temporary is reused for the result.
    assert_eq!(
        p.insts()[4..6],
        [
            Inst { op: Op::Gt, dst: Dst::Tmp(0), a: Src::Prim(Prim::AckLostPktsSample), b: Src::Imm(0) },
            Inst { op: Op::Or, dst: Dst::Tmp(0), a: Src::Reg(2), b: Src::Tmp(0) },
        ]
    );
    assert_eq!(
        p.insts()[9..],
        [
            Inst { op: Op::Div, dst: Dst::Reg(4), a: Src::Cwnd, b: Src::Imm(2) },
            Inst { op: Op::Lt, dst: Dst::Tmp(0), a: Src::Cwnd, b: Src::Reg(3) },
            Inst { op: Op::Mul, dst: Dst::Tmp(1), a: Src::Reg(4), b: Src::Imm(4) },
            Inst { op: Op::If, dst: Dst::Cwnd, a: Src::Tmp(0), b: Src::Tmp(1) },
            Inst { op: Op::Bind, dst: Dst::ShouldReport, a: Src::Imm(0), b: Src::Bool(true) },
        ]
    );
}

#[test]
fn every_spelling_and_spacing_is_the_same_program() {
    let symbols = compiled(
        "(def (Report (a 0) (b false)))(when (> Micros 0) (:= Report.a (- (* 2 3) (/ (+ 4 5) Cwnd))) \
        (:= Report.b (|| (&& (== 1 2) (< 3 4)) true)))",
    );
    let words = compiled(
        "\n(def\t(Report(a 0)(b false)))\r\n( when ( gt Micros 0 )( bind Report.a ( sub( mul 2 3)(div(add 4 5)Cwnd)))\
        (bind Report.b(or(and(eq 1 2)(lt 3 4))true)))#end",
    );
    assert_eq!(symbols, words);
    assert_eq!(
        symbols,
        compiled(
            "(def (Report (a 0) (b false)))(when (>Micros 0) (:=Report.a (-(*2 3) (/(+4 5) Cwnd))) \
        (:=Report.b (||(&&(==1 2)(<3 4)) true)))"
        )
    );
}

#[test]
fn minus_is_an_operator_at_the_head_and_a_sign_elsewhere() {
    let p = compiled("(def (Report (a -5)))(when true (:= Report.a (-1 -2)))");
    assert_eq!(p.regs()[0].init, -5);
    assert_eq!(p.insts()[0], Inst { op: Op::Sub, dst: Dst::Reg(0), a: Src::Imm(1), b: Src::Imm(-2) });
    assert_eq!(compiled("(def (a -9223372036854775808))(when true)").regs()[0].init, i64::MIN);
    assert_eq!(
        compiled("(def (a 9223372036854775807))(when true)"),
        compiled("(def (a +infinity))(when true)")
    );
}

/// The numbers are used as by Copa's program for portus.
#[test]
fn a_number_takes_a_boolean() {
    let p = compiled(
        "(def (Report (volatile timeout 0)))(when true (:= Report.timeout Flow.was_timeout) (report))",
    );
    assert_eq!(p.regs()[0].ty, Type::Num);
    let q = compiled(
        "(def (a 0) (b false))(when true (:= a (> Cwnd 3)) (:= a (if b (< Cwnd 9))) (:= b (> a 0)))",
    );
    assert_eq!(q.insts().len(), 4);
    assert_eq!(q.insts()[0].dst, Dst::Reg(0));
}

#[test]
fn reports_are_numbered_as_portus_does() {
    let p = compiled("(def (z 0) (Report.d 0) (Report (b 0) (a 0)) (Report.c 0) (y 0))(when true)");
    let names: Vec<_> = p.regs().iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["Report.b", "Report.a", "Report.d", "Report.c", "z", "y"]);
}

#[test]
fn histories_are_shared_and_policies_parsed() {
    let p = compiled(
        "(def (a 0) (b 0))(when true (history 10 a b) (policy 3) (fallthrough))(when true (history 10 a b) (history 2 a))",
    );
    assert_eq!(p.histories().len(), 2);
    assert_eq!(p.histories()[0].regs, [0, 1]);
    assert!(p.uses_policy());
}

#[test]
fn refusals_name_the_place() {
    let cases = [
        (
            "",
            "2:1: expected at least one clause `(when condition statement...)`, found the end of the program",
        ),
        ("(when)", "2:6: expected a condition after `when`, found nothing"),
        ("(when (timeout) (report))", "2:8: expected an operator, found `timeout`"),
        ("(when (report) (report))", "2:7: expected a value, found the command `(report)`"),
        ("(when 1 (report))", "2:7: expected a boolean for `when`, found a number"),
        (
            "(when ok (:= Report.acked 99999999999999999999))",
            "2:27: `99999999999999999999` does not fit a signed 64-bit number",
        ),
        ("(when ok (:= Report.acked 4foo))", "2:27: `4foo` is neither a number nor a name"),
        ("(when ok (:= Report.acked (- 5-3)))", "2:30: white space is missing after `5`"),
        ("(when ok (:= Report.acked é))", "2:27: unexpected character `é`"),
        ("(when ok (:= Report.acked (+ 1 2 3)))", "2:27: `+` takes 2 operands, found 3"),
        ("(when ok (:= Report.acked))", "2:10: `:=` takes 2 operands, found 1"),
        ("(when ok (:= (+ 1 2) 3))", "2:14: expected the name of what is bound, found `(+ ...)`"),
        (
            "(when ok (:= Report.acked (+ c + c)))",
            "2:27: `+` takes 2 operands, found 3; 2:32: expected a number, a name or `(operator ...)`, found the operator `+`",
        ),
        (
            "(when ok (:= Report.acked +))",
            "2:27: expected a number, a name or `(operator ...)`, found the operator `+`",
        ),
        ("(when ok (:= Report.acked ()))", "2:27: expected an operator and its operands, found `()`"),
        ("(when ok (+ c 1))", "2:10: the value of this expression is not used"),
        ("(when ok c)", "2:10: the value of this expression is not used"),
        (
            "(when ok (:= Report.acked (+ 1 (ewma 2 3))))",
            "2:32: `ewma` is allowed only as the right side of a bind",
        ),
        ("(when ok (:= c (if ok (:= c 3))))", "2:23: a bind inside a conditional would run in both cases"),
        ("(when ok (:= Report.loss 1))", "2:26: expected a boolean for `Report.loss`, found a number"),
        ("(when ok (:= c (if c 3)))", "2:20: expected a boolean for `if`, found a number"),
        ("(when ok (:= c (+ ok 3)))", "2:19: expected a number for `+`, found a boolean"),
        ("(when ok (:= Ack.now 3))", "2:14: `Ack.now` is a measurement and cannot be bound"),
        ("(when ok (:= __x 3))", "2:14: the name `__x` is reserved"),
        ("(when ok (:= truth 3) (:= c truth))", ""),
        (
            "(when ok (:= trueish 3))",
            "2:14: `trueish` cannot be a name: stock CCP would read it as a boolean followed by another name",
        ),
        ("(when ok (:= c (+ nothing 1)) (:= c nothing))", "2:19: unknown name `nothing`"),
        ("(when ok (:= Report.ackd 1))", "2:14: unknown name `Report.ackd`"),
        ("(when ok (:= x (+ x 1)))", "2:19: `x` has no value before its first bind"),
        ("(when ok (:= x (ewma 2 1)))", "2:14: `x` has no value before its first bind"),
        ("(when ok (:= x 1))", "2:14: the local `x` is never read"),
        ("(when ok (history 0 c))", "2:10: the intervals of a history must be between 1 and 32, found 0"),
        ("(when ok (history 3 Cwnd))", "2:21: expected a register, found `Cwnd`, which is built in"),
        ("(when ok (policy 16))", "2:10: the policy slot must be between 0 and 15, found 16"),
        ("(when ok (report)))", "2:19: this parenthesis closes nothing"),
        ("(when ok (report)", "2:1: this parenthesis is never closed"),
        ("(if ok c)", "2:1: expected a clause `(when condition statement...)`, found `(if ...)`"),
    ];
    for (body, expected) in cases {
        if expected.is_empty() {
            compiled(&format!("(def (c 1) (ok true))\n{body}"));
        } else {
            assert_eq!(refused(body), expected, "{body}");
        }
    }
}

#[test]
fn refusals_of_declarations() {
    let cases = [
        ("", "1:1: expected a program that begins with `(def ...)`, found the end of the program"),
        ("(when true)", "1:1: expected `(def ...)` at the beginning of the program, found `(when ...)`"),
        (
            "(def (a b))(when true)",
            "1:9: expected an initial value: a number, `+infinity`, `true` or `false`, found `b`",
        ),
        (
            "(def (a))(when true)",
            "1:8: expected a declaration `([volatile] name initial-value)`, found nothing",
        ),
        ("(def (a 0 1))(when true)", "1:11: expected `)` after the initial value, found the number `1`"),
        ("(def (a 0)\n(a 1))(when true)", "2:2: `a` was declared before, on line 1"),
        ("(def (Cwnd 0))(when true)", "1:7: `Cwnd` is built in and cannot be declared"),
        (
            "(def (Flow.was_timeout 0))(when true)",
            "1:7: `Flow.was_timeout` is built in and cannot be declared",
        ),
        (
            "(def (Report))(when true)",
            "1:13: expected at least one declaration in `(Report ...)`, found nothing",
        ),
        (
            "(def (Report (a 0)) (Report (b 0)))(when true)",
            "1:21: expected only one `(Report ...)`, found `(Report ...)`",
        ),
        (
            "(def (Report (Report.a 0)))(when true)",
            "1:15: `Report.a` cannot be a name: inside `(Report ...)` the prefix is added for you",
        ),
        (
            "(def (volatilea 0))(when true)",
            "1:7: `volatilea` cannot be a name: stock CCP would read it as the keyword followed by another name",
        ),
        ("(def (0 0))(when true)", "1:7: expected a name, found the number `0`"),
    ];
    for (source, expected) in cases {
        assert_eq!(refusals(source).join("; "), expected, "{source}");
    }
}

#[test]
fn one_mistake_hides_no_other() {
    let source =
        "(def (a 0))\n(when tru (:= a (+ b 1)) (:= a (+ b 2)) (:= Cwnd true))\n(when true (:= Ack.now 1))";
    assert_eq!(
        refusals(source),
        [
            "2:7: unknown name `tru`",
            "2:20: unknown name `b`",
            "2:50: expected a number for `Cwnd`, found a boolean",
            "3:16: `Ack.now` is a measurement and cannot be bound",
        ]
    );
}

#[test]
fn hints_say_what_was_meant() {
    let hint = |body: &str| {
        let source = format!("(def (Report (acked 0)) (ok true))\n{body}");
        let diags = compile(&source).unwrap_err();
        diags[0].problem.hint().unwrap_or_default()
    };
    assert_eq!(hint("(when (< rtt_sample_us 3))"), "did you mean `Flow.rtt_sample_us`?");
    assert_eq!(hint("(when (< micros 3))"), "did you mean `Micros`?");
    assert_eq!(hint("(when (< acked 3))"), "did you mean `Report.acked`?");
    assert_eq!(hint("(when ok (:= Report.aked 3))"), "did you mean `Report.acked`?");
    assert_eq!(hint("(when ok (reprot))"), "did you mean `report`?");
    assert_eq!(hint("(when ok (:= Report.acked (mim 3 4)))"), "did you mean `min`?");
    assert_eq!(hint("(when (ok) (report))"), "to read a register, write `ok` without parentheses");
    assert_eq!(
        hint("(when ok (:= aked 3))"),
        "to send it to the agent, declare it in `(def (Report (name 0)))`"
    );
}

#[test]
fn a_diagnostic_renders_as_a_compiler_does() {
    let source = "(def (Report (acked 0)))\n(when true\n\t(:= Report.acked (+ Report.akced 1))\n)";
    let diags = compile(source).unwrap_err();
    assert_eq!(
        diags[0].render("reno.fold", source),
        "error: unknown name `Report.akced`\n \
         --> reno.fold:3:22\n  |\n3 | \t(:= Report.acked (+ Report.akced 1))\n  \
         | \t                    ^^^^^^^^^^^^ expected a name that has a value here\n  \
         = help: did you mean `Report.acked`?\n"
    );
}

#[test]
fn limits_have_a_diagnostic_each() {
    let many = |n: usize, f: &dyn Fn(usize) -> String| (0..n).map(f).collect::<String>();
    let decls = |n| format!("(def {}) (when true (report))", many(n, &|i| format!("(r{i} 0)")));
    compiled(&decls(96));
    assert_eq!(messages(&decls(97)), ["more than 96 registers"]);

    let locals = |n| format!("(def (a 0)) (when true {})", many(n, &|i| format!("(:= l{i} 0) (:= a l{i})")));
    compiled(&locals(95));
    assert_eq!(messages(&locals(96)), ["more than 96 registers"]);

    let clauses = |n| format!("(def) {}", many(n, &|_| "(when true)".into()));
    compiled(&clauses(64));
    assert_eq!(messages(&clauses(65)), ["more than 64 clauses"]);

    let insts = |n| format!("(def (a 0)) (when true {})", many(n, &|_| "(:= a 1)".into()));
    compiled(&insts(1024));
    assert_eq!(messages(&insts(1026)), ["more than 1024 instructions"]);

    let histories = |n| format!("(def (a 0)) (when true {})", many(n, &|i| format!("(history {} a)", i + 1)));
    compiled(&histories(4));
    assert_eq!(messages(&histories(5)), ["more than 4 histories"]);

    // Right-nested operators keep one temporary alive each.
    let tmps = |n: usize| {
        format!("(def (a 0)) (when true (:= a {}(+ a 1){}))", "(+ (+ a 1) ".repeat(n), ")".repeat(n))
    };
    compiled(&tmps(15));
    assert_eq!(messages(&tmps(16)), ["more than 16 temporaries"]);

    let deep = |n: usize| format!("(def (a 0)) (when true (:= a {}1{}))", "(+ ".repeat(n), " 1)".repeat(n));
    compiled(&deep(MAX_DEPTH - 2));
    assert_eq!(messages(&deep(MAX_DEPTH - 1)), ["parentheses nested more than 64 deep"]);
    assert_eq!(messages(&"(".repeat(200_000)), ["parentheses nested more than 64 deep"]);

    assert_eq!(
        messages(&" ".repeat(300_000)),
        ["the program is 300000 bytes long, at most 262144 are allowed"]
    );
    let name = "n".repeat(65);
    assert_eq!(
        messages(&format!("(def ({name} 0)) (when true)")),
        [format!("`{name}` cannot be a name: it is longer than 64 bytes")]
    );
}

#[test]
fn printing_keeps_the_program() {
    let ast = parse(RENO).unwrap();
    let text = ast.to_string();
    assert_eq!(compiled(&text), compiled(RENO));
    assert_eq!(parse(&text).unwrap().to_string(), text);
}

#[test]
fn the_verifier_refuses_what_no_compiler_emits() {
    use ccplane_program::ir::{Clause, HistoryDecl, RegDecl, VerifyError};
    let reg = |kind, ty, init| RegDecl { name: "r".into(), kind, ty, volatile: false, init };
    let verify = |regs, insts: Vec<Inst>, histories| {
        let clause =
            Clause { start: 0, guard_insts: 0, body_insts: insts.len() as u16, guard: Src::Bool(true) };
        Program::new(regs, insts, vec![clause], histories).map(|_| ())
    };
    let control = || vec![reg(RegKind::Control, Type::Num, 3)];
    assert_eq!(verify(control(), vec![], vec![]), Ok(()));
    for bad in [reg(RegKind::Control, Type::Bool, 2), reg(RegKind::Local, Type::Num, 1)] {
        assert_eq!(verify(vec![bad], vec![], vec![]), Err(VerifyError::BadInit { reg: 0 }));
    }
    for (depth, regs) in [(0, vec![0]), (1, vec![]), (1, vec![1])] {
        let history = HistoryDecl { depth, regs };
        assert_eq!(verify(control(), vec![], vec![history]), Err(VerifyError::BadHistory { history: 0 }));
    }
    let policy = |slot| Inst { op: Op::Policy, dst: Dst::ShouldReport, a: Src::Imm(slot), b: Src::Imm(0) };
    assert_eq!(verify(control(), vec![policy(15)], vec![]), Ok(()));
    assert_eq!(verify(control(), vec![policy(16)], vec![]), Err(VerifyError::BadIndex { inst: 0 }));
}

#[test]
fn a_program_disassembles() {
    let p = compiled(
        "(def (Report (volatile a -1) (m +infinity)) (on true))\n\
         (when (&& on (>= Micros Report.m)) (:= half (/ Cwnd 2)) (:= Cwnd half) (history 3 on) (policy 1) (report))",
    );
    assert_eq!(
        ccplane_program::disasm::disassemble(&p),
        "r0   report  Report.a = -1 volatile\n\
         r1   report  Report.m = +infinity\n\
         r2   control on = true\n\
         r3   local   half = 0\n\
         h0   3 intervals of on\n\
         clause 0\n   \
            0  t0 <- >= Micros Report.m\n   \
            1  t0 <- && on t0\n      \
               when t0\n   \
            2  half <- / Cwnd 2\n   \
            3  Cwnd <- half\n   \
            4  history 0\n   \
            5  policy 1\n   \
            6  report <- true\n"
    );
}

#[test]
fn a_text_full_of_mistakes_is_refused_quickly() {
    for text in ["? ", "(", ")", "(x) ", "(def) ", "(when a) ", "(when true (:= a b)) "] {
        let source = format!("(def){}", text.repeat(250_000 / text.len()));
        let start = std::time::Instant::now();
        let diags = compile(&source).unwrap_err();
        assert!(!diags.is_empty() && diags.len() <= MAX_DIAGNOSTICS);
        // Orders of magnitude above what it takes, far below what a quadratic pass would.
        assert!(start.elapsed().as_secs() < 10, "{text}: {:?}", start.elapsed());
    }
    let names: String = (0..10_000).map(|n| format!("(:= n{n} m{n}) ")).collect();
    assert_eq!(compile(&format!("(def) (when true {names})")).unwrap_err().len(), MAX_DIAGNOSTICS);
}

/// A program decides where its first form says, and has the primitives and outputs of that hook only.
#[test]
fn a_program_has_the_primitives_and_outputs_of_its_hook_only() {
    let by_size = "(hook send)
(def (Report (volatile sent 0)) (threshold 100000))
(when (< Flow.bytes_sent threshold) (:= Priority 0) (:= DecideAt threshold))
(when true (:= Priority 5) (:= DecideAt +infinity) (:= Report.sent Flow.bytes_sent) (report))
";
    let program = compile(by_size).unwrap();
    assert_eq!(program.hook(), Hook::Send);
    assert!(disassemble(&program).starts_with("hook send\n"));
    let mut flow = ProgramState::new(&program, 0, 0);
    for (sent, priority, decide_at) in [(0, 0, 100_000), (99_999, 0, 100_000), (100_000, 5, INFINITY)] {
        let mut prims = SendPrims::default();
        prims.set(Prim::FlowBytesSent, sent);
        let outcome = flow.invoke_with(&program, &prims, &mut NoPolicies, &mut [0; MAX_REGS]);
        assert_eq!(
            (flow.priority, flow.decide_at_bytes, outcome.report),
            (priority, decide_at, priority == 5)
        );
    }
    assert_eq!(compile("(hook ack) (def) (when true (:= Cwnd 1))"), compile("(def) (when true (:= Cwnd 1))"));
    for (refused, why) in [
        ("(hook recv) (def) (when true)", "`(hook ack)`, `(hook send)` or `(hook connect)`"),
        ("(hook) (def) (when true)", "`(hook ack)`"),
        ("(hook send) (def) (when true (:= Priority Flow.rtt_sample_us))", "Flow.rtt_sample_us"),
        ("(hook connect) (def) (when true (:= Priority Flow.bytes_sent))", "Flow.bytes_sent"),
        ("(hook send) (def) (when true (:= Path Cwnd))", "Cwnd"),
        ("(def) (when true (:= Cwnd Path0.rtt_us))", "Path0.rtt_us"),
        ("(hook send) (def (Priority 0)) (when true)", "Priority"),
    ] {
        let diagnostics = compile(refused).unwrap_err();
        assert!(diagnostics[0].render("x.fold", refused).contains(why), "{refused}: {diagnostics:?}");
    }
}

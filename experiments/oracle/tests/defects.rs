//! Verified defects of libccp 1.2.0, portus 0.9.0 and ccp-kernel: each is shown to be theirs where that can be shown,
//! and not to be ours.
//!
//! Every defect, and the tests that ours does not have it (paths from the workspace's root; a test below checks that
//! they exist):
//!
//! | defect | tests |
//! |---|---|
//! | libccp: an underflow, an overflow or a division by zero aborts the program midway | `experiments/oracle/tests/defects.rs::nothing_aborts_midway` |
//! | libccp: most overflowing products are not noticed | `experiments/oracle/tests/defects.rs::products_saturate` |
//! | libccp: more than 8 temporaries give a wrong value and no error | `experiments/oracle/tests/defects.rs::more_than_eight_temporaries`, `experiments/oracle/tests/wire.rs::an_expression_beyond_the_temporaries_is_sent_by_portus_and_refused_here` |
//! | libccp: 256 instructions are installed, then hang | `experiments/oracle/tests/defects.rs::programs_of_256_instructions_hang`, `experiments/oracle/tests/wire.rs::a_program_that_hangs_libccp_is_installed_there_and_refused_here` |
//! | libccp: the check of the number of instructions is dead code: 700 write over what lies behind | `experiments/oracle/tests/defects.rs::programs_of_700_instructions_write_over_others` |
//! | libccp: register numbers of programs and updates are not checked | `experiments/oracle/tests/defects.rs::register_numbers_are_checked`, `experiments/oracle/tests/wire.rs::an_update_outside_the_registers_is_written_by_libccp_and_refused_here`, `agent/program/tests/suite/lift.rs::what_no_compiler_emits_is_refused` |
//! | libccp: the count of updated fields is misread above 127 | `experiments/oracle/tests/wire.rs::libccp_misreads_more_fields_than_we_allow` |
//! | libccp: a rate is cut to 32 bits | `experiments/oracle/tests/defects.rs::rates_beyond_32_bits` |
//! | libccp: immediates of 32 bits, of which 0x3fffffff is infinity | `experiments/oracle/tests/defects.rs::immediates_have_64_bits_here` |
//! | libccp: locals keep what the program before left | `experiments/oracle/tests/defects.rs::locals_start_at_zero` |
//! | libccp: `Ack.now` moves during an invocation | `experiments/oracle/tests/defects.rs::the_clock_is_read_once` |
//! | libccp: IPv4 only | `agent/wire/tests/suite/properties.rs::v1_carries_ipv4_flows_exactly_and_refuses_ipv6`, `agent/wire/tests/suite/properties.rs::v2_flows_are_read_as_written`, `datapath-shims/ebpf/tests/live/flows.rs::ipv6_flows_are_named_by_their_addresses` |
//! | libccp: no version is negotiated | `agent/wire/tests/suite/refusals.rs::v2_negotiation_takes_the_highest_common_version`, `datapath-shims/channel/src/hub/tests.rs::strangers_are_told_what_is_wrong` |
//! | libccp: a table of 10 holds 9 programs (-81) | `experiments/oracle/tests/defects.rs::the_last_place_for_a_program_is_never_used`, `datapath-shims/sim/tests/suite/conformance.rs::keeps_the_contract_on_live_flows`, `datapath-shims/ebpf/tests/live/behaviour.rs::keeps_the_contract_on_live_flows` |
//! | libccp: an agent's first program (uid 1) wipes all others, mid-flow: two agents wipe each other's | `experiments/oracle/tests/defects.rs::a_second_agent_wipes_the_first_ones_programs`, `experiments/cli/tests/suite/agent.rs::a_second_agent_is_refused_and_harms_nothing`, `experiments/cli/tests/live/kernel.rs::a_second_agent_elsewhere_does_not_take_the_kernels_flows`, `datapath-shims/ebpf/tests/live/flows.rs::a_second_agent_is_refused`, `datapath-shims/channel/src/hub/tests.rs::a_libccp_flow_is_steered_from_create_to_close`; our agent sends uid 1 only where it does not know what the table holds, with all programs after it, each flow's in its place or set again: `datapath-shims/channel/src/hub/tests.rs::a_taken_over_flow_keeps_its_fields_when_the_table_is_written_anew`, `experiments/oracle/tests/agent.rs::twelve_restarts_leave_room_for_programs_and_lose_no_flow` |
//! | libccp: never frees a program, and says nothing of one that it does not hold: its flow runs nothing | `experiments/oracle/tests/agent.rs::a_table_without_the_flows_program_is_noticed`, `datapath-shims/channel/src/hub/tests.rs::a_program_that_is_not_held_is_noticed` |
//! | libccp: without an agent a flow keeps its first window for ever | `experiments/oracle/tests/defects.rs::a_flow_without_an_agent_is_not_steered_at_all`, `datapath-shims/ebpf/tests/live/flows.rs::a_silent_agent_leaves_flows_to_the_native_algorithm`, `datapath-shims/sim/tests/suite/goldens.rs::native_reno_fills_a_link` |
//! | libccp: a flow in fallback does not come back when the agent does | `experiments/oracle/tests/defects.rs::a_flow_in_fallback_does_not_come_back_by_itself`, `datapath-shims/sim/tests/suite/conformance.rs::keeps_the_contract_on_live_flows`, `datapath-shims/ebpf/tests/live/behaviour.rs::keeps_the_contract_on_live_flows`, `experiments/cli/tests/live/kernel.rs::a_hung_agents_flow_runs_natively_and_flows_says_so` |
//! | ccp-kernel: `kill -9` of the agent stops its flows | `experiments/cli/tests/live/kernel.rs::a_flow_survives_kill_9_and_the_next_agent_adopts_it`, `experiments/oracle/tests/agent.rs::after_kill_9_the_next_agent_steers_the_flow_again` |
//! | ccp-kernel: any local user's INSTALL wipes all programs | `experiments/cli/tests/suite/agent.rs::another_user_is_refused_even_where_file_modes_let_it_in`, `experiments/cli/tests/live/kernel.rs::another_user_cannot_reach_the_kernels_programs` |
//! | libccp crate: exports `log`, so that `f64::ln` crashes; builds in its own source directory | `experiments/oracle/tests/defects.rs::float_logarithms_break_beside_libccp`, `experiments/oracle/tests/defects.rs::nothing_else_links_libccp_or_portus`, `agent/program/tests/suite/properties.rs::float_logarithms_are_right_beside_our_crates` |
//! | libccp crate: takes its table of flows from `malloc` and does not clear it | `experiments/oracle/tests/defects.rs::a_table_of_reused_memory_is_not_cleared` |
//! | portus: `\|\|` is a sum | `experiments/oracle/tests/defects.rs::true_or_true_is_true` |
//! | portus: panics on comments in clauses and on some operators | `experiments/oracle/tests/defects.rs::what_panics_portus_compiles_here` |
//! | portus: refuses comments of two lines | `experiments/oracle/tests/defects.rs::comments_of_two_lines` |
//! | portus: a misspelt name is a new local | `experiments/oracle/tests/defects.rs::misspelt_names_are_refused` |
//! | portus: updates of unknown fields are printed and swallowed | `experiments/oracle/tests/defects.rs::updates_of_unknown_fields_are_refused` |
//! | portus: `>=` and `<=` are documented and not parsed | `experiments/oracle/tests/defects.rs::comparisons_that_the_guide_documents` |
//! | portus: 16 report and 16 control registers | `experiments/oracle/tests/defects.rs::more_registers_than_portus_has` |
//! | portus: reinterprets unaligned bytes | `experiments/oracle/tests/wire.rs::unaligned_messages_parse_the_same` |
//! | portus: panics on short messages | `experiments/oracle/tests/wire.rs::short_messages_panic_in_portus_and_are_errors_here` |
//! | portus: one INSTALL datagram kills the agent | `experiments/oracle/tests/wire.rs::messages_for_a_datapath_kill_a_portus_agent_and_are_errors_here`, `experiments/oracle/tests/portus_agent.rs::one_datagram_kills_a_portus_agent_and_not_ours` |
//! | portus: message types above 255 are taken for others | `experiments/oracle/tests/wire.rs::a_type_above_one_byte_is_not_taken_for_another` |
//! | portus: panics when it writes an algorithm's name | `experiments/oracle/tests/wire.rs::an_algorithm_name_panics_in_portus_and_is_written_here` |
//! | portus: a datapath that ends before it was answered ends the agent | `experiments/oracle/tests/portus_agent.rs::a_datapath_that_vanishes_ends_a_portus_agent_and_not_ours`, `datapath-shims/channel/src/hub/tests.rs::a_datapath_that_vanishes_closes_its_flows` |
//! | portus: removes the socket of a live process that has its name | `experiments/oracle/tests/portus_agent.rs::an_agent_whose_socket_portus_takes_says_so`, `experiments/oracle/tests/portus_agent.rs::a_live_portus_keeps_its_socket` |
//! | portus: receives 1024 bytes of a datagram | `experiments/oracle/tests/portus_agent.rs::long_datagrams_are_heard_to_their_end` |
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ::libccp::{CongestionOps, Connection, DatapathBuilder, DatapathOps, FlowInfo};
use ccplane_oracle::libccp::{Invocation, Libccp, MAX_PROGRAMS, update_reg};
use ccplane_oracle::portus::{Verdict, compile as portus};
use ccplane_program::compile;
use ccplane_program::ir::{
    Clause, Dst, Inst, MAX_REGS, Op, Prim, Program, RegDecl, RegKind, Src, Type, VerifyError,
};
use ccplane_program::lang::Problem;
use ccplane_program::stock::{ENTRY_BYTES, Limits, Refusal, STOCK_INFINITY, lower, lower_within, reported};
use ccplane_program::vm::{Prims, ProgramState};
use ccplane_testing::poll_within;
use ccplane_wire::List;
use ccplane_wire::v1::{ToDatapath, Update};

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
fn ours(source: &str) -> (Option<Vec<i64>>, ProgramState) {
    let program = compiled(source);
    let mut flow = ProgramState::new(&program, i64::from(CWND), 0);
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
}

/// libccp takes any number of instructions, and writes those beyond its 256 over its next programs. After those it
/// writes over the heap. (Here 700 end within the table.)
#[test]
fn programs_of_700_instructions_write_over_others() {
    let Verdict::Bytes(bytes) = portus(&binds(700)) else { panic!("portus refuses 700 instructions") };
    let mut libccp = Libccp::new();
    assert_eq!(libccp.install_raw(UID, 1, 703, &bytes), 0, "libccp says that all is well");

    assert!(matches!(lower(&compiled(&binds(700))), Err(Refusal::TooMany { found: 703, .. })));
    assert_eq!(ours(&binds(700)).0, Some(vec![1]));
    assert!(compile(&binds(1100)).is_err());
}

/// libccp looks for a free place one short of its table's end: ours says how many there are, and holds as many.
#[test]
fn the_last_place_for_a_program_is_never_used() {
    const TABLE_FULL: i32 = -81;
    let stock = lower(&compiled(&binds(1))).unwrap();
    let mut libccp = Libccp::new();
    let codes: Vec<i32> = (2..2 + MAX_PROGRAMS as u32).map(|uid| libccp.install(uid, &stock)).collect();
    let (last, others) = codes.split_last().unwrap();
    assert!(others.iter().all(|code| *code == 0) && *last == TABLE_FULL, "{codes:?}");
}

/// libccp takes a program of uid 1 for a sign that an agent started, and forgets all others, also those that run:
/// their flows then run whatever comes to lie in their place.
#[test]
fn a_second_agent_wipes_the_first_ones_programs() {
    let source = |value| format!("(def (Report (a {value})))\n(when true (report))");
    let [first, second] = [1, 2].map(|v| lower(&compiled(&source(v))).unwrap());
    let mut libccp = Libccp::new();
    assert_eq!(libccp.install(UID, &first), 0);
    libccp.change_program(UID, &[]);
    assert_eq!(libccp.invoke(&Prims::default(), CWND, 0).report, Some(vec![1]));
    assert_eq!(libccp.install(1, &second), 0);
    let other = libccp.invoke(&Prims::default(), CWND, 0).report;
    assert_eq!(other, Some(vec![]), "a report of the second agent's program, which this flow never started");
}

/// libccp has no algorithm of its own: without a program nothing sets a window.
#[test]
fn a_flow_without_an_agent_is_not_steered_at_all() {
    const NO_PROGRAM: i32 = -96;
    let mut libccp = Libccp::new();
    for _ in 0..1000 {
        let nothing = Invocation { code: NO_PROGRAM, ..Invocation::default() };
        assert_eq!(libccp.invoke(&Prims::default(), CWND, 0), nothing);
    }
}

/// One instruction does the work of portus's two for each operation, where two are too many.
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

/// libccp's infinity has 32 bits, an initial value of 0x3fffffff becomes it, and other numbers are below; portus's have 31.
#[test]
fn immediates_have_64_bits_here() {
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

    assert!(!matches!(portus(&source("2147483648")), Verdict::Bytes(_)));
    assert_eq!(ours_on_libccp(&source("4294967294")), Some(vec![4_294_967_294]));
    for init in ["4294967295", "-1"] {
        assert!(matches!(lower(&compiled(&source(init))), Err(Refusal::Init { .. })));
        let body = format!("(def (Report (a 0)))\n(when true (:= Report.a {init}) (report))");
        assert!(matches!(lower(&compiled(&body)), Err(Refusal::Immediate { inst: 0, .. })));
    }
}

/// libccp gives up its program when it cannot reach the agent, and then does not try again: an agent that was
/// restarted hears nothing of the flow until it speaks first, to a datapath that it has not heard of.
#[test]
fn a_flow_in_fallback_does_not_come_back_by_itself() {
    const TIMED_OUT: i32 = -101;
    let stock = lower(&compiled("(def (Report (a 1)))\n(when true (report))")).unwrap();
    let mut libccp = Libccp::new();
    libccp.install(UID, &stock);
    libccp.change_program(UID, &[]);
    let mut now_us = 0;
    let mut ack = |libccp: &mut Libccp| {
        now_us += 10_000;
        libccp.invoke(Prims::default().set(Prim::AckNow, now_us), CWND, 0)
    };
    assert_eq!(ack(&mut libccp).report, Some(vec![1]));
    libccp.set_agent_gone(true);
    let codes: Vec<i32> = (0..200).map(|_| ack(&mut libccp).code).collect();
    assert_eq!((codes[0], codes[199]), (0, TIMED_OUT));
    libccp.set_agent_gone(false);
    for _ in 0..1000 {
        assert_eq!(ack(&mut libccp), Invocation { code: TIMED_OUT, ..Invocation::default() });
    }
    libccp.update(&[]);
    assert_eq!(ack(&mut libccp).report, Some(vec![1]));
    // What the agent says first over ccp-kernel's links, of no flow, is enough.
    libccp.set_agent_gone(true);
    let codes: Vec<i32> = (0..200).map(|_| ack(&mut libccp).code).collect();
    assert_eq!(codes[199], TIMED_OUT);
    libccp.set_agent_gone(false);
    let mut message = Vec::new();
    ToDatapath::Update(Update { sid: 0, fields: List::from(&[][..]) }).encode(&mut message).unwrap();
    libccp.receive(&message);
    assert_eq!(ack(&mut libccp).report, Some(vec![1]));
}

/// portus's guide has them, its parser has not.
#[test]
fn comparisons_that_the_guide_documents() {
    for (comparison, holds) in
        [("(>= 2 2)", true), ("(<= 2 2)", true), ("(>= 1 2)", false), ("(<= 2 1)", false)]
    {
        let source = format!("(def (Report (a 0)))\n(when {comparison} (:= Report.a 1) (report))");
        assert!(!matches!(portus(&source), Verdict::Bytes(_)), "{source}");
        let expected = holds.then(|| vec![1]);
        assert_eq!(ours(&source).0, expected, "{source}");
        assert_eq!(ours_on_libccp(&source), expected, "{source}");
    }
}

/// portus gives up at the 17th of each kind.
#[test]
fn more_registers_than_portus_has() {
    let source = |n: usize| {
        let regs: String = (0..n).map(|r| format!("(r{r} {r})")).collect();
        format!("(def (Report {regs}))\n(when true (report))")
    };
    assert!(matches!(portus(&source(16)), Verdict::Bytes(_)));
    assert!(!matches!(portus(&source(17)), Verdict::Bytes(_)));
    assert_eq!(ours(&source(60)).0, Some((0..60).collect()));
    let within_portus = lower_within(&compiled(&source(17)), &Limits::PORTUS);
    assert!(matches!(within_portus, Err(Refusal::TooMany { found: 17, limit: 16, .. })));
    assert_eq!(ours_on_libccp(&source(96)), Some((0..96).collect()), "libccp has room for 110");
    assert!(compile(&source(97)).is_err());
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
fn what_panics_portus_compiles_here() {
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

/// portus refuses a comment of two lines.
#[test]
fn comments_of_two_lines() {
    let source = "(def (a 0))\n# one\n# two\n(when true (:= a 1))";
    assert!(matches!(portus(source), Verdict::Refused(_)));
    let Verdict::Bytes(theirs) = portus(&source.replace("# two\n", "")) else { panic!("refused") };
    assert_eq!(lower(&compiled(source)).expect("stock").bytes(), theirs);
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

/// Exit status of the child that found no free flow.
const TABLE_FULL: i32 = 3;
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
    poll_within(limit, || child.try_wait().expect("the child can be asked").ok_or(())).is_ok()
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

/// A reused block of memory, which glibc imitates with `MALLOC_PERTURB_`, leaves no flow free; fresh pages do.
#[test]
fn a_table_of_reused_memory_is_not_cleared() {
    const NAME: &str = "table";
    struct Silent;
    impl DatapathOps for Silent {
        fn send_msg(&mut self, _: &[u8]) {}
    }
    impl CongestionOps for Silent {
        fn set_cwnd(&mut self, _: u32) {}
        fn set_rate_abs(&mut self, _: u32) {}
    }
    if in_child(NAME) {
        let theirs = DatapathBuilder::default().with_ops(Silent).init().unwrap();
        let started = Connection::start(&theirs, Silent, FlowInfo::default()).is_ok();
        std::process::exit(if started { 0 } else { TABLE_FULL });
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_table_of_reused_memory_is_not_cleared"]).env(CHILD, NAME);
    child.stdout(Stdio::null()).stderr(Stdio::null());
    assert_eq!(child.env("MALLOC_PERTURB_", "1").status().unwrap().code(), Some(TABLE_FULL));
    for _ in 0..100 {
        // A block of the table's size that is written and freed raises the size from which glibc asks the kernel.
        std::hint::black_box(vec![0xab_u8; 1 << 20]);
        let ours = ccplane_oracle::libccp::datapath(Silent, 0).unwrap();
        let _flow = Connection::start(&ours, Silent, FlowInfo::default()).unwrap();
    }
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Its symbols clash with libc's, it writes into the registry's sources as it builds and does not look whether `make`
/// failed: no program of ours has it.
/// The host of portus algorithms brings none itself: its tests and example do, and no other crate depends on it.
#[test]
fn nothing_else_links_libccp_or_portus() {
    const HOST: &str = "agent/portus";
    let root = workspace();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let members = manifest.split_once("members = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
    let (mut manifests, mut hosted) = (1, 0);
    for member in members.split('"').skip(1).step_by(2).filter(|m| *m != "experiments/oracle") {
        let text = fs::read_to_string(root.join(member).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in text.lines().chain(manifest.lines().filter(|l| l.contains(" = "))) {
            if line.starts_with('[') {
                section = line;
            }
            let name = line.split(['=', '.', ' ']).next().unwrap();
            let renamed = line.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
            let package = renamed.unwrap_or(name);
            if member == HOST && ["portus", "generic_cong_avoid"].contains(&package) {
                assert_eq!(section, "[dev-dependencies]", "{line}");
                hosted += 1;
                continue;
            }
            let apart = ["libccp", "portus", "generic_cong_avoid", "ccplane-oracle", "ccplane-portus-host"];
            assert!(!apart.contains(&package), "{member}: {line}");
        }
        manifests += 1;
    }
    // Two portuses, and an algorithm crate.
    assert!(manifests >= 10 && hosted == 3, "{members}: {hosted} of portus");
}

/// The table above names tests that exist.
#[test]
fn the_table_of_defects_is_not_stale() {
    let table = include_str!("defects.rs").lines().filter_map(|line| line.strip_prefix("//! | "));
    let (mut defects, mut tests) = (0, 0);
    for line in table.skip(1) {
        let named: Vec<&str> = line.split('`').filter(|word| word.contains(".rs::")).collect();
        assert!(!named.is_empty(), "no test: {line}");
        defects += 1;
        for test in named {
            let (file, function) = test.split_once("::").unwrap();
            let text = fs::read_to_string(workspace().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            let is_test = text.split("#[test]").skip(1).any(|after| {
                let signature = after.lines().find(|l| l.trim_start().starts_with("fn ")).unwrap_or_default();
                signature.trim_start().starts_with(&format!("fn {function}("))
            });
            // Those that `make attack` repeats are named in a list.
            let repeated = text.split_once("mishaps! {").and_then(|(_, list)| list.split('}').next());
            let is_repeated = repeated.unwrap_or_default().contains(&format!(" {function},"));
            assert!(is_test || is_repeated, "{file} has no test {function}");
            tests += 1;
        }
    }
    assert!(defects >= 30 && tests > defects, "{defects} defects, {tests} tests");
}

//! Histories and policies, on the reference VM and on [`FastVm`].

use ccplane_program::compile;
use ccplane_program::ir::{MAX_REGS, Prim, Program};
use ccplane_program::vm::{
    Decision, FastVm, InvokeOutcome, Knobs, NoPolicies, Policies, Prims, ProgramState,
};

/// Answers with what it was given, and keeps what it was asked.
struct Scripted {
    answer: Decision,
    knobs: Knobs,
    asked: Vec<(u8, Vec<i32>, Knobs)>,
}

impl Scripted {
    fn new(answer: Decision, cwnd_bytes: i64, rate_bytes_per_s: i64) -> Scripted {
        Scripted { answer, knobs: Knobs { cwnd_bytes, rate_bytes_per_s }, asked: Vec::new() }
    }
}

impl Policies for Scripted {
    fn decide(&mut self, slot: u8, inputs: &[i32], knobs: &mut Knobs) -> Decision {
        self.asked.push((slot, inputs.to_vec(), *knobs));
        *knobs = self.knobs;
        self.answer
    }
}

const ACTION: Decision = Decision::Action { action_q16: -70_000, snapshot: u32::MAX };

fn ack(bytes: i64) -> Prims {
    let mut prims = Prims::default();
    prims.set(Prim::AckBytesAcked, bytes);
    prims
}

/// One ACK, on both; what they agree on.
fn invoke(
    program: &Program,
    flow: &mut ProgramState,
    prims: &Prims,
    policies: &mut Scripted,
) -> (InvokeOutcome, [i64; MAX_REGS]) {
    let (mut fast, mut reports) = (flow.clone(), [[0; MAX_REGS]; 2]);
    let mut same = Scripted::new(policies.answer, policies.knobs.cwnd_bytes, policies.knobs.rate_bytes_per_s);
    let mut machine = FastVm::new(program).unwrap();
    let outcome = machine.invoke_with(&mut fast, prims, &mut same, &mut reports[1]);
    assert_eq!(machine.regs(), &fast.regs[..program.regs().len()]);
    policies.asked.clear();
    assert_eq!(flow.invoke_with(program, prims, policies, &mut reports[0]), outcome);
    assert_eq!((&*flow, &policies.asked, reports[0]), (&fast, &same.asked, reports[1]));
    (outcome, reports[0])
}

#[test]
fn a_policy_sees_all_histories_and_the_window_that_the_clause_has_left() {
    let program = compile(
        "(def (Report (x 0)) (n 0))
         (when true
            (:= Report.x Ack.bytes_acked) (:= n (+ n 1)) (:= Cwnd 20000) (:= Rate (- 0 7))
            (history 2 Report.x n) (history 3 n) (policy 5) (history 3 n) (report))",
    )
    .unwrap();
    assert_eq!((program.policy_inputs(), program.policy_slots()), (7, vec![5]));
    let mut flow = ProgramState::new(&program, 14_480, 0);
    let mut policies = Scripted::new(ACTION, 30_000, 40_000);
    let (outcome, _) = invoke(&program, &mut flow, &ack(10), &mut policies);
    assert_eq!(outcome, InvokeOutcome { report: true, asked: true, native: false });
    let knobs = Knobs { cwnd_bytes: 20_000, rate_bytes_per_s: -7 };
    assert_eq!(policies.asked, [(5, vec![0, 0, 10, 1, 0, 0, 1], knobs)]);
    assert_eq!((flow.cwnd_bytes, flow.rate_bytes_per_s), (30_000, 40_000));
    assert_eq!((flow.action_q16, flow.snapshot), (-70_000, u32::MAX));
    invoke(&program, &mut flow, &ack(i64::MAX), &mut policies);
    assert_eq!(policies.asked[0].1, [10, 1, i32::MAX, 2, 1, 1, 2]);
    assert_eq!(flow.histories[4..7], [1, 2, 2]);
    assert_eq!(flow.histories[7..], [0; 57]);
}

#[test]
fn a_copy_of_what_the_program_uses_is_the_flow() {
    let program = compile(
        "(def (Report (x 0)) (n 0))
         (when true (:= Report.x Ack.bytes_acked) (:= n (+ n 1)) (history 3 n) (policy 5) (:= Report.x (/ n (- n n))) (report))",
    )
    .unwrap();
    let mut flow = ProgramState::new(&program, 14_480, 9);
    (flow.priority, flow.path, flow.decide_at_bytes) = (2, 1, 77);
    for bytes in [10, 20] {
        invoke(&program, &mut flow, &ack(bytes), &mut Scripted::new(ACTION, 30_000, 40_000));
    }
    let mut copy = ProgramState::idle(0);
    copy.copy_used(&flow, &flow.regs[..program.regs().len()], &program);
    assert!(flow.faults > 0 && flow.histories[..3] == [0, 1, 2], "{flow:?}");
    assert_eq!(copy, flow);
}

#[test]
fn the_rest_of_the_program_sees_the_decision() {
    let program = compile(
        "(def (Report (cwnd 0) (rate 0) (action 0) (snapshot 0) (before 0)))
         (when true (:= Report.before Policy.action) (history 1 Report.cwnd) (policy 0) (fallthrough))
         (when (== Policy.snapshot 4294967295)
            (:= Report.cwnd Cwnd) (:= Report.rate Rate) (:= Report.action Policy.action)
            (:= Report.snapshot Policy.snapshot) (report))",
    )
    .unwrap();
    let mut flow = ProgramState::new(&program, 14_480, 0);
    let (_, report) = invoke(&program, &mut flow, &ack(0), &mut Scripted::new(ACTION, 5, 6));
    assert_eq!(report[..5], [5, 6, -70_000, u32::MAX.into(), 0]);
    let (_, report) = invoke(&program, &mut flow, &ack(0), &mut Scripted::new(ACTION, -5, -6));
    assert_eq!(report[..5], [-5, -6, -70_000, u32::MAX.into(), -70_000]);
    assert_eq!((flow.cwnd_bytes, flow.rate_bytes_per_s), (5, 6), "what is no decision changes nothing");
    flow.start(&program, 0);
    assert_eq!((flow.action_q16, flow.snapshot, flow.histories), (0, 0, [0; 64]));
}

#[test]
fn without_an_answer_the_invocation_ends_as_it_would() {
    let program = compile(
        "(def (Report (x 0)))
         (when true (history 1 Report.x) (policy 0) (:= Report.x 9) (:= Cwnd 3000) (report))",
    )
    .unwrap();
    let mut flow = ProgramState::new(&program, 14_480, 0);
    let (outcome, report) =
        invoke(&program, &mut flow, &ack(0), &mut Scripted::new(Decision::Native, 77, 77));
    assert_eq!(outcome, InvokeOutcome { report: true, asked: true, native: true });
    assert_eq!((report[0], flow.cwnd_bytes, flow.rate_bytes_per_s), (9, 3000, 0));
    assert!(flow.invoke_with(&program, &ack(0), &mut NoPolicies, &mut [0; MAX_REGS]).native);
    let silent = compile("(def (Report (x 0))) (when true (history 1 Report.x) (report))").unwrap();
    let outcome = flow.invoke(&silent, &ack(0), &mut [0; MAX_REGS]);
    assert_eq!(outcome, InvokeOutcome { report: true, asked: false, native: false });
}

#[test]
fn without_an_answer_there_is_no_last_action() {
    let program = compile(
        "(def (Report (action 0) (snapshot 0)))
         (when true (history 1 Report.action) (policy 0)
            (:= Report.action Policy.action) (:= Report.snapshot Policy.snapshot) (report))",
    )
    .unwrap();
    let mut flow = ProgramState::new(&program, 14_480, 0);
    let (_, report) = invoke(&program, &mut flow, &ack(0), &mut Scripted::new(ACTION, 3000, 0));
    assert_eq!(report[..2], [-70_000, u32::MAX.into()]);
    let (_, report) = invoke(&program, &mut flow, &ack(0), &mut Scripted::new(Decision::Native, 0, 0));
    assert_eq!((&report[..2], flow.action_q16, flow.snapshot), (&[0, 0][..], 0, 0));
}

#[test]
fn a_machine_holds_so_many_constants() {
    let program = |constants: usize| {
        let body: String = (0..constants).map(|n| format!("(:= x (+ x {}))", 1000 + n)).collect();
        compile(&format!("(def (x 0)) (when true {body})")).unwrap()
    };
    let limit = FastVm::new(&program(500)).unwrap_err().limit;
    assert!(FastVm::new(&program(limit)).is_ok());
    assert!(FastVm::new(&program(limit + 1)).is_err());
    let repeated = "(:= x (+ x 7))".repeat(900);
    assert!(FastVm::new(&compile(&format!("(def (x 0)) (when true {repeated})")).unwrap()).is_ok());
}

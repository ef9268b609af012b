//! Guards, which [`FastVm`] leaves at the first test that fails, do what they do in the reference VM.

use ccplane_program::compile;
use ccplane_program::ir::{MAX_REGS, Prim};
use ccplane_program::vm::{FastVm, NoPolicies, Prims, ProgramState};

/// Counts how often a guard holds on ACKs of all combinations of four small numbers; the runs that it held in, and all faults.
fn holds(guard: &str) -> (i64, u64) {
    let text = format!(
        "(def (many 3000000000000) (flag false) (held 0))
         (when true (:= flag (> Ack.ecn_bytes 0)) (fallthrough))
         (when {guard} (:= held (+ held 1)))"
    );
    let program = compile(&text).unwrap();
    let (mut machine, mut slow) = (FastVm::new(&program).unwrap(), ProgramState::new(&program, 14_480, 0));
    let mut fast = slow.clone();
    for n in 0..16 {
        let mut prims = Prims::default();
        let bits = [Prim::AckBytesAcked, Prim::AckEcnBytes, Prim::FlowBytesPending, Prim::FlowWasTimeout];
        for (prim, bit) in bits.into_iter().zip(0..) {
            prims.set(prim, n >> bit & 1);
        }
        let outcome = slow.invoke(&program, &prims, &mut [0; MAX_REGS]);
        assert_eq!(machine.invoke_with(&mut fast, &prims, &mut NoPolicies, &mut [0; MAX_REGS]), outcome);
        assert_eq!(fast, slow, "{guard}, ACK {n}");
    }
    let held = program.reg("held").map_or(0, |reg| slow.regs[usize::from(reg)]);
    (held, slow.faults)
}

const ACKED: &str = "(== Ack.bytes_acked 1)";
const PENDING: &str = "(>= Flow.bytes_pending 1)";
/// True and counted as a fault whenever it is computed.
const SATURATES: &str = "(< Ack.bytes_acked (* many many))";

#[test]
fn a_conjunction_holds_where_all_of_its_parts_do() {
    assert_eq!(holds(&format!("(&& {ACKED} {PENDING})")), (4, 0));
    assert_eq!(holds(&format!("(&& {ACKED} (&& flag {PENDING}))")), (2, 0));
    assert_eq!(holds(&format!("(&& (&& Flow.was_timeout flag) (&& {ACKED} {PENDING}))")), (1, 0));
    assert_eq!(holds(&format!("(&& (|| {ACKED} flag) {PENDING})")), (6, 0));
    assert_eq!(holds(&format!("(|| (&& {ACKED} flag) {PENDING})")), (10, 0));
    assert_eq!(holds("(&& flag (&& true (<= Ack.bytes_acked 0)))"), (4, 0));
}

#[test]
fn a_guard_that_fails_counts_its_faults_all_the_same() {
    for guard in [
        format!("(&& {ACKED} {SATURATES})"),
        format!("(&& {SATURATES} {ACKED})"),
        format!("(&& (&& {ACKED} (|| {ACKED} flag)) {SATURATES})"),
    ] {
        assert_eq!(holds(&guard), (8, 16), "{guard}");
    }
    assert_eq!(holds(&format!("(&& flag {SATURATES})")), (8, 16));
    assert_eq!(holds(&format!("(&& {SATURATES} (&& flag {PENDING}))")), (4, 16));
}

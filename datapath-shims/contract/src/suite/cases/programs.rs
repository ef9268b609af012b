//! Clauses, windows, rates, `Micros`, reports, and what the agent stages.

use super::case::{Case, CaseError, Expectation, Observable};
use crate::command::Field;
use crate::suite::executor::Script;
use crate::suite::operation::{AckStream, Operation};
use ccplane_infer::Shape;
use ccplane_program::compile;
use ccplane_program::ir::{INFINITY, MAX_CWND_BYTES, MAX_RATE_BYTES_PER_S, Prim};
use ccplane_program::vm::Prims;

const INIT_CWND: i64 = 14_480;

/// A case in the making.
pub(super) struct Draft {
    pub(super) name: &'static str,
    sources: Vec<&'static str>,
    operations: Vec<Operation>,
    expectations: Vec<Expectation>,
    pub(super) slots: Vec<(u8, Shape)>,
    pub(super) images: Vec<Vec<u64>>,
}

pub(super) fn case(name: &'static str, source: &'static str) -> Draft {
    Draft {
        name,
        sources: vec![source],
        operations: Vec::new(),
        expectations: Vec::new(),
        slots: Vec::new(),
        images: Vec::new(),
    }
}

impl Draft {
    pub(super) fn program(mut self, source: &'static str) -> Draft {
        self.sources.push(source);
        self
    }
    /// Any ACK at all.
    pub(super) fn ack(self) -> Draft {
        self.op(Operation::Ack { packets: 1, rtt_us: 20_000 })
    }
    /// An ACK at this time with this many bytes acknowledged.
    fn ack_at(self, now_us: i64, bytes: i64) -> Draft {
        let mut prims = Prims::default();
        prims.set(Prim::AckNow, now_us).set(Prim::AckBytesAcked, bytes);
        self.op(Operation::Raw(prims))
    }
    pub(super) fn op(mut self, operation: Operation) -> Draft {
        self.operations.push(operation);
        self
    }
    pub(super) fn update(self, fields: &[(Field, i64)]) -> Draft {
        self.op(Operation::UpdateField(fields.to_vec()))
    }
    pub(super) fn set_program(self, program: usize, fields: &[(Field, i64)]) -> Draft {
        self.op(Operation::SetProgram { program, fields: fields.to_vec() })
    }
    /// Of the last invocation so far.
    pub(super) fn expect(mut self, what: Observable, value: i64) -> Draft {
        let acks = self.operations.iter().filter(|op| is_ack(op)).count();
        self.expectations.push(Expectation { invocation: acks.saturating_sub(1), what, value });
        self
    }
    fn reg(self, name: &str, value: i64) -> Draft {
        self.expect(Observable::Reg(name.to_owned()), value)
    }
    pub(super) fn reported(self, name: &str, value: i64) -> Draft {
        self.expect(Observable::Reported(name.to_owned()), value)
    }
    pub(super) fn silent(self) -> Draft {
        self.expect(Observable::DidReport, 0)
    }
    pub(super) fn cwnd(self, value: i64) -> Draft {
        self.expect(Observable::Cwnd, value)
    }
    pub(super) fn rate(self, value: i64) -> Draft {
        self.expect(Observable::Rate, value)
    }
    fn faults(self, value: i64) -> Draft {
        self.expect(Observable::Faults, value)
    }
    pub(super) fn done(self) -> Result<Case, CaseError> {
        let error = |reason| CaseError { name: self.name.to_owned(), reason };
        let mut programs = Vec::new();
        for source in &self.sources {
            let first = |d: Vec<ccplane_program::Diagnostic>| format!("{:?}", d.first());
            programs.push(compile(source).map_err(|d| error(first(d)))?);
        }
        let steps = AckStream::steps(&self.operations);
        let (slots, images) = (self.slots, self.images);
        let script = Script { slots, images, ..Script::new(programs, INIT_CWND, steps) };
        Ok(Case { name: self.name.to_owned(), script, expectations: self.expectations })
    }
}

fn is_ack(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Ack { .. }
            | Operation::Loss { .. }
            | Operation::Ecn { .. }
            | Operation::Timeout
            | Operation::Idle { .. }
            | Operation::Raw(_)
    )
}

pub(super) fn cases() -> Result<Vec<Case>, CaseError> {
    let drafts = [clauses(), windows(), micros(), reports(), measurements(), segment_size(), staging()];
    drafts.into_iter().flatten().map(Draft::done).collect()
}

fn clauses() -> Vec<Draft> {
    vec![
        case(
            "the first clause that holds is the last to run",
            "(def (Report (a 0) (b 0) (c 0)))
             (when false (:= Report.a 1))
             (when true (:= Report.b 1))
             (when true (:= Report.c 1))",
        )
        .ack()
        .reg("Report.a", 0)
        .reg("Report.b", 1)
        .reg("Report.c", 0),
        case(
            "one fallthrough holds for the rest of the invocation",
            "(def (Report (a 0) (b 0) (c 0)))
             (when true (fallthrough) (:= Report.a (+ Report.a 1)))
             (when true (:= Report.b (+ Report.b 1)))
             (when true (:= Report.c (+ Report.c 1)))",
        )
        .ack()
        .ack()
        .reg("Report.a", 2)
        .reg("Report.b", 2)
        .reg("Report.c", 2),
        case(
            "a fallthrough in a clause that does not hold is none",
            "(def (Report (a 0) (b 0)))
             (when (> Ack.bytes_acked 100) (fallthrough))
             (when true (:= Report.a (+ Report.a 1)))
             (when true (:= Report.b (+ Report.b 1)))",
        )
        .ack_at(1, 100)
        .ack_at(2, 101)
        .reg("Report.a", 2)
        .reg("Report.b", 1),
        case(
            "a guard's binds happen whether it holds or not",
            "(def (Report (seen 0)) (count 0))
             (when (> (:= count (+ count 1)) 2) (:= Report.seen count))
             (when true (:= Report.seen (- 0 count)))",
        )
        .ack()
        .reg("Report.seen", -1)
        .ack()
        .ack()
        .reg("Report.seen", 3),
        case("a program without statements changes nothing", "(def (a 7)) (when true)")
            .ack()
            .silent()
            .reg("a", 7)
            .cwnd(INIT_CWND)
            .rate(0)
            .faults(0),
        case(
            "locals keep their values and start at zero",
            "(def (Report (x 0)))
             (when (> Ack.bytes_acked 5) (:= keep (+ Ack.bytes_acked 1)) (fallthrough))
             (when true (:= keep (+ keep 1)) (:= Report.x keep))",
        )
        .ack_at(1, 0)
        .reg("Report.x", 1)
        .ack_at(2, 10)
        .reg("Report.x", 12)
        .ack_at(3, 0)
        .reg("Report.x", 13),
        case(
            "a deep expression keeps its temporaries apart",
            "(def (Report (x 0)))
             (when true (:= Report.x
               (+ (* 1 2) (+ (* 3 4) (+ (* 5 6) (+ (* 7 8) (+ (* 9 10) (+ (* 11 12) (* 13 14)))))))))",
        )
        .ack()
        .reg("Report.x", 504),
    ]
}

fn windows() -> Vec<Draft> {
    vec![
        case(
            "a window that is not positive is no decision",
            "(def (x 0) (Report (read 0))) (when true (:= Cwnd x) (:= Report.read Cwnd))",
        )
        .ack()
        .cwnd(INIT_CWND)
        .update(&[(Field::Reg(1), -1)])
        .ack()
        .reg("Report.read", -1)
        .cwnd(INIT_CWND)
        .update(&[(Field::Reg(1), 1)])
        .ack()
        .cwnd(1),
        case(
            "windows and rates are clamped after the program, not within it",
            "(def (x 0) (Report (cwnd 0) (rate 0)))
             (when true (:= Cwnd x) (:= Rate x) (:= Report.cwnd Cwnd) (:= Report.rate Rate))",
        )
        .update(&[(Field::Reg(2), i64::MAX)])
        .ack()
        .reg("Report.cwnd", i64::MAX)
        .reg("Report.rate", i64::MAX)
        .cwnd(MAX_CWND_BYTES)
        .rate(MAX_RATE_BYTES_PER_S)
        .update(&[(Field::Reg(2), MAX_CWND_BYTES - 1)])
        .ack()
        .cwnd(MAX_CWND_BYTES - 1)
        .rate(MAX_CWND_BYTES - 1),
        case("a negative rate is no decision, zero is one", "(def (x 5000)) (when true (:= Rate x))")
            .ack()
            .rate(5000)
            .update(&[(Field::Reg(0), -1)])
            .ack()
            .rate(5000)
            .update(&[(Field::Reg(0), i64::MIN)])
            .ack()
            .rate(5000)
            .update(&[(Field::Reg(0), 0)])
            .ack()
            .rate(0),
        case("rates above 32 bits are kept", "(def) (when true (:= Rate 12500000000) (:= Cwnd 5000000000))")
            .ack()
            .rate(12_500_000_000)
            .cwnd(5_000_000_000),
        case(
            "if and !if on the window",
            "(def)
             (when true (:= Cwnd (if Flow.was_timeout 1448)) (:= Rate (!if Flow.was_timeout 9000)))",
        )
        .ack()
        .cwnd(INIT_CWND)
        .rate(9000)
        .update(&[(Field::Rate, 77)])
        .op(Operation::Timeout)
        .cwnd(1448)
        .rate(77),
        case(
            "averages over the window and the rate",
            "(def) (when true (:= Cwnd (ewma 5 100)) (:= Rate (ewma 9 100)))",
        )
        .ack()
        .cwnd(7290)
        .rate(100)
        .update(&[(Field::Rate, 1000)])
        .ack()
        .cwnd(3695)
        .rate(910),
        case(
            "a window is kept to the byte",
            "(def) (when true (:= Cwnd (+ Cwnd (/ (* 1448 Ack.bytes_acked) Cwnd))))",
        )
        .ack_at(1, 1448)
        .cwnd(14_624)
        .ack_at(2, 1448)
        .cwnd(14_767),
    ]
}

fn micros() -> Vec<Draft> {
    vec![
        case("Micros counts from the first ACK", "(def (Report (x 0))) (when true (:= Report.x Micros))")
            .ack_at(5_000_000, 0)
            .reg("Report.x", 0)
            .ack_at(5_000_250, 0)
            .reg("Report.x", 250),
        case(
            "a write to Micros moves its origin",
            "(def (Report (x 0) (y 0)) (set -1))
             (when (>= set 0) (:= Micros set) (:= Report.y Micros))
             (when true (:= Report.x Micros))",
        )
        .ack_at(1_000_000, 0)
        .update(&[(Field::Reg(2), 40)])
        .ack_at(1_000_100, 0)
        .reg("Report.y", 40)
        .update(&[(Field::Reg(2), -1)])
        .ack_at(1_000_107, 0)
        .reg("Report.x", 47),
        case(
            "Micros saturates, which is no fault",
            "(def (Report (x 0)) (set -9223372036854775807))
             (when (> Ack.bytes_acked 0) (:= Micros set))
             (when true (:= Report.x Micros))",
        )
        .ack_at(10, 0)
        .ack_at(20, 1)
        .ack_at(9_223_372_036_854_775_807, 0)
        .reg("Report.x", 0)
        .faults(0)
        .ack_at(-9_223_372_036_854_775_807, 0)
        .reg("Report.x", i64::MIN)
        .faults(0),
        case(
            "averages over Micros",
            "(def (Report (x 0))) (when true (:= Micros (ewma 5 100)) (:= Report.x Micros))",
        )
        .ack_at(1000, 0)
        .reg("Report.x", 100)
        .ack_at(1200, 0)
        .reg("Report.x", 200),
    ]
}

fn reports() -> Vec<Draft> {
    vec![
        case(
            "volatile registers go back after a report, and only then",
            "(def (volatile c 5) (Report (volatile acked 3) (kept 0)))
             (when true
               (:= Report.acked (+ Report.acked Ack.bytes_acked)) (:= Report.kept (+ Report.kept 1))
               (:= c (+ c 1)) (fallthrough))
             (when (== Report.kept 2) (report))",
        )
        .ack_at(1, 100)
        .silent()
        .reg("Report.acked", 103)
        .reg("c", 6)
        .ack_at(2, 100)
        .reported("Report.acked", 203)
        .reported("Report.kept", 2)
        .reg("Report.acked", 3)
        .reg("Report.kept", 2)
        .reg("c", 5)
        .ack_at(3, 1)
        .silent()
        .reg("Report.acked", 4),
        case(
            "a report holds what the whole invocation left",
            "(def (Report (x 0))) (when true (report) (:= Report.x 9) (fallthrough)) (when true (:= Report.x (+ Report.x 1)))",
        )
        .ack()
        .reported("Report.x", 10),
        case("two reports in one invocation are one", "(def (Report (volatile x 0))) (when true (:= Report.x (+ Report.x 1)) (report) (report))")
            .ack()
            .reported("Report.x", 1)
            .ack()
            .reported("Report.x", 1),
        case(
            "reported truth values are 0 and 1",
            "(def (Report (yes false) (no true)))
             (when true (:= Report.yes (> Ack.bytes_acked 5)) (:= Report.no (< Ack.bytes_acked 5)) (report))",
        )
        .ack_at(1, 4_294_967_296)
        .reported("Report.yes", 1)
        .reported("Report.no", 0),
    ]
}

fn measurements() -> Vec<Draft> {
    vec![
        case(
            "no RTT sample is infinity",
            "(def (Report (least +infinity) (last 0)))
             (when true (:= Report.least (min Report.least Flow.rtt_sample_us)) (:= Report.last Flow.rtt_sample_us))",
        )
        .op(Operation::Ack { packets: 1, rtt_us: 0 })
        .reg("Report.least", INFINITY)
        .reg("Report.last", INFINITY)
        .op(Operation::Ack { packets: 1, rtt_us: 4000 })
        .op(Operation::Ack { packets: 1, rtt_us: 0 })
        .reg("Report.least", 4000)
        .reg("Report.last", INFINITY),
        case(
            "losses, marks and timeouts are seen on their ACK",
            "(def (Report (lost 0) (marked 0) (timeouts 0) (sacked 0)))
             (when Flow.was_timeout (:= Report.timeouts (+ Report.timeouts 1)) (fallthrough))
             (when true
               (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
               (:= Report.marked (+ Report.marked Ack.ecn_packets))
               (:= Report.sacked (+ Report.sacked Ack.packets_misordered)))",
        )
        .op(Operation::Loss { misordered: 3, lost: 2 })
        .op(Operation::Ecn { packets: 4 })
        .op(Operation::TimePasses { us: 300_000 })
        .op(Operation::Timeout)
        .ack()
        .reg("Report.lost", 2 + 4)
        .reg("Report.marked", 4)
        .reg("Report.timeouts", 1)
        .reg("Report.sacked", 3),
        case(
            "segment sizes, idle times and send buffers pass through",
            "(def (Report (bytes 0) (pending 0) (gap 0)) (last 0))
             (when true
               (:= Report.bytes Ack.bytes_acked) (:= Report.pending Flow.bytes_pending)
               (:= Report.gap (- Ack.now last)) (:= last Ack.now))",
        )
        .op(Operation::MtuChange { mss_bytes: 9000 })
        .op(Operation::AppLimited { pending_bytes: 77 })
        .op(Operation::Idle { us: 2_000_000 })
        .reg("Report.bytes", 90_000)
        .ack()
        .reg("Report.bytes", 9000)
        .reg("Report.pending", 77)
        .reg("Report.gap", 2_001_000),
    ]
}

/// Promise 8 of the contract.
fn segment_size() -> Vec<Draft> {
    const WINDOW: &str =
        "(def (Report (held 0)) (mss 1448)) (when true (:= Report.held mss) (:= Cwnd (* mss 10)))";
    const FROM_ONE: &str =
        "(def (Report (held 0)) (mss 1)) (when true (:= Report.held mss) (:= Cwnd (* mss 100)))";
    let mss = Field::Reg(1);
    let now = |mss_bytes| Operation::MtuChange { mss_bytes };
    vec![
        case("what holds the segment size follows it", WINDOW)
            .ack()
            .op(now(9000))
            .ack()
            .reg("Report.held", 9000)
            .cwnd(90_000)
            .op(now(500))
            .op(now(1200))
            .ack()
            .cwnd(12_000),
        case("what the agent knows of the segment size is from the flow's start", WINDOW)
            .program(FROM_ONE)
            .op(now(1200))
            .ack()
            .cwnd(12_000)
            .set_program(1, &[(mss, 1448)])
            .ack()
            .cwnd(120_000)
            .update(&[(mss, 1448)])
            .ack()
            .cwnd(144_800),
        case("a segment size that is not the flow's is left alone", WINDOW)
            .update(&[(mss, 700)])
            .op(now(1200))
            .ack()
            .cwnd(7000)
            .update(&[(mss, 1200)])
            .op(now(1300))
            .ack()
            .cwnd(13_000)
            .program(FROM_ONE)
            .set_program(1, &[])
            .ack()
            .cwnd(100),
        case(
            "only a control register that is a number follows",
            "(def (Report (mss 1448)) (mss true)) (when mss (:= Cwnd Report.mss))",
        )
        .op(now(1))
        .ack()
        .op(now(9000))
        .ack()
        .reg("mss", 1)
        .cwnd(1448),
    ]
}

const ADD: &str = "(def (Report (sum 0)) (step 1) (flag false))
     (when flag (:= Report.sum (- Report.sum step)))
     (when true (:= Report.sum (+ Report.sum step)))";
const TIMES: &str = "(def (Report (sum 100)) (step 2) (flag true))
     (when true (:= Report.sum (* Report.sum step)) (:= step Micros))";

fn staging() -> Vec<Draft> {
    let (step, flag) = (Field::Reg(1), Field::Reg(2));
    vec![
        case("updates between two ACKs take effect together", ADD)
            .ack()
            .update(&[(step, 10)])
            .update(&[(flag, 1), (Field::Cwnd, 20_000)])
            .update(&[(step, 1000), (Field::Rate, 5)])
            .ack()
            .reg("Report.sum", 1 - 1000)
            .cwnd(20_000)
            .rate(5),
        case("a boolean that is updated becomes 0 or 1", ADD)
            .update(&[(flag, i64::MIN)])
            .ack()
            .reg("flag", 1)
            .update(&[(flag, 2)])
            .ack()
            .reg("flag", 1)
            .update(&[(flag, 0)])
            .ack()
            .reg("flag", 0)
            .reg("Report.sum", -1 - 1 + 1),
        case("updates out of range are no decision, or clamped", ADD)
            .update(&[(Field::Cwnd, 30_000), (Field::Cwnd, 0), (Field::Rate, 9), (Field::Rate, -1)])
            .ack()
            .cwnd(30_000)
            .rate(9)
            .update(&[(Field::Cwnd, i64::MAX), (Field::Rate, i64::MAX)])
            .ack()
            .cwnd(MAX_CWND_BYTES)
            .rate(MAX_RATE_BYTES_PER_S),
        case(
            "a program reads the window and rate that an update left",
            "(def (Report (cwnd 0) (rate 0))) (when true (:= Report.cwnd Cwnd) (:= Report.rate Rate))",
        )
        .update(&[(Field::Cwnd, i64::MAX), (Field::Rate, i64::MAX)])
        .ack()
        .reg("Report.cwnd", MAX_CWND_BYTES)
        .reg("Report.rate", MAX_RATE_BYTES_PER_S),
        case(
            "a program starts afresh, on the flow's window, rate and faults",
            "(def (Report (x 0)) (y 0))
                 (when true (:= Report.x (/ 1 y)) (:= Cwnd 3000) (:= Rate 4000))",
        )
        .program(TIMES)
        .ack_at(1_000, 0)
        .faults(1)
        .set_program(1, &[])
        .ack_at(5_000, 0)
        .reg("Report.x", 200)
        .reg("y", 0)
        .cwnd(3000)
        .rate(4000)
        .faults(1)
        .ack_at(5_250, 0)
        .reg("y", 250),
        case("a program and its fields take effect together", ADD)
            .program(TIMES)
            .ack()
            .set_program(1, &[(step, 7), (Field::Cwnd, 9999)])
            .ack()
            .reg("Report.sum", 700)
            .cwnd(9999),
        case("of two programs staged the last runs, and registers for the first are void", ADD)
            .program(TIMES)
            .ack()
            .update(&[(step, 500), (Field::Cwnd, 50_000)])
            .set_program(0, &[(step, 600), (Field::Rate, 60_000)])
            .set_program(1, &[])
            .ack()
            .reg("Report.sum", 200)
            .cwnd(50_000)
            .rate(60_000),
        case("setting the running program again restarts it", ADD)
            .ack()
            .ack()
            .set_program(0, &[])
            .ack()
            .reg("Report.sum", 1),
        case("a staged rest between ACKs waits for the next one", ADD)
            .ack()
            .update(&[(step, 5)])
            .op(Operation::TimePasses { us: 10_000_000 })
            .ack()
            .reg("Report.sum", 6),
    ]
}

//! Cases of histories, policies, and snapshots that are deployed to slots.

use super::case::{Case, CaseError, Observable};
use super::programs::{Draft, case};
use crate::command::{Field, Part};
use crate::suite::linear::Linear;
use crate::suite::operation::Operation;
use ccplane_infer::ShapeError;
use ccplane_infer::image::{PIN, map};

const ONE_Q16: i64 = 1 << 16;
const X: Field = Field::Reg(1);

/// Keeps the last two values that the agent set, and decides by them.
const ASK: &str = "(def (Report (seen 0)) (x 0))
    (when true (history 2 x) (policy 0) (:= Report.seen Policy.action) (report))";

impl Draft {
    /// Adds slot 0, and the networks that may be pushed to it.
    fn networks(mut self, networks: &[Linear]) -> Result<Draft, CaseError> {
        let error = |e: ShapeError| CaseError { name: self.name.to_owned(), reason: e.to_string() };
        self.slots = vec![(0, Linear::shape().map_err(error)?)];
        self.images = networks.iter().map(Linear::image).collect::<Result<_, _>>().map_err(error)?;
        Ok(self)
    }
    fn push(self, image: usize) -> Draft {
        self.op(Operation::Push { slot: 0, image, part: Part::Active })
    }
    fn canary(self, image: usize, share: u16) -> Draft {
        self.op(Operation::Push { slot: 0, image, part: Part::Canary { share } })
    }
    /// An ACK whose interval is worth `x`.
    fn interval(self, x: i64) -> Draft {
        self.update(&[(X, x)]).ack()
    }
    fn action(self, value: i64) -> Draft {
        self.expect(Observable::Action, value)
    }
    fn snapshot(self, uid: i64) -> Draft {
        self.expect(Observable::Snapshot, uid)
    }
    fn native(self, native: bool) -> Draft {
        self.expect(Observable::Native, native.into())
    }
    fn cell(self, n: usize, value: i64) -> Draft {
        self.expect(Observable::Cell(n), value)
    }
}

pub(super) fn cases() -> Result<Vec<Case>, CaseError> {
    let mut drafts = vec![histories()];
    drafts.extend(decisions()?);
    drafts.extend(deployments()?);
    drafts.extend(fallbacks()?);
    drafts.into_iter().map(Draft::done).collect()
}

fn histories() -> Draft {
    case(
        "histories are kept oldest first, one after the other, and saturate",
        "(def (Report (volatile x 5)) (y 0))
         (when true
           (history 2 Report.x y) (:= y (- y 5000000000)) (history 1 y) (history 2 Report.x y)
           (:= Report.x (* 10 Report.x)) (report))",
    )
    .ack()
    // The third statement appends to the first one's history.
    .cell(0, 5)
    .cell(1, 0)
    .cell(2, 5)
    .cell(3, i32::MIN.into())
    .cell(4, i32::MIN.into())
    .update(&[(Field::Reg(1), 7_000_000_000)])
    .ack()
    .cell(0, 5)
    .cell(1, i32::MAX.into())
    .cell(2, 5)
    .cell(3, 2_000_000_000)
    .cell(4, 2_000_000_000)
    .set_program(0, &[])
    .ack()
    .cell(0, 5)
    .cell(1, 0)
}

fn decisions() -> Result<Vec<Draft>, CaseError> {
    let sixteenth = ONE_Q16 / 16;
    let on = |map| [Linear { map, ..Linear::new(7, [0, 16]) }];
    Ok(vec![
        case("a policy decides by its histories", ASK)
            .networks(&[Linear::new(7, [1, 10])])?
            .push(0)
            .interval(1)
            .action(10 * sixteenth)
            .snapshot(7)
            .reported("Report.seen", 10 * sixteenth)
            .expect(Observable::IsRow, 1)
            .interval(-2)
            .action(-19 * sixteenth)
            // Past its range, an input counts as the end; past its bound, an action.
            .interval(1000)
            .action(8 * ONE_Q16)
            .interval(0)
            .action(127 * sixteenth),
        case(
            "an action moves the rate, which the program then sees",
            "(def (Report (seen 0)) (x 0)) (when true (history 2 x) (policy 0) (:= Report.seen Rate) (report))",
        )
        .networks(&on(map::RATE))?
        .push(0)
        .update(&[(Field::Rate, 100_000)])
        .interval(1)
        .rate(125_000)
        .reported("Report.seen", 125_000)
        .interval(-1)
        .rate(100_000)
        .interval(-4)
        .rate(50_000)
        .interval(8)
        .rate(150_000)
        .cwnd(14_480)
        .update(&[(Field::Rate, 0)])
        .interval(-1)
        .rate(1000)
        .update(&[(Field::Rate, 900_000)])
        .interval(8)
        .rate(1_000_000),
        case(
            "an action moves the window, within its bounds even where the program has left none",
            "(def (Report (seen 0)) (x 0))
             (when true (history 2 x) (:= Cwnd (- 0 5)) (policy 0) (:= Report.seen Cwnd) (report))",
        )
        .networks(&on(map::CWND))?
        .push(0)
        .interval(8)
        .cwnd(3000)
        .rate(0)
        .reported("Report.seen", 3000),
        case("a program that starts has no last action", ASK)
            .networks(&[Linear::new(7, [1, 10])])?
            .push(0)
            .program("(def (Report (seen 9)) (x 0)) (when true (:= Report.seen Policy.action) (report))")
            .interval(1)
            .set_program(1, &[])
            .ack()
            .reported("Report.seen", 0)
            .snapshot(0)
            .expect(Observable::IsRow, 0),
    ])
}

fn deployments() -> Result<Vec<Draft>, CaseError> {
    let three = || [1, 2, 3].map(|uid| Linear::new(uid, [0, uid.into()]));
    Ok(vec![
        case("a push is followed at the next decision, and taken back", ASK)
            .networks(&three())?
            .push(0)
            .ack()
            .snapshot(1)
            .push(1)
            .ack()
            .snapshot(2)
            .op(Operation::Rollback(0))
            .ack()
            .snapshot(1)
            .push(2)
            .ack()
            .snapshot(3)
            .op(Operation::Rollback(0))
            .ack()
            .snapshot(1),
        // The suite's flow 1 is hashed to 0.236 of the canaries' range.
        case("a canary has its share, and is promoted", ASK)
            .networks(&three())?
            .push(0)
            .canary(1, 15_000)
            .ack()
            .snapshot(1)
            .op(Operation::Rollback(0))
            .canary(2, 16_000)
            .ack()
            .snapshot(3)
            .op(Operation::Promote(0))
            .ack()
            .snapshot(3)
            .op(Operation::Rollback(0))
            .ack()
            .snapshot(1),
        case("a rollback of a canary reaches the flows that are pinned to it", ASK)
            .networks(&three().map(|n| Linear { flags: PIN, ..n }))?
            .push(0)
            .canary(1, 16_000)
            .ack()
            .snapshot(2)
            .op(Operation::Rollback(0))
            .ack()
            .snapshot(1),
        case("a rollback of an active snapshot reaches the flows that are pinned to it", ASK)
            .networks(&three().map(|n| Linear { flags: if n.uid == 2 { PIN } else { 0 }, ..n }))?
            .push(0)
            .push(1)
            .ack()
            .snapshot(2)
            .op(Operation::Rollback(0))
            .ack()
            .snapshot(1),
        case("a pinned flow keeps its snapshot until its buffer is used again", ASK)
            .networks(
                &[1, 2, 3, 4, 5, 6]
                    .map(|uid| Linear { flags: if uid == 1 { PIN } else { 0 }, ..Linear::new(uid, [0, 1]) }),
            )?
            .push(0)
            .ack()
            .snapshot(1)
            .push(1)
            .push(2)
            .push(3)
            .ack()
            .snapshot(1)
            // All four buffers have been used; the oldest without a part is the flow's.
            .push(4)
            .ack()
            .snapshot(5)
            .push(5)
            .ack()
            .snapshot(6),
    ])
}

fn fallbacks() -> Result<Vec<Draft>, CaseError> {
    Ok(vec![
        case("an empty slot gives its flows away until a program is set", ASK)
            .networks(&[Linear::new(7, [0, 1])])?
            .ack()
            .native(true)
            .expect(Observable::DidReport, 1)
            .push(0)
            .update(&[(Field::Cwnd, 5000)])
            .ack()
            .native(true)
            .silent()
            .cwnd(14_480)
            .set_program(0, &[])
            .ack()
            .native(false)
            .cwnd(5000)
            .snapshot(7),
        case("a canary's penalty leads back to the active snapshot, the first one too", ASK)
            .networks(&[Linear::new(1, [0, 1]), Linear { trip_limit: 8, ..Linear::new(2, [0, 127]) }])?
            .push(0)
            .canary(1, 16_000)
            .interval(100)
            .snapshot(2)
            .interval(100)
            .snapshot(2)
            .interval(100)
            .snapshot(1)
            .native(false)
            .op(Operation::Promote(0))
            .interval(100)
            .snapshot(1)
            .native(false),
        case("penalties lead to the last good snapshot, then to the native algorithm", ASK)
            .networks(&[
                Linear { trip_limit: 8, ..Linear::new(1, [0, 127]) },
                Linear { trip_limit: 8, ..Linear::new(2, [0, 127]) },
                Linear::new(3, [0, 1]),
            ])?
            .push(0)
            .push(1)
            .interval(100)
            .snapshot(2)
            .interval(100)
            .snapshot(2)
            .interval(100)
            .snapshot(1)
            .interval(100)
            .snapshot(1)
            .native(false)
            .interval(100)
            .native(true)
            // What the decision before left is not taken for one of this interval.
            .reported("Report.seen", 0)
            .action(0)
            .snapshot(0)
            // A program alone does not help: only another snapshot does.
            .set_program(0, &[])
            .interval(100)
            .native(true)
            .push(2)
            .set_program(0, &[])
            .interval(100)
            .native(false)
            .snapshot(3),
    ])
}

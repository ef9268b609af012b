//! Promises 6 and 7, of datapaths that run policies.

use super::session::{
    A, B, Broken, Outcome, Run, SECOND_US, Session, must, program, promise, refused, window_is,
};
use crate::command::{Field, Part};
use crate::datapath::SlotStats;
use crate::error::DatapathError;
use crate::flow::Mode;
use crate::ids::{FlowId, SnapshotUid};
use crate::suite::linear::Linear;
use ccplane_infer::image::{self, PIN, map};
use ccplane_infer::{Bits, FlowPolicy, Level, Shape, ShapeError, spread};

pub(super) const CASES: [(&str, Run); 8] = [
    ("slots are defined before they are asked", slots_defined),
    ("an image that is none is refused", images_checked),
    ("a push is followed, promoted and taken back", pushed),
    ("a canary has the share that flows' names give it", canary_share),
    ("a decision is applied", decision_applied),
    ("an empty slot hands its flow over", empty_slot),
    ("penalties lead to the last good snapshot, then to the native algorithm", penalty),
    ("a pinned flow keeps its snapshot", pinned),
];

/// Asks the policy on each ACK about the value that the agent set last, and reports the result.
const ASK: &str = "(def (Report (seen 0) (action 0) (uid 0) (cwnd 0)) (x 1))
    (when true
      (:= Report.seen x) (history 2 Report.seen) (policy 0)
      (:= Report.action Policy.action) (:= Report.uid Policy.snapshot) (:= Report.cwnd Cwnd) (report))";
const UID_SEEN: usize = 2;
const CWND_SEEN: usize = 3;
const SLOT: u8 = 0;
/// A push that found every buffer busy is left alone for this time, and tried again so often.
const BUSY_US: u64 = 1000;
const BUSY_TRIES: u32 = 10;

fn made<T>(result: Result<T, ShapeError>) -> Result<T, Broken> {
    result.map_err(|e| Broken::NotRun(e.into()))
}

/// Decides 1/16 for an input of 1.
fn plain(uid: u32) -> Linear {
    Linear::new(uid, [0, 1])
}

impl Session {
    fn define(&mut self) -> Outcome {
        let shape = made(Linear::shape())?;
        must("define_slot", self.datapath().define_slot(SLOT, &shape))
    }

    fn push(&mut self, linear: &Linear, part: Part) -> Outcome {
        self.push_image(&made(linear.image())?, part)
    }

    fn push_image(&mut self, image: &[u64], part: Part) -> Outcome {
        let mut pushed = self.datapath().push(SLOT, image, part);
        for _ in 0..BUSY_TRIES {
            if !matches!(pushed, Err(DatapathError::SlotBusy { .. })) {
                break;
            }
            self.harness.pass(BUSY_US);
            pushed = self.datapath().push(SLOT, image, part);
        }
        must("push", pushed)
    }

    fn slot(&mut self) -> Result<SlotStats, Broken> {
        let slots = self.datapath().slots();
        let found = slots.iter().find(|s| s.slot == SLOT).cloned();
        found.ok_or(Broken::Promise { what: "a slot that is defined is listed", found: format!("{slots:?}") })
    }

    /// A flow that [`ASK`] decides for by `linear`.
    fn asking(&mut self, linear: &Linear) -> Result<FlowId, Broken> {
        self.define()?;
        self.push(linear, Part::Active)?;
        let ask = program(ASK)?;
        must("install", self.datapath().install(A, &ask))?;
        let flow = self.flow()?;
        must("set_program", self.datapath().set_program(flow, A, &[]))?;
        self.decides("a policy decides and its rows come", linear.uid)?;
        Ok(flow)
    }

    /// Waits until rows show that this snapshot decides.
    fn decides(&mut self, what: &'static str, uid: u32) -> Outcome {
        let from = self.reports.len();
        self.wait_for(what, |s| s.reports[from..].iter().any(|r| r.values[UID_SEEN] == i64::from(uid)))
    }

    /// The rows of some time from now on, and some before.
    fn rows(&mut self) -> Vec<Vec<i64>> {
        let beat_us = self.beat_us();
        self.live(2 * beat_us);
        let from = self.reports.len();
        self.live(SECOND_US);
        self.reports[from..].iter().map(|r| r.values.clone()).collect()
    }

    /// All decisions of some time are by this snapshot.
    fn stays_with(&mut self, what: &'static str, uid: u32) -> Outcome {
        let rows = self.rows();
        let same = !rows.is_empty() && rows.iter().all(|r| r[UID_SEEN] == i64::from(uid));
        promise(same, what, &rows.iter().map(|r| r[UID_SEEN]).take(20).collect::<Vec<_>>())
    }

    fn policy(&mut self, flow: FlowId) -> Result<FlowPolicy, Broken> {
        let stats = self.stats(flow)?;
        stats.policy.ok_or(Broken::Promise {
            what: "a flow whose program asks a policy shows it",
            found: format!("{stats:?}"),
        })
    }
}

fn slots_defined(s: &mut Session) -> Outcome {
    let ask = program(ASK)?;
    let no_slot = |e: &DatapathError| matches!(e, DatapathError::NoSlot(SLOT));
    let image = made(plain(1).image())?;
    refused("a program whose slot is not defined is refused", s.datapath().install(A, &ask), no_slot)?;
    refused("so is a push", s.datapath().push(SLOT, &image, Part::Active), no_slot)?;
    refused("so is a promotion", s.datapath().promote(SLOT), no_slot)?;
    refused("so is a share", s.datapath().share(SLOT, 1), no_slot)?;
    refused("so is a rollback", s.datapath().rollback(SLOT), no_slot)?;
    let none = s.datapath().slots();
    promise(none.is_empty(), "no slots are listed at first", &none)?;
    let shape = made(Linear::shape())?;
    refused("there are 16 slots", s.datapath().define_slot(16, &shape), |e| {
        matches!(e, DatapathError::NoSlot(16))
    })?;
    s.define()?;
    s.define()?;
    let other = made(Shape::new(Bits::W16, &[2, 1]))?;
    let other_shape = |e: &DatapathError| matches!(e, DatapathError::OtherShape { slot: SLOT });
    refused("a slot keeps its shape", s.datapath().define_slot(SLOT, &other), other_shape)?;
    let empty = SlotStats {
        slot: SLOT,
        shape,
        active: None,
        active_name: [0; 4],
        canary: None,
        canary_share: 0,
        last_good: None,
    };
    let slots = s.datapath().slots();
    promise(slots == [empty], "a slot is listed as it was defined", &slots)?;
    let three = program("(def (Report (x 0))) (when true (history 3 Report.x) (policy 0))")?;
    let counted = |e: &DatapathError| matches!(e, DatapathError::Refused { at: Some(1), .. });
    refused("a program with other inputs is refused", s.datapath().install(B, &three), counted)?;
    must("install", s.datapath().install(A, &ask))?;
    let nothing = |e: &DatapathError| matches!(e, DatapathError::NoSnapshot { slot: SLOT, .. });
    refused("there is no canary yet", s.datapath().promote(SLOT), nothing)?;
    refused("there is nothing to go back to yet", s.datapath().rollback(SLOT), nothing)
}

fn images_checked(s: &mut Session) -> Outcome {
    let flow = s.asking(&plain(1))?;
    let good = made(plain(2).image())?;
    let with = |change: fn(&mut [u64])| {
        let mut image = good.clone();
        change(&mut image);
        image
    };
    let longer = [good.as_slice(), &[0]].concat();
    let bad = |e: &DatapathError| matches!(e, DatapathError::BadImage { .. });
    for (what, image) in [
        ("an empty image", vec![]),
        ("an image that is cut", good[..good.len() - 1].to_vec()),
        ("an image with something after it", longer),
        ("a uid of 0", with(|i| image::set_u32(i, image::UID, 0))),
        ("a uid that the slot holds", with(|i| image::set_u32(i, image::UID, 1))),
        ("reserved words", with(|i| image::set_u32(i, image::FEATURES - 4, 1))),
        ("unknown flags", with(|i| image::set_u32(i, image::FLAGS, 2))),
        ("an unknown map", with(|i| image::set_u32(i, image::MAP, 3))),
        ("a knob that may be 0", with(|i| image::set_u64(i, image::KNOB_MIN, 0))),
        ("a knob above all bounds", with(|i| image::set_u64(i, image::KNOB_MAX, 1 << 41))),
        ("a step that may overflow", with(|i| image::set_u64(i, image::STEP_Q20, 1 << 60))),
        ("a shift that is none", with(|i| image::set_u32(i, image::OUT_SHIFT, 64))),
        ("a bound of 0", with(|i| image::set_u32(i, image::ACTION_BOUND_Q16, 0))),
        ("a network whose sums may overflow", with(|i| i[i.len() - 1] = 1 << 14)),
        (
            "an input without a range",
            with(|i| image::set_u32(i, image::FEATURES + image::feature::HI, -127i32 as u32)),
        ),
    ] {
        refused(what, s.datapath().push(SLOT, &image, Part::Active), bad)?;
    }
    let other = with(|i| image::set_u64(i, image::SHAPE, 1));
    let other_shape = |e: &DatapathError| matches!(e, DatapathError::OtherShape { slot: SLOT });
    refused("an image of another shape", s.datapath().push(SLOT, &other, Part::Active), other_shape)?;
    s.stays_with("what was refused changes nothing", 1)?;
    s.progresses(flow, false)
}

fn pushed(s: &mut Session) -> Outcome {
    let flow = s.asking(&plain(1))?;
    let mut image = made(plain(2).image())?;
    for n in 0..image::NAME_WORDS {
        image::set_u64(&mut image, image::NAME + 8 * n, u64::MAX - n as u64);
    }
    s.push_image(&image, Part::Active)?;
    s.decides("a push is followed", 2)?;
    let name = s.slot()?.active_name;
    promise(name == [0, 1, 2, 3].map(|n| u64::MAX - n), "its name is listed", &name)?;
    let (slot, [one, two]) = (s.slot()?, [1, 2].map(SnapshotUid));
    promise((slot.active, slot.last_good) == (Some(two), Some(one)), "its parts are listed", &slot)?;
    s.push(&plain(3), Part::Canary { share: 0 })?;
    s.stays_with("a canary without a share has no flows", 2)?;
    let (slot, three) = (s.slot()?, Some(SnapshotUid(3)));
    promise((slot.canary, slot.canary_share) == (three, 0), "a canary is listed", &slot)?;
    must("promote", s.datapath().promote(SLOT))?;
    s.decides("a canary that is promoted decides", 3)?;
    must("rollback", s.datapath().rollback(SLOT))?;
    s.decides("a rollback is followed", 2)?;
    let slot = s.slot()?;
    let parts = (slot.active, slot.canary, slot.last_good);
    promise(parts == (Some(two), None, None), "what was rolled back has no part", &slot)?;
    // More pushes than there are buffers.
    for uid in 4..12 {
        s.push(&plain(uid), Part::Active)?;
        s.decides("each push is followed", uid)?;
    }
    let dense = s.reports.iter().zip(1..).all(|(r, n)| r.seq == n);
    promise(dense, "rows are counted from 1", &s.reports.iter().map(|r| r.seq).take(20).collect::<Vec<_>>())?;
    let policy = s.policy(flow)?;
    let shown = policy.uid == 11 && u64::from(policy.decisions) >= s.reports.len() as u64;
    promise(shown && policy.trips == 0, "a flow shows what decides for it", &policy)
}

fn canary_share(s: &mut Session) -> Outcome {
    let flow = s.asking(&plain(1))?;
    // A flow at the very end has no canaries.
    let place = (spread(flow.0) >> 48) as u16;
    s.push(&plain(2), Part::Canary { share: place })?;
    s.stays_with("a flow beyond the canary's share has the active snapshot", 1)?;
    if place < u16::MAX {
        s.push(&plain(3), Part::Canary { share: place + 1 })?;
        s.decides("a flow within the canary's share has the canary", 3)?;
        must("share", s.datapath().share(SLOT, place))?;
        s.decides("a share that is taken away from it takes it off", 1)?;
        must("share", s.datapath().share(SLOT, place + 1))?;
        s.decides("and one that is given brings it back", 3)?;
        let shown = s.slot()?.canary_share;
        promise(shown == place + 1, "the share is listed", &shown)?;
    }
    s.push(&plain(4), Part::Active)?;
    s.decides("a push to all flows ends the canary", 4)?;
    let slot = s.slot()?;
    promise(slot.canary.is_none() && slot.last_good == Some(SnapshotUid(1)), "it is listed no more", &slot)?;
    let nothing = |e: &DatapathError| matches!(e, DatapathError::NoSnapshot { slot: SLOT, .. });
    refused("without a canary there is no share", s.datapath().share(SLOT, 1), nothing)
}

fn decision_applied(s: &mut Session) -> Outcome {
    let window = Linear { map: map::CWND, min: 39_999, max: 40_000, ..plain(1) };
    let flow = s.asking(&window)?;
    s.progresses(flow, false)?;
    let exact = s.reports.iter().all(|r| r.values[CWND_SEEN] == 40_000);
    promise(exact, "the rest of the clause sees the decision", &s.reports[0].values)?;
    let stats = s.stats(flow)?;
    window_is(&stats, 40_000, "the window is applied, rounded down to segments")?;
    s.push(&Linear { map: map::RATE, min: 299_999, max: 300_000, ..plain(2) }, Part::Active)?;
    s.decides("a push is followed", 2)?;
    // What a flow shows may be older than what it reports.
    s.wait_for("the rate is applied", |s| s.stats(flow).is_ok_and(|f| f.transport.pacing_rate == 300_000))
}

fn empty_slot(s: &mut Session) -> Outcome {
    s.define()?;
    let ask = program(ASK)?;
    must("install", s.datapath().install(A, &ask))?;
    let flow = s.flow()?;
    must("set_program", s.datapath().set_program(flow, A, &[(Field::Cwnd, 50_000)]))?;
    s.wait_for("a flow without a snapshot runs natively", |s| {
        s.stats(flow).is_ok_and(|f| f.mode == Mode::NativePolicy)
    })?;
    s.progresses(flow, false)?;
    let rows = s.rows();
    promise(rows.is_empty(), "its program does not run", &rows.len())?;
    s.push(&plain(1), Part::Active)?;
    s.progresses(flow, false)?;
    let mode = s.stats(flow)?.mode;
    promise(mode == Mode::NativePolicy, "a push alone does not bring it back", &mode)?;
    must("update", s.datapath().update(flow, &[(Field::Cwnd, 77_777)]))?;
    s.progresses(flow, false)?;
    let from = s.reports.len();
    must("set_program", s.datapath().set_program(flow, A, &[]))?;
    s.decides("a program that is set brings it back", 1)?;
    let cwnd = s.reports[from].values[CWND_SEEN];
    promise(cwnd == 77_777, "a window that was set meanwhile waits for the next program", &cwnd)?;
    let stats = s.stats(flow)?;
    promise((stats.mode, stats.program) == (Mode::Program, Some(A)), "it is steered again", &stats)
}

fn penalty(s: &mut Session) -> Outcome {
    let flow = s.asking(&plain(1))?;
    // A bound that every action breaks.
    let bad = Linear { bound_q16: 1, trip_limit: 40, ..plain(2) };
    s.push(&bad, Part::Active)?;
    s.decides("a push is followed", 2)?;
    s.decides("a penalty brings the last good snapshot back", 1)?;
    s.stays_with("it stays", 1)?;
    let policy = s.policy(flow)?;
    let fallen = (policy.level, policy.level_uid, policy.trips) == (Level::LastGood, 2, 1);
    promise(fallen && policy.saturated >= 10, "the flow shows how far it has fallen back", &policy)?;
    s.push(&Linear { uid: 3, ..bad }, Part::Active)?;
    s.push(&Linear { uid: 4, ..bad }, Part::Active)?;
    s.wait_for("penalties of both lead to the native algorithm", |s| {
        s.stats(flow).is_ok_and(|f| f.mode == Mode::NativePolicy)
    })?;
    s.progresses(flow, false)?;
    s.push(&plain(5), Part::Active)?;
    must("set_program", s.datapath().set_program(flow, A, &[]))?;
    s.decides("another snapshot and a program bring it back", 5)
}

fn pinned(s: &mut Session) -> Outcome {
    s.asking(&Linear { flags: PIN, ..plain(1) })?;
    s.push(&plain(2), Part::Active)?;
    s.push(&plain(3), Part::Active)?;
    s.stays_with("a pinned flow keeps its snapshot", 1)?;
    for uid in 4..8 {
        s.push(&plain(uid), Part::Active)?;
    }
    s.decides("until its buffer is needed", 7)?;
    s.push(&Linear { flags: PIN, ..plain(8) }, Part::Active)?;
    s.decides("a push is followed", 8)?;
    must("rollback", s.datapath().rollback(SLOT))?;
    s.decides("a rollback is followed by pinned flows too", 7)?;
    s.stays_with("for good", 7)
}

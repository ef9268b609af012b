//! `(policy slot)`: which snapshot decides, how the action is applied, when a flow falls back.

use ccplane_infer::image::{self, PENALTY_UP, feature, map};
use ccplane_infer::{
    BUFFERS, Bits, Control, FlowPolicy, Knobs, Level, Model, NOISE_DEVIATION, Prepared, Shape, Slot, Verdict,
    lanes,
};

const BOUND_Q16: i64 = 1 << 16;
const MIN: i64 = 1_000;
const MAX: i64 = 1_000_000;
const TRIP: u32 = 4 * PENALTY_UP;

fn shape() -> Shape {
    Shape::new(Bits::W8, &[1, 1]).unwrap()
}

/// A network without hidden layers whose action is about its input in hundredths, on [-300, 300].
fn snapshot(uid: u32, change: impl FnOnce(&mut Vec<u64>)) -> Vec<u64> {
    let shape = shape();
    let mut words = vec![0; shape.image_bytes() / 8];
    image::set_u32(&mut words, image::UID, uid);
    image::set_u64(&mut words, image::SHAPE, shape.code());
    image::set_u32(&mut words, image::ACTION_BOUND_Q16, BOUND_Q16 as u32);
    image::set_u32(&mut words, image::MAP, map::RATE);
    // 127 * 1000 * mult >> 20 = 3 in Q16.
    image::set_u64(&mut words, image::OUT_MULT, (3u64 << 36) / 127_000);
    image::set_u32(&mut words, image::OUT_SHIFT, 20);
    image::set_u32(&mut words, image::TRIP_LIMIT, TRIP);
    // An action of 1 doubles or halves.
    image::set_u64(&mut words, image::STEP_Q20, 1 << 20);
    image::set_u64(&mut words, image::KNOB_MIN, MIN as u64);
    image::set_u64(&mut words, image::KNOB_MAX, MAX as u64);
    image::set_u32(&mut words, image::FEATURES + feature::LO, -300i32 as u32);
    image::set_u32(&mut words, image::FEATURES + feature::HI, 300);
    image::set_u64(&mut words, image::FEATURES + feature::MULT, feature::mult(Bits::W8, -300, 300));
    image::set_u64(&mut words, shape.bias_at(0), lanes::pack_biases(Bits::W8, [0]));
    image::set_u64(&mut words, shape.weights_at(0), lanes::pack_weights(Bits::W8, [1_000]));
    change(&mut words);
    words
}

struct Held([Vec<u64>; BUFFERS]);

impl Held {
    /// Buffer n holds deployment n + 1.
    fn new(change: impl Fn(&mut Vec<u64>)) -> Held {
        Held(std::array::from_fn(|n| snapshot(n as u32 + 1, &change)))
    }

    fn decide(
        &self,
        control: Control,
        flow: &mut FlowPolicy,
        key: u64,
        input: i32,
        knobs: &mut Knobs,
    ) -> Verdict {
        let shape = shape();
        let slot = Slot { shape: &shape, control, images: self.0.each_ref().map(Vec::as_slice) };
        let (mut twin, mut twin_knobs) = (*flow, *knobs);
        let verdict = slot.decide(key, flow, &[input], knobs);
        // A prepared network changes nothing.
        let prepared = |buffer: u8| Prepared::new(&shape, &self.0[usize::from(buffer)]).unwrap();
        let by = |buffer: u8, _: Model<'_>| prepared(buffer).infer(&[input]);
        assert_eq!(slot.decide_with(key, &mut twin, &mut twin_knobs, by), verdict);
        assert_eq!((twin, twin_knobs), (*flow, *knobs));
        verdict
    }

    fn uid(&self, control: Control, flow: &mut FlowPolicy, key: u64, input: i32) -> Option<u32> {
        match self.decide(control, flow, key, input, &mut knobs(10_000)) {
            Verdict::Decided { uid, .. } => Some(uid),
            Verdict::Native => None,
        }
    }
}

fn knobs(rate: i64) -> Knobs {
    Knobs { cwnd_bytes: 14_480, rate_bytes_per_s: rate }
}

const ACTIVE: Control = Control { active: Some(0), ..Control::EMPTY };
const GOOD: i32 = 50;
const BAD: i32 = 290;

#[test]
fn control_words_read_as_written() {
    let control = Control { active: Some(3), canary: Some(0), last_good: None, canary_share: 0xfedc };
    assert_eq!(control.to_word(), 0xfedc_0000_0104);
    assert_eq!(Control::from_word(control.to_word()), control);
    assert_eq!(Control::from_word(5), Control::EMPTY, "no such buffer");
}

#[test]
fn an_empty_slot_leaves_the_flow_to_the_native_algorithm() {
    let (held, mut flow, mut rate) = (Held::new(|_| {}), FlowPolicy::default(), knobs(10_000));
    assert_eq!(held.decide(Control::EMPTY, &mut flow, 1, GOOD, &mut rate), Verdict::Native);
    assert_eq!((flow, rate), (FlowPolicy::default(), knobs(10_000)));
    let unwritten = Held::new(|words| image::set_u32(words, image::UID, 0));
    assert_eq!(unwritten.uid(ACTIVE, &mut flow, 1, GOOD), None, "a buffer that is being written");
    let other = Held::new(|words| image::set_u64(words, image::SHAPE, 1));
    assert_eq!(other.uid(ACTIVE, &mut flow, 1, GOOD), None, "an image of another shape");
}

#[test]
fn actions_map_to_rate_or_window() {
    let act = |change: fn(&mut Vec<u64>), input| {
        let (held, mut flow, mut knobs) = (Held::new(change), FlowPolicy::default(), knobs(10_000));
        let Verdict::Decided { action_q16, uid: 1 } = held.decide(ACTIVE, &mut flow, 1, input, &mut knobs)
        else {
            panic!("no decision")
        };
        (action_q16, knobs.rate_bytes_per_s, knobs.cwnd_bytes)
    };
    // 0.5 less the input's rounding to 1/127.
    assert_eq!(act(|_| {}, 50), (32_509, 14_960, 14_480));
    assert_eq!(
        act(|_| {}, -50),
        (-32_510, 6_684, 14_480),
        "divided, not multiplied: up and down undo each other"
    );
    assert_eq!(act(|_| {}, 290), (65_536, 20_000, 14_480), "bounded at 1");
    assert_eq!(act(|_| {}, i32::MIN), (-65_536, 5_000, 14_480));
    assert_eq!(act(|w| image::set_u32(w, image::MAP, map::CWND), 290), (65_536, 10_000, 28_960));
    assert_eq!(act(|w| image::set_u32(w, image::MAP, map::NONE), 290), (65_536, 10_000, 14_480));
    assert_eq!(act(|w| image::set_u64(w, image::KNOB_MAX, 12_000), 290), (65_536, 12_000, 14_480));
    assert_eq!(act(|w| image::set_u64(w, image::KNOB_MIN, 9_000), -290), (-65_536, 9_000, 14_480));
}

#[test]
fn an_opinion_on_inputs_out_of_range_is_none() {
    let act = |map, allowed, input| {
        let held = Held::new(|words| {
            image::set_u32(words, image::MAP, map);
            image::set_u32(words, image::CLIP_LIMIT, allowed);
            image::set_u32(words, image::TRIP_LIMIT, 0);
        });
        let (mut flow, mut knobs) = (FlowPolicy::default(), knobs(10_000));
        match held.decide(ACTIVE, &mut flow, 1, input, &mut knobs) {
            Verdict::Decided { action_q16, .. } => (action_q16, flow.clipped),
            Verdict::Native => panic!("no decision"),
        }
    };
    for input in [301, i32::MAX, -301, i32::MIN] {
        assert_eq!(act(map::NONE, 0, input), (0, 1), "{input}");
        assert_ne!(act(map::NONE, 1, input), (0, 0), "{input}");
        assert_eq!(act(map::RATE, 0, input), (65_536 * i64::from(input.signum()), 1), "{input}");
    }
    assert_eq!(act(map::NONE, 0, 300), (65_536, 0), "the range's end is within");
}

#[test]
fn a_share_of_the_flows_takes_the_canary() {
    let held = Held::new(|_| {});
    let taken = |share| {
        let control = Control { canary: Some(1), canary_share: share, ..ACTIVE };
        let canary = |key: &u64| held.uid(control, &mut FlowPolicy::default(), *key, GOOD) == Some(2);
        (0..4_096).filter(canary).count()
    };
    assert_eq!(taken(0), 0);
    let tenth = taken(6_554);
    assert!((380..440).contains(&tenth), "{tenth} of 4096 for a tenth");
    assert!(taken(u16::MAX) >= 4_094);
    // The same flow, the same part, every time.
    let control = Control { canary: Some(1), canary_share: 1 << 15, ..ACTIVE };
    for key in 0..64 {
        let mut flow = FlowPolicy::default();
        let first = held.uid(control, &mut flow, key, GOOD);
        assert!((0..10).all(|_| held.uid(control, &mut flow, key, GOOD) == first));
    }
}

#[test]
fn a_pinned_flow_keeps_its_deployment_while_a_buffer_holds_it() {
    let next = Control { active: Some(1), last_good: Some(0), ..Control::EMPTY };
    let mut held = Held::new(|words| image::set_u32(words, image::FLAGS, image::PIN));
    let mut flow = FlowPolicy::default();
    assert_eq!(held.uid(ACTIVE, &mut flow, 1, GOOD), Some(1));
    assert_eq!(held.uid(next, &mut flow, 1, GOOD), Some(1), "pinned");
    assert_eq!(held.uid(next, &mut FlowPolicy::default(), 1, GOOD), Some(2), "a new flow is not");
    held.0[0] = snapshot(9, |_| {});
    assert_eq!(held.uid(next, &mut flow, 1, GOOD), Some(2), "its buffer holds another one now");
    let unpinned = Held::new(|_| {});
    let mut flow = FlowPolicy::default();
    assert_eq!(unpinned.uid(ACTIVE, &mut flow, 1, GOOD), Some(1));
    assert_eq!(unpinned.uid(next, &mut flow, 1, GOOD), Some(2), "the next decision follows the slot");
}

#[test]
fn a_flow_with_penalties_falls_back_to_the_last_good_one_then_to_the_native_algorithm() {
    let held = Held::new(|_| {});
    let control = Control { last_good: Some(1), ..ACTIVE };
    let mut flow = FlowPolicy::default();
    for _ in 0..3 {
        assert_eq!(held.uid(control, &mut flow, 1, BAD), Some(1));
    }
    assert_eq!((flow.level, flow.penalty, flow.saturated), (Level::Chosen, 3 * PENALTY_UP, 3));
    assert_eq!(held.uid(control, &mut flow, 1, BAD), Some(1));
    assert_eq!((flow.level, flow.level_uid, flow.penalty, flow.trips), (Level::LastGood, 1, 0, 1));
    for _ in 0..4 {
        assert_eq!(held.uid(control, &mut flow, 1, BAD), Some(2), "by the last good one");
    }
    assert_eq!((flow.level, flow.level_uid, flow.trips, flow.decisions), (Level::Native, 1, 2, 8));
    assert_eq!(held.uid(control, &mut flow, 1, GOOD), None);
    assert_eq!(held.uid(control, &mut flow, 1, GOOD), None, "it stays there");
    let push = Control { active: Some(2), last_good: Some(0), ..Control::EMPTY };
    assert_eq!(held.uid(push, &mut flow, 1, GOOD), Some(3), "a new deployment starts over");
    assert_eq!((flow.level, flow.penalty), (Level::Chosen, 0));
}

#[test]
fn a_canarys_flow_falls_back_to_the_active_snapshot() {
    let held = Held::new(|_| {});
    for last_good in [None, Some(2)] {
        let canary = Control { canary: Some(1), canary_share: u16::MAX, last_good, ..ACTIVE };
        let mut flow = FlowPolicy::default();
        for _ in 0..4 {
            assert_eq!(held.uid(canary, &mut flow, 1, BAD), Some(2), "by the canary");
        }
        assert_eq!((flow.level, flow.level_uid), (Level::LastGood, 2));
        assert_eq!(held.uid(canary, &mut flow, 1, GOOD), Some(1), "by the active one");
        // What the canary did is no reason to leave the active one once the canary is gone ...
        let mut freed = flow;
        assert_eq!(held.uid(Control { last_good, ..ACTIVE }, &mut freed, 1, GOOD), Some(1));
        assert_eq!(freed.level, Level::Chosen);
        // ... nor is the flow given back to a canary that is promoted.
        let promoted = Control { active: Some(1), last_good: Some(0), ..Control::EMPTY };
        assert_eq!(held.uid(promoted, &mut flow.clone(), 1, GOOD), Some(1));
        for _ in 0..4 {
            assert_eq!(held.uid(canary, &mut flow, 1, BAD), Some(1));
        }
        assert_eq!(held.uid(canary, &mut flow, 1, GOOD), None, "both are penalised");
        assert_eq!(flow.level, Level::Native);
    }
}

#[test]
fn without_another_last_good_one_a_trip_leads_to_the_native_algorithm() {
    let held = Held::new(|_| {});
    for last_good in [None, Some(0)] {
        let control = Control { last_good, ..ACTIVE };
        let mut flow = FlowPolicy::default();
        for _ in 0..4 {
            assert_eq!(held.uid(control, &mut flow, 1, BAD), Some(1));
        }
        assert_eq!(held.uid(control, &mut flow, 1, GOOD), None);
        assert_eq!(flow.level, Level::Native);
    }
}

#[test]
fn good_decisions_lower_the_penalty() {
    let held = Held::new(|_| {});
    let mut flow = FlowPolicy::default();
    // One bad decision in five: as much comes as goes.
    for n in 0..1_000 {
        held.uid(ACTIVE, &mut flow, 1, if n % 5 == 0 { BAD } else { GOOD });
    }
    assert_eq!((flow.level, flow.penalty, flow.trips), (Level::Chosen, 0, 0));
    for n in 0..100 {
        held.uid(ACTIVE, &mut flow, 1, if n % 4 == 0 { BAD } else { GOOD });
    }
    assert_eq!((flow.level, flow.trips), (Level::Native, 1), "one in four is too much");
    let deaf = Held::new(|words| image::set_u32(words, image::TRIP_LIMIT, 0));
    let mut flow = FlowPolicy::default();
    for _ in 0..1_000 {
        assert_eq!(deaf.uid(ACTIVE, &mut flow, 1, BAD), Some(1));
    }
    assert_eq!((flow.level, flow.saturated), (Level::Chosen, 1_000), "counted, not acted on");
}

#[test]
fn clipped_inputs_and_collapsed_knobs_are_penalised() {
    let held = Held::new(|words| image::set_u32(words, image::ACTION_BOUND_Q16, 4 << 16));
    let mut flow = FlowPolicy::default();
    held.uid(ACTIVE, &mut flow, 1, 301);
    assert_eq!((flow.clipped, flow.saturated, flow.collapsed, flow.penalty), (1, 0, 0, PENALTY_UP));
    let lenient = Held::new(|words| {
        image::set_u32(words, image::ACTION_BOUND_Q16, 4 << 16);
        image::set_u32(words, image::CLIP_LIMIT, 1);
    });
    let mut flow = FlowPolicy::default();
    lenient.uid(ACTIVE, &mut flow, 1, 301);
    assert_eq!((flow.clipped, flow.penalty), (0, 0));
    let mut rate = knobs(MIN);
    held.decide(ACTIVE, &mut flow, 1, -GOOD, &mut rate);
    assert_eq!((rate.rate_bytes_per_s, flow.collapsed, flow.penalty), (MIN, 1, PENALTY_UP));
}

#[test]
fn exploring_beyond_the_bound_is_not_penalised() {
    let explores = |bound: i64| {
        Held::new(move |words| {
            image::set_u32(words, image::ACTION_BOUND_Q16, bound as u32);
            image::set_u64(words, image::NOISE_MULT, image::MAX_NOISE_MULT as u64);
        })
    };
    let actions = |held: &Held, flow: &mut FlowPolicy, input| -> Vec<i64> {
        let one = |_| match held.decide(ACTIVE, flow, 7, input, &mut knobs(10_000)) {
            Verdict::Decided { action_q16, .. } => action_q16,
            Verdict::Native => panic!("given up"),
        };
        (0..1_000).map(one).collect()
    };
    let (held, mut flow) = (explores(BOUND_Q16), FlowPolicy::default());
    let found = actions(&held, &mut flow, GOOD);
    assert!(
        found.iter().all(|a| a.abs() <= BOUND_Q16)
            && found.contains(&BOUND_Q16)
            && found.contains(&-BOUND_Q16)
    );
    assert_eq!((flow.saturated, flow.penalty, flow.trips), (0, 0, 0));
    // The network's own action counts, wherever noise takes it.
    let mut flow = FlowPolicy::default();
    held.uid(ACTIVE, &mut flow, 7, BAD);
    assert_eq!((flow.saturated, flow.penalty), (1, PENALTY_UP));
}

#[test]
fn noise_has_the_deviation_that_was_asked_for() {
    const DEVIATION_Q16: i64 = 6_554;
    let noisy = Held::new(|words| {
        image::set_u64(words, image::NOISE_MULT, ((DEVIATION_Q16 << 16) / NOISE_DEVIATION) as u64);
        image::set_u32(words, image::MAP, map::NONE);
    });
    let (mut flow, mut actions) = (FlowPolicy::default(), Vec::new());
    for _ in 0..4_000 {
        match noisy.decide(ACTIVE, &mut flow, 7, 0, &mut knobs(10_000)) {
            Verdict::Decided { action_q16, .. } => actions.push(action_q16),
            Verdict::Native => panic!("no decision"),
        }
    }
    let mean = actions.iter().sum::<i64>() / 4_000;
    let deviation = (actions.iter().map(|a| (a - mean).pow(2)).sum::<i64>() / 4_000).isqrt();
    assert!(mean.abs() < 320, "mean {mean}");
    assert!((6_300..6_800).contains(&deviation), "deviation {deviation}");
    // Each flow has its own, and the same one again.
    let draw = |key| {
        let mut flow = FlowPolicy::default();
        noisy.decide(ACTIVE, &mut flow, key, 0, &mut knobs(10_000))
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

//! A policy slot: it chooses the snapshot that a flow decides by, and applies the decision.

use crate::bounds::BUFFERS;
use crate::image::{self, PENALTY_UP, map};
use crate::model::{Inference, Model};
use crate::noise::{Noise, spread};
use crate::shape::Shape;

/// A slot's control word: the part that each buffer plays. It is one word, so that it is read and written atomically.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Control {
    /// The buffer that most flows decide by.
    pub active: Option<u8>,
    /// The buffer that a share of the flows decides by.
    pub canary: Option<u8>,
    /// The buffer that flows fall back to.
    pub last_good: Option<u8>,
    /// The canary's share of the flows, in 2^-16.
    pub canary_share: u16,
}

impl Control {
    /// The control word of an empty slot.
    pub const EMPTY: Control = Control { active: None, canary: None, last_good: None, canary_share: 0 };

    /// Packs the control word: bits 0-7 the active buffer plus 1, 8-15 the canary's, 16-23 the last good one's, 32-47
    /// the share.
    pub fn to_word(self) -> u64 {
        let buffer = |b: Option<u8>| b.map_or(0, |b| u64::from(b) + 1);
        buffer(self.active)
            | buffer(self.canary) << 8
            | buffer(self.last_good) << 16
            | u64::from(self.canary_share) << 32
    }

    /// Unpacks a control word; a buffer that does not exist counts as none.
    pub fn from_word(word: u64) -> Control {
        let buffer = |shift: u32| match (word >> shift) as u8 {
            n @ 1.. if usize::from(n) <= BUFFERS => Some(n - 1),
            _ => None,
        };
        Control {
            active: buffer(0),
            canary: buffer(8),
            last_good: buffer(16),
            canary_share: (word >> 32) as u16,
        }
    }
}

/// The window and rate that a decision may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// The congestion window, bytes.
    pub cwnd_bytes: i64,
    /// The pacing rate, bytes per second; 0 for none.
    pub rate_bytes_per_s: i64,
}

/// The degrees to which a flow has fallen back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u32)]
pub enum Level {
    /// The flow decides by the snapshot that the slot gives it.
    #[default]
    Chosen = 0,
    /// The flow decides by the active snapshot if the canary tripped it, else by the last good one.
    LastGood = 1,
    /// The native algorithm controls the flow.
    Native = 2,
}

/// A flow's state for `(policy ...)`, besides its histories.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlowPolicy {
    pub noise: Noise,
    /// The deployment that decided last; 0 before the first decision.
    pub uid: u32,
    /// The buffer that held the deployment in `uid`.
    pub buffer: u32,
    /// The degree to which the flow has fallen back.
    pub level: Level,
    /// The deployment that the flow fell back from: another one in the slot resets the level.
    pub level_uid: u32,
    /// The monitor's penalty: see [`PENALTY_UP`].
    pub penalty: u32,
    pub decisions: u32,
    /// Decisions whose action was out of bounds before noise.
    pub saturated: u32,
    /// Decisions with too many inputs out of range.
    pub clipped: u32,
    /// Decisions that left the rate or window at the map's minimum.
    pub collapsed: u32,
    /// Times that the monitor made the flow fall back.
    pub trips: u32,
}

/// The outcome of `(policy ...)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A deployment decided.
    Decided {
        /// The action after noise and bound, Q16.
        action_q16: i64,
        uid: u32,
    },
    /// No snapshot decided: the native algorithm controls the flow from now on.
    Native,
}

/// A consistent view of a slot for one decision.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// The shape of all images of the slot.
    pub shape: &'a Shape,
    /// The control word, read once.
    pub control: Control,
    pub images: [&'a [u64]; BUFFERS],
}

impl Slot<'_> {
    /// Decides for the flow with key `key`.
    pub fn decide(&self, key: u64, flow: &mut FlowPolicy, inputs: &[i32], knobs: &mut Knobs) -> Verdict {
        self.decide_with(key, flow, knobs, |_, model| model.infer(inputs))
    }

    /// Decides as [`Slot::decide`] does, with an `infer` that runs the network in the chosen buffer as
    /// [`Model::infer`] does.
    #[inline]
    pub fn decide_with(
        &self,
        key: u64,
        flow: &mut FlowPolicy,
        knobs: &mut Knobs,
        infer: impl FnOnce(u8, Model<'_>) -> Inference,
    ) -> Verdict {
        let Some(buffer) = self.choose(key, flow) else { return Verdict::Native };
        let image = self.images[usize::from(buffer) % BUFFERS];
        let uid = image::u32_at(image, image::UID);
        let Some(model) = Model::new(self.shape, image).filter(|_| uid != 0) else { return Verdict::Native };
        let inference = infer(buffer, model);
        let bound = i64::from(image::u32_at(image, image::ACTION_BOUND_Q16) as i32);
        let bounded = |action: i64| action.min(bound).max(-bound);
        // The network's own action: exploring beyond the bound is not penalised.
        let mut action = bounded(inference.action_q16);
        let saturated = action != inference.action_q16;
        let noise_mult = image::i64_at(image, image::NOISE_MULT);
        if noise_mult != 0 {
            action = bounded(action.wrapping_add(flow.noise.draw(key).wrapping_mul(noise_mult) >> 16));
        }
        let collapsed = apply(image, action, knobs);
        let clipped = inference.clipped_inputs > image::u32_at(image, image::CLIP_LIMIT);
        // An opinion on what the network does not know is none.
        if clipped && image::u32_at(image, image::MAP) == map::NONE {
            action = 0;
        }
        flow.uid = uid;
        flow.buffer = u32::from(buffer);
        flow.decisions = flow.decisions.wrapping_add(1);
        flow.saturated = flow.saturated.wrapping_add(u32::from(saturated));
        flow.clipped = flow.clipped.wrapping_add(u32::from(clipped));
        flow.collapsed = flow.collapsed.wrapping_add(u32::from(collapsed));
        self.watch(flow, image, saturated || clipped || collapsed);
        Verdict::Decided { action_q16: action, uid }
    }

    /// Chooses the buffer that the flow decides by, which may make the flow fall back; `None` if there is none.
    #[inline]
    fn choose(&self, key: u64, flow: &mut FlowPolicy) -> Option<u8> {
        let slots_choice = match self.control.canary {
            Some(canary) if (spread(key) >> 48) < u64::from(self.control.canary_share) => Some(canary),
            _ => self.control.active,
        };
        let mut buffer = slots_choice?;
        let pinned = self.images[flow.buffer as usize % BUFFERS];
        if flow.uid != 0
            && image::u32_at(pinned, image::UID) == flow.uid
            && image::u32_at(pinned, image::FLAGS) & image::PIN != 0
        {
            buffer = (flow.buffer as usize % BUFFERS) as u8;
        }
        let uid_in = |buffer: u8| image::u32_at(self.images[usize::from(buffer) % BUFFERS], image::UID);
        if flow.level != Level::Chosen {
            // A canary's flow goes back to the active snapshot, any other one to the last good.
            let another = |buffer: &u8| uid_in(*buffer) != flow.level_uid;
            let good = [self.control.active, self.control.last_good].into_iter().flatten().find(another);
            // The slot's own choice, not the pinned one: a push lets a flow come back up.
            buffer = slots_choice?;
            if uid_in(buffer) != flow.level_uid {
                flow.level = Level::Chosen;
                flow.penalty = 0;
            } else if flow.level == Level::LastGood
                && let Some(good) = good
            {
                buffer = good;
            } else {
                flow.level = Level::Native;
                return None;
            }
        }
        Some(buffer)
    }

    /// Updates the penalty after a decision and falls back at the limit.
    fn watch(&self, flow: &mut FlowPolicy, image: &[u64], bad: bool) {
        flow.penalty =
            if bad { flow.penalty.saturating_add(PENALTY_UP) } else { flow.penalty.saturating_sub(1) };
        let limit = image::u32_at(image, image::TRIP_LIMIT);
        if limit == 0 || flow.penalty < limit {
            return;
        }
        flow.penalty = 0;
        flow.trips = flow.trips.wrapping_add(1);
        match flow.level {
            Level::Chosen => {
                flow.level = Level::LastGood;
                flow.level_uid = flow.uid;
            }
            Level::LastGood | Level::Native => flow.level = Level::Native,
        }
    }
}

/// Applies the action map of `image`; true if that left the rate or window at its minimum.
#[inline]
pub fn apply(image: &[u64], action_q16: i64, knobs: &mut Knobs) -> bool {
    let knob = match image::u32_at(image, image::MAP) {
        map::RATE => &mut knobs.rate_bytes_per_s,
        map::CWND => &mut knobs.cwnd_bytes,
        _ => return false,
    };
    let (min, max) = (image::i64_at(image, image::KNOB_MIN), image::i64_at(image, image::KNOB_MAX));
    let step_q20 = image::i64_at(image, image::STEP_Q20) as u64;
    // The bounds are the snapshot's: value <= 2^40, |action| * step >> 16 <= 2^22.
    let d_q20 = action_q16.unsigned_abs().wrapping_mul(step_q20) >> 16;
    let value = (*knob).max(min).min(max) as u64;
    let changed = if action_q16 >= 0 {
        value.wrapping_add(value.wrapping_mul(d_q20) >> 20)
    } else {
        (value << 20) / (d_q20 + (1 << 20))
    };
    *knob = (changed as i64).max(min).min(max);
    *knob == min
}

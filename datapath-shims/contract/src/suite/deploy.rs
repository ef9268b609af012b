//! Random deployments: slots for a script's policies, and what is pushed to them while its flow runs.

use super::draws::{below, chance, pick};
use super::executor::{Script, ScriptStep};
use super::images;
use crate::command::Part;
use crate::slots::{free_buffer, promoted, pushed, rolled_back};
use ccplane_infer::{BUFFERS, Control, Shape};
use rand_core::RngCore;

/// The probability that something is deployed before a step, percent.
const DEPLOYMENTS_PERCENT: u32 = 10;

/// The state of a slot after the steps so far, so that the next command on it is valid.
struct Slot {
    number: u8,
    shape: Shape,
    control: Control,
    uids: [u32; BUFFERS],
}

/// Adds slots to a script, with commands on them among its steps.
pub(super) fn deploy(rng: &mut impl RngCore, script: &mut Script) {
    let mut slots: Vec<Slot> = Vec::new();
    for program in &script.programs {
        for number in program.policy_slots() {
            if let Ok(shape) = images::shape(rng, program.policy_inputs()) {
                slots.push(Slot { number, shape, control: Control::EMPTY, uids: [0; BUFFERS] });
            }
        }
    }
    script.slots = slots.iter().map(|s| (s.number, s.shape)).collect();
    let mut next_uid = 1 + (rng.next_u32() >> (1 + below(rng, 31)));
    let mut steps = Vec::new();
    for slot in &mut slots {
        // A slot that is empty hands its flows to the native algorithm.
        if chance(rng, 90) {
            steps.push(slot.push(rng, &mut script.images, &mut next_uid, Part::Active));
        }
    }
    for step in std::mem::take(&mut script.steps) {
        if chance(rng, DEPLOYMENTS_PERCENT) && !slots.is_empty() {
            let n = below(rng, slots.len() as u32) as usize;
            steps.extend(slots[n].change(rng, &mut script.images, &mut next_uid));
        }
        steps.push(step);
    }
    script.steps = steps;
}

impl Slot {
    fn push(
        &mut self,
        rng: &mut impl RngCore,
        images: &mut Vec<Vec<u64>>,
        next_uid: &mut u32,
        part: Part,
    ) -> ScriptStep {
        if let Some(buffer) = free_buffer(self.control, self.uids) {
            self.uids[usize::from(buffer)] = *next_uid;
            self.control = pushed(self.control, buffer, part);
        }
        images.push(images::image(rng, &self.shape, *next_uid));
        *next_uid += 1 + below(rng, 3);
        ScriptStep::Push { slot: self.number, image: images.len() - 1, part }
    }

    fn change(
        &mut self,
        rng: &mut impl RngCore,
        images: &mut Vec<Vec<u64>>,
        next_uid: &mut u32,
    ) -> Option<ScriptStep> {
        let (control, step) = match below(rng, 6) {
            0 | 1 => return Some(self.push(rng, images, next_uid, Part::Active)),
            2 | 3 => {
                let any = rng.next_u32() as u16;
                let share = pick(rng, &[0, 1, 1 << 15, u16::MAX, any]).unwrap_or(any);
                return Some(self.push(rng, images, next_uid, Part::Canary { share }));
            }
            4 => (promoted(self.number, self.control), ScriptStep::Promote(self.number)),
            _ => (rolled_back(self.number, self.control), ScriptStep::Rollback(self.number)),
        };
        self.control = control.ok()?;
        Some(step)
    }
}

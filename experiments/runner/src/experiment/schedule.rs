//! The order of runs: contenders alternate within each repeat, and the first contender rotates.

use crate::plan::Plan;

/// One run to be done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slot {
    /// Index into the plan's scenarios.
    pub scenario: usize,
    /// Index into the plan's contenders.
    pub contender: usize,
    /// The number of the repeat, from 0.
    pub repeat: u32,
}

/// All runs of a plan, in their order: repeat by repeat, so that a plan cut short has compared everybody; within one, scenario
/// by scenario, with contenders side by side, as the machine changes slowly. The first contender of one repeat is the last of the next.
#[must_use]
pub fn schedule(plan: &Plan) -> Vec<Slot> {
    let contenders = plan.contenders.len();
    let mut slots = Vec::new();
    for repeat in 0..plan.repeats {
        for scenario in 0..plan.scenarios.len() {
            let first = repeat as usize;
            slots.extend((0..contenders).map(|n| Slot {
                scenario,
                contender: (first + n) % contenders,
                repeat,
            }));
        }
    }
    slots
}

/// The seed of all contenders' runs of one scenario and repeat (splitmix64, Steele et al., OOPSLA 2014).
#[must_use]
pub fn seed(plan: &Plan, slot: Slot) -> u64 {
    let index = u64::from(slot.repeat) << 32 | slot.scenario as u64;
    let mut z = plan.seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

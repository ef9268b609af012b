//! The time that flows of a size usually take, against which a flow that has ended is good or bad.
//!
//! Flows differ far more in size than snapshots do in what they make of them. So a trial compares how much longer or shorter than
//! the flows before it, of its own octave of sizes, each flow took.

use std::sync::{Mutex, PoisonError};

/// Octaves of sizes that are told apart: all that 64 bits have.
const OCTAVES: usize = 64;
/// Flows of an octave after which the oldest no longer count.
const WINDOW: i64 = 64;

/// The mean of one octave.
#[derive(Clone, Copy, Default, Debug)]
struct Mean {
    q16: i64,
    flows: i64,
}

/// Usual times by size, as logarithms (base 2), Q16. All flows of an algorithm share them.
#[derive(Debug)]
pub struct UsualTimes(Mutex<[Mean; OCTAVES]>);

impl Default for UsualTimes {
    fn default() -> UsualTimes {
        UsualTimes(Mutex::new([Mean::default(); OCTAVES]))
    }
}

impl UsualTimes {
    /// Returns by how much a flow of so many bytes took longer than usual, an octave being 2^16, and counts it from then on; 0 for
    /// the first of its octave.
    pub fn surplus_q16(&self, bytes: u64, time_q16: i32) -> i32 {
        let octave = bytes.max(1).ilog2() as usize;
        let mut means = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mean) = means.get_mut(octave) else { return 0 };
        let time_q16 = i64::from(time_q16);
        let surplus_q16 = if mean.flows == 0 { 0 } else { time_q16 - mean.q16 };
        mean.flows = (mean.flows + 1).min(WINDOW);
        mean.q16 += (time_q16 - mean.q16) / mean.flows;
        surplus_q16.clamp(i32::MIN.into(), i32::MAX.into()) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_held_against_those_of_its_octave_before_it() {
        let usual = UsualTimes::default();
        assert_eq!(usual.surplus_q16(1000, 10 << 16), 0);
        assert_eq!(usual.surplus_q16(1000, 12 << 16), 2 << 16, "to the only one before");
        assert_eq!(usual.surplus_q16(900, 11 << 16), 0, "to the mean of two");
        assert_eq!(usual.surplus_q16(2000, 50 << 16), 0, "another octave");
        assert_eq!(usual.surplus_q16(0, -5), 0);
        assert_eq!(usual.surplus_q16(u64::MAX, i32::MAX), 0);
        assert_eq!(usual.surplus_q16(u64::MAX, i32::MIN), i32::MIN, "saturated");
        (0..1000).for_each(|_| {
            usual.surplus_q16(1000, 20 << 16);
        });
        assert!(usual.surplus_q16(1000, 20 << 16).abs() < 64, "what was long ago is forgotten");
    }
}

//! Exp3 and Exp4 in integers, for datapaths: no float, no allocation, nothing but 64-bit operations.
//!
//! One state serves both. The arms are predictors. With Exp3 the drawn predictor alone is paid; with Exp4 the experts are the
//! predictors, too: each advises, for each request, evenly the predictors that answer as it does. All that give the drawn
//! answer are then paid, at the probability of that answer.
//!
//! # Arithmetic
//! Unsigned 64-bit; `>>` shifts zeros in, `/` rounds down. K is the number of arms, Q32 means times 2^32.
//!
//! 1. The state is a deficit `D_i` for each arm: how many bits (base-2 logarithms, Q32) its weight is below the largest.
//!    All are 0 at the start.
//! 2. `exp2(D)`: let `x = D & (2^32 - 1)`, with the [coefficients](EXP2_Q32) C; `a = C_5`, then `a = C_k - (a x >> 32)`
//!    for k = 4 to 0; the weight is `a >> (D >> 32)`, Q32. Its relative error is below 6e-7 before the last shift,
//!    which loses at most one unit.
//! 3. `w_i = exp2(D_i)`, `S = sum w_i`; `p_i = w_i (2^32 - GAMMA) / S + GAMMA / K` for all arms but the last, which has
//!    what is left of 2^32. The [threshold](Weights::thresholds) of arm i is `p_0 + ... + p_i`; thresholds change with
//!    feedback only.
//! 4. A draw by 32 random bits r takes the first arm whose threshold is above r.
//! 5. Reward 1 for a set of arms that was drawn with probability P (Q32): with `g = (RATE / K) / max(P, GAMMA / K)`,
//!    `D_i += g` for every arm *not* in the set; then the smallest deficit is taken off all, and each is at most
//!    [`FLOOR`]. Reward 0 changes nothing, as its estimate is 0.
//!
//! # Bounds
//! An arm's weight saturates at 2^-32 of the largest. So an arm that was always the worst catches up as soon as it has
//! gained 32 bits. As long as none saturates, a probability differs from that of Auer's formula by less than 2e-6,
//! which is tested against [`Exp3`](crate::Exp3) and [`Exp4`](crate::Exp4). A step is below 1.45 bits, and nothing
//! overflows.

/// Most arms of one bandit in a datapath.
pub const MAX_ARMS: usize = 16;
/// The number one in Q32.
pub const ONE_Q32: u64 = 1 << 32;
/// The probability of a uniform draw, 0.1, Q32.
pub const GAMMA_Q32: u64 = 429_496_730;
/// Gamma times log2(e), Q64: the step of a log-weight at probability 1 with one arm.
pub const RATE_Q64: u64 = 2_661_302_619_568_864_498;
/// The largest deficit: 32 bits, Q32.
pub const FLOOR: u64 = 32 << 32;
/// Coefficients of `2^-x = C_0 - x (C_1 - x (C_2 - ...))` for x from 0 to 1, Q32.
pub const EXP2_Q32: [u64; 6] =
    [4_294_967_296, 2_977_043_436, 1_031_713_110, 237_969_895, 40_115_630, 4_299_057];

/// Log-weights of up to [`MAX_ARMS`] arms, and the distribution that follows from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights {
    arms: u8,
    deficits: [u64; MAX_ARMS],
    thresholds: [u64; MAX_ARMS],
}

impl Weights {
    /// Starts with equal weights; `None` unless there are 1 to [`MAX_ARMS`] arms.
    pub fn new(arms: usize) -> Option<Weights> {
        Weights::from_deficits(arms, [0; MAX_ARMS])
    }

    /// Goes on from deficits that were kept; `None` unless they are a state: none beyond the floor, one of them 0.
    pub fn from_deficits(arms: usize, deficits: [u64; MAX_ARMS]) -> Option<Weights> {
        let used = deficits.get(..arms).filter(|used| !used.is_empty())?;
        let (least, most) = used.iter().fold((u64::MAX, 0), |(least, most), d| (least.min(*d), most.max(*d)));
        let unused = deficits.iter().skip(arms).any(|d| *d != 0);
        if least != 0 || most > FLOOR || unused {
            return None;
        }
        let mut weights = Weights { arms: arms as u8, deficits, thresholds: [0; MAX_ARMS] };
        weights.refresh();
        Some(weights)
    }

    /// The number of arms.
    pub fn arms(&self) -> usize {
        usize::from(self.arms)
    }

    /// Returns how far each arm's weight is below the largest: base-2 logarithms, Q32.
    pub fn deficits(&self) -> &[u64] {
        self.deficits.get(..self.arms()).unwrap_or_default()
    }

    /// The sums of the arms' probabilities up to each arm, Q32; the last is 2^32.
    pub fn thresholds(&self) -> &[u64] {
        self.thresholds.get(..self.arms()).unwrap_or_default()
    }

    /// Draws an arm by 32 random bits.
    pub fn draw(&self, random: u32) -> usize {
        let random = u64::from(random);
        self.thresholds().iter().take(self.arms() - 1).take_while(|threshold| **threshold <= random).count()
    }

    /// The probability of an arm, Q32; 0 if there is no such arm.
    pub fn probability(&self, arm: usize) -> u64 {
        let at = |n: usize| self.thresholds().get(n).copied();
        let below = arm.checked_sub(1).map_or(Some(0), at);
        at(arm).zip(below).map_or(0, |(upper, lower)| upper - lower)
    }

    /// The probability that one of a set of arms is drawn, Q32; bit i of the set is arm i.
    pub fn probability_of(&self, set: u16) -> u64 {
        (0..self.arms()).filter(|arm| set >> arm & 1 == 1).map(|arm| self.probability(arm)).sum()
    }

    /// Takes in reward 1 for a set of arms that was drawn with this probability, Q32, however long ago that was.
    ///
    /// A probability below that of exploration alone counts as that one. Reward 0 needs no call.
    pub fn reward(&mut self, set: u16, probability: u64) {
        let arms = u64::from(self.arms);
        let step = RATE_Q64 / arms / probability.max(GAMMA_Q32 / arms);
        let count = self.arms();
        for (arm, deficit) in self.deficits.iter_mut().enumerate().take(count) {
            if set >> arm & 1 == 0 {
                *deficit += step;
            }
        }
        let least = self.deficits().iter().copied().fold(u64::MAX, u64::min);
        for deficit in self.deficits.iter_mut().take(count) {
            *deficit = (*deficit - least).min(FLOOR);
        }
        self.refresh();
    }

    /// Computes the thresholds from the deficits.
    fn refresh(&mut self) {
        let arms = self.arms();
        let weights = self.deficits.map(exp2);
        let sum: u64 = weights.iter().take(arms).sum();
        let mut below = 0;
        for (threshold, weight) in self.thresholds.iter_mut().zip(weights).take(arms - 1) {
            below += weight * (ONE_Q32 - GAMMA_Q32) / sum + GAMMA_Q32 / arms as u64;
            *threshold = below;
        }
        if let Some(last) = self.thresholds.get_mut(arms - 1) {
            *last = ONE_Q32;
        }
    }
}

/// Two to the power of minus `deficit`, both Q32; `deficit` is at most [`FLOOR`].
pub fn exp2(deficit: u64) -> u64 {
    let x = deficit & (ONE_Q32 - 1);
    let series = EXP2_Q32.iter().rev().fold(0, |a: u64, c| c - ((a * x) >> 32));
    series >> (deficit >> 32).min(32)
}

//! The gaps between events: a histogram over powers of two that forgets.

/// Bits of a gap below its highest that tell bins apart: a bin is at most 3.2 % of its gaps wide.
const SUB_BITS: u32 = 5;
const SUBS: usize = 1 << SUB_BITS;
/// The shortest gap with a bin of its own is two to this power, nanoseconds.
const FIRST_BITS: u32 = 8;
/// The longest gap with a bin of its own is two to this power, nanoseconds: 17 s.
const LAST_BITS: u32 = 34;
/// Bins of the histogram: one for shorter gaps, then some for each power of two.
pub(crate) const BINS: usize = 1 + (LAST_BITS - FIRST_BITS) as usize * SUBS;
/// The weight of a gap when it is added.
const WEIGHT: u32 = 1 << 10;
/// Gaps after which all weights are halved.
const HALF_LIFE: u32 = 128;

/// A histogram of gaps, whose weights halve each [`HALF_LIFE`] gaps.
#[derive(Clone, Debug)]
pub(crate) struct Gaps {
    weights: Box<[u32; BINS]>,
    added: u32,
    /// The time that passed, times the weight of a gap, nanoseconds.
    passed: u64,
}

/// A bin that holds gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bin {
    /// The shortest gap of the bin, nanoseconds.
    pub(crate) low_ns: u64,
    /// The shortest gap beyond the bin, nanoseconds.
    pub(crate) high_ns: u64,
    pub(crate) weight: u64,
}

impl Bin {
    /// The middle of the bin, nanoseconds.
    pub(crate) fn mid_ns(&self) -> u64 {
        self.low_ns.midpoint(self.high_ns)
    }
}

impl Gaps {
    pub(crate) fn new() -> Gaps {
        Gaps { weights: Box::new([0; BINS]), added: 0, passed: 0 }
    }

    /// Lets time pass, with or without a gap in it that was waited for.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.passed = self.passed.saturating_add(ns.min(1 << LAST_BITS) * u64::from(WEIGHT));
    }

    /// The time that passed, weighted as the gaps.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Adds a gap that was waited for.
    pub(crate) fn add(&mut self, gap_ns: u64) {
        if self.added == HALF_LIFE {
            self.added = 0;
            self.weights.iter_mut().for_each(|weight| *weight /= 2);
            self.passed /= 2;
        }
        self.added += 1;
        let weight = &mut self.weights[index(gap_ns)];
        *weight = weight.saturating_add(WEIGHT);
    }

    /// The bins that hold gaps, the shortest first.
    pub(crate) fn bins(&self) -> impl Iterator<Item = Bin> {
        let held = self.weights.iter().enumerate().filter(|(_, weight)| **weight > 0);
        held.map(|(n, weight)| Bin { low_ns: low_ns(n), high_ns: low_ns(n + 1), weight: u64::from(*weight) })
    }
}

/// The bin of a gap.
fn index(gap_ns: u64) -> usize {
    let bits = u64::BITS - 1 - (gap_ns | 1).leading_zeros();
    if bits < FIRST_BITS {
        return 0;
    }
    let sub = (gap_ns >> (bits - SUB_BITS)) as usize % SUBS;
    (1 + (bits - FIRST_BITS) as usize * SUBS + sub).min(BINS - 1)
}

/// The shortest gap of a bin, nanoseconds.
fn low_ns(bin: usize) -> u64 {
    let Some(above) = bin.checked_sub(1) else { return 0 };
    let (power, sub) = (FIRST_BITS + (above / SUBS) as u32, (above % SUBS) as u64);
    (SUBS as u64 + sub) << (power - SUB_BITS)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_gap_is_within_its_bin(gap_ns in 0_u64..1 << LAST_BITS) {
            let bin = index(gap_ns);
            prop_assert!(low_ns(bin) <= gap_ns && gap_ns < low_ns(bin + 1), "{gap_ns} in bin {bin}");
        }

        #[test]
        fn a_bin_is_a_small_part_of_its_gaps(bin in 1..BINS) {
            let width = low_ns(bin + 1) - low_ns(bin);
            prop_assert!(width * 1000 <= low_ns(bin) * 32, "bin {bin} is {width} ns wide");
        }
    }

    #[test]
    fn longer_gaps_are_in_the_last_bin() {
        assert_eq!((index(u64::MAX), index(1 << LAST_BITS)), (BINS - 1, BINS - 1));
    }

    #[test]
    fn old_gaps_are_forgotten() {
        let mut gaps = Gaps::new();
        (0..HALF_LIFE).for_each(|_| gaps.add(1_000));
        // Eleven halvings of the weight that one bin can have by then leave nothing of it.
        let weight = HALF_LIFE * WEIGHT;
        for _ in 0..(u32::BITS - weight.leading_zeros()) * HALF_LIFE {
            gaps.add(1_000_000);
        }
        let bins: Vec<Bin> = gaps.bins().collect();
        assert_eq!(bins.len(), 1);
        assert!(bins[0].low_ns <= 1_000_000 && 1_000_000 < bins[0].high_ns);
    }
}

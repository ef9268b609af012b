//! Sets of processors, in the two ways in which the kernel writes them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// The most processors that a kernel for x86 can be built for (`CONFIG_NR_CPUS`).
pub const MAX_CPUS: u32 = 8192;
/// The bits in one group of a mask's hexadecimal digits.
const GROUP_BITS: u32 = 32;

/// Processors by number, each once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuSet(BTreeSet<u32>);

/// A text that is no set of processors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{text:?} is no list of processors below {MAX_CPUS}, such as 0-3,8")]
pub struct CpuSetError {
    /// The text as it was given.
    pub text: String,
}

impl CpuSet {
    /// Parses a mask: groups of hexadecimal digits of 32 processors each, the highest first, such as `1,00000003`.
    ///
    /// # Errors
    /// The text is no mask, or names a processor of [`MAX_CPUS`] or above.
    pub fn from_mask(text: &str) -> Result<CpuSet, CpuSetError> {
        let wrong = || CpuSetError { text: text.to_owned() };
        let mut cpus = BTreeSet::new();
        for (group, digits) in text.rsplit(',').enumerate() {
            let bits = u32::from_str_radix(digits, 16).map_err(|_| wrong())?;
            for bit in (0..GROUP_BITS).filter(|bit| bits >> bit & 1 == 1) {
                let group = u32::try_from(group).map_err(|_| wrong())?;
                let cpu = group.checked_mul(GROUP_BITS).and_then(|first| first.checked_add(bit));
                cpus.insert(cpu.filter(|cpu| *cpu < MAX_CPUS).ok_or_else(wrong)?);
            }
        }
        Ok(CpuSet(cpus))
    }

    /// Returns the set as a mask, which [`CpuSet::from_mask`] reads.
    pub fn mask(&self) -> String {
        let groups = self.0.last().map_or(0, |last| last / GROUP_BITS);
        let group = |n: u32| {
            let first = n * GROUP_BITS;
            self.0.range(first..first + GROUP_BITS).fold(0_u32, |bits, cpu| bits | 1 << (cpu - first))
        };
        let rest = (0..groups).rev().map(|n| format!(",{:08x}", group(n)));
        std::iter::once(format!("{:x}", group(groups))).chain(rest).collect()
    }

    /// Returns the processors' numbers in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Whether the processor is one of the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Returns the number of processors.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the set has no processor.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> CpuSet {
        CpuSet(cpus.into_iter().collect())
    }
}

/// The kernel's lists: numbers and ranges, such as `0-3,8`; empty for no processor.
impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<CpuSet, CpuSetError> {
        let wrong = || CpuSetError { text: text.to_owned() };
        let number =
            |digits: &str| digits.parse::<u32>().ok().filter(|cpu| *cpu < MAX_CPUS).ok_or_else(wrong);
        let mut cpus = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        Ok(CpuSet(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (i, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_masks_are_the_kernels() {
        let set: CpuSet = "0-3,8,33".parse().unwrap();
        assert_eq!((set.to_string().as_str(), set.mask().as_str()), ("0-3,8,33", "2,0000010f"));
        assert_eq!(CpuSet::from_mask("00000000,00000003").unwrap().to_string(), "0-1");
        assert_eq!(("".parse(), CpuSet::default().mask().as_str()), (Ok(CpuSet::default()), "0"));
        for wrong in ["3-1", "a", "8192", "1,,2", "-1", "0-"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
        assert!(CpuSet::from_mask("0x1").is_err() && CpuSet::from_mask("").is_err());
    }

    proptest! {
        #[test]
        fn both_ways_of_writing_hold_any_set(cpus in proptest::collection::btree_set(0..MAX_CPUS, 0..40)) {
            let set: CpuSet = cpus.into_iter().collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set.clone()));
            prop_assert_eq!(CpuSet::from_mask(&set.mask()), Ok(set));
        }
    }
}

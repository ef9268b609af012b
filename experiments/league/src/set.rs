//! Sets of links: for training, for validation, for the test.

/// The purposes of links. Sets share no seed, and only the test set reaches the ends of ranges.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Set {
    /// Links that policies are trained on.
    Training,
    /// Links by which choices are made.
    Validation,
    /// Links that are measured once all choices are made.
    Test,
}

/// The seed of what `ccplane evaluate` draws: no set's, so that no policy was trained, chosen or measured on it.
pub const EVALUATION_SEED: u64 = 0x6576_616c;

impl Set {
    /// All sets, in this order.
    pub const ALL: [Set; 3] = [Set::Training, Set::Validation, Set::Test];

    /// Returns the name in commands and in names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Set::Training => "training",
            Set::Validation => "validation",
            Set::Test => "test",
        }
    }

    pub(crate) fn seed(self) -> u64 {
        match self {
            Set::Training => 0x7261_696e,
            Set::Validation => 0x7661_6c69,
            Set::Test => 0x7465_7374,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sets_have_different_seeds() {
        let seeds: BTreeSet<u64> = Set::ALL.iter().map(|set| set.seed()).chain([EVALUATION_SEED]).collect();
        assert_eq!(seeds.len(), Set::ALL.len() + 1);
    }
}

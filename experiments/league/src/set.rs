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

impl Set {
    /// All sets, in this order.
    pub const ALL: [Set; 3] = [Set::Training, Set::Validation, Set::Test];

    /// As commands and names spell it.
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

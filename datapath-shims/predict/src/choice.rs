//! A server's slots: how each chooses, and how many there may be.

/// Most slots of one server.
pub const MAX_SLOTS: usize = 8;

/// The bandit by which a slot chooses among the predictors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// One predictor is drawn, and only it runs.
    Exp3,
    /// All predictors run; those that agree with the drawn one share its reward.
    Exp4,
}

impl Choice {
    /// The slots of a server unless it is told others: slot 0 chooses by Exp3, slot 1 by Exp4.
    pub const DEFAULT: [Choice; 2] = [Choice::Exp3, Choice::Exp4];
}

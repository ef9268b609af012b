//! Counters of a server: requests, outcomes, and refusals by their reason.

/// Reasons why a datagram is dropped, unanswered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Refusal {
    /// The datagram has fewer bytes than its kind.
    Short,
    /// The datagram has more bytes than its kind.
    Long,
    /// The datagram does not begin as the protocol's do.
    Magic,
    /// The datagram is of another version.
    Version,
    /// The datagram is neither a request nor feedback.
    Kind,
    /// No slot has this number.
    Slot,
    /// The request's number of inputs is not the predictors'.
    Inputs,
    /// The feedback's true class does not exist.
    Truth,
    /// The token is of other predictors or of an earlier key.
    Outdated,
    /// The token's tag is wrong, or the token is of another slot.
    Forged,
    /// The token is older than the window.
    Late,
    /// The token has been used already.
    Repeated,
}

impl Refusal {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Refusal; 12] = [
        Refusal::Short,
        Refusal::Long,
        Refusal::Magic,
        Refusal::Version,
        Refusal::Kind,
        Refusal::Slot,
        Refusal::Inputs,
        Refusal::Truth,
        Refusal::Outdated,
        Refusal::Forged,
        Refusal::Late,
        Refusal::Repeated,
    ];

    /// The reason's name, one word.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Short => "short",
            Refusal::Long => "long",
            Refusal::Magic => "magic",
            Refusal::Version => "version",
            Refusal::Kind => "kind",
            Refusal::Slot => "slot",
            Refusal::Inputs => "inputs",
            Refusal::Truth => "truth",
            Refusal::Outdated => "outdated",
            Refusal::Forged => "forged",
            Refusal::Late => "late",
            Refusal::Repeated => "repeated",
        }
    }
}

/// Counts since a server's start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ServerCounters {
    /// Requests that were answered.
    pub requests: u64,
    /// Feedback that said that the answered class was true.
    pub right: u64,
    /// Feedback that named another class.
    pub wrong: u64,
    /// Datagrams that were dropped, by the number of the reason.
    pub refused: [u64; Refusal::ALL.len()],
}

impl ServerCounters {
    /// Datagrams that were dropped for this reason.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused.get(reason as usize).copied().unwrap_or(0)
    }

    /// Datagrams that were dropped.
    pub fn all_refused(&self) -> u64 {
        self.refused.iter().sum()
    }

    pub(crate) fn refuse(&mut self, reason: Refusal) {
        if let Some(count) = self.refused.get_mut(reason as usize) {
            *count += 1;
        }
    }
}

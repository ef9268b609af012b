//! The events that the program counts.

use ccplane_predict::Refusal;

/// An event that the program counts, once a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// A request was answered.
    Requests,
    /// Feedback confirmed the class.
    Right,
    /// Feedback told another class.
    Wrong,
    /// A datagram was dropped for this reason.
    Refused(Refusal),
    /// A request was dropped because predictors or weights changed again and again while it was served.
    Overtaken,
}

impl Counter {
    /// Number of counters.
    pub const COUNT: usize = 4 + Refusal::ALL.len();

    /// The counter's place in a processor's block.
    pub(crate) const fn place(self) -> usize {
        match self {
            Counter::Requests => 0,
            Counter::Right => 1,
            Counter::Wrong => 2,
            Counter::Overtaken => 3,
            Counter::Refused(reason) => 4 + reason as usize,
        }
    }

    /// The reasons why the program drops a packet.
    pub(crate) fn drops() -> impl Iterator<Item = Counter> {
        Refusal::ALL.into_iter().map(Counter::Refused).chain([Counter::Overtaken])
    }
}

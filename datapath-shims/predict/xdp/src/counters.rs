//! The events that the program counts, a packet each.

/// An event that the program counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i16)]
pub enum Counter {
    /// A request was answered.
    Requests,
    /// Feedback confirmed the class.
    Right,
    /// Feedback told another class.
    Wrong,
    Short,
    Long,
    Magic,
    Version,
    Kind,
    Slot,
    Inputs,
    Truth,
    Outdated,
    Forged,
    Late,
    Repeated,
    /// A predictor or its weights changed while a request was served, again and again.
    Overtaken,
}

impl Counter {
    /// All counters, in the order of their places.
    pub const ALL: [Counter; 16] = [
        Counter::Requests,
        Counter::Right,
        Counter::Wrong,
        Counter::Short,
        Counter::Long,
        Counter::Magic,
        Counter::Version,
        Counter::Kind,
        Counter::Slot,
        Counter::Inputs,
        Counter::Truth,
        Counter::Outdated,
        Counter::Forged,
        Counter::Late,
        Counter::Repeated,
        Counter::Overtaken,
    ];
    /// The reasons why a packet is dropped.
    pub const REFUSALS: [Counter; 13] = [
        Counter::Short,
        Counter::Long,
        Counter::Magic,
        Counter::Version,
        Counter::Kind,
        Counter::Slot,
        Counter::Inputs,
        Counter::Truth,
        Counter::Outdated,
        Counter::Forged,
        Counter::Late,
        Counter::Repeated,
        Counter::Overtaken,
    ];
}

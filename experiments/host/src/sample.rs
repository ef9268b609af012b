//! Counters of one measurement, as integers.

use serde::{Deserialize, Serialize};

/// Counters of a host over one measurement, all of its processors together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub duration_us: u64,
    /// The payload that reached the receiving applications, bytes.
    pub bytes: u64,
    /// The time that processors were not idle, microseconds.
    pub busy_us: u64,
    /// The part of that time spent in softirqs, microseconds.
    pub softirq_us: u64,
    /// Instructions, where the machine counts them.
    pub instructions: Option<u64>,
    /// Interrupts of devices and between processors.
    pub interrupts: u64,
    /// Softirqs for received packets.
    pub softirqs: u64,
    /// Packets that one processor handed to another.
    pub steered: u64,
    /// Times that a softirq gave up with packets left.
    pub squeezed: u64,
    /// Packets that were dropped on the way to their socket.
    pub drops: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
    pub context_switches: u64,
}

const BITS_PER_BYTE: f64 = 8.0;
const US_PER_S: f64 = 1e6;

/// The unit of a measurement's efficiency.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EfficiencyUnit {
    /// Payload for each instruction.
    BytesPerInstruction,
    /// Payload for each second of processor time.
    BytesPerProcessorSecond,
}

impl EfficiencyUnit {
    /// Returns the unit in words.
    pub const fn words(self) -> &'static str {
        match self {
            EfficiencyUnit::BytesPerInstruction => "bytes per instruction",
            EfficiencyUnit::BytesPerProcessorSecond => "bytes per processor second",
        }
    }
}

impl Sample {
    /// Names of [`Sample::features`].
    pub const FEATURES: [&'static str; 9] = [
        "busy processors",
        "softirq share",
        "interrupts per MB",
        "softirqs per MB",
        "steered per MB",
        "squeezed per MB",
        "drops per MB",
        "retransmits per MB",
        "context switches per MB",
    ];

    /// The throughput, bits per second.
    pub fn throughput_bps(&self) -> f64 {
        self.bytes as f64 * BITS_PER_BYTE * US_PER_S / self.duration_us.max(1) as f64
    }

    /// The payload for each instruction where they were counted, else for each second of processor time.
    pub fn efficiency(&self) -> (f64, EfficiencyUnit) {
        match self.instructions.filter(|count| *count > 0) {
            Some(count) => (self.bytes as f64 / count as f64, EfficiencyUnit::BytesPerInstruction),
            None => {
                let seconds = self.busy_us.max(1) as f64 / US_PER_S;
                (self.bytes as f64 / seconds, EfficiencyUnit::BytesPerProcessorSecond)
            }
        }
    }

    /// The share of the busy time that softirqs took.
    pub fn softirq_share(&self) -> f64 {
        self.softirq_us as f64 / self.busy_us.max(1) as f64
    }

    /// The counters in a form that does not grow with time and payload, as [`Sample::FEATURES`] names them.
    pub fn features(&self) -> [f64; 9] {
        let per_mb = |count: u64| count as f64 / (self.bytes.max(1) as f64 / 1e6);
        [
            self.busy_us as f64 / self.duration_us.max(1) as f64,
            self.softirq_share(),
            per_mb(self.interrupts),
            per_mb(self.softirqs),
            per_mb(self.steered),
            per_mb(self.squeezed),
            per_mb(self.drops),
            per_mb(self.retransmits),
            per_mb(self.context_switches),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_counters() {
        let sample = Sample {
            duration_us: 2_000_000,
            bytes: 500_000_000,
            busy_us: 1_000_000,
            softirq_us: 250_000,
            interrupts: 1000,
            ..Sample::default()
        };
        assert_eq!(sample.throughput_bps(), 2e9);
        assert_eq!(sample.efficiency(), (5e8, EfficiencyUnit::BytesPerProcessorSecond));
        let counted = Sample { instructions: Some(250_000_000), ..sample };
        assert_eq!(counted.efficiency(), (2.0, EfficiencyUnit::BytesPerInstruction));
        assert_eq!(&sample.features()[..3], [0.5, 0.25, 2.0]);
    }

    #[test]
    fn nothing_measured_gives_finite_figures() {
        let none = Sample::default();
        assert!(none.features().iter().all(|f| f.is_finite()) && none.efficiency().0.is_finite());
        assert_eq!(none.throughput_bps(), 0.0);
    }
}

//! Algorithms that choose among others, flow by flow and while flows run.

use ccplane_contract::TransportStats;

/// A flow's path as its datapath last sampled it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PathSample {
    /// The datapath's clock at the sample, microseconds.
    pub at_us: u64,
    pub transport: TransportStats,
    /// Whether the program decides, and not the native algorithm.
    pub steered: bool,
    /// The answer of the running arm about [rivals](crate::Flow::rivals).
    pub rivals: Option<bool>,
}

impl PathSample {
    /// Returns the congestion window, bytes.
    pub fn cwnd_bytes(&self) -> u64 {
        u64::from(self.transport.snd_cwnd) * u64::from(self.transport.mss_bytes)
    }
}

/// An arm that has a flow again within this time of being left goes on where it was, microseconds.
pub const RESUMES_WITHIN_US: u64 = 20_000_000;

/// The measurements that a program takes over from the one before it, so that it starts at the flow's own speed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Handover {
    /// The datapath's clock, microseconds.
    pub at_us: u64,
    /// The delivery rate of late, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Smoothed round-trip time, microseconds, above 0.
    pub srtt_us: u32,
    /// Smallest round-trip time, microseconds, above 0.
    pub min_rtt_us: u32,
}

impl Handover {
    /// The window that keeps the rate while the queue stays as it is, bytes.
    pub fn window_bytes(&self, mss_bytes: u32) -> u64 {
        self.window(self.srtt_us, mss_bytes)
    }

    /// The window that keeps the rate once the flow's own queue is gone, bytes.
    pub fn drained_window_bytes(&self, mss_bytes: u32) -> u64 {
        self.window(self.min_rtt_us, mss_bytes)
    }

    fn window(&self, rtt_us: u32, mss_bytes: u32) -> u64 {
        /// The smallest window under which an ACK clock goes on (RFC 5681 section 3.1 starts with as many).
        const LEAST_SEGMENTS: u64 = 4;
        let bytes = u128::from(self.rate_bytes_per_s) * u128::from(rtt_us) / 1_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).max(LEAST_SEGMENTS * u64::from(mss_bytes))
    }
}

/// A decision that another arm is to steer the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switch {
    pub arm: &'static str,
    /// The measurements that the arm starts from; `None`: it starts as on a new flow.
    pub from: Option<Handover>,
}

/// The measured worth of one arm on one path.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ArmEvidence {
    pub arm: &'static str,
    /// Intervals that were measured, those of other flows on the path included.
    pub intervals: u64,
    /// The arm's utility over that of the best arm, 0 to 1; before any interval the expected one.
    pub worth: f64,
}

/// The reason why a flow has its arm.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The reason in a few words.
    pub why: String,
    /// The measured worth of each arm.
    pub evidence: Vec<ArmEvidence>,
}

/// Chooses the arm of one flow.
pub trait Chooser: Send {
    /// The arm that the flow starts with: one of `available`, which its datapath can run. Called again where an arm has been refused.
    fn first(&mut self, available: &[&'static str]) -> &'static str;

    /// Called for each sample of the flow; `None`: the arm stays.
    fn on_sample(&mut self, sample: &PathSample) -> Option<Switch>;

    /// Called once when the flow ends, or is no longer steered.
    fn on_close(&mut self) {}

    /// Returns the reason for the flow's arm, with the evidence.
    fn choice(&self) -> Choice;
}

/// A destination, with the arm of its flows and each arm's worth there, for display.
#[derive(Clone, PartialEq, Debug)]
pub struct Standing {
    pub prefix: String,
    /// The arm that flows there start with.
    pub arm: &'static str,
    /// The reason for the arm, in words.
    pub why: String,
    /// The measured worth of each arm.
    pub evidence: Vec<ArmEvidence>,
}

/// Knowledge that an algorithm wants kept beyond its agent's life. The agent does the reading and writing.
pub trait Memory: Send + Sync {
    /// Counts changes, so that what has not changed is not written again.
    fn version(&self) -> u64;

    /// All that is known, as the content of a file of at most [`MAX_MEMORY_BYTES`].
    fn export(&self) -> Vec<u8>;

    /// Takes the content of such a file in place of what is known.
    ///
    /// # Errors
    /// What is wrong with it; nothing is changed then.
    fn import(&self, content: &[u8]) -> Result<(), MemoryError>;

    /// Returns the worth of the arms at each destination, for display.
    fn standings(&self) -> Vec<Standing>;
}

/// Largest file of a [`Memory`], bytes.
pub const MAX_MEMORY_BYTES: usize = 4 << 20;

/// The reason why the content of a file is no memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MemoryError {
    /// The file is larger than [`MAX_MEMORY_BYTES`].
    TooLarge { found: usize },
    /// The header is missing.
    Header,
    /// The format is of another version.
    Version {
        found: u64,
        /// The version that the algorithm reads.
        read: u64,
    },
    /// A line cannot be read.
    Line {
        /// The line, from 1.
        line: usize,
        what: &'static str,
    },
    /// The checksum does not fit: it was cut off or changed.
    Checksum,
}

impl std::fmt::Display for MemoryError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemoryError::TooLarge { found } => {
                write!(f, "{found} bytes, at most {MAX_MEMORY_BYTES} are allowed")
            }
            MemoryError::Header => f.write_str("it does not begin as such a file does"),
            MemoryError::Version { found, read } => {
                write!(f, "it is of version {found} of the format; this program reads version {read}")
            }
            MemoryError::Line { line, what } => write!(f, "line {line}: {what}"),
            MemoryError::Checksum => f.write_str("its checksum does not fit: it was cut off or changed"),
        }
    }
}

impl std::error::Error for MemoryError {}

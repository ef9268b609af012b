//! Records of the control socket on policies: slots, deployments, decisions, learners.

use ccplane_alg::{ArmEvidence, Standing};
use ccplane_channel::clock;
use ccplane_core::{Comparison, Decision, Deployment, Evidence};
use ccplane_infer::{FlowPolicy, Level};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// Every slot, decision and learner.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Snapshots {
    /// By datapath and number.
    pub slots: Vec<SlotRecord>,
    /// Recent decisions, oldest first.
    pub decisions: Vec<DecisionRecord>,
    /// By algorithm; none where nothing is learned.
    pub learners: Vec<LearnerRecord>,
    /// The destinations that choosing algorithms have measured.
    #[serde(default)]
    pub standings: Vec<StandingRecord>,
}

/// The measured worth of one arm on one path.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ArmRecord {
    pub name: String,
    /// Intervals that were measured.
    pub intervals: u64,
    /// Its utility over the best arm's, 0 to 1; what is expected where nothing was measured.
    pub worth: f64,
}

impl ArmRecord {
    /// Copies the evidence as the algorithm has it.
    pub fn new(of: &ArmEvidence) -> ArmRecord {
        ArmRecord { name: of.arm.to_owned(), intervals: of.intervals, worth: of.worth }
    }
}

/// A destination, with the arm of its flows and each arm's worth there.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StandingRecord {
    /// The algorithm that chooses.
    pub algorithm: String,
    pub prefix: String,
    /// The arm that its flows have, or start with.
    pub arm: String,
    /// The reason for the arm, in words.
    #[serde(default)]
    pub why: String,
    /// The measured worth of each arm there.
    pub evidence: Vec<ArmRecord>,
}

impl StandingRecord {
    /// Copies the standing as the algorithm has it.
    pub fn new(algorithm: &str, of: Standing) -> StandingRecord {
        let evidence = of.evidence.iter().map(ArmRecord::new).collect();
        StandingRecord {
            algorithm: algorithm.to_owned(),
            prefix: of.prefix,
            arm: of.arm.to_owned(),
            why: of.why,
            evidence,
        }
    }
}

/// A slot of a datapath.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SlotRecord {
    pub datapath: String,
    pub slot: u8,
    pub algorithm: String,
    /// The active deployment, the one on trial, and the last good one.
    pub deployments: Vec<DeploymentRecord>,
}

/// A snapshot in a slot, and what its flows have decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeploymentRecord {
    /// "active", "canary" or "last good".
    pub role: String,
    pub uid: u32,
    /// The snapshot's content hash; absent if an earlier agent pushed it.
    pub snapshot: Option<String>,
    pub origin: String,
    /// Since it was pushed or found, seconds.
    pub age_s: f64,
    /// Flows that decided by it last.
    pub flows: usize,
    /// Decisions of these flows, by whatever snapshot.
    pub decisions: u64,
    /// Those out of bounds.
    pub saturated: u64,
    /// Those with too many inputs out of range.
    pub clipped: u64,
    /// Times that the monitor made these flows fall back.
    pub trips: u64,
}

impl DeploymentRecord {
    /// A deployment in its role; `flows`: the policies of the datapath's flows.
    pub fn new<'a>(
        role: &str,
        deployment: &Deployment,
        flows: impl Iterator<Item = &'a FlowPolicy>,
        now_us: u64,
    ) -> DeploymentRecord {
        let mut record = DeploymentRecord {
            role: role.to_owned(),
            uid: deployment.uid.0,
            snapshot: deployment.snapshot.map(|hash| hash.to_string()),
            origin: deployment.origin.name().to_owned(),
            age_s: now_us.saturating_sub(deployment.since_us) as f64 / 1e6,
            flows: 0,
            decisions: 0,
            saturated: 0,
            clipped: 0,
            trips: 0,
        };
        for policy in flows.filter(|p| p.uid == deployment.uid.0) {
            record.flows += 1;
            record.decisions += u64::from(policy.decisions);
            record.saturated += u64::from(policy.saturated);
            record.clipped += u64::from(policy.clipped);
            record.trips += u64::from(policy.trips);
        }
        record
    }
}

/// Decisions of a flow's policy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// The deployment that decided last; 0 before the first decision.
    pub uid: u32,
    /// Its snapshot's content hash, where the agent knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// "chosen", "last_good" or "native": how far the monitor has made it fall back.
    pub level: String,
    pub decisions: u32,
    /// Those out of bounds.
    pub saturated: u32,
    /// Those with too many inputs out of range.
    pub clipped: u32,
    /// Those that left rate or window at its minimum.
    pub collapsed: u32,
    /// Times that the monitor made it fall back.
    pub trips: u32,
}

impl PolicyRecord {
    /// Converts a datapath's sample.
    pub fn new(policy: &FlowPolicy) -> PolicyRecord {
        let level = match policy.level {
            Level::Chosen => "chosen",
            Level::LastGood => "last_good",
            Level::Native => "native",
        };
        PolicyRecord {
            uid: policy.uid,
            snapshot: None,
            level: level.to_owned(),
            decisions: policy.decisions,
            saturated: policy.saturated,
            clipped: policy.clipped,
            collapsed: policy.collapsed,
            trips: policy.trips,
        }
    }
}

/// A decision to push or not, with its numbers. Also a line of the decision log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DecisionRecord {
    /// When, seconds since 1970.
    pub time_s: f64,
    pub datapath: String,
    pub algorithm: String,
    pub slot: u8,
    /// The snapshot's content hash; absent if an earlier agent pushed it.
    pub snapshot: Option<String>,
    /// Its deployment, if it got that far.
    pub uid: Option<u32>,
    pub origin: String,
    /// Outcome of the decision in one word.
    pub verdict: String,
    /// And in a few.
    pub text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// The trial's, at its last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

impl DecisionRecord {
    /// A decision of the core; `datapath`: its kind.
    pub fn new(datapath: &str, decision: &Decision) -> DecisionRecord {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let age_s = clock::now_us().saturating_sub(decision.at_us) as f64 / 1e6;
        DecisionRecord {
            time_s: now_s - age_s,
            datapath: datapath.to_owned(),
            algorithm: decision.algorithm.to_owned(),
            slot: decision.slot,
            snapshot: decision.snapshot.map(|hash| hash.to_string()),
            uid: decision.uid.map(|uid| uid.0),
            origin: decision.origin.name().to_owned(),
            verdict: decision.verdict.name().to_owned(),
            text: decision.verdict.to_string(),
            evidence: decision.origin.evidence().copied(),
            comparison: decision.comparison,
        }
    }
}

/// State of one learner.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LearnerRecord {
    pub algorithm: String,
    /// Rows that it took.
    pub rows: u64,
    /// Sum of the rewards of these rows: what it grows by over what `rows` grows by is a point of the learning curve.
    #[serde(default)]
    pub reward_sum: f64,
    /// Rows that it had no time for.
    pub dropped_rows: u64,
    /// Candidates that it offered.
    pub candidates: u64,
    /// Processor time that it used, seconds.
    pub cpu_s: f64,
    /// Whether it adapts to a path that has changed.
    pub adapting: bool,
    /// Whether it failed: nothing more is learned.
    pub failed: bool,
}

/// Bytes as hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Bytes from hexadecimal digits; `None` if that is not what the text is.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_from_their_hexadecimal_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        for wrong in ["0", "0g", "äb", "123"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }
}

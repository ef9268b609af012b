//! Messages of the control socket: one JSON object a line, a request and then its response.
//!
//! The names of a flow's figures are `tcp_info`'s; see `ss(8)`.

use super::snapshots::{ArmRecord, PolicyRecord, Snapshots};
use crate::config::Rule;
use crate::mode::ModeName;
use crate::qlog::Filter;
use ccplane_contract::{FlowStats, KnownStats};
use ccplane_core::FlowView;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::path::PathBuf;

/// Longest request, bytes, newline included.
pub const MAX_REQUEST_BYTES: usize = 256 << 10;
/// Longest response that a client takes, bytes.
pub const MAX_RESPONSE_BYTES: usize = 1 << 30;

/// Request of a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    Version,
    /// The agent's state and counters.
    Status,
    /// Every flow that the datapaths steer.
    Flows,
    /// Every program and where it is installed.
    Programs,
    /// Replaces all rules; new flows follow them.
    SetRules {
        /// The algorithm of flows that no rule matches.
        default_algorithm: String,
        /// The first match decides.
        rules: Vec<Rule>,
    },
    /// Takes over the running TCP flows of another congestion control.
    Adopt {
        from: String,
        /// Only flows of the network namespace at this path; without it, of every one that can be reached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        netns: Option<PathBuf>,
    },
    /// Streams events of flows: a [`Response::Qlog`], then a qlog record a line, until the flow ends or the
    /// client leaves.
    Qlog {
        filter: Filter,
    },
    /// Every policy slot, what it holds, and what was decided of late.
    Snapshots,
    /// Offers a snapshot to its algorithm's slot.
    Push {
        /// The content of a snapshot file, in hexadecimal digits.
        snapshot: String,
        /// The slot; that of the snapshot's algorithm unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slot: Option<u8>,
        /// Share of the flows that try it, 0 to 1; that of the configuration unless given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        canary: Option<f64>,
        /// To all flows at once.
        force: bool,
        /// Also if its signature has expired, or is older than that of one that was taken.
        #[serde(default)]
        allow_older: bool,
    },
    /// Drops what a slot has on trial, else goes back to its last good snapshot.
    Rollback {
        slot: u8,
    },
    /// Hands all flows to their native fallback, detaches and ends the agent; answered when that is done.
    Stop,
    /// Ends the agent and leaves its flows, programs and slots to the next one; answered when that is done.
    Leave,
}

/// Response of the agent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    Version(Version),
    Status(Status),
    Flows(Flows),
    Programs {
        /// In order of name.
        programs: Vec<ProgramRecord>,
    },
    Adopted {
        flows: u64,
    },
    Snapshots(Snapshots),
    /// To [`Request::Push`], where at least one datapath has taken it: what each has decided.
    Pushed {
        /// In a few words each.
        decisions: Vec<String>,
    },
    /// To [`Request::Qlog`]; records follow.
    Qlog {
        /// When their times count from, milliseconds since 1970.
        reference_ms: f64,
    },
    /// To [`Request::Stop`], when the agent has detached, and to [`Request::Leave`].
    Stopped {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// The request was carried out.
    Done,
    /// The request was refused; nothing is changed.
    Error {
        message: String,
    },
}

/// Version and process of the agent that answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
    pub pid: u32,
}

/// The agent's state and counters.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The algorithm of flows that no rule matches.
    pub default_algorithm: String,
    /// The number of rules in force.
    pub rules: usize,
    /// The agent's loops; an agent of an earlier version tells of none.
    #[serde(default)]
    pub loops: Vec<LoopRecord>,
    pub datapaths: Vec<DatapathRecord>,
    /// Since the agent started.
    pub counters: Counters,
}

/// A loop of the agent: how it waits, and where.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LoopRecord {
    pub name: String,
    /// The way to wait, as the configuration names it.
    pub wake: String,
    /// The cores that its thread may run on now.
    pub cores: Vec<usize>,
}

/// An attached datapath and the state of its programs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DatapathRecord {
    pub kind: String,
    /// Flows known to the agent.
    pub flows: usize,
    /// The most that can be steered.
    pub max_flows: usize,
    pub programs: usize,
    /// The most that can be installed.
    pub max_programs: usize,
}

/// Events that the agent counted since it started.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Counters {
    #[serde(flatten)]
    pub core: ccplane_core::Counters,
    /// Datagrams that were not heard or not understood.
    pub malformed_datagrams: u64,
    /// Flows that ended before the agent heard of them.
    #[serde(default)]
    pub unseen_flows: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        self.core += other.core;
        self.malformed_datagrams += other.malformed_datagrams;
        self.unseen_flows += other.unseen_flows;
    }
}

/// An installed program and the datapaths that hold it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProgramRecord {
    /// The algorithm that it belongs to.
    pub algorithm: String,
    /// Its name within the algorithm.
    pub program: String,
    /// The datapath that holds it.
    pub datapath: String,
    pub uid: u32,
    /// Instructions of its intermediate representation.
    pub instructions: usize,
    pub registers: usize,
    /// The reason why the datapath refused it; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// Flows and who says so.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Flows {
    /// The agent is silent and the figures come from the datapath's pinned maps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<Silence>,
    /// In order of datapath and start.
    pub flows: Vec<FlowRecord>,
    /// Flows since the agent started that ended before it heard of them; absent if there were none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unseen: u64,
}

/// Whether nothing was counted.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// An agent that does not answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Silence {
    /// Its process; absent when none holds the lock.
    pub pid: Option<u32>,
    /// Seconds since its last heartbeat, where known.
    pub seconds: Option<f64>,
}

/// The arm that a flow runs, and why.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlowArm {
    /// The algorithm that it runs.
    pub name: String,
    /// The reason for this arm, in a few words.
    pub why: String,
    /// Times that it was handed from one arm to another.
    pub switches: u64,
    /// The measured worth of each arm on this path.
    pub evidence: Vec<ArmRecord>,
}

impl FlowArm {
    fn of(flow: FlowView<'_>) -> Option<FlowArm> {
        let (name, choice) = (flow.arm()?.to_owned(), flow.choice()?);
        let evidence = choice.evidence.iter().map(ArmRecord::new).collect();
        Some(FlowArm { name, why: choice.why, switches: flow.counters().switches, evidence })
    }
}

/// An algorithm that a flow does without, and the reason.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InsteadOf {
    pub algorithm: String,
    pub why: String,
}

impl InsteadOf {
    fn of(flow: FlowView<'_>) -> Option<InsteadOf> {
        let (algorithm, why) = flow.instead_of()?;
        Some(InsteadOf { algorithm: algorithm.to_owned(), why: why.to_string() })
    }
}

/// A flow with its figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlowRecord {
    /// The datapath that carries it.
    pub datapath: String,
    pub flow: u64,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The socket's cgroup (v2 id), where known.
    pub cgroup: Option<u64>,
    /// The algorithm that steers it, where known.
    pub algorithm: Option<String>,
    /// Its program, by name or as `#uid`.
    pub program: Option<String>,
    /// The arm that the flow runs; absent where its algorithm has no arms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm: Option<FlowArm>,
    /// Its state as its algorithm tells it, such as "competes".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    pub mode: ModeName,
    /// Its program starts at its next ACK; absent if it runs, or there is none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_ack: bool,
    /// The reason why the agent left it to the native algorithm, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_reason: Option<String>,
    /// The algorithm that the rules give it and its datapath cannot run; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instead_of: Option<InsteadOf>,
    /// The last command of its algorithm that was not carried out, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(flatten)]
    pub transport: KnownStats,
    /// Decisions of the flow's policy; absent where its program asks none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyRecord>,
    /// The treatment of its packets; absent where its datapath decides on ACKs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering: Option<SteeringRecord>,
}

/// The priority and the path of a flow's packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SteeringRecord {
    /// 0 is served first.
    pub priority: u32,
    pub path: u32,
    /// The number of times that its program has decided.
    pub decisions: u32,
}

/// The statistics that a datapath has measured; the agent itself counts reports.
fn known_stats(stats: &FlowStats) -> KnownStats {
    let reports = Some(stats.transport.reports);
    KnownStats { reports, ..stats.transport.known(stats.sampled_at_us > 0) }
}

impl FlowRecord {
    /// A datapath's sample, with the names that the agent knows, if it is asked.
    pub fn new(datapath: &str, stats: &FlowStats, known: Option<FlowView<'_>>) -> FlowRecord {
        let program =
            stats.program.map(|uid| match known.and_then(|k| k.program()).filter(|p| p.uid() == uid) {
                Some(program) => program.name().to_owned(),
                None => format!("#{}", uid.0),
            });
        FlowRecord {
            datapath: datapath.to_owned(),
            flow: stats.flow.0,
            local: stats.info.local,
            remote: stats.info.remote,
            cgroup: stats.info.cgroup,
            algorithm: known.map(|k| k.algorithm().to_owned()),
            program,
            arm: known.and_then(FlowArm::of),
            state: known.and_then(|k| k.state()).map(str::to_owned),
            mode: stats.mode.into(),
            waits_for_ack: stats.waits_for_ack(),
            native_reason: known.and_then(|k| k.native()).map(ToString::to_string),
            instead_of: known.and_then(InsteadOf::of),
            last_error: known.and_then(|k| k.last_error()).map(ToString::to_string),
            transport: known_stats(stats),
            policy: stats.policy.as_ref().map(PolicyRecord::new),
            steering: None,
        }
    }

    /// Whether a program steers the flow, or will from its next ACK on.
    pub fn is_steered(&self) -> bool {
        self.mode == ModeName::Program || self.waits_for_ack
    }

    /// Says in a word or two how the flow is steered.
    pub fn mode_words(&self) -> &'static str {
        match self.mode {
            ModeName::Program => "program",
            ModeName::NativeNoProgram if self.waits_for_ack => "no ACK yet",
            ModeName::NativeNoProgram => "no program",
            ModeName::NativeAgentSilent => "agent silent",
            ModeName::NativePolicy => "policy tripped",
        }
    }
}

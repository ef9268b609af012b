//! State of each flow, and its public view.

use crate::action::DatapathId;
use crate::catalog::{CommandError, Compiled};
use crate::host::HostReason;
use crate::panics::catch;
use crate::rules::FALLBACK;
use ccplane_alg::{Algorithm, Choice, Chooser, Flow, RESUMES_WITHIN_US};
use ccplane_contract::{DatapathError, FlowId, FlowInfo};
use std::ops::AddAssign;
use std::sync::Arc;

/// Reasons why a flow runs its datapath's native algorithm.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NativeReason {
    /// A rule names the native algorithm.
    #[error("a rule says native")]
    Rule,
    /// The algorithm set no program, or its command was refused.
    #[error("the algorithm set no program")]
    NoProgram,
    /// The datapath refused to install a program of the algorithm.
    #[error("the datapath refused program `{program}`: {error}")]
    InstallRefused { program: String, error: Arc<DatapathError> },
    /// The datapath runs no policies.
    #[error("the algorithm asks policies, and a datapath of kind {kind} runs none")]
    NoPolicies { kind: &'static str },
    /// The datapath refused a policy slot of the algorithm, or its first snapshot.
    #[error("the datapath refused policy slot {slot}: {error}")]
    SlotRefused { slot: u8, error: Arc<DatapathError> },
    /// The datapath refused to run the program on the flow.
    #[error("the datapath did not set the program: {0}")]
    SetRefused(DatapathError),
    /// The algorithm's code panicked.
    #[error("the algorithm panicked: {0}")]
    Panicked(String),
    #[error("the agent stops")]
    Stopping,
    /// The algorithm of another process does not steer the flow.
    #[error("{0}")]
    Hosted(HostReason),
}

/// The fields with which an arm goes on where it has the flow again within [`RESUMES_WITHIN_US`].
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct KeptFields {
    pub arm: &'static str,
    /// When the arm was left, microseconds.
    pub at_us: u64,
    pub fields: Vec<(&'static str, i64)>,
}

impl KeptFields {
    pub fn is_recent(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.at_us) < RESUMES_WITHIN_US
    }
}

/// Events counted for one flow.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlowCounters {
    /// Reports that its algorithm saw.
    pub reports: u64,
    /// Reports that the datapath sent and that did not arrive, by their sequence numbers.
    pub lost_reports: u64,
    /// Reports of a program that had been replaced.
    pub stale_reports: u64,
    /// Reports that came twice or late.
    pub late_reports: u64,
    /// Reports with a wrong number of values.
    pub malformed_reports: u64,
    /// Commands of its algorithm that were not carried out.
    pub refused_commands: u64,
    /// Programs that its algorithm set, the first one included.
    pub program_changes: u64,
    /// Updates of the running program that its algorithm asked for.
    pub updates: u64,
    /// Intervals that its algorithm gave to its learner.
    pub rows: u64,
    /// Times that it was started again, for a new snapshot, after a policy had no answer.
    pub restarts: u64,
    /// Times that it was handed to another arm.
    pub switches: u64,
}

impl AddAssign for FlowCounters {
    fn add_assign(&mut self, other: FlowCounters) {
        self.reports += other.reports;
        self.lost_reports += other.lost_reports;
        self.stale_reports += other.stale_reports;
        self.late_reports += other.late_reports;
        self.malformed_reports += other.malformed_reports;
        self.refused_commands += other.refused_commands;
        self.program_changes += other.program_changes;
        self.updates += other.updates;
        self.rows += other.rows;
        self.restarts += other.restarts;
        self.switches += other.switches;
    }
}

/// Events counted for all flows of one algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AlgorithmCounters {
    /// Flows that were given to it.
    pub flows_created: u64,
    /// Those that have ended.
    pub flows_closed: u64,
    /// The sum over its flows, ended or not.
    pub flows: FlowCounters,
}

/// An algorithm that runs on a flow, with its program.
pub(crate) struct RunningAlgorithm {
    pub code: Box<dyn Flow>,
    /// The algorithm's name: the flow's own, or its arm.
    pub name: &'static str,
    /// The algorithm that made `code`, with the parameters that a rule set.
    pub algorithm: Arc<dyn Algorithm>,
    /// The program last set.
    pub program: Arc<Compiled>,
}

pub(crate) struct FlowState {
    pub info: FlowInfo,
    /// The congestion control that its owner asked for by name; kept for hosts alone.
    pub requested: Option<Arc<str>>,
    pub algorithm: &'static str,
    pub steered: Result<RunningAlgorithm, Box<NativeReason>>,
    /// The reason why it runs [`FALLBACK`] in place of its algorithm, where it does.
    pub fell_back: Option<Box<NativeReason>>,
    pub created_us: u64,
    pub last_seq: Option<u32>,
    /// Time, program and values of the last report.
    pub last_report: Option<LastReport>,
    pub last_error: Option<Box<CommandError>>,
    pub counters: FlowCounters,
    /// Slot and deployment of the last interval's action.
    pub acted: Option<(u8, u32)>,
    /// The deployment that it was last started again for.
    pub restarted_for: u32,
    /// The chooser decides which arm the flow runs; an algorithm without arms has none.
    pub chooser: Option<Box<dyn Chooser>>,
    /// The fields that arms kept when the flow was handed over from them, at most one entry for each arm.
    pub kept: Vec<KeptFields>,
}

pub(crate) struct LastReport {
    pub at_us: u64,
    pub program: Arc<Compiled>,
    pub values: Vec<i64>,
}

impl FlowState {
    /// Whether it is steered by this algorithm, as its own or as its arm.
    pub fn runs(&self, algorithm: &str) -> bool {
        self.steered.as_ref().is_ok_and(|s| s.name == algorithm)
    }

    /// Counts a report's sequence number: how many were lost before it; `None` if it is not newer than the last one.
    pub fn take_seq(&mut self, seq: u32) -> Option<u32> {
        let ahead = self.last_seq.map_or(1, |last| seq.wrapping_sub(last));
        // Serial number arithmetic (RFC 1982): what is more than half the circle ahead is behind.
        if ahead == 0 || ahead > u32::MAX / 2 {
            self.counters.late_reports += 1;
            return None;
        }
        self.counters.lost_reports += u64::from(ahead - 1);
        self.last_seq = Some(seq);
        Some(ahead - 1)
    }
}

/// Counters and last error of one flow, to which refused commands are added.
pub(crate) struct FlowLog<'a> {
    pub counters: &'a mut FlowCounters,
    pub last_error: &'a mut Option<Box<CommandError>>,
}

impl FlowLog<'_> {
    pub fn refuse(&mut self, error: CommandError) {
        self.counters.refused_commands += 1;
        *self.last_error = Some(Box::new(error));
    }
}

/// A flow, as the command line shows it.
#[derive(Clone, Copy)]
pub struct FlowView<'a> {
    pub(crate) datapath: DatapathId,
    pub(crate) flow: FlowId,
    pub(crate) state: &'a FlowState,
}

impl<'a> FlowView<'a> {
    /// Returns the datapath that carries the flow.
    pub fn datapath(&self) -> DatapathId {
        self.datapath
    }
    /// Returns the flow's number within its datapath.
    pub fn flow(&self) -> FlowId {
        self.flow
    }
    /// Returns the facts known when the flow started.
    pub fn info(&self) -> &'a FlowInfo {
        &self.state.info
    }
    /// The algorithm that the rules gave it, or [`FALLBACK`] where its datapath cannot run that one.
    pub fn algorithm(&self) -> &'static str {
        if self.state.fell_back.is_some() { FALLBACK } else { self.state.algorithm }
    }
    /// The arm that it runs, where its algorithm has arms.
    pub fn arm(&self) -> Option<&'static str> {
        self.state.chooser.as_ref()?;
        self.state.steered.as_ref().ok().map(|s| s.name)
    }
    /// Returns the reason why it runs that arm; `None` without arms, or if the algorithm's code panicked
    /// when it was asked.
    pub fn choice(&self) -> Option<Choice> {
        let chooser = self.state.chooser.as_ref()?;
        catch(|| chooser.choice()).ok()
    }
    /// Its state as its algorithm tells it; `None` if that does not, or panicked when it was asked.
    pub fn state(&self) -> Option<&'static str> {
        let steered = self.state.steered.as_ref().ok()?;
        catch(|| steered.code.state()).ok()?
    }
    /// The program that it runs.
    pub fn program(&self) -> Option<&'a Compiled> {
        self.state.steered.as_ref().ok().map(|s| &*s.program)
    }
    /// The algorithm that the rules give it and its datapath cannot run, with the reason; [`FALLBACK`] runs instead.
    pub fn instead_of(&self) -> Option<(&'static str, &'a NativeReason)> {
        self.state.fell_back.as_deref().map(|reason| (self.state.algorithm, reason))
    }
    /// Returns the reason why it runs no program, if it runs none.
    pub fn native(&self) -> Option<&'a NativeReason> {
        self.state.steered.as_ref().err().map(|r| &**r)
    }
    /// When the core learned of it, microseconds on the agent's clock.
    pub fn created_us(&self) -> u64 {
        self.state.created_us
    }
    /// When the last report was made, microseconds on the datapath's clock.
    pub fn reported_at_us(&self) -> Option<u64> {
        self.state.last_report.as_ref().map(|r| r.at_us)
    }
    /// The last report's registers by name.
    pub fn report(&self) -> impl Iterator<Item = (&'a str, i64)> + use<'a> {
        let last = self.state.last_report.iter();
        last.flat_map(|r| r.program.report_names().iter().map(String::as_str).zip(r.values.iter().copied()))
    }
    /// The last command that was not carried out, and why.
    pub fn last_error(&self) -> Option<&'a CommandError> {
        self.state.last_error.as_deref()
    }
    /// Returns the flow's counters.
    pub fn counters(&self) -> FlowCounters {
        self.state.counters
    }
}

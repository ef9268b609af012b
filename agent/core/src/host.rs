//! Hosts of algorithms, such as a portus agent: the events that the core sends them, and the reasons why
//! their flows run natively.

use crate::action::DatapathId;
use ccplane_alg::{Control, Flow, Report};
use ccplane_contract::{DatapathError, FlowId, FlowInfo, ProgramUid, Values};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Names a flow of a hosted algorithm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostedFlow {
    pub datapath: DatapathId,
    pub flow: FlowId,
}

/// A change of a hosted algorithm's flows that its host has to know.
#[derive(Clone, PartialEq, Debug)]
pub enum HostEvent {
    /// A rule gives the flow to the hosted algorithm; it waits for a program.
    Started {
        flow: HostedFlow,
        info: FlowInfo,
        /// Congestion window at present, bytes.
        cwnd_bytes: u64,
        /// The congestion control that the flow's owner asked for by name.
        requested: Option<Arc<str>>,
    },
    /// A program of the host executed `(report)`.
    Report { flow: HostedFlow, program: ProgramUid, values: Values },
    /// The flow ended, or went to its native algorithm for a reason that is not the host's.
    Ended { flow: HostedFlow },
    /// A datapath refused to install a program of the host.
    Refused { program: ProgramUid, error: Arc<DatapathError> },
}

/// The reason for which a hosted algorithm does not steer a flow, or not yet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostReason {
    /// Nobody in this process speaks to the host.
    #[error("nothing here speaks to {algorithm}")]
    Unhosted { algorithm: &'static str },
    #[error("{algorithm} cannot be reached: {why}")]
    Unreachable { algorithm: &'static str, why: Arc<str> },
    #[error("{algorithm} is silent: it has read nothing for {for_ms} ms")]
    Silent { algorithm: &'static str, for_ms: u64 },
    /// The host's thread in this process is over.
    #[error("{algorithm} has ended: {why}")]
    Ended { algorithm: &'static str, why: Arc<str> },
    #[error("{algorithm} has set no program yet")]
    NoProgramYet { algorithm: &'static str },
    #[error("{algorithm} has {limit} flows, the most it is given")]
    TooManyFlows { algorithm: &'static str, limit: usize },
    /// The program that the host asks for cannot be run.
    #[error("{algorithm}'s program {program} is refused: {reason}")]
    Program { algorithm: &'static str, program: u32, reason: Arc<str> },
}

/// The reason for which a program of a host is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    #[error("no algorithm of this name is hosted")]
    NoHost,
    #[error("{limit} programs are in use, the most a hosted algorithm may have")]
    ProgramsFull { limit: usize },
}

/// The core's side of a host.
pub(crate) struct Host {
    pub algorithm: &'static str,
    /// Whether the host is there, or why it is not.
    pub present: Result<(), HostReason>,
    to: Sender<HostEvent>,
    pub events: Receiver<HostEvent>,
}

impl Host {
    fn new(algorithm: &'static str) -> Host {
        let (to, events) = channel();
        Host { algorithm, present: Err(HostReason::Unhosted { algorithm }), to, events }
    }

    pub fn send_event(&self, event: HostEvent) {
        // The core holds the other end.
        let _ = self.to.send(event);
    }

    /// Returns why a flow that starts now has no program.
    pub fn begin(&self, flow: HostedFlow, info: &FlowInfo, requested: Option<&Arc<str>>) -> HostReason {
        if let Err(reason) = &self.present {
            return reason.clone();
        }
        let (info, requested, cwnd_bytes) = (info.clone(), requested.cloned(), info.init_cwnd_bytes);
        self.send_event(HostEvent::Started { flow, info, cwnd_bytes, requested });
        HostReason::NoProgramYet { algorithm: self.algorithm }
    }

    /// Returns the agent's half of a flow that runs a program of the host.
    pub fn forward(&self, flow: HostedFlow, program: ProgramUid) -> Box<dyn Flow> {
        Box::new(Forward { flow, program, to: self.to.clone() })
    }

    pub fn ended(&self, flow: HostedFlow) {
        if self.present.is_ok() {
            self.send_event(HostEvent::Ended { flow });
        }
    }

    pub fn refused(&self, program: ProgramUid, error: &Arc<DatapathError>) {
        self.send_event(HostEvent::Refused { program, error: Arc::clone(error) });
    }
}

/// The hosts of the catalog's hosted algorithms.
pub(crate) struct Hosts(Vec<Host>);

impl Hosts {
    pub fn new(algorithms: impl Iterator<Item = &'static str>) -> Hosts {
        Hosts(algorithms.map(Host::new).collect())
    }

    /// Returns the host of an algorithm; none where the agent runs it itself.
    pub fn get(&self, algorithm: &str) -> Option<&Host> {
        self.0.iter().find(|host| host.algorithm == algorithm)
    }

    pub fn get_mut(&mut self, algorithm: &str) -> Option<&mut Host> {
        self.0.iter_mut().find(|host| host.algorithm == algorithm)
    }
}

/// The agent's half of a hosted flow, which hands its reports on.
struct Forward {
    flow: HostedFlow,
    program: ProgramUid,
    to: Sender<HostEvent>,
}

impl Flow for Forward {
    fn on_report(&mut self, _now_us: u64, report: &Report<'_>, _control: &mut Control) {
        let (flow, program) = (self.flow, self.program);
        let _ = self.to.send(HostEvent::Report { flow, program, values: report.values.into() });
    }

    fn on_close(&mut self) {
        let _ = self.to.send(HostEvent::Ended { flow: self.flow });
    }
}

//! A datapath under test with its traffic.

use crate::datapath::Datapath;
use crate::ids::FlowId;
use std::net::SocketAddr;
use std::time::Duration;

/// A datapath under test, with traffic at hand. At least one flow must fit, and at least two programs.
pub trait Harness {
    /// The datapath, attached, with no flows and no programs.
    fn datapath(&mut self) -> &mut dyn Datapath;
    /// Starts a bulk flow that lasts until it is stopped.
    ///
    /// # Errors
    /// The flow cannot be started.
    fn start_flow(&mut self) -> Result<(), HarnessError>;
    /// Stops the flow; it sends nothing more.
    ///
    /// # Errors
    /// The flow cannot be stopped.
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError>;
    /// Lets time and traffic pass, microseconds. Neither polls nor gives heartbeats.
    fn pass(&mut self, us: u64);
    /// The datapath's heartbeat timeout, microseconds.
    fn heartbeat_timeout_us(&self) -> u64;
}

/// A harness of a datapath that carries real flows in real time.
pub struct RealFlows<D, F, L> {
    // Dropped in this order: the flows end before the datapath and the link go.
    flows: Vec<F>,
    datapath: D,
    lab: L,
    start: fn(&L) -> F,
    local: fn(&F) -> SocketAddr,
    heartbeat_timeout: Duration,
}

impl<D: Datapath, F, L> RealFlows<D, F, L> {
    /// A harness whose flows are started in its lab by `start`, and end when they are dropped; `local` tells their own addresses.
    pub fn new(
        datapath: D,
        lab: L,
        heartbeat_timeout: Duration,
        start: fn(&L) -> F,
        local: fn(&F) -> SocketAddr,
    ) -> RealFlows<D, F, L> {
        RealFlows { flows: Vec::new(), datapath, lab, start, local, heartbeat_timeout }
    }
}

impl<D: Datapath, F, L> Harness for RealFlows<D, F, L> {
    fn datapath(&mut self) -> &mut dyn Datapath {
        &mut self.datapath
    }
    fn start_flow(&mut self) -> Result<(), HarnessError> {
        self.flows.push((self.start)(&self.lab));
        Ok(())
    }
    fn stop_flow(&mut self, flow: FlowId) -> Result<(), HarnessError> {
        let listed = self.datapath.flows();
        let local = listed.iter().find(|f| f.flow == flow).ok_or("no such flow")?.info.local;
        self.flows.retain(|f| (self.local)(f) != local);
        Ok(())
    }
    fn pass(&mut self, us: u64) {
        std::thread::sleep(Duration::from_micros(us));
    }
    fn heartbeat_timeout_us(&self) -> u64 {
        self.heartbeat_timeout.as_micros() as u64
    }
}

/// The error of a harness that could not set up or run a case.
pub type HarnessError = Box<dyn std::error::Error + Send + Sync>;

/// Makes a fresh harness.
pub type Setup<'a> = dyn FnMut() -> Result<Box<dyn Harness>, HarnessError> + 'a;

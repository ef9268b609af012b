//! The trait that a congestion control algorithm implements.
//!
//! An algorithm is a set of fold programs, which decide per ACK inside a datapath, and the code here, which
//! runs in the agent once per report and sets the programs' parameters. It never learns which datapath or
//! transport it runs on, does no I/O and reads no clock: what it needs comes in its arguments.
#![forbid(unsafe_code)]

use std::net::SocketAddr;

/// What is known of a flow when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowInfo {
    /// Maximum segment size, bytes of payload.
    pub mss_bytes: u32,
    /// Congestion window when the algorithm takes over, bytes.
    pub init_cwnd_bytes: u64,
    /// The sender's address.
    pub local: SocketAddr,
    /// The receiver's address.
    pub remote: SocketAddr,
    /// The cgroup (v2 id) that the socket belongs to, where the datapath knows.
    pub cgroup: Option<u64>,
}

/// The source of one fold program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgramSource {
    /// Unique within the algorithm; what [`Control::set_program`] names.
    pub name: &'static str,
    /// The fold program's text.
    pub source: &'static str,
}

/// An algorithm: makes one [`Flow`] for each connection.
pub trait Algorithm: Send + Sync {
    /// The name that rules, plans and reports use: short, lower case.
    fn name(&self) -> &'static str;

    /// The fold programs that its flows may run. Compiled and installed before the first flow starts.
    fn programs(&self) -> Vec<ProgramSource>;

    /// Called once when a flow starts; sets its first program through `control`.
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow>;
}

/// The agent's side of one flow.
pub trait Flow: Send {
    /// Called for each report of the flow's current program, in order. `now_us` is the datapath's clock at
    /// the ACK that reported, microseconds.
    fn on_report(&mut self, now_us: u64, report: &Report<'_>, control: &mut Control);

    /// Called once when the connection ends.
    fn on_close(&mut self) {}
}

/// The report registers of one program, as they were when it executed `(report)`.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The program that reported.
    pub program: &'a str,
    /// Register names, `Report.` prefix left out, in the order of `values`.
    pub names: &'a [String],
    /// Register values.
    pub values: &'a [i64],
}

impl Report<'_> {
    /// The value of the register declared as `name` inside `(Report ...)`; `None` if the program has no such one.
    pub fn get(&self, name: &str) -> Option<i64> {
        let i = self.names.iter().position(|n| n == name)?;
        self.values.get(i).copied()
    }
}

/// What an algorithm asks of its flow's datapath. Applied together, at the flow's next ACK.
#[derive(Default, Debug)]
pub struct Control {
    commands: Vec<Command>,
}

/// One request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Run this program from its initial state, with these control registers (or `Cwnd`, `Rate`) set.
    SetProgram {
        /// A name from [`Algorithm::programs`].
        name: &'static str,
        /// Register name and value.
        fields: Vec<(&'static str, i64)>,
    },
    /// Set control registers (or `Cwnd`, `Rate`) of the running program.
    Update {
        /// Register name and value.
        fields: Vec<(&'static str, i64)>,
    },
}

impl Control {
    /// Runs program `name` from its initial state, with these control registers, `Cwnd` (bytes) or `Rate`
    /// (bytes per second) set.
    pub fn set_program(&mut self, name: &'static str, fields: &[(&'static str, i64)]) {
        self.commands.push(Command::SetProgram { name, fields: fields.to_vec() });
    }

    /// Sets control registers, `Cwnd` (bytes) or `Rate` (bytes per second) of the running program.
    pub fn update(&mut self, fields: &[(&'static str, i64)]) {
        self.commands.push(Command::Update { fields: fields.to_vec() });
    }

    /// The requests so far, which are removed.
    pub fn take(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }
}

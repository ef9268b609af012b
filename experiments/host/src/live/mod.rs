//! The host at hand as something to measure and tune: flows over a veth pair of our own, or over an interface that the user names.
//!
//! Every change goes through a journal. That of a pair of our own lies in a folder that goes with it, as its namespaces do.

mod counters;
mod flames;
mod knobs;
mod perf;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;
use ccplane_runner::host::kernel_algorithms;
use ccplane_runner::traffic::{BulkFlow, FlowConfig, FlowOutcome, Pins, TcpSample};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::journal::{Journal, JournalError, UndoOutcome};
use crate::machine::Machine;
use crate::sample::Sample;
use crate::space::{Cell, Role, Space, nth_after};
use crate::subject::{Fault, Subject};
use crate::topology::Topology;
use counters::HostCounters;
use knobs::Knobs;
pub use knobs::{BadKnob, KnobError, WantedKnob};
pub use perf::PerfError;

/// Flows at the same time, at most.
pub const MAX_FLOWS: u32 = 64;
/// The longest measurement of one cell.
pub const MAX_DURATION: Duration = Duration::from_secs(3600);
/// The time before each measurement in which flows come to speed.
const WARM_UP: Duration = Duration::from_millis(300);
/// The longest that a pair of interfaces takes until its link is up.
const LINK_UP: Duration = Duration::from_secs(3);
/// The time between two samples of a flow.
const SAMPLE_EVERY: Duration = Duration::from_millis(10);
/// Changes after which the journal is made short again by taking all of them back.
const LONG_JOURNAL: usize = 500;
/// The congestion control of the flows, where the kernel has it.
const CONGESTION: &str = "cubic";
/// The kernel's words for an interface whose link does not carry.
const DOWN: [&str; 3] = ["down", "lowerlayerdown", "notpresent"];

/// An interface that the user names, and the network namespace behind it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedInterface {
    pub interface: String,
    /// The name under which `ip netns` lists the namespace that sends.
    pub peer: String,
}

/// The way in which this host is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveOptions {
    pub flows: u32,
    /// The length of one measurement.
    pub duration: Duration,
    /// The interface; none for a veth pair of our own.
    pub named: Option<NamedInterface>,
    /// Settings to vary; empty for the usual ones.
    pub knobs: Vec<WantedKnob>,
    /// The folder of the journal of changes to a named interface.
    pub journal: PathBuf,
}

/// Reasons why this host cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// Namespaces or the pair cannot be made or entered.
    #[error(transparent)]
    Namespace(#[from] ccplane_emulator::Error),
    /// The host has no interface of this name.
    #[error("this host has no interface {name:?}; it has {}", found.join(", "))]
    NoInterface { name: String, found: Vec<String> },
    /// The interface has no address that a flow could go to.
    #[error("{interface} has no address that its peer could send to")]
    NoAddress { interface: String },
    #[error(transparent)]
    Knobs(#[from] KnobError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A number that is out of its bounds.
    #[error("{field}: {found}; {allowed}")]
    Bounds { field: &'static str, found: String, allowed: String },
    /// The system refuses.
    #[error("{what}: {source}")]
    System { what: &'static str, source: std::io::Error },
}

/// The two ends of the flows.
#[derive(Debug)]
struct Rig {
    sender: Namespace,
    receiver: Namespace,
    interface: String,
    address: IpAddr,
    /// Whether the receiver's namespace is ours, so that its files are not those in `/sys`.
    is_own: bool,
}

impl Rig {
    /// Runs `work` where the interface's files and programs that ask for it are at home.
    fn inside<T: Send>(&self, work: impl FnOnce(&Machine) -> T + Send) -> Result<T, ccplane_emulator::Error> {
        match self.is_own {
            true => self.receiver.run_with_sysfs(|| work(&Machine::this())),
            false => Ok(work(&Machine::this())),
        }
    }

    /// Returns the state of its link in the kernel's words; none where the interface is gone.
    fn state(&self) -> Result<Option<String>, ccplane_emulator::Error> {
        let path = format!("/sys/class/net/{}/operstate", self.interface);
        self.inside(|machine| machine.text(&path))
    }
}

/// The host at hand, ready to be measured; everything is as it was found once it is dropped.
#[derive(Debug)]
pub struct LiveHost {
    rig: Rig,
    topology: Topology,
    knobs: Knobs,
    journal: Journal,
    /// The number of changes in the journal before ours.
    mark: usize,
    flows: u32,
    duration: Duration,
    congestion: String,
    /// Levels that the host has refused, by knob and level.
    refused: HashMap<(usize, usize), String>,
    /// The reason why instructions are not counted; none where they are.
    no_instructions: Option<PerfError>,
    /// Whether the settings that are in force stay when this is dropped.
    is_kept: bool,
    /// The journal's folder, where it is ours.
    _folder: Option<tempfile::TempDir>,
}

impl LiveHost {
    /// Prepares to measure; nothing of the host is changed yet.
    ///
    /// # Errors
    /// The host lacks what is needed, or the arguments are out of bounds.
    pub fn new(options: &LiveOptions) -> Result<LiveHost, LiveError> {
        let bounds = |field, found: String, allowed: String| LiveError::Bounds { field, found, allowed };
        if !(1..=MAX_FLOWS).contains(&options.flows) {
            let allowed = format!("1 to {MAX_FLOWS} are allowed");
            return Err(bounds("flows", options.flows.to_string(), allowed));
        }
        if options.duration < 10 * SAMPLE_EVERY || options.duration > MAX_DURATION {
            let allowed = format!("{:?} to {MAX_DURATION:?} are allowed", 10 * SAMPLE_EVERY);
            return Err(bounds("duration", format!("{:?}", options.duration), allowed));
        }
        let rig = match &options.named {
            None => own_pair()?,
            Some(named) => named_pair(named)?,
        };
        let processors = allowed_processors()?;
        let found = rig.inside(|machine| {
            let topology = Topology::of(machine);
            let interface =
                topology.interface(&rig.interface).ok_or_else(|| no_interface(&topology, &rig))?;
            let knobs = Knobs::find(machine, &topology, interface, &options.knobs, processors)?;
            Ok::<_, LiveError>((knobs, topology.clone()))
        })?;
        let (knobs, topology) = found?;
        let folder = match options.named {
            Some(_) => None,
            None => {
                let made = tempfile::tempdir();
                Some(made.map_err(|source| LiveError::System { what: "make a folder", source })?)
            }
        };
        let path = folder.as_ref().map_or(options.journal.as_path(), |folder| folder.path());
        let journal = Journal::open(&Machine::this(), path)?;
        let algorithms = kernel_algorithms();
        let usual = algorithms.iter().find(|name| *name == CONGESTION).or(algorithms.first());
        Ok(LiveHost {
            rig,
            topology,
            knobs,
            mark: journal.mark(),
            journal,
            flows: options.flows,
            duration: options.duration,
            congestion: usual.cloned().unwrap_or_else(|| CONGESTION.to_owned()),
            refused: HashMap::new(),
            no_instructions: perf::probe().err(),
            is_kept: false,
            _folder: folder,
        })
    }

    /// Returns the host's processors, nodes and interfaces.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the processors by memory node.
    pub fn nodes(&self) -> Vec<Vec<u32>> {
        self.topology.nodes.iter().map(|node| node.processors.iter().collect()).collect()
    }

    /// Returns the interface that the flows go over.
    pub fn interface(&self) -> &str {
        &self.rig.interface
    }

    /// Returns the processors that work may be placed on.
    pub fn processors(&self) -> &[u32] {
        &self.knobs.processors
    }

    /// Returns the reason why instructions are not counted; none where they are.
    pub fn why_no_instructions(&self) -> Option<&PerfError> {
        self.no_instructions.as_ref()
    }

    /// Returns the shell commands that bring the host from how it was found into a cell.
    pub fn commands(&self, cell: &Cell) -> Vec<String> {
        let default = self.knobs.changes(&self.knobs.space.default_cell());
        let changed = self.knobs.changes(cell).into_iter().zip(default).filter(|(new, old)| new != old);
        changed.filter_map(|((setting, value), _)| setting.command(&value).ok()).collect()
    }

    /// Leaves the settings that are in force when this is dropped.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Draws what all processors do in a cell as a flame graph.
    ///
    /// # Errors
    /// The cell cannot be measured, or perf does not run here; the second error is of perf.
    pub fn draw_flames(&mut self, cell: &Cell, svg: &Path) -> Result<Result<(), PerfError>, Fault> {
        let title = format!("{}: {}", self.rig.interface, self.knobs.space.shown(cell));
        let recorded = svg.with_extension("perf");
        self.settle(cell)?;
        let (result, _) = self.with_flows(cell, |duration| Ok(perf::record(duration, &recorded)))?;
        let drawn = result.and_then(|()| perf::draw(&recorded, &title, svg));
        // The recording is large and of no use without this machine's symbols.
        let _ = std::fs::remove_file(&recorded);
        Ok(drawn)
    }

    /// Starts the flows of a cell, waits until they are at speed, does `work` for the duration of a measurement, and ends them.
    fn with_flows<T>(
        &self,
        cell: &Cell,
        work: impl FnOnce(Duration) -> Result<T, Fault>,
    ) -> Result<(T, Vec<FlowOutcome>), Fault> {
        let config = FlowConfig {
            congestion: self.congestion.clone(),
            receiver: SocketAddr::new(self.rig.address, 0),
            duration: WARM_UP + self.duration,
            bytes: None,
            sample_every: SAMPLE_EVERY,
        };
        let epoch = Instant::now();
        let mut flows = Vec::new();
        for n in 0..self.flows {
            let place = |role: &Role| {
                let first = self.knobs.place(cell, role)?;
                nth_after(&self.knobs.processors, first, n).map(|cpu| cpu as usize)
            };
            let sender = if self.knobs.has_interrupts { None } else { place(&Role::Interrupt) };
            let pins = Pins { sender, receiver: place(&Role::Application) };
            let flow = BulkFlow::start_pinned(&config, &self.rig.sender, &self.rig.receiver, epoch, pins);
            flows.push(flow.map_err(|error| self.lost_or(Fault::Flow(error)))?);
        }
        std::thread::sleep(WARM_UP.saturating_sub(epoch.elapsed()));
        let result = work(self.duration)?;
        let finished: Result<Vec<FlowOutcome>, _> = flows.into_iter().map(BulkFlow::finish).collect();
        let outcomes = finished.map_err(|error| self.lost_or(Fault::Flow(error)))?;
        self.check_link()?;
        Ok((result, outcomes))
    }

    fn check_link(&self) -> Result<(), Fault> {
        let lost = |why: String| Fault::Lost { interface: self.rig.interface.clone(), why };
        match self.rig.state() {
            Err(error) => Err(lost(error.to_string())),
            Ok(None) => Err(lost("the interface is gone".to_owned())),
            Ok(Some(state)) if is_down(&state) => Err(lost("its link is down".to_owned())),
            Ok(Some(_)) => Ok(()),
        }
    }

    /// Names the interface's fault where it has one, else the one at hand.
    fn lost_or(&self, fault: Fault) -> Fault {
        self.check_link().err().unwrap_or(fault)
    }

    fn counters(&self) -> Result<HostCounters, Fault> {
        let read = self.rig.inside(|machine| HostCounters::read(machine, &self.rig.interface));
        read.map_err(|error| Fault::Lost { interface: self.rig.interface.clone(), why: error.to_string() })?
    }

    /// Turns a refused change into a fault, and remembers the level for the cells to come.
    fn fault(&mut self, cell: &Cell, error: JournalError) -> Fault {
        let JournalError::Setting { source, undone } = &error else { return Fault::Journal(Box::new(error)) };
        if let Err(lost) = self.check_link() {
            return lost;
        }
        if undone.iter().any(|change| matches!(change.outcome, UndoOutcome::Refused { .. })) {
            return Fault::NotRestored(error.to_string());
        }
        let (setting, why) = (source.setting().clone(), source.to_string());
        if let Some(knob) = self.knobs.knob_of(&setting) {
            self.refused.insert((knob, cell.0[knob]), why.clone());
        }
        Fault::Refused { setting: setting.to_string(), why }
    }
}

impl Subject for LiveHost {
    fn space(&self) -> &Space {
        &self.knobs.space
    }

    fn measure(&mut self, cell: &Cell, _repeat: u32) -> Result<Sample, Fault> {
        self.settle(cell)?;
        let counts_instructions = self.no_instructions.is_none();
        let (mut sample, outcomes) = self.with_flows(cell, |duration| {
            let mut sample = Sample::default();
            let before = self.counters()?;
            let began = Instant::now();
            // Where it stops counting midway, the measurement is worth the same without.
            let counting = counts_instructions.then(|| perf::Counting::start(duration)).and_then(Result::ok);
            std::thread::sleep(duration.saturating_sub(began.elapsed()));
            self.counters()?.since(before, &mut sample);
            sample.instructions = counting.and_then(|counting| counting.finish().ok());
            Ok(sample)
        })?;
        sample.duration_us = self.duration.as_micros() as u64;
        for outcome in &outcomes {
            let (bytes, retransmits) = carried(&outcome.samples, self.duration);
            sample.bytes += bytes;
            sample.retransmits += retransmits;
        }
        Ok(sample)
    }

    fn settle(&mut self, cell: &Cell) -> Result<(), Fault> {
        for (knob, level) in cell.0.iter().enumerate() {
            if let Some(why) = self.refused.get(&(knob, *level)) {
                let setting = self.knobs.space.knobs()[knob].name.clone();
                return Err(Fault::Refused { setting, why: why.clone() });
            }
        }
        self.check_link()?;
        if self.journal.mark() - self.mark > LONG_JOURNAL {
            self.restore()?;
        }
        let changes = self.knobs.changes(cell);
        let LiveHost { rig, journal, .. } = self;
        let applied = rig.inside(|_| journal.apply(&changes));
        match applied {
            Err(error) => Err(Fault::Lost { interface: self.rig.interface.clone(), why: error.to_string() }),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.fault(cell, error)),
        }
    }

    fn restore(&mut self) -> Result<(), Fault> {
        let LiveHost { rig, journal, mark, .. } = self;
        let undone = rig.inside(|_| journal.undo_to(*mark, false));
        let lost = |why: String| Fault::Lost { interface: self.rig.interface.clone(), why };
        let undone = undone.map_err(|error| lost(error.to_string()))?;
        let undone = undone.map_err(|error| Fault::Journal(Box::new(error)))?;
        let refused = undone.iter().filter(|change| matches!(change.outcome, UndoOutcome::Refused { .. }));
        let names: Vec<&str> = refused.map(|change| change.setting.as_str()).collect();
        if names.is_empty() { Ok(()) } else { Err(Fault::NotRestored(names.join(", "))) }
    }
}

impl Drop for LiveHost {
    fn drop(&mut self) {
        if !self.is_kept {
            // What does not come back stays in the journal, which `ccplane host undo` reads.
            let _ = self.restore();
        }
    }
}

/// The bytes that were acknowledged in a measurement of the given length after the warm-up, and the segments sent again.
fn carried(samples: &[TcpSample], duration: Duration) -> (u64, u64) {
    let from_us = WARM_UP.as_micros() as u64;
    let inside: Vec<&TcpSample> = samples.iter().filter(|sample| sample.at_us >= from_us).collect();
    let (Some(first), Some(last)) = (inside.first(), inside.last()) else { return (0, 0) };
    let bytes = last.info.bytes_acked.saturating_sub(first.info.bytes_acked);
    let retransmits = last.info.total_retrans.saturating_sub(first.info.total_retrans);
    // Samples do not fall on the ends of the measurement.
    let between_us = last.at_us.saturating_sub(first.at_us).max(1);
    let scaled = u128::from(bytes) * duration.as_micros() / u128::from(between_us);
    (u64::try_from(scaled).unwrap_or(u64::MAX), u64::from(retransmits))
}

fn no_interface(topology: &Topology, rig: &Rig) -> LiveError {
    LiveError::NoInterface {
        name: rig.interface.clone(),
        found: topology.interfaces.iter().map(|interface| interface.name.clone()).collect(),
    }
}

fn own_pair() -> Result<Rig, LiveError> {
    let (sender, receiver) = (Namespace::anonymous()?, Namespace::anonymous()?);
    veth::connect(&sender, &receiver)?;
    let interface = veth::DEVICE.to_owned();
    let rig = Rig { sender, receiver, interface, address: veth::ENDS[1], is_own: true };
    // The kernel looks at most once a second which links are up now (net/core/link_watch.c).
    let made = Instant::now();
    while made.elapsed() < LINK_UP && rig.state().is_ok_and(|state| state.is_some_and(|s| is_down(&s))) {
        std::thread::sleep(LINK_UP / 300);
    }
    Ok(rig)
}

/// Whether a link in this state carries nothing.
fn is_down(state: &str) -> bool {
    DOWN.contains(&state)
}

fn named_pair(named: &NamedInterface) -> Result<Rig, LiveError> {
    let topology = Topology::of(&Machine::this());
    let (sender, receiver) = (Namespace::named(&named.peer)?, Namespace::current()?);
    let all = nix::ifaddrs::getifaddrs();
    let all = all.map_err(|errno| LiveError::System { what: "list addresses", source: errno.into() })?;
    let of = |entry: nix::ifaddrs::InterfaceAddress| {
        let address = entry.address.filter(|_| entry.interface_name == named.interface)?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = all.filter_map(of).filter(|address| !is_link_local(address)).collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    let interface = named.interface.clone();
    let (address, is_own) = (addresses.first().copied(), false);
    let rig = Rig { sender, receiver, interface, address: address.unwrap_or(veth::ENDS[1]), is_own };
    if topology.interface(&rig.interface).is_none() {
        return Err(no_interface(&topology, &rig));
    }
    if address.is_none() {
        return Err(LiveError::NoAddress { interface: rig.interface });
    }
    Ok(rig)
}

/// Returns the processors that this process may run on.
fn allowed_processors() -> Result<Vec<u32>, LiveError> {
    let set = sched_getaffinity(Pid::from_raw(0));
    let set = set.map_err(|errno| LiveError::System { what: "ask for processors", source: errno.into() })?;
    let all = 0..nix::sched::CpuSet::count();
    let is_set = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
    Ok(all.filter(is_set).filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_runner::tcp_info::TcpInfo;

    #[test]
    fn bytes_are_those_after_the_warm_up() {
        let sample = |at_ms: u64, bytes_acked, total_retrans| TcpSample {
            at_us: at_ms * 1000,
            info: TcpInfo { bytes_acked, total_retrans, ..TcpInfo::default() },
        };
        let samples = [sample(0, 1, 0), sample(290, 900, 1), sample(310, 1000, 1), sample(1290, 99_000, 4)];
        // 98,000 bytes in 0.98 s.
        assert_eq!(carried(&samples, Duration::from_secs(1)), (100_000, 3));
        assert_eq!(carried(&samples[..2], Duration::from_secs(1)), (0, 0));
        assert_eq!(carried(&[], Duration::from_secs(1)), (0, 0));
    }
}

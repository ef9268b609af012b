//! `scale.flows`: live TCP flows over a veth pair under one agent, one to ten thousand, against the kernel's Reno.

mod crowd;
mod sink;

use std::thread;
use std::time::{Duration, Instant};

use ccplane_contract::{FlowStats, Mode};
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth;

use crate::agent::{AgentCounters, OurAgent};
use crate::error::BenchError;
use crate::figure::{Figure, Pair, in_turn, percentile};
use crate::processor;
use crate::proof::{self, Proof, SteeredBy, Unproven, Witness};
use crowd::OpenConnections;
use sink::Sink;

pub use sink::run as run_sink;

/// The numbers of flows that run at once.
const FLOWS: [usize; 5] = [1, 10, 100, 1000, 10_000];
/// Pairs of [`burst`].
const BURSTS: usize = 3;
/// Bytes that the kernel's flows have carried on average when they count as begun.
const BEGUN_BYTES: u64 = 64 << 10;
/// The longest wait for flows to begin, to be steered, or to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// Parts of a window, between which the flows are looked at; a look at ten thousand takes milliseconds of the time that is measured.
const PARTS: u32 = 4;
/// Sockets that one call of epoll returns at most.
const READY: usize = 256;
/// Looks that must find nothing new before the agent counts as done.
const LOOKS_ALIKE: u32 = 5;
const KERNEL: &str = "reno";
const BASELINE: &str = "the kernel's Reno";
const KIB: f64 = 1024.0;

/// The number and length of measurements of each number of flows, and the agent that they run under.
#[derive(Clone, Copy)]
struct Pace {
    /// Records of the agent's flow table: a burst's beside those of flows that have not left yet.
    table: u32,
    /// Runs under our program, each beside one under the kernel's, after one of each to warm up.
    pairs: usize,
    /// From when all flows have begun until the measurement begins: slow start.
    settle: Duration,
    window: Duration,
    /// Connections of one burst.
    burst: usize,
}

const PACE: Pace = Pace {
    table: 1 << 15,
    pairs: 5,
    settle: Duration::from_millis(700),
    window: Duration::from_secs(2),
    burst: 10_000,
};

/// The measurements of one run.
#[derive(Clone, Copy)]
struct Cost {
    /// Processor time of the whole machine for each KiB that was acknowledged, nanoseconds.
    ns_per_kib: f64,
    gbit_per_s: f64,
    /// Processor time of the machine, percent of a core.
    machine_percent: f64,
    /// Processor time of the agent, percent of a core.
    agent_percent: f64,
    rss_mib: f64,
}

/// The figures of one number of flows, and what proves them.
#[derive(Default)]
struct Decade {
    time: Vec<Pair>,
    gbit: Vec<Pair>,
    agent: Vec<Pair>,
    memory: Vec<Pair>,
    lost: Vec<Pair>,
    proofs: Vec<Proof>,
}

/// Runs each number of flows under the agent and under the kernel in turn, and returns the figures `scale.flows`.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let lab = Lab::start(PACE)?;
    let mut figures = Vec::new();
    for flows in FLOWS {
        figures.extend(lab.decade(flows)?);
    }
    figures.extend(lab.burst()?);
    Ok(figures)
}

/// An agent, and the two ends of all flows.
struct Lab {
    pace: Pace,
    /// The agent's memory before its first flow, MiB.
    empty_mib: f64,
    agent: OurAgent,
    sender: Namespace,
    sink: Sink,
    _receiver: Namespace,
}

impl Lab {
    fn start(pace: Pace) -> Result<Lab, BenchError> {
        let (sender, receiver) = (Namespace::anonymous()?, Namespace::anonymous()?);
        veth::connect(&sender, &receiver)?;
        let (agent, sink) = (OurAgent::of_many("reno", "sleep", pace.table)?, Sink::start(&receiver)?);
        let empty_mib = agent.process.rss_mib()?;
        Ok(Lab { pace, empty_mib, agent, sender, sink, _receiver: receiver })
    }

    fn open(&self, congestion: &str, flows: usize) -> Result<OpenConnections, BenchError> {
        OpenConnections::open(&self.sender, self.sink.at, congestion, flows)
    }

    /// Runs so many flows under our program and under the kernel's, in turn.
    fn decade(&self, flows: usize) -> Result<Vec<Figure>, BenchError> {
        let mut decade = Decade::default();
        // The flows of before have left.
        self.until_empty()?;
        // One run of each to warm up.
        for n in 0..=self.pace.pairs {
            let ((ours, counted, proof), kernel) = in_turn(n, || self.ours(flows), || self.kernel(flows))?;
            if n == 0 {
                continue;
            }
            decade.time.push((ours.ns_per_kib, kernel.ns_per_kib));
            decade.gbit.push((ours.gbit_per_s, kernel.gbit_per_s));
            decade.agent.push((ours.agent_percent, ours.machine_percent));
            decade.memory.push((ours.rss_mib, self.empty_mib));
            decade.lost.push((counted.dropped_events as f64, counted.reports as f64));
            decade.proofs.push(proof);
        }
        decade.figures(flows)
    }

    fn kernel(&self, flows: usize) -> Result<Cost, BenchError> {
        let crowd = self.open(KERNEL, flows)?;
        crowd.run(|| {
            until("the kernel's flows carry data", || Ok(crowd.acked_bytes()? > flows as u64 * BEGUN_BYTES))?;
            // The same looks, so that either side pays for them.
            self.measure(&crowd, &mut |_| ())
        })
    }

    /// Also returns what the agent counted meanwhile, and the proof that our program steered all flows.
    fn ours(&self, flows: usize) -> Result<(Cost, AgentCounters, Proof), BenchError> {
        let crowd = self.open(&self.agent.options.name, flows)?;
        crowd.run(|| {
            until("every flow runs its program", || Ok(self.steered()? == flows))?;
            let mut witness = Witness::new(SteeredBy::Program(None));
            let before = self.agent.counters()?;
            witness.observe(&self.flows()?);
            let acked_before = crowd.acked_bytes()?;
            let cost = self.measure(&crowd, &mut |seen| witness.observe(seen))?;
            let moved = crowd.acked_bytes()?.saturating_sub(acked_before);
            witness.observe(&self.flows()?);
            let (steered, counted) = (self.steered()?, self.agent.counters()?.since(before));
            let proof = Proof::exactly("flows steered", steered as u64, flows as u64)?
                .and(&witness.prove_unheard(flows, moved)?)
                .and(&Proof::counted("reports that the agent heard", counted.reports)?);
            Ok((cost, counted, proof))
        })
    }

    /// The flows, as the memory tells them that the kernel shares.
    fn flows(&self) -> Result<Vec<FlowStats>, BenchError> {
        Ok(ccplane_ebpf::read_flows(&self.agent.options)?.flows)
    }

    /// The number of flows that run their program now.
    fn steered(&self) -> Result<usize, BenchError> {
        Ok(self.flows()?.iter().filter(|flow| flow.mode == Mode::Program).count())
    }

    /// Measures a crowd that runs; `look` is shown the flows of our datapath between the parts of the window.
    fn measure(
        &self,
        crowd: &OpenConnections,
        look: &mut dyn FnMut(&[FlowStats]),
    ) -> Result<Cost, BenchError> {
        thread::sleep(self.pace.settle);
        let agent = || processor::of_process(self.agent.process.0.id());
        let (busy_before, agent_before) = (processor::busy()?, agent()?);
        let (from, bytes_before) = (Instant::now(), crowd.acked_bytes()?);
        for part in 1..=PARTS {
            thread::sleep((from + self.pace.window * part / PARTS).saturating_duration_since(Instant::now()));
            if part < PARTS {
                look(&self.flows()?);
            }
        }
        let (to, bytes) = (Instant::now(), crowd.acked_bytes()?);
        let busy = processor::busy()?.saturating_sub(busy_before);
        let agent = agent()?.saturating_sub(agent_before);
        let (seconds, moved) = ((to - from).as_secs_f64(), bytes - bytes_before);
        Proof::counted("bytes acknowledged", moved)?;
        Ok(Cost {
            ns_per_kib: busy.as_nanos() as f64 / (moved as f64 / KIB),
            gbit_per_s: moved as f64 * 8e-9 / seconds,
            machine_percent: 100.0 * busy.as_secs_f64() / seconds,
            agent_percent: 100.0 * agent.as_secs_f64() / seconds,
            rss_mib: self.agent.process.rss_mib()?,
        })
    }

    /// Waits until the agent has heard of the end of every flow, and of nothing more for a while.
    fn until_empty(&self) -> Result<(), BenchError> {
        let (mut before, mut alike) = (0, 0);
        until("all flows have left the agent", || {
            let AgentCounters { flows_created, flows_closed, .. } = self.agent.counters()?;
            alike = if flows_created == flows_closed && flows_created == before { alike + 1 } else { 0 };
            before = flows_created;
            Ok(alike >= LOOKS_ALIKE)
        })
    }

    /// Opens connections as fast as one thread can, closes them all, and holds the agent's count against them.
    fn burst(&self) -> Result<Vec<Figure>, BenchError> {
        let (mut times, mut lost, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
        let connections = self.pace.burst;
        for n in 0..=BURSTS {
            let ours = || {
                self.until_empty()?;
                let before = self.agent.counters()?;
                let seconds = self.seconds(&self.agent.options.name)?;
                self.until_empty()?;
                Ok((seconds, self.agent.counters()?.since(before)))
            };
            let ((seconds, counted), kernel) = in_turn(n, ours, || self.seconds(KERNEL))?;
            if n == 0 {
                continue;
            }
            let events = counted.flows_created + counted.flows_closed;
            proofs.push(Proof::counted("starts and ends of flows that the agent heard", events)?);
            times.push((seconds, kernel));
            lost.push(((2 * connections as u64).saturating_sub(events) as f64, events as f64));
        }
        let proof = proof::all(&proofs)?;
        let note = format!("{connections} connections, all opened, then all closed, by one thread");
        let lost_note = "the agent is not told of a flow that has ended before it looks";
        Ok(vec![
            Figure::paired("scale.flows.burst", "s", BASELINE, &times, &proof).with_note(note),
            Figure::paired("scale.flows.burst.lost", "events", "events heard", &lost, &proof)
                .or_zero()
                .with_note(lost_note),
        ])
    }

    fn seconds(&self, congestion: &str) -> Result<f64, BenchError> {
        let from = Instant::now();
        drop(self.open(congestion, self.pace.burst)?);
        Ok(from.elapsed().as_secs_f64())
    }
}

impl Decade {
    fn figures(&self, flows: usize) -> Result<Vec<Figure>, BenchError> {
        let proof = proof::all(&self.proofs)?;
        let of = |pairs: &[Pair], which: fn(&Pair) -> f64| {
            percentile(&pairs.iter().map(which).collect::<Vec<_>>(), 0.5)
        };
        let note = format!(
            "processor time of the whole machine; {:.1} Gb/s, the kernel's Reno {:.1} Gb/s",
            of(&self.gbit, |pair| pair.0),
            of(&self.gbit, |pair| pair.1)
        );
        let name = |what: &str| format!("scale.flows.{what}.{flows}");
        Ok(vec![
            Figure::paired(name("time"), "ns/KiB", BASELINE, &self.time, &proof).with_note(note),
            Figure::paired(name("agent"), "% of a core", "the whole machine", &self.agent, &proof).or_zero(),
            Figure::paired(name("memory"), "MiB", "the agent without flows", &self.memory, &proof),
            Figure::paired(name("lost"), "events", "reports that the agent heard", &self.lost, &proof)
                .or_zero(),
        ])
    }
}

/// Waits until something holds.
fn until(what: &'static str, mut holds: impl FnMut() -> Result<bool, BenchError>) -> Result<(), BenchError> {
    let since = Instant::now();
    while !holds()? {
        if since.elapsed() > PATIENCE {
            return Err(Unproven::Idle { what, before: 0, after: 0 }.into());
        }
        thread::sleep(POLL_EVERY);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ccplane_testing::{lacks, within_tries};

    const TRIES: u32 = 3;

    /// One decade, made short: an agent's process steers all flows, hears their reports and loses none.
    #[test]
    fn a_few_flows_are_steered_by_an_agent_and_measured_beside_the_kernels() {
        const FLOWS: usize = 3;
        /// Some are open for long enough that the agent hears of them.
        const BURST: usize = 400;
        let test = "a_few_flows_are_steered_by_an_agent_and_measured_beside_the_kernels";
        if lacks(test, ccplane_ebpf::missing())
            || lacks(test, ccplane_emulator::netns::missing())
            || lacks(test, crate::oracle::find("ccplane").err())
        {
            return;
        }
        let _alone = crate::cores::alone();
        let (settle, window) = (Duration::from_millis(100), Duration::from_millis(400));
        let pace = Pace { table: 1024, pairs: 1, settle, window, burst: BURST };
        let lab = Lab::start(pace).unwrap();
        // A machine that is busy elsewhere may keep the agent silent for longer than its flows wait for it.
        let figures = within_tries(test, TRIES, |_| lab.decade(FLOWS));
        let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
        let wanted = ["time", "agent", "memory", "lost"].map(|what| format!("scale.flows.{what}.{FLOWS}"));
        assert_eq!(names, wanted);
        for figure in &figures {
            assert!(figure.check().is_ok(), "{figure:?}");
            let steered = figure.proof.counts().find(|(what, _)| *what == "flows steered");
            assert_eq!(steered, Some(("flows steered", FLOWS as u64)), "{figure:?}");
        }
        let lost = &figures[3];
        assert!(lost.value == 0.0 && lost.baseline > 0.0, "{lost:?}");
        // The flows leave, and the agent hears of all; of those of a burst it hears as far as it looks before they end.
        // An agent that is kept from its core for so long hears of none.
        let burst = within_tries("an agent hears of a burst", TRIES, |_| lab.burst());
        let names: Vec<&str> = burst.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["scale.flows.burst", "scale.flows.burst.lost"]);
        assert!(burst.iter().all(|figure| figure.check().is_ok()), "{burst:?}");
        let (lost, heard) = (burst[1].value, burst[1].baseline);
        assert!(heard > 0.0 && lost + heard <= 2.0 * BURST as f64, "{burst:?}");
        lab.until_empty().unwrap();
    }
}

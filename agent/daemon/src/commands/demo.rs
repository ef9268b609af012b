//! `ccplane demo`: a policy that learns beside its flow in the kernel; and the same algorithms in the kernel, as fold programs
//! in the kernel, and in the simulator. Where the kernel's flows cannot be steered, ours run under QUIC.

use super::sim::{Figures, line, text};
use super::{print, print_json};
use crate::agent::{OwnLoop, waker};
use crate::cli::DemoArgs;
use crate::config::Config;
use crate::control::{DecisionRecord, FlowRecord, ModeName};
use crate::failure::Failure;
use crate::place::Located;
use crate::simulate::{self, Scenario, concatenate};
use ccplane_alg::Algorithm;
use ccplane_core::{NATIVE, Rule, Rules};
use ccplane_ebpf::EbpfError;
use ccplane_emulator::Shape;
use ccplane_emulator::shell::{Ground, permit};
use ccplane_engine::{Engine, EngineConfig};
use ccplane_netsim::trace::{Trace, TraceError};
use ccplane_netsim::{Capacity, LinkConfig, QueueLimit};
use ccplane_report::{Datapath, Decision, Effect, Flow, Learned, Phase, Report, Window, summary};
use ccplane_runner::demo::{AgentView, DemoConfig, Hooks, SeenFlow};
use ccplane_runner::table::{Style, Table};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A real drive, where Debian's mahimahi-traces is installed.
const RECORDED_TRACE: &str = "/usr/share/mahimahi/traces/Verizon-LTE-short.up";
/// What comes with ccplane; see experiments/traces/README.md.
const SYNTHETIC_TRACE: &str = include_str!("../../../../experiments/traces/cellular.up");
/// What a process ends with that a second signal stops.
const SIGNALLED: i32 = 130;
/// The learning part runs so much longer after the links' change than before it.
const BEFORE_SHARE: u64 = 5;
/// Characters of a snapshot's hash that are shown.
const HASH_CHARS: usize = 12;
/// Where snapshots come from that nobody has learned: what a slot starts with.
const NOT_LEARNED: [&str; 2] = ["shipped", "taken over"];
/// The simulator's random losses; the demo has none.
const SEED: u64 = 1;

/// An agent holds the kernel's flows.
#[derive(Debug, thiserror::Error)]
#[error("{0}; stop it (`ccplane stop`), the demo brings its own")]
struct AgentRuns(EbpfError);

/// `ccplane demo`
pub(crate) fn demo(args: &DemoArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    crate::agent::log_if_asked();
    let located = args.place.locate(None)?;
    let config = config(args, &located.config)?;
    let mut notes = Vec::new();
    // Before any thread starts. An ordinary user makes links in namespaces of their own.
    let own_namespaces = match permit() {
        Ok(ground) => ground == Ground::Own,
        Err(error) => {
            notes.push(format!("Links need root, or namespaces of one's own: {error}."));
            false
        }
    };
    let quic = args.quic || own_namespaces;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The first one asks, the second one ends.
        flag::register_conditional_shutdown(signal, SIGNALLED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    let mut stage = Stage { args, located: &located, algorithms, stop: &stop, quic, notes };
    let learned = match learning(args, &located.config, algorithms, &mut stage.notes) {
        Some(config) => Some(stage.part(config, Steering::Learning, |run, notes| {
            ccplane_runner::demo::learned(run.config, run.hooks, run.table, notes)
        })?),
        None => None,
    };
    let mut report = stage.part(config, Steering::Fixed, |run, _| {
        ccplane_runner::demo::run(run.config, run.hooks, run.table)
    })?;
    report.notes.splice(0..0, stage.notes);
    if let Some(learned) = learned {
        let (title, place) = match stage.quic {
            true => ("Aurora learns under QUIC", "in the datapath"),
            false => ("Aurora learns in the running kernel", "in the kernel"),
        };
        report.title = title.to_owned();
        report.summary = format!(
            "A neural network decides {place}, per interval, in integers; the agent learns beside its flow and pushes what \
             it learned. Below, the kernel’s own algorithms and ours as fold programs."
        );
        report.learned = Some(learned);
    }
    show(args, &report)
}

/// Whether the agent learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Steering {
    Learning,
    Fixed,
}

/// What a part of the demo runs with.
struct Part<'a, 'b> {
    config: &'a DemoConfig,
    hooks: &'a mut DemoHooks<'b>,
    table: &'a mut Table<Box<dyn std::io::Write>>,
}

/// What all parts run with.
struct Stage<'a> {
    args: &'a DemoArgs,
    located: &'a Located,
    algorithms: &'a [Arc<dyn Algorithm>],
    stop: &'a Arc<AtomicBool>,
    /// Whether our flows run under QUIC.
    quic: bool,
    notes: Vec<String>,
}

impl Stage<'_> {
    /// Runs one part, with an agent of its own.
    fn part<T>(
        &mut self,
        config: DemoConfig,
        steering: Steering,
        run: impl FnOnce(Part<'_, '_>, &mut Vec<String>) -> ccplane_runner::Result<T>,
    ) -> Result<T, Failure> {
        let (agent, engine) = self.start_agent(&config, steering)?;
        let config = if self.quic { config.over_quic() } else { config };
        let stop = Arc::clone(self.stop);
        let mut hooks = DemoHooks {
            agent: Some(agent),
            engine,
            algorithms: self.algorithms,
            stop,
            programs: HashMap::new(),
        };
        let (out, style): (Box<dyn std::io::Write>, _) = match self.args.json {
            true => (Box::new(std::io::stderr()), Style::Lines),
            false => (Box::new(std::io::stdout()), Style::of_stdout(config.flows.len())),
        };
        let mut table = Table::new(out, style);
        let part = Part { config: &config, hooks: &mut hooks, table: &mut table };
        let outcome = run(part, &mut self.notes);
        let stopped = hooks.agent.take().map_or(Ok(()), OwnLoop::stop);
        let part = outcome.map_err(Failure::runtime)?;
        stopped.map(|()| part)
    }

    /// An agent of the demo's own, by whose rules each flow gets its plan's algorithm. Where the kernel's flows cannot be
    /// steered, it steers those of an engine.
    fn start_agent(
        &mut self,
        config: &DemoConfig,
        steering: Steering,
    ) -> Result<(OwnLoop, Option<Engine>), Failure> {
        let ours = config.flows.iter().filter(|f| f.datapath == Datapath::CcplaneEbpf);
        let rule = |port, algorithm: &str| Rule { remote_port: Some(port..=port), ..Rule::any(algorithm) };
        let rules =
            Rules { rules: ours.map(|f| rule(f.port, &f.algorithm)).collect(), default: NATIVE.to_owned() };
        let named = |a: &&Arc<dyn Algorithm>| rules.rules.iter().any(|r| r.algorithm == a.name());
        let used: Vec<Arc<dyn Algorithm>> = self.algorithms.iter().filter(named).cloned().collect();
        let (located, learns) = (self.located, steering == Steering::Learning);
        if !self.quic {
            let started = match steering {
                Steering::Learning => OwnLoop::start_learning(located, &rules, &used),
                Steering::Fixed => OwnLoop::start(located, &rules, &used),
            };
            match started? {
                Ok(agent) => return Ok((agent, None)),
                Err(busy @ EbpfError::Busy { .. }) => return Err(Failure::runtime(AgentRuns(busy))),
                Err(error) => {
                    self.notes.push(format!(
                        "The kernel's flows cannot be steered here, so ours run under QUIC: {error}."
                    ));
                    self.quic = true;
                }
            }
        }
        let (waker, woken) = waker();
        let (engine, datapath) = ccplane_engine::engine(EngineConfig::new("quic"), waker);
        let agent = OwnLoop::start_embedded(located, &rules, &used, Box::new(datapath), woken, learns)?;
        Ok((agent, Some(engine)))
    }
}

/// The part in which a policy learns; `None`, and a note, where there is no policy or no time for it.
fn learning(
    args: &DemoArgs,
    agent: &Config,
    algorithms: &[Arc<dyn Algorithm>],
    notes: &mut Vec<String>,
) -> Option<DemoConfig> {
    if args.learn_s == 0 {
        notes.push("No policy learned: --learn-s is 0.".to_owned());
        return None;
    }
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let seconds = Duration::from_secs;
    let before = (args.learn_s / BEFORE_SHARE).max(1);
    let mut config = DemoConfig::learned(command, seconds(before), seconds(args.learn_s));
    let ours = || config.flows.iter().filter(|f| f.datapath == Datapath::CcplaneEbpf);
    if let Some(missing) = ours().find(|f| !algorithms.iter().any(|a| a.name() == f.algorithm)) {
        notes.push(format!("No policy learned: there is no algorithm {}.", missing.algorithm));
        return None;
    }
    for flow in config.flows.iter_mut().filter(|f| f.datapath == Datapath::CcplaneEbpf) {
        flow.congestion.clone_from(&agent.datapath.ebpf.name);
    }
    Some(config)
}

fn show(args: &DemoArgs, report: &Report) -> Result<(), Failure> {
    let written = ccplane_report::write_to(report, &args.report, "demo").map_err(Failure::runtime)?;
    let flows = report.flows.iter().map(|f| line(report, f)).collect::<Vec<_>>();
    if args.json {
        let figures = Figures { flows, notes: report.notes.clone(), report: Some(written.html) };
        return print_json(&Shown::of(figures, report));
    }
    let learned = report.learned.as_ref().map(said).unwrap_or_default();
    let notes: String = report.notes.iter().map(|note| format!("{note}\n")).collect();
    print(&format!("\n{learned}{}{notes}report: {}\n", text(&flows), written.html.display()))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    figures: Figures,
    /// The part in which a policy learned, if it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    learned: Option<ShownLearned<'a>>,
}

#[derive(Serialize)]
struct ShownLearned<'a> {
    phases: &'a [Phase],
    /// Each flow in each phase.
    flows: Vec<LearnedLine<'a>>,
    decisions: &'a [Decision],
}

#[derive(Serialize)]
struct LearnedLine<'a> {
    flow: &'a str,
    phase: &'a str,
    throughput_bps: Option<f64>,
    rtt_p95_us: Option<f64>,
}

impl<'a> Shown<'a> {
    fn of(figures: Figures, report: &'a Report) -> Shown<'a> {
        let learned = report.learned.as_ref().map(|learned| ShownLearned {
            phases: &learned.phases,
            flows: learned.flows.iter().flat_map(|flow| learned_lines(learned, flow)).collect(),
            decisions: &learned.decisions,
        });
        Shown { figures, learned }
    }
}

fn learned_lines<'a>(learned: &'a Learned, flow: &'a Flow) -> impl Iterator<Item = LearnedLine<'a>> {
    learned.phases.iter().map(move |phase| {
        let window = Window { t0_ms: phase.t0_ms, t1_ms: phase.t1_ms };
        let s = summary(flow, &learned.link.capacity, window);
        LearnedLine {
            flow: &flow.name,
            phase: &phase.label,
            throughput_bps: s.throughput_bps,
            rtt_p95_us: s.rtt_p95_us,
        }
    })
}

/// What was decided about policies, a line each.
fn said(learned: &Learned) -> String {
    let line = |d: &Decision| {
        let hash = d.snapshot.get(..HASH_CHARS).unwrap_or(&d.snapshot);
        format!("{:6.1} s  {} {hash}: {}\n", d.t_ms as f64 / 1e3, d.verdict, d.text)
    };
    learned.decisions.iter().map(line).collect()
}

fn config(args: &DemoArgs, agent: &Config) -> Result<DemoConfig, Failure> {
    let (shape, label) = cellular(args.trace.as_deref()).map_err(Failure::input)?;
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let mut config = DemoConfig::standard(command, shape, &label);
    for phase in &mut config.phases {
        phase.duration = Duration::from_secs(args.phase_s);
    }
    for flow in config.flows.iter_mut().filter(|f| f.datapath == Datapath::CcplaneEbpf) {
        flow.congestion.clone_from(&agent.datapath.ebpf.name);
    }
    Ok(config)
}

/// The trace that was asked for, a recorded one, or ours; and what to call it.
fn cellular(asked: Option<&Path>) -> Result<(Shape, String), TraceError> {
    let recorded = PathBuf::from(RECORDED_TRACE);
    let path = asked.map(Path::to_owned).or_else(|| recorded.exists().then_some(recorded));
    match path {
        Some(path) => {
            let name =
                path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
            Ok((Shape::load(&path)?, format!("cellular: {name}")))
        }
        None => {
            let trace = Trace::parse(SYNTHETIC_TRACE)?;
            let source = "experiments/traces/cellular.up".to_owned();
            Ok((Shape::Trace { trace, repeat: true, source }, "cellular, synthetic".to_owned()))
        }
    }
}

struct DemoHooks<'a> {
    agent: Option<OwnLoop>,
    /// What carries flows under QUIC.
    engine: Option<Engine>,
    algorithms: &'a [Arc<dyn Algorithm>],
    stop: Arc<AtomicBool>,
    /// By flow label: its program when last seen, and how often that changed.
    programs: HashMap<String, (Option<String>, u64)>,
}

impl Hooks for DemoHooks<'_> {
    fn agent(&mut self, flow: &SeenFlow<'_>) -> Option<AgentView> {
        let flows = self.agent.as_ref()?.flows();
        let record = flows.iter().find(|r| r.local == flow.local && r.remote == flow.remote)?;
        let seen =
            self.programs.entry(flow.plan.label.clone()).or_insert_with(|| (record.program.clone(), 0));
        if seen.0 != record.program {
            *seen = (record.program.clone(), seen.1 + 1);
        }
        Some(AgentView {
            steered_by: steered_by(record),
            reports: record.reports,
            program_switches: seen.1,
            faults: record.faults,
        })
    }

    fn engine(&self) -> Option<Engine> {
        self.engine.clone()
    }

    fn further_flows(&mut self, config: &DemoConfig) -> Result<Vec<Flow>, Box<dyn Error + Send + Sync>> {
        match scenario(config)? {
            Some(scenario) if !self.stopped() => Ok(simulate::run(&scenario, self.algorithms)?),
            _ => Ok(Vec::new()),
        }
    }

    fn decisions(&mut self, started: SystemTime) -> Vec<Decision> {
        let started_s = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (_, decisions) = self.agent.as_ref().map(OwnLoop::snapshots).unwrap_or_default();
        learned(&decisions, started_s)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// The decisions on the report's time axis, but those on what a slot starts with.
fn learned(decisions: &[DecisionRecord], started_s: f64) -> Vec<Decision> {
    let learned = decisions.iter().filter(|record| !NOT_LEARNED.contains(&record.origin.as_str()));
    learned.map(|record| decision(record, started_s)).collect()
}

/// A decision on the report's time axis, its numbers in words.
fn decision(record: &DecisionRecord, started_s: f64) -> Decision {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut numbers = Vec::new();
    if let Some(e) = &record.evidence {
        numbers.push(("stability", format!("{:.3}", e.stability)));
        numbers.push(("differs by", format!("{} of the range", percent(e.fidelity_mean))));
        numbers.push(("quantisation error", percent(e.quantisation_error)));
        numbers.extend(e.gain.map(|gain| ("expected gain", format!("{gain:+.3}"))));
    }
    if let Some(c) = &record.comparison {
        numbers.push(("reward on trial", format!("{:.3} ({} pairs)", c.canary_mean, c.pairs)));
        numbers.push(("otherwise", format!("{:.3}", c.active_mean)));
        numbers.push(("difference", format!("{:+.3} ± {:.3}", c.difference, c.uncertainty)));
    }
    Decision {
        t_ms: ((record.time_s - started_s).max(0.0) * 1e3) as u64,
        algorithm: record.algorithm.clone(),
        snapshot: record.snapshot.clone().unwrap_or_default(),
        effect: effect(&record.verdict),
        verdict: record.verdict.clone(),
        text: record.text.clone(),
        numbers: numbers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    }
}

/// What flows do otherwise after a verdict of this name.
fn effect(verdict: &str) -> Effect {
    match verdict {
        "trial" => Effect::Trial,
        "pushed" | "promoted" => Effect::Push,
        "rolled-back" => Effect::Rollback,
        _ => Effect::None,
    }
}

fn steered_by(record: &FlowRecord) -> String {
    match (record.mode, &record.program) {
        (ModeName::Program, Some(program)) => format!("program {program}"),
        (_, Some(program)) if record.waits_for_ack => format!("program {program} (no ACK yet)"),
        (ModeName::Program, None) | (ModeName::NativeNoProgram, _) => "native: no program".to_owned(),
        (ModeName::NativeAgentSilent, _) => "native: agent silent".to_owned(),
        (ModeName::NativePolicy, _) => "native: policy tripped".to_owned(),
    }
}

/// ccplane's flows of the demo, in the simulator, over a link like the demo's; `None` where that has no limit.
fn scenario(config: &DemoConfig) -> Result<Option<Scenario>, TraceError> {
    let mut stretches = Vec::new();
    for phase in &config.phases {
        let trace = match &phase.shape {
            Shape::Unlimited => return Ok(None),
            Shape::Rate { bit_per_s } => {
                Trace::constant_kbit(u32::try_from(bit_per_s / 1000).unwrap_or(u32::MAX))?
            }
            Shape::Trace { trace, .. } => trace.clone(),
        };
        stretches.push((trace, phase.duration.as_millis() as u64));
    }
    let delay_us = config.one_way_delay.as_micros() as u64;
    let live = [Datapath::CcplaneEbpf, Datapath::CcplaneQuic];
    let ours = config.flows.iter().filter(|f| live.contains(&f.datapath));
    Ok(Some(Scenario {
        link: LinkConfig::new(
            Capacity::Trace { trace: concatenate(&stretches)?, repeat: false },
            delay_us * 1000,
            QueueLimit::Packets(config.queue_packets),
        ),
        shared: false,
        return_delay_us: delay_us,
        duration_ms: config.duration().as_millis() as u64,
        sample_every_ms: config.sample_every.as_millis() as u64,
        seed: SEED,
        flows: ours
            .map(|f| (format!("{} {}", f.algorithm, Datapath::Sim.label()), f.algorithm.clone()))
            .collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(verdict: &str, origin: &str) -> DecisionRecord {
        DecisionRecord {
            time_s: 12.5,
            datapath: "kernel".to_owned(),
            algorithm: "aurora".to_owned(),
            slot: 0,
            snapshot: Some("ab".to_owned()),
            uid: Some(2),
            origin: origin.to_owned(),
            verdict: verdict.to_owned(),
            text: "why".to_owned(),
            evidence: None,
            comparison: None,
        }
    }

    #[test]
    fn what_a_slot_starts_with_is_no_push() {
        let records = [
            record("taken-over", "taken over"),
            record("pushed", "shipped"),
            record("not-necessary", "learned"),
            record("trial", "learned"),
            record("rolled-back", "learned"),
            record("trial", "learned"),
            record("promoted", "learned"),
            record("pushed", "operator"),
        ];
        let shown = learned(&records, 10.0);
        assert!(shown.iter().all(|d| d.t_ms == 2500 && d.snapshot == "ab"));
        let effects: Vec<Effect> = shown.iter().map(|d| d.effect).collect();
        use Effect::{None, Push, Rollback, Trial};
        assert_eq!(effects, [None, Trial, Rollback, Trial, Push, Push]);
    }
}

//! A short demo with the kernel's own algorithms. Needs root; says so where it cannot run.
#![allow(clippy::unwrap_used, missing_docs)]

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use ccplane_emulator::Shape;
use ccplane_emulator::netns::available;
use ccplane_netsim::trace::Trace;
use ccplane_report::{Datapath, Decision, Effect, Flow, Totals, Window, summary};
use ccplane_runner::demo::{
    AgentView, DemoConfig, FlowPlan, Hooks, SeenFlow, learned, missing_for_links, run,
};
use ccplane_runner::table::{Style, Table};

/// An opportunity each 2 ms, 6 Mb/s.
fn six_mbit() -> Shape {
    Shape::Trace { trace: Trace::constant(6).unwrap(), repeat: true, source: "constant".into() }
}

fn short_demo() -> DemoConfig {
    let mut config = DemoConfig::standard("ccplane demo".into(), six_mbit(), "trace 6 Mb/s");
    config.phases[0].duration = Duration::from_millis(2_000);
    config.phases[1].duration = Duration::from_millis(2_000);
    config.sample_every = Duration::from_millis(50);
    // The agent does not run here, and no congestion control has this name.
    config.flows[1].congestion = "ccp-nosuch".into();
    config.flows[3].congestion = "ccp-nosuch".into();
    config
}

#[derive(Default)]
struct TestHooks {
    stop_at: Option<Instant>,
    looks: Cell<u64>,
    began: Option<SystemTime>,
}

impl Hooks for TestHooks {
    fn agent(&mut self, flow: &SeenFlow<'_>) -> Option<AgentView> {
        assert_eq!(flow.remote.port(), flow.plan.port);
        self.looks.set(self.looks.get() + 1);
        (flow.plan.algorithm == "reno").then(|| AgentView {
            steered_by: "program p".into(),
            reports: self.looks.get(),
            program_switches: 1,
            faults: 0,
        })
    }

    fn further_flows(
        &mut self,
        config: &DemoConfig,
    ) -> Result<Vec<Flow>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(vec![Flow {
            name: "reno ccplane sim".into(),
            algorithm: config.flows[0].algorithm.clone(),
            datapath: Datapath::Sim,
            samples: Vec::new(),
            totals: Totals::default(),
        }])
    }

    fn decisions(&mut self, started: SystemTime) -> Vec<Decision> {
        self.began = Some(started);
        let decision = |algorithm: &str| Decision {
            t_ms: 300,
            algorithm: algorithm.into(),
            snapshot: String::new(),
            effect: Effect::Push,
            verdict: "pushed".into(),
            text: String::new(),
            numbers: Vec::new(),
        };
        vec![decision("reno"), decision("cubic")]
    }

    fn stopped(&self) -> bool {
        self.stop_at.is_some_and(|at| Instant::now() >= at)
    }
}

fn our_namespaces() -> usize {
    let prefix = format!("ccp-{}-", std::process::id());
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return 0 };
    entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).count()
}

#[test]
fn flows_follow_the_phases_and_stop_when_asked() {
    if !available() {
        assert!(!missing_for_links().is_empty());
        ccplane_testing::skipped(
            "flows_follow_the_phases_and_stop_when_asked",
            "needs root and /dev/net/tun",
        );
        return;
    }
    let config = short_demo();
    let mut table = Table::new(Vec::new(), Style::Lines);
    let report = run(&config, &mut TestHooks::default(), &mut table).unwrap();

    let names: Vec<_> = report.flows.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["reno kernel native", "cubic kernel native", "reno ccplane sim"]);
    let not_run: Vec<_> = report.notes.iter().filter(|n| n.contains("ccp-nosuch")).collect();
    assert_eq!(not_run.len(), 2, "{:?}", report.notes);
    for flow in &report.flows[..2] {
        let phase = |i: usize| {
            let phase = &report.phases[i];
            summary(flow, &report.link.capacity, Window { t0_ms: phase.t0_ms, t1_ms: phase.t1_ms })
        };
        let (fixed, trace) = (phase(0), phase(1));
        // 24 Mb/s, less the start; then 6 Mb/s. Wide bounds: the machine may be busy.
        let mbps = |s: ccplane_report::Summary| s.throughput_bps.unwrap() / 1e6;
        assert!((8.0..24.0).contains(&mbps(fixed)), "{}: {} Mb/s", flow.name, mbps(fixed));
        assert!((3.0..7.0).contains(&mbps(trace)), "{}: {} Mb/s", flow.name, mbps(trace));
        assert!(
            trace.rtt_mean_us.unwrap() > fixed.rtt_mean_us.unwrap(),
            "the same queue lasts longer at 6 Mb/s"
        );
        assert!(flow.totals.min_rtt_us >= 40_000, "{} us", flow.totals.min_rtt_us);
        assert!(flow.samples.is_sorted_by_key(|s| s.t_ms) && flow.samples.len() > 20);
        assert!(flow.samples.last().unwrap().t_ms <= 10_000);
    }
    assert_eq!(report.flows[0].totals.program_switches, Some(1));
    assert_eq!(report.flows[1].totals.program_switches, None);
    let shown = String::from_utf8(table.into_inner()).unwrap();
    assert!(
        shown.contains("program p")
            && shown.contains("kernel cubic")
            && shown.contains("of 4 s, trace 6 Mb/s")
    );
    assert_eq!(our_namespaces(), 0);

    let mut config = config;
    for phase in &mut config.phases {
        phase.duration = Duration::from_secs(60);
    }
    let begun = Instant::now();
    let mut hooks = TestHooks { stop_at: Some(begun + Duration::from_millis(700)), ..TestHooks::default() };
    let report = run(&config, &mut hooks, &mut Table::new(Vec::new(), Style::Lines)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(report.notes.iter().any(|n| n.starts_with("Stopped by the user")), "{:?}", report.notes);
    assert!(!report.flows[0].samples.is_empty());
    assert_eq!(our_namespaces(), 0);
}

#[test]
fn decisions_are_of_the_learner_and_on_the_samples_clock() {
    if !available() {
        ccplane_testing::skipped(
            "decisions_are_of_the_learner_and_on_the_samples_clock",
            "needs root and /dev/net/tun",
        );
        return;
    }
    let mut config = short_demo();
    for phase in &mut config.phases {
        phase.duration = Duration::from_millis(500);
    }
    let (mut hooks, mut notes) = (TestHooks::default(), Vec::new());
    let mut table = Table::new(Vec::new(), Style::Lines);
    let part = learned(&config, &mut hooks, &mut table, &mut notes).unwrap();
    let lasted = hooks.began.unwrap().elapsed().unwrap();
    assert_eq!(part.decisions.iter().map(|d| d.algorithm.as_str()).collect::<Vec<_>>(), ["reno"]);
    let last_ms = part.flows.iter().filter_map(|f| f.samples.last()).map(|s| s.t_ms).max().unwrap();
    assert!(Duration::from_millis(last_ms) <= lasted, "{last_ms} ms, {lasted:?}");
    // No flow could run: nothing began.
    config.flows.iter_mut().for_each(|f| f.congestion = "ccp-nosuch".into());
    let mut hooks = TestHooks::default();
    let part = learned(&config, &mut hooks, &mut Table::new(Vec::new(), Style::Lines), &mut notes).unwrap();
    assert!(part.flows.is_empty() && part.decisions.is_empty() && hooks.began.is_none());
}

#[test]
fn a_link_that_cannot_be_leaves_the_simulator() {
    let mut config = short_demo();
    for (i, flow) in config.flows.iter_mut().enumerate() {
        *flow = FlowPlan { congestion: format!("ccp-none{i}"), ..flow.clone() };
    }
    let report = run(&config, &mut TestHooks::default(), &mut Table::new(Vec::new(), Style::Lines)).unwrap();
    assert_eq!(report.flows.len(), 1, "only the simulator's");
    assert!(report.notes.len() >= 3 || !available(), "{:?}", report.notes);
}

//! Contenders that run at the same time, with the kernel's own algorithms. Needs root; says so where it cannot run.
// A process of its own: it counts the namespaces that this process has.
#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccplane_core::Companion;
use ccplane_emulator::netns;
use ccplane_results::{FlowResult, Run, RunFigures, RunOutcome};
use ccplane_runner::experiment::agents::{
    Agent, AgentFlow, AgentRule, Agents, BoxError, InKernel, NoAgents, Waker,
};
use ccplane_runner::experiment::{self, Ended, Options, Progress};
use ccplane_runner::missing_for_links;
use ccplane_runner::plan::{Known, Overrides, Plan};

/// 24 Mb/s that become 6 halfway, for two kernel algorithms, and one that no kernel has.
const PLAN: &str = r#"title = "t"
duration_s = 4
repeats = 1
sample_ms = 50
at_once = true
[[link]]
rate_mbit = 24
delay_ms = 20
queue_packets = 120
change = [{ at_s = 2, rate_mbit = 6 }]
[[algorithm]]
algorithm = "reno"
datapath = "kernel"
[[algorithm]]
algorithm = "cubic"
datapath = "kernel"
"#;

fn plan(text: &str) -> Plan {
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Err(String::new());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    Plan::parse(Path::new("p.toml"), text, &known, Overrides::default()).unwrap()
}

fn go(plan: &Plan, agents: &mut dyn Agents, stopped: &dyn Fn() -> bool) -> (Ended, String) {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("p.jsonl");
    let options = Options { results, force: false, command: "test".to_owned() };
    let mut progress = Progress::new(Vec::new());
    let ended =
        experiment::run(plan, &options, &ccplane_algs::all(), agents, stopped, &mut progress).unwrap();
    (ended, String::from_utf8(progress.into_inner()).unwrap())
}

fn links_are_missing(test: &str) -> bool {
    let missing = ccplane_testing::lacks(test, netns::missing());
    assert!(!missing || !missing_for_links().is_empty());
    missing
}

fn our_namespaces() -> usize {
    let prefix = format!("ccp-{}-", std::process::id());
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return 0 };
    entries.flatten().filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).count()
}

fn measured(run: &Run) -> &RunFigures {
    match &run.outcome {
        RunOutcome::Ok(measured) => measured,
        RunOutcome::Failed { error } => panic!("{}: {error}", run.contender),
    }
}

/// Means of throughput (Mb/s) and RTT (ms) after `from_ms` and until `to_ms`.
fn means(flow: &FlowResult, from_ms: u64, to_ms: u64) -> (f64, f64) {
    let inside: Vec<usize> = (0..flow.series.t_ms.len())
        .filter(|i| (from_ms + 1..=to_ms).contains(&flow.series.t_ms[*i]))
        .collect();
    let mean = |column: &[u64]| inside.iter().map(|i| column[*i] as f64).sum::<f64>() / inside.len() as f64;
    (mean(&flow.series.throughput_bps) / 1e6, mean(&flow.series.srtt_us) / 1e3)
}

#[test]
fn flows_follow_their_links_side_by_side_and_one_that_breaks_costs_no_other_its_run() {
    if links_are_missing("flows_follow_their_links_side_by_side_and_one_that_breaks_costs_no_other_its_run") {
        return;
    }
    let plan = plan(&format!("{PLAN}[[algorithm]]\nalgorithm = \"ccp-nosuch\"\ndatapath = \"kernel\"\n"));
    let (ended, shown) = go(&plan, &mut NoAgents, &|| false);
    assert_eq!((ended.total, ended.done, ended.failed), (3, 2, 1), "{shown}");
    let runs = &ended.results.runs;
    let names: Vec<&str> = runs.iter().map(|r| r.contender.as_str()).collect();
    // The two that ended well are not tried again with the third.
    assert_eq!(names, ["reno kernel", "cubic kernel", "ccp-nosuch kernel", "ccp-nosuch kernel"]);
    assert!(
        runs[2..]
            .iter()
            .all(|r| matches!(&r.outcome, RunOutcome::Failed { error } if error.contains("ccp-nosuch")))
    );
    for run in &runs[..2] {
        assert!(run.wall_ms < 2 * 4_000, "both in the time of one: {} ms", run.wall_ms);
        let measured = measured(run);
        assert_eq!(measured.cpu, None, "the machine's time is not one contender's");
        let flow = &measured.flows[0];
        // 24 Mb/s, less the start; then 6 Mb/s. Wide bounds: the machine may be busy.
        let ((fast, before_ms), (slow, after_ms)) = (means(flow, 0, 2_000), means(flow, 2_300, 4_000));
        assert!((8.0..24.0).contains(&fast), "{}: {fast} Mb/s", run.contender);
        assert!((3.0..7.0).contains(&slow), "{}: {slow} Mb/s", run.contender);
        assert!(after_ms > before_ms, "the same queue lasts longer at 6 Mb/s");
        assert!(flow.min_rtt_us >= 40_000, "{} us", flow.min_rtt_us);
        assert!(flow.series.t_ms.is_sorted() && flow.series.t_ms.len() > 20);
        assert!(*flow.series.t_ms.last().unwrap() <= 10_000);
    }
    assert!(shown.contains("kernel cubic") && shown.contains("24 Mb/s, 20 ms"), "{shown}");
    assert_eq!(our_namespaces(), 0);

    let long = crate::plan(&PLAN.replace("duration_s = 4", "duration_s = 120"));
    let begun = Instant::now();
    let (ended, _) = go(&long, &mut NoAgents, &|| begun.elapsed() > Duration::from_millis(700));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert!(ended.interrupted && ended.results.runs.is_empty());
    assert_eq!(our_namespaces(), 0);
}

/// Says of every flow that it is steered, by an agent that there is not: the flows run the kernel's Reno.
struct FakeAgents {
    started: RefCell<Vec<Vec<AgentRule>>>,
}

struct FakeAgent(u64);

impl Agents for FakeAgents {
    fn start(&mut self, _: InKernel, rules: &[AgentRule]) -> Result<Box<dyn Agent>, BoxError> {
        self.started.borrow_mut().push(rules.to_vec());
        Ok(Box::new(FakeAgent(0)))
    }
    fn embed(
        &mut self,
        _: &[AgentRule],
        _: &mut dyn FnMut(Waker) -> Box<dyn ccplane_contract::Datapath + Send>,
    ) -> Result<Box<dyn Agent>, BoxError> {
        Err("not asked for".into())
    }
    fn learner(
        &mut self,
        _: &Arc<dyn ccplane_alg::Algorithm>,
        _: u64,
    ) -> Result<Box<dyn Companion>, BoxError> {
        Err("not asked for".into())
    }
}

impl Agent for FakeAgent {
    fn congestion(&self) -> &str {
        "reno"
    }
    fn flows(&mut self) -> Vec<AgentFlow> {
        self.0 += 1;
        Vec::new()
    }
    fn reports(&mut self) -> u64 {
        self.0
    }
}

#[test]
fn one_agent_steers_all_that_run_at_once_each_by_ports_of_its_own() {
    if links_are_missing("one_agent_steers_all_that_run_at_once_each_by_ports_of_its_own") {
        return;
    }
    let text = PLAN.replace("duration_s = 4", "duration_s = 3").replace("kernel", "ebpf");
    let mut agents = FakeAgents { started: RefCell::default() };
    let (ended, _) = go(&plan(&text), &mut agents, &|| false);
    assert_eq!(ended.done, 2);
    let started = agents.started.into_inner();
    // The preflight asks for each contender; the runs then share one.
    let named = |rules: &Vec<AgentRule>| rules.iter().map(|r| r.algorithm.name()).collect::<Vec<_>>();
    assert_eq!(
        started.iter().map(named).collect::<Vec<_>>(),
        [vec!["reno"], vec!["cubic"], vec!["reno", "cubic"]]
    );
    let [reno, cubic] = [&started[2][0].ports, &started[2][1].ports];
    assert!(reno.end() < cubic.start(), "{reno:?} {cubic:?}");
    for run in &ended.results.runs {
        let used = measured(run).agent.unwrap();
        assert!(used.reports > 10, "its states are looked at ten times a second: {}", used.reports);
        assert_eq!(used.unsteered_flows, 1, "the agent knew no flow");
    }
}

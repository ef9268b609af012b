//! Learning beside flows whose links change, against the same policy without it: links of the plan `adapt-random`, simulated.

use ccplane_alg::Algorithm;
use ccplane_contract::Datapath;
use ccplane_core::{Core, Verdict};
use ccplane_results::Outcome;
use ccplane_runner::experiment::agents::{Agent, Agents, Beside, BoxError, NoAgent, Steer, Waker};
use ccplane_runner::experiment::{self, Options, Progress};
use ccplane_runner::plan::{Known, Overrides, Plan, shipped};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Until just before the second change: what comes after it is more of the same, and takes time.
const UNTIL_MS: u64 = 120_000;
/// The plan's first links.
const LINKS: usize = 3;

/// A learner whose promotions are counted.
struct Counted(Box<dyn Beside>, Arc<AtomicU64>);

impl Beside for Counted {
    fn turned(&mut self, core: &mut Core, now_us: u64) {
        self.0.turned(core, now_us);
        let promoted = core.decisions().filter(|d| d.verdict == Verdict::Promoted).count();
        self.1.store(promoted as u64, Relaxed);
    }
}

/// Learners and nothing else.
struct Learners(Arc<AtomicU64>);

impl Agents for Learners {
    fn start(&mut self, _: &[Steer]) -> Result<Box<dyn Agent>, BoxError> {
        Err(Box::new(NoAgent))
    }
    fn embed(
        &mut self,
        _: &[Steer],
        _: &mut dyn FnMut(Waker) -> Box<dyn Datapath + Send>,
    ) -> Result<Box<dyn Agent>, BoxError> {
        Err(Box::new(NoAgent))
    }
    fn learner(&mut self, algorithm: &Arc<dyn Algorithm>, seed: u64) -> Result<Box<dyn Beside>, BoxError> {
        Ok(Box::new(Counted(super::beside(algorithm, seed)?, self.0.clone())))
    }
}

fn plan() -> Plan {
    let algorithms = ccplane_algs::all();
    let traces = |name: &str| shipped::trace(Path::new(""), name);
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    let mut plan = shipped::load("adapt-random", &known, Overrides::default()).unwrap();
    plan.duration_ms = UNTIL_MS;
    plan.contenders.retain(|c| c.algorithm.starts_with("aurora"));
    plan.scenarios.iter_mut().for_each(|s| s.link.changes.retain(|c| c.at_ms < UNTIL_MS));
    plan
}

/// Promotions, and the reward with learning over that without.
fn run(scenario: usize) -> (u64, f64) {
    let mut plan = plan();
    plan.scenarios = vec![plan.scenarios[scenario].clone()];
    let directory = tempfile::tempdir().unwrap();
    let results = experiment::results_path(directory.path(), &plan);
    let options = Options { results, force: false, command: "test".to_owned() };
    let (promoted, mut progress) = (Arc::default(), Progress::new(Vec::new(), None));
    let mut learners = Learners(Arc::clone(&promoted));
    let algorithms = ccplane_algs::all();
    let ended =
        experiment::run(&plan, &options, &algorithms, &mut learners, &|| false, &mut progress).unwrap();
    assert_eq!((ended.done, ended.failed), (2, 0));
    let reward = |learning: bool| {
        let run = ended.results.runs.iter().find(|r| r.contender.contains("learning") == learning).unwrap();
        let Outcome::Ok(measured) = &run.outcome else { panic!("{run:?}") };
        measured.stretches.iter().map(|s| s.reward_ppm).sum::<u64>() as f64
    };
    let found = (promoted.load(Relaxed), reward(true) / reward(false));
    println!("{}: {} promotions, {:.3} of the reward without", plan.scenarios[0].name, found.0, found.1);
    found
}

/// On three links: something is promoted, the median gains, and none loses more than a trial costs.
#[test]
fn learning_promotes_and_gains() {
    let threads = (0..LINKS).map(|scenario| std::thread::spawn(move || run(scenario)));
    let mut found: Vec<(u64, f64)> =
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect();
    found.sort_by(|a, b| a.1.total_cmp(&b.1));
    let promotions: u64 = found.iter().map(|f| f.0).sum();
    assert!(promotions >= 1, "{found:?}");
    assert!(found[LINKS / 2].1 >= 1.0 && found[0].1 >= 0.9, "{found:?}");
}

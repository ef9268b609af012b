//! Order, seeds, resumption; runs in the simulator. Runs in the kernel are in `tests/at_once.rs`.

use std::cell::Cell;
use std::io::Write as _;

use ccplane_results::Results;

use super::*;
use crate::plan::{Known, Overrides};

fn plan(text: &str) -> Plan {
    let algorithms = ccplane_algs::all();
    let traces = |_: &str| Err(String::new());
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    Plan::parse(Path::new("p.toml"), text, &known, Overrides::default()).unwrap()
}

const SIM: &str = r#"title = "t"
duration_s = 2
repeats = 2
[[link]]
rate_mbit = 12
delay_ms = 10
[[algorithm]]
algorithm = "reno"
datapath = "sim"
[[algorithm]]
algorithm = "cubic"
datapath = "sim"
"#;

fn go(plan: &Plan, directory: &Path, stopped: &dyn Fn() -> bool) -> Result<Ended, ExperimentError> {
    let options =
        Options { results: results_path(directory, plan), force: false, command: "test".to_owned() };
    let mut progress = Progress::new(Vec::new());
    run(plan, &options, &ccplane_algs::all(), &mut NoAgents, stopped, &mut progress)
}

type Result<T, E> = std::result::Result<T, E>;

#[test]
fn contenders_alternate_and_take_turns_at_being_first() {
    let text = SIM.replace("repeats = 2", "repeats = 3")
        + "[[algorithm]]\nalgorithm = \"vegas\"\ndatapath = \"sim\"\n[sweep]\n\"link.delay_ms\" = [1, 2]\n";
    let plan = plan(&text);
    let order: Vec<_> = schedule(&plan).iter().map(|s| (s.repeat, s.scenario, s.contender)).collect();
    let golden = [
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 2),
        (0, 1, 0),
        (0, 1, 1),
        (0, 1, 2),
        (1, 0, 1),
        (1, 0, 2),
        (1, 0, 0),
        (1, 1, 1),
        (1, 1, 2),
        (1, 1, 0),
        (2, 0, 2),
        (2, 0, 0),
        (2, 0, 1),
        (2, 1, 2),
        (2, 1, 0),
        (2, 1, 1),
    ];
    assert_eq!(order, golden);
    let seeds: Vec<u64> = schedule(&plan).iter().map(|s| seed(&plan, *s)).collect();
    assert!(seeds.chunks(3).all(|same| same.iter().all(|s| *s == same[0])), "one seed a repeat and scenario");
    let mut distinct = seeds.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 6);
}

#[test]
fn short_flows_are_the_same_for_all_contenders_and_from_a_seed() {
    let plan = plan(&(SIM.to_owned() + "[traffic]\nkind = \"short-flows\"\nbytes = 20_000\n"));
    let arrivals = |contender: usize, seed| {
        let (scenario, contender) = (&plan.scenarios[0], &plan.contenders[contender]);
        Job { plan: &plan, scenario, contender, seed, algorithms: &[], lane: 0 }.arrivals()
    };
    assert_eq!(arrivals(0, 7), arrivals(1, 7));
    assert_ne!(arrivals(0, 7), arrivals(0, 8));
    // Half of 12 Mb/s for two seconds are 75 flows of 20 kB.
    assert!((50..100).contains(&arrivals(0, 7).len()), "{}", arrivals(0, 7).len());
}

fn outcomes(results: &Results) -> Vec<(String, u32, String)> {
    results
        .runs
        .iter()
        .map(|r| (r.contender.clone(), r.repeat, serde_json::to_string(&r.outcome).unwrap()))
        .collect()
}

#[test]
fn a_stopped_plan_goes_on_where_it_was_and_comes_to_the_same() {
    let plan = plan(SIM);
    let whole = tempfile::tempdir().unwrap();
    let all = go(&plan, whole.path(), &|| false).unwrap();
    assert_eq!((all.done, all.total, all.failed, all.interrupted), (4, 4, 0, false));
    for run in &all.results.runs {
        let RunOutcome::Ok(measured) = &run.outcome else { panic!("{:?}", run.outcome) };
        let bps = measured.flows[0].throughput_bps;
        assert!((9_000_000..12_000_000).contains(&bps), "{bps}");
        assert_eq!(measured.agent.unwrap().unsteered_flows, 0);
        let link = measured.link.unwrap();
        assert!(link.utilisation_ppm > 800_000 && link.queue_delay_us.p95 > 0, "{link:?}");
    }

    // Stopped in the second run: the first one is there.
    let parts = tempfile::tempdir().unwrap();
    let asked = Cell::new(0);
    let path = results_path(parts.path(), &plan);
    let stop = || {
        asked.set(asked.get() + 1);
        path.exists() && ccplane_results::read(&path).is_ok_and(|r| r.runs.len() == 1)
    };
    let some = go(&plan, parts.path(), &stop).unwrap();
    assert_eq!((some.done, some.interrupted), (1, true));
    assert!(asked.get() > 2);
    // And a crash in the midst of a line.
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"record\":\"run\",\"scen").unwrap();
    drop(file);
    let rest = go(&plan, parts.path(), &|| false).unwrap();
    assert_eq!((rest.done, rest.interrupted), (4, false));
    assert_eq!(outcomes(&rest.results), outcomes(&all.results));
    assert_eq!(ccplane_results::read(&path).unwrap(), rest.results);
    // Nothing is left to do: nothing is done.
    assert_eq!(go(&plan, parts.path(), &|| false).unwrap().results.runs.len(), 4);
}

#[test]
fn more_repeats_and_other_words_go_on_another_link_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let text = SIM.replace("repeats = 2", "repeats = 1");
    go(&plan(&text), directory.path(), &|| false).unwrap();
    let more = plan(&SIM.replace("\"t\"", "\"a better title\""));
    let ended = go(&more, directory.path(), &|| false).unwrap();
    assert_eq!((ended.results.runs.len(), ended.results.header.plan.title.as_str()), (4, "a better title"));
    let reread = ccplane_results::read(&ended.path).unwrap();
    assert_eq!(reread, ended.results);

    let other = plan(&SIM.replace("12", "24"));
    let refused = go(&other, directory.path(), &|| false).unwrap_err().to_string();
    assert!(refused.contains("another plan") && refused.contains("--results"), "{refused}");
    let options =
        Options { results: results_path(directory.path(), &other), force: true, command: String::new() };
    let mut progress = Progress::new(Vec::new());
    let all = ccplane_algs::all();
    let ended = run(&other, &options, &all, &mut NoAgents, &|| false, &mut progress).unwrap();
    assert_eq!(ended.results.runs.len(), 4);
    assert_eq!(ccplane_results::read(&directory.path().join("p.jsonl.old")).unwrap(), reread);
}

#[test]
fn simulated_background_and_short_flows() {
    let directory = tempfile::tempdir().unwrap();
    let text = SIM.to_owned()
        + "[traffic]\nkind = \"incast\"\nsenders = 5\nbytes = 10_000\nevery_ms = 500\n"
        + "[[background]]\nalgorithm = \"cubic\"\nstart_s = 0.5\nstop_s = 1.5\n";
    let ended = go(&plan(&text), directory.path(), &|| false).unwrap();
    let RunOutcome::Ok(measured) = &ended.results.runs[0].outcome else {
        panic!("{:?}", ended.results.runs[0])
    };
    let completions = measured.completions.as_ref().unwrap();
    assert_eq!((completions.flows.len(), completions.unfinished), (20, 0));
    assert!(completions.flows.iter().all(|f| f.bytes == 10_000 && f.fct_us > 10_000), "{completions:?}");
    assert!(completions.flows.is_sorted_by_key(|f| f.start_us));
    assert_eq!(measured.flows.len(), 1);
    let background = &measured.flows[0];
    assert_eq!((background.background.as_deref(), background.start_ms), (Some("cubic"), 500));
    assert_eq!(measured.agent.unwrap().unsteered_flows, 0, "what its end hands over is no miss");
    assert!(background.end_ms <= 1_500, "{}", background.end_ms);
}

//! The `ccplane` command where the module is: a plan of algorithms on it and simulated, over one emulated link; what `doctor` says.

use std::process::Command;

use serde_json::Value;

use super::lab::LoadedModule;

/// The link is slow: an emulated machine serves its packets in time.
const PLAN: &str = r#"title = "The kernel module and the simulator"
duration_s = 20
warmup_s = 5
repeats = 1
[[link]]
rate_mbit = 8
delay_ms = 20
[[algorithm]]
algorithm = "reno"
datapath = ["module", "sim"]
[[algorithm]]
algorithm = "cubic"
datapath = ["module", "sim"]
[[compare]]
metric = ["throughput_bps", "mean_rtt_us"]
across = "sim"
within = 0.1
"#;
/// Of the simulated throughput, what an emulated machine carries at least.
const DUE: f64 = 0.5;

/// Runs the plan; what it says of itself, and its results.
fn run(plan: &str) -> (Value, Vec<Value>) {
    std::fs::write("plan.toml", plan).unwrap();
    let run = ["run", "plan.toml", "--results", "results", "--force", "--json"];
    let output = Command::new("./ccplane").args(run).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let summary = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let results = std::fs::read_to_string("results/plan.jsonl").unwrap();
    (summary, results.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
#[ignore = "runs in a machine that has the module"]
fn a_plan_runs_on_the_module_and_simulated() {
    let _module = LoadedModule::with("");
    super::lab::up();
    let (summary, results) = run(PLAN);
    assert_eq!((&summary["done"], &summary["failed"]), (&4.into(), &0.into()), "{summary}");
    let runs = |datapath: &str| -> Vec<&Value> {
        let ends = format!(" {datapath}");
        results.iter().filter(|r| r["contender"].as_str().is_some_and(|c| c.ends_with(&ends))).collect()
    };
    assert_eq!((runs("module").len(), runs("sim").len()), (2, 2));
    for run in runs("module") {
        assert_eq!(run["agent"]["unsteered_flows"], 0, "{run}");
        assert_eq!(run["agent"]["faults"], 0, "{run}");
    }
    for compared in summary["comparisons"].as_array().unwrap() {
        println!("{compared}");
    }
    for (module, sim) in runs("module").into_iter().zip(runs("sim")) {
        let rate = |run: &Value| run["flows"][0]["throughput_bps"].as_f64().unwrap();
        assert!(rate(module) >= DUE * rate(sim), "{module}\n{sim}");
    }
}

/// Without the module its contenders are left out by name, and a plan that has no others is refused.
#[test]
#[ignore = "runs in a machine that has the module"]
fn without_the_module_its_contenders_are_left_out() {
    std::fs::write("plan.toml", PLAN).unwrap();
    let check = Command::new("./ccplane").args(["run", "plan.toml", "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success() && said.contains("reno sim, cubic sim\n"), "{said}");
    let only = PLAN.replace(", \"sim\"", "").split("[[compare]]").next().unwrap().to_owned();
    std::fs::write("plan.toml", only).unwrap();
    let refused = Command::new("./ccplane").args(["run", "plan.toml", "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing is left: the kernel module is not loaded"), "{said}");
}

/// The module is the datapath for Linux TCP where it is loaded, and only there.
#[test]
#[ignore = "runs in a machine that has the module"]
fn doctor_names_the_module_where_it_is_loaded() {
    let choice = || -> Value {
        let output = Command::new("./ccplane").args(["doctor", "--json"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let diagnosis: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        diagnosis["tcp"].clone()
    };
    let without = choice();
    assert_ne!(without["datapath"], "module", "{without}");
    let _module = LoadedModule::with("");
    let with = choice();
    assert_eq!(with["datapath"], "module", "{with}");
    assert!(with["why"].as_str().unwrap().contains("it is loaded (/dev/ccplane)"), "{with}");
}

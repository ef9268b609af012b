//! `sim`, `demo`, `bench`, `mm-delay` and `mm-link` as processes.

use crate::common::{Home, ccplane, stderr, stdout};
use serde_json::Value;
use std::fs;
use std::process::Command;

fn json(arguments: &[&str]) -> Value {
    let output = ccplane(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn sim_repeats_itself_and_fills_the_link() {
    let arguments =
        ["sim", "reno", "cubic", "--rate-mbit", "12", "--duration-s", "20", "--loss", "0.0001", "--json"];
    let figures = json(&arguments);
    assert_eq!(figures, json(&arguments));
    for flow in figures["flows"].as_array().unwrap() {
        assert!(flow["utilisation"].as_f64().unwrap() > 0.85, "{flow}");
        assert_eq!(flow["faults"], 0);
    }
    assert_eq!(figures["flows"].as_array().unwrap().len(), 2);
}

#[test]
fn sim_writes_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let output = ccplane(&["sim", "reno", "--duration-s", "5", "--report", dir.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("reno 1"), "{}", stdout(&output));
    let page = fs::read_to_string(dir.path().join("sim.html")).unwrap();
    assert!(page.contains("Simulated flows"));
}

#[test]
fn wrong_input_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("bad.trace");
    fs::write(&trace, "1\n2\nthree\n").unwrap();
    let trace = trace.to_str().unwrap();
    let place = format!("{trace}:3");
    let good = dir.path().join("good.trace");
    fs::write(&good, "1\n").unwrap();
    let good = good.to_str().unwrap();
    for (arguments, why) in [
        (&["sim", "nope"][..], "no algorithm `nope`"),
        (&["sim", "reno", "--trace", trace], &place),
        (&["sim", "--loss", "2"], "a share, 0 to 1"),
        (&["sim", "--flows", "0"], "1..=1024"),
        (&["sim", "--rate-mbit", "5", "--trace", trace], "cannot be used with"),
        (&["demo", "--trace", trace], &place),
        (&["mm-link", trace, trace, "true"], &place),
        (
            &["mm-link", good, good, "--uplink-log", "/nonexistent/log", "true"],
            "/nonexistent/log: cannot create",
        ),
        (&["mm-link", good, good, "--uplink-queue", "red", "true"], "unknown queue \"red\""),
        (&["mm-link", good, good, "--uplink-queue", "droptail", "true"], "packets=N or bytes=N"),
        (&["mm-delay", "99999999", "true"], "delay"),
        (&["mm-loss", "uplink", "1.5", "true"], "1.5"),
        (&["mm-onoff", "uplink", "0", "0", "true"], "not both can be 0"),
        (&["mm-impair", "both", "--burst-loss", "0.1", "true"], "2 to 4 numbers"),
        (&["mm-impair", "both", "--duplicate", "2", "true"], "duplicate"),
        (&["bench", "nope"], "no benchmark is called `nope`"),
        (&["bench"], "NAME"),
        (
            &["bench", "sim.speed", "--plot", "/dev/null"],
            "--plot draws the cells of `wake`, which is not measured",
        ),
    ] {
        let output = ccplane(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn bench_lists_what_there_is() {
    let list = stdout(&ccplane(&["bench", "--list"]));
    for bench in ccplane_benches::ALL {
        assert!(list.contains(bench.name) && bench.seconds <= 300, "{list}");
    }
}

/// Beside no baseline there is no figure: the program of the other side is not where this copy of ours lies.
#[test]
fn bench_fails_where_the_other_side_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("ccplane");
    fs::copy(env!("CARGO_BIN_EXE_ccplane"), &alone).unwrap();
    let output = std::process::Command::new(&alone).args(["bench", "agent.rss", "--json"]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), ""), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("agent.rss: no baseline: ccplane-portus is not built"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn link_shells_return_as_their_command_does() {
    let missing = ccplane_runner::missing_for_links();
    if ccplane_testing::lacks("link_shells_return_as_their_command_does", missing.first()) {
        return;
    }
    for (command, code) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143)] {
        let output = ccplane(&["mm-delay", "5", "sh", "-c", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", stderr(&output));
    }
    let output = ccplane(&["mm-delay", "1", "sh", "-c", "echo $MAHIMAHI_BASE"]);
    assert!(stdout(&output).starts_with("100."), "{}", stdout(&output));
}

/// The whole demo, shortened: each contender has run on each link, or a note says why it is not as planned.
#[test]
fn demo_compares_three_on_four_links() {
    let home = Home::new("");
    let run_dir = home.dir().display();
    home.configure(&format!("datapath.ebpf.name = \"ccd_demo\"\ndatapath.ebpf.run_dir = \"{run_dir}\"\n"));
    let report = home.path("report");
    let figures = home.json(&["demo", "--seconds", "6", "--report", report.to_str().unwrap()]);
    assert_eq!((&figures["done"], &figures["failed"]), (&12.into(), &0.into()), "{figures}");
    let links = figures["links"].as_array().unwrap();
    assert_eq!(links.len(), 4);
    let notes = figures["notes"].as_array().unwrap();
    for link in links {
        let contenders = link["contenders"].as_array().unwrap();
        let datapaths: Vec<&str> = contenders.iter().map(|c| c["datapath"].as_str().unwrap()).collect();
        if notes.is_empty() {
            assert_eq!(datapaths, ["ebpf", "kernel", "kernel"]);
        }
        for contender in contenders {
            // CUBIC recovers from a loss in a hundred as slowly as it does.
            assert!(contender["throughput_mbit_per_s"].as_f64().unwrap() > 1.0, "{link}");
        }
        assert!(contenders.iter().any(|c| c["best"] == true), "{link}");
        assert!(link["verdict"].as_str().unwrap().contains("best"), "{link}");
        assert!(link["decided"].as_str().unwrap().contains(" s"), "ours says what it did: {link}");
    }
    if !notes.is_empty() {
        ccplane_testing::skipped("the demo's kernel flows", format_args!("{notes:?}"));
    }
    let page = fs::read_to_string(report.join("demo.html")).unwrap();
    assert!(page.contains("figure class=\"glance\"") && page.contains("Beside CUBIC"));
    assert!(report.join("demo-charts/at-a-glance.svg").exists());
    assert!(!home.path("bpf").exists(), "the datapath is detached");
}

/// All three are simulated if nothing can be sent, and the first line of output says so.
#[test]
fn a_demo_without_privileges_or_namespaces_is_simulated_and_says_so() {
    let home = Home::new("");
    let report = home.path("report");
    // A user namespace in which no further one can be made, and no capability is left.
    let powerless = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    let run = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", powerless, "sh"]).args(arguments);
        command.env("CCPLANE_CONFIG", home.config()).output()
    };
    if !run(&["true"]).is_ok_and(|output| output.status.success()) {
        ccplane_testing::skipped(
            "the simulated demo",
            "no user namespace can be made, or unshare and setpriv are missing",
        );
        return;
    }
    let program = env!("CARGO_BIN_EXE_ccplane");
    let output =
        run(&[program, "demo", "--seconds", "6", "--json", "--report", report.to_str().unwrap()]).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(stderr(&output).contains("SIMULATED, nothing was sent"), "{}", stderr(&output));
    assert_eq!(figures["done"], 12);
    let page = fs::read_to_string(report.join("demo.html")).unwrap();
    assert!(page.contains("<h1>SIMULATED: "));
    for link in figures["links"].as_array().unwrap() {
        assert!(link["contenders"].as_array().unwrap().iter().all(|c| c["datapath"] == "sim"), "{link}");
        assert!(link["decided"].as_str().unwrap().contains("short queue"), "{link}");
    }
}

/// `trace`: what it prints, what it refuses, and from one command into another.
#[test]
fn traces_are_made_checked_converted_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let run = |arguments: &[&str]| {
        let output = ccplane(&[&["trace"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        stdout(&output)
    };
    let (wave, series) = (path("wave"), path("wave.csv"));
    run(&["generate", "step", "6,24", "--every-s", "2", "--duration-s", "20", "-o", &wave]);
    assert!(run(&["check", &wave]).ends_with("ok: 20.000 s, 24933 opportunities\n"));
    let summary: Value = serde_json::from_str(&run(&["summarise", "--json", &wave])).unwrap();
    assert!((summary["mean_mbit_per_s"].as_f64().unwrap() - 15.0).abs() < 0.01, "{summary}");
    assert_eq!(summary["windows"][1]["window_ms"], 1000);
    run(&["convert", "--to", "mbps", "--interval-ms", "1000", "--times", &wave, "-o", &series]);
    let back = path("back");
    run(&["convert", "--from", "mbps", &series, "-o", &back]);
    assert!(run(&["check", &back]).contains("ok: 20.000 s"));
    assert!(run(&["plot", &wave]).contains("Mb/s, 20.0 s"));
    assert!(run(&["plot", &wave, "-o", "-"]).ends_with("</svg>"));

    let model = path("model.toml");
    run(&["generate", "cellular", "--fit", &wave, "--print-model", "-o", &model]);
    let drawn = ["generate", "cellular", "--model", &model, "--seed", "3", "--duration-s", "30"];
    assert_eq!(run(&drawn), run(&drawn));

    let log = path("up.log");
    fs::write(&log, "# base timestamp: 5\n6 # 1504\n6 + 1504\n8 # 1504\n8 - 1504 2\n").unwrap();
    let figures: Value = serde_json::from_str(&run(&["log", "--json", &log])).unwrap();
    assert_eq!((&figures["utilisation"], &figures["queueing_delay_p95_ms"]), (&0.5.into(), &2.into()));

    fs::write(path("bad"), "1\n2\n1\n").unwrap();
    fs::write(path("bad.log"), "# base timestamp: 5\n6 ? 1504\n").unwrap();
    fs::write(path("bad.csv"), "1\n-2\n").unwrap();
    fs::write(path("zeros.csv"), "0\n0\n").unwrap();
    for (arguments, why) in [
        (&["check", &wave, &path("bad")][..], "bad:3: timestamp 1 ms comes after 2 ms"),
        (&["check", "/nonexistent"], "/nonexistent: No such file"),
        (&["log", &path("bad.log")], "bad.log:2: expected `MS + BYTES`"),
        (&["convert", "--from", "mbps", "--interval-ms", "5", &path("bad.csv")], "bad.csv:2: -2 is outside"),
        (
            &["convert", "--from", "mbps", "--interval-ms", "5", &path("zeros.csv")],
            "zeros.csv: the rate is 0 throughout",
        ),
        (&["convert", &wave], "--from"),
        (&["generate", "constant", "0"], "the rate is 0 throughout"),
        (&["generate", "constant", "fast"], "invalid value 'fast'"),
        (&["generate", "sawtooth", "9", "3"], "low: 9000000 is outside"),
        (&["generate", "cellular", "--model", &wave], "expected struct"),
    ] {
        let output = ccplane(&[&["trace"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
    }
}

/// Few flows under two contenders, three times.
const FABRIC: &str = r#"kind = "load-balancing"
title = "t"
hosts = 8
rate_gbit = 10
agent_latency_us = 50
sizes = ["web-search"]
largest_flow_mb = 1
uplinks = ["slow"]
load_percent = [50]
contenders = ["ecmp", "path"]
repeats = 3
flows = 20
warm_up_flows = 5
"#;

#[test]
fn a_plan_of_a_fabric_goes_on_where_its_results_end_and_says_what_is_wrong() {
    let home = Home::new("");
    let (plan, out) = (home.path("p.toml"), home.path("out"));
    fs::write(&plan, FABRIC).unwrap();
    let run = |more: &[&str]| {
        let fixed = ["run", plan.to_str().unwrap(), "--results", out.to_str().unwrap()];
        ccplane(&[&fixed[..], more].concat())
    };
    let few = run(&["--repeats", "1"]);
    assert!(few.status.success(), "{}", stderr(&few));
    assert!(stdout(&few).contains("2 of 2 runs in"), "{}", stdout(&few));
    let file = out.join("p.jsonl");
    let first = ccplane_results::read(&file).unwrap();
    let all = run(&["--json"]);
    let said: Value = serde_json::from_slice(&all.stdout).unwrap();
    assert_eq!((said["runs"].as_u64(), said["done"].as_u64()), (Some(6), Some(6)), "{said}");
    assert!(stderr(&all).contains("2 of 6 runs are in"), "{}", stderr(&all));
    let results = ccplane_results::read(&file).unwrap();
    assert_eq!(results.runs[..2], first.runs);
    for run in &results.runs {
        let ccplane_results::RunOutcome::Ok(measured) = &run.outcome else { panic!("{run:?}") };
        let flows = measured.fabric.as_ref().unwrap();
        assert_eq!((flows.bytes.len(), flows.fct_ns.len(), flows.unfinished.len()), (20, 20, 0));
        assert!(flows.fct_ns.iter().all(|ns| *ns > 10_000), "{flows:?}");
    }
    let page = fs::read_to_string(out.join("p.html")).unwrap();
    assert!(page.contains("web-search, slow uplink") && page.contains("<svg"));
    assert_eq!(fs::read_to_string(out.join("p.csv")).unwrap().lines().count(), 1 + 3 * 6);

    fs::write(&plan, FABRIC.replace("flows = 20", "flows = 21")).unwrap();
    assert!(stderr(&run(&[])).contains("another plan"));
    fs::write(&plan, FABRIC.replace("\"path\"", "\"pathos\"")).unwrap();
    let wrong = run(&[]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("p.toml:10:"), "{}", stderr(&wrong));
    assert!(stderr(&wrong).contains("contenders[1]: must be one of ecmp"), "{}", stderr(&wrong));
}

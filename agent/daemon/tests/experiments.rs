//! `sim`, `demo`, `bench`, `mm-delay` and `mm-link` as processes.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Home, ccplane, stderr, stdout};
use serde_json::Value;
use std::fs;

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
    for (arguments, why) in [
        (&["sim", "nope"][..], "no algorithm `nope`"),
        (&["sim", "reno", "--trace", trace], &place),
        (&["sim", "--loss", "2"], "a share, 0 to 1"),
        (&["sim", "--flows", "0"], "1..=1024"),
        (&["sim", "--rate-mbit", "5", "--trace", trace], "cannot be used with"),
        (&["demo", "--trace", trace], &place),
        (&["mm-link", trace, trace, "true"], &place),
        (&["mm-delay", "99999999", "true"], "delay"),
        (&["bench", "nope"], "no benchmark is called `nope`"),
        (&["bench"], "NAME"),
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
        assert!(list.contains(bench.name) && bench.seconds < 60, "{list}");
    }
}

#[test]
fn link_shells_return_as_their_command_does() {
    if let Some(missing) = ccplane_runner::demo::missing_for_links().first() {
        eprintln!("SKIPPED: link_shells_return_as_their_command_does: {missing}");
        return;
    }
    for (command, code) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143)] {
        let output = ccplane(&["mm-delay", "5", "sh", "-c", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", stderr(&output));
    }
    let output = ccplane(&["mm-delay", "1", "sh", "-c", "echo $MAHIMAHI_BASE"]);
    assert!(stdout(&output).starts_with("100."), "{}", stdout(&output));
}

/// The whole demo, shortened: every flow it plans is in the report, or a note says why it is not.
#[test]
fn demo_shows_kernel_fold_and_simulated_flows() {
    let home = Home::new("");
    let run_dir = home.dir().display();
    home.configure(&format!("datapath.ebpf.name = \"ccd_demo\"\ndatapath.ebpf.run_dir = \"{run_dir}\"\n"));
    let report = home.path("report");
    let figures = home.json(&["demo", "--phase-s", "2", "--report", report.to_str().unwrap()]);
    let names: Vec<&str> =
        figures["flows"].as_array().unwrap().iter().map(|f| f["flow"].as_str().unwrap()).collect();
    assert!(names.contains(&"reno ccplane sim") && names.contains(&"cubic ccplane sim"), "{names:?}");
    let notes = figures["notes"].as_array().unwrap();
    if notes.is_empty() {
        assert!(names.contains(&"reno ccplane ebpf") && names.contains(&"cubic kernel native"), "{names:?}");
        for flow in figures["flows"].as_array().unwrap() {
            assert!(flow["throughput_mbit_per_s"].as_f64().unwrap() > 3.0, "{flow}");
        }
    } else {
        eprintln!("SKIPPED: the demo's kernel flows: {notes:?}");
    }
    assert!(fs::read_to_string(report.join("demo.html")).unwrap().contains("reno ccplane sim"));
    assert!(!home.path("bpf").exists(), "the datapath is detached");
}

//! `ccplane league --live`: drawn links repeated by kernel flows, to their end and interrupted.

use crate::common::{Home, as_nobody, is_registered, stderr, stdout, wait_for};
use crate::evaluate::home;
use ccplane_league::Cell;
use ccplane_results::{RunFigures, RunOutcome};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// A link of 18.8 Mb/s: both contenders have one at once.
const LINK: &str = "steady/validation/2";
const LEAGUE: [&str; 7] = ["league", "--link", LINK, "--algorithm", "reno,copa", "--live", "1"];

fn lab(check: &str) -> Option<Home> {
    let home = home(check)?;
    if ccplane_testing::lacks(check, ccplane_ebpf::missing()) {
        return None;
    }
    Some(home)
}

/// The kernel's cells stand beside the simulated ones, and their flows were steered by the program.
#[test]
fn a_link_is_repeated_by_kernel_flows_and_compared() {
    let Some(home) = lab("league") else { return };
    let done = home.command(&[&LEAGUE[..], &["--json"]].concat()).current_dir(home.dir()).output().unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    let ranked: Value = serde_json::from_str(&stdout(&done)).unwrap();
    let live = &ranked["live"];
    assert_eq!(live["runs"], 2, "{}", stderr(&done));
    for pair in live["pairs"].as_array().unwrap() {
        // Wide, since the machine is shared: that the two agree is no test's business.
        let ratio = pair["throughput"].as_f64().unwrap();
        assert!((0.5..2.0).contains(&ratio), "{pair}");
    }
    let names: Vec<&str> =
        live["standings"].as_array().unwrap().iter().filter_map(|both| both["algorithm"].as_str()).collect();
    assert!(names.len() == 2 && names.contains(&"reno") && names.contains(&"copa"), "{names:?}");
    let lines = fs::read_to_string(home.path("results/league-live.jsonl")).unwrap();
    let cells: Vec<Cell> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(cells.len() == 2 && cells.iter().all(|cell| cell.link == LINK), "{cells:?}");

    let kept = ccplane_results::read(&home.path(&format!("results/live/{LINK}/runs.jsonl"))).unwrap();
    let steered = |measured: &RunFigures| measured.agent.is_some_and(|agent| agent.unsteered_flows == 0);
    for run in &kept.runs {
        match &run.outcome {
            RunOutcome::Ok(measured) => assert!(steered(measured), "{}: {:?}", run.contender, measured.agent),
            RunOutcome::Failed { error } => panic!("{}: {error}", run.contender),
        }
    }
}

/// The question takes no time, and with `--final` it comes before a use is written down.
#[test]
fn what_kernel_flows_lack_is_said_before_anything_is_simulated() {
    let Some(home) = lab("lgasks") else { return };
    let bpf = fs::read_to_string("/proc/sys/kernel/unprivileged_bpf_disabled").unwrap_or_default();
    if bpf.trim() == "0" {
        return ccplane_testing::skipped("what kernel flows lack", "every user may load BPF");
    }
    fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o711)).unwrap();
    let refused = as_nobody(|| home.command(&LEAGUE).current_dir(home.dir()).output().unwrap());
    let said = stderr(&refused);
    assert!(!refused.status.success() && stdout(&refused).is_empty(), "{said}");
    assert!(said.contains("emulated links need") && said.contains("permission to load BPF"), "{said}");
}

/// The simulated tables are shown and kept, and the kernel has no datapath of it any more.
#[test]
fn an_interrupted_league_takes_its_datapath_away_and_keeps_what_it_simulated() {
    let Some(home) = lab("lghalt") else { return };
    let mut command = home.command(&LEAGUE);
    command.current_dir(home.dir()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    wait_for("the kernel's datapath", || is_registered("ccd_lghalt").then_some(()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stdout(&output));
    assert!(stdout(&output).contains("alone on wired links: won %"), "{}", stdout(&output));
    assert!(!is_registered("ccd_lghalt"));
    let cells = fs::read_to_string(home.path("results/league.jsonl")).unwrap();
    assert_eq!(cells.lines().count(), 2);
}

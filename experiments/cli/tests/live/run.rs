//! `ccplane run` as a process: refusals, interruptions, failing runs, flows that are really steered.

use crate::common::{Home, ccplane, stderr, stdout, wait_for};
use ccplane_results::{Results, RunFigures, RunOutcome};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Three runs of a second.
const PLAN: &str = r#"title = "t"
duration_s = 1
repeats = 3
[[link]]
rate_mbit = 12
delay_ms = 2
[[algorithm]]
algorithm = "reno"
datapath = "kernel"
"#;

struct Lab(Home);

impl Lab {
    /// Writes `p.toml`. Returns none, and reports a skip, where no link can be made.
    fn new(test: &str, plan: &str) -> Option<Lab> {
        if ccplane_testing::lacks(test, ccplane_runner::missing_for_links().first()) {
            return None;
        }
        let home = Home::new("");
        let run_dir = home.dir().display();
        home.configure(&format!(
            "datapath.ebpf.name = \"ccd_{test}\"\ndatapath.ebpf.run_dir = \"{run_dir}\"\n"
        ));
        fs::write(home.path("p.toml"), plan).unwrap();
        Some(Lab(home))
    }

    fn command(&self) -> Command {
        let mut command = self.0.command(&["run", "p.toml", "--results", "out"]);
        command.current_dir(self.0.dir());
        command
    }

    fn run(&self) -> Output {
        self.command().output().unwrap()
    }

    fn spawn(&self) -> Child {
        self.command().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn results(&self) -> Option<Results> {
        ccplane_results::read(&self.0.path("out/p.jsonl")).ok()
    }

    /// Each run's attempt, and whether it ended well.
    fn attempts(&self) -> Vec<(u32, bool)> {
        let runs = self.results().unwrap().runs;
        runs.iter().map(|r| (r.attempt, matches!(r.outcome, RunOutcome::Ok(_)))).collect()
    }

    fn measured(&self) -> Vec<RunFigures> {
        let ok = |outcome| match outcome {
            RunOutcome::Ok(measured) => *measured,
            RunOutcome::Failed { error } => panic!("{error}"),
        };
        self.results().unwrap().runs.into_iter().map(|r| ok(r.outcome)).collect()
    }
}

fn namespaces_of(pid: u32) -> Vec<String> {
    let prefix = format!("ccp-{pid}-");
    let Ok(entries) = fs::read_dir("/run/netns") else { return Vec::new() };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn wrong_plans_end_with_2_and_start_nothing() {
    let home = Home::new("");
    let file = home.path("bad.toml");
    fs::write(&file, PLAN.replace("12", "-12")).unwrap();
    let results = home.path("out");
    let arguments = ["run", file.to_str().unwrap(), "--results", results.to_str().unwrap()];
    let output = ccplane(&arguments);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("bad.toml:5:13: link[0].rate_mbit: -12 is out of range: 0.001 to 10000"), "{said}");
    assert!(!results.exists());
    for (arguments, why) in [
        (&["run", "nosuch"][..], "no file `nosuch`, and no plan of that name"),
        (&["run"], "required arguments were not provided"),
        (&["run", "quickstart", "--quick", "--repeats", "3"], "cannot be used with"),
        (&["run", "--show", "nosuch"], "there are: quickstart"),
    ] {
        let output = ccplane(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn shipped_plans_are_listed_shown_and_checked() {
    let list = stdout(&ccplane(&["run", "--list"]));
    for plan in ccplane_runner::plan::shipped::PLANS {
        assert!(list.contains(plan.name), "{list}");
    }
    let shown = stdout(&ccplane(&["run", "--show", "quickstart"]));
    assert_eq!(shown, ccplane_runner::plan::shipped::PLANS[0].source);
    let checked = stdout(&ccplane(&["run", "low-rtt-incast", "--check"]));
    assert!(checked.contains("10000 Mb/s, 0.01 ms, senders 25") && checked.contains("60 runs"), "{checked}");
}

#[test]
fn interrupted_and_killed_plans_go_on_and_leave_no_namespace() {
    // Each run lasts far longer than it takes to notice that the one before it has ended.
    let Some(lab) = Lab::new("halt", &PLAN.replace("duration_s = 1", "duration_s = 4")) else { return };
    let runs = |n: usize| wait_for("runs end", || lab.results().filter(|r| r.runs.len() >= n));

    let child = lab.spawn();
    let pid = child.id();
    runs(1);
    kill(Pid::from_raw(pid as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stdout(&output));
    assert!(stdout(&output).contains("1 of 3 runs in") && stdout(&output).contains("to go on: "));
    assert_eq!(namespaces_of(pid), [""; 0]);

    let mut child = lab.spawn();
    let killed = child.id();
    runs(2);
    child.kill().unwrap();
    child.wait().unwrap();
    // The crash may also have cut a line.
    let path = lab.0.path("out/p.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text + "{\"record\":\"ru").unwrap();

    let output = lab.run();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("2 of 3 runs are in out/p.jsonl already"), "{}", stderr(&output));
    assert_eq!(lab.attempts(), [(1, true); 3]);
    assert!(lab.0.path("out/p.html").exists());
    assert_eq!(namespaces_of(killed), [""; 0]);
    let header = lab.results().unwrap().header;
    assert!(
        header.host.kernel.starts_with("Linux ") && header.host.sysctls.contains_key("net.ipv4.tcp_rmem")
    );
}

/// A program before the real iperf3 in the PATH, whose clients kill themselves: the first, or all.
fn sick_iperf3(directory: &Path, all: bool) {
    let first = if all { "true" } else { "mkdir \"$0.first\" 2>/dev/null" };
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--client*) {first} && kill -9 $$;; esac\nPATH=${{PATH#*:}} exec iperf3 \"$@\"\n"
    );
    let path = directory.join("iperf3");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_failed_run_is_recorded_and_tried_once_more() {
    let plan = PLAN.replace("repeats = 3", "repeats = 1") + "[traffic]\ntool = \"iperf3\"\nflows = 2\n";
    let Some(lab) = Lab::new("fail", &plan) else { return };
    if Command::new("iperf3").arg("--version").output().is_err() {
        ccplane_testing::skipped("a_failed_run_is_recorded_and_tried_once_more", "iperf3 is not installed");
        return;
    }
    let path = format!("{}:{}", lab.0.dir().display(), std::env::var("PATH").unwrap());
    sick_iperf3(lab.0.dir(), true);
    let output = lab.command().env("PATH", &path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(lab.attempts(), [(1, false), (2, false)]);
    let runs = lab.results().unwrap().runs;
    assert_eq!(runs[0].outcome, RunOutcome::Failed { error: "iperf3: signal: 9 (SIGKILL)".to_owned() });

    sick_iperf3(lab.0.dir(), false);
    let output = lab.command().env("PATH", &path).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(lab.attempts(), [(1, false), (2, false), (3, false), (4, true)]);
    let runs = lab.results().unwrap().runs;
    let RunOutcome::Ok(measured) = &runs[3].outcome else { panic!("{runs:?}") };
    assert_eq!(measured.flows.len(), 2);
    let bps: u64 = measured.flows.iter().map(|f| f.throughput_bps).sum();
    assert!((2_000_000..16_000_000).contains(&bps), "{bps}");
    assert!(measured.flows.iter().all(|f| f.series.t_ms.len() > 3 && f.min_rtt_us >= 4_000), "{measured:?}");
    assert!(measured.iperf3.as_ref().unwrap()["end"]["sum_sent"]["bytes"].as_u64().unwrap() > 0);
    assert!(measured.cpu.is_some_and(|c| c.idle_ms + c.system_ms + c.user_ms > 500));
}

#[test]
fn programs_steer_bulk_short_and_background_flows() {
    let plan = PLAN
        .replace("repeats = 3", "repeats = 1")
        .replace("duration_s = 1", "duration_s = 4")
        // Room for all: a SYN that is dropped takes a second.
        .replace("delay_ms = 2", "delay_ms = 2\nqueue_packets = 1000")
        + "name = \"native\"\n[[algorithm]]\nalgorithm = \"cubic\"\ndatapath = \"ebpf\"\n\
           parameters = { report_us = 20_000 }\n[[background]]\nalgorithm = \"reno\"\ndatapath = \"ebpf\"\n\
           start_s = 0.5\nstop_s = 1.5\n[traffic]\nkind = \"short-flows\"\nbytes = 20_000\n";
    let Some(lab) = Lab::new("steer", &plan) else { return };
    if ccplane_testing::lacks("programs_steer_bulk_short_and_background_flows", ccplane_ebpf::missing()) {
        return;
    }
    let output = lab.run();
    assert!(output.status.success(), "{}", stderr(&output));
    let [native, ours] = &lab.measured()[..] else { panic!("two runs") };
    for measured in [native, ours] {
        let completions = measured.completions.as_ref().unwrap();
        // Half of 12 Mb/s for four seconds are 150 flows; all have the time to complete.
        assert!((80..220).contains(&completions.flows.len()), "{}", completions.flows.len());
        assert_eq!(completions.unfinished, 0);
        assert!(completions.flows.iter().all(|f| f.bytes == 20_000 && f.fct_us > 8_000));
        let background = &measured.flows[0];
        assert_eq!(background.background.as_deref(), Some("reno"));
        let (from, until) = (background.start_ms, background.end_ms);
        assert!((500..1_500).contains(&from) && (1_500..3_000).contains(&until), "{background:?}");
        let agent = measured.agent.unwrap();
        assert_eq!(agent.unsteered_flows, 0, "{agent:?}");
        assert!(agent.reports > 0);
    }
    let arrivals = |m: &RunFigures| m.completions.as_ref().unwrap().flows.len();
    assert_eq!(arrivals(native), arrivals(ours), "the same flows for both");
    assert!(!lab.0.path("bpf").exists(), "the datapath is detached");
}

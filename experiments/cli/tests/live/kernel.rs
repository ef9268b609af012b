//! The agent with the kernel's datapath, on live TCP flows over an emulated link: what happens to them when the agent
//! is killed, hangs, or stops.

use crate::common::lab::{
    LABS, LINK_MBIT, Lab, SAMPLE_EVERY, acked, acked_at_least, assert_never_stalled, kill_9, mishap, sample,
    wait_until_full,
};
use crate::common::{Agent, Home, as_nobody, failed, is_registered, stderr, stdout, wait_for};
use ccplane_emulator::{Direction, Loss};
use ccplane_runner::traffic::BulkFlow;
use ccplane_testing::STALL;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time for which throughput is measured before and after a mishap.
const WINDOW: Duration = Duration::from_secs(10);
/// Tries of a measurement that other work on the machine may spoil.
const TRIES: u32 = 6;

/// An agent and a flow that it steers, which fills its link.
fn filled(test: &str, algorithm: &str) -> Option<(Lab, Agent, BulkFlow)> {
    let lab = Lab::new(test, algorithm)?;
    let agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    wait_until_full(&flow);
    Some((lab, agent, flow))
}

fn a_flow_survives_kill_9_and_the_next_agent_adopts_it() -> Option<()> {
    let (lab, agent, flow) = filled("kill9", "cubic")?;
    let possible = u64::from(LINK_MBIT) * 125_000 * WINDOW.as_secs();
    let before = acked_at_least("a filled link", &flow, WINDOW, possible * 8 / 10, TRIES);
    assert!(lab.home.log().contains(&lab.attached(0)), "{}", lab.home.log());
    let killed = mishap(&flow, "kill -9");
    kill_9(agent);
    let after = acked_at_least("throughput after kill -9", &flow, WINDOW, before * 95 / 100, TRIES);
    eprintln!("kill -9: {before} bytes acknowledged in {WINDOW:?} before, {after} after");

    let flows = lab.flows();
    assert!(flows["silent"]["pid"].is_null(), "{flows}");
    assert_eq!(flows["flows"][0]["mode"], "native_agent_silent");
    let text = stdout(&lab.home.run(&["flows"]));
    assert!(text.starts_with("no agent runs: native fallback"), "{text}");

    let adopted = mishap(&flow, "the next agent");
    let next = lab.home.agent();
    assert!(lab.home.log().contains(&lab.attached(1)), "{}", lab.home.log());
    lab.wait_for_mode("program");
    assert_eq!(lab.flows()["flows"][0]["algorithm"], "cubic");
    let reports = || lab.flows()["flows"][0]["reports"].as_u64().unwrap();
    let so_far = reports();
    wait_for("the adopted flow reports", || (reports() > so_far).then_some(()));
    assert_never_stalled(flow, &[killed, adopted]);
    drop(next);
    Some(())
}

/// The receiving side of a connection: its program is set when it starts, and starts when it has sent something.
#[test]
fn a_flow_that_sends_nothing_is_said_to_wait_for_its_first_ack() {
    let Some(lab) = Lab::new("passive", "reno") else { return };
    let agent = lab.home.agent();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    setsockopt(&listener, sockopt::TcpCongestion, &lab.name.clone().into()).unwrap();
    let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut flow, _) = listener.accept().unwrap();
    let record = || lab.flows()["flows"][0].clone();
    wait_for("its program is set", || (record()["waits_for_ack"] == true).then_some(()));
    assert_eq!((&record()["mode"], &record()["program"]), (&"native_no_program".into(), &"reno".into()));
    let text = stdout(&lab.home.run(&["flows"]));
    assert!(text.contains("program (no ACK yet)"), "{text}");

    kill_9(agent);
    lab.wait_for_mode("native_agent_silent");
    let _next = lab.home.agent();
    wait_for("its program is set again", || (record()["waits_for_ack"] == true).then_some(()));
    flow.write_all(b"x").unwrap();
    lab.wait_for_mode("program");
    assert!(record()["waits_for_ack"].is_null(), "{}", record());
}

/// The kernel takes up to a second to verify a program. Flows that start meanwhile would begin under the native algorithm.
#[test]
fn programs_are_in_the_kernel_before_the_agent_says_that_it_runs() {
    let Some(lab) = Lab::new("prompt", "dual") else { return };
    let (_agent, at_start, flow) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            wait_for("the agent says that it runs", || lab.home.log().contains("agent runs").then_some(()));
            (programs(&lab), lab.flow())
        });
        let agent = lab.home.agent();
        let (at_start, flow) = watching.join().unwrap();
        (agent, at_start, flow)
    });
    lab.wait_for_mode("program");
    assert_eq!(lab.flows()["flows"][0]["program"], "dual");
    let later = programs(&lab);
    assert!(!later.is_empty());
    assert_eq!(at_start, later, "the flow's program was there before the flow");
    drop(flow);
}

/// The programs that the kernel can call, each with its slot. The kernel is asked, since the agent would answer only between two turns.
fn programs(lab: &Lab) -> Vec<(u32, u32)> {
    const MAP_LOOKUP: libc::c_long = 1;
    const GET_PINNED: libc::c_long = 7;
    let bpf = |command: libc::c_long, attributes: &[u64; 4]| {
        // SAFETY: the attributes hold addresses of values that outlive the call, and the kernel reads no more than it is told.
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) }
    };
    let path = CString::new(lab.pin_dir().join("slots").into_os_string().into_vec()).unwrap();
    let map = bpf(GET_PINNED, &[path.as_ptr() as u64, 0, 0, 0]);
    assert!(map >= 0, "{path:?}: {}", std::io::Error::last_os_error());
    // SAFETY: the call has just made this descriptor, and nobody else owns it.
    let map = unsafe { OwnedFd::from_raw_fd(map as i32) };
    let lookup = |slot: u32| {
        let mut program = 0_u32;
        let (key, value) = (&raw const slot as u64, &raw mut program as u64);
        let found = bpf(MAP_LOOKUP, &[map.as_raw_fd() as u64, key, value, 0]);
        (found == 0).then_some((slot, program))
    };
    (0..ccplane_ebpf::MAX_PROGRAMS as u32).filter_map(lookup).collect()
}

fn a_hung_agents_flow_runs_natively_and_flows_says_so() -> Option<()> {
    let (lab, agent, flow) = filled("hung", "reno")?;
    let before = acked(&flow, WINDOW);
    let hung = mishap(&flow, "SIGSTOP");
    agent.signal(Signal::SIGSTOP);
    let after = acked_at_least("throughput after SIGSTOP", &flow, WINDOW, before * 95 / 100, TRIES);
    eprintln!("SIGSTOP: {before} bytes acknowledged in {WINDOW:?} before, {after} after");
    let text = stdout(&lab.home.run(&["flows"]));
    let said = format!("agent pid {} has been silent for ", agent.pid());
    assert!(text.starts_with(&said) && text.contains("native: agent silent for "), "{text}");
    assert_eq!(lab.flows()["flows"][0]["mode"], "native_agent_silent");
    // Of a flow that ends meanwhile the agent never hears.
    drop(lab.flow());
    wait_for("it is gone", || (lab.flows()["flows"].as_array()?.len() == 1).then_some(()));

    let woken = mishap(&flow, "SIGCONT");
    agent.signal(Signal::SIGCONT);
    wait_for("the agent answers again", || lab.flows()["silent"].is_null().then_some(()));
    lab.wait_for_mode("program");
    assert_eq!(lab.home.json(&["status"])["counters"]["unseen_flows"], 1);
    let text = stdout(&lab.home.run(&["flows"]));
    assert!(text.ends_with("\n1 more ended before the agent heard of them\n"), "{text}");
    assert_never_stalled(flow, &[hung, woken]);
    Some(())
}

fn a_stopped_agent_leaves_the_kernel_as_it_was() -> Option<()> {
    let lab = Lab::new("stop", "cubic")?;
    let mut agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    let text = stdout(&lab.home.run(&["flows"]));
    assert!(text.contains("ebpf") && text.contains("cubic") && text.contains("cwnd:"), "{text}");
    let stopped = mishap(&flow, "SIGTERM");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait(), Some(0), "{}", lab.home.log());
    assert!(!lab.pin_dir().exists() && !lab.home.path("bpf").exists());
    assert_never_stalled(flow, &[stopped]);
    wait_for("the congestion control is gone", || (!lab.is_registered()).then_some(()));
    Some(())
}

/// Neither a client nor a file can be opened for it; flows need none.
fn an_agent_out_of_descriptors_steers_on_and_stops_clean() -> Option<()> {
    let lab = Lab::with("fds", "reno", "agent.heartbeat_timeout_ms = 1000\ncontrol.timeout_ms = 1000\n")?;
    let mut agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    let limit = |count: usize| {
        let process = ["--pid", &agent.pid().to_string()].map(str::to_owned);
        let limited = Command::new("prlimit").args(process).arg(format!("--nofile={count}:")).status();
        assert!(limited.unwrap().success());
    };
    let open = || -> BTreeSet<usize> {
        let numbers = fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
        numbers.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    };
    // The number that the next descriptor would have is the first that it may not have.
    let exhaust = || {
        // Those of commands that were answered go a moment later.
        let at_rest = wait_for("descriptors at rest", || {
            let before = open();
            std::thread::sleep(Duration::from_millis(200));
            (open() == before).then_some(before)
        });
        limit((0..).find(|number| !at_rest.contains(number)).unwrap());
    };

    let exhausted = mishap(&flow, "no descriptor left");
    exhaust();
    let status = lab.home.run(&["status"]);
    let said = format!("agent pid {} has not answered for 1s", agent.pid());
    assert!(status.status.code() == Some(1) && stderr(&status).contains(&said), "{}", stderr(&status));
    let another = lab.flow();
    // Seen without the agent, in what it has pinned.
    let modes = || -> Vec<String> {
        let flows = lab.flows()["flows"].as_array().unwrap().clone();
        flows.iter().map(|flow| flow["mode"].as_str().unwrap().to_owned()).collect()
    };
    wait_for("another flow is steered", || (modes() == ["program"; 2]).then_some(()));
    wait_for("the log tells", || lab.home.log().contains("accept on the control socket").then_some(()));

    let enough = mishap(&flow, "descriptors again");
    limit(1024);
    wait_for("the agent answers again", || lab.home.run(&["status"]).status.success().then_some(()));
    assert_eq!(lab.flows()["flows"].as_array().unwrap().len(), 2);

    exhaust();
    let stopped = mishap(&flow, "SIGTERM without a descriptor left");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait(), Some(0), "{}", lab.home.log());
    assert!(!lab.pin_dir().exists() && !lab.home.path("bpf").exists());
    assert_never_stalled(flow, &[exhausted, enough, stopped]);
    drop(another);
    wait_for("the congestion control is gone", || (!lab.is_registered()).then_some(()));
    Some(())
}

fn doctor_removes_what_a_killed_agent_left() -> Option<()> {
    let lab = Lab::new("clean", "reno")?;
    let agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    let killed = mishap(&flow, "kill -9");
    kill_9(agent);
    assert!(lab.is_registered());
    let cleaned = mishap(&flow, "doctor --clean");
    let output = lab.home.run(&["doctor", "--clean", "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!said["cleaned"]["removed"].as_array().unwrap().is_empty(), "{said}");
    assert!(!lab.home.path("control.sock").exists() && !lab.home.path("bpf").exists());
    assert_never_stalled(flow, &[killed, cleaned]);
    wait_for("the congestion control is gone", || (!lab.is_registered()).then_some(()));
    let output = lab.home.run(&["flows"]);
    assert!(stderr(&output).contains("no agent runs"), "{}", stderr(&output));
    Some(())
}

#[test]
fn running_flows_of_another_congestion_control_are_adopted() {
    let Some(lab) = Lab::new("adopt", "cubic") else { return };
    let _agent = lab.home.agent();
    let flow = lab.flow_of("reno");
    assert_eq!(lab.flows()["flows"].as_array().unwrap().len(), 0);
    // A process inside is what names the namespace.
    let mut sleep = Command::new("sleep");
    let mut inside = lab.link.sender_ns().enter(sleep.arg("60")).unwrap().spawn().unwrap();
    let netns = format!("/proc/{}/ns/net", inside.id());
    let output = lab.home.run(&["adopt", "reno", "--netns", &netns]);
    inside.kill().unwrap();
    inside.wait().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "1 flows adopted\n");
    lab.wait_for_mode("program");
    drop(flow);
}

#[test]
fn a_second_agent_elsewhere_does_not_take_the_kernels_flows() {
    let Some(lab) = Lab::new("two", "reno") else { return };
    let agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    let elsewhere = Home::new("");
    let configure = |mode: &str, name: &str, run_dir: &Path| {
        let run_dir = run_dir.display();
        elsewhere.configure(&format!(
            "datapath.ebpf.mode = \"{mode}\"\ndatapath.ebpf.name = \"{name}\"\n\
             datapath.ebpf.run_dir = \"{run_dir}\"\n"
        ));
    };
    let refused = |said: &str| said.contains("another agent") && said.contains(&agent.pid().to_string());
    // The name or the run directory of the first one is enough.
    for (name, run_dir) in [(&*lab.name, elsewhere.dir()), ("ccd_other", lab.home.dir())] {
        configure("on", name, run_dir);
        let output = elsewhere.run(&["agent"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(refused(&stderr(&output)), "{}", stderr(&output));
        let output = elsewhere.run(&["doctor", "--clean"]);
        assert_eq!(output.status.code(), Some(1), "nothing is cleaned from under a live agent");
        assert!(refused(&stderr(&output)), "{}", stderr(&output));
    }
    configure("auto", &lab.name, elsewhere.dir());
    let without = elsewhere.agent();
    let said = elsewhere.log();
    assert!(said.contains("kernel datapath off") && refused(&said), "{said}");
    assert_eq!(elsewhere.json(&["status"])["datapaths"], serde_json::json!([]));
    drop(without);
    assert_eq!(lab.flows()["flows"][0]["mode"], "program");
    drop(flow);
}

/// Other users cannot use the programs that are pinned for the next agent: with ccp-kernel any user's datagram replaces all
/// programs.
#[test]
fn another_user_cannot_reach_the_kernels_programs() {
    /// `BPF_PROG_GET_NEXT_ID` of bpf(2): with it come all programs and maps of the machine.
    const NEXT_PROGRAM: libc::c_long = 11;
    let Some(lab) = Lab::new("stranger", "reno") else { return };
    let _agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    let pins: Vec<_> = fs::read_dir(lab.pin_dir()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!pins.is_empty());
    // As far as file modes of directories that are not ours can help them.
    fs::set_permissions(lab.home.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    as_nobody(|| {
        assert_eq!(fs::read_dir(lab.pin_dir()).unwrap_err().kind(), ErrorKind::PermissionDenied);
        for pin in &pins {
            assert_eq!(
                fs::metadata(pin).unwrap_err().kind(),
                ErrorKind::PermissionDenied,
                "{}",
                pin.display()
            );
        }
        let mut attributes = [0_u32; 3];
        // SAFETY: the kernel reads and writes as many bytes of the array as it is told.
        let next = unsafe {
            libc::syscall(libc::SYS_bpf, NEXT_PROGRAM, attributes.as_mut_ptr(), size_of_val(&attributes))
        };
        assert_eq!((next, std::io::Error::last_os_error().kind()), (-1, ErrorKind::PermissionDenied));
    });
    fs::set_permissions(lab.home.dir(), fs::Permissions::from_mode(0o700)).unwrap();
    let reports = || lab.flows()["flows"][0]["reports"].as_u64().unwrap();
    let so_far = reports();
    wait_for("the program goes on", || (reports() > so_far).then_some(()));
    lab.wait_for_mode("program");
    drop(flow);
}

/// Records of a qlog trace in JSON-SEQ.
fn records(trace: &str) -> Vec<serde_json::Value> {
    let records = trace.split('\u{1e}').skip(1);
    records.map(|r| serde_json::from_str(r.strip_suffix('\n').unwrap()).unwrap()).collect()
}

#[test]
fn a_flow_is_measured_and_traced_until_it_ends() {
    let Some(lab) = Lab::new("qlog", "ccp-reno") else { return };
    let config = fs::read_to_string(lab.home.config()).unwrap();
    fs::write(lab.home.config(), format!("{config}metrics.listen = \"127.0.0.1:0\"\n")).unwrap();
    let _agent = lab.home.agent();
    let flow = lab.flow();
    lab.wait_for_mode("program");
    let listed = lab.flows()["flows"].as_array().unwrap().clone();
    let sender = listed.iter().find(|f| f["local"] == flow.local().to_string()).unwrap();
    let number = sender["flow"].as_u64().unwrap().to_string();

    let file = lab.home.path("flow.qlog");
    let mut tracing = lab.home.command(&["qlog", &number, "-o"]).arg(&file).spawn().unwrap();
    wait_for("records come", || (fs::read_to_string(&file).ok()?.len() > 20_000).then_some(()));
    let log = lab.home.log();
    let address = log.split("metrics served address=").nth(1).unwrap().split_whitespace().next().unwrap();
    let scraped = wait_for("the flow is counted", || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
        text.contains("ccplane_packets_delivered_total{datapath=\"ebpf\",algorithm=\"ccp-reno\"}")
            .then_some(text)
    });
    for family in ["ccplane_updates_total", "ccplane_srtt_seconds_count", "ccplane_handling_seconds_bucket"] {
        assert!(scraped.contains(family), "{family}: {scraped}");
    }
    assert!(!scraped.contains(&flow.local().port().to_string()), "never by flow");

    drop(flow);
    let ended = wait_for("the trace ends with the flow", || tracing.try_wait().unwrap());
    assert!(ended.success());
    let trace = records(&fs::read_to_string(&file).unwrap());
    assert_eq!(trace[0]["qlog_format"], "JSON-SEQ");
    let named = |name: &str| trace.iter().filter(|r| r["name"] == name).collect::<Vec<_>>();
    assert_eq!(named("ccplane:flow_started").len(), 1);
    assert_eq!(trace.last().unwrap()["name"], "ccplane:flow_ended");
    let reports = named("ccplane:report");
    assert!(reports.len() > 10, "{} reports", reports.len());
    assert!(reports.iter().all(|r| r["data"]["registers"]["rtt_us"].as_i64().is_some()), "{reports:?}");
    let metrics = named("recovery:metrics_updated");
    assert!(
        metrics.iter().any(|m| m["data"]["congestion_window"].as_u64().unwrap() > 0
            && m["data"]["smoothed_rtt"].as_f64().unwrap_or(0.0) >= 20.0),
        "{metrics:?}"
    );
    assert!(!named("ccplane:fields_updated").is_empty());
    failed(&lab.home.run(&["qlog", "999999"]), 1, "there is no such flow");
}

/// The check of the bound on stalls finds a stall that is longer.
#[test]
fn a_stall_of_a_live_flow_is_found() {
    let Some(lab) = Lab::new("stalls", "reno") else { return };
    let flow = lab.flow_of("reno");
    let acked = || sample(&flow).info.bytes_acked;
    let dark = |probability| lab.link.set_loss(Direction::Up, Loss { probability, seed: 1 }).unwrap();
    wait_for("the flow runs", || (acked() > 1 << 20).then_some(()));
    let darkness = mishap(&flow, "a link in the dark");
    dark(1.0);
    std::thread::sleep(STALL + SAMPLE_EVERY);
    dark(0.0);
    let before = acked();
    wait_for("it goes on", || (acked() > before).then_some(()));
    let found = catch_unwind(AssertUnwindSafe(|| assert_never_stalled(flow, &[darkness])));
    let said = found.unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("a link in the dark: the flow stalls for "), "{said}");
}

/// Each time to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        1 a_flow_survives_kill_9_and_the_next_agent_adopts_it,
        1 a_hung_agents_flow_runs_natively_and_flows_says_so,
        2 a_stopped_agent_leaves_the_kernel_as_it_was,
        1 an_agent_out_of_descriptors_steers_on_and_stops_clean,
        2 doctor_removes_what_a_killed_agent_left,
    }
}

/// Only the mark says that the bystander's test lives: its agent is dead, too.
#[test]
fn what_a_killed_test_has_left_is_removed_and_nothing_of_one_that_lives() {
    /// Set for the process that is killed: the file into which it writes where its home is.
    const VICTIM: &str = "CCPLANE_TEST_VICTIM";
    let with_pins = |test: &str| {
        let lab = Lab::new(test, "ccp-reno")?;
        kill_9(lab.home.agent());
        assert!(lab.pin_dir().exists() && lab.is_registered());
        Some(lab)
    };
    if let Some(says) = std::env::var_os(VICTIM) {
        let lab = with_pins("victim").unwrap();
        fs::write(says, lab.home.dir().to_str().unwrap()).unwrap();
        loop {
            std::thread::park();
        }
    }
    let Some(bystander) = with_pins("bystander") else { return };
    let says = bystander.home.path("says");
    let mut victim = Command::new(std::env::current_exe().unwrap());
    let test = "kernel::what_a_killed_test_has_left_is_removed_and_nothing_of_one_that_lives";
    let mut victim = victim.args(["--exact", test]).env(VICTIM, &says).spawn().unwrap();
    let left =
        wait_for("the victim's home", || fs::read_to_string(&says).ok().filter(|said| !said.is_empty()));
    victim.kill().unwrap();
    victim.wait().unwrap();
    LABS.clear();
    assert!(!Path::new(&left).exists(), "{left}");
    assert!(!is_registered("ccd_victim"));
    assert!(bystander.pin_dir().exists() && bystander.is_registered());
}

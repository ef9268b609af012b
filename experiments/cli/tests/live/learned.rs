//! Learned policies on live TCP flows, steered by a real agent: what becomes of slots and flows when the agent is
//! killed, what `ccplane snapshot` does to them, and what a learner that hangs holds up.

use crate::common::lab::{Lab, SmallDisk, assert_never_stalled, assert_runs, kill_9, mishap};
use crate::common::{Agent, failed, stderr, stdout, wait_for};
use ccplane_snapshot::{SigningKey, Snapshot, Terms};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The slot that Aurora's program asks.
const SLOT: &str = "0";
/// An agent that is dead for less than this is not missed.
const HEARTBEAT_MS: u32 = 8000;
/// Nothing is learned; flows decide on when their agent is killed.
const STEADY: &str = "learn.mode = \"off\"\nagent.heartbeat_timeout_ms = 8000\ncontrol.timeout_ms = 5000\n";

/// Counters of the decisions of a flow's policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Decided {
    uid: u64,
    decisions: u64,
}

fn decided(lab: &Lab) -> Option<Decided> {
    let policy = &lab.flows()["flows"][0]["policy"];
    Some(Decided { uid: policy["uid"].as_u64()?, decisions: policy["decisions"].as_u64()? })
}

/// Once the flow has decided `more` times than it had.
fn wait_for_decisions(lab: &Lab, more: u64) -> Decided {
    let so_far = decided(lab).map_or(0, |d| d.decisions);
    wait_for("decisions", || decided(lab).filter(|d| d.decisions >= so_far + more))
}

fn wait_for_uid(lab: &Lab, uid: u64) {
    wait_for("decisions by the snapshot that is active", || decided(lab).filter(|d| d.uid == uid));
}

/// `ccplane snapshot list`, as JSON.
pub(crate) fn listed(lab: &Lab) -> Value {
    lab.home.json(&["snapshot", "list"])
}

/// The uid of the snapshot that the slot holds in a role.
fn uid_of(list: &Value, role: &str) -> Option<u64> {
    let deployments = list["slots"][0]["deployments"].as_array()?;
    deployments.iter().find(|d| d["role"] == role)?["uid"].as_u64()
}

/// All that a slot holds: roles and uids.
fn parts(list: &Value) -> Vec<(String, u64)> {
    let of = |d: &Value| (d["role"].as_str().unwrap().to_owned(), d["uid"].as_u64().unwrap());
    list["slots"][0]["deployments"].as_array().unwrap().iter().map(of).collect()
}

pub(crate) fn shipped(name: &str) -> Snapshot {
    let path = format!("{}/../../algs/policies/{name}.snapshot", env!("CARGO_MANIFEST_DIR"));
    Snapshot::parse(&fs::read(path).unwrap()).unwrap()
}

/// Aurora's policy under another hash: it decides as the shipped one does.
pub(crate) fn renamed(seed: u64) -> Snapshot {
    let mut parts = shipped("aurora").into_parts();
    parts.provenance.seed = seed;
    Snapshot::new(parts).unwrap()
}

pub(crate) fn file(lab: &Lab, name: &str, bytes: &[u8]) -> String {
    let path: PathBuf = lab.home.path(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn push(lab: &Lab, file: &str) {
    let output = lab.home.run(&["snapshot", "push", file, "--force"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "ebpf slot 0: pushed\n");
}

fn flows_decide_on_without_their_agent_and_the_next_one_takes_the_slot_over() -> Option<()> {
    let lab = Lab::with("lasts", "aurora", STEADY)?;
    let agent = lab.home.agent();
    let flow = lab.flow();
    let first = wait_for_decisions(&lab, 10);
    assert_eq!(uid_of(&listed(&lab), "active"), Some(first.uid));
    let died = mishap(&flow, "kill -9");
    kill_9(agent);
    let killed = decided(&lab).unwrap();
    assert_eq!(lab.flows()["flows"][0]["mode"], "program", "silent for less than {HEARTBEAT_MS} ms");
    lab.wait_for_mode("native_agent_silent");
    let silent = decided(&lab).unwrap();
    assert!(silent.decisions > killed.decisions, "decided on: {killed:?}, then {silent:?}");
    assert_eq!(silent.uid, first.uid);
    assert_runs(&flow, "without an agent");

    let taken_over = mishap(&flow, "the next agent");
    let _next = lab.home.agent();
    assert!(lab.home.log().contains(&lab.attached(1)), "{}", lab.home.log());
    lab.wait_for_mode("program");
    let again = wait_for_decisions(&lab, 10);
    assert_eq!(again.uid, first.uid, "what flows decide by stays");
    let list = listed(&lab);
    let active = &list["slots"][0]["deployments"][0];
    assert_eq!((&active["role"], &active["origin"]), (&"active".into(), &"taken over".into()), "{list}");
    assert_eq!(parts(&list), [("active".to_owned(), first.uid)]);

    push(&lab, &file(&lab, "next.snapshot", &renamed(1).to_bytes()));
    let pushed = uid_of(&listed(&lab), "active").unwrap();
    assert_ne!(pushed, first.uid);
    wait_for_uid(&lab, pushed);
    wait_for_decisions(&lab, 10);
    assert_never_stalled(flow, &[died, taken_over]);
    Some(())
}

/// Log, decision log, what is learned, sockets and locks: nothing more of it can be written. A qlog trace is the client's.
fn a_full_disk_costs_files_and_nothing_else() -> Option<()> {
    /// Bytes for which there is space in the decision log: fewer than a decision has.
    const PART_OF_A_LINE: u64 = 50;
    let lab = Lab::with("full", "aurora", STEADY)?;
    let disk = SmallDisk::mount(&lab);
    let (log, decisions) = (disk.path("log"), disk.path("decisions"));
    let config = fs::read_to_string(lab.home.config()).unwrap();
    fs::write(lab.home.config(), format!("{config}learn.decision_log = {decisions:?}\n")).unwrap();
    let mut agent = Agent::of(&lab.home, "disk/log");
    let flow = lab.flow();
    let first = wait_for_decisions(&lab, 10);

    let full = mishap(&flow, "a full disk");
    disk.fill(&[(&log, 0), (&decisions, PART_OF_A_LINE)]);
    let size = |path: &Path| fs::metadata(path).unwrap().len();
    let (log_bytes, decisions_bytes) = (size(&log), size(&decisions));
    push(&lab, &file(&lab, "next.snapshot", &renamed(1).to_bytes()));
    let pushed = uid_of(&listed(&lab), "active").unwrap();
    assert_ne!(pushed, first.uid);
    wait_for_uid(&lab, pushed);
    wait_for_decisions(&lab, 10);
    let number = lab.flows()["flows"][0]["flow"].as_u64().unwrap().to_string();
    let trace = lab.home.command(&["qlog", &number, "-o"]).arg(disk.path("flow.qlog")).output().unwrap();
    assert_eq!(trace.status.code(), Some(1), "{}", stderr(&trace));
    assert!(stderr(&trace).contains("No space left on device"), "{}", stderr(&trace));
    let another = lab.flow();
    wait_for("another flow is steered", || {
        let flows = lab.flows()["flows"].as_array().unwrap().clone();
        (flows.len() == 2 && flows.iter().all(|flow| flow["mode"] == "program")).then_some(())
    });
    assert_eq!((size(&log), size(&decisions)), (log_bytes, decisions_bytes), "nothing fits");

    let freed = mishap(&flow, "a disk with space again");
    disk.free();
    push(&lab, &file(&lab, "last.snapshot", &renamed(2).to_bytes()));
    let last = renamed(2).hash().to_string();
    wait_for("the next decision is written, as a line of its own", || {
        let text = fs::read_to_string(&decisions).unwrap();
        let records = text
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.into_iter().any(|record| record["snapshot"] == last).then_some(())
    });
    assert!(fs::read_to_string(&log).unwrap().contains(&last[..12]), "it logs again");

    disk.fill(&[(&log, 0), (&decisions, PART_OF_A_LINE)]);
    let stopped = mishap(&flow, "SIGTERM with a full disk");
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.wait(), Some(0), "{}", fs::read_to_string(&log).unwrap());
    assert!(!disk.path("bpf").join(&lab.name).exists() && !lab.pin_dir().exists());
    assert_never_stalled(flow, &[full, freed, stopped]);
    drop(another);
    wait_for("the congestion control is gone", || (!lab.is_registered()).then_some(()));
    Some(())
}

fn a_trial_ends_with_the_agent_that_began_it() -> Option<()> {
    let lab = Lab::with("orphan", "aurora", STEADY)?;
    let agent = lab.home.agent();
    let flow = lab.flow();
    let first = wait_for_decisions(&lab, 10);
    let snapshot = file(&lab, "next.snapshot", &renamed(1).to_bytes());
    let output = lab.home.run(&["snapshot", "push", &snapshot]);
    assert!(stdout(&output).starts_with("ebpf slot 0: trial"), "{}{}", stdout(&output), stderr(&output));
    let died = mishap(&flow, "kill -9 in a trial");
    kill_9(agent);

    let taken_over = mishap(&flow, "the next agent");
    let _next = lab.home.agent();
    let list = wait_for("the trial is over", || {
        let list = listed(&lab);
        (uid_of(&list, "active").is_some() && uid_of(&list, "canary").is_none()).then_some(list)
    });
    assert_eq!(parts(&list), [("active".to_owned(), first.uid)]);
    assert!(list.to_string().contains("left on trial by an earlier agent"), "{list}");
    wait_for_uid(&lab, first.uid);
    wait_for_decisions(&lab, 10);
    assert_never_stalled(flow, &[died, taken_over]);
    Some(())
}

/// A client that pushes two snapshots in turns, as fast as the agent answers, until it does not.
struct Pusher {
    pushed: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Pusher {
    fn start(stream: UnixStream) -> Pusher {
        let hex = |s: Snapshot| s.to_bytes().iter().map(|b| format!("{b:02x}")).collect::<String>();
        let request = |seed| {
            let snapshot = hex(renamed(seed));
            format!("{{\"request\":\"push\",\"snapshot\":\"{snapshot}\",\"force\":true}}\n")
        };
        let requests = [request(1), request(2)];
        let pushed = Arc::<AtomicU64>::default();
        let count = pushed.clone();
        let run = move || {
            let mut answers = BufReader::new(stream.try_clone().unwrap()).lines();
            for n in 0.. {
                if (&stream).write_all(requests[n % 2].as_bytes()).is_err() {
                    return;
                }
                let Some(Ok(answer)) = answers.next() else { return };
                count.fetch_add(u64::from(answer.contains("slot 0: pushed")), Relaxed);
            }
        };
        Pusher { pushed, thread: std::thread::spawn(run) }
    }
}

fn an_agent_killed_while_it_pushes_leaves_the_slot_whole() -> Option<()> {
    const ROUNDS: u64 = 6;
    let lab = Lab::with("torn", "aurora", STEADY)?;
    let mut flow = None;
    let (mut uids, mut mishaps) = (BTreeSet::new(), Vec::new());
    for round in 0..ROUNDS {
        let agent = lab.home.agent();
        let flow = flow.get_or_insert_with(|| lab.flow());
        wait_for_decisions(&lab, 3);
        let pusher = Pusher::start(lab.home.control());
        wait_for("pushes", || (pusher.pushed.load(Relaxed) > 100).then_some(()));
        // Each time at another place of the loop.
        std::thread::sleep(Duration::from_micros(round * 1357));
        mishaps.push(mishap(flow, format!("kill -9 in push {round}")));
        kill_9(agent);
        pusher.thread.join().unwrap();
        let left = wait_for_decisions(&lab, 3);
        assert!(uids.insert(left.uid), "round {round}: what decides was pushed in this round");
    }
    let _last = lab.home.agent();
    let decides = wait_for_decisions(&lab, 3);
    let list = listed(&lab);
    let held = parts(&list);
    assert_eq!(held[0], ("active".to_owned(), decides.uid), "{list}");
    let different: BTreeSet<u64> = held.iter().map(|(_, uid)| *uid).collect();
    assert!(different.len() == held.len() && !different.contains(&0), "{list}");
    push(&lab, &file(&lab, "last.snapshot", &renamed(3).to_bytes()));
    let pushed = uid_of(&listed(&lab), "active").unwrap();
    assert!(!different.contains(&pushed) && uids.iter().max().unwrap() < &pushed, "{pushed} after {uids:?}");
    wait_for_uid(&lab, pushed);
    assert_never_stalled(flow.unwrap(), &mishaps);
    Some(())
}

#[test]
fn snapshots_are_pushed_rolled_back_or_refused_with_the_reason() {
    let (ours, theirs) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let key = ours.verifying_key().to_hex();
    let state = tempfile::tempdir().unwrap();
    let signed_only = format!(
        "{STEADY}learn.require_signed = true\nlearn.keys = [\"{key}\"]\nlearn.state = {:?}\n",
        state.path()
    );
    let terms = |sequence| Terms { sequence, expires_s: u64::MAX };
    let Some(lab) = Lab::with("byhand", "aurora", &signed_only) else { return };
    let _agent = lab.home.agent();
    let flow = lab.flow();
    let first = wait_for_decisions(&lab, 10);
    let good = renamed(1).sign(&ours, terms(5));
    let good_file = file(&lab, "good.snapshot", &good.to_bytes());

    // Nothing of this reaches the slot.
    let before = parts(&listed(&lab));
    let mut altered = good.to_bytes();
    altered[200] ^= 1;
    let mocc = shipped("mocc").sign(&ours, terms(5)).to_bytes();
    let expired = renamed(1).sign(&ours, Terms { sequence: 9, expires_s: 1 }).to_bytes();
    let refusals: [(&str, &[u8], &[&str], &str); 7] = [
        ("expired", &expired, &[], "its signature expired"),
        ("altered", &altered, &[], "altered: its content hashes to"),
        ("short", &good.to_bytes()[..300], &[], "bytes are needed"),
        ("unsigned", &renamed(1).to_bytes(), &[], "not signed: only signed snapshots are taken"),
        ("theirs", &renamed(1).sign(&theirs, terms(5)).to_bytes(), &[], "which is not trusted"),
        ("mocc", &mocc, &["--slot", SLOT], "the slot takes snapshots of another shape"),
        ("nowhere", &good.to_bytes(), &["--slot", "9"], "no datapath has a policy slot 9"),
    ];
    for (name, bytes, more, why) in refusals {
        let path = file(&lab, name, bytes);
        let output = lab.home.run(&[&["snapshot", "push", &path, "--force"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stdout(&output));
        assert!(stderr(&output).contains(why), "{name}: {}", stderr(&output));
    }
    failed(&lab.home.run(&["snapshot", "rollback", SLOT]), 1, "last good snapshot");
    assert_eq!(parts(&listed(&lab)), before);
    assert_eq!(wait_for_decisions(&lab, 3).uid, first.uid);

    push(&lab, &good_file);
    let list = listed(&lab);
    let pushed = uid_of(&list, "active").unwrap();
    assert_eq!(list["slots"][0]["deployments"][0]["snapshot"], good.hash().to_string());
    assert_eq!(uid_of(&list, "last good"), Some(first.uid));
    assert_ne!(pushed, first.uid);
    wait_for_uid(&lab, pushed);
    let policy = &lab.flows()["flows"][0]["policy"];
    assert_eq!(policy["snapshot"], good.hash().to_string());

    // A snapshot older than the last one taken is a replay, unless it is asked for.
    let replay = file(&lab, "replay.snapshot", &renamed(2).sign(&ours, terms(4)).to_bytes());
    let output = lab.home.run(&["snapshot", "push", &replay, "--force"]);
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("its sequence number is 4, one with 5 was taken"),
        "{}",
        stderr(&output)
    );
    assert_eq!(uid_of(&listed(&lab), "active"), Some(pushed));
    let output = lab.home.run(&["snapshot", "push", &replay, "--allow-older", "--force"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let replayed = uid_of(&listed(&lab), "active").unwrap();
    wait_for_uid(&lab, replayed);
    let output = lab.home.run(&["snapshot", "rollback", SLOT]);
    assert!(output.status.success(), "{}", stderr(&output));
    wait_for_uid(&lab, pushed);
    push(&lab, &file(&lab, "again.snapshot", &renamed(3).sign(&ours, terms(5)).to_bytes()));
    let again = uid_of(&listed(&lab), "active").unwrap();
    wait_for_uid(&lab, again);

    let output = lab.home.run(&["snapshot", "rollback", SLOT]);
    assert!(output.status.success(), "{}", stderr(&output));
    wait_for_uid(&lab, pushed);
    wait_for_decisions(&lab, 3);
    let list = listed(&lab);
    assert_eq!(uid_of(&list, "active"), Some(pushed));
    assert!(list["decisions"].to_string().contains("rolled back by hand"), "{list}");
    assert_runs(&flow, "after a roll-back");
}

/// One thread of a process, stopped until this is dropped. Others run on.
struct Stopped(libc::pid_t);

impl Stopped {
    /// # Errors
    /// The kernel refuses to trace the thread.
    fn new(tid: libc::pid_t) -> Result<Stopped, Errno> {
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: these requests take integers only.
            Errno::result(unsafe { libc::ptrace(request, tid, 0, 0) })?;
        }
        // SAFETY: a null status is not written to.
        Errno::result(unsafe { libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL) })?;
        Ok(Stopped(tid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: takes integers only.
        let went_on = unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0, 0) };
        if went_on != 0 {
            // It was killed; its process ends once its tracer has reaped it.
            // SAFETY: a null status is not written to.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL) };
        }
    }
}

/// The threads of a process whose names begin so.
fn threads(pid: u32, name: &str) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|t| t.unwrap().path());
    let named =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.starts_with(name));
    tasks.filter(named).collect()
}

fn a_learner_that_hangs_holds_up_neither_reports_nor_commands_nor_flows() -> Option<()> {
    let lab = Lab::new("hangs", "aurora")?;
    let mut agent = lab.home.agent();
    let flow = lab.flow();
    let rows = || lab.home.json(&["status"])["counters"]["rows"].as_u64().unwrap();
    let taken = || listed(&lab)["learners"][0]["rows"].as_u64().unwrap();
    assert_eq!(listed(&lab)["learners"][0]["algorithm"], "aurora");
    wait_for("the learner takes rows", || (taken() > 0).then_some(()));
    let learner = threads(agent.pid(), "ccp-learn-auro");
    let tid = learner[0].file_name().unwrap().to_str().unwrap().parse().unwrap();
    let stopped = match Stopped::new(tid) {
        Ok(stopped) => stopped,
        Err(errno) => {
            ccplane_testing::skipped("hangs", format_args!("ptrace: {errno}"));
            return None;
        }
    };
    let hung = mishap(&flow, "a learner that hangs");
    let (taken_before, rows_before) = (taken(), rows());
    // A client of this lab waits five seconds for an answer; each of these is one.
    wait_for("rows come on", || (rows() > rows_before + 50).then_some(()));
    assert_eq!(taken(), taken_before, "it hangs");
    wait_for_decisions(&lab, 10);
    push(&lab, &file(&lab, "next.snapshot", &renamed(1).to_bytes()));
    wait_for_uid(&lab, uid_of(&listed(&lab), "active").unwrap());
    assert_eq!(lab.flows()["flows"][0]["mode"], "program", "the heartbeat is fresh");
    drop(stopped);
    wait_for("it goes on", || (taken() > taken_before).then_some(()));

    // An agent that is to stop does not wait for it either.
    let stopped = Stopped::new(tid).unwrap();
    let ended = mishap(&flow, "stop");
    let output = lab.home.run(&["stop"]);
    assert!(output.status.success(), "{}", stderr(&output));
    drop(stopped);
    assert_eq!(agent.wait(), Some(0), "{}", lab.home.log());
    assert_never_stalled(flow, &[hung, ended]);
    Some(())
}

/// Times that a thread has slept.
fn sleeps(task: &std::path::Path) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn rows_wake_nobody_until_their_batch_is_due() {
    /// Batches and heartbeats each second, and as many looks whether a command came.
    const DUE_PER_S: f64 = 3.0;
    let rare = "learn.mode = \"off\"\nlearn.batch_ms = 1000\nagent.poll_interval_ms = 1000\n\
                agent.heartbeat_timeout_ms = 4000\ncontrol.timeout_ms = 10000\n";
    let Some(lab) = Lab::with("wakes", "aurora", rare) else { return };
    let agent = lab.home.agent();
    let flow = lab.flow();
    wait_for_decisions(&lab, 50);
    let kernel = threads(agent.pid(), "ccp-kernel");
    let counters = || {
        let counters = lab.home.json(&["status"])["counters"].clone();
        (counters["rows"].as_u64().unwrap(), counters["reports"].as_u64().unwrap())
    };
    let (start, before, slept) = (Instant::now(), counters(), sleeps(&kernel[0]));
    // Not a wait for rows: each look at them would wake the loop, whose sleeps are counted.
    std::thread::sleep(Duration::from_secs(4));
    let (after, slept) = (counters(), sleeps(&kernel[0]) - slept);
    let seconds = start.elapsed().as_secs_f64();
    let (rows, reports) = (after.0 - before.0, after.1 - before.1);
    eprintln!("rows: {rows} in {seconds:.1} s, of {reports} reports; the loop slept {slept} times");
    assert!(rows > 100, "{rows} rows");
    // Reports of the start's intervals, which asked no policy, may each wake it.
    let others = (reports - rows) as f64;
    assert!(
        (slept as f64) < 2.0 * DUE_PER_S * seconds + others,
        "{slept} times in {seconds} s, {others} other reports"
    );
    assert!((slept as f64) < rows as f64 / 4.0, "{slept} times for {rows} rows");
    drop(flow);
}

/// Each time to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        1 flows_decide_on_without_their_agent_and_the_next_one_takes_the_slot_over,
        1 a_full_disk_costs_files_and_nothing_else,
        1 a_trial_ends_with_the_agent_that_began_it,
        1 an_agent_killed_while_it_pushes_leaves_the_slot_whole,
        1 a_learner_that_hangs_holds_up_neither_reports_nor_commands_nor_flows,
    }
}

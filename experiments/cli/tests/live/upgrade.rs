//! A restart, as by an upgrade: the next agent takes over the flows, slots and snapshots of the one before.
//!
//! `CCPLANE_EARLIER` names the `ccplane` of an earlier version (`make upgrade-test`); it is then the agent that ends, and the QUIC
//! server, which lives on. Without it, both are of this version.

use crate::common::lab::{Lab, assert_never_stalled, mishap};
use crate::common::serve::{Serve, endless};
use crate::common::{Agent, CCPLANE, Home, stderr, stdout, wait_for};
use crate::learned::{file, listed, renamed, shipped};
use ccplane_contract::Mode;
use ccplane_ebpf::{Options, read_flows};
use ccplane_snapshot::Snapshot;
use ccplane_testing::{Mishap, STALL, WATCHED};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const EARLIER: &str = "CCPLANE_EARLIER";
/// Nothing is learned, so that slots hold what was pushed. Agents answer late on a busy machine.
const STEADY: &str = "learn.mode = \"off\"\ncontrol.timeout_ms = 5000\n";
/// Time between two looks at the mode of the kernel's flow.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// Time between two reads of a slow reader, which make some 2 MB/s.
const READ_EVERY: Duration = Duration::from_millis(2);
const DATAPATHS: [&str; 2] = ["ebpf", "quic"];

fn micros(since: Instant) -> u64 {
    since.elapsed().as_micros() as u64
}

/// A slow client of a QUIC server; killed when dropped.
struct Client {
    child: Child,
    began: Instant,
    stop: Arc<AtomicBool>,
    /// Returns when, microseconds, and how many bytes had arrived.
    reader: Option<JoinHandle<Vec<(u64, u64)>>>,
}

impl Client {
    fn start(lab: &Lab, serve: &Serve) -> Client {
        // Its own flow is not the agent's.
        let arguments = ["quic", "get", &serve.address, "endless", "-o", "-", "--algorithm", "reno"];
        let mut command = lab.home.command(&arguments);
        command.args(["--fingerprint", &serve.fingerprint]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let (began, stop) = (Instant::now(), Arc::<AtomicBool>::default());
        let stopped = Arc::clone(&stop);
        let reader = std::thread::spawn(move || read_slowly(output, began, &stopped));
        Client { child, began, stop, reader: Some(reader) }
    }

    fn mishap(&self, what: &str) -> Mishap {
        Mishap { what: format!("{what}, QUIC"), at_us: micros(self.began) }
    }

    /// Ends it, whose transfer never stalled.
    fn assert_never_stalled(mut self, mishaps: &[Mishap]) {
        let shows_us = mishaps.last().unwrap().at_us + WATCHED.as_micros() as u64;
        wait_for("it has been watched", || (micros(self.began) > shows_us).then_some(()));
        self.stop.store(true, Relaxed);
        let arrived = self.reader.take().unwrap().join().unwrap();
        ccplane_testing::assert_never_stalled(&arrived, mishaps, STALL);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_slowly(mut output: ChildStdout, began: Instant, stopped: &AtomicBool) -> Vec<(u64, u64)> {
    let (mut arrived, mut so_far, mut chunk) = (Vec::new(), 0, [0; 4096]);
    while !stopped.load(Relaxed) {
        match output.read(&mut chunk) {
            Ok(count) if count > 0 => so_far += count as u64,
            _ => break,
        }
        arrived.push((micros(began), so_far));
        std::thread::sleep(READ_EVERY);
    }
    arrived
}

/// Counts for how long the kernel's flow runs without its program, until it is asked or dropped.
struct NativeTime {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Duration>>,
}

impl NativeTime {
    fn start(lab: &Lab) -> NativeTime {
        let options =
            Options { run_dir: lab.home.dir().into(), name: lab.name.clone(), ..Options::default() };
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut native, mut last) = (Duration::ZERO, Instant::now());
            while !stopped.load(Relaxed) {
                let runs_program = read_flows(&options)
                    .is_ok_and(|view| view.flows.first().is_some_and(|flow| flow.mode == Mode::Program));
                let now = Instant::now();
                if !runs_program {
                    native += now - last;
                }
                last = now;
                std::thread::sleep(POLL_EVERY);
            }
            native
        });
        NativeTime { stop, thread: Some(thread) }
    }

    fn total(mut self) -> Duration {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for NativeTime {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Waits until the flow of each datapath decides by its policy, and returns both.
fn steered(lab: &Lab) -> Vec<Value> {
    let of = |flows: &[Value], datapath: &str| {
        let flow = flows.iter().find(|flow| flow["datapath"] == datapath)?.clone();
        (flow["algorithm"] == "aurora" && flow["mode"] == "program").then_some(flow)
    };
    wait_for("both flows are steered", || {
        let flows = lab.flows()["flows"].as_array()?.clone();
        DATAPATHS.into_iter().map(|datapath| of(&flows, datapath)).collect()
    })
}

/// Waits until the kernel's flow has decided by this snapshot. The one of the slow reader may never ask its policy.
fn wait_for_decisions_by(lab: &Lab, snapshot: &Snapshot) {
    let hash = snapshot.hash().to_string();
    wait_for("decisions by the pushed snapshot", || {
        (steered(lab)[0]["policy"]["snapshot"] == hash).then_some(())
    });
}

/// The snapshot that each slot's flows decide by: number, hash and origin.
fn active(lab: &Lab) -> Vec<(Value, Value, Value)> {
    let list = listed(lab);
    let slot = |datapath: &str| {
        let slot = list["slots"].as_array().unwrap().iter().find(|slot| slot["datapath"] == datapath);
        let held = slot.unwrap_or_else(|| panic!("no slot of {datapath}: {list}"))["deployments"].clone();
        let active = held.as_array().unwrap().iter().find(|held| held["role"] == "active").unwrap();
        (active["uid"].clone(), active["snapshot"].clone(), active["origin"].clone())
    };
    DATAPATHS.into_iter().map(slot).collect()
}

fn the_next_agent_takes_over_flows_slots_and_snapshots() -> Option<()> {
    let mut lab = Lab::with("upgrade", "aurora", STEADY)?;
    let earlier = std::env::var_os(EARLIER);
    lab.home.ccplane = earlier.clone().unwrap_or(CCPLANE.into()).into();
    endless(&lab.home.path("served/endless"));
    let mut before = lab.home.agent();
    let (flow, serve) = (lab.flow(), Serve::start(&lab.home, &[]));
    let client = Client::start(&lab, &serve);
    steered(&lab);
    let pushed = renamed(1);
    let path = file(&lab, "pushed.snapshot", &pushed.to_bytes());
    let output = lab.home.run(&["snapshot", "push", &path, "--force"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    wait_for_decisions_by(&lab, &pushed);
    let held = active(&lab);
    let sent = |flows: &[Value]| -> Vec<u64> {
        flows.iter().map(|flow| flow["bytes_acked"].as_u64().unwrap()).collect()
    };
    let had = sent(&steered(&lab));

    // As systemd ends it: `RestartKillSignal` of the service.
    let native = NativeTime::start(&lab);
    let (ended, over_quic) = (mishap(&flow, "a restart"), client.mishap("a restart"));
    let start = Instant::now();
    before.signal(Signal::SIGUSR2);
    // An earlier version than the signal's is killed by it.
    assert!(before.wait() == Some(0) || earlier.is_some(), "{}", lab.home.log());
    let end_took = start.elapsed();
    lab.home.ccplane = CCPLANE.into();
    let next = lab.home.agent();
    let gap = start.elapsed();
    let flows = steered(&lab);
    let steered_after = start.elapsed();
    let native = native.total();
    eprintln!(
        "a restart from {}: the end took {} ms, the next agent served after {} ms, steered both flows after {} ms; \
         the kernel's flow ran natively for {} ms",
        earlier.as_deref().map_or("this version".into(), |path| path.to_string_lossy().into_owned()),
        end_took.as_millis(),
        gap.as_millis(),
        steered_after.as_millis(),
        native.as_millis(),
    );

    assert!(lab.home.log().contains(&lab.attached(1)), "{}", lab.home.log());
    assert!(sent(&flows).iter().zip(&had).all(|(now, had)| now >= had), "the same flows: {flows:?}, {had:?}");
    let mut taken_over = active(&lab);
    let mut expected: Vec<_> =
        held.into_iter().map(|(uid, hash, _)| (uid, hash, Value::from("taken over"))).collect();
    if lab.home.log().contains("kernel datapath of another version was replaced") {
        // Of another layout in the kernel: its slots begin anew.
        (taken_over, expected) = (taken_over.split_off(1), expected.split_off(1));
    } else {
        wait_for_decisions_by(&lab, &pushed);
    }
    assert_eq!(taken_over, expected);

    let (by_hand, by_hand_over_quic) = (mishap(&flow, "stop --leave"), client.mishap("stop --leave"));
    let _last = restarted_by_hand(&lab, next);
    assert_never_stalled(flow, &[ended, by_hand]);
    client.assert_never_stalled(&[over_quic, by_hand_over_quic]);
    Some(())
}

/// Ends the agent by `ccplane stop --leave`, and starts the next, under which the same flows decide by the same snapshots.
fn restarted_by_hand(lab: &Lab, mut before: Agent) -> Agent {
    let acked = || steered(lab)[0]["bytes_acked"].as_u64().unwrap();
    let (held, had) = (active(lab), acked());
    let output = lab.home.run(&["stop", "--leave"]);
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(before.wait(), Some(0), "{}", lab.home.log());
    let next = lab.home.agent();
    assert!(acked() >= had, "the kernel's flow goes on");
    let same = |(uid, hash, _)| (uid, hash, Value::from("taken over"));
    assert_eq!(active(lab), held.into_iter().map(same).collect::<Vec<_>>());
    next
}

/// An agent, and the hash of the snapshot that the flows of a new datapath begin with under it.
fn begins_with(home: &Home) -> (Agent, String) {
    let agent = home.agent();
    let _serve = Serve::start(home, &[]);
    let hash = wait_for("a slot", || {
        let list = home.json(&["snapshot", "list"]);
        list["slots"][0]["deployments"][0]["snapshot"].as_str().map(str::to_owned)
    });
    (agent, hash)
}

#[test]
fn new_slots_begin_with_what_an_earlier_agent_learned() {
    const LEARNS: &str = "default_algorithm = \"aurora\"\ndatapath.ebpf.mode = \"off\"\nlearn.mode = ";
    let home = Home::new("");
    let (kept, shipped) = (renamed(7), shipped("aurora").hash().to_string());
    let folder = home.path("policies");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(format!("{}.snapshot", kept.hash())), kept.to_bytes()).unwrap();
    let policy = format!("{}/../../algs/policies/aurora.safetensors", env!("CARGO_MANIFEST_DIR"));
    fs::copy(policy, folder.join(format!("{}.safetensors", kept.hash()))).unwrap();
    fs::write(folder.join("aurora.active"), kept.hash().to_string()).unwrap();

    home.configure(&format!("{LEARNS}\"outside\"\n"));
    assert_eq!(begins_with(&home).1, kept.hash().to_string());
    home.configure(&format!("{LEARNS}\"off\"\n"));
    assert_eq!(begins_with(&home).1, shipped);
    // A folder that is configured takes over what is in the run directory.
    let state = home.path("state");
    home.configure(&format!("{LEARNS}\"outside\"\nlearn.folder = \"{}\"\n", state.display()));
    assert_eq!(begins_with(&home).1, kept.hash().to_string());
    assert!(state.join("aurora.active").exists() && !folder.join("aurora.active").exists());
    fs::write(state.join("aurora.active"), "version 2").unwrap();
    let (_agent, begun) = begins_with(&home);
    assert_eq!(begun, shipped);
    let said = "what an earlier agent learned is not used: flows begin with the shipped snapshot";
    assert!(
        home.log().contains(said) && home.log().contains("aurora.active names no snapshot"),
        "{}",
        home.log()
    );
}

/// Each time to new flows.
mod mishaps {
    ccplane_testing::mishaps! {
        1 the_next_agent_takes_over_flows_slots_and_snapshots,
    }
}

//! `ccplane record` of flows between real processes, and what is left when it is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::common::{Home, ccplane, command, failed, stderr, stdout};
use ccplane_ebpf::record::program_ids;
use ccplane_emulator::netns::{self, Namespace};
use ccplane_netsim::workload::recorded::{Burst, Recording};
use ccplane_testing::{skipped, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A recorder that runs in a namespace, once it says so; none where that cannot be.
fn recorder(test: &str, namespace: &Namespace, arguments: &[&str]) -> Option<Child> {
    let mut command = command(&["record"]);
    command.args(arguments).stderr(Stdio::piped()).stdout(Stdio::piped());
    let mut child = namespace.enter(&mut command).unwrap().spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    if said.starts_with("recording") {
        return Some(child);
    }
    child.wait().unwrap();
    // Without BTF or the permission there is nothing to test; everything else is a failure.
    assert!(said.contains("btf") || said.contains("not permitted"), "{said}");
    skipped(test, said);
    None
}

/// A namespace, and a file to record its flows to in a folder of its own; `None`, which is said, where there can be none.
fn place(test: &str) -> Option<(Namespace, tempfile::TempDir, PathBuf)> {
    if !netns::available() {
        skipped(test, "needs root to make network namespaces");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flows.jsonl");
    Some((Namespace::anonymous().unwrap(), folder, file))
}

/// Sends `request` bytes over loopback in a namespace and gets `answer` bytes back.
fn exchange(namespace: &Namespace, listener: &TcpListener, request: usize, answer: usize) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut vec![0; request]).unwrap();
            stream.write_all(&vec![2; answer]).unwrap();
        });
        let mut stream = namespace.run(|| TcpStream::connect("127.0.0.2:7002").unwrap()).unwrap();
        stream.write_all(&vec![1; request]).unwrap();
        stream.read_to_end(&mut Vec::new()).unwrap();
    });
}

#[test]
fn a_recording_holds_what_was_sent() {
    const TEST: &str = "a_recording_holds_what_was_sent";
    let Some((namespace, folder, file)) = place(TEST) else { return };
    let Some(child) = recorder(TEST, &namespace, &["-o", file.to_str().unwrap()]) else { return };
    let listener = namespace.run(|| TcpListener::bind("127.0.0.2:7002").unwrap()).unwrap();
    exchange(&namespace, &listener, 300, 50_000);
    exchange(&namespace, &listener, 400, 60_000);
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let recording = Recording::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((recording.burst_gap_us, recording.open, recording.missed), (10_000, 0, 0));
    let seen: Vec<_> = recording.flows.iter().map(|f| (f.opened, f.sent, f.received)).collect();
    let expected = [300, 400].into_iter().zip([50_000, 60_000]);
    let expected: Vec<_> = expected.flat_map(|(a, b)| [(true, a, b), (false, b, a)]).collect();
    assert_eq!(seen, expected);
    for flow in &recording.flows {
        let (hosts, port) = ((flow.host, flow.peer), if flow.opened { flow.peer_port } else { flow.port });
        assert_eq!((hosts.0 != hosts.1, port), (true, 7002));
        assert!(matches!(flow.bursts[..], [Burst(at_us, bytes)] if bytes == flow.sent && at_us < 1_000_000));
    }
    // What it says of the file is what it said when it ended; nothing else is in the folder.
    let shown = ccplane(&["record", "show", file.to_str().unwrap()]);
    assert_eq!(stdout(&shown), stdout(&output));
    assert!(stdout(&shown).starts_with("4 flows, 0 still open, 0 missed\n"), "{}", stdout(&shown));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_killed_recorder_leaves_nothing_in_the_kernel() {
    const TEST: &str = "a_killed_recorder_leaves_nothing_in_the_kernel";
    let Some((namespace, _folder, file)) = place(TEST) else { return };
    let Some(mut child) = recorder(TEST, &namespace, &["-o", file.to_str().unwrap()]) else { return };
    let own = programs_of(child.id());
    assert_eq!(own.len(), 4, "{own:?}");
    assert!(own.is_subset(&program_ids().unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the programs are gone", || own.is_disjoint(&program_ids().unwrap()));
    assert!(!file.exists());
}

/// The programs that a process's descriptors hold (proc_pid_fdinfo(5)).
fn programs_of(pid: u32) -> BTreeSet<u32> {
    let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    let told: String = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect();
    let id = |line: &str| line.strip_prefix("prog_id:").and_then(|id| id.trim().parse().ok());
    told.lines().filter_map(id).collect()
}

#[test]
fn a_command_is_recorded_until_it_ends() {
    const TEST: &str = "a_command_is_recorded_until_it_ends";
    let Some((namespace, _folder, file)) = place(TEST) else { return };
    let arguments = ["-o", file.to_str().unwrap(), "--", "sleep", "0.2"];
    let Some(child) = recorder(TEST, &namespace, &arguments) else { return };
    assert!(child.wait_with_output().unwrap().status.success());
    let recording = Recording::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((recording.command.as_str(), recording.flows.len()), ("sleep 0.2", 0));
}

#[test]
fn what_is_wrong_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("flows.jsonl");
    let file = file.to_str().unwrap();
    for (arguments, words) in [
        (vec!["-o", file, "--netns", "ccplane-no-such"], "/run/netns/ccplane-no-such: No such file"),
        (vec!["-o", file, "--cgroup", "/proc"], "/proc: not a directory of a cgroup (v2) hierarchy"),
        (vec!["-o", "/no-such/flows", "--", "true"], "/no-such/flows"),
        (vec!["-o", file, "--burst-gap-ms", "0"], "0 is not in 1..=3600000"),
        (vec![], "--output <FILE>"),
        (vec!["show", "/dev/null"], "/dev/null"),
    ] {
        let output = ccplane(&[&["record"][..], &arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The lines that a recording's thresholds are printed as are a configuration, and an agent takes it.
#[test]
fn thresholds_of_a_recording_are_lines_for_an_agent() {
    const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../traces/recordings/shuffle.jsonl");
    let said = ccplane(&["record", "show", RECORDING, "--thresholds"]);
    assert!(said.status.success(), "{}", stderr(&said));
    let lines = stdout(&said);
    assert!(lines.starts_with("# Of 161 transfers.\n[datapath.packets]\n"), "{lines}");
    let home = Home::new("");
    home.configure(&lines);
    let checked = home.run(&["agent", "--check-config"]);
    assert!(checked.status.success(), "{lines}: {}", stderr(&checked));
    let json = ccplane(&["record", "show", RECORDING, "--thresholds", "--json"]);
    let json: BTreeMap<String, u64> = serde_json::from_slice(&json.stdout).unwrap();
    let (names, bytes): (Vec<String>, Vec<u64>) = json.into_iter().unzip();
    assert_eq!(names, (1..=7).map(|n| format!("demote_{n}_bytes")).collect::<Vec<_>>());
    assert!(bytes.is_sorted() && lines.contains(&format!("demote_1_bytes = {}", bytes[0])), "{bytes:?}");
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.jsonl");
    let none = "{\"ccplane_recording\":1,\"burst_gap_us\":1,\"command\":\"\"}\n{\"flows\":0,\"open\":0,\"missed\":0}\n";
    fs::write(&empty, none).unwrap();
    failed(
        &ccplane(&["record", "show", empty.to_str().unwrap(), "--thresholds"]),
        2,
        "no flow to learn from",
    );
}

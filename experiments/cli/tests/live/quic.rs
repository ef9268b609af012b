//! `ccplane quic`, as a user would try it: two processes on loopback, without an agent, with one of their own, with the
//! machine's.

use crate::common::lab::LONG;
use crate::common::serve::{Serve, content, endless, wait_for_some};
use crate::common::{Home, stderr, stdout, wait_for};
use ccplane_alg::Algorithm;
use ccplane_emulator::netns::Namespace;
use ccplane_snapshot::Snapshot;
use ccplane_testing::{Mishap, STALL, assert_never_stalled};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[test]
fn files_are_put_and_got() {
    let home = Home::new("");
    let sent = content(&home.path("served/in/file"), 3_000_000);
    let trace = home.path("trace.qlog");
    let token = home.path("token");
    let token = token.to_str().unwrap();
    let mut serve = Serve::start(
        &home,
        &["--writable", "--token", token, "--algorithm", "cubic", "--qlog", trace.to_str().unwrap()],
    );

    let fetched = home.path("fetched");
    let got = serve.client(&home, "get", &["in/file", "-o", fetched.to_str().unwrap(), "--json"]);
    assert!(got.status.success(), "{}", stderr(&got));
    assert_eq!(fs::read(&fetched).unwrap(), sent);
    let figures: Value = serde_json::from_slice(&got.stdout).unwrap();
    let said = serve.said();
    assert_eq!((&figures["bytes"], &figures["sha256"]), (&said["bytes"], &said["sha256"]));
    assert_eq!((&said["bytes"], &said["request"]), (&3_000_000.into(), &"get in/file".into()));

    let got = serve.client(&home, "get", &["in/file", "-o", "-"]);
    assert!(got.status.success() && got.stdout == sent);
    serve.said();

    let sends = [fetched.to_str().unwrap(), "--as", "in/copy", "--token", token, "--algorithm", "bbr"];
    let put = serve.client(&home, "put", &sends);
    assert!(put.status.success(), "{}", stderr(&put));
    assert!(stdout(&put).starts_with("in/copy: 3.0 MB in "), "{}", stdout(&put));
    assert_eq!(fs::read(home.path("served/in/copy")).unwrap(), sent);

    assert_eq!(serve.interrupt(), Some(0));
    let trace = fs::read_to_string(trace).unwrap();
    let records: Vec<Value> =
        trace.lines().map(|line| serde_json::from_str(line.trim_start_matches('\u{1e}')).unwrap()).collect();
    let named =
        |name: &str| records.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
    assert_eq!(named("ccplane:flow_started")["data"]["algorithm"], "cubic");
    assert_eq!(named("ccplane:mode_changed")["data"]["new"], "program");
    assert!(named("recovery:metrics_updated")["data"]["congestion_window"].as_u64().unwrap() > 1000);
}

/// A server and clients whose packets are decided about, beside the agent of their own and with a configuration that names such
/// an algorithm.
#[test]
fn files_move_while_packets_are_decided_about() {
    let named = "datapath.packets.algorithm = \"pias\"\ndatapath.packets.parameters.demote_1_bytes = 3000\n";
    let home = Home::new(named);
    let sent = content(&home.path("served/file"), 300_000);
    for packets in ["pias", "size", "path"] {
        let mut serve = Serve::start(&home, &["--algorithm", "reno", "--packets", packets]);
        let got = serve.client(&home, "get", &["file", "-o", "-", "--packets", "pias"]);
        assert_eq!(got.stdout, sent, "{packets}: {}", stderr(&got));
        assert_eq!(serve.interrupt(), Some(0));
    }
}

/// The agent's own algorithm, and a rule of its, reach a server that asks it: sizes are learned in the agent.
#[test]
fn the_machines_agent_decides_about_packets() {
    let section = "datapath.packets.dscp = [46, 34, 26, 18, 10, 0, 0, 8]\nlearn.mode = \"live\"\n";
    let rule = "[[rule]]\nremote = \"127.0.0.0/8\"\nalgorithm = \"pias\"\n";
    let cases = [
        (format!("{section}datapath.packets.algorithm = \"size\"\n"), "size"),
        (format!("default_algorithm = \"reno\"\n{section}{rule}"), "pias"),
    ];
    for (config, algorithm) in cases {
        let home = Home::new(&config);
        let sent = content(&home.path("served/file"), 100_000);
        endless(&home.path("served/endless"));
        let _agent = home.agent();
        let mut serve = Serve::start(&home, &["--agent"]);
        wait_for("the agent has both datapaths", || {
            let datapaths = home.json(&["status"])["datapaths"].as_array()?.clone();
            let has = |kind: &str| datapaths.iter().any(|datapath| datapath["kind"] == kind);
            (has("quic") && has("packets")).then_some(())
        });
        let trust = ["--fingerprint", &serve.fingerprint, "--algorithm", "reno"];
        let arguments = [&["quic", "get", &serve.address, "endless", "-o", "-"], &trust[..]].concat();
        let mut client =
            home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let flow = wait_for("the agent's program decides", || {
            let flows = home.json(&["flows"])["flows"].as_array()?.clone();
            flows.into_iter().find(|flow| flow["datapath"] == "packets" && flow["mode"] == "program")
        });
        assert_eq!((&flow["algorithm"], &flow["faults"]), (&algorithm.into(), &0.into()), "{flow}");
        let _ = client.kill();
        let _ = client.wait();
        let got = serve.client(&home, "get", &["file", "-o", "-", "--algorithm", "reno"]);
        assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
        if algorithm == "size" {
            wait_for("a row of a flow that has ended", || {
                let learners = home.json(&["snapshot", "list"])["learners"].as_array()?.clone();
                let of_sizes = learners.iter().find(|learner| learner["algorithm"] == "size")?;
                (of_sizes["rows"].as_u64()? > 0).then_some(())
            });
        }
        assert_eq!(serve.interrupt(), Some(0));
    }
}

#[test]
fn a_server_waits_as_it_is_told() {
    let home = Home::new("");
    for (wake, why) in [
        ("dispatch", "a server has no dispatcher: sleep, spin, busy or auto"),
        ("spin:0", "spin takes 1 to 1000000 microseconds"),
        ("auto:101", "auto takes 1 to 100 percent of a core"),
        ("busy:1", "busy takes no figure"),
        ("often", "`often` is none of sleep, spin, busy, dispatch, auto"),
    ] {
        let refused = home.run(&["quic", "serve", "--wake", wake]);
        assert_eq!(refused.status.code(), Some(2), "{wake}: {}", stderr(&refused));
        assert!(stderr(&refused).contains(why), "{wake}: {}", stderr(&refused));
    }
    let sent = content(&home.path("served/file"), 300_000);
    for wake in ["sleep", "spin:100", "busy", "auto:20"] {
        let mut serve = Serve::start(&home, &["--algorithm", "reno", "--wake", wake]);
        let got = serve.client(&home, "get", &["file", "-o", "-"]);
        assert!(got.status.success() && got.stdout == sent, "{wake}: {}", stderr(&got));
        assert_eq!(serve.interrupt(), Some(0), "{wake}");
    }
}

/// Over loopback there is no device to poll, which the server says; files move all the same.
#[test]
fn a_server_has_its_device_polled_while_it_waits() {
    let home = Home::new("");
    let refused = home.run(&["quic", "serve", "--busy-poll", "0"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    if let Err(error) = ccplane_wait::BusyWait::new(50) {
        let output = home.run(&["quic", "serve", "--listen", "127.0.0.1:0", "--busy-poll", "50"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(&format!("--busy-poll 50: {error}")), "{}", stderr(&output));
        return ccplane_testing::skipped("waits that poll the device", error);
    }
    let sent = content(&home.path("served/file"), 300_000);
    let mut serve = Serve::start_as(&home, &["--algorithm", "reno", "--busy-poll", "50"], |command| {
        command.env("CCPLANE_LOG", "warn").stderr(Stdio::piped())
    });
    let got = serve.client(&home, "get", &["file", "-o", "-"]);
    assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
    assert_eq!(serve.interrupt(), Some(0));
    let mut said = String::new();
    serve.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.matches("no device that can be polled").count(), 1, "{said}");
}

#[test]
fn what_is_wrong_is_said() {
    let home = Home::new("");
    content(&home.path("served/file"), 10);
    content(&home.path("secret"), 10);
    let mut serve = Serve::start(&home, &["--algorithm", "reno"]);
    let refused = |verb: &str, more: &[&str], code: i32, words: &str| {
        let output = serve.client(&home, verb, more);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{verb} {more:?}: {said}");
        assert!(said.contains(words), "{verb} {more:?}: {said}");
    };
    let here = home.path("new");
    let here = here.to_str().unwrap();
    refused("get", &["none", "-o", here], 1, "no such file");
    refused("get", &["../secret", "-o", here], 1, "not a name of a file");
    refused("put", &[home.path("secret").to_str().unwrap()], 1, "--writable");
    refused(
        "get",
        &["file", "-o", here, "--algorithm", "none"],
        2,
        "no algorithm `none`; there are reno, cubic",
    );
    refused(
        "get",
        &["file", "-o", here, "--packets", "cubic"],
        2,
        "`cubic` does not decide about packets; there are pias, size",
    );
    refused("put", &["/no/such/file"], 2, "/no/such/file: ");
    refused("get", &["file", "--insecure"], 2, "cannot be used with");
    assert!(!home.path("new").exists());
    let at = serve.address.clone();
    let wrong = "00".repeat(32);
    let output = home.run(&["quic", "get", &at, "file", "-o", here, "--fingerprint", &wrong]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&format!("is {}, expected was {wrong}", serve.fingerprint)));
    let output = home.run(&["quic", "get", &at, "file", "-o", here]);
    assert_eq!(output.status.code(), Some(2), "whom to trust must be said");
    let output = home.run(&["quic", "get", &at, "file", "-o", here, "--insecure"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let left: Vec<_> = fs::read_dir(home.dir()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().ends_with(".part")), "{left:?}");
    let _ = serve.said();
}

#[test]
fn a_server_goes_on_when_nobody_reads_what_it_says() {
    let home = Home::new("");
    let sent = content(&home.path("served/file"), 100_000);
    let mut serve = Serve::start(&home, &["--algorithm", "reno"]);
    serve.lines = None;
    for _ in 0..3 {
        let got = serve.client(&home, "get", &["file", "-o", "-"]);
        assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
    }
    let mut said = serve.child.stderr.take().unwrap();
    assert_eq!(serve.interrupt(), Some(0));
    let mut text = String::new();
    said.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("nobody reads standard output").count(), 1, "{text}");
}

/// The time for which a transfer may go on whose peer is gone, and the time by which a busy machine may be
/// behind.
const MISSED_WITHIN: Duration = Duration::from_secs(13);
const BEHIND: Duration = Duration::from_secs(5);

#[test]
fn a_server_that_is_killed_is_missed_in_time() {
    let home = Home::new("");
    endless(&home.path("served/file"));
    endless(&home.path("file"));
    let token = home.path("token");
    let token = token.to_str().unwrap();
    let mut serve = Serve::start(
        &home,
        &["--algorithm", "reno", "--writable", "--token", token, "--max-file", "2T", "--quota", "3T"],
    );
    let (output, file) = (home.path("fetched/new"), home.path("file"));
    fs::create_dir(home.path("fetched")).unwrap();
    let client = |verb: &str, more: &[&str]| {
        let trust = ["--fingerprint", &serve.fingerprint];
        let arguments = [&["quic", verb, &serve.address], &trust[..], more].concat();
        home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let clients = [
        client("get", &["file", "-o", output.to_str().unwrap()]),
        client("put", &[file.to_str().unwrap(), "--as", "new", "--token", token]),
    ];
    wait_for_some(&clients[0], &home.path("fetched"));
    wait_for_some(&serve.child, &home.path("served"));
    serve.child.kill().unwrap();
    let began = Instant::now();
    for client in clients {
        let ended = client.wait_with_output().unwrap();
        let took = began.elapsed();
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(1), "{said}");
        let words = format!("the connection to {} is lost: no sign of life for 10 s", serve.address);
        assert!(said.contains(&words), "{said}");
        assert!(took < MISSED_WITHIN + BEHIND, "{took:?}");
    }
    assert!(!output.exists());
}

#[test]
fn a_server_learns_beside_its_flows() {
    let home = Home::new("learn.mode = \"live\"\nlearn.cpu_percent = 100\n");
    let sent = content(&home.path("served/file"), 3_000_000);
    endless(&home.path("served/endless"));
    let output = home.run(&["quic", "serve", "--learn", "--algorithm", "cubic"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("`cubic` has no policy to learn; there are aurora, mocc"),
        "{}",
        stderr(&output)
    );
    let log = home.path("serve.log");
    let mut serve = Serve::start_as(&home, &["--algorithm", "aurora", "--learn"], |command| {
        command.env("CCPLANE_LOG", "ccplane_agent::learning=debug").stderr(fs::File::create(&log).unwrap())
    });
    let got = serve.client(&home, "get", &["file", "-o", "-"]);
    assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
    let trust = ["--fingerprint", &serve.fingerprint];
    let arguments = [&["quic", "get", &serve.address, "endless", "-o", "-"], &trust[..]].concat();
    let mut client = home.command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The learner runs at the lowest priority, so other work keeps it waiting.
    ccplane_testing::wait_within(LONG, "an update of the policy", || {
        fs::read_to_string(&log).unwrap().contains("learned from live rows").then_some(())
    });
    let _ = client.kill();
    let _ = client.wait();
    assert_eq!(serve.interrupt(), Some(0));
    assert_eq!(serve.said()["request"], "get file");
    let learners = serve.said()["learners"].clone();
    assert_eq!((&learners[0]["algorithm"], &learners[0]["failed"]), (&"aurora".into(), &false.into()));
    assert!(learners[0]["rows"].as_u64().unwrap() >= 1024, "{learners}");
}

#[test]
fn a_server_begins_with_what_an_earlier_one_kept() {
    let home = Home::new("learn.mode = \"live\"\n");
    let sent = content(&home.path("served/file"), 1_000_000);
    let kept = home.path("kept/below");
    let folder = kept.to_str().unwrap();
    let serve = |folder: &str| {
        let more = ["--algorithm", "aurora", "--learn", "--keep", folder];
        Serve::start_as(&home, &more, |command| command.stderr(Stdio::piped()))
    };
    let mut first = serve(folder);
    assert_eq!(first.snapshot, None, "nothing is kept yet");
    assert_eq!(first.interrupt(), Some(0));

    // A folder as a server keeps it: another snapshot of Aurora's network, with its policy.
    let shipped = ccplane_algs::Aurora::default().policies().remove(0);
    let mut parts = Snapshot::built_in(shipped.snapshot).unwrap().into_parts();
    parts.provenance.created_by = "an earlier server".to_owned();
    let learned = Snapshot::new(parts).unwrap();
    let name = learned.hash().to_string();
    fs::write(kept.join("aurora.active"), &name).unwrap();
    fs::write(kept.join(format!("{name}.snapshot")), learned.to_bytes()).unwrap();
    fs::write(kept.join(format!("{name}.safetensors")), &shipped.policy).unwrap();
    let mut next = serve(folder);
    assert_eq!(next.snapshot, Some(name));
    let got = next.client(&home, "get", &["file", "-o", "-"]);
    assert!(got.status.success() && got.stdout == sent, "{}", stderr(&got));
    assert_eq!(next.interrupt(), Some(0));

    let file = home.path("served/file");
    let arguments = ["quic", "serve", "--learn", "--algorithm", "aurora", "--keep", file.to_str().unwrap()];
    let output = home.run(&arguments);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("served/file"), "{}", stderr(&output));
    assert_eq!(home.run(&["quic", "serve", "--keep", folder]).status.code(), Some(2), "without --learn");
}

/// Makes a command run in another network namespace where it may not write beside the agent's socket.
fn elsewhere<'c>(command: &'c mut Command, home: &Home, namespace: &Namespace) -> &'c mut Command {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let environment: Vec<_> =
        command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    *command = Command::new("unshare");
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script]).arg(home.dir()).arg(program).args(arguments);
    for (key, value) in environment {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    namespace.enter(command).unwrap()
}

#[test]
fn the_machines_agent_steers_flows_of_another_network_namespace() {
    if !ccplane_emulator::netns::available() {
        return ccplane_testing::skipped("flows of another network namespace", "namespaces need root");
    }
    let home = Home::new("default_algorithm = \"reno\"\n");
    endless(&home.path("served/endless"));
    let _agent = home.agent();
    let namespace = Namespace::anonymous().unwrap();

    // An abstract name, which the agent does not see.
    let log = home.path("serve.log");
    let lost = Serve::start_as(&home, &["--agent"], |command| {
        command.env("TMPDIR", "/nonexistent").env_remove("XDG_RUNTIME_DIR");
        elsewhere(command, &home, &namespace).stderr(fs::File::create(&log).unwrap())
    });
    wait_for("a word about the agent", || {
        let said = fs::read_to_string(&log).unwrap();
        let place = home.dir().display();
        let words = format!("the agent runs, but answers nothing at {place}/ccp.sock: flows run Reno");
        (said.contains(&words) && said.contains("--algorithm")).then_some(())
    });
    drop(lost);

    let mut serve =
        Serve::start_as(&home, &[], |command| elsewhere(command, &home, &namespace).stderr(Stdio::null()));
    let trust = ["--fingerprint", &serve.fingerprint];
    let arguments = [&["quic", "get", &serve.address, "endless", "-o", "-"], &trust[..]].concat();
    let mut client = home.command(&arguments);
    let client = namespace.enter(&mut client).unwrap();
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("a flow that the agent steers", || {
        home.json(&["flows"]).to_string().contains("\"program\"").then_some(())
    });
    let _ = client.kill();
    let _ = client.wait();
    assert_eq!(serve.interrupt(), Some(0));
}

fn the_machines_agent_steers() -> Option<()> {
    let home = Home::new("default_algorithm = \"reno\"\n");
    let sent = content(&home.path("served/file"), 40_000_000);
    let agent = home.agent();
    let serve = Serve::start(&home, &[]);
    wait_for("the agent has the datapath", || {
        let status = home.json(&["status"]);
        let datapaths = status["datapaths"].as_array()?.clone();
        datapaths.iter().any(|d| d.to_string().contains("quic")).then_some(())
    });
    let trust = ["--fingerprint", &serve.fingerprint];
    let arguments = [&["quic", "get", &serve.address, "file", "-o", "-"], &trust[..]].concat();
    let mut client = home.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = client.stdout.take().unwrap();
    let at_once = AtomicBool::new(false);
    // A slow reader makes the transfer slow, so that there is time for the rest.
    let read = || {
        let (mut got, mut chunk) = (Vec::new(), vec![0; 4096]);
        while !at_once.load(Relaxed) {
            let count = output.read(&mut chunk).unwrap();
            assert!(count > 0, "all of it came too early");
            got.extend_from_slice(&chunk[..count]);
            std::thread::sleep(Duration::from_millis(2));
        }
        // From now on without its agent.
        let (began, mut arrived) = (Instant::now(), vec![(0, got.len() as u64)]);
        loop {
            let count = output.read(&mut chunk).unwrap();
            got.extend_from_slice(&chunk[..count]);
            arrived.push((began.elapsed().as_micros() as u64, got.len() as u64));
            if count == 0 {
                break;
            }
        }
        let died = Mishap { what: "kill -9".to_owned(), at_us: 0 };
        assert_never_stalled(&arrived, &[died], STALL);
        got
    };
    let got = std::thread::scope(|scope| {
        let reading = scope.spawn(read);
        wait_for("a flow that the agent steers", || {
            let flows = home.json(&["flows"]);
            flows.to_string().contains("\"program\"").then_some(())
        });
        // It dies in the middle; the flow goes on natively.
        agent.signal(Signal::SIGKILL);
        at_once.store(true, Relaxed);
        reading.join().unwrap()
    });
    assert!(client.wait().unwrap().success());
    assert!(got == sent, "what arrived is something else");
    Some(())
}

/// Each time to a new flow.
mod mishaps {
    ccplane_testing::mishaps! {
        2 the_machines_agent_steers,
    }
}

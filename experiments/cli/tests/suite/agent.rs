//! The agent as a process: start, refusals, signals, sockets, and hostile clients.

use crate::common::{Agent, Home, as_nobody, ccplane, exchange, failed, stderr, stdout, wait_for};
use ccplane_contract::FlowInfo;
use ccplane_snapshot::Snapshot;
use ccplane_testing::{lacks, skipped};
use ccplane_wait::Class;
use ccplane_wire::v1::{self, AddrOrder};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const FILES: [&str; 3] = ["control.sock", "ccp.sock", "agent.lock"];

#[test]
fn the_default_configuration_is_printed_and_accepted() {
    let printed = ccplane(&["agent", "--print-default-config"]);
    assert_eq!(printed.status.code(), Some(0));
    let home = Home::new("");
    fs::write(home.config(), &printed.stdout).unwrap();
    let checked = home.run(&["agent", "--check-config"]);
    assert_eq!(checked.status.code(), Some(0), "{}", stderr(&checked));
    let names = stdout(&ccplane(&["agent", "--list-algorithms"]));
    assert!(names.lines().any(|n| n == "cubic") && names.lines().any(|n| n == "reno"), "{names}");
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place_and_nothing_is_made() {
    let home = Home::new("[agent]\nheartbeat_timeout_ms = 5\n");
    for arguments in [&["agent"][..], &["agent", "--check-config"], &["status"]] {
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = stderr(&output);
        let expected =
            format!("{}:4:24: agent.heartbeat_timeout_ms: 5 is out of range", home.config().display());
        assert!(said.contains(&expected), "{said}");
    }
    assert!(FILES.iter().all(|f| !home.path(f).exists()));
}

#[test]
fn arms_of_a_portfolio_may_have_snapshots_of_their_own() {
    let policies = concat!(env!("CARGO_MANIFEST_DIR"), "/../../algs/policies");
    let check = |second: &str| {
        let arms = format!("[portfolio]\narms = [\n  \"cubic\",\n  {second},\n]\n");
        let home = Home::new(&arms);
        let output = home.run(&["agent", "--check-config"]);
        (output.status.code(), stderr(&output))
    };
    let with = |algorithm: &str, snapshot: &str| {
        check(&format!("{{ algorithm = \"{algorithm}\", snapshot = \"{snapshot}\" }}"))
    };
    let accepted = with("mocc", &format!("{policies}/mocc.snapshot"));
    assert_eq!(accepted, (Some(0), String::new()));
    for (algorithm, file, said) in [
        ("aurora", "mocc.snapshot", "is of `mocc`"),
        ("cubic", "mocc.snapshot", "asks no policy"),
        ("aurora", "README.md", "README.md: "),
        ("aurora", "none.snapshot", "none.snapshot"),
    ] {
        let (code, stderr) = with(algorithm, &format!("{policies}/{file}"));
        assert!(code == Some(2) && stderr.contains(said), "{algorithm}, {file}: {stderr}");
        assert!(stderr.contains(":6:3: portfolio.arms[1]: "), "{stderr}");
    }
    // One by its hash: kept beside the control socket, and nowhere.
    let learned = fs::read(format!("{policies}/mocc.snapshot")).unwrap();
    let hash = Snapshot::parse(&learned).unwrap().hash();
    let home =
        Home::new(&format!("[portfolio]\narms = [{{ algorithm = \"mocc\", snapshot = \"{hash}\" }}]\n"));
    let refused = home.run(&["agent", "--check-config"]);
    let said = stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for folder in [home.path("policies"), "/var/lib/ccplane/policies".into()] {
        assert!(said.contains(&format!("{}/{hash}.snapshot", folder.display())), "{said}");
    }
    fs::create_dir(home.path("policies")).unwrap();
    fs::write(home.path(&format!("policies/{hash}.snapshot")), learned).unwrap();
    let accepted = home.run(&["agent", "--check-config"]);
    assert_eq!((accepted.status.code(), stderr(&accepted)), (Some(0), String::new()));
    let (code, said) = check("{ algorithm = \"mocc\", hash = 1 }");
    assert!(code == Some(2) && said.contains("unknown field `hash`"), "{said}");
}

#[test]
fn a_missing_configuration_is_an_input_error() {
    failed(&ccplane(&["agent", "--config", "/nonexistent/ccp.toml"]), 2, "/nonexistent/ccp.toml");
    assert_eq!(ccplane(&["agent", "--no-such-flag"]).status.code(), Some(2));
}

#[test]
fn a_run_directory_that_others_can_enter_is_refused() {
    let home = Home::new("");
    fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    failed(&home.run(&["agent"]), 1, "mode 0700");
}

#[test]
fn sockets_are_the_owners_only() {
    let home = Home::new("");
    let _agent = home.agent();
    for (file, mode) in [("", 0o700), ("control.sock", 0o600), ("ccp.sock", 0o600), ("agent.lock", 0o600)] {
        let found = fs::metadata(home.path(file)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{file}: {found:o}");
    }
}

#[test]
fn a_second_agent_is_refused_and_harms_nothing() {
    let home = Home::new("");
    let agent = home.agent();
    let second = home.run(&["agent"]);
    assert_eq!(second.status.code(), Some(1));
    let said = stderr(&second);
    assert!(
        said.contains("an agent is running already") && said.contains(&agent.pid().to_string()),
        "{said}"
    );
    assert_eq!(home.json(&["status"])["pid"], agent.pid());
    let clean = home.run(&["doctor", "--clean"]);
    assert_eq!(clean.status.code(), Some(1), "nothing is cleaned from under a live agent");
    assert_eq!(home.json(&["status"])["pid"], agent.pid());
}

#[test]
fn a_kernel_datapath_that_is_off_is_logged_with_the_reason() {
    let home = Home::new("");
    let _agent = home.agent();
    let log = home.log();
    assert!(
        log.contains("INFO") && log.contains("kernel datapath off why=\"datapath.ebpf.mode is off\""),
        "{log}"
    );
}

#[test]
fn sigterm_stops_it_and_removes_its_files() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let home = Home::new("");
        let mut agent = home.agent();
        assert!(FILES.iter().all(|f| home.path(f).exists()));
        agent.signal(signal);
        assert_eq!(agent.wait(), Some(0), "{}", home.log());
        assert!(FILES.iter().all(|f| !home.path(f).exists()));
    }
}

#[test]
fn stop_waits_until_it_is_gone() {
    let home = Home::new("");
    let mut agent = home.agent();
    let output = home.run(&["stop"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!home.path("control.sock").exists());
    assert_eq!(agent.wait(), Some(0));
    failed(&home.run(&["stop"]), 1, "no agent runs");
}

#[test]
fn an_agent_that_is_stopped_may_leave_its_flows_to_the_next() {
    let home = Home::new("");
    for (arguments, said) in [
        (&["stop", "--leave"][..], "stopping: flows are left to the next agent"),
        (&["stop"][..], "stopping: flows go to their native algorithm"),
    ] {
        let mut agent = home.agent();
        let output = home.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(agent.wait(), Some(0));
        assert!(home.log().contains(said), "{}", home.log());
    }
}

#[test]
fn readers_of_flows_are_bounded_and_who_is_refused_is_told_why() {
    let home = Home::new("");
    let _agent = home.agent();
    let reads = || {
        let mut stream = home.control();
        stream.write_all(b"{\"request\":\"qlog\",\"filter\":{}}\n").unwrap();
        let mut answer = String::new();
        let mut stream = BufReader::new(stream);
        stream.read_line(&mut answer).unwrap();
        (stream, answer)
    };
    let mut readers: Vec<_> = (0..8).map(|_| reads()).collect();
    for (_, answer) in &readers {
        assert!(answer.contains("reference_ms"), "{answer}");
    }
    // Not by `ccplane qlog`, which would read on for ever where it is not refused.
    let (_, refused) = reads();
    assert!(refused.contains("8 readers follow flows, the most allowed"), "{refused}");
    readers.pop();
    wait_for("a reader who left makes room", || reads().1.contains("reference_ms").then_some(()));
}

#[test]
fn after_kill_9_the_next_agent_replaces_stale_sockets() {
    let home = Home::new("");
    let mut agent = home.agent();
    agent.signal(Signal::SIGKILL);
    assert_eq!(agent.wait(), None);
    assert!(home.path("control.sock").exists(), "nobody could remove it");
    let status = home.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(stderr(&status).contains("no agent runs"), "{}", stderr(&status));
    let next = home.agent();
    assert_eq!(home.json(&["status"])["pid"], next.pid());
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let home = Home::new("");
    fs::write(home.path("control.sock"), "precious").unwrap();
    failed(&home.run(&["agent"]), 1, "not a socket");
    assert_eq!(fs::read(home.path("control.sock")).unwrap(), b"precious");
}

#[test]
fn rules_are_replaced_by_reload_and_sighup_or_not_at_all() {
    let home = Home::new("");
    let agent = home.agent();
    let rule = "[[rule]]\nalgorithm = \"reno\"\nremote_port = 443\n";
    let base = "datapath.ebpf.mode = \"off\"\n";
    home.configure(&format!("default_algorithm = \"reno\"\n{base}{rule}"));
    assert_eq!(home.run(&["reload"]).status.code(), Some(0));
    let status = home.json(&["status"]);
    assert_eq!((&status["default_algorithm"], &status["rules"]), (&"reno".into(), &1.into()));

    home.configure(&format!("default_algorithm = \"none\"\n{base}"));
    failed(&home.run(&["reload"]), 2, "no algorithm is called `none`");
    assert_eq!(home.json(&["status"])["rules"], 1, "nothing was changed");

    home.configure(&format!("{base}{rule}{rule}"));
    agent.signal(Signal::SIGHUP);
    wait_for("SIGHUP reloads", || (home.json(&["status"])["rules"] == 2).then_some(()));
}

#[test]
fn garbage_on_the_control_socket_is_answered_and_forgotten() {
    let home = Home::new("control.timeout_ms = 10000\ncontrol.max_clients = 3");
    let _agent = home.agent();
    for garbage in ["\n", "{}\n", "[]\n", "{\"request\":\"dance\"}\n", "\u{0}\u{1}\u{2}\n", "{\"request\":\n"]
    {
        let answer = exchange(home.control(), garbage.as_bytes());
        assert!(answer.contains("\"response\":\"error\""), "{garbage:?}: {answer}");
    }
    // Without end: refused at the limit, not collected.
    let answer = exchange(home.control(), &vec![b'x'; 1 << 20]);
    assert!(answer.is_empty() || answer.contains("at most 262144 bytes"), "{answer}");
    // Several requests on one connection, the last without its newline.
    let answer = exchange(home.control(), b"{\"request\":\"version\"}\ngarbage\n{\"request\":\"version\"}");
    assert_eq!(answer.lines().count(), 3, "{answer}");
    assert!(answer.lines().nth(2).unwrap().contains("\"response\":\"version\""), "{answer}");
    assert!(home.run(&["status"]).status.success());
}

#[test]
fn clients_that_hang_hold_nobody_up_for_long() {
    let home = Home::new("control.timeout_ms = 4000\ncontrol.max_clients = 3");
    let _agent = home.agent();
    let mut hung: Vec<_> = (0..3).map(|_| home.control()).collect();
    hung[0].write_all(b"{\"request\"").unwrap();
    let turned_away = exchange(home.control(), b"");
    assert!(turned_away.contains("3 clients are being served"), "{turned_away}");
    let start = Instant::now();
    wait_for("the hung clients are disconnected", || home.run(&["status"]).status.success().then_some(()));
    assert!(start.elapsed() < Duration::from_secs(20));
    let mut said = String::new();
    hung[0].read_to_string(&mut said).unwrap();
    assert!(said.contains("no complete request within 4s"), "{said}");
}

#[test]
fn another_user_is_refused_even_where_file_modes_let_it_in() {
    if !nix::unistd::geteuid().is_root() {
        ccplane_testing::skipped("another_user_is_refused", "needs root, to become another user");
        return;
    }
    let home = Home::new("");
    let _agent = home.agent();
    let (control, datapath) = (home.path("control.sock"), home.path("ccp.sock"));
    let refused = as_nobody(|| UnixStream::connect(&control)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);

    fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o711)).unwrap();
    for socket in [&control, &datapath] {
        fs::set_permissions(socket, fs::Permissions::from_mode(0o666)).unwrap();
    }
    let answer = as_nobody(|| exchange(UnixStream::connect(&control).unwrap(), b"{\"request\":\"stop\"}\n"));
    assert!(answer.contains("user 65534 may not speak"), "{answer}");

    as_nobody(|| {
        let name = SocketAddr::from_abstract_name(format!("ccp-stranger-{}", std::process::id())).unwrap();
        let stranger = UnixDatagram::bind_addr(&name).unwrap();
        let mut ready = Vec::new();
        v1::ToAgent::Ready { id: 0 }.encode(&mut ready).unwrap();
        stranger.send_to(&ready, &datapath).unwrap();
    });
    let status = wait_for("the datagram is counted", || {
        let status = home.json(&["status"]);
        (status["counters"]["malformed_datagrams"] == 1).then_some(status)
    });
    assert_eq!(status["datapaths"].as_array().unwrap().len(), 0, "it did not become a datapath");
    assert!(home.log().contains("user 65534 may not speak"), "{}", home.log());
}

/// Creates a flow as libccp does, and returns its socket once the agent has given it a program.
fn steered(home: &Home) -> UnixDatagram {
    let datapath = UnixDatagram::bind(home.path("libccp")).unwrap();
    datapath.connect(home.path("ccp.sock")).unwrap();
    datapath.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    let send = |message: &v1::ToAgent<'_>| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        datapath.send(&bytes).unwrap();
    };
    let info = FlowInfo::example(1448, 14_480);
    send(&v1::ToAgent::Ready { id: 0 });
    send(&v1::ToAgent::Create(v1::Create::from_info(1, &info, AddrOrder::Network, None).unwrap()));
    let mut types = Vec::new();
    while !types.contains(&v1::MsgType::ChangeProg) {
        let mut buffer = [0; 65_536];
        let n = datapath.recv(&mut buffer).unwrap();
        types.extend(v1::frames(&buffer[..n]).map(|f| f.unwrap().ty));
    }
    assert!(types.contains(&v1::MsgType::Install), "{types:?}");
    datapath
}

#[test]
fn garbage_on_the_datapath_socket_is_counted_and_flows_are_still_steered() {
    let home = Home::new("");
    let _agent = home.agent();
    let garbage = UnixDatagram::bind(home.path("garbage")).unwrap();
    garbage.connect(home.path("ccp.sock")).unwrap();
    for length in 1..100 {
        garbage.send(&vec![0xff; length]).unwrap();
    }
    wait_for("garbage is counted", || {
        (home.json(&["status"])["counters"]["malformed_datagrams"] == 99).then_some(())
    });

    let _datapath = steered(&home);
    let flows = home.json(&["flows"]);
    let flow = &flows["flows"][0];
    assert_eq!(flow["datapath"], "ccp-v1");
    assert_eq!((&flow["algorithm"], &flow["mode"]), (&"cubic".into(), &"program".into()));
    let text = stdout(&home.run(&["flows"]));
    assert!(text.contains("10.0.0.2:5001") && text.contains("minrtt:"), "{text}");
    let programs = stdout(&home.run(&["programs"]));
    assert!(programs.contains("ccp-v1") && programs.contains("installed"), "{programs}");
}

/// Held by each test whose agent keeps to the last core, of which threads under SCHED_FIFO leave others next to nothing.
fn last_core() -> MutexGuard<'static, ()> {
    static LAST_CORE: Mutex<()> = Mutex::new(());
    LAST_CORE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn every_way_to_wait_serves_and_stops() {
    let _alone = last_core();
    for wake in ["sleep", "spin", "busy", "auto", "dispatch"] {
        let home = Home::new(&format!("agent.wake = \"{wake}\""));
        let mut agent = home.agent();
        let _datapath = steered(&home);
        let status = home.json(&["status"]);
        assert_eq!(status["pid"], agent.pid());
        let peers = &status["loops"][0];
        assert_eq!((&peers["name"], &peers["wake"]), (&"peers".into(), &wake.into()));
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.wait(), Some(0), "{wake}: {}", home.log());
    }
}

/// The scheduling policy of the agent's thread whose name begins so (proc(5), the 41st field of its stat).
fn policy(agent: &Agent, thread: &str) -> Option<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    // The name, in parentheses, is the second field.
    stats.find_map(|stat| {
        let (before, fields) = stat.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        name.starts_with(thread).then(|| fields.split(' ').nth(38).unwrap().to_owned())
    })
}

#[test]
fn a_dispatcher_and_its_loops_go_before_other_threads_where_that_is_asked_for() {
    let test = "a dispatcher and its loops under SCHED_FIFO";
    let cores = ccplane_wait::affinity::cores().unwrap();
    if cores.len() < 2 {
        return skipped(test, "one core");
    }
    let _alone = last_core();
    let last = *cores.last().unwrap();
    let begun = std::thread::spawn(move || ccplane_wait::begin(last, Class::Fifo).map(drop)).join().unwrap();
    if lacks(test, begun.err()) {
        return;
    }
    for (fifo, expected) in [(false, "0"), (true, "1")] {
        let home = Home::new(&format!("agent.wake = \"dispatch\"\nagent.dispatch_fifo = {fifo}"));
        let mut agent = home.agent();
        let _datapath = steered(&home);
        for thread in ["ccp-watch", "ccp-peers"] {
            assert_eq!(policy(&agent, thread).as_deref(), Some(expected), "{thread}, {fifo}");
        }
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.wait(), Some(0), "{}", home.log());
    }
}

#[test]
fn loops_keep_to_the_cores_of_the_configuration() {
    let _alone = last_core();
    for wake in ["sleep", "dispatch"] {
        let core = ccplane_wait::affinity::cores().unwrap()[0];
        let home = Home::new(&format!("agent.wake = \"{wake}\"\nagent.cores = [{core}]"));
        let _agent = home.agent();
        assert_eq!(home.json(&["status"])["loops"][0]["cores"], serde_json::json!([core]), "{wake}");
        let text = stdout(&home.run(&["status"]));
        let line = text.lines().find(|line| line.starts_with("peers")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["peers", wake, &core.to_string()], "{text}");
    }
    let core = *ccplane_wait::affinity::cores().unwrap().last().unwrap();
    let home = Home::new("");
    fs::write(home.path("host.cores"), format!("[{core}]\n")).unwrap();
    home.configure(&format!(
        "datapath.ebpf.mode = \"off\"\nagent.cores_file = {:?}\n",
        home.path("host.cores")
    ));
    let agent = home.agent();
    assert_eq!(home.json(&["status"])["loops"][0]["cores"], serde_json::json!([core]));
    drop(agent);
    let home = Home::new("agent.cores = [1023]");
    let refused = home.run(&["agent"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = stderr(&refused);
    assert!(said.contains("agent.cores: core 1023 is none of those that this process may run on"), "{said}");
    assert!(stderr(&home.run(&["status"])).contains("no agent runs"), "who only asks may run elsewhere");
}

#[test]
fn flows_are_watched_until_the_reader_leaves() {
    let home = Home::new("");
    let _agent = home.agent();
    let mut command = home.command(&["flows", "--watch", "0.1", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = lines.next().unwrap().unwrap();
        assert!(line.starts_with("{\"flows\":["), "{line}");
    }
    drop(lines);
    let status = wait_for("it ends when nobody reads", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    failed(&home.run(&["adopt", "cubic"]), 1, "kernel's flows are not steered");
}

/// A hung agent cannot answer: the command says so, and within its time limit.
#[test]
fn a_hung_agent_is_reported() {
    let home = Home::new("control.timeout_ms = 300");
    let agent = home.agent();
    agent.signal(Signal::SIGSTOP);
    let start = Instant::now();
    let output = home.run(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains(&format!("agent pid {} has not answered", agent.pid())), "{said}");
    assert!(start.elapsed() < Duration::from_secs(20));
    agent.signal(Signal::SIGCONT);
    wait_for("it answers again", || home.run(&["status"]).status.success().then_some(()));
}

/// A client must not be hurt by a hostile server either.
#[test]
fn an_answer_that_is_none_is_refused() {
    let home = Home::new("");
    let listener = UnixListener::bind(home.path("control.sock")).unwrap();
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 64];
        let _ = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\n").unwrap();
    });
    failed(&home.run(&["status"]), 1, "cannot be read");
    impostor.join().unwrap();
}

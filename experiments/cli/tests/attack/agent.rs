//! Agents on a machine that runs out of resources, under an impatient operator, beside a hostile user: whatever happens,
//! nothing stays in the kernel, nobody else's file is touched, and the exit code tells.

use crate::common::lab::LABS;
use crate::common::{Agent, Home, PATIENCE, as_nobody, failed, is_registered, stderr, taken, wait_for};
use ccplane_testing::killed::Marked;
use ccplane_testing::{attack_scale, lacks, skipped};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const NOBODY: u32 = 65_534;
/// The exit code of a Rust program that panicked.
const PANICKED: i32 = 101;
/// The largest of a file that stands for one which is too large, bytes.
const LARGE_BYTES: u64 = 300 << 20;

/// A home whose agent attaches to the kernel under a name of its own.
struct Attached {
    home: Home,
    name: String,
    _marked: Marked,
}

impl Attached {
    /// Returns none, and reports a skip, where the machine cannot run the test.
    fn new(test: &str, more: &str) -> Option<Attached> {
        if lacks(test, ccplane_ebpf::missing()) {
            return None;
        }
        let home = Home::new("");
        let _marked = LABS.mark(home.dir()).unwrap();
        let attached = Attached { home, name: format!("cca_{test}"), _marked };
        attached.configure(more);
        Some(attached)
    }

    fn configure(&self, more: &str) {
        let (name, run_dir) = (&self.name, self.home.dir().display());
        self.home.configure(&format!(
            "{more}\ndatapath.ebpf.mode = \"on\"\ndatapath.ebpf.name = \"{name}\"\n\
             datapath.ebpf.run_dir = \"{run_dir}\"\n"
        ));
    }

    fn is_registered(&self) -> bool {
        is_registered(&self.name)
    }

    fn pins(&self) -> [PathBuf; 2] {
        [self.home.path("bpf").join(&self.name), Path::new("/sys/fs/bpf").join(&self.name)]
    }

    fn assert_clean(&self, after: &str) {
        let left: Vec<_> = self.pins().into_iter().filter(|pin| pin.exists()).collect();
        assert!(left.is_empty(), "after {after}: {left:?}");
        wait_for(&format!("after {after} no congestion control is left"), || {
            (!self.is_registered()).then_some(())
        });
    }

    /// Runs an agent under limits of prlimit(1) until it ends by itself, or has served and is told to stop.
    fn limited(&self, limit: &str) -> ExitStatus {
        let log = fs::File::create(self.home.path("log")).unwrap();
        let mut command = Command::new("prlimit");
        command.arg(limit).arg(env!("CARGO_BIN_EXE_ccplane")).arg("agent");
        command.env("CCPLANE_CONFIG", self.home.config()).stderr(log).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut told = false;
        wait_for("a limited agent ends", || {
            let ended = child.try_wait().unwrap();
            if !told && self.home.log().contains("agent runs") {
                told = true;
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGTERM)
                    .unwrap();
            }
            ended
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.home.run(&["doctor", "--clean"]);
    }
}

#[test]
fn a_start_that_fails_after_attaching_leaves_nothing() {
    let Some(attached) = Attached::new("fails", "") else { return };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap();
    let in_the_way = attached.home.path("plain");
    fs::write(&in_the_way, "precious").unwrap();
    let cases = [
        (format!("metrics.listen = \"{port}\""), "metrics.listen", "Address already in use"),
        (
            "metrics.listen = \"192.0.2.1:9\"\nmetrics.allow_remote = true".to_owned(),
            "metrics.listen",
            "192.0.2.1:9",
        ),
        (format!("datapath.unix.socket = {in_the_way:?}"), "datapath.unix.socket", "not a socket"),
    ];
    for (more, field, said) in cases {
        attached.configure(&more);
        let text = fs::read_to_string(attached.home.config()).unwrap();
        let line = text.lines().position(|line| line.starts_with(field)).unwrap() + 1;
        let place = format!("{}:{line}:{}: {field}: ", attached.home.config().display(), field.len() + 4);
        let output = attached.home.run(&["agent"]);
        assert_eq!(output.status.code(), Some(1), "{more}");
        let complaint = stderr(&output);
        assert!(complaint.contains(said) && complaint.contains(&place), "{more}: {complaint}");
        assert!(
            stderr(&output).contains("kernel datapath attached"),
            "it fails afterwards: {}",
            stderr(&output)
        );
        attached.assert_clean(&more);
    }
    assert_eq!(fs::read(&in_the_way).unwrap(), b"precious");
}

#[test]
fn an_agent_short_of_descriptors_or_address_space_leaves_nothing_and_says_so() {
    let Some(attached) = Attached::new("short", "") else { return };
    let descriptors = attack_scale(vec![9, 20, 24, 34, 40, 48], (8..64).collect());
    for count in descriptors {
        let status = attached.limited(&format!("--nofile={count}"));
        let log = attached.home.log();
        attached.assert_clean(&format!("{count} descriptors"));
        match status.code() {
            Some(0) => assert!(log.contains("agent runs"), "{count}: {log}"),
            code => assert!(code == Some(1) && log.contains("ccplane:"), "{count}: {status} {log}"),
        }
    }
    let bytes = attack_scale(vec![100, 120, 140, 300], (60..200).step_by(2).collect());
    for mib in bytes {
        let status = attached.limited(&format!("--as={}", mib << 20));
        attached.assert_clean(&format!("{mib} MiB of address space"));
        assert_ne!(status.code(), Some(PANICKED), "{mib}: {}", attached.home.log());
        if status.code() == Some(0) {
            assert!(attached.home.log().contains("agent runs"), "{mib}: {}", attached.home.log());
        }
    }
}

#[test]
fn an_agent_whose_address_space_is_used_up_stops_and_tells() {
    let Some(attached) = Attached::new("tight", "") else { return };
    for slack in attack_scale(vec![0], vec![0, 1 << 12, 1 << 16, 1 << 20, 1 << 22]) {
        let mut agent = attached.home.agent();
        let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
        let size = status.lines().find_map(|l| l.strip_prefix("VmSize:")).unwrap();
        let kib: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
        let limit = format!("--as={}", kib * 1024 + slack);
        let limited = Command::new("prlimit").args(["--pid", &agent.pid().to_string(), &limit]).status();
        assert!(limited.unwrap().success());
        let stopped = attached.home.run(&["stop"]);
        let code = agent.wait();
        attached.assert_clean("stop without address space");
        assert_eq!(
            stopped.status.code(),
            code,
            "the answer is true: {}{}",
            stderr(&stopped),
            attached.home.log()
        );
    }
}

#[test]
fn several_signals_at_once_do_not_skip_the_clean_up() {
    let Some(attached) = Attached::new("signals", "") else { return };
    let signals = [Signal::SIGTERM, Signal::SIGCONT, Signal::SIGTERM, Signal::SIGINT, Signal::SIGTERM];
    for round in 0..attack_scale(4, 40) {
        let mut agent = attached.home.agent();
        assert!(attached.is_registered());
        signals.iter().take(2 + round % 4).for_each(|signal| agent.signal(*signal));
        assert_eq!(agent.wait(), Some(0), "{}", attached.home.log());
        attached.assert_clean("signals");
    }
    // As it starts: before it is attached, while it attaches, and after.
    let reached: [(&str, &dyn Fn() -> bool); 6] = [
        ("it has begun", &|| true),
        ("it has its lock", &|| attached.home.path("agent.lock").exists()),
        ("it pins", &|| attached.pins().iter().any(|pin| pin.exists())),
        ("it is registered", &|| attached.is_registered()),
        ("it is attached", &|| attached.home.log().contains("kernel datapath attached")),
        ("it runs", &|| attached.home.log().contains("agent runs")),
    ];
    for (what, has_reached) in reached.iter().cycle().take(attack_scale(6, 60)) {
        let _ = fs::remove_file(attached.home.path("agent.lock"));
        let log = fs::File::create(attached.home.path("log")).unwrap();
        let mut command = attached.home.command(&["agent"]);
        let mut child = command.stderr(log).stdout(Stdio::null()).spawn().unwrap();
        wait_for(what, || has_reached().then_some(()));
        let pid = nix::unistd::Pid::from_raw(child.id() as i32);
        let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
        let _ = nix::sys::signal::kill(pid, Signal::SIGTERM);
        wait_for("it ends", || child.try_wait().unwrap());
        attached.assert_clean("signals while it starts");
    }
}

#[test]
fn stop_tells_of_an_agent_that_a_signal_has_stopped_and_waits_no_longer() {
    let home = Home::new("control.timeout_ms = 300");
    let mut agent = home.agent();
    agent.signal(Signal::SIGSTOP);
    let start = Instant::now();
    let output = home.run(&["stop"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(
        said.contains("stopped by a signal") && said.contains(&format!("kill -CONT {}", agent.pid())),
        "{said}"
    );
    assert!(start.elapsed() < PATIENCE / 2);
    // The standstill itself: longer than the two seconds from which on the log tells of one.
    std::thread::sleep(Duration::from_secs(3));
    agent.signal(Signal::SIGCONT);
    wait_for("the log tells", || home.log().contains("the agent stood still").then_some(()));
    assert_eq!(home.run(&["stop"]).status.code(), Some(0), "it was not asked to stop before");
    assert_eq!(agent.wait(), Some(0));
}

#[test]
fn an_agent_whose_run_directory_is_removed_hands_its_flows_back_and_ends() {
    let Some(attached) = Attached::new("gone", "") else { return };
    let mut agent = attached.home.agent();
    for file in ["agent.lock", "control.sock", "ccp.sock", "ccp.sock.lock", "ebpf.lock"] {
        fs::remove_file(attached.home.path(file)).unwrap();
    }
    assert_eq!(agent.wait(), Some(1));
    let log = attached.home.log();
    assert!(log.contains("was removed underneath the agent"), "{log}");
    attached.assert_clean("the run directory's removal");
}

#[test]
fn stop_tells_that_the_run_directory_was_removed() {
    let home = Home::new("");
    let run = home.path("run");
    let configure = |socket: &Path| {
        fs::write(home.config(), format!("control.socket = {socket:?}\ndatapath.ebpf.mode = \"off\"\n"))
            .unwrap();
    };
    let stop = |words: &str| {
        let stopped = home.run(&["stop"]);
        assert_eq!(stopped.status.code(), Some(1), "{}", stderr(&stopped));
        assert_eq!(stderr(&stopped).contains("an agent whose run directory was removed"), !words.is_empty());
        assert!(stderr(&stopped).contains("no agent runs at") && stderr(&stopped).contains(words));
    };
    // Where a directory is, none was removed.
    configure(&home.path("control.sock"));
    stop("");
    configure(&run.join("control.sock"));
    let mut agent = home.agent();
    fs::remove_dir_all(&run).unwrap();
    stop("its directory is not there, and an agent whose run directory was removed ends by itself");
    assert_eq!(agent.wait(), Some(1));
    assert!(home.log().contains("was removed underneath the agent"), "{}", home.log());
}

/// Everything in the kernel is then the second agent's.
#[test]
fn an_agent_whose_locks_were_replaced_leaves_the_kernel_to_who_holds_them() {
    let Some(attached) = Attached::new("replaced", "") else { return };
    let mut first = attached.home.agent();
    first.signal(Signal::SIGSTOP);
    for file in ["agent.lock", "control.sock", "ccp.sock", "ccp.sock.lock", "ebpf.lock"] {
        fs::remove_file(attached.home.path(file)).unwrap();
    }
    fs::remove_file(format!("/run/ccplane/ebpf-{}.lock", attached.name)).unwrap();
    let mut second = Agent::of(&attached.home, "second.log");
    first.signal(Signal::SIGCONT);
    assert_eq!(first.wait(), Some(1));
    assert!(attached.is_registered(), "the second one's");
    assert_eq!(attached.home.json(&["status"])["pid"], second.pid());
    second.signal(Signal::SIGTERM);
    assert_eq!(second.wait(), Some(0));
    attached.assert_clean("both have ended");
}

#[test]
fn a_live_process_keeps_its_socket() {
    let home = Home::new("");
    let socket = home.path("other.sock");
    let configure =
        || home.configure(&format!("datapath.ebpf.mode = \"off\"\ndatapath.unix.socket = {socket:?}\n"));
    configure();
    let live = UnixDatagram::bind(&socket).unwrap();
    live.set_nonblocking(true).unwrap();
    failed(&home.run(&["agent"]), 1, "a process listens there already");
    UnixDatagram::unbound().unwrap().send_to(b"still mine", &socket).unwrap();
    assert_eq!(live.recv(&mut [0; 16]).unwrap(), 10);
    drop(live);
    drop(home.agent());

    let _ = fs::remove_file(home.path("control.sock"));
    let listener = UnixListener::bind(home.path("control.sock")).unwrap();
    failed(&home.run(&["agent"]), 1, "a process listens there already");
    drop(listener);
}

#[test]
fn of_agents_that_start_at_once_on_one_socket_one_has_it() {
    let socket = tempfile::tempdir().unwrap();
    let path = socket.path().join("ccp.sock");
    for _ in 0..attack_scale(3, 40) {
        let homes: Vec<Home> =
            (0..3).map(|_| Home::new(&format!("datapath.unix.socket = {path:?}\n"))).collect();
        let start = |home: &Home| {
            let log = fs::File::create(home.path("log")).unwrap();
            home.command(&["agent"]).stderr(log).stdout(Stdio::null()).spawn().unwrap()
        };
        let mut agents: Vec<_> = homes.iter().map(start).collect();
        let runs = |home: &&Home| home.log().contains("agent runs");
        wait_for("all have run or ended", || {
            let ended = agents.iter_mut().filter_map(|a| a.try_wait().unwrap()).count();
            (ended + homes.iter().filter(runs).count() == homes.len()).then_some(())
        });
        let running = homes.iter().filter(runs).count();
        for agent in &mut agents {
            agent.kill().unwrap();
            agent.wait().unwrap();
        }
        let said: String = homes.iter().map(Home::log).collect();
        assert_eq!(running, 1, "{said}");
        assert!(said.contains("a process listens there already"), "{said}");
    }
}

/// Another user's folder, in which entries are swapped without pause while an agent of root's starts: no file of root's
/// changes its mode.
#[test]
fn another_user_s_folder_is_not_used_and_nothing_in_it_is_changed() {
    if !geteuid().is_root() {
        return skipped("another user's folder", "needs root, to be two users");
    }
    let base = tempfile::tempdir().unwrap();
    fs::set_permissions(base.path(), Permissions::from_mode(0o755)).unwrap();
    let precious = base.path().join("precious");
    fs::write(&precious, "root's").unwrap();
    fs::set_permissions(&precious, Permissions::from_mode(0o444)).unwrap();
    let theirs = base.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    let (socket, link) = (theirs.join("ccp.sock"), theirs.join("link"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            as_nobody(|| {
                while !stop.load(Relaxed) {
                    let _ = fs::remove_file(&link);
                    let _ = symlink(&precious, &link);
                    let _ = fs::rename(&link, &socket);
                }
            });
        });
        for mode in [0o755, 0o777, 0o1777] {
            fs::set_permissions(&theirs, Permissions::from_mode(mode)).unwrap();
            for _ in 0..attack_scale(4, 60) {
                let home = Home::new(&format!("datapath.unix.socket = {socket:?}\n"));
                let output = home.run(&["agent"]);
                let said = stderr(&output);
                assert_eq!(output.status.code(), Some(1), "{said}");
                assert!(said.contains("must be a directory of user 0"), "{said}");
                let now = fs::metadata(&precious).unwrap().permissions().mode() & 0o7777;
                assert_eq!(now, 0o444, "{said}");
            }
        }
        stop.store(true, Relaxed);
    });
}

#[test]
fn a_link_in_place_of_the_control_directory_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let (target, link) = (base.path().join("target"), base.path().join("link"));
    fs::create_dir(&target).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o700)).unwrap();
    symlink(&target, &link).unwrap();
    let home = Home::new("");
    fs::write(
        home.config(),
        format!("control.socket = {:?}\ndatapath.ebpf.mode = \"off\"\n", link.join("control.sock")),
    )
    .unwrap();
    failed(&home.run(&["agent"]), 1, "is a symbolic link");
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "nothing is made there");
}

#[test]
fn files_without_end_are_refused_at_once_with_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, large) = (dir.path().join("pipe"), dir.path().join("large"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::File::create(&large).unwrap().set_len(LARGE_BYTES).unwrap();
    let commands: [&[&str]; 11] = [
        &["agent", "--check-config", "--config"],
        &["status", "--config"],
        &["trace", "check"],
        &["prog", "check"],
        &["snapshot", "inspect"],
        &["snapshot", "verify"],
        &["snapshot", "build", "--out", "/dev/null", "--policy"],
        &["run"],
        &["snapshot", "build", "--algorithm", "aurora", "--out", "/dev/null"],
        &["predict", "train", "/dev/null/none", "--labels", "/dev/null", "--images"],
        &["host", "learn"],
    ];
    for command in commands {
        for file in [Path::new("/dev/zero"), &pipe, &large] {
            // Less than the large file has: what reads all of it fails in another way.
            let mut limited = Command::new("prlimit");
            limited.args(["--as=400000000", env!("CARGO_BIN_EXE_ccplane")]).args(command).arg(file);
            let start = Instant::now();
            let output = limited.output().unwrap();
            let said = format!("{}{}", stderr(&output), crate::common::stdout(&output));
            assert_eq!(output.status.code(), Some(2), "{command:?} {}: {said}", file.display());
            let named = said.contains(&file.display().to_string());
            assert!(
                named && (said.contains("regular file") || said.contains("more than")),
                "{command:?}: {said}"
            );
            assert!(start.elapsed() < PATIENCE / 2, "{command:?} {}", file.display());
        }
    }
}

#[test]
fn what_is_wrong_in_a_configuration_is_said_with_file_and_line() {
    let home = Home::new("");
    let path = home.config();
    let cases: [(&[u8], &str); 3] = [
        (
            b"datapath.ebpf.mode = \"off\"\n[[rule]]\nalgorithm = \"cubic\"\nremote_port = 1\nparameters = { no_such = 1 }\n",
            ":5:26: rule[0].parameters.no_such: no parameter `no_such`; there are ",
        ),
        (
            b"[[rule]]\nalgorithm = \"cubic\"\nremote_port = 1\n[rule.parameters]\n# Below 0.\nreport_us = -1\n",
            ":6:13: rule[0].parameters.report_us: report_us is -1, allowed are 0..=",
        ),
        (b"log = \"info\"\n# \xff\n", ":2: byte 15 is not UTF-8 text"),
    ];
    for (text, place) in cases {
        fs::write(&path, text).unwrap();
        let output = home.run(&["agent", "--check-config"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{}{place}", path.display())), "{said}");
    }
}

/// Every thread of a running agent: nothing comes back, and the kernel's loop alone has capabilities.
#[test]
fn a_running_agent_has_given_up_what_it_does_not_need() {
    let Some(attached) = Attached::new("powers", "default_algorithm = \"aurora\"") else { return };
    let agent = attached.home.agent();
    taken::assert_confined(agent.pid(), 5);
    let threads = taken::threads(agent.pid());
    assert!(threads.len() >= 3, "{threads:?}");
    for thread in threads.iter().filter(|thread| taken::field(thread, "Name") != "ccp-kernel") {
        assert_eq!(taken::field(thread, "CapPrm"), "0".repeat(16));
    }
    #[cfg(target_arch = "x86_64")]
    taken::assert_can_do_little(agent.pid());
    #[cfg(not(target_arch = "x86_64"))]
    skipped("system calls of an agent that is taken over", "they are made on x86-64 only");
    assert!(attached.home.run(&["status"]).status.success(), "it lives");
}

/// `doctor` under fewer capabilities says which one is missing, before an agent fails for it.
#[test]
fn doctor_knows_which_capabilities_are_missing() {
    if !geteuid().is_root() {
        return skipped("doctor's capabilities", "needs root, to have fewer");
    }
    let Some(attached) = Attached::new("caps", "") else { return };
    let with = |bounding: &str, command: &[&str]| {
        let mut setpriv = Command::new("setpriv");
        setpriv.arg(format!("--bounding-set={bounding}")).arg(env!("CARGO_BIN_EXE_ccplane")).args(command);
        setpriv.env("CCPLANE_CONFIG", attached.home.config()).output().unwrap()
    };
    for (without, name) in [("-bpf", "CAP_BPF"), ("-net_admin", "CAP_NET_ADMIN"), ("-perfmon", "CAP_PERFMON")]
    {
        // CAP_SYS_ADMIN stands in for the first and the last, for older programs.
        let bounding = format!("{without},-sys_admin");
        let doctor = with(&bounding, &["doctor"]);
        let said = crate::common::stdout(&doctor);
        let missing = |line: &str| line.contains("MISSING") && line.contains(name);
        assert!(doctor.status.code() == Some(1) && said.lines().any(missing), "{without}: {said}");
        let agent = with(&bounding, &["agent"]);
        assert_eq!(agent.status.code(), Some(1), "{without}: {}", stderr(&agent));
    }
    // Where no BPF file system is mounted, as in a mount namespace that has taken it off.
    let script = "umount -l /sys/fs/bpf 2>/dev/null; exec setpriv --bounding-set=-sys_admin \"$0\" doctor";
    let mut unmounted = Command::new("unshare");
    unmounted.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_ccplane")]);
    unmounted.env("CCPLANE_CONFIG", attached.home.config());
    let said = crate::common::stdout(&unmounted.output().unwrap());
    assert!(said.lines().any(|l| l.contains("MISSING") && l.contains("CAP_SYS_ADMIN")), "{said}");
    // Another user's lock.
    let theirs = attached.home.path("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    attached.home.configure(&format!("datapath.ebpf.run_dir = {theirs:?}\n"));
    let said = crate::common::stdout(&attached.home.run(&["doctor"]));
    assert!(said.contains(&format!("{}: must be a directory of user 0", theirs.display())), "{said}");
}

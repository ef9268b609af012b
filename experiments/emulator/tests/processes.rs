//! Tests of the traces that processes leave behind, and of commands behind link shells. The file is its own child
//! process, whose role is the first argument.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::shell::{MmLink, Shell, mm_delay, mm_loss, mm_onoff};
use ccplane_emulator::{Direction, Emulator, LinkConfig, MultiPath, Shape, run_shell};
use ccplane_testing::{PATIENCE, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PORT: u16 = 5002;
/// Enough for one of them to be held up by nothing but links.
const PINGS: &str = "40";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["hold", how] => hold(how),
        ["emulate"] => emulate(),
        ["emulate-paths"] => emulate_paths(),
        ["ping", count] => ping(count.parse().unwrap()),
        ["mm-delay", ms, "--", ..] => shell(mm_delay(ms.parse().unwrap()), &arguments[3..]),
        ["mm-link", up, down, log, "--", ..] => {
            let mut link = MmLink { uplink: up.into(), downlink: down.into(), ..MmLink::default() };
            link.uplink_log = Some(log.into());
            link.uplink_queue = Some("droptail".into());
            link.uplink_queue_args = Some("packets=100".into());
            shell(link.shell(), &arguments[5..])
        }
        ["mm-loss", rate, "--", ..] => shell(mm_loss(Direction::Up, rate, 1), &arguments[3..]),
        ["mm-onoff", on, off, "--", ..] => shell(mm_onoff(Direction::Down, on, off, 1), &arguments[4..]),
        ["mm-delay-outside", ms, line, "--", ..] => {
            let delay = mm_delay(ms.parse().unwrap());
            shell(delay.map(|shell| Shell { outside: Some((*line).to_owned()), ..shell }), &arguments[4..])
        }
        ["echo"] => echo(),
        // What cargo's test runner passes.
        _ => tests(),
    }
}

fn tests() -> ExitCode {
    if !netns::available() {
        ccplane_testing::skipped("processes", "needs root and /dev/net/tun to make network namespaces");
        return ExitCode::SUCCESS;
    }
    for (name, test) in [
        ("every_exit_but_sigkill_cleans_up", every_exit_but_sigkill_cleans_up as fn()),
        ("leftovers_of_sigkill_are_found_and_removed", leftovers_of_sigkill_are_found_and_removed),
        ("a_killed_emulator_leaves_nothing", a_killed_emulator_leaves_nothing),
        ("killed_paths_leave_nothing", killed_paths_leave_nothing),
        ("nested_shells_reach_the_base", nested_shells_reach_the_base),
        ("a_shell_passes_signals_and_the_status_on", a_shell_passes_signals_and_the_status_on),
        ("a_command_that_cannot_start_leaves_nothing", a_command_that_cannot_start_leaves_nothing),
        ("killed_shells_leave_nothing", killed_shells_leave_nothing),
        ("an_ordinary_user_runs_shells", an_ordinary_user_runs_shells),
        ("a_bad_trace_is_refused_by_line", a_bad_trace_is_refused_by_line),
    ] {
        test();
        eprintln!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// A child that owns two named namespaces, prints their names and ends as told.
fn hold(how: &str) -> ExitCode {
    if how == "signal" {
        netns::clean_on_signals().unwrap();
    }
    let (a, b) = (Namespace::create("a").unwrap(), Namespace::create("b").unwrap());
    println!("{} {}", a.name().unwrap(), b.name().unwrap());
    match how {
        "panic" => panic!("as told"),
        "exit" => std::process::exit(0),
        "return" => return ExitCode::SUCCESS,
        _ => std::thread::sleep(Duration::from_secs(60)),
    }
    ExitCode::FAILURE
}

/// A child that owns an emulator and prints what its namespaces are.
fn emulate() -> ExitCode {
    let emulator = Emulator::start(&LinkConfig::symmetric(Shape::mbit(12), 1_000)).unwrap();
    print_identities([emulator.sender_ns(), emulator.receiver_ns()])
}

/// A child that owns several paths and prints what their namespaces are.
fn emulate_paths() -> ExitCode {
    let link = LinkConfig::symmetric(Shape::mbit(12), 1_000);
    let paths = MultiPath::start(&[link.clone(), link]).unwrap();
    print_identities([paths.sender_ns(), paths.receiver_ns()])
}

fn print_identities(namespaces: [&Namespace; 2]) -> ExitCode {
    let identity =
        |namespace: &Namespace| namespace.run(|| std::fs::read_link("/proc/thread-self/ns/net")).unwrap();
    let [a, b] = namespaces.map(|namespace| identity(namespace).unwrap());
    println!("{} {}", a.display(), b.display());
    std::thread::sleep(Duration::from_secs(60));
    ExitCode::FAILURE
}

/// Answers datagrams until killed.
fn echo() -> ExitCode {
    answer(&UdpSocket::bind(("0.0.0.0", PORT)).unwrap());
    ExitCode::SUCCESS
}

fn answer(server: &UdpSocket) {
    let mut buffer = [0; 64];
    while let Ok((len, from)) = server.recv_from(&mut buffer) {
        server.send_to(&buffer[..len], from).unwrap();
    }
}

/// Whether a process is in the network namespace called `net:[...]`, holds it open, or has it mounted.
fn is_held(namespace: &str) -> bool {
    let points_to_it =
        |path: PathBuf| std::fs::read_link(path).is_ok_and(|to| to.to_str() == Some(namespace));
    let holds = |process: PathBuf| {
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        points_to_it(process.join("ns/net")) || files.map(|file| file.path()).any(points_to_it)
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.contains(namespace)
        || std::fs::read_dir("/proc").unwrap().flatten().any(|entry| holds(entry.path()))
}

fn shell(shell: ccplane_emulator::Result<ccplane_emulator::shell::Shell>, argv: &[String]) -> ExitCode {
    match shell.and_then(|shell| run_shell(&shell, argv)) {
        Ok(status) => ExitCode::from(status.code().unwrap_or(1) as u8),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Prints the shortest round trip to the base (the others tell how busy the machine is), microseconds, and the shells around.
fn ping(count: usize) -> ExitCode {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect((std::env::var("MAHIMAHI_BASE").unwrap(), PORT)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // Who answers may not be there yet, which the kernel says.
    let answer = || {
        wait_until("an answer", || match socket.send(b"ping").and_then(|_| socket.recv(&mut [0; 8])) {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
                false
            }
        });
    };
    let times = (0..count).map(|_| {
        let start = Instant::now();
        answer();
        start.elapsed().as_micros()
    });
    println!("{} {}", times.min().unwrap(), std::env::var("MAHIMAHI_SHELL_PREFIX").unwrap());
    ExitCode::SUCCESS
}

fn myself(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Starts a holding child and reads the names that it prints.
fn holding(how: &str) -> (Child, Vec<PathBuf>) {
    let mut child = myself(&["hold", how]).spawn().unwrap();
    let line = first_line(&mut child);
    let names: Vec<PathBuf> =
        line.split_whitespace().map(|name| Path::new("/run/netns").join(name)).collect();
    assert_eq!(names.len(), 2, "{line}");
    (child, names)
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

fn every_exit_but_sigkill_cleans_up() {
    for (how, sent) in [
        ("return", None),
        ("exit", None),
        ("panic", None),
        ("signal", Some(Signal::SIGTERM)),
        ("signal", Some(Signal::SIGINT)),
    ] {
        let (mut child, paths) = holding(how);
        if let Some(sent) = sent {
            assert!(paths.iter().all(|path| path.exists()), "{how}");
            signal(&child, sent);
        }
        let status = child.wait().unwrap();
        assert!(!paths.iter().any(|path| path.exists()), "{how} {sent:?}");
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), sent.map(|sent| sent as i32), "the signal itself ends the process");
    }
}

fn leftovers_of_sigkill_are_found_and_removed() {
    let (mut other, others) = holding("sleep");
    let (mut child, paths) = holding("sleep");
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    assert!(paths.iter().all(|path| path.exists()), "SIGKILL leaves the names");
    let removed = netns::clean_leftovers();
    for path in &paths {
        assert!(!path.exists());
        assert!(removed.iter().any(|name| path.ends_with(name)), "{removed:?}");
    }
    assert!(others.iter().all(|path| path.exists()), "another living process's namespaces stay");
    signal(&other, Signal::SIGKILL);
    other.wait().unwrap();
    assert_eq!(
        netns::clean_leftovers().iter().filter(|name| others.iter().any(|path| path.ends_with(name))).count(),
        2
    );
}

fn a_killed_emulator_leaves_nothing() {
    killed_leaves_nothing("emulate");
}

fn killed_paths_leave_nothing() {
    killed_leaves_nothing("emulate-paths");
}

fn killed_leaves_nothing(role: &str) {
    let mut child = myself(&[role]).spawn().unwrap();
    let line = first_line(&mut child);
    let namespaces: Vec<&str> = line.split_whitespace().collect();
    assert!(namespaces.len() == 2 && namespaces.iter().all(|namespace| is_held(namespace)), "{line}");
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    wait_until("both namespaces are gone", || !namespaces.iter().any(|namespace| is_held(namespace)));
}

/// Runs this program's `arguments` in a namespace where an echo server answers.
fn in_base(arguments: &[&str]) -> Output {
    let base = Namespace::anonymous().unwrap();
    let server = base.run(|| UdpSocket::bind(("0.0.0.0", PORT))).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                answer(&server);
            }
        });
        let output = base.enter(&mut myself(arguments)).unwrap().output();
        ended.store(true, Relaxed);
        output.unwrap()
    })
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn trace(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn nested_shells_reach_the_base() {
    let directory = tempfile::tempdir().unwrap();
    let every_ms = trace(directory.path(), "12mbit", "1\n");
    let log = directory.path().join("up.log").to_str().unwrap().to_owned();
    let me = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let line = [
        "mm-delay", "10", "--", &me, "mm-loss", "0", "--", &me, "mm-delay", "5", "--", &me, "mm-onoff", "1",
        "0", "--", &me, "mm-link", &every_ms, &every_ms, &log, "--", &me, "ping", PINGS,
    ];
    let output = in_base(&line);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let (rtt_us, prefix) = printed.trim_end_matches('\n').split_once(' ').unwrap();
    assert_eq!(prefix, "[delay 10 ms] [loss up=0] [delay 5 ms] [onoff (down) on=1s off=0s] [link] ");
    let rtt_us: u64 = rtt_us.parse().unwrap();
    eprintln!("round trip through mm-delay 10 mm-delay 5 mm-link: {rtt_us} us");
    assert!((30_000..34_000).contains(&rtt_us), "{rtt_us}");

    let log = std::fs::read_to_string(log).unwrap();
    let head: Vec<&str> = log.lines().take(6).collect();
    assert!(
        head[0].starts_with("# mahimahi mm-link (Uplink) [") && head[0].ends_with("up.log"),
        "{}",
        head[0]
    );
    assert!(
        head[1].starts_with("# command line: ") && head[1].ends_with(&format!("'ping' '{PINGS}'")),
        "{}",
        head[1]
    );
    assert_eq!(head[2], "# queue: droptail [packets=100]");
    assert_eq!(
        head[5],
        "# mahimahi config: [delay 10 ms] [loss up=0] [delay 5 ms] [onoff (down) on=1s off=0s] "
    );
    assert_eq!(
        log.lines().filter(|line| line.contains(" - 36 ")).count().to_string(),
        PINGS,
        "32 bytes of IP and 4 of TUN header"
    );
}

fn a_shell_passes_signals_and_the_status_on() {
    assert_eq!(in_base(&["mm-delay", "1", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    let base = Namespace::anonymous().unwrap();
    for (sent, trap) in [(Signal::SIGTERM, "TERM"), (Signal::SIGINT, "INT"), (Signal::SIGHUP, "HUP")] {
        let script = format!("trap 'exit 9' {trap}; echo up; while :; do sleep 0.05; done");
        let mut command = myself(&["mm-delay", "1", "--", "sh", "-c", &script]);
        command.stdin(Stdio::null());
        let mut child = base.enter(&mut command).unwrap().spawn().unwrap();
        assert_eq!(first_line(&mut child), "up");
        signal(&child, sent);
        assert_eq!(child.wait().unwrap().code(), Some(9), "{trap}");
    }
}

fn devices(base: &Namespace) -> usize {
    base.run(|| nix::net::if_::if_nameindex().unwrap().iter().count()).unwrap()
}

fn a_command_that_cannot_start_leaves_nothing() {
    let base = Namespace::anonymous().unwrap();
    let mut command = myself(&["mm-delay", "1", "--", "/nonexistent/command"]);
    let output = base.enter(&mut command).unwrap().output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message, "/nonexistent/command: No such file or directory (os error 2)\n");
    assert_eq!(devices(&base), 1, "only lo");
}

/// Kills the outer or the inner of two shells whose command has children of its own.
fn killed_shells_leave_nothing() {
    let me = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let script = "sleep 60 & echo $$ $! $PPID $(readlink /proc/self/ns/net); wait";
    for victim in ["outer", "inner"] {
        let base = Namespace::anonymous().unwrap();
        let mut command = myself(&["mm-delay", "1", "--", &me, "mm-delay", "2", "--", "sh", "-c", script]);
        let mut child = base.enter(&mut command).unwrap().spawn().unwrap();
        let line = first_line(&mut child);
        let words: Vec<&str> = line.split_whitespace().collect();
        let [shell, sleep, inner, namespace] = words[..] else { panic!("{line}") };
        let middle =
            std::fs::read_link(format!("/proc/{inner}/ns/net")).unwrap().to_str().unwrap().to_owned();
        assert_eq!(devices(&base), 2, "lo and the link");
        assert!(is_held(namespace) && is_held(&middle));
        let victim_pid = if victim == "outer" { child.id() as i32 } else { inner.parse().unwrap() };
        kill(Pid::from_raw(victim_pid), Signal::SIGKILL).unwrap();
        child.wait().unwrap();
        wait_until("the processes are gone", || {
            [shell, sleep, inner].iter().all(|pid| !Path::new("/proc").join(pid).exists())
        });
        wait_until("the namespaces are gone", || !is_held(namespace) && !is_held(&middle));
        wait_until("the device is gone", || devices(&base) == 1);
    }
}

/// User 65534 runs shells with a `/dev/net/tun` that everybody may open, as it is on most systems.
fn an_ordinary_user_runs_shells() {
    if Command::new("setpriv").arg("--version").output().is_err() {
        ccplane_testing::skipped("an_ordinary_user_runs_shells", "needs setpriv and unshare of util-linux");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let me = directory.path().join("shells").to_str().unwrap().to_owned();
    std::fs::copy(std::env::current_exe().unwrap(), &me).unwrap();
    let tun = directory.path().join("tun").to_str().unwrap().to_owned();
    let as_user = format!(
        "mknod {tun} c 10 200 && chmod $MODE {tun} && mount --bind {tun} /dev/net/tun && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\""
    );
    let run = |mode: &str, words: &[&str]| {
        let _ = std::fs::remove_file(&tun);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &as_user, "sh"]).args(words).env("MODE", mode).output().unwrap()
    };
    let outside = format!("{me} echo");
    let command = format!("id -u; exec {me} ping {PINGS}");
    let words =
        [&me, "mm-delay-outside", "5", &outside, "--", &me, "mm-delay", "3", "--", "sh", "-c", &command];
    let output = run("0666", &words);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let (user, line) = printed.trim_end_matches('\n').split_once('\n').unwrap();
    let (rtt_us, prefix) = line.split_once(' ').unwrap();
    assert_eq!((user, prefix), ("65534", "[delay 5 ms] [delay 3 ms] "));
    assert!((16_000..19_000).contains(&rtt_us.parse::<u64>().unwrap()), "{rtt_us}");

    let refused = run("0600", &[&me, "mm-delay", "5", "--", "true"]);
    let message = String::from_utf8(refused.stderr).unwrap();
    assert!(
        message.contains("/dev/net/tun: EACCES") && message.contains("mode 0600, user 0 and group 0"),
        "{message}"
    );
}

fn a_bad_trace_is_refused_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let bad = trace(directory.path(), "bad.up", "1\n2\nx\n");
    let output = in_base(&["mm-link", &bad, &bad, "/nonexistent/log", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.ends_with("bad.up:3: expected a timestamp in milliseconds, found \"x\"\n"), "{message}");
}

//! What processes leave behind, and commands behind link shells. This file is its own child: the first argument says which.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use ccplane_emulator::netns::{self, Namespace};
use ccplane_emulator::shell::{MmLink, mm_delay};
use ccplane_emulator::{Emulator, LinkConfig, Shape, run_shell};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PORT: u16 = 5002;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["hold", how] => hold(how),
        ["ping", count] => ping(count.parse().unwrap()),
        ["mm-delay", ms, "--", ..] => shell(mm_delay(ms.parse().unwrap()), &arguments[3..]),
        ["mm-link", up, down, log, "--", ..] => {
            let mut link = MmLink { uplink: up.into(), downlink: down.into(), ..MmLink::default() };
            link.uplink_log = Some(log.into());
            link.uplink_queue = Some("droptail".into());
            link.uplink_queue_args = Some("packets=100".into());
            shell(link.shell(), &arguments[5..])
        }
        // What cargo's test runner passes.
        _ => tests(),
    }
}

fn tests() -> ExitCode {
    if !netns::available() {
        eprintln!("SKIPPED: processes: needs root and /dev/net/tun to make network namespaces");
        return ExitCode::SUCCESS;
    }
    for (name, test) in [
        ("every_exit_but_sigkill_cleans_up", every_exit_but_sigkill_cleans_up as fn()),
        ("leftovers_of_sigkill_are_found_and_removed", leftovers_of_sigkill_are_found_and_removed),
        ("nested_shells_reach_the_base", nested_shells_reach_the_base),
        ("a_shell_passes_signals_and_the_status_on", a_shell_passes_signals_and_the_status_on),
        ("a_killed_shell_leaves_nothing", a_killed_shell_leaves_nothing),
        ("a_bad_trace_is_refused_by_line", a_bad_trace_is_refused_by_line),
    ] {
        test();
        eprintln!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

/// A child that owns an emulator, prints its namespaces and ends as told.
fn hold(how: &str) -> ExitCode {
    if how == "signal" {
        netns::clean_on_signals().unwrap();
    }
    let emulator = Emulator::start(&LinkConfig::symmetric(Shape::mbit(12), 1_000)).unwrap();
    println!("{} {}", emulator.sender_ns().name().unwrap(), emulator.receiver_ns().name().unwrap());
    match how {
        "panic" => panic!("as told"),
        "exit" => std::process::exit(0),
        "return" => return ExitCode::SUCCESS,
        _ => std::thread::sleep(Duration::from_secs(60)),
    }
    ExitCode::FAILURE
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
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let times = (0..count).map(|_| {
        let start = Instant::now();
        socket.send(b"ping").unwrap();
        assert_eq!(socket.recv(&mut [0; 8]).unwrap(), 4);
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
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
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

/// Runs this program's `arguments` in a namespace where an echo server answers.
fn in_base(arguments: &[&str]) -> Output {
    let base = Namespace::anonymous().unwrap();
    let server = base.run(|| UdpSocket::bind(("0.0.0.0", PORT))).unwrap().unwrap();
    server.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((len, from)) = server.recv_from(&mut buffer) {
                server.send_to(&buffer[..len], from).unwrap();
            }
        });
        base.enter(&mut myself(arguments)).unwrap().output().unwrap()
    })
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
        "mm-delay", "10", "--", &me, "mm-delay", "5", "--", &me, "mm-link", &every_ms, &every_ms, &log, "--",
        &me, "ping", "9",
    ];
    let output = in_base(&line);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let (rtt_us, prefix) = printed.trim_end_matches('\n').split_once(' ').unwrap();
    assert_eq!(prefix, "[delay 10 ms] [delay 5 ms] [link] ");
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
    assert!(head[1].starts_with("# command line: ") && head[1].ends_with("'ping' '9'"), "{}", head[1]);
    assert_eq!(head[2], "# queue: droptail [packets=100]");
    assert_eq!(head[5], "# mahimahi config: [delay 10 ms] [delay 5 ms] ");
    assert_eq!(
        log.lines().filter(|line| line.contains(" - 36 ")).count(),
        9,
        "32 bytes of IP and 4 of TUN header"
    );
}

fn a_shell_passes_signals_and_the_status_on() {
    assert_eq!(in_base(&["mm-delay", "1", "--", "sh", "-c", "exit 7"]).status.code(), Some(7));
    let base = Namespace::anonymous().unwrap();
    let mut command = myself(&[
        "mm-delay",
        "1",
        "--",
        "sh",
        "-c",
        "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done",
    ]);
    let mut child = base.enter(&mut command).unwrap().spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    signal(&child, Signal::SIGTERM);
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("up\n", Some(9)));
}

fn a_killed_shell_leaves_nothing() {
    let base = Namespace::anonymous().unwrap();
    let mut child = base
        .enter(&mut myself(&["mm-delay", "1", "--", "sh", "-c", "echo $$; exec sleep 60"]))
        .unwrap()
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let devices = || base.run(|| nix::net::if_::if_nameindex().unwrap().iter().count()).unwrap();
    assert_eq!(devices(), 2, "lo and the link");
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    let command = Path::new("/proc").join(line.trim());
    let deadline = Instant::now() + Duration::from_secs(5);
    while (command.exists() || devices() > 1) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!command.exists(), "the command is killed with its shell");
    assert_eq!(devices(), 1, "only lo");
}

fn a_bad_trace_is_refused_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let bad = trace(directory.path(), "bad.up", "1\n2\nx\n");
    let output = in_base(&["mm-link", &bad, &bad, "/nonexistent/log", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.ends_with("bad.up:3: expected a timestamp in milliseconds, found \"x\"\n"), "{message}");
}

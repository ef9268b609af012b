//! Programs that know nothing of ccplane under the library: this program itself, whose children talk to each other in every way
//! that is served, and programs of the system where they are installed.
#![allow(clippy::unwrap_used)]

use ccplane_files::{is_listening, server_address};
use ccplane_testing::{Ended, skipped, wait_for, wait_until};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::select::{FdSet, select};
use nix::sys::socket::{MsgFlags, recv, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::{read, write};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Has a child do as the test of its name says.
const CHILD: &str = "CCPLANE_PRELOAD_CHILD";
/// Round trips of each way.
const TRIPS: u32 = 200;

/// The library that Cargo has built beside this program.
fn library() -> PathBuf {
    let built = std::env::current_exe().unwrap();
    let folders = built.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libccplane_wait_preload.so")).find(|path| path.exists());
    found.expect("Cargo builds the library with its tests")
}

fn under_library(program: &str, wake: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library()).env("CCPLANE_WAKE", wake).env("CCPLANE_WAKE_COUNTS", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs one of the tests below, as a child's whole work.
fn child(name: &str, wake: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    let mut command = under_library(this.to_str().unwrap(), wake);
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(CHILD, "1");
    command.output().unwrap()
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// The waits that polled and that slept, as the library says at a program's end.
fn counts(stderr: &str) -> (u64, u64) {
    let line = stderr.lines().find(|line| line.starts_with("ccplane: ") && line.ends_with(" slept"));
    let numbers: Vec<u64> = line
        .unwrap_or_else(|| panic!("no counts: {stderr}"))
        .split(' ')
        .filter_map(|w| w.parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

/// A thread that sends back what it gets, until it gets nothing.
fn echo() -> UdpSocket {
    let (ours, theirs) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    ours.connect(theirs.local_addr().unwrap()).unwrap();
    theirs.connect(ours.local_addr().unwrap()).unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(length @ 1..) = theirs.recv(&mut bytes) {
            theirs.send(&bytes[..length]).unwrap();
        }
    });
    ours
}

#[test]
fn talks_in_every_way() {
    if !is_child() {
        return;
    }
    let socket = echo();
    let mut bytes = [0; 64];
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 7)).unwrap();
    for n in 0..TRIPS {
        socket.send(&n.to_le_bytes()).unwrap();
        match n % 4 {
            0 => {}
            1 => {
                let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                assert_eq!(poll(&mut fds, PollTimeout::from(5_000_u16)), Ok(1));
                assert_eq!(fds[0].revents(), Some(PollFlags::POLLIN));
            }
            2 => {
                let mut events = [EpollEvent::empty(); 4];
                assert_eq!(epoll.wait(&mut events, EpollTimeout::from(5_000_u16)), Ok(1));
                assert_eq!(events[0].data(), 7);
            }
            _ => {
                let mut set = FdSet::new();
                set.insert(socket.as_fd());
                let mut timeout = TimeVal::seconds(5);
                assert_eq!(select(None, &mut set, None, None, &mut timeout), Ok(1));
                assert!(set.contains(socket.as_fd()));
                assert!(timeout < TimeVal::seconds(5), "the time that is left");
            }
        }
        let length = socket.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..length], n.to_le_bytes());
    }
    println!("all {TRIPS} came back");
}

#[test]
fn waits_end_when_they_are_to() {
    if !is_child() {
        return;
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let long = Duration::from_millis(30);
    let timed = |wait: &dyn Fn()| {
        let start = Instant::now();
        wait();
        let took = start.elapsed();
        assert!(took >= long, "{took:?}");
    };
    timed(&|| {
        let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut fds, PollTimeout::from(30_u16)), Ok(0));
    });
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
    epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 7)).unwrap();
    timed(&|| assert_eq!(epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::from(30_u16)), Ok(0)));
    timed(&|| {
        let mut set = FdSet::new();
        set.insert(socket.as_fd());
        assert_eq!(select(None, &mut set, None, None, &mut TimeVal::milliseconds(30)), Ok(0));
        assert!(!set.contains(socket.as_fd()));
    });
    socket.set_read_timeout(Some(long)).unwrap();
    timed(&|| {
        let error = socket.recv(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    });
    socket.set_nonblocking(true).unwrap();
    let error = socket.recv(&mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    assert_eq!(poll(&mut fds, PollTimeout::ZERO), Ok(0));
    println!("all waits ended");
}

/// Bytes of a stream that no socket has room for at once.
const STREAM_BYTES: usize = 4 << 20;
/// Send buffer of the stream, bytes: so little that its writer soon finds it full, however late either end runs.
const SEND_BYTES: usize = 4096;

#[test]
fn streams_are_read_and_written_as_files_are() {
    if !is_child() {
        return;
    }
    let bytes: Vec<u8> = (0..STREAM_BYTES).map(|n| (n * 31 % 251) as u8).collect();
    let (to, from) = UnixStream::pair().unwrap();
    setsockopt(&to, sockopt::SndBuf, &SEND_BYTES).unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || assert_eq!(write(&to, &sent), Ok(STREAM_BYTES)));
    // Only then there is no room for the rest: it is written while this thread reads.
    let mut before = 0;
    wait_for("the socket is full", || {
        let mut queued: nix::libc::c_int = 0;
        // SAFETY: the call writes one number, which lives for it.
        unsafe { nix::libc::ioctl(from.as_raw_fd(), nix::libc::FIONREAD, &raw mut queued) };
        let is_full = queued > 0 && queued == before;
        before = queued;
        is_full.then_some(())
    });
    let (mut received, mut part) = (Vec::new(), vec![0; 50_000]);
    while let Ok(length @ 1..) = read(&from, &mut part) {
        received.extend_from_slice(&part[..length]);
    }
    writer.join().unwrap();
    assert!(received == bytes, "{} bytes", received.len());
    // What is no socket is read and written by the system, and nothing asked for is nothing waited for.
    let (reader, writer) = std::io::pipe().unwrap();
    assert_eq!(write(&writer, b"piped"), Ok(5));
    assert_eq!((read(&reader, &mut part), &part[..5]), (Ok(5), &b"piped"[..]));
    let (_open, silent) = UnixStream::pair().unwrap();
    assert_eq!(read(&silent, &mut []), Ok(0));
    silent.set_nonblocking(true).unwrap();
    assert_eq!(read(&silent, &mut part), Err(nix::errno::Errno::EAGAIN));
    println!("all bytes came through");
}

#[test]
fn asks_for_what_is_not_served() {
    if !is_child() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    to.write_all(b"whole").unwrap();
    let (mut from, _) = listener.accept().unwrap();
    let mut bytes = [0; 5];
    assert_eq!(recv(from.as_raw_fd(), &mut bytes, MsgFlags::MSG_WAITALL), Ok(5));
    drop(to);
    assert_eq!(from.read(&mut bytes).unwrap(), 0);
    println!("all was answered");
}

fn succeeds(name: &str, wake: &str, says: &str) -> (u64, u64) {
    let output = child(name, wake);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains(says), "{wake}: {stdout}{stderr}");
    counts(&stderr)
}

#[test]
fn an_unmodified_program_talks_as_before_in_each_mode() {
    let (polls, sleeps) = succeeds("talks_in_every_way", "sleep", "all 200 came back");
    assert!(polls == 0 && sleeps > 0, "{polls}, {sleeps}");
    let (polls, _) = succeeds("talks_in_every_way", "spin:500", "all 200 came back");
    assert!(polls > 0);
    succeeds("talks_in_every_way", "auto:50", "all 200 came back");
}

#[test]
fn time_outs_are_as_before_in_each_mode() {
    for wake in ["sleep", "spin:1000", "auto:10"] {
        succeeds("waits_end_when_they_are_to", wake, "all waits ended");
    }
}

#[test]
fn sockets_are_read_by_read_and_a_write_without_room_is_counted() {
    for wake in ["sleep", "spin:200", "auto:50"] {
        let output = child("streams_are_read_and_written_as_files_are", wake);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && stdout.contains("all bytes came through"), "{stdout}{stderr}");
        assert!(stderr.contains("calls that were not served: 1 of write for want of room"), "{stderr}");
    }
}

#[test]
fn calls_that_are_not_served_are_told_or_refused() {
    let name = "asks_for_what_is_not_served";
    let output = child(name, "sleep");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("all was answered"), "{stdout}{stderr}");
    let told = "ccplane: calls that were not served: 1 of recv with MSG_WAITALL, 1 of accept";
    assert!(stderr.lines().any(|line| line == told), "{stderr}");
    let this = std::env::current_exe().unwrap();
    let mut strict = under_library(this.to_str().unwrap(), "sleep");
    strict.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(CHILD, "1");
    let output = strict.env("CCPLANE_WAKE_STRICT", "1").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("ccplane: accept is not served, and CCPLANE_WAKE_STRICT is set"), "{stderr}");
}

#[test]
fn a_mode_that_cannot_be_served_ends_the_program_at_its_start() {
    for (wake, why) in [
        ("busy", "signals would not end a call that polls for ever; spin or auto serve"),
        ("dispatch", "an unmodified program has no queues to mark; spin or auto serve"),
        ("spin:0", "spin takes 1 to 1000000 microseconds"),
        ("auto:101", "auto takes 1 to 100 percent of a core"),
        ("quick", "expected sleep, spin:US or auto:PERCENT"),
    ] {
        let output = under_library("/bin/true", wake).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wake}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(stderr.lines().next(), Some(&*format!("ccplane: CCPLANE_WAKE={wake}: {why}")));
    }
}

/// Starts a server under the library, and waits until it listens; `None` where the program is not installed.
fn start(mut command: Command, address: SocketAddrV4) -> Option<Ended> {
    let mut server = Ended(command.spawn().ok()?);
    wait_until("the server listens", || {
        let ended = server.0.try_wait().unwrap();
        assert!(ended.is_none(), "the server has ended: {ended:?}");
        is_listening(address).unwrap()
    });
    Some(server)
}

#[test]
fn iperf3_carries_its_bytes() {
    let address = server_address().unwrap();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = under_library("iperf3", "auto:10");
    command.args(["-s", "-1", "-p", &port, "-B", &ip]);
    let Some(_server) = start(command, address) else {
        return skipped("iperf3 under the library", "not installed");
    };
    let mut client = under_library("iperf3", "spin:50");
    let output = client.args(["-c", &ip, "-p", &port, "-n", "20M", "-J"]).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // With -J iperf3 ends well, too, where it could not connect.
    assert!(output.status.success() && stdout.contains("\"sum_received\""), "{stdout}{stderr}");
    let (polls, sleeps) = counts(&stderr);
    assert!(polls + sleeps > 0);
}

/// Requests of a benchmark of Redis.
const REQUESTS: &str = "2000";

#[test]
fn redis_answers_its_own_benchmark() {
    let address = server_address().unwrap();
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    // The server by its name in Debian's redis-tools: the package redis-server would start a service.
    let mut command = under_library("redis-check-rdb", "auto:10");
    command.arg0("redis-server").args(["--port", &port, "--bind", &ip, "--save", "", "--appendonly", "no"]);
    let Some(mut server) = start(command, address) else {
        return skipped("Redis under the library", "redis-tools is not installed");
    };
    let mut control = TcpStream::connect(address).unwrap();
    let mut client = under_library("redis-benchmark", "spin:50");
    client.args(["-h", &ip, "-p", &port, "-n", REQUESTS, "-c", "4", "-t", "set,get", "--csv"]);
    let Ok(output) = client.output() else {
        return skipped("Redis under the library", "redis-tools is not installed");
    };
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("\"GET\""), "{stdout}{stderr}");
    let (polls, sleeps) = counts(&stderr);
    assert!(polls + sleeps > 0);
    // What the server counts is what its benchmark sent, beside what it asks at its start.
    control.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    control.write_all(b"INFO commandstats\r\n").unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    // The answer ends with an empty line, and may come in parts.
    while !answer.ends_with(b"\r\n\r\n") {
        let length = control.read(&mut part).unwrap();
        assert!(length > 0, "Redis has closed the connection");
        answer.extend_from_slice(&part[..length]);
    }
    let info = String::from_utf8_lossy(&answer);
    for command in ["cmdstat_set", "cmdstat_get"] {
        assert!(info.contains(&format!("{command}:calls={REQUESTS},")), "{info}");
    }
    control.write_all(b"SHUTDOWN NOSAVE\r\n").unwrap();
    let ended = wait_for("Redis ends", || server.0.try_wait().unwrap());
    let mut said = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(ended.success(), "{said}");
    let (polls, sleeps) = counts(&said);
    assert!(polls + sleeps > 0, "{said}");
}

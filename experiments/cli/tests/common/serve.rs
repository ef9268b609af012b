//! `ccplane quic serve` as a process.

use super::{Home, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// `ccplane quic serve`, killed when dropped.
pub struct Serve {
    pub child: Child,
    /// The server's standard output; `None` once it is closed.
    pub lines: Option<BufReader<std::process::ChildStdout>>,
    pub address: String,
    pub fingerprint: String,
    /// The kept snapshot that its flows begin with, if there was one.
    pub snapshot: Option<String>,
}

impl Serve {
    pub fn start(home: &Home, more: &[&str]) -> Serve {
        Serve::start_as(home, more, |command| command.stderr(Stdio::piped()))
    }

    /// Starts a server as [`Serve::start`] does, but its process is set up by the test, standard error too.
    pub fn start_as(home: &Home, more: &[&str], set_up: impl FnOnce(&mut Command) -> &mut Command) -> Serve {
        let folder = home.path("served");
        fs::create_dir_all(&folder).unwrap();
        let folder = folder.to_str().unwrap();
        let arguments = ["quic", "serve", folder, "--listen", "127.0.0.1:0", "--json"];
        let mut command = home.command(&[&arguments, more].concat());
        let mut child = set_up(&mut command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let first = next(&mut lines);
        let text = |key: &str| first[key].as_str().unwrap().to_owned();
        let (address, fingerprint) = (text("address"), text("fingerprint"));
        let snapshot = first["snapshot"].as_str().map(str::to_owned);
        Serve { child, lines: Some(lines), address, fingerprint, snapshot }
    }

    pub fn client(&self, home: &Home, verb: &str, more: &[&str]) -> Output {
        home.run(&[&["quic", verb, &self.address, "--fingerprint", &self.fingerprint], more].concat())
    }

    /// Reads the server's record of the next request.
    pub fn said(&mut self) -> Value {
        next(self.lines.as_mut().unwrap())
    }

    /// Interrupts it; its exit code.
    pub fn interrupt(&mut self) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGINT).unwrap();
        let mut ended = None;
        wait_for("the server ends", || {
            ended = self.child.try_wait().unwrap();
            ended
        });
        ended.unwrap().code()
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next(lines: &mut impl BufRead) -> Value {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

pub fn content(path: &Path, bytes: usize) -> Vec<u8> {
    let content: Vec<u8> = (0..bytes).map(|n| (n * 7 + n / 251) as u8).collect();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, &content).unwrap();
    content
}

/// More than moves while a test looks, and none of it on the disk.
pub fn endless(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::File::create(path).unwrap().set_len(1 << 40).unwrap();
}

/// Files without a name that this process writes in `folder`, where some of them has arrived.
pub fn unfinished(child: &Child, folder: &Path) -> Vec<PathBuf> {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", child.id())) else { return Vec::new() };
    let open = open.map(|entry| entry.unwrap().path());
    let nameless = |path: &PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        target.starts_with(folder) && target.to_string_lossy().ends_with(" (deleted)")
    };
    open.filter(nameless).filter(|path| fs::metadata(path).is_ok_and(|m| m.len() > 0)).collect()
}

/// Once some of such a file has arrived.
pub fn wait_for_some(child: &Child, folder: &Path) {
    wait_for("some of it arrives", || unfinished(child, folder).pop());
}

//! Real `ccplane` processes in directories of their own.
#![allow(dead_code, clippy::unwrap_used)]

pub mod lab;
pub mod serve;
pub mod shell;
pub mod taken;

pub use ccplane_testing::{PATIENCE, wait_for};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const NOBODY: libc::uid_t = 65_534;
/// The command that is tested.
pub const CCPLANE: &str = env!("CARGO_BIN_EXE_ccplane");

/// Whether the kernel offers a congestion control of this name.
pub fn is_registered(congestion_control: &str) -> bool {
    let list = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    list.split_whitespace().any(|name| name == congestion_control)
}

/// `ccplane` with arguments, run to its end.
pub fn ccplane(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

pub fn command(arguments: &[&str]) -> Command {
    command_of(Path::new(CCPLANE), arguments)
}

fn command_of(ccplane: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(ccplane);
    command
        .args(arguments)
        .env_remove("CCPLANE_CONFIG")
        .env_remove("CCPLANE_SOCKET")
        .env_remove("CCPLANE_LOG");
    command
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Asserts that a command has failed with this exit code and these words.
#[track_caller]
pub fn failed(output: &Output, code: i32, words: &str) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
}

/// A run directory with a configuration; agents that run there.
pub struct Home {
    dir: tempfile::TempDir,
    /// The `ccplane` that commands here are, agents too.
    pub ccplane: PathBuf,
}

impl Home {
    /// An agent here serves datapaths of other processes only.
    pub fn new(more: &str) -> Home {
        let home = Home { dir: tempfile::tempdir().unwrap(), ccplane: CCPLANE.into() };
        fs::set_permissions(home.dir(), fs::Permissions::from_mode(0o700)).unwrap();
        home.configure(&format!("datapath.ebpf.mode = \"off\"\n{more}"));
        home
    }

    /// Replaces the configuration; the control socket is set here.
    pub fn configure(&self, text: &str) {
        let socket = self.path("control.sock");
        fs::write(self.config(), format!("control.socket = {socket:?}\n{text}")).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn config(&self) -> PathBuf {
        self.path("agent.toml")
    }

    /// A command that finds this home's agent.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command_of(&self.ccplane, arguments);
        command.env("CCPLANE_CONFIG", self.config());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command, which must succeed, and parses the JSON that it prints.
    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts an agent and waits until it serves.
    pub fn agent(&self) -> Agent {
        Agent::of(self, "log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn control(&self) -> UnixStream {
        UnixStream::connect(self.path("control.sock")).unwrap()
    }
}

/// A running agent; killed when dropped.
pub struct Agent {
    child: Child,
}

impl Agent {
    /// A home's agent, which logs to a file of this name there, once it serves.
    pub fn of(home: &Home, log: &str) -> Agent {
        fs::write(home.path(log), "").unwrap();
        // A test may append, too.
        let file = fs::File::options().append(true).open(home.path(log)).unwrap();
        let mut command = home.command(&["agent"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let mut agent = Agent { child };
        wait_for("the agent serves", || {
            if let Some(status) = agent.child.try_wait().unwrap() {
                panic!("the agent ended with {status}: {}", fs::read_to_string(home.path(log)).unwrap());
            }
            home.run(&["status"]).status.success().then_some(())
        });
        agent
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for its end; returns its exit code, `None` if a signal ended it.
    pub fn wait(&mut self) -> Option<i32> {
        let status = wait_for("the agent ends", || self.child.try_wait().unwrap());
        status.code()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends bytes over the control socket and reads until the agent closes or `PATIENCE` passed.
pub fn exchange(mut stream: UnixStream, bytes: &[u8]) -> String {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The agent may close before it has taken everything.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Runs `work` as user "nobody", on a thread of its own.
pub fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let run = || {
            // SAFETY: takes integers only. The raw call changes this thread alone, which ends right after.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(changed, 0);
            work()
        };
        scope.spawn(run).join().unwrap()
    })
}

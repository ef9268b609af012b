//! The processes of a run: agents, the QUIC server, commands. Each is ended when it is dropped.

use crate::{Context, Error};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time that a process may take to start, or to stop.
const PATIENCE: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(20);

/// The folder of a run, and the command under test.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    ccplane: PathBuf,
    /// The congestion control that the agent registers.
    pub(crate) name: String,
}

impl Home {
    pub(crate) fn new(ccplane: &Path) -> Result<Home, Error> {
        // The agent's sockets need a folder that no other user can open.
        let private = fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().prefix("ccplane-soak-").permissions(private).tempdir();
        let folder = folder.context(|| "make a folder".to_owned())?;
        let name = format!("soak_{}", std::process::id());
        let path = |of: &str| folder.path().join(of);
        let text = format!(
            "default_algorithm = \"aurora\"\ncontrol.socket = {:?}\ncontrol.timeout_ms = 5000\n\
             agent.heartbeat_timeout_ms = 1000\ndatapath.ebpf.mode = \"on\"\ndatapath.ebpf.name = {name:?}\n\
             datapath.ebpf.run_dir = {:?}\nlearn.decision_log = {:?}\n",
            path("control.sock"),
            folder.path(),
            path("decisions.log"),
        );
        fs::write(path("agent.toml"), text).context(|| "write the configuration".to_owned())?;
        Ok(Home { ccplane: ccplane.to_owned(), name, folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The directories of the agent's pins.
    pub(crate) fn pins(&self) -> [PathBuf; 2] {
        [self.path("bpf").join(&self.name), Path::new("/sys/fs/bpf").join(&self.name)]
    }

    /// Makes a command that finds this run's agent and writes its messages to a log.
    pub(crate) fn command(&self, arguments: &[&str], log: &str) -> Result<Command, Error> {
        let path = self.path(log);
        let open = File::options().append(true).create(true).open(&path);
        let log = open.context(|| format!("open {}", path.display()))?;
        let mut command = Command::new(&self.ccplane);
        command.args(arguments).env_remove("CCPLANE_SOCKET").env("CCPLANE_CONFIG", self.path("agent.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// Runs a command to its end, and returns whether it succeeded.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<bool, Error> {
        let status = self.command(arguments, "commands.log")?.status();
        Ok(status.context(|| format!("run ccplane {}", arguments.join(" ")))?.success())
    }
}

/// A process; killed when dropped.
pub(crate) struct SoakProcess {
    what: &'static str,
    child: Child,
    log: PathBuf,
    pub(crate) life: u64,
    started: Instant,
}

impl SoakProcess {
    fn new(what: &'static str, child: Child, log: PathBuf, life: u64) -> SoakProcess {
        SoakProcess { what, child, log, life, started: Instant::now() }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn age_s(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // One that has gone needs none.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// The exit status, once the process has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails if the process has ended.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.ended() {
            Some(status) => Err(Error::Ended { what: self.what, status, said: last_line(&self.log) }),
            None => Ok(()),
        }
    }

    /// Ends the process by a signal, and waits for its exit.
    pub(crate) fn end(mut self, signal: Signal) -> Result<ExitStatus, Error> {
        self.signal(signal);
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Late { what: "the end of a process", seconds: PATIENCE.as_secs() });
            }
            std::thread::sleep(NAP);
        }
    }
}

impl Drop for SoakProcess {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.signal(Signal::SIGCONT);
            self.signal(Signal::SIGTERM);
            let start = Instant::now();
            while self.ended().is_none() && start.elapsed() < PATIENCE {
                std::thread::sleep(NAP);
            }
        }
        // Where it has ended these do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the last line of a log.
pub(crate) fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().next_back().unwrap_or_default().to_owned()
}

/// Starts an agent and waits until it serves.
pub(crate) fn agent(home: &Home, life: u64) -> Result<SoakProcess, Error> {
    let log = "agent.log";
    let child = home.command(&["agent"], log)?.spawn().context(|| "start the agent".to_owned())?;
    let mut agent = SoakProcess::new("the agent", child, home.path(log), life);
    while agent.started.elapsed() < PATIENCE {
        agent.check()?;
        if home.run(&["status"])? {
            return Ok(agent);
        }
        std::thread::sleep(NAP);
    }
    Err(Error::Late { what: "an agent that serves", seconds: PATIENCE.as_secs() })
}

/// The file with the token of who may put, in the home.
const TOKEN: &str = "token";

/// A QUIC server of one folder, into which files may be put.
pub(crate) struct Server {
    pub(crate) process: SoakProcess,
    pub(crate) address: String,
    pub(crate) fingerprint: String,
}

/// Starts a QUIC server on loopback, whose flows the agent steers.
pub(crate) fn server(home: &Home, folder: &Path) -> Result<Server, Error> {
    let folder = folder.to_string_lossy();
    let token = home.path(TOKEN);
    let token = token.to_string_lossy();
    let writable = ["--writable", "--token", &token];
    let arguments =
        [&["quic", "serve", &folder, "--listen", "127.0.0.1:0", "--agent", "--json"][..], &writable];
    let mut command = home.command(&arguments.concat(), "server.log")?;
    let mut child = command.stdout(Stdio::piped()).spawn().context(|| "start the QUIC server".to_owned())?;
    let out = child.stdout.take();
    let process = SoakProcess::new("the QUIC server", child, home.path("server.log"), 0);
    let mut lines =
        BufReader::new(out.ok_or(Error::UnexpectedOutput { what: "the QUIC server", said: String::new() })?);
    let mut first = String::new();
    lines.read_line(&mut first).context(|| "read what the QUIC server says".to_owned())?;
    let said: Value = serde_json::from_str(&first).unwrap_or_default();
    let text = |key: &str| said[key].as_str().map(str::to_owned);
    let (Some(address), Some(fingerprint)) = (text("address"), text("fingerprint")) else {
        return Err(Error::UnexpectedOutput { what: "the QUIC server", said: first });
    };
    drain(lines)?;
    Ok(Server { process, address, fingerprint })
}

/// Reads on until the server ends, so that it never waits for a reader.
fn drain(mut lines: BufReader<ChildStdout>) -> Result<(), Error> {
    let read = move || std::io::copy(&mut lines, &mut std::io::sink());
    let thread = std::thread::Builder::new().name("soak-server".to_owned()).spawn(read);
    thread.map(drop).context(|| "start a thread".to_owned())
}

/// Starts to fetch the server's file `name`.
pub(crate) fn fetch(home: &Home, server: &Server, name: &str) -> Result<SoakProcess, Error> {
    let to = home.path("fetched");
    client(home, server, &["get", &server.address, name, "-o", &to.to_string_lossy()])
}

/// Starts to put a file, in place of the one that was put before.
pub(crate) fn put(home: &Home, server: &Server, file: &Path) -> Result<SoakProcess, Error> {
    let (file, token) = (file.to_string_lossy(), home.path(TOKEN));
    let arguments = ["put", &server.address, &file, "--as", "put", "--token", &token.to_string_lossy()];
    client(home, server, &arguments)
}

/// Starts a client of the server.
fn client(home: &Home, server: &Server, arguments: &[&str]) -> Result<SoakProcess, Error> {
    const LOG: &str = "clients.log";
    let arguments = [&["quic"], arguments, &["--fingerprint", &server.fingerprint]].concat();
    let child = home.command(&arguments, LOG)?.spawn().context(|| "start to move a file".to_owned())?;
    Ok(SoakProcess::new("a client", child, home.path(LOG), 0))
}

//! Agents in processes of their own: ours, and whatever else is measured beside it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccplane_ebpf::Options;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;

use crate::error::{BenchError, context};
use crate::{oracle, steer};

/// How long a spinning agent polls before it sleeps, microseconds: longer than the gaps between reports.
const SPIN_US: u32 = 2000;
/// How long an agent may take to start.
pub const START: Duration = Duration::from_secs(10);

/// A process that ends with us.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Our agent, in a process of its own, with `wake` as configured.
pub struct OurAgent {
    pub process: Process,
    /// The options of its kernel datapath.
    pub options: Options,
    /// Where datapaths of other processes reach it.
    pub socket: PathBuf,
    /// A directory that goes with it.
    pub dir: tempfile::TempDir,
}

impl OurAgent {
    /// With only the kernel datapath, or only the unix socket: a busy agent takes a core for each.
    pub fn start(algorithm: &str, wake: &str, kernel: bool) -> Result<OurAgent, BenchError> {
        OurAgent::configured(algorithm, wake, kernel, "")
    }

    /// With the kernel datapath, whose flows the portus agent at `socket` steers.
    pub fn of_portus(wake: &str, socket: &Path) -> Result<OurAgent, BenchError> {
        OurAgent::configured("portus", wake, true, &format!("[portus]\nsocket = \"{}\"\n", socket.display()))
    }

    fn configured(algorithm: &str, wake: &str, kernel: bool, more: &str) -> Result<OurAgent, BenchError> {
        let (options, dir) = steer::options("r")?;
        let socket = dir.path().join("ccp.sock");
        let config = dir.path().join("ccplane.toml");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let text = format!(
            "default_algorithm = \"{algorithm}\"\nlog = \"error\"\n[agent]\nwake = \"{wake}\"\nspin_us = {SPIN_US}\n[control]\n\
             socket = \"{}\"\n[datapath.ebpf]\nmode = \"{}\"\nname = \"{}\"\nrun_dir = \"{}\"\n[datapath.unix]\n\
             mode = \"{}\"\nsocket = \"{}\"\n{more}",
            at("control.sock"),
            if kernel { "on" } else { "off" },
            options.name,
            options.run_dir.display(),
            if kernel { "off" } else { "on" },
            socket.display()
        );
        context("write a configuration", std::fs::write(&config, text))?;
        let mut command = Command::new(oracle::find("ccplane")?);
        command.arg("agent").arg("--config").arg(&config).stdin(Stdio::null());
        let process = Process(context("start the agent", command.spawn())?);
        wait_for(&dir.path().join("control.sock"))?;
        Ok(OurAgent { process, options, socket, dir })
    }

    /// The flows that `ccplane flows` lists.
    pub fn flows(&self) -> Result<Vec<Listed>, BenchError> {
        let mut command = Command::new(oracle::find("ccplane")?);
        command.args(["flows", "--json", "--socket"]).arg(self.dir.path().join("control.sock"));
        let output = context("ask the agent for its flows", command.stdin(Stdio::null()).output())?;
        let listed: List = serde_json::from_slice(&output.stdout)
            .map_err(|error| BenchError::Missing(format!("the agent does not list its flows: {error}")))?;
        Ok(listed.flows)
    }
}

/// A flow as `ccplane flows --json` has it.
#[derive(Deserialize)]
pub struct Listed {
    pub algorithm: Option<String>,
    pub mode: String,
    pub reports: Option<u64>,
}

#[derive(Deserialize)]
struct List {
    flows: Vec<Listed>,
}

impl Process {
    /// Stops the process where it is, or lets it go on.
    pub fn pause(&self, stop: bool) -> Result<(), BenchError> {
        let signal = if stop { Signal::SIGSTOP } else { Signal::SIGCONT };
        let process = Pid::from_raw(self.0.id() as i32);
        context("signal an agent", kill(process, signal).map_err(Into::into))
    }

    /// How often its threads have gone to sleep so far (proc(5), voluntary_ctxt_switches).
    pub fn sleeps(&self) -> Result<u64, BenchError> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let sleeps = |thread: std::fs::DirEntry| -> Option<u64> {
            let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
            let line = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse().ok()
        };
        Ok(context("list an agent's threads", threads)?.flatten().filter_map(sleeps).sum())
    }

    /// The process's resident memory, MiB.
    pub fn rss_mib(&self) -> Result<f64, BenchError> {
        let path = format!("/proc/{}/status", self.0.id());
        let status = context("read an agent's memory", std::fs::read_to_string(path))?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|v| v.parse::<f64>().ok());
        kib.map(|k| k / 1024.0).ok_or_else(|| BenchError::Missing("no VmRSS in /proc".into()))
    }
}

impl Drop for OurAgent {
    fn drop(&mut self) {
        let _ = self.process.0.kill();
        let _ = self.process.0.wait();
        let _ = ccplane_ebpf::clean(&self.options);
    }
}

/// A portus agent that steers as `ccp-reno` does, in a process of its own.
pub struct Portus {
    pub process: Process,
    /// The unix socket that datapaths send to.
    pub socket: PathBuf,
}

impl Portus {
    /// Starts portus as it is shipped: it sleeps on its socket.
    ///
    /// # Errors
    /// Portus is not built, or does not start.
    pub fn start() -> Result<Portus, BenchError> {
        Portus::with("", &[])
    }

    /// Starts one beside others; `tag` is part of its socket's name.
    ///
    /// # Errors
    /// The same as of [`Portus::start`].
    pub fn tagged(tag: &str) -> Result<Portus, BenchError> {
        Portus::with(tag, &[])
    }

    /// Starts portus polling a socket that does not block, which is portus's own option.
    ///
    /// # Errors
    /// The same as of [`Portus::start`].
    pub fn polling() -> Result<Portus, BenchError> {
        Portus::with("", &["--poll"])
    }

    fn with(tag: &str, flags: &[&str]) -> Result<Portus, BenchError> {
        let name = format!("ccplane-bench{tag}-{}", std::process::id());
        let socket = Path::new("/tmp/ccp").join(&name);
        let mut command = Command::new(oracle::find("ccplane-portus")?);
        command.arg(&name).args(flags).stdin(Stdio::null()).stderr(Stdio::null());
        let process = Process(context("start ccplane-portus", command.spawn())?);
        wait_for(&socket)?;
        Ok(Portus { process, socket })
    }
}

impl Drop for Portus {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Waits until `path` is there.
pub fn wait_for(path: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > START {
            return Err(BenchError::Missing(format!("{} did not appear", path.display())));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

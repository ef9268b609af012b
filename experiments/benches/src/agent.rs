//! Agents in processes of their own: ours, and whatever else is measured beside it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccplane_ebpf::Options;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{BenchError, context};
use crate::{oracle, steer};

/// The time for which a spinning agent polls before it sleeps, microseconds: longer than the gaps between
/// reports.
const SPIN_US: u32 = 2000;
/// The time that an agent may take to start.
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
    /// The socket by which datapaths of other processes reach it.
    pub socket: PathBuf,
    /// A directory that goes with it.
    pub dir: tempfile::TempDir,
}

impl OurAgent {
    /// With only the kernel datapath, or only the unix socket: a busy agent takes a core for each.
    pub fn start(algorithm: &str, wake: &str, kernel: bool) -> Result<OurAgent, BenchError> {
        OurAgent::configured(algorithm, wake, kernel, "", steer::options("r")?)
    }

    /// With the kernel datapath, whose flows the portus agent at `socket` steers.
    pub fn of_portus(wake: &str, socket: &Path) -> Result<OurAgent, BenchError> {
        let more = format!("[portus]\nsocket = \"{}\"\n", socket.display());
        OurAgent::configured("portus", wake, true, &more, steer::options("r")?)
    }

    /// With the kernel datapath, and room for `max_flows` flows there.
    pub fn of_many(algorithm: &str, wake: &str, max_flows: u32) -> Result<OurAgent, BenchError> {
        let (options, dir) = steer::options("r")?;
        OurAgent::configured(algorithm, wake, true, "", (Options { max_flows, ..options }, dir))
    }

    fn configured(
        algorithm: &str,
        wake: &str,
        kernel: bool,
        more: &str,
        (options, dir): (Options, tempfile::TempDir),
    ) -> Result<OurAgent, BenchError> {
        let socket = dir.path().join("ccp.sock");
        let config = dir.path().join("ccplane.toml");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let text = format!(
            "default_algorithm = \"{algorithm}\"\nlog = \"error\"\n[agent]\nwake = \"{wake}\"\nspin_us = {SPIN_US}\n[control]\n\
             socket = \"{}\"\n[datapath.ebpf]\nmode = \"{}\"\nname = \"{}\"\nmax_flows = {}\nrun_dir = \"{}\"\n[datapath.unix]\n\
             mode = \"{}\"\nsocket = \"{}\"\n{more}",
            at("control.sock"),
            if kernel { "on" } else { "off" },
            options.name,
            options.max_flows,
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
        self.ask::<List>("flows").map(|list| list.flows)
    }

    /// The counters that `ccplane status` tells.
    pub fn counters(&self) -> Result<AgentCounters, BenchError> {
        self.ask::<Status>("status").map(|status| status.counters)
    }

    /// The answer to a command of `ccplane` that asks the agent.
    fn ask<T: DeserializeOwned>(&self, about: &str) -> Result<T, BenchError> {
        let mut command = Command::new(oracle::find("ccplane")?);
        command.args([about, "--json", "--socket"]).arg(self.dir.path().join("control.sock"));
        let output = context("ask the agent", command.stdin(Stdio::null()).output())?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| BenchError::Missing(format!("the agent does not tell its {about}: {error}")))
    }
}

/// The part of `ccplane status --json` that is of use here.
#[derive(Deserialize)]
struct Status {
    counters: AgentCounters,
}

/// Events that an agent has counted since its start.
#[derive(Clone, Copy, Deserialize)]
pub struct AgentCounters {
    pub flows_created: u64,
    pub flows_closed: u64,
    pub reports: u64,
    /// Events that its datapaths had no room for.
    pub dropped_events: u64,
}

impl AgentCounters {
    /// The events after `before`.
    pub fn since(self, before: AgentCounters) -> AgentCounters {
        AgentCounters {
            flows_created: self.flows_created - before.flows_created,
            flows_closed: self.flows_closed - before.flows_closed,
            reports: self.reports - before.reports,
            dropped_events: self.dropped_events - before.dropped_events,
        }
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

    /// Returns the number of times that its threads have gone to sleep so far (proc(5),
    /// voluntary_ctxt_switches).
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

/// The program of a portus agent, which is built apart.
pub const PORTUS: &str = "ccplane-portus";

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
        let mut command = Command::new(oracle::find(PORTUS)?);
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

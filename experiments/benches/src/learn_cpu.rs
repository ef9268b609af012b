//! `agent.learn.cpu`: what the agent's learning thread takes while flows run: while it adapts to their path, which it does not
//! know at first, and once it has.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_ebpf::Options;
use ccplane_runner::traffic::{BulkFlow, FlowConfig};

use crate::emu::{self, ShellPath};
use crate::error::{BenchError, context};
use crate::figure::{Figure, Pair};
use crate::proof::{Proof, SteeredBy, Witness};
use crate::{processor, steer};

const ALGORITHM: &str = "aurora";
/// The name of the learner's thread as the kernel shows it: 15 characters of its name.
const THREAD: &str = "ccp-learn-auror";
const FLOWS: usize = 8;
const LINK_MBIT: u32 = 80;
const DELAY_MS: &str = "10";
const UP: Duration = Duration::from_secs(10);
const DOWN: Duration = Duration::from_secs(10);
/// The learner first finds that it does not know the path, then learns it: the processor time until then is another figure.
const NOTICES: Duration = Duration::from_secs(30);
const ADAPTS: Duration = Duration::from_secs(90);
/// The time between two polls of the learner.
const POLL_EVERY: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_secs(2);
/// The same while it adapts, which may take no longer than some seconds.
const ADAPTING_WINDOW: Duration = Duration::from_millis(500);
const REST_OF_AGENT: &str = "the agent's other threads";
const WINDOWS: usize = 10;
/// Windows that may be thrown away, as the learner adapted in them.
const SPOILT: usize = 10;

/// An agent of the benchmark's own.
struct Agent {
    process: Child,
    options: Options,
    config: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        // By SIGTERM: it detaches.
        let pid = nix::unistd::Pid::from_raw(self.process.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let asked = Instant::now();
        while asked.elapsed() < DOWN {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(POLL_EVERY);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = ccplane_ebpf::clean(&self.options);
    }
}

impl Agent {
    /// Whether its learner adapts to a path that has changed, as `ccplane snapshot list` says.
    fn adapts(&self) -> Result<bool, BenchError> {
        let mut command = Command::new(context("find this program", std::env::current_exe())?);
        command.args(["snapshot", "list", "--json", "--config"]).arg(&self.config).stderr(Stdio::inherit());
        let said = context("ask an agent", command.output())?.stdout;
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap_or_default();
        let learner = &said["learners"][0];
        match (learner["failed"].as_bool(), learner["adapting"].as_bool()) {
            (Some(false), Some(adapting)) => Ok(adapting),
            (Some(true), _) => Err(BenchError::Missing("the learner has failed".into())),
            _ => Err(BenchError::Missing("the agent says nothing of its learner".into())),
        }
    }

    /// Waits until the learner adapts, or no longer does.
    fn wait_until(&self, adapts: bool, patience: Duration) -> Result<(), BenchError> {
        let since = Instant::now();
        while self.adapts()? != adapts {
            if since.elapsed() > patience {
                let what = if adapts { "has not begun to adapt" } else { "still adapts" };
                return Err(BenchError::Missing(format!("the learner {what} after {patience:?}")));
            }
            thread::sleep(POLL_EVERY);
        }
        Ok(())
    }
}

/// Measures `agent.learn.cpu`: the processor time of the learner beside live flows.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    crate::error::check_namespaces()?;
    let shipped = ccplane_algs::all().into_iter().find(|a| a.name() == ALGORITHM);
    if !shipped.is_some_and(|a| a.learns()) {
        return Err(BenchError::Missing(format!("{ALGORITHM} ships without a policy")));
    }
    let (options, run_dir) = steer::options("l")?;
    let agent = start(options, run_dir.path())?;
    let name = agent.options.name.clone();
    let trace = emu::constant(run_dir.path(), LINK_MBIT)?;
    let exe = emu::exe()?;
    let path = ShellPath::start(&["mm-delay", DELAY_MS, &exe, "mm-link", &trace, &trace])?;
    let epoch = Instant::now();
    let receiver = SocketAddr::new(path.base, 0);
    let config = FlowConfig { receiver, ..steer::bulk(&name, steer::LONG + NOTICES + ADAPTS) };
    let start = || BulkFlow::start(&config, &path.inside, &path.outside, epoch);
    let flows: Vec<BulkFlow> = (0..FLOWS).map(|_| start()).collect::<Result<_, _>>()?;
    let mut witness = Witness::new(SteeredBy::Policy(None));
    agent.wait_until(true, NOTICES)?;
    let adapting = agent.adapting(&mut witness)?;
    let (rest, spoilt) = agent.at_rest(&mut witness)?;
    for flow in flows {
        flow.stop();
        flow.finish()?;
    }
    let used_us = adapting.iter().map(|(percent, _)| (percent * 1e3) as u64).sum();
    let proof = witness.prove_steered(FLOWS)?.and(&Proof::counted("learner's time, 0.001 %", used_us)?);
    let rest_note =
        format!("after it had adapted to the path; it adapted again in {spoilt} windows, which are left out");
    Ok(vec![
        Figure::paired("agent.learn.cpu", "% of a core", REST_OF_AGENT, &rest, &proof)
            .or_zero()
            .with_note(rest_note),
        Figure::paired("agent.learn.cpu.adapting", "% of a core", REST_OF_AGENT, &adapting, &proof)
            .with_note(
                "from when it finds that it does not know the path until it does; only idle time is used",
            ),
    ])
}

/// Measures processor time, percent of a core, of the learner's thread and of the agent's others.
struct Meter<'a> {
    agent: &'a Agent,
    from: Instant,
    before: [Duration; 2],
}

impl Meter<'_> {
    fn start(agent: &Agent) -> Result<Meter<'_>, BenchError> {
        Ok(Meter { agent, before: agent.cpu()?, from: Instant::now() })
    }

    fn stop(self) -> Result<Pair, BenchError> {
        let (after, seconds) = (self.agent.cpu()?, self.from.elapsed().as_secs_f64());
        let percent = |n: usize| 100.0 * after[n].saturating_sub(self.before[n]).as_secs_f64() / seconds;
        Ok((percent(0), percent(1)))
    }
}

impl Agent {
    /// Measures the learner's processor time in windows throughout which it adapts.
    fn adapting(&self, witness: &mut Witness) -> Result<Vec<Pair>, BenchError> {
        let (since, mut pairs) = (Instant::now(), Vec::new());
        loop {
            let meter = Meter::start(self)?;
            thread::sleep(ADAPTING_WINDOW);
            let pair = meter.stop()?;
            self.poll(witness)?;
            if !self.adapts()? {
                return Ok(pairs);
            }
            if since.elapsed() > ADAPTS {
                return Err(BenchError::Missing(format!("the learner still adapts after {ADAPTS:?}")));
            }
            pairs.push(pair);
        }
    }

    /// Measures the same in windows without adaptation; also returns the number of windows discarded.
    fn at_rest(&self, witness: &mut Witness) -> Result<(Vec<Pair>, usize), BenchError> {
        let (mut pairs, mut spoilt) = (Vec::new(), 0);
        while pairs.len() < WINDOWS {
            let meter = Meter::start(self)?;
            thread::sleep(WINDOW);
            let pair = meter.stop()?;
            self.poll(witness)?;
            if !self.adapts()? {
                pairs.push(pair);
                continue;
            }
            spoilt += 1;
            if spoilt > SPOILT {
                return Err(BenchError::Missing(format!(
                    "the learner adapted in {spoilt} windows of {WINDOW:?}"
                )));
            }
            self.wait_until(false, ADAPTS)?;
        }
        Ok((pairs, spoilt))
    }

    /// Polls the flows, in the memory that the kernel's programs share.
    fn poll(&self, witness: &mut Witness) -> Result<(), BenchError> {
        witness.observe(&ccplane_ebpf::read_flows(&self.options)?.flows);
        Ok(())
    }

    /// Reads the processor time that the learner's thread and all others have used so far.
    fn cpu(&self) -> Result<[Duration; 2], BenchError> {
        let threads = processor::of_threads(self.process.id())?;
        let sum = |learner: bool| {
            let of = threads.iter().filter(|(name, _)| (name == THREAD) == learner);
            of.map(|(_, used)| *used).sum::<Duration>()
        };
        if !threads.iter().any(|(name, _)| name == THREAD) {
            return Err(BenchError::Missing("the agent has no learner".into()));
        }
        Ok([sum(true), sum(false)])
    }
}

/// Starts an agent with a kernel datapath of these options, and waits until it serves.
fn start(options: Options, dir: &Path) -> Result<Agent, BenchError> {
    let name = &options.name;
    let (socket, config) = (dir.join("control.sock"), dir.join("agent.toml"));
    let text = format!(
        "default_algorithm = \"{ALGORITHM}\"\ncontrol.socket = {socket:?}\ndatapath.unix.mode = \"off\"\n\
         [datapath.ebpf]\nmode = \"on\"\nname = \"{name}\"\nrun_dir = {dir:?}\n"
    );
    context("write a configuration", std::fs::write(&config, text))?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    context("write a configuration", std::fs::set_permissions(&config, owner_only))?;
    let mut command = Command::new(context("find this program", std::env::current_exe())?);
    command.arg("agent").arg("--config").arg(&config).stdin(Stdio::null()).stdout(Stdio::null());
    let process = context("start an agent", command.env("CCPLANE_LOG", "error").spawn())?;
    let agent = Agent { process, options, config };
    let since = Instant::now();
    while !socket.exists() {
        if since.elapsed() > UP {
            return Err(BenchError::Missing("the agent has not come up".into()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(agent)
}

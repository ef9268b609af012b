//! `agent.learn.cpu`: what the agent's learning thread takes while flows run, once it has adapted to their path.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_runner::traffic::{BulkFlow, FlowConfig};

use crate::emu::{self, Behind};
use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::steer;

const ALGORITHM: &str = "aurora";
/// How the kernel shows the learner's thread: 15 characters of its name.
const THREAD: &str = "ccp-learn-auror";
const FLOWS: usize = 8;
const LINK_MBIT: u32 = 80;
const DELAY_MS: &str = "10";
const UP: Duration = Duration::from_secs(10);
/// Until the learner knows the path: what it takes meanwhile is another figure.
const ADAPT: Duration = Duration::from_secs(25);
const WINDOW: Duration = Duration::from_secs(2);
const WINDOWS: usize = 10;

/// An agent of the benchmark's own.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // By SIGTERM: it detaches.
        let pid = nix::unistd::Pid::from_raw(self.0.id() as i32);
        if nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).is_ok() {
            let _ = self.0.wait();
        }
    }
}

/// Runs the benchmark.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    if !ccplane_emulator::netns::available() {
        return Err(BenchError::Missing("network namespaces need root".into()));
    }
    let shipped = ccplane_algs::all().into_iter().find(|a| a.name() == ALGORITHM);
    if shipped.is_none_or(|a| a.policies().is_empty()) {
        return Err(BenchError::Missing(format!("{ALGORITHM} ships without a policy")));
    }
    let (options, run_dir) = steer::options("l")?;
    let agent = start(&options.name, run_dir.path())?;
    let trace = emu::constant(run_dir.path(), LINK_MBIT)?;
    let exe = emu::exe()?;
    let path = Behind::start(&["mm-delay", DELAY_MS, &exe, "mm-link", &trace, &trace])?;
    let epoch = Instant::now();
    let receiver = SocketAddr::new(path.base, 0);
    let config = FlowConfig { receiver, ..steer::bulk(&options.name, steer::LONG + ADAPT) };
    let start = || BulkFlow::start(&config, &path.inside, &path.outside, epoch);
    let flows: Vec<BulkFlow> = (0..FLOWS).map(|_| start()).collect::<Result<_, _>>()?;
    thread::sleep(ADAPT);
    let mut percents = Vec::new();
    for _ in 0..WINDOWS {
        let (from, before) = (Instant::now(), learner_cpu(agent.0.id())?);
        thread::sleep(WINDOW);
        let used = learner_cpu(agent.0.id())?.saturating_sub(before);
        percents.push(100.0 * used.as_secs_f64() / from.elapsed().as_secs_f64());
    }
    for flow in flows {
        flow.stop();
        flow.finish()?;
    }
    Ok(vec![Figure::alone("agent.learn.cpu", "% of a core", &percents)])
}

/// Starts an agent whose kernel datapath is called `name`, and waits until it serves.
fn start(name: &str, dir: &Path) -> Result<Agent, BenchError> {
    let (socket, file) = (dir.join("control.sock"), dir.join("agent.toml"));
    let text = format!(
        "default_algorithm = \"{ALGORITHM}\"\ncontrol.socket = {socket:?}\ndatapath.unix.mode = \"off\"\n\
         [datapath.ebpf]\nmode = \"on\"\nname = \"{name}\"\nrun_dir = {dir:?}\n"
    );
    context("write a configuration", std::fs::write(&file, text))?;
    let owner_only = std::fs::Permissions::from_mode(0o600);
    context("write a configuration", std::fs::set_permissions(&file, owner_only))?;
    let mut command = Command::new(context("find this program", std::env::current_exe())?);
    command.arg("agent").arg("--config").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
    let agent = Agent(context("start an agent", command.env("CCPLANE_LOG", "error").spawn())?);
    let since = Instant::now();
    while !socket.exists() {
        if since.elapsed() > UP {
            return Err(BenchError::Missing("the agent has not come up".into()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(agent)
}

/// What the learner's thread of process `pid` has used (proc(5), schedstat).
fn learner_cpu(pid: u32) -> Result<Duration, BenchError> {
    let threads = context("list an agent's threads", std::fs::read_dir(format!("/proc/{pid}/task")))?;
    for thread in threads.flatten() {
        let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        if read("comm").trim_end() == THREAD {
            let ns = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok());
            return ns.map(Duration::from_nanos).ok_or_else(|| BenchError::Missing("no schedstat".into()));
        }
    }
    Err(BenchError::Missing("the agent has no learner".into()))
}

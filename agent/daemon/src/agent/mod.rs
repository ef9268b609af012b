//! `ccplane agent`: configuration, lock, loops, control socket, signals, end.
//!
//! One loop drives the kernel's datapath, another its packets, a third the datapaths of other processes. Each has its
//! own thread and its own [`Core`], so that none waits for another. The main thread serves the control socket and
//! signals.

mod arms;
mod embedded;
mod handle;
mod observed;
mod own_loop;
mod pace;
mod packets_loop;
mod source;
mod worker;

use crate::args::AgentArgs;
use crate::config::{
    CcpKernel, CcpLink, Config, DEFAULT_TOML, LearnMode, OnOff, Switch, Transport, resolve_rules,
};
use crate::confine::{Role, Threads, confine};
use crate::control::{Answer, Request, Response, Server, ServerLimits};
use crate::failure::Failure;
use crate::learning::{Ask, Beginning, Learning, LoopId, open_kept, resume_all};
use crate::memory::{self, Memories};
use crate::notify::Notifier;
use crate::place::Located;
use crate::privileges::{self, Powers};
use crate::rundir::{self, InstanceLock, RunDirError};
use crate::sequences::Admissions;
use ccplane_alg::Algorithm;
use ccplane_bridge::{Links, Options, Portus};
use ccplane_channel::clock;
use ccplane_channel::hub::{Hub, HubOptions, KernelLink, KernelLinkError};
use ccplane_core::{Catalog, CatalogError, Core, Rules, RulesError};
use ccplane_files::SocketError;
use ccplane_files::document::Problem;
pub use embedded::waker;
use handle::{ByHand, Handle};
use observed::Observed;
pub use own_loop::{Learns, OwnLoop};
use pace::{Pace, heartbeat_us};
use source::{Peers, Source};
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{error, info, warn};
use worker::{Ending, Partners, Query, SpawnError, Worker};

/// Uids of programs, and of deployments, in one run of the agent. Runs that start in different seconds use different
/// ones, for a day and more. So a datapath never takes what a dead agent left for one of ours. Deployments moreover
/// are numbered beyond those that a datapath holds.
const UIDS_PER_RUN_BITS: u32 = 15;

/// The loop of the kernel's datapath.
const KERNEL_LOOP: LoopId = LoopId(0);
/// The loop of other processes' datapaths.
const PEERS_LOOP: LoopId = LoopId(1);
/// The loop of the kernel's packets.
const PACKETS_LOOP: LoopId = LoopId(2);
/// Each loop numbers its deployments in a part of a run's uids, so that a learner can tell them apart.
const UIDS_PER_LOOP_BITS: u32 = UIDS_PER_RUN_BITS - 2;

/// Time between two readings of the slots where no learner needs more, microseconds.
const SLOTS_EVERY_US: u64 = 1_000_000;

/// Descriptors of tokio's runtime: two of its poller, three of its signals; and some to spare.
const RUNTIME_DESCRIPTORS: usize = 8;

/// The interval at which the agent checks that its run directory is still there.
const RUN_DIR_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The time in which it tells those who asked it to stop that it has stopped.
const FAREWELL: Duration = Duration::from_secs(1);

/// Nothing keeps a second agent out any more, and no command reaches this one.
#[derive(Debug, thiserror::Error)]
#[error("the run directory {} was removed underneath the agent: it has handed its flows back and ended", .0.display())]
struct RunDirGone(PathBuf);

/// Runs `ccplane agent` to its end.
pub fn agent(args: &AgentArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    if args.print_default_config {
        return crate::output::print(DEFAULT_TOML);
    }
    let algorithms = &with_packets(with_portus(algorithms))[..];
    let catalog = catalog(algorithms)?;
    let names = catalog.names();
    if args.list_algorithms {
        return crate::output::print(&format!("{}\n", names.join("\n")));
    }
    let located = args.place.locate(Some(&names))?;
    let algorithms = &arms::choosing(args, algorithms, &located)?[..];
    let algorithms = &packets_loop::configured(
        args.place.config.as_deref(),
        algorithms,
        &located.config.datapath.packets,
    )?[..];
    let Config { default_algorithm, rules, .. } = &located.config;
    let rules = resolve_rules(default_algorithm, rules, &names).map_err(Failure::input)?;
    check_rules(args, algorithms, &rules)?;
    if args.check_config {
        return Ok(());
    }
    log_to_stderr(&located.config.log);
    let run_dir = located.run_dir()?.to_owned();
    let notifier = Notifier::from_environment().map_err(Failure::runtime)?;
    privileges::no_way_back();
    let lock = InstanceLock::acquire(&rundir::prepare(&run_dir)?)?;
    let runtime = runtime()?;
    // Before anything is attached: a signal that comes while the agent starts is not to end it there and then.
    let signals = runtime.block_on(async { Signals::new() })?;
    let mut observed = Observed::new(&located.config);
    let learn = &located.config.learn;
    let admissions = Admissions::open(learn.trust(), learn.state.as_deref()).map_err(Failure::runtime)?;
    let learned = located.policies()?;
    let policies = open_kept(&learned, algorithms).map_err(Failure::runtime)?;
    let beginnings = match learn.mode {
        LearnMode::Off => Vec::new(),
        _ => resume_all(algorithms, &policies, &admissions),
    };
    let learners_of = in_use(algorithms, &located.config);
    // Sockets stay in the run directory, wherever policies are.
    let sockets = Some(learned.former.as_path());
    let learning = Learning::new(learn, &learners_of, &rules, Some(policies), sockets, beginnings.clone())?;
    let memories = memories(&located, algorithms)?;
    let workers = start_loops(args, &located, &rules, algorithms, &mut observed, &learning, &beginnings)?;
    let learners = learning.views();
    observed.learners(learners.clone());
    // Learners inherit it.
    confine(Role::Plain, Threads::This);
    let _learning = learning.start(ask(workers.iter().map(Worker::queries).collect()));
    privileges::keep(privileges::NOTHING);
    let running = Running { args, located: &located, lock, algorithms: names, signals, workers, memories };
    let by_hand = ByHand { learners, admissions, algorithms: algorithms.to_vec() };
    runtime.block_on(running.serve(observed, by_hand, &notifier))
}

/// The algorithms, with the one that a portus agent hosts.
pub fn with_portus(algorithms: &[Arc<dyn Algorithm>]) -> Vec<Arc<dyn Algorithm>> {
    let mut all = algorithms.to_vec();
    all.push(Arc::new(Portus));
    all
}

/// The algorithms, with those that decide on packets.
fn with_packets(mut algorithms: Vec<Arc<dyn Algorithm>>) -> Vec<Arc<dyn Algorithm>> {
    algorithms.extend(ccplane_algs::on_packets());
    algorithms
}

/// The algorithms, without those that decide on packets where nothing is decided about these: nobody would learn by them.
fn in_use(algorithms: &[Arc<dyn Algorithm>], config: &Config) -> Vec<Arc<dyn Algorithm>> {
    let mut all = algorithms.to_vec();
    let datapath = &config.datapath;
    let of_peers = datapath.unix.mode == OnOff::On && datapath.packets.is_asked_of_peers(&config.rules);
    if !datapath.packets.is_wanted() && !of_peers {
        let on_packets: Vec<&str> = ccplane_algs::on_packets().iter().map(|a| a.name()).collect();
        all.retain(|algorithm| !on_packets.contains(&algorithm.name()));
    }
    all
}

/// Loads what algorithms learned of destinations under earlier agents.
fn memories(located: &Located, algorithms: &[Arc<dyn Algorithm>]) -> Result<Memories, Failure> {
    let every = Duration::from_secs(located.config.portfolio.save_s.get());
    let folder = memory::open_folder(&located.memory()?, algorithms).map_err(Failure::runtime)?;
    Memories::open(folder, algorithms, every).map_err(Failure::runtime)
}

/// Makes the runtime if enough descriptors are free, without which tokio's signals panic.
fn runtime() -> io::Result<Runtime> {
    let spare: io::Result<Vec<File>> = (0..RUNTIME_DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    drop(spare?);
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Checks the parameters of rules with the algorithms that are to take them.
fn check_rules(args: &AgentArgs, algorithms: &[Arc<dyn Algorithm>], rules: &Rules) -> Result<(), Failure> {
    let Err(error) = Core::new(catalog(algorithms)?, rules.clone(), ccplane_core::Config::default()) else {
        return Ok(());
    };
    let problem = match &error {
        RulesError::Parameters { rule, error } => {
            Problem::new(format!("rule[{rule}].parameters.{}", error.parameter()), error)
        }
        RulesError::Unconfigurable { rule, .. } => Problem::new(format!("rule[{rule}].parameters"), &error),
        RulesError::EmptyPorts { rule } => Problem::new(format!("rule[{rule}]"), &error),
        _ => Problem::new("rule", &error),
    };
    Err(Config::refusal(args.place.config.as_deref(), problem).into())
}

fn catalog(algorithms: &[Arc<dyn Algorithm>]) -> Result<Catalog, Failure> {
    let wrong = |e: CatalogError| Failure::input(e);
    Catalog::new(algorithms.to_vec(), first_uid()).map_err(wrong)
}

/// Returns the first uid of this run's programs and deployments.
fn first_uid() -> u32 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    (seconds as u32) << UIDS_PER_RUN_BITS | 1
}

/// Logs to standard error, where `CCPLANE_LOG` asks for it: commands that bring an agent of their own draw there.
pub fn log_if_asked() {
    if std::env::var_os("CCPLANE_LOG").is_some() {
        log_to_stderr("off");
    }
}

/// Logs to standard error as `CCPLANE_LOG` says, or else by this filter.
pub fn log_to_stderr(configured: &str) {
    let filter = std::env::var("CCPLANE_LOG").ok().and_then(|text| text.parse().ok());
    let filter = filter.unwrap_or_else(|| tracing_subscriber::EnvFilter::new(configured));
    let to = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // It would tell of a log that cannot be written by `eprintln!`, there, and so end the thread with a panic: on a full disk each one.
    let to = to.log_internal_errors(false);
    // Only a second subscriber in one process would fail: then the first one logs.
    let _ = to.with_ansi(std::io::stderr().is_terminal()).try_init();
}

/// Names the line and column of the field whose value the system refuses.
fn refused(config: Option<&Path>, field: &str, why: &Failure) -> Failure {
    Failure::runtime(Config::refusal(config, Problem::new(field, why.message())))
}

fn start_loops(
    args: &AgentArgs,
    located: &Located,
    rules: &Rules,
    algorithms: &[Arc<dyn Algorithm>],
    observed: &mut Observed,
    learning: &Learning,
    beginnings: &[Beginning],
) -> Result<Vec<Worker>, Failure> {
    let config = &located.config;
    let pace = Pace::new(&config.agent);
    let mut workers = Vec::new();
    let module = &config.datapath.module;
    if config.datapath.ebpf.mode == Switch::Off && !module.is_wanted() {
        info!(why = "datapath.ebpf.mode is off", "kernel datapath off");
    } else {
        let metrics = observed.of_loop("kernel");
        match OwnLoop::start_counted(
            located,
            rules,
            algorithms,
            metrics.clone(),
            learning.post(KERNEL_LOOP),
            Some(Role::Kernel),
            beginnings,
        )? {
            Ok(kernel) => {
                let worker = kernel.into_worker();
                observed.started("kernel", metrics, &worker);
                workers.push(worker);
            }
            Err(error) if config.datapath.ebpf.mode == Switch::Auto && module.mode != Switch::On => {
                warn!(why = %error, "kernel datapath off; `ccplane doctor` says what is missing");
            }
            Err(error) => return Err(Failure::runtime(error)),
        }
    }
    if config.datapath.packets.is_wanted() {
        let post = learning.post(PACKETS_LOOP);
        workers.extend(packets_loop::start(located, rules, algorithms, observed, post, beginnings)?);
    }
    if config.datapath.unix.mode == OnOff::On {
        let socket = located.datapath_socket()?;
        let pace = pace.of_peers(&config.agent, &config.datapath.unix);
        let options = HubOptions {
            rings: config.datapath.unix.transport == Transport::Ring,
            wake: pace.wake(),
            max_peers: config.datapath.unix.max_peers.count(),
            heartbeat_timeout: config.agent.heartbeat_timeout_ms.millis(),
            session: clock::now_us() ^ (u64::from(std::process::id()) << 48),
        };
        // Here, since the loop's thread has no privileges.
        let link = ccp_kernel(&config.datapath.ccp_kernel).map_err(|error| {
            let why = Failure::runtime(error);
            refused(args.place.config.as_deref(), "datapath.ccp_kernel.link", &why)
        })?;
        let attach = move |_: &mut Core| -> Result<Box<dyn Source>, RunDirError> {
            let mut hub = Hub::bind(&socket, options)?;
            if let Some(link) = link {
                hub.listen(link).map_err(|error| SocketError::io("wait beside", &socket, error))?;
            }
            Ok(Box::new(Peers::new(hub)))
        };
        let metrics = observed.of_loop("peers");
        let core = core(algorithms, rules, config, PEERS_LOOP, beginnings)?;
        let post = learning.post(PEERS_LOOP);
        let powers = Powers { role: Some(Role::Plain), ..Powers::NONE };
        let hosts = hosts(located, "peers", algorithms)?;
        let partners = Partners { metrics: metrics.clone(), post, hosts };
        let worker = Worker::spawn("peers", powers, core, pace, partners, attach);
        let worker = worker.map_err(|error| {
            let is_the_socket =
                matches!(error, SpawnError::Attach(_)) && config.datapath.unix.socket.is_some();
            let why = Failure::runtime(error);
            let config = args.place.config.as_deref();
            if is_the_socket { refused(config, "datapath.unix.socket", &why) } else { why }
        })?;
        observed.started("peers", metrics, &worker);
        workers.push(worker);
    }
    Ok(workers)
}

/// Opens the link to ccp-kernel that is configured.
fn ccp_kernel(config: &CcpKernel) -> Result<Option<KernelLink>, KernelLinkError> {
    match config.link {
        CcpLink::Off => Ok(None),
        CcpLink::Netlink => KernelLink::netlink().map(Some),
        CcpLink::Device => KernelLink::device(&config.device).map(Some),
    }
}

/// Makes the function by which learners ask every loop. It returns whether it reached one.
fn ask(loops: Vec<SyncSender<Query>>) -> impl Fn(Ask) -> bool + Clone + Send + 'static {
    move |ask| {
        let sent = |to: &SyncSender<Query>| to.try_send(Query::Learner(ask.clone())).is_ok();
        loops.iter().filter(|to| sent(to)).count() > 0
    }
}

/// The name of the kernel's loop to its hosts.
const KERNEL_HOSTS: &str = "kernel";

/// A loop's ways to a portus agent and to algorithms hosted in this process. Each loop is a datapath of its own to them.
fn hosts(located: &Located, of: &str, algorithms: &[Arc<dyn Algorithm>]) -> Result<Links, Failure> {
    let config = &located.config.portus;
    let folder = match &config.own {
        Some(folder) => folder.as_path(),
        None => located.run_dir()?,
    };
    let options = Options {
        socket: config.socket.clone(),
        takes_kernel_flows: of == KERNEL_HOSTS,
        own: folder.join(format!("portus-{of}.sock")),
        silence_us: config.silence_ms.get() * 1000,
        max_flows: config.max_flows.count(),
    };
    Links::new(options, algorithms, || privileges::keep(privileges::NOTHING)).map_err(Failure::runtime)
}

fn core(
    algorithms: &[Arc<dyn Algorithm>],
    rules: &Rules,
    config: &Config,
    of: LoopId,
    beginnings: &[Beginning],
) -> Result<Core, Failure> {
    let learn = &config.learn;
    let batch_us = learn.batch_ms.get() * 1000;
    let limits = ccplane_core::Config {
        max_flows: config.limits.max_flows.count(),
        heartbeat_us: heartbeat_us(&config.agent),
        batch_us,
        // The twin is made from what is seen of the flows' paths.
        slots_every_us: if learn.mode == LearnMode::Twin { batch_us } else { SLOTS_EVERY_US },
        first_deployment: first_uid() | u32::from(of.0) << UIDS_PER_LOOP_BITS,
        push: learn.push_rules(),
        // A command's own packets have a loop with this number, too, and rules that are for them alone.
        on_packets: (of != KERNEL_LOOP).then(|| config.datapath.packets.algorithm.clone()),
        ..ccplane_core::Config::default()
    };
    let mut catalog = catalog(algorithms)?;
    for Beginning { algorithm, snapshot, .. } in beginnings {
        if !catalog.begin_with(algorithm, snapshot.clone()) {
            warn!(algorithm, snapshot = %snapshot.hash(), "not of the network that ships: flows begin with that one");
        }
    }
    Core::new(catalog, rules.clone(), limits).map_err(Failure::input)
}

/// A started agent. However it ends, its loops hand their flows over and detach, unless it is told to leave them to the next.
struct Running<'a> {
    args: &'a AgentArgs,
    located: &'a Located,
    lock: InstanceLock,
    algorithms: Vec<&'static str>,
    signals: Signals,
    workers: Vec<Worker>,
    memories: Memories,
}

impl Running<'_> {
    /// Serves until told to stop, then stops.
    async fn serve(
        mut self,
        observed: Observed,
        by_hand: ByHand,
        notifier: &Notifier,
    ) -> Result<(), Failure> {
        let config = &self.located.config;
        let timeout = config.control.timeout_ms.millis();
        let limits = ServerLimits { clients: config.control.max_clients.count(), timeout };
        let server = Server::bind(&self.located.control_socket, limits)?;
        let queries = self.workers.iter().map(Worker::queries).collect();
        let rules = (config.default_algorithm.clone(), config.rules.len());
        let handle = Arc::new(Handle::new(queries, self.algorithms.clone(), timeout, rules, by_hand));
        let serving = server.serve(Arc::clone(&handle) as Arc<dyn Answer>);
        let refused =
            |error| refused(self.args.place.config.as_deref(), "metrics.listen", &Failure::runtime(error));
        let observing = observed.serve(&config.metrics).await.map_err(refused)?;
        info!(pid = std::process::id(), socket = %self.located.control_socket.display(), "agent runs");
        notifier.ready();

        let stopping = async {
            let why = tokio::select! {
                why = self.supervise(&handle, &server) => why,
                // It never ends.
                () = beat(notifier, &handle) => Ok(Ending::HandOver),
            };
            notifier.stopping();
            let outcome = self.stop(*why.as_ref().unwrap_or(&Ending::HandOver)).await;
            let outcome = why.and(outcome);
            handle.stopped(outcome.as_ref().err().map(Failure::message), FAREWELL).await;
            outcome
        };
        tokio::select! {
            outcome = stopping => outcome,
            // These never end.
            () = serving => Ok(()),
            () = observing => Ok(()),
        }
    }

    /// Waits for a reason to stop; returns how, an error where there is something wrong.
    async fn supervise(&mut self, handle: &Handle, server: &Server) -> Result<Ending, Failure> {
        let mut run_dir_check = tokio::time::interval(RUN_DIR_CHECK_INTERVAL);
        let mut reachable = true;
        loop {
            tokio::select! {
                () = any_ended(&mut self.workers) => {
                    error!("a loop ended unexpectedly");
                    return Ok(Ending::HandOver);
                }
                () = handle.stop.notified() => return Ok(Ending::HandOver),
                () = handle.leave.notified() => return Ok(Ending::Leave),
                wish = self.signals.next() => match wish {
                    Wish::Stop => return Ok(Ending::HandOver),
                    Wish::Leave => return Ok(Ending::Leave),
                    Wish::Reload => reload(self.args, handle, &self.algorithms).await,
                },
                _ = run_dir_check.tick() => {
                    self.memories.keep();
                    if !self.lock.is_firm() {
                        let gone = RunDirGone(self.located.run_dir()?.to_owned());
                        error!("the run directory {} was removed underneath the agent", gone.0.display());
                        return Err(Failure::runtime(gone));
                    }
                    if reachable && !server.is_there() {
                        reachable = false;
                        error!(
                            pid = std::process::id(),
                            "the control socket was removed: no command reaches this agent, which goes on; SIGTERM stops it"
                        );
                    }
                }
            }
        }
    }

    /// Stops the loops. What more signals come meanwhile change nothing.
    async fn stop(&mut self, ending: Ending) -> Result<(), Failure> {
        match ending {
            Ending::HandOver => info!("stopping: flows go to their native algorithm"),
            Ending::Leave => info!("stopping: flows are left to the next agent"),
        }
        self.workers.iter().for_each(|worker| worker.stop(ending));
        let mut outcome = Ok(());
        for mut worker in std::mem::take(&mut self.workers) {
            loop {
                tokio::select! {
                    _ = &mut worker.ended => break,
                    () = self.signals.stop() => {
                        info!("stopping already");
                    }
                }
            }
            outcome = outcome.and(worker.join().map_err(Failure::runtime));
        }
        self.memories.write();
        info!("stopped");
        outcome
    }
}

/// Gives the service manager signs of life while every loop answers; never ends. A loop that hangs gives none, and the manager
/// starts the agent anew: flows run natively meanwhile.
async fn beat(notifier: &Notifier, handle: &Handle) {
    let Some(every) = notifier.beat() else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(every);
    loop {
        ticks.tick().await;
        match handle.answer(Request::Status).await {
            Response::Error { message } => warn!(%message, "no sign of life to the service manager"),
            _ => notifier.alive(),
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    user2: Signal,
}

/// Request that a signal stands for.
enum Wish {
    Stop,
    /// The next agent is about to start: flows and all that is attached are left to it.
    Leave,
    Reload,
}

impl Signals {
    fn new() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.terminate.recv() => Wish::Stop,
            _ = self.interrupt.recv() => Wish::Stop,
            _ = self.hangup.recv() => Wish::Reload,
            _ = self.user2.recv() => Wish::Leave,
        }
    }

    async fn stop(&mut self) {
        while !matches!(self.next().await, Wish::Stop | Wish::Leave) {}
    }
}

/// Resolves when a loop ends.
async fn any_ended(workers: &mut [Worker]) {
    std::future::poll_fn(|context| {
        let ended = |w: &mut Worker| std::pin::Pin::new(&mut w.ended).poll(context).is_ready();
        if workers.iter_mut().any(ended) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// SIGHUP: the rules of the configuration file, anew.
async fn reload(args: &AgentArgs, handle: &Handle, algorithms: &[&str]) {
    let config = match args.place.locate(Some(algorithms)) {
        Ok(located) => located.config,
        Err(failure) => {
            error!("rules are not reloaded: {}", failure.message());
            return;
        }
    };
    let Config { default_algorithm, rules, .. } = config;
    if let Response::Error { message } = handle.answer(Request::SetRules { default_algorithm, rules }).await {
        error!("rules are not reloaded: {message}");
    }
}

#[cfg(test)]
mod tests {
    use super::worker::LoopStatus;
    use super::*;
    use crate::control::{Counters, LoopRecord};
    use ccplane_snapshot::Trust;
    use std::os::unix::net::UnixDatagram;
    use std::sync::mpsc::sync_channel;

    /// Time in which a loop is to answer, and its manager to hear of it.
    const PATIENCE: Duration = Duration::from_millis(30);
    /// Questions that the loop has room for.
    const QUESTIONS: usize = 64;

    fn status() -> LoopStatus {
        let record = LoopRecord { name: "mine".to_owned(), wake: "sleep".to_owned(), cores: Vec::new() };
        LoopStatus { record, datapaths: Vec::new(), counters: Counters::default() }
    }

    #[test]
    fn a_loop_that_hangs_gives_no_sign_of_life_until_it_answers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let notifier = Notifier::of(&path, PATIENCE).unwrap();
        let (queries, asked) = sync_channel(QUESTIONS);
        let admissions = Admissions::open(Trust::Any, None).unwrap();
        let by_hand = ByHand { learners: Vec::new(), admissions, algorithms: Vec::new() };
        let handle = Handle::new(vec![queries], Vec::new(), PATIENCE, (String::new(), 0), by_hand);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let heard = || {
            let beats = async { tokio::time::timeout(10 * PATIENCE, beat(&notifier, &handle)).await };
            assert!(runtime.block_on(beats).is_err(), "beats never end");
            let mut words = [0; 64];
            let bytes = manager.recv(&mut words).ok()?;
            Some(String::from_utf8_lossy(&words[..bytes]).into_owned())
        };
        assert_eq!(heard(), None);
        std::thread::spawn(move || {
            for query in asked {
                if let Query::Status(answer) = query {
                    // Who asked may have lost patience.
                    let _ = answer.send(status());
                }
            }
        });
        assert_eq!(ccplane_testing::wait_for("a sign of life", heard), "WATCHDOG=1");
    }
}

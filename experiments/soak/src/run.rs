//! A run: flows, files, faults of the agent, and samples.

use crate::processes::{self, Home, Server, SoakProcess};
use crate::random::Random;
use crate::sample::{ProcessSample, Sample, files};
use crate::{Context, Error};
use ccplane_emulator::netns::clean_leftovers;
use ccplane_emulator::{Emulator, LinkConfig, Queue, Shape};
use ccplane_runner::traffic::{BulkFlow, FlowConfig};
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time between two turns of the loop.
const TURN: Duration = Duration::from_millis(50);
/// Time between two samples; in runs of less than an hour the 360th part of it, but a second at least.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Long flows that run at once.
const LONG_FLOWS: usize = 4;
/// Short flows at once, at most.
const SHORT_FLOWS: usize = 8;
/// The longest that a flow takes: one that waits for an agent is ended.
const LONGEST: Duration = Duration::from_secs(120);
/// The folder that is served, in the home.
const SERVED: &str = "served";
/// The file in it that is fetched.
const FILE: &str = "file";
/// One file in so many is put, the others are fetched.
const PUT_EVERY: u64 = 5;
/// The file that is fetched, bytes.
const FILE_BYTES: usize = 8 << 20;
/// The slot of Aurora's policy.
const SLOT: &str = "0";

/// The configuration of a soak.
#[derive(Clone, Debug)]
pub struct Config {
    /// The `ccplane` command.
    pub ccplane: PathBuf,
    /// A snapshot of Aurora's that is pushed by command.
    pub snapshot: PathBuf,
    pub duration: Duration,
    /// Seeds the times of all faults.
    pub seed: u64,
    /// The file that samples are written to, as JSON Lines.
    pub samples: PathBuf,
}

/// Counts of events in a run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Long flows that were started.
    pub long_flows: u64,
    /// Short flows that carried all their bytes.
    pub short_flows: u64,
    /// Flows that failed while an agent ran, and a link was there.
    pub failed_flows: u64,
    /// Files that were fetched.
    pub files: u64,
    /// Files that were put.
    pub puts: u64,
    /// Files that could not be fetched or put.
    pub failed_files: u64,
    /// Agents that were stopped.
    pub stops: u64,
    /// Agents that were killed.
    pub kills: u64,
    /// Times that the agent was frozen.
    pub freezes: u64,
    /// Snapshots that were pushed by command.
    pub pushes: u64,
    /// Snapshots that were rolled back by command.
    pub roll_backs: u64,
    /// Links that were made anew.
    pub links: u64,
}

/// The results of a soak.
#[derive(Clone, Debug)]
pub struct SoakOutcome {
    /// All samples in order of time.
    pub samples: Vec<Sample>,
    pub counts: Counts,
    /// The duration of the run, seconds.
    pub took_s: f64,
    /// Whether a signal ended the run early.
    pub interrupted: bool,
    /// Objects that were left in the kernel or in file systems.
    pub left: Vec<String>,
}

/// A flow, and when it is ended.
struct SoakFlow {
    flow: BulkFlow,
    until: Instant,
    is_short: bool,
}

/// A client of the QUIC server that fetches a file, or puts one.
struct Transfer {
    client: SoakProcess,
    is_put: bool,
}

struct Soak {
    config: Config,
    random: Random,
    counts: Counts,
    lives: u64,
    start: Instant,
    // Dropped in this order: flows before their link, everything before its folder.
    flows: Vec<SoakFlow>,
    transfer: Option<Transfer>,
    server: Server,
    agent: Option<SoakProcess>,
    /// A stopped or killed agent's successor starts then; a frozen one goes on.
    change_at: Option<Instant>,
    link: Emulator,
    home: Home,
}

/// Runs a soak until its time is over or a signal comes.
///
/// # Errors
/// A process could not be started, or ended by itself. All started processes are ended then, too.
pub fn run(config: &Config) -> Result<SoakOutcome, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, stop.clone()).context(|| "handle signals".to_owned())?;
    }
    clean_leftovers();
    let mut out = File::create(&config.samples).context(|| format!("write {}", config.samples.display()))?;
    let mut soak = Soak::new(config)?;
    let every = (config.duration / 360).clamp(Duration::from_secs(1), SAMPLE_EVERY);
    let gap_ms = u64::try_from(config.duration.as_millis() / 60).unwrap_or(u64::MAX).clamp(4000, 180_000);
    let (mut samples, mut sample_at, mut fault_at) = (Vec::new(), soak.start, soak.start);
    fault_at += Duration::from_millis(gap_ms);
    while soak.start.elapsed() < config.duration && !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        soak.turn(now)?;
        if now >= fault_at {
            soak.fault(now)?;
            fault_at = now + Duration::from_millis(soak.random.between(gap_ms / 2, gap_ms * 3 / 2));
        }
        if now >= sample_at {
            sample_at = now + every;
            let sample = soak.sample();
            let line = serde_json::to_string(&sample).map_err(std::io::Error::from);
            let written = line.and_then(|line| writeln!(out, "{line}"));
            written.context(|| format!("write {}", config.samples.display()))?;
            samples.push(sample);
        }
        std::thread::sleep(TURN);
    }
    let (took_s, interrupted) = (soak.start.elapsed().as_secs_f64(), stop.load(Ordering::Relaxed));
    let (counts, left) = soak.finish()?;
    Ok(SoakOutcome { samples, counts, took_s, interrupted, left })
}

impl Soak {
    fn new(config: &Config) -> Result<Soak, Error> {
        let home = Home::new(&config.ccplane)?;
        let served = home.path(SERVED);
        fs::create_dir(&served).context(|| "make a folder to serve".to_owned())?;
        fs::write(served.join(FILE), vec![7; FILE_BYTES]).context(|| "write a file to serve".to_owned())?;
        let mut random = Random::new(config.seed);
        let link = new_link(&mut random)?;
        let agent = processes::agent(&home, 0)?;
        let server = processes::server(&home, &served)?;
        Ok(Soak {
            config: config.clone(),
            random,
            counts: Counts::default(),
            lives: 0,
            start: Instant::now(),
            flows: Vec::new(),
            transfer: None,
            server,
            agent: Some(agent),
            change_at: None,
            link,
            home,
        })
    }

    /// Does what is due: ends flows and files, starts others, restarts the agent.
    fn turn(&mut self, now: Instant) -> Result<(), Error> {
        self.server.process.check()?;
        if let Some(agent) = &mut self.agent {
            agent.check()?;
        }
        if self.change_at.is_some_and(|at| now >= at) {
            self.change_at = None;
            match &self.agent {
                Some(frozen) => frozen.signal(Signal::SIGCONT),
                None => {
                    self.lives += 1;
                    self.agent = Some(processes::agent(&self.home, self.lives)?);
                }
            }
        }
        self.end_flows(now);
        // While no agent has registered it, there is no such congestion control.
        if self.agent.is_some() {
            let long = self.flows.iter().filter(|f| !f.is_short).count();
            let short = self.flows.len() - long;
            if long < LONG_FLOWS {
                self.start_flow(now, false);
            }
            if short < SHORT_FLOWS && self.random.between(0, 3) == 0 {
                self.start_flow(now, true);
            }
        }
        let ended = self.transfer.as_mut().and_then(|t| Some((t.client.ended()?.success(), t.is_put)));
        if let Some(ended) = ended {
            self.transfer = None;
            *match ended {
                (true, false) => &mut self.counts.files,
                (true, true) => &mut self.counts.puts,
                (false, _) => &mut self.counts.failed_files,
            } += 1;
        }
        if self.transfer.is_none() && self.random.between(0, 40) == 0 {
            let is_put = (self.counts.files + self.counts.puts) % PUT_EVERY == 1;
            let client = match is_put {
                true => processes::put(&self.home, &self.server, &self.home.path(SERVED).join(FILE))?,
                false => processes::fetch(&self.home, &self.server, FILE)?,
            };
            self.transfer = Some(Transfer { client, is_put });
        }
        Ok(())
    }

    fn start_flow(&mut self, now: Instant, is_short: bool) {
        let bytes = is_short.then(|| self.random.between(1000, 300_000));
        let until = now + if is_short { LONGEST } else { Duration::from_secs(self.random.between(5, 60)) };
        let config = FlowConfig {
            congestion: self.home.name.clone(),
            receiver: SocketAddr::new(self.link.receiver_addresses().v4.into(), 0),
            duration: LONGEST,
            bytes,
            sample_every: Duration::from_secs(1),
        };
        match BulkFlow::start(&config, self.link.sender_ns(), self.link.receiver_ns(), now) {
            Ok(flow) => {
                self.counts.long_flows += u64::from(!is_short);
                self.flows.push(SoakFlow { flow, until, is_short });
            }
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, error: &dyn std::fmt::Display) {
        self.counts.failed_flows += 1;
        eprintln!("{:.1} s: a flow failed: {error}", self.start.elapsed().as_secs_f64());
    }

    fn end_flows(&mut self, now: Instant) {
        let over: Vec<SoakFlow> =
            self.flows.extract_if(.., |f| f.flow.is_finished() || now >= f.until).collect();
        for SoakFlow { flow, is_short, .. } in over {
            let all = flow.is_finished();
            flow.stop();
            match flow.finish() {
                Ok(_) => self.counts.short_flows += u64::from(is_short && all),
                Err(error) => self.failed(&error),
            }
        }
    }

    /// Injects a fault, unless the last one is still in effect.
    fn fault(&mut self, now: Instant) -> Result<(), Error> {
        if self.change_at.is_some() {
            return Ok(());
        }
        let away = Duration::from_millis(self.random.between(1, 3000));
        match self.random.between(0, 6) {
            0 => {
                if let Some(agent) = self.agent.take() {
                    let status = agent.end(Signal::SIGTERM)?;
                    if !status.success() {
                        let said = processes::last_line(&self.home.path("agent.log"));
                        return Err(Error::Ended { what: "an agent that was to stop", status, said });
                    }
                }
                self.counts.stops += 1;
                self.change_at = Some(now + away);
            }
            1 => {
                if let Some(agent) = self.agent.take() {
                    agent.end(Signal::SIGKILL)?;
                }
                self.counts.kills += 1;
                self.change_at = Some(now + away);
            }
            2 => {
                self.agent.iter().for_each(|agent| agent.signal(Signal::SIGSTOP));
                self.counts.freezes += 1;
                self.change_at = Some(now + away);
            }
            3 | 4 => {
                let file = self.config.snapshot.to_string_lossy();
                // Refused where one is on trial.
                let pushed = self.home.run(&["snapshot", "push", &file])?;
                self.counts.pushes += u64::from(pushed);
            }
            5 => self.counts.roll_backs += u64::from(self.home.run(&["snapshot", "rollback", SLOT])?),
            _ => {
                self.flows.iter().for_each(|f| f.flow.stop());
                self.end_flows(now + LONGEST);
                self.link = new_link(&mut self.random)?;
                self.counts.links += 1;
            }
        }
        Ok(())
    }

    fn sample(&self) -> Sample {
        let mut held = BTreeSet::new();
        let mut sample_of = |process: &SoakProcess| {
            let sample = ProcessSample::take(process.pid(), &mut held)?;
            Some(ProcessSample { life: process.life, age_s: process.age_s(), ..sample })
        };
        let agent = self.agent.as_ref().and_then(&mut sample_of);
        let server = sample_of(&self.server.process);
        let soak = ProcessSample::take(std::process::id(), &mut held).unwrap_or_default();
        let pins = self.home.pins().iter().map(|folder| files(folder, &|_| false).count).sum();
        let is_log = |path: &Path| path.extension().is_some_and(|e| e == "log");
        let in_folder = files(self.home.folder(), &is_log);
        Sample {
            at_s: self.start.elapsed().as_secs_f64(),
            agent,
            server,
            soak,
            pins,
            namespaces: held.len() as u64 + named_namespaces(),
            run_dir_kib: in_folder.bytes / 1024,
            logs_kib: in_folder.log_bytes / 1024,
            flows: self.flows.len() as u64,
        }
    }

    /// Ends everything, and lists what is left behind.
    fn finish(self) -> Result<(Counts, Vec<String>), Error> {
        let Soak { flows, transfer, server, agent, change_at, link, home, counts, .. } = self;
        drop((flows, transfer));
        if change_at.is_some() {
            agent.iter().for_each(|frozen| frozen.signal(Signal::SIGCONT));
        }
        server.process.end(Signal::SIGINT)?;
        // Whatever was killed and not started again has left its part to be cleaned up.
        let agent = match agent {
            Some(agent) => agent,
            None => processes::agent(&home, u64::MAX)?,
        };
        agent.end(Signal::SIGTERM)?;
        drop(link);
        let mut left: Vec<String> = Vec::new();
        for folder in home.pins() {
            let count = files(&folder, &|_| false).count;
            if count > 0 {
                left.push(format!("{count} pins in {}", folder.display()));
            }
        }
        let registered = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        if registered.unwrap_or_default().split_whitespace().any(|name| name == home.name) {
            left.push(format!("the congestion control {}", home.name));
        }
        if named_namespaces() > 0 {
            left.push(format!("{} network namespaces", named_namespaces()));
        }
        Ok((counts, left))
    }
}

/// A link of some rate and delay.
fn new_link(random: &mut Random) -> Result<Emulator, Error> {
    let rate_mbit = random.between(4, 60) as u32;
    let mut link = LinkConfig::symmetric(Shape::mbit(rate_mbit), random.between(1, 40) * 1000);
    link.up.queue = Queue::packets(100);
    Ok(Emulator::start(&link)?)
}

/// Network namespaces that are named after this process.
fn named_namespaces() -> u64 {
    let ours = format!("ccp-{}-", std::process::id());
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries.filter(|e| e.file_name().to_string_lossy().starts_with(&ours)).count() as u64
}

//! `emu.vs-mahimahi`: ccplane's link shells against the real mahimahi's, where `make mahimahi` has put it.
//!
//! The same iperf3 sends by the kernel's CUBIC through `mm-delay 20 mm-link` of one and of the other, in turn. Trace
//! and queue are the same; both write a log, and one arithmetic ([`ccplane_traces::log`]) makes figures of both.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ccplane_emulator::netns::Namespace;
use ccplane_files::is_listening;
use ccplane_traces::log::{Figures, LinkLog};

use crate::agent::Process;
use crate::error::{BenchError, context};
use crate::figure::{Figure, percentile};
use crate::oracle;
use crate::proof::Proof;

/// The place where `make mahimahi` puts it, below the build directory.
const RUN: &str = "mahimahi/run";
const DELAY_MS: &str = "20";
const QUEUE_ARGS: &str = "packets=100";
const UPLINK_LOG: &str = "uplink.log";
const TRACE: &str = "trace";
/// One opportunity a millisecond: 12.032 Mb/s.
const CONST12: &str = "1\n";
/// The place where iperf3 listens unless it is told otherwise, which is at this port on all addresses.
const IPERF3: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 5201);
/// Since the link's start, when both loads have long begun and slow start is over.
const FROM_MS: u32 = 2_000;
/// The time that a run may take beyond its sending time.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(20);
/// Pairs of runs, one of each tool.
const PAIRS: usize = 5;
const SECONDS: u32 = 16;

/// An installation of the original mahimahi.
#[derive(Clone, Debug)]
pub struct Mahimahi {
    run: PathBuf,
}

/// The traffic that iperf3 sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// One TCP flow under the kernel's CUBIC.
    Cubic,
    /// UDP packets faster than the link: its queue is always full, and delays do not depend on chance.
    Flood,
}

impl Load {
    fn flags(self) -> &'static str {
        match self {
            Load::Cubic => "-C cubic",
            Load::Flood => "-u -b 20M -l 1472",
        }
    }
}

/// A pair of runs over the same link.
#[derive(Clone, PartialEq, Debug)]
pub struct Pair {
    /// Figures of ccplane's shells.
    pub ours: Figures,
    /// Figures of mahimahi's shells.
    pub theirs: Figures,
}

impl Mahimahi {
    /// Looks in the build directory that the running program lies in.
    ///
    /// # Errors
    /// It is not there, or this user may not make namespaces.
    pub fn find() -> Result<Mahimahi, BenchError> {
        crate::error::check_namespaces()?;
        let own = context("find the running program", std::env::current_exe())?;
        let run = own.ancestors().map(|dir| dir.join(RUN)).find(|path| path.is_file());
        let missing =
            || BenchError::Missing("the real mahimahi is not there; `make mahimahi` fetches it".into());
        Ok(Mahimahi { run: run.ok_or_else(missing)? })
    }

    /// The file of mahimahi's own graph script, such as `mm-delay-graph`.
    pub fn script(&self, name: &str) -> PathBuf {
        self.run.with_file_name("root").join("usr/bin").join(name)
    }

    /// Runs both tools under a load over a trace, `pairs` times in turn, `seconds` each. `ccplane` is our program. The first pair's logs are left
    /// in `keep`, as `ours.log` and `theirs.log`.
    ///
    /// # Errors
    /// What the system, the tools or iperf3 refuse; nothing is left running.
    pub fn compare(
        &self,
        ccplane: &Path,
        (trace, load): (&str, Load),
        (pairs, seconds): (usize, u32),
        keep: Option<&Path>,
    ) -> Result<Vec<Pair>, BenchError> {
        let dir = context("make a directory", tempfile::tempdir())?;
        // mahimahi writes its log as nobody.
        context("open the directory", fs::set_permissions(dir.path(), Permissions::from_mode(0o777)))?;
        context("write the trace", fs::write(dir.path().join(TRACE), trace))?;
        let mut measured = Vec::new();
        for n in 0..pairs {
            let run = |ours: bool| {
                let name = if ours { "ours.log" } else { "theirs.log" };
                let keep = keep.filter(|_| n == 0).map(|dir| dir.join(name));
                self.measure(ours.then_some(ccplane), load, dir.path(), seconds, keep.as_deref())
            };
            // The order alternates too.
            let first = run(n % 2 == 0)?;
            let second = run(n % 2 != 0)?;
            let (ours, theirs) = if n % 2 == 0 { (first, second) } else { (second, first) };
            measured.push(Pair { ours, theirs });
        }
        Ok(measured)
    }

    /// One run: of ours if the program is given, else of mahimahi's.
    fn measure(
        &self,
        ccplane: Option<&Path>,
        load: Load,
        dir: &Path,
        seconds: u32,
        keep: Option<&Path>,
    ) -> Result<Figures, BenchError> {
        // One for each run, in a namespace of its own: what is left of the run before is no longer in the way.
        let base = Namespace::anonymous()?;
        let mut server = self.command(&["iperf3", "-s"]);
        let _server = Process(spawn(base.enter(&mut server)?)?);
        wait_for_listener(&base)?;
        let log = dir.join(UPLINK_LOG);
        // Each tool makes its own.
        let _ = fs::remove_file(&log);
        let log_flag = format!("--uplink-log={UPLINK_LOG}");
        let args_flag = format!("--uplink-queue-args={QUEUE_ARGS}");
        let link = [log_flag.as_str(), "--uplink-queue=droptail", &args_flag, TRACE, TRACE, "--"];
        let load_s = seconds + FROM_MS / 1000;
        let load = format!("exec iperf3 -c $MAHIMAHI_BASE {} -i 0 -t {load_s}", load.flags());
        let mut command = match ccplane {
            None => {
                let mut command = self.command(&["mm-delay", DELAY_MS, "mm-link"]);
                command.args(link);
                command
            }
            Some(ccplane) => {
                let mut command = Command::new(ccplane);
                command.args(["mm-delay", DELAY_MS, "--"]).arg(ccplane).arg("mm-link").args(link);
                // The same iperf3, in a tree of its own but in the namespace that the link leads to.
                command.arg(&self.run).arg("--here");
                command
            }
        };
        command.args(["sh", "-c", &load]).current_dir(dir);
        finish(Process(spawn(base.enter(&mut command)?)?), Duration::from_secs(seconds.into()))?;
        let text = context("read the link's log", fs::read_to_string(&log))?;
        if let Some(keep) = keep {
            context("keep the link's log", fs::write(keep, &text))?;
        }
        let part = LinkLog::parse(&text)?.between(FROM_MS, FROM_MS + seconds * 1000);
        Ok(part.figures()?)
    }

    /// A command with mahimahi's programs in its path, in the network namespace that it is started in.
    fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new(&self.run);
        command.arg("--here").args(argv);
        command
    }
}

/// Waits until iperf3's server listens in the namespace.
fn wait_for_listener(namespace: &Namespace) -> Result<(), BenchError> {
    let deadline = Instant::now() + PATIENCE;
    while !context("read the sockets", namespace.run(|| is_listening(IPERF3))?)? {
        if Instant::now() > deadline {
            return Err(BenchError::Missing("iperf3 did not start to listen in time".into()));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Starts a command without its output; its errors can be read.
fn spawn(command: &mut Command) -> Result<Child, BenchError> {
    context("start a link", command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn())
}

fn finish(mut running: Process, sending: Duration) -> Result<(), BenchError> {
    let deadline = Instant::now() + sending + PATIENCE;
    let status = loop {
        match context("wait for a link", running.0.try_wait())? {
            Some(status) => break status,
            None if Instant::now() > deadline => {
                return Err(BenchError::Missing("a link and its load did not end in time".into()));
            }
            None => std::thread::sleep(POLL),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    if let Some(stderr) = running.0.stderr.as_mut() {
        context("read a link's errors", stderr.read_to_string(&mut text))?;
    }
    Err(BenchError::Missing(format!("a link or its load failed ({status}): {}", text.trim())))
}

/// Returns the distances from 1 of the medians of the pairs' ratios: of utilisation, and of the queueing delay's
/// 95th percentile.
pub fn differences(pairs: &[Pair]) -> [f64; 2] {
    [utilisation as fn(&Figures) -> f64, delay_ms].map(|of| {
        let ratios: Vec<f64> = pairs.iter().map(|p| of(&p.ours) / of(&p.theirs)).collect();
        (percentile(&ratios, 0.5) - 1.0).abs()
    })
}

fn utilisation(figures: &Figures) -> f64 {
    figures.utilisation.unwrap_or(0.0)
}

fn delay_ms(figures: &Figures) -> f64 {
    figures.queueing_delay_p95_ms.into()
}

/// The links that are compared: a constant 12 Mb/s, and Verizon's LTE where mahimahi-traces is there.
pub fn links() -> Vec<(&'static str, String)> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own
        .ancestors()
        .map(|dir| dir.join("traces/Verizon-LTE-short.up"))
        .find_map(|path| File::open(path).ok());
    let mut links = vec![("const12", CONST12.to_owned())];
    let mut text = String::new();
    if beside.is_some_and(|mut file| file.read_to_string(&mut text).is_ok()) {
        links.push(("verizon-lte", text));
    }
    links
}

fn joined<T>(result: std::thread::Result<Result<T, BenchError>>) -> Result<T, BenchError> {
    result.unwrap_or_else(|_| Err(BenchError::Missing("a measuring thread panicked".into())))
}

/// Runs the benchmark: the links side by side, the tools in turn.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let mahimahi = Mahimahi::find()?;
    let ccplane = oracle::find("ccplane")?;
    let measured: Vec<(&str, Result<Vec<Pair>, BenchError>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = links()
            .into_iter()
            .map(|(name, trace)| {
                let (mahimahi, ccplane) = (&mahimahi, &ccplane);
                (
                    name,
                    scope.spawn(move || {
                        mahimahi.compare(ccplane, (&trace, Load::Cubic), (PAIRS, SECONDS), None)
                    }),
                )
            })
            .collect();
        threads.into_iter().map(|(name, thread)| (name, joined(thread.join()))).collect()
    });
    let mut figures = Vec::new();
    let (mut largest, mut runs) = (Vec::new(), 0);
    for (name, pairs) in measured {
        let pairs = pairs?;
        // Both tools' logs tell of departures, or the link's figures could not be made.
        let used = pairs.iter().filter(|p| utilisation(&p.ours) > 0.0 && utilisation(&p.theirs) > 0.0);
        let proof = Proof::exactly("pairs of runs that used their link", used.count() as u64, PAIRS as u64)?;
        runs += PAIRS as u64;
        largest.extend(differences(&pairs));
        for (what, unit, of) in
            [("utilisation", "share", utilisation as fn(&Figures) -> f64), ("delay-p95", "ms", delay_ms)]
        {
            let values: Vec<(f64, f64)> = pairs.iter().map(|p| (of(&p.ours), of(&p.theirs))).collect();
            figures.push(Figure::paired(
                format!("emu.vs-mahimahi.{name}.{what}"),
                unit,
                "mahimahi",
                &values,
                &proof,
            ));
        }
    }
    let links = largest.len() / 2;
    let largest = largest.into_iter().fold(0.0, f64::max);
    let proof = Proof::counted("pairs of runs that used their link", runs)?;
    let baseline = "what mahimahi's figure is to itself";
    let all =
        Figure::paired("emu.vs-mahimahi", "largest relative difference", baseline, &[(largest, 1.0)], &proof);
    figures.push(
        all.or_zero().with_note(format!("medians of the ratios of {PAIRS} pairs of runs, {links} links")),
    );
    Ok(figures)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use ccplane_testing::{found, wait_for_ok};

    /// The network namespace of a process or thread, as the kernel names it.
    fn network_of(process: &str) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{process}/ns/net")).ok()
    }

    /// Processes whose network is this namespace.
    fn inside(network: &Path) -> Vec<String> {
        let names = fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().into_string().ok());
        names.filter(|name| network_of(name).as_deref() == Some(network)).collect()
    }

    #[test]
    fn a_server_that_is_killed_leaves_no_process() {
        let check = "a_server_that_is_killed_leaves_no_process";
        let Some(mahimahi) = found(check, Mahimahi::find()) else { return };
        let base = Namespace::anonymous().unwrap();
        let network = base.run(|| network_of("thread-self")).unwrap().unwrap();
        let mut server = mahimahi.command(&["iperf3", "-s"]);
        let running = Process(spawn(base.enter(&mut server).unwrap()).unwrap());
        wait_for_listener(&base).unwrap();
        assert!(!inside(&network).is_empty());
        drop(running);
        wait_for_ok(PATIENCE, "no process is left inside", || {
            let left = inside(&network);
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
    }
}

//! `ccplane record`: flows of real programs, written for simulated workloads.

use super::output::{print, print_json, shown, table};
use crate::cli::{NewRecordArgs, RecordArgs, RecordCommand};
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_algs::Pias;
use ccplane_ebpf::record::{FlowEnd, FlowEvent, Opener, RecordCounts, RecordOptions, Recorder, Scope};
use ccplane_fabric::demotions_of_sizes;
use ccplane_files::Bound;
use ccplane_netsim::workload::recorded::{
    Burst, MAX_APP_BYTES, MAX_BURSTS, MAX_COMMAND_BYTES, MAX_FLOWS, MAX_HOSTS, RecordedFlow, Recording, Unit,
};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest wait between two looks at the clock, the signals and the command, milliseconds.
const POLL_MS: u16 = 50;
/// The time to wait for the end of flows whose sockets close with their process.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Largest recording that is read.
const FILE: Bound = Bound { what: "a recording", bytes: 1 << 30 };
/// The folder with the names of network namespaces.
const NAMESPACES: &str = "/run/netns";

/// Reasons why a recording cannot start or be written.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("{}: {source}", path.display())]
    Path { path: PathBuf, source: std::io::Error },
    #[error("{}: not a directory of a cgroup (v2) hierarchy", .0.display())]
    NoCgroup(PathBuf),
    #[error("{command}: {source}")]
    Command { command: String, source: std::io::Error },
    #[error("{}: no flow to learn from", .0.display())]
    Empty(PathBuf),
}

pub(crate) fn record(args: &RecordArgs) -> Result<(), Failure> {
    match &args.command {
        Some(RecordCommand::Show { file, thresholds: true, json }) => show_thresholds(file, *json),
        Some(RecordCommand::Show { file, thresholds: false, json }) => show(file, *json),
        None => make(&args.new),
    }
}

fn make(args: &NewRecordArgs) -> Result<(), Failure> {
    let Some(output) = &args.output else { return Ok(()) };
    let scope = scope(args).map_err(Failure::input)?;
    let burst_gap_us = u64::from(args.burst_gap_ms) * 1_000;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // The file is tried before anything runs; it gets its name when it is whole.
    let unfinished = unfinished(output);
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| Failure::input(RecordError::Path { path, source })
    };
    std::fs::write(&unfinished, "").map_err(at(&unfinished))?;
    let recorded = run(args, RecordOptions { scope, burst_gap_us }, &stop);
    let done = recorded.and_then(|recording| {
        std::fs::write(&unfinished, recording.to_text()).map_err(at(&unfinished))?;
        std::fs::rename(&unfinished, output).map_err(at(output))?;
        print(&summary(&recording))
    });
    if done.is_err() {
        // What failed is told; the empty file is only tidied away.
        let _ = std::fs::remove_file(&unfinished);
    }
    done
}

fn unfinished(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    name.into()
}

fn run(args: &NewRecordArgs, options: RecordOptions, stop: &AtomicBool) -> Result<Recording, Failure> {
    let burst_gap_us = options.burst_gap_us;
    let recorder = Recorder::start(&options).map_err(Failure::runtime)?;
    eprintln!(
        "recording; {}",
        if args.program.is_empty() { "Ctrl-C ends it" } else { "it ends with the command" }
    );
    let start = Instant::now();
    let mut flows = Flows::new(ccplane_ebpf::clock_us());
    let mut command = start_command(&args.program)?;
    let deadline = args.duration_s.map(Duration::from_secs_f64);
    loop {
        recorder.poll(POLL_MS, |event| flows.take(event)).map_err(Failure::runtime)?;
        let ended = match &mut command {
            Some(child) => child.try_wait()?.is_some(),
            None => false,
        };
        if ended || stop.load(Ordering::Relaxed) || deadline.is_some_and(|d| start.elapsed() >= d) {
            break;
        }
    }
    let last = Instant::now();
    while last.elapsed() < LAST_WORDS {
        recorder.poll(POLL_MS, |event| flows.take(event)).map_err(Failure::runtime)?;
    }
    if let Some(mut child) = command
        && child.try_wait()?.is_none()
    {
        child.kill()?;
        child.wait()?;
    }
    let mut text: String = printable(args.program.join(" ").as_bytes());
    text.truncate(MAX_COMMAND_BYTES);
    Ok(flows.finish(burst_gap_us, text, recorder.counts()))
}

fn start_command(words: &[String]) -> Result<Option<Child>, Failure> {
    let Some((program, args)) = words.split_first() else { return Ok(None) };
    let failed = |source| Failure::input(RecordError::Command { command: program.clone(), source });
    Command::new(program).args(args).spawn().map(Some).map_err(failed)
}

fn scope(args: &NewRecordArgs) -> Result<Scope, RecordError> {
    if let Some(path) = &args.cgroup {
        return cgroup(path);
    }
    let paths: Vec<PathBuf> = match args.netns.as_slice() {
        [] => vec!["/proc/self/ns/net".into()],
        names => names.iter().map(|name| Path::new(NAMESPACES).join(name)).collect(),
    };
    let inode = |path: PathBuf| match std::fs::metadata(&path) {
        Ok(found) => Ok(found.ino() as u32),
        Err(source) => Err(RecordError::Path { path, source }),
    };
    paths.into_iter().map(inode).collect::<Result<_, _>>().map(Scope::Namespaces)
}

/// A cgroup by its directory, whose inode number is its id.
fn cgroup(path: &Path) -> Result<Scope, RecordError> {
    let path = path.canonicalize().map_err(|source| RecordError::Path { path: path.to_owned(), source })?;
    // The root of the hierarchy is the only cgroup that has no type.
    let is_cgroup = |path: &Path| path.join("cgroup.procs").exists();
    let id = match std::fs::metadata(&path) {
        Ok(found) if is_cgroup(&path) && path.join("cgroup.controllers").exists() => found.ino(),
        _ => return Err(RecordError::NoCgroup(path)),
    };
    let level = path.ancestors().skip(1).take_while(|above| is_cgroup(above)).count();
    Ok(Scope::Cgroup { id, level: level as u32 })
}

/// Replaces what is not printable ASCII.
fn printable(bytes: &[u8]) -> String {
    let shown = |b: &u8| if (b' '..=b'~').contains(b) { char::from(*b) } else { '?' };
    bytes.iter().map(shown).collect()
}

/// The flows that have ended, and the bursts of those that have not.
struct Flows {
    start_us: u64,
    hosts: HashMap<IpAddr, u16>,
    bursts: HashMap<u64, Vec<(u64, u64)>>,
    ended: Vec<RecordedFlow>,
    seen: u64,
    missed: u64,
}

impl Flows {
    fn new(start_us: u64) -> Flows {
        Flows {
            start_us,
            hosts: HashMap::new(),
            bursts: HashMap::new(),
            ended: Vec::new(),
            seen: 0,
            missed: 0,
        }
    }

    fn take(&mut self, event: FlowEvent) {
        match event {
            FlowEvent::Burst(burst) => {
                let bursts = self.bursts.entry(burst.flow).or_default();
                let is_full = bursts.len() >= MAX_BURSTS;
                match bursts.last_mut().filter(|_| is_full) {
                    Some((_, bytes)) => *bytes += burst.bytes,
                    None => bursts.push((burst.start_us, burst.bytes)),
                }
            }
            FlowEvent::End(end) => {
                self.seen += 1;
                let bursts = self.bursts.remove(&end.flow).unwrap_or_default();
                match self.flow(&end, &bursts) {
                    Some(flow) => self.ended.push(flow),
                    None => self.missed += 1,
                }
            }
        }
    }

    /// The flow as it is written; none where there are too many flows or hosts.
    fn flow(&mut self, end: &FlowEnd, bursts: &[(u64, u64)]) -> Option<RecordedFlow> {
        if self.ended.len() >= MAX_FLOWS {
            return None;
        }
        let name_bytes = end.comm.iter().position(|b| *b == 0).unwrap_or(end.comm.len()).min(MAX_APP_BYTES);
        let burst = |(start_us, bytes): &(u64, u64)| Burst(start_us.saturating_sub(end.start_us), *bytes);
        Some(RecordedFlow {
            start_us: end.start_us.saturating_sub(self.start_us),
            end_us: end.end_us.saturating_sub(self.start_us),
            app: printable(&end.comm[..name_bytes]).into(),
            opened: end.opener == Opener::Local,
            host: self.host(end.local.ip())?,
            peer: self.host(end.remote.ip())?,
            port: end.local.port(),
            peer_port: end.remote.port(),
            sent: end.bytes_sent,
            received: end.bytes_received,
            bursts: bursts.iter().map(burst).collect(),
        })
    }

    fn host(&mut self, address: IpAddr) -> Option<u16> {
        let next = u16::try_from(self.hosts.len()).ok().filter(|next| *next < MAX_HOSTS);
        match self.hosts.get(&address) {
            Some(host) => Some(*host),
            None => {
                self.hosts.insert(address, next?);
                next
            }
        }
    }

    fn finish(mut self, burst_gap_us: u64, command: String, counts: RecordCounts) -> Recording {
        self.ended.sort_by_key(|flow| (flow.start_us, flow.host, flow.port));
        Recording {
            burst_gap_us,
            command,
            open: counts.started.saturating_sub(self.seen),
            missed: self.missed + counts.missed_flows + counts.lost_events,
            flows: self.ended,
        }
    }
}

/// The transfers of one application, those that it received included where only its end was recorded.
#[derive(Serialize, Default)]
struct AppSummary {
    transfers: u64,
    bytes: u64,
    bursts: u64,
    p50_bytes: u64,
    p99_bytes: u64,
}

/// The JSON output of `ccplane record show`.
#[derive(Serialize)]
struct Summary<'a> {
    command: &'a str,
    flows: usize,
    open: u64,
    missed: u64,
    apps: BTreeMap<String, AppSummary>,
}

fn summarise(recording: &Recording) -> Summary<'_> {
    let mut sizes: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for transfer in recording.transfers(Unit::Connection) {
        sizes.entry(transfer.app.to_string()).or_default().push(transfer.bytes);
    }
    let mut bursts: BTreeMap<String, u64> = BTreeMap::new();
    for transfer in recording.transfers(Unit::Burst) {
        *bursts.entry(transfer.app.to_string()).or_default() += 1;
    }
    let app = |(name, mut sizes): (String, Vec<u64>)| {
        sizes.sort_unstable();
        let at = |percent: usize| sizes[(sizes.len() - 1) * percent / 100];
        let summary = AppSummary {
            transfers: sizes.len() as u64,
            bytes: sizes.iter().sum(),
            bursts: bursts.get(&name).copied().unwrap_or(0),
            p50_bytes: at(50),
            p99_bytes: at(99),
        };
        (name, summary)
    };
    Summary {
        command: &recording.command,
        flows: recording.flows.len(),
        open: recording.open,
        missed: recording.missed,
        apps: sizes.into_iter().map(app).collect(),
    }
}

fn summary(recording: &Recording) -> String {
    let summary = summarise(recording);
    let row = |(name, app): (&String, &AppSummary)| {
        let numbers = [app.transfers, app.bursts, app.bytes, app.p50_bytes, app.p99_bytes];
        let name = if name.is_empty() { "(unknown)".to_owned() } else { shown(name) };
        std::iter::once(name).chain(numbers.map(|n| n.to_string())).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = summary.apps.iter().map(row).collect();
    let head = ["app", "transfers", "bursts", "bytes", "p50", "p99"];
    let apps = if rows.is_empty() { String::new() } else { table(&head, &rows) };
    format!("{} flows, {} still open, {} missed\n{apps}", summary.flows, summary.open, summary.missed)
}

fn read(file: &Path) -> Result<Recording, Failure> {
    let text = ccplane_files::read_text(file, FILE).map_err(Failure::input)?;
    Recording::parse(&text).map_err(Failure::input)
}

fn show(file: &Path, json: bool) -> Result<(), Failure> {
    let recording = read(file)?;
    if json { print_json(&summarise(&recording)) } else { print(&summary(&recording)) }
}

/// Prints the parameters of algorithms that go by what a flow has sent, as they suit the recording.
fn show_thresholds(file: &Path, json: bool) -> Result<(), Failure> {
    let transfers = read(file)?.transfers(Unit::Connection);
    let sizes: Vec<u64> = transfers.iter().map(|transfer| transfer.bytes.max(1)).collect();
    if sizes.is_empty() {
        return Err(Failure::input(RecordError::Empty(file.to_owned())));
    }
    let names = Pias::default().parameters().iter().map(|parameter| parameter.name);
    let learned: Vec<(&str, u64)> = names.zip(demotions_of_sizes(&sizes).0).collect();
    if json {
        return print_json(&learned.into_iter().collect::<BTreeMap<_, _>>());
    }
    let lines: Vec<String> = learned.iter().map(|(name, bytes)| format!("{name} = {bytes}")).collect();
    print(&format!(
        "# Of {} transfers.\n[datapath.packets]\nalgorithm = \"size\"\nparameters = {{ {} }}\n",
        sizes.len(),
        lines.join(", ")
    ))
}

//! A kernel datapath of the benchmark's own, steered by one algorithm on a thread of its own.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, Control};
use ccplane_contract::{Datapath, Event, Field, Forward};
use ccplane_core::{Catalog, Config, Core, DatapathId, Rules, drive};
use ccplane_ebpf::{EbpfDatapath, Options, clock_us};
use ccplane_emulator::veth;
use ccplane_program::ir::Program;
use ccplane_runner::traffic::FlowConfig;

use crate::error::{BenchError, context};
use crate::proof::{SteeredBy, Witness};

const WAIT: Duration = Duration::from_millis(20);
/// The time between two polls of the flows.
const POLL_EVERY: Duration = Duration::from_millis(20);
const HEARTBEAT_US: u64 = 100_000;
const MAX_FLOWS: usize = 64;
const KERNEL: DatapathId = DatapathId(0);
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Longer than any benchmark: its flows are stopped.
pub const LONG: Duration = Duration::from_secs(60);

/// An agent in this process that steers every flow of its kernel datapath; detached when dropped.
pub struct EmbeddedAgent {
    /// The congestion control's name.
    pub name: String,
    witness: Arc<Mutex<Witness>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
    _run_dir: tempfile::TempDir,
}

/// Options for a datapath beside any other; `tag` is part of its name.
pub fn options(tag: &str) -> Result<(Options, tempfile::TempDir), BenchError> {
    let owner_only = std::fs::Permissions::from_mode(0o700);
    let run_dir =
        context("make a temporary directory", tempfile::Builder::new().permissions(owner_only).tempdir())?;
    let name = format!("ccpb{tag}{}", std::process::id() % 100_000);
    Ok((Options { run_dir: run_dir.path().into(), name, ..Options::default() }, run_dir))
}

/// Runs `body` with a datapath attached beside any other, and detaches it whatever the result: pinned objects would
/// stay in the kernel otherwise.
pub fn attached<T>(
    tag: &str,
    body: impl FnOnce(&mut EbpfDatapath, &str) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let (options, _run_dir) = options(tag)?;
    let name = options.name.clone();
    let mut datapath = EbpfDatapath::attach(options)?;
    let ran = body(&mut datapath, &name);
    let detached = datapath.detach();
    let value = ran?;
    detached?;
    Ok(value)
}

/// The text of the first program of an algorithm.
pub fn source(algorithm: &dyn Algorithm) -> &'static str {
    algorithm.programs().first().map(|p| p.source).unwrap_or_default()
}

/// Compiles the first program of an algorithm.
pub fn compile(algorithm: &dyn Algorithm) -> Result<Program, BenchError> {
    ccplane_program::compile(source(algorithm))
        .map_err(|e| BenchError::Program(e.iter().map(|d| d.to_string()).collect()))
}

impl EmbeddedAgent {
    /// Attaches a datapath and steers every flow on it by `algorithm`.
    ///
    /// # Errors
    /// When it cannot be attached or the program is refused.
    pub fn start(tag: &str, algorithm: Arc<dyn Algorithm>) -> Result<EmbeddedAgent, BenchError> {
        let (options, run_dir) = options(tag)?;
        let name = options.name.clone();
        let rules = Rules::all(algorithm.name());
        let wrong = |e: &dyn std::fmt::Display| BenchError::Program(vec![e.to_string()]);
        let catalog = Catalog::new(vec![algorithm], 1).map_err(|e| wrong(&e))?;
        let config = Config { max_flows: MAX_FLOWS, heartbeat_us: HEARTBEAT_US, ..Config::default() };
        let mut core = Core::new(catalog, rules, config).map_err(|e| wrong(&e))?;
        let witness = Arc::new(Mutex::new(Witness::new(SteeredBy::Program(None))));
        let mut datapath = Watched { inner: EbpfDatapath::attach(options)?, witness: Arc::clone(&witness) };
        let attached = core.attach(KERNEL, datapath.capabilities(), clock_us()).map_err(|e| wrong(&e));
        if attached.is_err() || drive(&mut core, KERNEL, &mut datapath, clock_us()).refused > 0 {
            // Its flows would run the native algorithm, and the figure would be another one's.
            datapath.inner.detach()?;
            attached?;
            return Err(wrong(&"the kernel refused it"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut waited, mut polled_at) = (Ok(()), Instant::now());
            while waited.is_ok() && !stopped.load(Relaxed) {
                drive(&mut core, KERNEL, &mut datapath, clock_us());
                if polled_at.elapsed() >= POLL_EVERY {
                    let flows = datapath.inner.flows();
                    locked(&datapath.witness).observe(&flows);
                    polled_at = Instant::now();
                }
                waited = context("wait for events", datapath.inner.wait(WAIT));
            }
            datapath.inner.detach()?;
            waited
        });
        Ok(EmbeddedAgent { name, witness, stop, thread: Some(thread), _run_dir: run_dir })
    }

    /// The witness of the flows since its last restart.
    pub fn witness(&self) -> MutexGuard<'_, Witness> {
        locked(&self.witness)
    }
}

fn locked(witness: &Mutex<Witness>) -> MutexGuard<'_, Witness> {
    witness.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A datapath whose reports pass through a witness on their way to the agent.
struct Watched {
    inner: EbpfDatapath,
    witness: Arc<Mutex<Witness>>,
}

impl Forward for Watched {
    ccplane_contract::forward_to!(inner);

    fn forward_poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        let before = events.len();
        let polled = self.inner.poll(max, events);
        let mut witness = locked(&self.witness);
        events.iter().skip(before).for_each(|event| witness.hear(event));
        polled
    }
}

/// A flow over the veth pair that ends after `duration`, if it is not stopped before.
pub fn bulk(congestion: &str, duration: Duration) -> FlowConfig {
    FlowConfig {
        congestion: congestion.into(),
        receiver: SocketAddr::new(veth::ENDS[1], 0),
        duration,
        bytes: None,
        sample_every: SAMPLE_EVERY,
    }
}

/// The fields that an algorithm sets on a new flow, as registers of the program.
pub fn fields(program: &Program, control: &Control) -> Vec<(Field, i64)> {
    let named = control.requests().flat_map(|request| request.fields);
    named.filter_map(|(name, value)| program.reg(name).map(|reg| (Field::Reg(reg), *value))).collect()
}

impl Drop for EmbeddedAgent {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            eprintln!("the steering thread of a benchmark panicked");
        }
    }
}

//! A kernel datapath of the benchmark's own, steered by one algorithm on a thread of its own.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use ccplane_alg::{Algorithm, Command, Control};
use ccplane_contract::{Datapath, Event, Field, ProgramUid};
use ccplane_ebpf::{EbpfDatapath, Options};
use ccplane_program::ir::Program;

use crate::error::{BenchError, context};

const WAIT: Duration = Duration::from_millis(50);
const MAX_EVENTS: usize = 256;

/// Attached while it lives.
pub struct Steered {
    /// The congestion control's name.
    pub name: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
    _run_dir: tempfile::TempDir,
}

/// Options for a datapath that is in nobody's way: `tag` makes its name.
pub fn options(tag: &str) -> Result<(Options, tempfile::TempDir), BenchError> {
    let owner_only = std::fs::Permissions::from_mode(0o700);
    let run_dir =
        context("make a temporary directory", tempfile::Builder::new().permissions(owner_only).tempdir())?;
    let name = format!("ccpb{tag}{}", std::process::id() % 100_000);
    Ok((Options { run_dir: run_dir.path().into(), name, ..Options::default() }, run_dir))
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

impl Steered {
    /// Attaches a datapath and steers every flow on it by `algorithm`.
    ///
    /// # Errors
    /// When it cannot be attached or the program is refused.
    pub fn start(tag: &str, algorithm: Arc<dyn Algorithm>) -> Result<Steered, BenchError> {
        let (options, run_dir) = options(tag)?;
        let name = options.name.clone();
        let program = compile(&*algorithm)?;
        let mut datapath = EbpfDatapath::attach(options)?;
        datapath.install(ProgramUid(1), &program)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut events = Vec::new();
            while !stopped.load(Relaxed) {
                datapath.heartbeat();
                datapath.poll(MAX_EVENTS, &mut events);
                for event in events.drain(..) {
                    if let Event::Created { flow, info } = event {
                        let mut control = Control::default();
                        algorithm.flow(&info, &mut control);
                        let _ = datapath.set_program(flow, ProgramUid(1), &fields(&program, control));
                    }
                }
                context("wait for events", datapath.wait(WAIT))?;
            }
            datapath.detach()?;
            Ok(())
        });
        Ok(Steered { name, stop, thread: Some(thread), _run_dir: run_dir })
    }
}

/// What an algorithm asks of a new flow, in the datapath's terms.
pub fn fields(program: &Program, mut control: Control) -> Vec<(Field, i64)> {
    let named = control.take().into_iter().flat_map(|command| match command {
        Command::SetProgram { fields, .. } | Command::Update { fields } => fields,
    });
    named.filter_map(|(name, value)| program.reg(name).map(|reg| (Field::Reg(reg), value))).collect()
}

impl Drop for Steered {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing_free_note("the steering thread of a benchmark panicked");
        }
    }
}

fn tracing_free_note(what: &str) {
    eprintln!("{what}");
}

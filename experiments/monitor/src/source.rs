//! Asks a running agent again and again, on a thread of its own: an agent that hangs holds up no page.

use ccplane_agent::control::{ClientError, Flows, Request, Response, Snapshots, Status, ask};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval at which the thread checks whether it is to end.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Answers of an agent at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// When, seconds since the monitor started.
    pub at_s: f64,
    /// When, seconds since 1970.
    pub time_s: f64,
    pub status: Status,
    pub flows: Flows,
    pub snapshots: Snapshots,
}

/// Reasons why there is no sample.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The agent is of another version.
    #[error("the agent, perhaps of another version, answered something else")]
    Unexpected,
}

/// The agent that is asked, and the patience with it.
#[derive(Clone, Debug)]
pub struct Target {
    pub socket: PathBuf,
    /// The time that each answer may take.
    pub timeout: Duration,
    /// The time between two samples.
    pub every: Duration,
}

/// Asks for everything that the pages show.
///
/// # Errors
/// There is no agent, it does not answer in time, or it answers something else.
pub fn sample(socket: &Path, timeout: Duration, started: Instant) -> Result<Sample, SourceError> {
    let Response::Status(status) = ask(socket, timeout, &Request::Status)? else {
        return Err(SourceError::Unexpected);
    };
    let Response::Snapshots(snapshots) = ask(socket, timeout, &Request::Snapshots)? else {
        return Err(SourceError::Unexpected);
    };
    let Response::Flows(flows) = ask(socket, timeout, &Request::Flows)? else {
        return Err(SourceError::Unexpected);
    };
    let at_s = started.elapsed().as_secs_f64();
    let time_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Ok(Sample { at_s, time_s, status, flows, snapshots })
}

/// A thread that asks; it ends when this is dropped.
pub struct Source {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Source {
    /// Starts to ask; each outcome goes to `take`, on the source's thread.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn start(
        target: Target,
        mut take: impl FnMut(Result<Sample, SourceError>) + Send + 'static,
    ) -> io::Result<Source> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let started = Instant::now();
        let run = move || {
            while !stopped.load(Relaxed) {
                let asked = Instant::now();
                take(sample(&target.socket, target.timeout, started));
                while !stopped.load(Relaxed)
                    && let Some(left) = target.every.checked_sub(asked.elapsed())
                {
                    std::thread::sleep(left.min(STOP_POLL));
                }
            }
        };
        let thread = std::thread::Builder::new().name("ccp-monitor".to_owned()).spawn(run)?;
        Ok(Source { stop, thread: Some(thread) })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // It can only have panicked in `take`, whose thread said so.
            let _ = thread.join();
        }
    }
}

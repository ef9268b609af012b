//! The connection to the machine's agent, and the words for its lack.

use ccplane_agent::failure::Failure;
use ccplane_agent::privileges;
use ccplane_channel::{Clock, Mismatch, ServeOptions, ServedLink, spawn};
use ccplane_engine::{Engine, EngineConfig, engine};
use ccplane_wire::DecodeError;
use ccplane_wire::v2::{MAJOR, MINOR, TurnedAway};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time that the machine's agent has to answer before its silence is reported.
const PATIENCE: Duration = Duration::from_secs(3);
/// The time between two looks at why it does not steer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Makes an engine and serves it, under a name in the agent's list, to the agent whose socket for datapaths is, or will be, there.
pub(super) fn serve(
    config: EngineConfig,
    name: &str,
    socket: &Path,
) -> Result<(Engine, ServedLink), Failure> {
    let options = ServeOptions { clock: Clock::Own, ..ServeOptions::new(name)? };
    let wake = options.waker.clone();
    let (engine, datapath) = engine(config, Arc::new(move || wake.wake()));
    let clock = engine.clone();
    let now_us = move || clock.now_us(Instant::now());
    let link = without_capabilities(|| spawn(socket, Box::new(datapath), now_us, options))?;
    Ok((engine, link))
}

/// Does this on a thread that has no capability, so that those that it starts have none either.
fn without_capabilities<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let work = || {
            privileges::keep(privileges::NOTHING);
            work()
        };
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The connection to the machine's agent, which is closed when dropped.
pub(super) struct MachineAgent {
    link: ServedLink,
    /// The agent's socket for datapaths.
    socket: PathBuf,
    /// Whether it runs, by an answer of its control socket before this process first reached it.
    runs: bool,
    /// The time of the next look at its lack.
    next_poll: Instant,
    /// The last report.
    said: Option<String>,
}

impl MachineAgent {
    pub(super) fn new(link: ServedLink, socket: PathBuf, runs: bool) -> MachineAgent {
        MachineAgent { link, socket, runs, next_poll: Instant::now() + PATIENCE, said: None }
    }

    /// Says why the agent does not steer, each reason once until it does.
    pub(super) fn check(&mut self) {
        let now = Instant::now();
        if self.link.is_connected() {
            (self.runs, self.said, self.next_poll) = (false, None, now + PATIENCE);
        }
        if now < self.next_poll {
            return;
        }
        self.next_poll = now + POLL_INTERVAL;
        let lack = lack(&self.socket, self.runs, self.link.mismatch().as_ref());
        if self.said.as_ref() != Some(&lack) {
            // A closed standard error is no failure.
            let _ = writeln!(stderr(), "ccplane quic: {lack}");
            self.said = Some(lack);
        }
    }
}

/// Says why no agent steers, and what to do. `runs`: whether ours answered at its control socket.
fn lack(socket: &Path, runs: bool, mismatch: Option<&Mismatch>) -> String {
    let at = socket.display();
    match mismatch {
        Some(Mismatch::TurnedAway(TurnedAway::Version { min, max })) => format!(
            "the agent at {at} speaks versions {MAJOR}.{min} to {MAJOR}.{max} of ccplane's protocol, this command {MAJOR}.0 to \
             {MAJOR}.{MINOR}: flows run Reno. Run both from the same release of ccplane, or steer with --algorithm, without the \
             agent"
        ),
        Some(Mismatch::Answer(DecodeError::Version { found, supported })) => format!(
            "the agent at {at} speaks version {found} of ccplane's protocol, this command version {supported}: flows run Reno. Run \
             both from the same release of ccplane, or steer with --algorithm, without the agent"
        ),
        Some(Mismatch::TurnedAway(TurnedAway::TooMany { limit })) => format!(
            "the agent at {at} serves {limit} datapaths, its max_peers in [datapath.unix]: flows run Reno until one of them ends. \
             Raise it, or steer with --algorithm, without the agent"
        ),
        Some(mismatch @ (Mismatch::TurnedAway(_) | Mismatch::Answer(_))) => {
            format!(
                "what listens at {at} does not steer: {mismatch}. Flows run Reno; {}",
                other_agent(socket)
            )
        }
        Some(Mismatch::NoAnswer) if !runs => format!(
            "what listens at {at} does not answer as ccplane does, perhaps a portus agent, which speaks version 1 of CCP's \
             protocol alone: flows run Reno; {}",
            other_agent(socket)
        ),
        None if !runs => format!("no agent at {at}: flows run Reno until one starts"),
        Some(Mismatch::NoAnswer) | None => {
            let (beside, elsewhere) = (socket.parent().unwrap_or(socket), std::env::temp_dir());
            format!(
                "the agent runs, but answers nothing at {at}: flows run Reno until it does. It answers to a socket that this \
                 process makes in {}, in $XDG_RUNTIME_DIR or in {}; from another network namespace or a container, let one \
                 of them be writable here and the same folder for both, or steer with --algorithm, without the agent",
                beside.display(),
                elsewhere.display()
            )
        }
    }
}

/// Says how an agent that is not ours steers all the same.
fn other_agent(socket: &Path) -> String {
    format!(
        "a portus agent steers flows through ours: give it another socket, name that in [portus] socket, let a rule say \
         algorithm = \"portus\", and run `ccplane agent` at {}",
        socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each lack names the socket, what flows run, and what to do about it.
    #[test]
    fn each_mismatch_is_said_with_what_to_do() {
        let said = |runs, mismatch: Option<Mismatch>| lack(Path::new("/run/a.sock"), runs, mismatch.as_ref());
        let version = TurnedAway::Version { min: 7, max: 9 };
        let cases = [
            (
                said(false, Some(Mismatch::TurnedAway(version))),
                "versions 2.7 to 2.9 of ccplane's",
                "same release",
            ),
            (
                said(true, Some(Mismatch::Answer(DecodeError::Version { found: 3, supported: MAJOR }))),
                "speaks version 3 of ccplane's protocol, this command version 2",
                "same release",
            ),
            (
                said(true, Some(Mismatch::TurnedAway(TurnedAway::TooMany { limit: 64 }))),
                "serves 64 datapaths",
                "max_peers",
            ),
            (
                said(false, Some(Mismatch::TurnedAway(TurnedAway::NotAllowed))),
                "not allowed with these credentials",
                "[portus] socket",
            ),
            (
                said(false, Some(Mismatch::Answer(DecodeError::Magic { found: 2 }))),
                "0x00000002 is not ccplane's",
                "[portus] socket",
            ),
            (said(false, Some(Mismatch::NoAnswer)), "version 1 of CCP's protocol alone", "[portus] socket"),
            (said(true, Some(Mismatch::NoAnswer)), "the agent runs, but answers nothing", "--algorithm"),
            (said(true, None), "the agent runs, but answers nothing", "--algorithm"),
            (said(false, None), "no agent at /run/a.sock", "until one starts"),
        ];
        for (text, what, remedy) in cases {
            assert!(text.contains(what) && text.contains(remedy), "{text}");
            assert!(text.contains("/run/a.sock") && text.to_lowercase().contains("flows run reno"), "{text}");
        }
    }
}

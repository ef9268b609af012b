//! The processes that a shell runs: the command behind the link, and one outside.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Context, Error, Result};
use crate::sys;

/// The time that a command outside has to end by itself.
const GRACE: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(5);
const SHELL: &str = "/bin/sh";

/// Starts the command and waits, passing signals on.
pub(super) fn run(command: &mut Command, program: &str) -> Result<ExitStatus> {
    let failed = |source| Error::Command { command: program.to_owned(), source };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("handle", "signals")?;
    let handle = signals.handle();
    sys::die_with_parent(command);
    let mut child = command.spawn().map_err(failed)?;
    let pid = Pid::from_raw(child.id() as i32);
    let pass_on = move || {
        for signal in signals.forever().filter(|signal| *signal != SIGINT || !std::io::stdin().is_terminal())
        {
            // The child is not yet waited for, or has just ended: then there is nothing to signal.
            let _ = Signal::try_from(signal).and_then(|signal| kill(pid, signal));
        }
    };
    let thread =
        std::thread::Builder::new().name("ccp-signals".into()).spawn(pass_on).map_err(Error::Thread)?;
    let status = child.wait().map_err(failed);
    handle.close();
    // It only passes signals on; should it have panicked, the command has ended all the same.
    let _ = thread.join();
    status
}

/// A command outside the link; ended, with what it started, when dropped.
#[derive(Debug)]
pub(super) struct Outside {
    child: Child,
}

impl Outside {
    /// Has `/bin/sh` run `line` in the caller's namespace. What it prints goes to standard error: standard output is the
    /// other command's.
    pub(super) fn start(line: &str, environment: (&str, String)) -> Result<Outside> {
        let mut command = Command::new(SHELL);
        command.args(["-c", line]).stdin(Stdio::null()).process_group(0);
        command.env(environment.0, environment.1);
        let stderr = std::io::stderr();
        let stderr =
            std::os::fd::AsFd::as_fd(&stderr).try_clone_to_owned().context("duplicate", "standard error")?;
        command.stdout(stderr);
        sys::die_with_parent(&mut command);
        let child = command.spawn().map_err(|source| Error::Command { command: line.to_owned(), source })?;
        Ok(Outside { child })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.child.id() as i32);
        // Where it has ended already there is nothing to signal.
        let _ = killpg(group, Signal::SIGTERM);
        let deadline = Instant::now() + GRACE;
        while !self.has_ended() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

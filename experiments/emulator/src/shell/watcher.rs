//! Ends what a shell's command left running, whichever way the shell itself ended: else a namespace would live on with it.

use std::ffi::CStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;
use nix::sys::prctl::set_name;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, getpid, getppid, pipe2, read, setsid};

use crate::error::{Context, Result};
use crate::netns::Namespace;
use crate::sys;

/// Passes over the processes: each kills all that it finds, and only those that fork on meanwhile need another.
const MAX_PASSES: usize = 100;

/// The name of watchers in `/proc/PID/comm`, by which they recognise and ignore each other.
const NAME: &CStr = c"ccp-watcher";

/// A process of its own that waits for the end of this one; dropping it has it do its work now.
#[derive(Debug)]
pub(super) struct Watcher {
    /// Closed by this process's end, however it ends.
    lifeline: Option<OwnedFd>,
    process: Pid,
}

impl Watcher {
    /// Watches over the processes in the namespaces; `None` where this process has other threads and cannot fork.
    pub(super) fn start(namespaces: &[&Namespace]) -> Result<Option<Watcher>> {
        let mut watched = Vec::new();
        for namespace in namespaces {
            watched.push(namespace.identity()?);
        }
        let (ended, lifeline) = pipe2(nix::fcntl::OFlag::O_CLOEXEC).context("open", "a pipe")?;
        let mut ours = Some(lifeline);
        let watch = || {
            drop(ours.take());
            // A watcher whose name is refused could be killed by an outer shell's, no more.
            let _ = set_name(NAME);
            // Out of the terminal's reach: Ctrl-C is not for us.
            let _ = setsid();
            while read(&ended, &mut [0]) == Err(Errno::EINTR) {}
            end(&watched);
        };
        let process = sys::fork_alone(watch).context("start", "a watcher")?;
        Ok(process.map(|process| Watcher { lifeline: ours, process }))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        while waitpid(self.process, None) == Err(Errno::EINTR) {}
    }
}

/// Kills every process in one of the namespaces but other watchers, this one and, while it lives, the shell itself.
fn end(namespaces: &[(u64, u64)]) {
    for _ in 0..MAX_PASSES {
        let Ok(entries) = fs::read_dir("/proc") else { return };
        let pids =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
        let doomed = |pid: &Pid| {
            let found = fs::metadata(format!("/proc/{pid}/ns/net"));
            let inside = found.is_ok_and(|found| namespaces.contains(&(found.dev(), found.ino())));
            inside && *pid != getpid() && *pid != getppid() && !is_watcher(*pid)
        };
        let found: Vec<Pid> = pids.filter(doomed).collect();
        if found.is_empty() {
            return;
        }
        for pid in found {
            // A process that has ended meanwhile needs no signal.
            let _ = kill(pid, Signal::SIGKILL);
        }
    }
}

fn is_watcher(pid: Pid) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_ascii_end() == NAME.to_bytes())
}

//! A refused call appears in the kernel's log, with the process and the call's number.
#![allow(clippy::unwrap_used, missing_docs)]

use ccplane_seccomp::{Refusals, Threads, apply};
use ccplane_testing::{poll_within, skipped};
use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, mkdirat};
use seccompiler::{SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::Duration;

/// The longest wait for a record.
const PATIENCE: Duration = Duration::from_secs(10);
/// Environment variable of the child process whose calls are refused.
const REFUSED: &str = "CCPLANE_TEST_REFUSED";

fn be_refused(refusals: Refusals) {
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let rules = BTreeMap::from([(libc::SYS_mkdirat, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    apply(&filter.try_into().unwrap(), Threads::This, refusals).unwrap();
    assert_eq!(mkdirat(AT_FDCWD, "never", Mode::empty()), Err(Errno::EPERM));
}

/// Kernel messages from now on.
struct Messages(std::fs::File);

impl Messages {
    fn from_now() -> std::io::Result<Messages> {
        let mut messages = Messages(
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
                .open("/dev/kmsg")?,
        );
        messages.read();
        Ok(messages)
    }

    fn read(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        let mut buffer = [0; 8192];
        loop {
            match self.0.read(&mut buffer) {
                Ok(len) => all.push(String::from_utf8_lossy(&buffer[..len]).into_owned()),
                // The message was overwritten before it was read.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(_) => return all,
            }
        }
    }
}

#[test]
fn refused_calls_are_logged_if_asked_for() {
    match std::env::var(REFUSED).as_deref() {
        Ok("logged") => return be_refused(Refusals::Logged),
        Ok(_) => return be_refused(Refusals::Silent),
        Err(_) => {}
    }
    let test = "refused_calls_are_logged_if_asked_for";
    let logged = std::fs::read_to_string("/proc/sys/kernel/seccomp/actions_logged").unwrap_or_default();
    if !logged.contains("errno") {
        return skipped(test, "this kernel logs no refusals: kernel.seccomp.actions_logged");
    }
    let mut messages = match Messages::from_now() {
        Ok(messages) => messages,
        Err(error) => return skipped(test, format_args!("/dev/kmsg: {error}")),
    };
    let run = |how: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.args(["--exact", test]).env(REFUSED, how).spawn().unwrap();
        assert!(child.wait().unwrap().success(), "{how}");
        format!(" pid={} ", child.id())
    };
    let (silent, logged) = (run("silent"), run("logged"));
    // The kernel writes records from a thread of its own, in order.
    let mut records: Vec<String> = Vec::new();
    let of = |child: &str, records: &[String]| -> Vec<String> {
        records.iter().filter(|m| m.contains("type=1326") && m.contains(child)).cloned().collect()
    };
    let found = poll_within(PATIENCE, || {
        records.extend(messages.read());
        if of(&logged, &records).is_empty() { Err(()) } else { Ok(()) }
    });
    if found.is_err() && std::fs::exists("/run/auditd.pid").unwrap_or(false) {
        return skipped(test, "an audit daemon takes the records");
    }
    assert!(found.is_ok(), "no record of{logged}: {records:?}");
    let (call, logged) = (format!("syscall={} ", libc::SYS_mkdirat), of(&logged, &records));
    assert!(logged.iter().all(|m| m.contains(&call)), "{logged:?}");
    assert_eq!(of(&silent, &records), Vec::<String>::new());
}

//! A process as the kernel sees it, and the system calls that an attacker in its place could make.

use super::wait_for;
use ccplane_testing::skipped;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its threads' folders in /proc.
pub fn threads(pid: u32) -> Vec<PathBuf> {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path()).collect()
}

/// A line of a thread's status (proc_pid_status(5)), such as "Seccomp".
pub fn field(thread: &Path, name: &str) -> String {
    let status = fs::read_to_string(thread.join("status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("{name}: {status}")).trim().to_owned()
}

/// Asserts that each thread is confined, as soon as it has begun, cannot regain capabilities, and has at most these.
pub fn assert_confined(pid: u32, most_capabilities: u32) {
    let threads = wait_for("threads that are all confined", || {
        let threads = threads(pid);
        threads.iter().all(|thread| field(thread, "Seccomp") == "2").then_some(threads)
    });
    assert!(!threads.is_empty());
    for thread in &threads {
        let shown = fs::read_to_string(thread.join("status")).unwrap();
        assert_eq!(
            (field(thread, "Seccomp"), field(thread, "NoNewPrivs")),
            ("2".into(), "1".into()),
            "{shown}"
        );
        for set in ["CapInh", "CapBnd", "CapAmb"] {
            assert_eq!(field(thread, set), "0".repeat(16), "{set}: {shown}");
        }
        let permitted = u64::from_str_radix(&field(thread, "CapPrm"), 16).unwrap();
        assert!(permitted.count_ones() <= most_capabilities, "{shown}");
    }
}

/// Makes a thread of the process execute a system call, and returns the result.
#[cfg(target_arch = "x86_64")]
pub fn system_call(pid: u32, call: libc::c_long, arguments: [u64; 3]) -> Result<u64, Errno> {
    wait_for("a thread that waits in the kernel", || {
        threads(pid).iter().find_map(|thread| {
            let name = thread.file_name().unwrap().to_str().unwrap();
            made_by(Pid::from_raw(name.parse().unwrap()), call, arguments)
        })
    })
}

/// `None`: this thread does not wait in a system call now.
#[cfg(target_arch = "x86_64")]
fn made_by(thread: Pid, call: libc::c_long, arguments: [u64; 3]) -> Option<Result<u64, Errno>> {
    /// The bytes of the instruction `syscall`.
    const SYSCALL: i64 = 0x050f;
    let stops = || {
        let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        assert!(matches!(stopped, WaitStatus::Stopped(..)), "{stopped:?}");
    };
    ptrace::attach(thread).unwrap();
    stops();
    let was = ptrace::getregs(thread).unwrap();
    let at = was.rip - 2;
    let waits = ptrace::read(thread, at as ptrace::AddressType).is_ok_and(|code| code & 0xffff == SYSCALL);
    let got = waits.then(|| {
        let mut makes = was;
        // Nothing that the kernel would begin again.
        (makes.rip, makes.rax, makes.orig_rax) = (at, call as u64, u64::MAX);
        [makes.rdi, makes.rsi, makes.rdx] = arguments;
        ptrace::setregs(thread, makes).unwrap();
        ptrace::step(thread, None).unwrap();
        stops();
        let got = ptrace::getregs(thread).unwrap().rax as i64;
        ptrace::setregs(thread, was).unwrap();
        if (-4095..0).contains(&got) { Err(Errno::from_raw(-got as i32)) } else { Ok(got as u64) }
    });
    ptrace::detach(thread, None).unwrap();
    got
}

/// Asserts that a process under an attacker's control is refused every powerful system call, and lives on.
#[cfg(target_arch = "x86_64")]
pub fn assert_can_do_little(pid: u32) {
    assert_eq!(system_call(pid, libc::SYS_getpid, [0; 3]), Ok(u64::from(pid)), "it does what it is made to");
    let root = 0;
    let calls = [
        ("start a program", libc::SYS_execve, [0; 3]),
        ("fork", libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0]),
        ("look into a process", libc::SYS_ptrace, [libc::PTRACE_ATTACH as u64, 1, 0]),
        ("signal a process", libc::SYS_kill, [1, 0, 0]),
        ("become root", libc::SYS_setuid, [root, 0, 0]),
        ("a namespace of its own", libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0]),
        ("mount", libc::SYS_mount, [0; 3]),
        ("load a module", libc::SYS_init_module, [0; 3]),
        ("make memory executable", libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC as u64]),
        ("raise a limit", libc::SYS_setrlimit, [0; 3]),
        ("io_uring", libc::SYS_io_uring_setup, [1, 0, 0]),
    ];
    for (what, call, arguments) in calls {
        assert_eq!(system_call(pid, call, arguments), Err(Errno::EPERM), "{what}");
    }
}

/// The kernel's log names the process, its user and the call that it is refused. The kernel leaves records out where they come
/// fast, so that the call is made again until one is there.
#[cfg(target_arch = "x86_64")]
pub fn assert_refusals_are_logged(pid: u32, uid: u32) {
    let check = "the kernel's log of what a process is refused";
    let logged = fs::read_to_string("/proc/sys/kernel/seccomp/actions_logged").unwrap_or_default();
    if !logged.contains("errno") {
        return skipped(check, "this kernel logs no refusals: kernel.seccomp.actions_logged");
    }
    if fs::exists("/run/auditd.pid").unwrap_or(false) {
        return skipped(check, "an audit daemon takes the records");
    }
    if !Command::new("dmesg").output().is_ok_and(|output| output.status.success()) {
        return skipped(check, "dmesg cannot be run");
    }
    let (user, process) = (format!(" uid={uid} "), format!(" pid={pid} "));
    let call = format!(" syscall={} ", libc::SYS_unshare);
    wait_for("a record of the refused call", || {
        assert_eq!(system_call(pid, libc::SYS_unshare, [0; 3]), Err(Errno::EPERM));
        let log = String::from_utf8_lossy(&Command::new("dmesg").output().unwrap().stdout).into_owned();
        let is_it =
            |line: &str| [" type=1326 ", &user, &process, &call].iter().all(|part| line.contains(part));
        log.lines().any(is_it).then_some(())
    });
}

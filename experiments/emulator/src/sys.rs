//! The system calls that no safe wrapper covers; the only file with `unsafe`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid};

mod ioctl {
    use nix::libc;
    nix::ioctl_readwrite_bad!(tunsetiff, libc::TUNSETIFF, libc::ifreq);
    nix::ioctl_write_int_bad!(tunsetoffload, libc::TUNSETOFFLOAD);
}

/// Makes an open `/dev/net/tun` the device `name` in the calling thread's network namespace: layer 3, with a
/// `virtio_net_hdr` before each packet, and TCP segments in trains. The name is cut to the kernel's 15 bytes; the kernel puts a number for a `%d` in it. Returns the device's name.
pub(crate) fn attach_tun(tun: &OwnedFd, name: &str) -> nix::Result<String> {
    // SAFETY: `ifreq` is plain data (integers, arrays and a union of them), for which zeroes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives across the call.
    unsafe { ioctl::tunsetiff(tun.as_raw_fd(), &raw mut request) }?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes an integer.
    unsafe { ioctl::tunsetoffload(tun.as_raw_fd(), offloads as libc::c_int) }?;
    Ok(request.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect())
}

/// Makes the child that `command` starts enter the network namespace before it executes.
pub(crate) fn enter_before_exec(command: &mut Command, namespace: OwnedFd) {
    let enter = move || setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(enter) };
}

/// Makes the kernel kill the child that `command` starts when the thread that starts it ends.
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let bind = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // The parent may have ended just before.
        if getppid() == parent { Ok(()) } else { Err(std::io::Error::from(Errno::ESRCH)) }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(bind) };
}

/// Runs `work` in a child process, which ends with it; `None` if this process has more than one thread.
pub(crate) fn fork_alone(work: impl FnOnce()) -> nix::Result<Option<Pid>> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if threads != 1 {
        return Ok(None);
    }
    // SAFETY: with one thread no lock is held by another, so that the child may do whatever the parent may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => {
            work();
            // SAFETY: `_exit` never returns and runs none of the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
    }
}

/// Has the calling thread run before ordinary ones whenever it has work, at the lowest real-time priority; the kernel bounds its share
/// (`sched_rt_runtime_us`). Takes CAP_SYS_NICE.
pub(crate) fn run_first() -> nix::Result<()> {
    // SAFETY: numbers alone, of which musl's has more.
    let mut priority: libc::sched_param = unsafe { std::mem::zeroed() };
    priority.sched_priority = 1;
    // SAFETY: the kernel reads one `sched_param`, which lives across the call; 0 is the calling thread.
    let result = unsafe {
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const priority)
    };
    Errno::result(result).map(drop)
}

/// Has `hook` called when the process ends by `exit` or by the return of `main`.
pub(crate) fn at_exit(hook: extern "C" fn()) {
    // SAFETY: `hook` is a function of the right type that lives as long as the process.
    let _ = unsafe { libc::atexit(hook) };
}

//! The system calls that no safe wrapper covers; the only file with `unsafe`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

mod ioctl {
    use nix::libc;
    nix::ioctl_readwrite_bad!(tunsetiff, libc::TUNSETIFF, libc::ifreq);
}

/// Makes an open `/dev/net/tun` the device `name` in the calling thread's network namespace: layer 3, no packet
/// information header. The name is cut to the kernel's 15 bytes; the kernel puts a number for a `%d` in it. Returns the device's name.
pub(crate) fn attach_tun(tun: &OwnedFd, name: &str) -> nix::Result<String> {
    // SAFETY: `ifreq` is plain data (integers, arrays and a union of them), for which zeroes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives across the call.
    unsafe { ioctl::tunsetiff(tun.as_raw_fd(), &raw mut request) }?;
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
    let bind = || set_pdeathsig(Signal::SIGKILL).map_err(std::io::Error::from);
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(bind) };
}

/// Has `hook` called when the process ends by `exit` or by the return of `main`.
pub(crate) fn at_exit(hook: extern "C" fn()) {
    // SAFETY: `hook` is a function of the right type that lives as long as the process.
    let _ = unsafe { libc::atexit(hook) };
}

//! The system calls that the agent and `quic serve` keep once they run; all others fail with EPERM.
//!
//! The list was measured (strace(1)) on runs with live flows of every datapath, learning, metrics, files and DPDK
//! ports. The neighbours of each call were added that another libc, or another kernel, may use in its place. A refused
//! call fails, shows in the log as what failed, and in the kernel's as an audit record (type 1326) with the call's
//! number; it does not end the agent, on which flows depend. No process can be started, no memory be made executable,
//! no other process be looked into, and nothing be mounted, loaded or entered.

use ccplane_seccomp::{Refusals, apply};
use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use tracing::{debug, warn};

pub use ccplane_seccomp::Threads;

/// Task of a confined thread, which decides its system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Files, sockets, threads, time.
    Plain,
    /// The same, and the kernel datapath: BPF, other network namespaces, our own mount's end.
    Kernel,
    /// The same as `Plain`, and a DPDK port's end, which takes its XDP program out.
    Port,
}

/// Reasons why a filter is not in force.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error("no filter for this processor: {0}")]
    Filter(#[from] BackendError),
    #[error("{0}")]
    Apply(#[from] std::io::Error),
}

/// Confines threads for good. That a kernel cannot is no reason not to run.
pub fn confine(role: Role, threads: Threads) {
    match try_confine(role, threads) {
        Ok(()) => debug!(?role, ?threads, "system calls are filtered"),
        Err(error) => warn!(%error, "system calls are not filtered"),
    }
}

fn try_confine(role: Role, threads: Threads) -> Result<(), ConfineError> {
    // The first: the second one no longer lets filters be made. libc tries clone3(2) for each thread.
    apply(&without_clone3()?, threads, Refusals::Silent)?;
    Ok(apply(&filter(role)?, threads, Refusals::Logged)?)
}

/// clone3(2) takes its flags by reference, where no filter sees them: libc does with clone(2) where there is no other.
fn without_clone3() -> Result<BpfProgram, BackendError> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, absent, arch()?)?.try_into()
}

fn filter(role: Role) -> Result<BpfProgram, BackendError> {
    let more = match role {
        Role::Plain => &[][..],
        Role::Kernel => KERNEL,
        Role::Port => PORT,
    };
    let calls = PLAIN.iter().chain(LEGACY).chain(more);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.map(|call| (*call, Vec::new())).collect();
    // Threads, not processes.
    rules.insert(libc::SYS_clone, vec![has(0, libc::CLONE_THREAD as u64, libc::CLONE_THREAD as u64)?]);
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![has(2, libc::PROT_EXEC as u64, 0)?]);
    }
    // Limits are read, not set.
    rules.insert(libc::SYS_prlimit64, vec![has(2, u64::MAX, 0)?]);
    // abort(3), and no signal to anyone else.
    rules.insert(libc::SYS_tgkill, vec![has(0, u64::from(u32::MAX), u64::from(std::process::id()))?]);
    let options = PRCTL_OPTIONS.iter().map(|option| has(0, u64::from(u32::MAX), *option as u64));
    rules.insert(libc::SYS_prctl, options.collect::<Result<_, _>>()?);
    // Nobody types into our terminal.
    let unlike = |request: u64| {
        SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, request & u64::from(u32::MAX))
    };
    let neither = vec![unlike(TIOCSTI)?, unlike(TIOCLINUX)?];
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(neither)?]);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, arch()?)?.try_into()
}

fn arch() -> Result<TargetArch, BackendError> {
    std::env::consts::ARCH.try_into()
}

/// The bits of an argument under a mask have this value.
fn has(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    let like = SeccompCmpOp::MaskedEq(mask);
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Qword, like, value)?])
}

/// `TIOCSTI` (include/uapi/asm-generic/ioctls.h): types into a terminal. C libraries differ in the type of such numbers.
const TIOCSTI: u64 = 0x5412;
/// `TIOCLINUX` (likewise): selects, and so pastes, on a console.
const TIOCLINUX: u64 = 0x541c;

/// Options of prctl(2): threads' names, names of heaps, how exactly sleeps end, and the privileges that are given up.
const PRCTL_OPTIONS: &[libc::c_int] = &[
    libc::PR_SET_NAME,
    libc::PR_SET_VMA,
    libc::PR_SET_TIMERSLACK,
    libc::PR_CAPBSET_READ,
    libc::PR_CAPBSET_DROP,
    libc::PR_CAP_AMBIENT,
    libc::PR_SET_NO_NEW_PRIVS,
];

/// Calls that every processor has. Memory and threads; time; files; sockets and waiting.
const PLAIN: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_pipe2,
    libc::SYS_memfd_create,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
];

/// Older system calls that only x86-64 has and its libc uses.
#[cfg(target_arch = "x86_64")]
const LEGACY: &[c_long] = &[
    libc::SYS_arch_prctl,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_rename,
    libc::SYS_chmod,
    libc::SYS_getdents,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: &[c_long] = &[];

const KERNEL: &[c_long] = &[libc::SYS_bpf, libc::SYS_setns, libc::SYS_umount2];
const PORT: &[c_long] = &[libc::SYS_bpf];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges;
    use nix::errno::Errno;
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::{Pid, getppid};
    use std::io::{self, Write};
    use std::net::TcpListener;
    use std::process::{Command, Output};

    /// Set for the process that this test starts again, in which it gives up what the agent gives up.
    const ATTACKER: &str = "CCPLANE_TEST_ATTACKER";

    fn again(test: &str, role: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("confine::tests::{test}"), "--nocapture"]);
        command.env(ATTACKER, role).output().unwrap()
    }

    fn role_here() -> Option<Role> {
        match std::env::var(ATTACKER).ok()?.as_str() {
            "plain" => Some(Role::Plain),
            _ => Some(Role::Kernel),
        }
    }

    fn refused<T>(what: &str, tried: Result<T, Errno>) {
        assert_eq!(tried.err(), Some(Errno::EPERM), "{what}");
    }

    fn errno(error: io::Error) -> Errno {
        Errno::from_raw(error.raw_os_error().unwrap_or(0))
    }

    /// Makes the system calls that an intruder in a thread of the agent would try.
    fn attack(role: Role) {
        confine(role, Threads::This);
        refused("start a process", Command::new("/bin/true").status().map_err(errno));
        refused("mount", mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE, None::<&str>));
        refused("a namespace of its own", unshare(CloneFlags::CLONE_NEWUSER));
        refused("signal another process", kill(getppid(), None::<Signal>));
        refused("signal this one", kill(Pid::this(), None::<Signal>));
        refused("a limit", nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 1, 1));
        refused("a root of its own", nix::unistd::chroot("/"));
        refused(
            "a device",
            nix::sys::stat::mknod("n", nix::sys::stat::SFlag::S_IFIFO, nix::sys::stat::Mode::empty(), 0),
        );
        // What is to work.
        std::thread::spawn(|| ()).join().unwrap();
        drop(TcpListener::bind("127.0.0.1:0").unwrap());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        let permission = "permission to load BPF (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON)";
        let bpf = ccplane_ebpf::checks().into_iter().find(|c| c.what == permission).unwrap();
        match role {
            Role::Kernel if nix::unistd::geteuid().is_root() => assert!(bpf.ok, "{bpf:?}"),
            _ => assert!(!bpf.ok, "{bpf:?}"),
        }
    }

    #[test]
    fn what_a_confined_thread_has_no_use_for_is_refused() {
        if let Some(role) = role_here() {
            return attack(role);
        }
        for role in ["plain", "kernel"] {
            let output = again("what_a_confined_thread_has_no_use_for_is_refused", role);
            assert!(output.status.success(), "{role}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }

    /// Without the filter, which lets nothing be executed at all.
    #[test]
    fn what_was_given_up_does_not_come_back_with_another_program() {
        if role_here().is_some() {
            privileges::no_way_back();
            privileges::keep(privileges::NOTHING);
            let status = Command::new("cat").arg("/proc/self/status").output().unwrap();
            print!("{}", String::from_utf8(status.stdout).unwrap());
            return;
        }
        let output = again("what_was_given_up_does_not_come_back_with_another_program", "plain");
        let said = String::from_utf8(output.stdout).unwrap();
        let is = |field: &str, value: &str| {
            let found = said.lines().find_map(|l| l.strip_prefix(field)).map(str::trim);
            assert_eq!(found, Some(value), "{field} {said}");
        };
        is("NoNewPrivs:", "1");
        let nothing = "0000000000000000";
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            is(set, nothing);
        }
        if nix::unistd::geteuid().is_root() {
            is("CapBnd:", nothing);
        }
    }

    #[test]
    fn the_filter_is_of_a_size_that_the_kernel_takes() {
        for role in [Role::Plain, Role::Kernel, Role::Port] {
            let length = filter(role).unwrap().len();
            // `BPF_MAXINSNS`.
            assert!(length < 4096, "{role:?}: {length}");
        }
    }
}

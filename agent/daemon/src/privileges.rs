//! Capabilities that the agent keeps once it is attached.
//!
//! The kernel datapath's loop keeps what it needs until its end: loading BPF programs (`CAP_BPF`, `CAP_PERFMON`:
//! kernel/bpf/syscall.c) and TCP congestion controls (`CAP_NET_ADMIN`), and, to take flows back from every network
//! namespace when it stops, entering these (`CAP_SYS_ADMIN`: setns(2)) and finding those of other processes
//! (`CAP_SYS_PTRACE`: namespaces(7)). The threads that take bytes from others, over the control socket and the datapath
//! socket, keep nothing. Neither do learners, nor the thread that writes the decision log. Nothing that any of them
//! executed would get more: the bounding set is empty and no_new_privs is set, before there is a second thread.

mod server_user;

pub use server_user::{Serves, server_user};

use crate::confine::{Role, Threads, confine};
use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use nix::errno::Errno;
use nix::sys::prctl::set_keepcaps;
use nix::unistd::{Uid, User, getresuid, initgroups, setresgid, setresuid};
use std::ffi::CString;
use tracing::{debug, warn};

/// Capabilities of the kernel datapath's loop.
pub(crate) const KERNEL: &[Capability] = &[
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];

/// Capabilities of a process with a DPDK port, which removes its XDP program and rings when it ends.
pub const PORT: &[Capability] = &[
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_IPC_LOCK,
];

/// Capabilities that a process needs to change its user and groups.
pub const TO_CHANGE_USER: &[Capability] = &[Capability::CAP_SETUID, Capability::CAP_SETGID];

/// Capabilities of every other thread.
pub const NOTHING: &[Capability] = &[];

/// Capabilities and filter of a loop's thread once it has attached.
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    pub capabilities: &'static [Capability],
    /// Its system calls; all of them where there is no role to keep to.
    pub role: Option<Role>,
}

/// A process could not change its user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("no user `{0}` on this machine: give a name or a number that it knows")]
    Unknown(String),
    #[error("cannot become user {user}, which only root can: {source}")]
    System { user: String, source: Errno },
    #[error("cannot become user {0} for good")]
    WayBack(String),
}

impl Powers {
    /// A loop that needs no privilege, beside other work of its process.
    pub(crate) const NONE: Powers = Powers { capabilities: NOTHING, role: None };

    /// Gives up all other capabilities, for the calling thread and those that it starts, and system calls for these threads.
    pub fn keep_only(self, threads: Threads) {
        keep(self.capabilities);
        if let Some(role) = self.role {
            confine(role, threads);
        }
    }
}

/// Gives up all but `wanted`, for the calling thread and those that it starts. Having more than needed is no reason
/// not to run.
pub fn keep(wanted: &[Capability]) {
    match limit_to(wanted) {
        Ok(kept) => debug!(?kept, "capabilities"),
        Err(error) => warn!(%error, "capabilities could not be given up"),
    }
}

/// Sees to it that what is given up does not come back with another program, for the calling thread and those that it
/// starts.
pub fn no_way_back() {
    if let Err(error) = nix::sys::prctl::set_no_new_privs() {
        warn!(%error, "no_new_privs could not be set");
    }
    let dropped = caps::clear(None, CapSet::Bounding)
        .and_then(|()| caps::clear(None, CapSet::Ambient))
        .and_then(|()| caps::clear(None, CapSet::Inheritable));
    match dropped {
        Ok(()) => {}
        // Whoever may not drop it has nothing in it that could come back: no_new_privs is set.
        Err(error) => debug!(%error, "the bounding set stays"),
    }
}

/// Makes all threads of this process another user's for good. The calling one may keep these capabilities; all others have none.
pub fn become_user(name: &str, wanted: &[Capability]) -> Result<(), UserError> {
    let found = match name.parse() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(name),
    };
    let failed = |source| UserError::System { user: name.to_owned(), source };
    let user = found.map_err(failed)?.ok_or_else(|| UserError::Unknown(name.to_owned()))?;
    let now = getresuid().map_err(failed)?;
    if user.uid.is_root() && [now.real, now.effective, now.saved].iter().all(|uid| uid.is_root()) {
        // Nothing changes, so that a container without the capabilities to change it will do.
        keep(wanted);
        return Ok(());
    }
    set_keepcaps(!wanted.is_empty()).map_err(failed)?;
    let groups_of = CString::new(user.name).map_err(|_| UserError::Unknown(name.to_owned()))?;
    initgroups(&groups_of, user.gid).map_err(failed)?;
    setresgid(user.gid, user.gid, user.gid).map_err(failed)?;
    setresuid(user.uid, user.uid, user.uid).map_err(failed)?;
    keep(wanted);
    if !user.uid.is_root() && setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0)).is_ok() {
        return Err(UserError::WayBack(name.to_owned()));
    }
    Ok(())
}

fn limit_to(wanted: &[Capability]) -> Result<CapsHashSet, CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = wanted.iter().copied().filter(|c| permitted.contains(c)).collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::clear(None, CapSet::Inheritable)?;
    Ok(kept)
}

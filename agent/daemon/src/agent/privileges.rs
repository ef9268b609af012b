//! What the agent keeps of root's powers once it is attached.
//!
//! The kernel datapath's loop keeps what it needs until its end: loading BPF programs (`CAP_BPF`, `CAP_PERFMON`:
//! kernel/bpf/syscall.c) and TCP congestion controls (`CAP_NET_ADMIN`), and, to take flows back from every network
//! namespace when it stops, entering these (`CAP_SYS_ADMIN`: setns(2)) and finding those of other processes
//! (`CAP_SYS_PTRACE`: namespaces(7)). The threads that take bytes from others, over the control socket and the
//! datapath socket, keep nothing, nor do learners and what writes the decision log. Nothing that any of them executed would
//! get more: the bounding set is empty and no_new_privs is set, before there is a second thread.

use crate::confine::{Role, Threads, confine};
use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use tracing::{debug, warn};

/// What the kernel datapath's loop keeps.
pub(super) const KERNEL: &[Capability] = &[
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_SYS_PTRACE,
];

/// What a DPDK port in use keeps: its XDP program and its rings go when it ends.
pub(crate) const PORT: &[Capability] = &[
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_NET_ADMIN,
    Capability::CAP_NET_RAW,
    Capability::CAP_SYS_ADMIN,
    Capability::CAP_IPC_LOCK,
];

/// What everything else keeps.
pub(crate) const NOTHING: &[Capability] = &[];

/// What a loop's thread keeps once it has attached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Powers {
    /// Its capabilities.
    pub(super) capabilities: &'static [Capability],
    /// Its system calls; all of them where there is no role to keep to.
    pub(super) role: Option<Role>,
}

impl Powers {
    /// A loop that needs no privilege, beside other work of its process.
    pub(super) const NONE: Powers = Powers { capabilities: NOTHING, role: None };

    /// Gives up everything else, for the calling thread and those that it starts.
    pub(super) fn keep_only(self) {
        keep(self.capabilities);
        if let Some(role) = self.role {
            confine(role, Threads::This);
        }
    }
}

/// Gives up all but `wanted`, for the calling thread and those that it starts. Having more than needed is no reason
/// not to run.
pub(crate) fn keep(wanted: &[Capability]) {
    match limit_to(wanted) {
        Ok(kept) => debug!(?kept, "capabilities"),
        Err(error) => warn!(%error, "capabilities could not be given up"),
    }
}

/// Sees to it that what is given up does not come back with another program, for the calling thread and those that it
/// starts.
pub(crate) fn no_way_back() {
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

fn limit_to(wanted: &[Capability]) -> Result<CapsHashSet, CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = wanted.iter().copied().filter(|c| permitted.contains(c)).collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::clear(None, CapSet::Inheritable)?;
    Ok(kept)
}

//! What the agent keeps of root's powers once it is attached.
//!
//! The kernel datapath's loop keeps what it needs until its end: loading BPF programs (`CAP_BPF`, `CAP_PERFMON`:
//! kernel/bpf/syscall.c) and TCP congestion controls (`CAP_NET_ADMIN`), and, to take flows back from every network
//! namespace when it stops, entering these (`CAP_SYS_ADMIN`: setns(2)) and finding those of other processes
//! (`CAP_SYS_PTRACE`: namespaces(7)). The threads that take bytes from others, over the control socket and the
//! datapath socket, keep nothing, nor do learners and what writes the decision log.

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

/// What everything else keeps.
pub(crate) const NOTHING: &[Capability] = &[];

/// Gives up all but `wanted`, for the calling thread and those that it starts. Having more than needed is no reason
/// not to run.
pub(crate) fn keep(wanted: &[Capability]) {
    match limit_to(wanted) {
        Ok(kept) => debug!(?kept, "capabilities"),
        Err(error) => warn!(%error, "capabilities could not be given up"),
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

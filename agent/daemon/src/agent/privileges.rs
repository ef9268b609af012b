//! What the agent keeps of root's powers once it is attached.

use caps::{CapSet, Capability, CapsHashSet};

/// BPF programs and maps, struct_ops, and setting another flow's congestion control. Loading a program at run time
/// needs the first two (kernel/bpf/syscall.c), registering one for TCP the third (net/ipv4/bpf_tcp_ca.c).
const KEPT: [Capability; 3] = [Capability::CAP_BPF, Capability::CAP_PERFMON, Capability::CAP_NET_ADMIN];

/// Keeps those of [`KEPT`] that this thread has and gives up all others, for good: threads started later inherit
/// it, and nothing executed gets any.
///
/// # Errors
/// The kernel refuses, which it does only under another security module.
pub(super) fn drop_unneeded() -> Result<CapsHashSet, caps::errors::CapsError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let kept: CapsHashSet = KEPT.into_iter().filter(|c| permitted.contains(c)).collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::clear(None, CapSet::Inheritable)?;
    Ok(kept)
}

//! Shells for an ordinary user: a user namespace in which the user may make devices.
//!
//! The user keeps name and files. Such a user cannot put a device into the host's network namespace. So the shell's
//! outside is a network namespace of its own, in which the outermost shell's process lives; shells inside find
//! themselves permitted and make none.

use std::fs;

use caps::{CapSet, Capability};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use crate::error::{Context, Error, Result};
use crate::netlink::Netlink;

/// The capabilities that making devices and entering namespaces takes.
const NEEDED: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_SYS_ADMIN];
/// The capabilities that commands behind the link may use too: `ping`, `tcpdump`, a web server.
const USEFUL: [Capability; 2] = [Capability::CAP_NET_RAW, Capability::CAP_NET_BIND_SERVICE];

/// The places where this process may make devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ground {
    /// The caller's network namespace.
    Callers,
    /// A network namespace of its own, which this process has moved to.
    Own,
}

/// Whether the calling thread may make devices and namespaces where it is.
pub fn is_permitted() -> bool {
    let has = |capability: &Capability| caps::has_cap(None, CapSet::Effective, *capability).unwrap_or(false);
    NEEDED.iter().all(has)
}

/// Moves this process, which must have one thread only, into namespaces of its own if it may not make devices where it is.
///
/// # Errors
/// [`Error::UserNamespace`] with what the administrator would have to change; [`Error::Capability`].
pub fn permit() -> Result<Ground> {
    if is_permitted() {
        return Ok(Ground::Callers);
    }
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
        .map_err(|errno| Error::UserNamespace { hint: hint(errno), errno })?;
    for (file, line) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{user} {user} 1")),
        ("/proc/self/gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(file, line).context("write", file)?;
    }
    for capability in NEEDED.into_iter().chain(USEFUL) {
        for set in [CapSet::Inheritable, CapSet::Ambient] {
            caps::raise(None, set, capability).map_err(|source| Error::Capability { source })?;
        }
    }
    Netlink::open()?.set_up("lo", Vec::new())?;
    Ok(Ground::Own)
}

/// Returns the setting that the administrator would have to change.
fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM | Errno::EACCES => {
            "unprivileged user namespaces are switched off: see the sysctls kernel.unprivileged_userns_clone (1) and \
             kernel.apparmor_restrict_unprivileged_userns (0), or run as root"
        }
        Errno::ENOSPC => {
            "the sysctl user.max_user_namespaces or user.max_net_namespaces is exhausted; or run as root"
        }
        Errno::EINVAL => {
            "the process has more than one thread, or the kernel has no user namespaces (CONFIG_USER_NS)"
        }
        _ => "run as root",
    }
}

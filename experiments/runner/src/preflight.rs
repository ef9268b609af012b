//! Finds what a machine lacks for emulated links before any is made.

use std::path::Path;

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::shell::is_permitted;

/// One thing that is missing and what would help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The missing ability, and how it shows.
    pub what: String,
    /// The command or setting that provides it.
    pub remedy: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// Returns each ability that emulated links need and this machine lacks.
#[must_use]
pub fn missing_for_links() -> Vec<Missing> {
    let mut missing = Vec::new();
    let mut add = |what: String, remedy: &str| missing.push(Missing { what, remedy: remedy.into() });
    if !is_permitted() {
        add(
            format!(
                "emulated links need CAP_NET_ADMIN and CAP_SYS_ADMIN, which user {} has not",
                nix::unistd::geteuid()
            ),
            "run it as root or with sudo",
        );
    }
    if !Path::new("/dev/net/tun").exists() {
        add("/dev/net/tun is not there".into(), "load the module `tun`, or give the container that device");
    }
    if missing.is_empty()
        && let Err(error) = Namespace::anonymous()
    {
        missing.push(Missing {
            what: format!("no network namespace can be made: {error}"),
            remedy: "the kernel needs CONFIG_NET_NS, a container CAP_SYS_ADMIN".into(),
        });
    }
    missing
}

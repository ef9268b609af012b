//! What a machine lacks for the demo, said before anything is made.

use std::path::Path;

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::shell::is_permitted;
use ccplane_report::Datapath;

use super::config::FlowPlan;
use crate::error::Error;
use crate::traffic::check_congestion;

/// One thing that is missing and what would help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// What, and how it shows.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

/// What emulated links lack here; nothing if they can be made.
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

/// What this flow lacks here, links aside: its congestion control.
#[must_use]
pub fn missing_for_flow(flow: &FlowPlan) -> Option<Missing> {
    if flow.datapath == Datapath::CcplaneQuic {
        return None;
    }
    let error = check_congestion(&flow.congestion).err()?;
    let remedy = match &error {
        Error::NoCongestionControl { name } if name == "ccplane" => {
            "start the agent with its BPF datapath (`ccplane doctor` says what that needs)".into()
        }
        Error::NoCongestionControl { name } => format!("load the module `tcp_{name}`"),
        Error::Restricted { .. } => "run it as root or with sudo".into(),
        _ => "no flow can run without it".into(),
    };
    Some(Missing { what: format!("{}: {error}", flow.label), remedy })
}

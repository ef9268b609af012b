//! The agent's place: its configuration and the paths that follow from it.

use crate::args::AgentPlace;
use crate::config::Config;
use crate::failure::Failure;
use crate::rundir::{self, SERVICE_STATE};
use ccplane_ebpf::{MAX_FLOWS, Options};
use ccplane_files::SocketError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The folder of learned policies, below that of the state.
const POLICIES: &str = "policies";
/// The folder of the memories of destinations, below that of the state.
const MEMORY: &str = "memory";
/// The variable by which systemd tells a service of its `StateDirectory=`, several separated by colons.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";

/// A folder of state that outlives the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateFolder {
    /// Its path: configured, or below the service's state directory, or below the run directory.
    pub folder: PathBuf,
    /// The path below the run directory, where agents of versions before have it.
    pub former: PathBuf,
}

/// A configuration with its paths settled.
pub struct Located {
    pub config: Config,
    pub control_socket: PathBuf,
}

impl AgentPlace {
    /// Reads the configuration; `algorithms` are those that rules may name, where the caller knows them.
    pub fn locate(&self, algorithms: Option<&[&str]>) -> Result<Located, Failure> {
        let config = Config::load(self.config.as_deref(), algorithms)?;
        let control_socket = match self.socket.as_ref().or(config.control.socket.as_ref()) {
            Some(path) => path.clone(),
            None => rundir::default_control_socket()?,
        };
        Ok(Located { config, control_socket })
    }
}

impl Located {
    /// The directory of the lock and the control socket.
    pub fn run_dir(&self) -> Result<&std::path::Path, Failure> {
        Ok(ccplane_files::parent(&self.control_socket)?)
    }

    /// Returns the options with which the kernel datapath is attached, or was.
    pub fn ebpf_options(&self) -> Options {
        let ebpf = &self.config.datapath.ebpf;
        Options {
            run_dir: ebpf.run_dir.clone(),
            name: ebpf.name.clone(),
            requests: self.config.requests(),
            max_flows: u32::try_from(ebpf.max_flows.get()).unwrap_or(MAX_FLOWS),
            heartbeat_timeout: self.config.agent.heartbeat_timeout_ms.millis(),
            sample_interval: ebpf.sample_interval_ms.millis(),
            handback: ebpf.handback.clone(),
        }
    }

    /// Returns the folder of learned policies that were promoted.
    pub fn policies(&self) -> Result<StateFolder, SocketError> {
        self.kept(self.config.learn.folder.as_deref(), POLICIES)
    }

    /// The folders in which a learned policy may be.
    ///
    /// A shell is told of no state directory: what is checked there is looked for in the package's, too, as its service would.
    pub fn learned(&self) -> Result<Vec<PathBuf>, SocketError> {
        let StateFolder { folder, former } = self.policies()?;
        let is_settled = folder != former;
        let service = (!is_settled).then(|| Path::new(SERVICE_STATE).join(POLICIES));
        Ok([Some(folder), is_settled.then_some(former), service].into_iter().flatten().collect())
    }

    /// Returns the folder of the algorithms' memories of destinations.
    pub fn memory(&self) -> Result<StateFolder, SocketError> {
        self.kept(self.config.portfolio.folder.as_deref(), MEMORY)
    }

    fn kept(&self, configured: Option<&Path>, name: &str) -> Result<StateFolder, SocketError> {
        let former = ccplane_files::parent(&self.control_socket)?.join(name);
        let state = || state_directory(std::env::var_os(STATE_DIRECTORY));
        let folder = match configured {
            Some(folder) => folder.to_owned(),
            None => state().map_or_else(|| former.clone(), |state| state.join(name)),
        };
        Ok(StateFolder { folder, former })
    }

    /// The socket that datapaths of other processes send to.
    pub fn datapath_socket(&self) -> Result<PathBuf, Failure> {
        match &self.config.datapath.unix.socket {
            Some(path) => Ok(path.clone()),
            None => Ok(self.run_dir()?.join(rundir::DATAPATH_SOCKET)),
        }
    }
}

/// The first of the service's state directories, if it has any.
fn state_directory(variable: Option<OsString>) -> Option<PathBuf> {
    let first = std::env::split_paths(&variable?).next()?;
    first.is_absolute().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_says_where_its_state_is() {
        let of = |text: &str| state_directory(Some(text.into()));
        assert_eq!(state_directory(None), None);
        assert_eq!(of("/var/lib/ccplane"), Some("/var/lib/ccplane".into()));
        assert_eq!(of("/var/lib/ccplane:/var/lib/more"), Some("/var/lib/ccplane".into()));
        assert!(of("").is_none() && of("ccplane").is_none());
    }

    #[test]
    fn what_is_configured_goes_first() {
        let located = |config: &str| Located {
            config: toml::from_str(config).unwrap(),
            control_socket: PathBuf::from("/run/mine/control.sock"),
        };
        let kept = located("").policies().unwrap();
        assert_eq!(kept.former, Path::new("/run/mine/policies"));
        let config = "learn.folder = \"/a\"\nportfolio.folder = \"/b\"\n";
        let of = |kept: StateFolder| (kept.folder, kept.former);
        assert_eq!(of(located(config).policies().unwrap()), ("/a".into(), "/run/mine/policies".into()));
        assert_eq!(of(located(config).memory().unwrap()), ("/b".into(), "/run/mine/memory".into()));
        let learned = |config| located(config).learned().unwrap();
        assert_eq!(learned(config), [Path::new("/a"), Path::new("/run/mine/policies")]);
        // A shell is told of no state directory.
        let from_a_shell = [Path::new("/run/mine/policies"), Path::new("/var/lib/ccplane/policies")];
        assert_eq!(learned(""), from_a_shell);
    }
}

//! Where the agent is: its configuration and the paths that follow from it.

use crate::args::Place;
use crate::config::Config;
use crate::failure::Failure;
use crate::rundir;
use ccplane_ebpf::{MAX_FLOWS, Options};
use std::path::PathBuf;

/// A configuration with its paths settled.
pub struct Located {
    pub config: Config,
    pub control_socket: PathBuf,
}

impl Place {
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

    /// How the kernel datapath is attached, or was.
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

    /// The socket that datapaths of other processes send to.
    pub fn datapath_socket(&self) -> Result<PathBuf, Failure> {
        match &self.config.datapath.unix.socket {
            Some(path) => Ok(path.clone()),
            None => Ok(self.run_dir()?.join(rundir::DATAPATH_SOCKET)),
        }
    }
}

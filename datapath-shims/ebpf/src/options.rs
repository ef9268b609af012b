//! Options for attaching the datapath.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::EbpfError;
use crate::layout::INDEX_BITS;

/// The largest flow table that can be asked for.
pub const MAX_FLOWS: u32 = 1 << INDEX_BITS;
/// Longest name of a congestion control (`TCP_CA_NAME_MAX` less its zero).
pub const MAX_NAME: usize = 15;
/// Most further names of one datapath.
pub const MAX_REQUESTS: usize = 16;
/// The shortest heartbeat timeout allowed.
pub const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// Options for attaching the datapath.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the lock file, and of our own BPF file system if needed. One agent at a time has it.
    pub run_dir: PathBuf,
    /// The congestion control's name, as in `TCP_CONGESTION` and `ss`; also names the pin directory.
    /// One agent at a time has it, whatever its run directory.
    pub name: String,
    /// Further names, at most [`MAX_REQUESTS`]: a socket that chooses one asks for what that name stands for. Names that the
    /// kernel has already are left to it.
    pub requests: Vec<String>,
    /// Records in the flow table, at most [`MAX_FLOWS`].
    pub max_flows: u32,
    /// Silence of the agent after which flows run the native algorithm.
    pub heartbeat_timeout: Duration,
    /// Least time between two samples of a flow's statistics.
    pub sample_interval: Duration,
    /// The congestion control that flows get when the datapath is detached; Reno if the kernel does not have it.
    pub handback: String,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            run_dir: PathBuf::from("/run/ccplane"),
            name: "ccplane".into(),
            requests: Vec::new(),
            max_flows: 4096,
            heartbeat_timeout: Duration::from_secs(1),
            sample_interval: Duration::from_millis(10),
            handback: "cubic".into(),
        }
    }
}

/// Whether a congestion control can have this name.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), EbpfError> {
        let bad = |field, value: String, limit: String| Err(EbpfError::BadOption { field, value, limit });
        let requests = self.requests.iter().map(|name| ("requests", name));
        for (field, name) in [("name", &self.name), ("handback", &self.handback)].into_iter().chain(requests)
        {
            if !is_name(name) {
                return bad(field, name.clone(), format!("1 to {MAX_NAME} letters, digits or _"));
            }
        }
        if self.requests.len() > MAX_REQUESTS {
            return bad("requests", self.requests.len().to_string(), format!("at most {MAX_REQUESTS} names"));
        }
        if self.max_flows == 0 || self.max_flows > MAX_FLOWS {
            return bad("max_flows", self.max_flows.to_string(), format!("1 to {MAX_FLOWS}"));
        }
        if self.heartbeat_timeout < Duration::from_millis(10) {
            return bad(
                "heartbeat_timeout",
                format!("{:?}", self.heartbeat_timeout),
                format!("at least {MIN_TIMEOUT:?}"),
            );
        }
        Ok(())
    }
}

//! How to attach.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::EbpfError;
use crate::layout::INDEX_BITS;

/// Most flows that can be asked for.
pub const MAX_FLOWS: u32 = 1 << INDEX_BITS;
/// Longest name of a congestion control (`TCP_CA_NAME_MAX` less its zero).
pub const MAX_NAME: usize = 15;
/// Shortest heartbeat timeout.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// How to attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where a lock file, and our own BPF file system if need be, lie. One agent at a time has it.
    pub run_dir: PathBuf,
    /// The congestion control's name, as in `TCP_CONGESTION` and `ss`; also names the pin directory.
    /// One agent at a time has it, whatever its run directory.
    pub name: String,
    /// Records in the flow table, at most [`MAX_FLOWS`].
    pub max_flows: u32,
    /// Silence of the agent after which flows run the native algorithm.
    pub heartbeat_timeout: Duration,
    /// Least time between two samples of a flow's statistics.
    pub sample_interval: Duration,
    /// The congestion control that flows get when the datapath is detached; Reno where it is not known.
    pub handback: String,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            run_dir: PathBuf::from("/run/ccplane"),
            name: "ccplane".into(),
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
        for (field, name) in [("name", &self.name), ("handback", &self.handback)] {
            if !is_name(name) {
                return bad(field, name.clone(), format!("1 to {MAX_NAME} letters, digits or _"));
            }
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

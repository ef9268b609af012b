//! `ccplane quic`: files over QUIC.

mod bar;
mod client;
mod packets;
mod serve;
mod served;
mod steering;
mod trace;
pub(in crate::commands) mod wire;

use super::output::shown;
use crate::cli::QuicCommand;
use ccplane_agent::agent::{log_if_asked, log_to_stderr};
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use ccplane_quic::files::{FilesError, TokenError};
use ccplane_quic::quinn_proto::TransportErrorCode;
use ccplane_quic::{Config, ConnectionError};
use ccplane_wait::BusyPollError;
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Longest turn before a command looks whether it was interrupted.
const NAP: Duration = Duration::from_millis(50);
/// The filter of a server's log unless `CCPLANE_LOG` has one: the rights that it could not give up.
const SERVER_LOG: &str = "off,ccplane_agent::privileges=warn";
/// The exit code of a process that a second signal stops.
const SIGNALLED: i32 = 130;

/// Reasons why a `quic` command fails.
#[derive(Debug, thiserror::Error)]
enum QuicError {
    #[error("no algorithm `{name}`; there are {}", known.join(", "))]
    Algorithm { name: String, known: Vec<&'static str> },
    #[error("`{name}` does not decide about packets; there are {}", known.join(", "))]
    NoPackets { name: String, known: Vec<&'static str> },
    #[error("`{name}` has no policy to learn; there are {}", known.join(", "))]
    NoPolicy { name: String, known: Vec<&'static str> },
    #[error("`{0}` is not HOST:PORT")]
    Address(String),
    #[error("{server}: {source}")]
    Resolve { server: String, source: io::Error },
    #[error("listen on {at}: {source}")]
    Listen { at: String, source: io::Error },
    #[error("--busy-poll {us}: {source}")]
    BusyPoll { us: u32, source: BusyPollError },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Token { path: PathBuf, source: TokenError },
    #[error("{}: not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("no file name in `{0}`; give one with --{1}")]
    NoName(String, &'static str),
    #[error("cannot connect to {remote}: {}", Why(reason))]
    Connect { remote: SocketAddr, reason: ConnectionError },
    #[error("the connection to {remote} is lost: {}", Why(reason))]
    Lost { remote: SocketAddr, reason: ConnectionError },
    #[error("{}: {}", shown(name), shown(&cause.to_string()))]
    Transfer { name: String, cause: FilesError },
    #[error("interrupted")]
    Interrupted,
}

/// The protocol's words, with the time-out of a silent peer added. A peer's own words are escaped.
struct Why<'a>(&'a ConnectionError);

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ConnectionError::TimedOut => {
                write!(f, "no sign of life for {} s", Config::default().idle_timeout.as_secs())
            }
            ConnectionError::ApplicationClosed(close) if !close.reason.is_empty() => {
                f.write_str(&shown(&String::from_utf8_lossy(&close.reason)))
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::CONNECTION_REFUSED =>
            {
                f.write_str("it takes no more connections now; try again later")
            }
            other => f.write_str(&shown(&other.to_string())),
        }
    }
}

pub(crate) fn quic(command: &QuicCommand, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    match command {
        QuicCommand::Serve(_) => log_to_stderr(SERVER_LOG),
        QuicCommand::Get(_) | QuicCommand::Put(_) => log_if_asked(),
    }
    match command {
        QuicCommand::Serve(args) => serve::serve(args, algorithms),
        QuicCommand::Get(args) => client::get(args, algorithms),
        QuicCommand::Put(args) => client::put(args, algorithms),
    }
}

/// Set by the first signal; the second one ends the process.
fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, SIGNALLED, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    // A file beyond the process's limit is a write that fails, not the process's end.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    Ok(stop)
}

/// "1.50 GB", in powers of ten, as rates are.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.5 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Of so many bytes in that time.
fn mbit_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8e-6 / time.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_with_three_digits() {
        for (bytes, text) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (1_500_000_000, "1.5 GB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}

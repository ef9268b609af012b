//! A command's end of the control socket.

use super::protocol::{MAX_RESPONSE_BYTES, Request, Response};
use ccplane_files::Bound;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest line of a process in /proc.
const STAT: Bound = Bound { what: "a process's state", bytes: 4096 };

/// Reasons why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no agent runs at {} ({source}); start one with `ccplane agent`{}", socket.display(), if *directory_is_gone { "; its directory is not there, and an agent whose run directory was removed ends by itself" } else { "" })]
    NoAgent {
        /// The path at which it was looked for.
        socket: PathBuf,
        source: io::Error,
        /// Whether the socket's directory does not exist.
        directory_is_gone: bool,
    },
    /// The socket may not be used.
    #[error("{}: {source}", socket.display())]
    Unreachable { socket: PathBuf, source: io::Error },
    /// An agent listens and does not answer.
    #[error("agent pid {pid} has not answered for {timeout:?}{}", if *stopped { format!(": it is stopped by a signal, `kill -CONT {pid}` has it go on") } else { String::new() })]
    Silent {
        pid: u32,
        /// The time for which the command waited.
        timeout: Duration,
        /// Whether /proc shows that a signal has stopped it (SIGSTOP).
        stopped: bool,
    },
    /// The agent ended in the midst of the request.
    #[error("agent pid {pid} ended without an answer; `ccplane doctor --clean` removes what it left")]
    HungUp { pid: u32 },
    /// The answer is no response.
    #[error("the agent's answer cannot be read: {0}")]
    Garbled(#[from] serde_json::Error),
    #[error("the agent refused: {0}")]
    Refused(String),
}

/// Sends one request and takes its response, waiting at most `timeout` for each.
///
/// # Errors
/// There is no agent, it does not answer in time, or it refuses.
pub fn ask(socket: &Path, timeout: Duration, request: &Request) -> Result<Response, ClientError> {
    open(socket, timeout, request).map(|(response, _)| response)
}

/// Asks as [`ask`] does, and also returns a reader of all that the agent sends after its response.
///
/// # Errors
/// As [`ask`].
pub fn open(
    socket: &Path,
    timeout: Duration,
    request: &Request,
) -> Result<(Response, BufReader<UnixStream>), ClientError> {
    let unreachable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let directory = socket.parent().filter(|directory| *directory != Path::new(""));
            let directory_is_gone =
                directory.is_some_and(|directory| directory.try_exists().is_ok_and(|exists| !exists));
            ClientError::NoAgent { socket: socket.to_owned(), source, directory_is_gone }
        }
        _ => ClientError::Unreachable { socket: socket.to_owned(), source },
    };
    let stream = UnixStream::connect(socket).map_err(unreachable)?;
    // The credentials of a listening socket are those of the process that called listen(2).
    let pid = getsockopt(&stream, PeerCredentials).map_err(|e| unreachable(e.into()))?.pid().unsigned_abs();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ClientError::Silent { pid, timeout, stopped: is_stopped(pid) }
        }
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ClientError::HungUp { pid },
        _ => ClientError::Unreachable { socket: socket.to_owned(), source },
    };
    stream.set_read_timeout(Some(timeout)).map_err(failed)?;
    stream.set_write_timeout(Some(timeout)).map_err(failed)?;

    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    (&stream).write_all(&line).map_err(failed)?;
    let mut answer = Vec::new();
    let mut stream = BufReader::new(stream);
    (&mut stream).take(MAX_RESPONSE_BYTES as u64).read_until(b'\n', &mut answer).map_err(failed)?;
    if answer.is_empty() {
        return Err(ClientError::HungUp { pid });
    }
    match serde_json::from_slice(&answer)? {
        Response::Error { message } => Err(ClientError::Refused(message)),
        response => {
            stream.get_ref().set_read_timeout(None).map_err(failed)?;
            Ok((response, stream))
        }
    }
}

/// Whether a signal has stopped a process (state T of proc(5)).
fn is_stopped(pid: u32) -> bool {
    let stat = Path::new("/proc").join(pid.to_string()).join("stat");
    // The state follows the command, which is in parentheses and may have some of its own.
    let text = ccplane_files::read_text(&stat, STAT).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

//! Tells systemd how the agent is (sd_notify(3)): it runs, it is alive, it stops.
//!
//! The socket is connected before privileges and system calls are given up. Where no service manager asks, nothing is said.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The environment variable that names the manager's socket.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The environment variable with the time within which a sign of life is expected, microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The environment variable with the process that is watched.
const WATCHED: &str = "WATCHDOG_PID";
/// Signs of life in the time that the manager waits for one: with more than two, one may fail to come.
const BEATS: u32 = 3;

/// The socket of the service manager could not be connected or written to.
#[derive(Debug, thiserror::Error)]
#[error("NOTIFY_SOCKET: {0}")]
pub struct NotifyError(#[from] io::Error);

/// The service manager that started this process, if one asks to be told.
#[derive(Debug, Default)]
pub struct Notifier {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Connects to the manager that the environment names.
    ///
    /// # Errors
    /// `NOTIFY_SOCKET` is set, and the socket that it names cannot be connected to.
    pub fn from_environment() -> Result<Notifier, NotifyError> {
        let Some(name) = std::env::var_os(SOCKET) else { return Ok(Notifier::default()) };
        let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
        let ours = number(WATCHED).is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number(WATCHDOG).filter(|us| ours && *us > 0).map(Duration::from_micros);
        Ok(Notifier { socket: Some(connect(&name)?), watchdog })
    }

    /// Returns how often a sign of life is to be given.
    pub fn beat(&self) -> Option<Duration> {
        self.watchdog.map(|patience| patience / BEATS)
    }

    /// Says that the agent serves.
    pub fn ready(&self) {
        self.say("READY=1\nSTATUS=steers flows");
    }

    /// Says that it is alive.
    pub fn alive(&self) {
        self.say("WATCHDOG=1");
    }

    /// Says that it hands its flows back and ends.
    pub fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=hands its flows back");
    }

    fn say(&self, words: &str) {
        if let Some(socket) = &self.socket {
            // A manager that does not listen any more needs no agent to fail.
            let _ = socket.send(words.as_bytes());
        }
    }
}

#[cfg(test)]
impl Notifier {
    /// Connects to a manager at this path, which waits so long for a sign of life.
    pub(crate) fn of(path: &std::path::Path, patience: Duration) -> io::Result<Notifier> {
        Ok(Notifier { socket: Some(connect(path.as_os_str())?), watchdog: Some(patience) })
    }
}

/// Connects to a path, or to an abstract name, which begins with `@`.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut words = [0; 64];
        let bytes = socket.recv(&mut words).unwrap();
        String::from_utf8(words[..bytes].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_hears_over_a_path_and_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listening = UnixDatagram::bind(&path).unwrap();
        let watchdog = Some(Duration::from_secs(30));
        let notifier = Notifier { socket: Some(connect(path.as_os_str()).unwrap()), watchdog };
        notifier.ready();
        notifier.alive();
        assert_eq!(
            [received(&listening), received(&listening)],
            ["READY=1\nSTATUS=steers flows", "WATCHDOG=1"]
        );
        assert_eq!(notifier.beat(), Some(Duration::from_secs(10)));
        drop(listening);
        notifier.stopping();

        let name = format!("ccplane-notify-{}", std::process::id());
        let listening = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Notifier { socket: Some(connect(OsStr::new(&format!("@{name}"))).unwrap()), watchdog: None }
            .stopping();
        assert!(received(&listening).starts_with("STOPPING=1"));
        assert!(connect(OsStr::new("/no/such/socket")).is_err());
        Notifier::default().ready();
    }
}

//! `emu.*`: the link shells, as processes of their own around a command, by their nominal figures.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_emulator::netns::Namespace;
use ccplane_runner::traffic::{BulkFlow, FlowConfig};

use crate::error::{BenchError, context};
use crate::figure::Figure;
use crate::proof::{self, Proof, Unproven};
use crate::steer;

/// The command in the shells: prints its process id and the outside's address, then holds the namespace.
const COMMAND: &str = "echo $$ $MAHIMAHI_BASE; exec sleep 600";
/// Rates of the traces, Mb/s.
const CEILINGS_MBIT: [u32; 3] = [1000, 2000, 4000];
const CEILING_RUNS: usize = 5;
const CEILING_RUN: Duration = Duration::from_secs(3);
const CONST_MBIT: u32 = 12;
const CONST_RUNS: usize = 3;
const CONST_RUN: Duration = Duration::from_secs(8);
/// The flow's start, which is not counted: three hundred milliseconds of slow start on an empty queue.
const CONST_START: Duration = Duration::from_secs(1);
const CONST_QUEUE: &str = "packets=100";
const DELAY_MS: u32 = 20;
const DELAY_RUNS: usize = 5;
const PINGS: u32 = 50;
const PING_EVERY: Duration = Duration::from_millis(3);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
const MS_PER_S: f64 = 1e3;

/// Commands behind shells, and the namespaces at both ends. The shells end when this is dropped.
pub(crate) struct ShellPath {
    shells: Child,
    pub(crate) inside: Namespace,
    pub(crate) outside: Namespace,
    /// The address of the shells' outside end.
    pub(crate) base: IpAddr,
}

impl ShellPath {
    /// Starts `ccplane` with these words in a namespace of its own.
    pub(crate) fn start(words: &[&str]) -> Result<ShellPath, BenchError> {
        crate::error::check_namespaces()?;
        let outside = Namespace::anonymous()?;
        let mut command = Command::new(context("find this program", std::env::current_exe())?);
        command.args(words).args(["--", "sh", "-c", COMMAND]).stdin(Stdio::null()).stdout(Stdio::piped());
        // Where this runs in a shell itself, that one's addresses mean nothing in a namespace of our own.
        command
            .env_remove("MAHIMAHI_BASE")
            .env_remove("MAHIMAHI_SHELL_PREFIX")
            .env_remove("CCPLANE_SHELL_BLOCK");
        let mut shells = context("start the shells", outside.enter(&mut command)?.spawn())?;
        let mut line = String::new();
        if let Some(stdout) = &mut shells.stdout {
            context("read from the shells", BufReader::new(stdout).read_line(&mut line).map(drop))?;
        }
        let parsed =
            line.trim().split_once(' ').and_then(|(pid, base)| Some((pid.parse().ok()?, base.parse().ok()?)));
        let found =
            parsed.map(|(pid, base)| Ok::<_, BenchError>((Namespace::of_process(pid)?, base))).transpose();
        match found {
            Ok(Some((inside, base))) => Ok(ShellPath { shells, inside, outside, base }),
            failed => {
                let _ = shells.kill();
                let _ = shells.wait();
                failed?;
                Err(BenchError::Missing(format!("the shells said {line:?} and no process id and address")))
            }
        }
    }

    /// One Cubic flow from the inside out; returns the payload bytes received.
    fn bulk(&self, duration: Duration) -> Result<u64, BenchError> {
        let receiver = SocketAddr::new(self.base, 0);
        let config = FlowConfig { receiver, ..steer::bulk("cubic", duration) };
        let flow = BulkFlow::start(&config, &self.inside, &self.outside, Instant::now())?;
        Ok(flow.finish()?.received_bytes)
    }

    /// The mean round trip of datagrams that the outside echoes, milliseconds.
    fn ping_ms(&self, count: u32) -> Result<f64, BenchError> {
        let at = SocketAddr::new(self.base, 0);
        let server = context("bind a socket", self.outside.run(|| UdpSocket::bind(at))?)?;
        let client = context("bind a socket", self.inside.run(|| UdpSocket::bind(("0.0.0.0", 0)))?)?;
        let connected = server.local_addr().and_then(|address| client.connect(address));
        context("connect", connected.and_then(|()| client.set_read_timeout(Some(PING_TIMEOUT))))?;
        context("set a timeout", server.set_read_timeout(Some(PING_TIMEOUT)))?;
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut buffer = [0; 64];
                for _ in 0..count {
                    let Ok((len, from)) = server.recv_from(&mut buffer) else { return };
                    let _ = server.send_to(buffer.get(..len).unwrap_or_default(), from);
                }
            });
            // Each is answered, or `recv` gives up.
            let mut total = Duration::ZERO;
            for _ in 0..count {
                let start = Instant::now();
                context("ping", client.send(b"ping").and_then(|_| client.recv(&mut [0; 64])))?;
                total += start.elapsed();
                thread::sleep(PING_EVERY);
            }
            Ok(total.as_secs_f64() * MS_PER_S / f64::from(count))
        })
    }
}

impl Drop for ShellPath {
    fn drop(&mut self) {
        // Whatever the shells made ends with them.
        let _ = self.shells.kill();
        let _ = self.shells.wait();
    }
}

/// Measures `emu.ceiling`: one flow through a trace of 1000 Mb/s, and through faster ones.
pub fn ceiling() -> Result<Vec<Figure>, BenchError> {
    CEILINGS_MBIT.into_iter().map(ceiling_at).collect()
}

fn ceiling_at(mbit: u32) -> Result<Figure, BenchError> {
    let directory = context("make a directory", tempfile::tempdir())?;
    let trace = constant(directory.path(), mbit)?;
    let exe = exe()?;
    let behind = ShellPath::start(&["mm-delay", "1", &exe, "mm-link", &trace, &trace])?;
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for _ in 0..CEILING_RUNS {
        let bytes = behind.bulk(CEILING_RUN)?;
        proofs.push(Proof::counted("bytes received", bytes)?);
        pairs.push((bytes as f64 * 8e-6 / CEILING_RUN.as_secs_f64(), f64::from(mbit)));
    }
    let name = if mbit == CEILINGS_MBIT[0] { "emu.ceiling".into() } else { format!("emu.ceiling.{mbit}") };
    // A segment with timestamps has 1448 bytes of payload, and takes one opportunity: 962.8 of 1000 Mb/s is all there is.
    let note = "payload against the trace's bytes, of which 1448 of 1504 can be payload: 0.963 at most";
    Ok(Figure::paired(name, "Mb/s", "the trace", &pairs, &proof::all(&proofs)?).with_note(note))
}

/// Measures `emu.const12`: Cubic's share of a constant trace of 12 Mb/s.
pub fn const12() -> Result<Vec<Figure>, BenchError> {
    let directory = context("make a directory", tempfile::tempdir())?;
    let trace = constant(directory.path(), CONST_MBIT)?;
    let log = text(&directory.path().join("up.log"))?;
    let exe = exe()?;
    let mut words = vec!["mm-delay", "20", &exe, "mm-link", &trace, &trace, "--uplink-log", &log];
    words.extend(["--uplink-queue", "droptail", "--uplink-queue-args", CONST_QUEUE]);
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for _ in 0..CONST_RUNS {
        let mut behind = ShellPath::start(&words)?;
        proofs.push(Proof::counted("bytes received", behind.bulk(CONST_RUN)?)?);
        // By SIGTERM, which the shells pass on, so that the log is whole.
        let pid = nix::unistd::Pid::from_raw(behind.shells.id() as i32);
        context(
            "end the shells",
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).map_err(Into::into),
        )?;
        context("wait for the shells", behind.shells.wait().map(drop))?;
        let log = context("read the log", std::fs::read_to_string(&log))?;
        let (used, departed) = utilisation(&log)?;
        proofs.push(departed);
        pairs.push((used, 1.0));
    }
    let what = "all opportunities of the trace";
    let note =
        format!("bytes departed of bytes offered in the log, droptail {CONST_QUEUE}, after the first second");
    Ok(vec![Figure::paired("emu.const12", "fraction", what, &pairs, &proof::all(&proofs)?).with_note(note)])
}

/// Measures `emu.delay`: the error of the mean round trip through `mm-delay`.
pub fn delay() -> Result<Vec<Figure>, BenchError> {
    let behind = ShellPath::start(&["mm-delay", &DELAY_MS.to_string()])?;
    let nominal_ms = f64::from(2 * DELAY_MS);
    let mut pairs = Vec::new();
    for _ in 0..DELAY_RUNS {
        pairs.push(((behind.ping_ms(PINGS)? - nominal_ms).abs(), nominal_ms));
    }
    let echoes = Proof::counted("datagrams echoed", (DELAY_RUNS * PINGS as usize) as u64)?;
    Ok(vec![Figure::paired("emu.delay", "ms", "the nominal round trip", &pairs, &echoes)])
}

/// From the first departure on, less [`CONST_START`], to the last: departed bytes of those of all opportunities.
fn utilisation(log: &str) -> Result<(f64, Proof), Unproven> {
    let events: Vec<(u64, &str, u64)> = log
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?, words.next()?.parse().ok()?))
        })
        .collect();
    let departures = || events.iter().filter(|(_, kind, _)| *kind == "-");
    let (Some((first_ms, ..)), Some((last_ms, ..))) = (departures().next(), departures().next_back()) else {
        return Err(Unproven::Idle { what: "bytes departed", before: 0, after: 0 });
    };
    // The flow's last round trip is its end, not its use of the link.
    let window_ms =
        first_ms + CONST_START.as_millis() as u64..last_ms.saturating_sub(CONST_START.as_millis() as u64);
    let sum = |wanted: &str| -> u64 {
        events
            .iter()
            .filter(|(at_ms, kind, _)| *kind == wanted && window_ms.contains(at_ms))
            .map(|(.., n)| n)
            .sum()
    };
    let (departed, offered) = (sum("-"), sum("#"));
    let proof = Proof::counted("bytes departed", departed)?.and(&Proof::counted("bytes offered", offered)?);
    Ok((departed as f64 / offered as f64, proof))
}

/// A trace file of a constant rate.
pub(crate) fn constant(directory: &Path, mbit: u32) -> Result<String, BenchError> {
    let trace = ccplane_netsim::trace::Trace::constant(mbit)
        .map_err(|error| BenchError::Missing(error.to_string()))?;
    let path = directory.join(format!("{mbit}mbit"));
    context("write a trace", std::fs::write(&path, trace.to_string()))?;
    text(&path)
}

pub(crate) fn exe() -> Result<String, BenchError> {
    text(&context("find this program", std::env::current_exe())?)
}

fn text(path: &Path) -> Result<String, BenchError> {
    path.to_str().map(str::to_owned).ok_or_else(|| BenchError::Missing(format!("{path:?} is no UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilisation_is_of_the_window() {
        let mut log = "# header\n".to_owned();
        for ms in 1..=4000 {
            log += &format!("{ms} # 1504\n");
            // Half of the time, between the first and the last second.
            if !(1500..3000).contains(&ms) || ms % 2 == 0 {
                log += &format!("{ms} - 1504 3\n");
            }
        }
        let used = utilisation(&log).map(|(used, _)| used);
        assert!(used.as_ref().is_ok_and(|used| (used - 0.625).abs() < 0.001), "{used:?}");
        assert!(matches!(utilisation("# header\n1 # 1504\n"), Err(Unproven::Idle { .. })));
    }
}

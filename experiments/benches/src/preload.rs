//! `wake.preload`: programs that know nothing of ccplane, with the library for `LD_PRELOAD` and without, in turn.
//!
//! Redis under its own benchmark, one request at a time, and iperf3; server and client are on a core each, and both are
//! under the library or both are not. The client's own counts and the server's memory prove that the library was there.

use std::net::SocketAddrV4;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ccplane_files::{is_listening, server_address};

use crate::agent::{Process, START};
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::figure::{Figure, Pair, in_turn};
use crate::proof::{self, Proof};
use crate::{oracle, processor};

/// The library, as Cargo names it.
const LIBRARY: &str = "libccplane_wait_preload.so";
/// Modes that are measured: a name, and the value of `CCPLANE_WAKE`.
const MODES: [(&str, &str); 2] = [("auto", "auto:10"), ("spin", "spin:50")];
const ROUNDS: usize = 3;
/// Requests of one run of Redis's benchmark.
const REQUESTS: u32 = 20_000;
/// Seconds of one run of iperf3.
const SECONDS: u32 = 2;
/// Time between two looks whether a server listens.
const AGAIN: Duration = Duration::from_millis(10);
const BASELINE: &str = "without the library";

/// A mode with its library; `None` runs a program as it is.
type Under<'a> = Option<(&'a Path, &'a str)>;

fn command(program: &str, under: Under<'_>) -> Command {
    let mut command = Command::new(program);
    if let Some((library, mode)) = under {
        command.env("LD_PRELOAD", library).env("CCPLANE_WAKE", mode).env("CCPLANE_WAKE_COUNTS", "1");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Runs a client and returns what it says.
fn output(mut client: Command, name: &str) -> Result<Output, BenchError> {
    client.stdout(Stdio::piped()).stderr(Stdio::piped());
    client.output().map_err(|error| BenchError::Missing(format!("{name} does not run: {error}")))
}

/// Starts a server, and waits until it listens: with the library where it is to have it.
fn start(
    mut server: Command,
    name: &str,
    under: Under<'_>,
    address: SocketAddrV4,
) -> Result<Process, BenchError> {
    let _there = OneCore::nth(1);
    let child = server.spawn();
    let server =
        child.map(Process).map_err(|error| BenchError::Missing(format!("{name} does not run: {error}")))?;
    let since = Instant::now();
    while !context("read the sockets", is_listening(address))? {
        if since.elapsed() > START {
            return Err(BenchError::Missing(format!("{name} does not listen at {address}")));
        }
        std::thread::sleep(AGAIN);
    }
    if under.is_some() && !has_library(server.0.id()) {
        return Err(BenchError::Missing(format!("{name} runs without {LIBRARY}")));
    }
    Ok(server)
}

/// Whether the library is in a process's memory.
fn has_library(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(LIBRARY))
}

/// Returns the address of a server to come, and its parts as arguments.
fn place() -> Result<(SocketAddrV4, String, String), BenchError> {
    let address = context("find a free address", server_address())?;
    Ok((address, address.ip().to_string(), address.port().to_string()))
}

/// The waits that the library has counted in a program that has ended.
fn waits(stderr: &str) -> Option<u64> {
    let line = stderr.lines().find(|line| line.starts_with("ccplane: ") && line.ends_with(" slept"))?;
    Some(line.split(' ').filter_map(|word| word.parse::<u64>().ok()).sum())
}

/// Proof that the client was under the library; without one, that it ran.
fn proof_of(output: &Output, under: Under<'_>) -> Result<Proof, BenchError> {
    let ran = Proof::counted("runs of the client", 1)?;
    match under {
        None => Ok(ran),
        Some(_) => {
            let counted = waits(&String::from_utf8_lossy(&output.stderr)).unwrap_or(0);
            Ok(ran.and(&Proof::counted("waits of the client under the library", counted)?))
        }
    }
}

fn library() -> Result<PathBuf, BenchError> {
    let missing = |_| BenchError::Missing(format!("{LIBRARY} is not built; `make bench` builds it"));
    oracle::find(LIBRARY).map_err(missing)
}

/// One run's values, in the order of the figures' names.
type Run = (Vec<f64>, Proof);

/// Figures of runs of a program in each mode beside runs without the library.
fn figures(
    program: &str,
    quantities: &[(&str, &'static str)],
    run: impl Fn(Under<'_>) -> Result<Run, BenchError>,
) -> Result<Vec<Figure>, BenchError> {
    let library = library()?;
    let mut figures = Vec::new();
    for (name, mode) in MODES {
        let mut runs: Vec<(Run, Run)> = Vec::new();
        for round in 0..ROUNDS {
            runs.push(in_turn(round, || run(Some((library.as_path(), mode))), || run(None))?);
        }
        let proof = proof::all(runs.iter().flat_map(|((_, ours), (_, theirs))| [ours, theirs]))?;
        for (n, &(quantity, unit)) in quantities.iter().enumerate() {
            let pairs: Vec<Pair> = runs.iter().map(|(ours, theirs)| (ours.0[n], theirs.0[n])).collect();
            let name = format!("wake.preload.{program}.{name}.{quantity}");
            figures.push(Figure::paired(name, unit, BASELINE, &pairs, &proof));
        }
    }
    Ok(figures)
}

/// Measures Redis under its own benchmark.
pub fn redis() -> Result<Vec<Figure>, BenchError> {
    let quantities = [("rate", "1/s"), ("p50", "us"), ("p99", "us"), ("cpu", "us")];
    figures("redis", &quantities, |under| {
        let (address, ip, port) = place()?;
        // The server by its name in Debian's redis-tools: the package redis-server would start a service.
        let mut server = command("redis-check-rdb", under);
        server.arg0("redis-server").args([
            "--port",
            &port,
            "--bind",
            &ip,
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let server = start(server, "redis-tools", under, address)?;
        let spent = || processor::of_process(server.0.id());
        let requests = REQUESTS.to_string();
        let mut client = command("redis-benchmark", under);
        client.args(["-h", &ip, "-p", &port, "-n", &requests, "-c", "1", "-t", "get", "--csv"]);
        let _here = OneCore::nth(0);
        let before = spent()?;
        let output = output(client, "redis-tools")?;
        let cpu_us = spent()?.saturating_sub(before).as_secs_f64() * 1e6 / f64::from(REQUESTS);
        let text = String::from_utf8_lossy(&output.stdout);
        let answers =
            answers(&text).ok_or_else(|| BenchError::Missing(format!("redis-benchmark says {text}")))?;
        Ok(([&answers[..], &[cpu_us]].concat(), proof_of(&output, under)?))
    })
}

/// Requests a second, and the median and 99th percentile of their times in microseconds, from redis-benchmark's CSV.
fn answers(csv: &str) -> Option<[f64; 3]> {
    let fields =
        |line: &str| line.split(',').map(|field| field.trim_matches('"').to_owned()).collect::<Vec<_>>();
    let line = |first: &str| csv.lines().map(fields).find(|line| line.first().is_some_and(|f| f == first));
    let (header, row) = (line("test")?, line("GET")?);
    let value = |name: &str| {
        let at = header.iter().position(|field| field == name)?;
        row.get(at)?.parse::<f64>().ok()
    };
    Some([value("rps")?, value("p50_latency_ms")? * 1e3, value("p99_latency_ms")? * 1e3])
}

/// Measures iperf3 over loopback.
pub fn iperf3() -> Result<Vec<Figure>, BenchError> {
    let quantities = [("rate", "Gb/s"), ("cpu", "%")];
    figures("iperf3", &quantities, |under| {
        let (address, ip, port) = place()?;
        let mut server = command("iperf3", under);
        server.args(["-s", "-1", "-p", &port, "-B", &ip]);
        let _server = start(server, "iperf3", under, address)?;
        let _here = OneCore::nth(0);
        let mut client = command("iperf3", under);
        client.args(["-c", &ip, "-p", &port, "-t", &SECONDS.to_string(), "-J"]);
        let output = output(client, "iperf3")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let values =
            transfer(&output.stdout).ok_or_else(|| BenchError::Missing(format!("iperf3 says {text}")))?;
        Ok((values.to_vec(), proof_of(&output, under)?))
    })
}

/// The received rate in Gb/s, and both ends' processor time in percent of a core, from iperf3's JSON.
fn transfer(json: &[u8]) -> Option<[f64; 2]> {
    let value: serde_json::Value = serde_json::from_slice(json).ok()?;
    let at = |pointer: &str| value.pointer(pointer)?.as_f64();
    let cpu =
        at("/end/cpu_utilization_percent/host_total")? + at("/end/cpu_utilization_percent/remote_total")?;
    Some([at("/end/sum_received/bits_per_second")? / 1e9, cpu])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The line as redis-benchmark 7.0 prints it.
    const CSV: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                       \"GET\",\"25000.50\",\"0.032\",\"0.016\",\"0.031\",\"0.039\",\"0.055\",\"0.375\"\n";

    #[test]
    fn a_benchmark_of_redis_is_read_by_its_header() {
        assert_eq!(answers(CSV), Some([25_000.5, 31.0, 55.0]));
        assert_eq!(answers("\"GET\",\"25000.50\"\n"), None);
        assert_eq!(answers("Could not connect"), None);
    }

    #[test]
    fn a_transfer_is_read_from_json() {
        let json = br#"{"end": {"sum_received": {"bits_per_second": 2.5e9},
            "cpu_utilization_percent": {"host_total": 40.5, "remote_total": 50.0}}}"#;
        assert_eq!(transfer(json), Some([2.5, 90.5]));
        assert_eq!(transfer(br#"{"error": "unable to connect"}"#), None);
    }

    #[test]
    fn a_client_without_the_librarys_counts_proves_nothing() {
        assert_eq!(waits("x\nccplane: 3 waits polled, 4 slept\n"), Some(7));
        assert_eq!(waits("ERROR: ld.so: object cannot be preloaded"), None);
        let output = Command::new("true").output().unwrap();
        assert!(proof_of(&output, None).is_ok());
        assert!(!has_library(std::process::id()));
        assert!(proof_of(&output, Some((Path::new("x"), "auto:10"))).is_err());
    }
}

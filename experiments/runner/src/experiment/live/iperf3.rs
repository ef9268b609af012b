//! Bulk flows by the program `iperf3`: a server at one end, a client at the other; what the client prints is kept as it is.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccplane_results::{FlowResult, Series};
use serde::Deserialize;
use serde_json::Value;

use super::test_path::TestPath;
use crate::error::{Context, Error, Result};
use crate::percentiles::percentiles;

/// The name of the executable.
pub const PROGRAM: &str = "iperf3";
/// iperf3 reports at most ten times a second.
const MIN_INTERVAL_MS: u64 = 100;
/// The time that the client may take beyond its time.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// Both programs; they are ended when it is dropped.
pub(super) struct Iperf3 {
    client: Child,
    server: Child,
}

/// The command of one client.
pub(super) struct Request<'a> {
    pub(super) congestion: &'a str,
    pub(super) port: u16,
    pub(super) flows: u32,
    pub(super) duration_s: u64,
    pub(super) sample_ms: u64,
}

impl Iperf3 {
    /// Starts the server, waits until it listens, and starts the client.
    pub(super) fn start(request: &Request<'_>, test_path: &TestPath) -> Result<Iperf3> {
        let port = request.port.to_string();
        let mut server = Command::new(PROGRAM);
        server.args(["--server", "--one-off", "--forceflush", "--port", &port]);
        server.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let server = test_path.receiver().enter(&mut server)?.spawn().context("start iperf3")?;
        let interval = request.sample_ms.max(MIN_INTERVAL_MS) as f64 / 1000.0;
        let mut client = Command::new(PROGRAM);
        client
            .args(["--client", &test_path.receiver_ip().to_string(), "--port", &port, "--json"])
            .args(["--time", &request.duration_s.to_string(), "--interval", &interval.to_string()])
            .args(["--parallel", &request.flows.to_string(), "--congestion", request.congestion])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut server = Guard(Some(server));
        server.wait_until_it_listens()?;
        let client = test_path.sender().enter(&mut client)?.spawn().context("start iperf3")?;
        match server.0.take() {
            Some(server) => Ok(Iperf3 { client, server }),
            None => Err(Error::Iperf3 { why: "its server is gone".to_owned() }),
        }
    }

    /// Whether the client has ended.
    pub(super) fn is_finished(&mut self) -> Result<bool> {
        Ok(self.client.try_wait().context("wait for iperf3")?.is_some())
    }

    /// The client's report. It must have ended.
    pub(super) fn finish(mut self) -> Result<Value> {
        let status = self.client.wait().context("wait for iperf3")?;
        let mut text = String::new();
        if let Some(mut out) = self.client.stdout.take() {
            out.read_to_string(&mut text).context("read what iperf3 printed")?;
        }
        let report: Option<Value> = serde_json::from_str(&text).ok();
        let said = report.as_ref().and_then(|r| r.get("error")).and_then(Value::as_str);
        match (status.success(), said, report.as_ref()) {
            (true, None, Some(_)) => report.ok_or_else(|| Error::Iperf3 { why: "no report".to_owned() }),
            (_, Some(said), _) => Err(Error::Iperf3 { why: said.to_owned() }),
            (_, None, _) => Err(Error::Iperf3 { why: status.to_string() }),
        }
    }
}

impl Drop for Iperf3 {
    fn drop(&mut self) {
        end(&mut self.client);
        end(&mut self.server);
    }
}

struct Guard(Option<Child>);

impl Guard {
    fn wait_until_it_listens(&mut self) -> Result<()> {
        let out = self.0.as_mut().and_then(|server| server.stdout.take());
        let lines = out.into_iter().flat_map(|out| BufReader::new(out).lines());
        for line in lines.map_while(std::io::Result::ok) {
            if line.contains("listening") {
                return Ok(());
            }
        }
        Err(Error::Iperf3 { why: "its server ended before it listened".to_owned() })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

/// Ends a child that may have ended on its own.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// A stream's figures in one interval, by iperf3's field names.
#[derive(Deserialize)]
struct Interval {
    socket: u64,
    start: f64,
    end: f64,
    bytes: u64,
    bits_per_second: f64,
    #[serde(default)]
    retransmits: u64,
    #[serde(default)]
    snd_cwnd: u64,
    #[serde(default)]
    rtt: u64,
}

/// The flows of a report. `begun` is when the client was started, so that times count from the run's start.
pub(super) fn flows(report: &Value, begun: Duration, warmup_ms: u64) -> Result<Vec<FlowResult>> {
    let wrong = |why: &str| Error::Iperf3 { why: why.to_owned() };
    let intervals = report.get("intervals").and_then(Value::as_array);
    let intervals = intervals.ok_or_else(|| wrong("its report has no `intervals`"))?;
    let mss_bytes = report.pointer("/start/tcp_mss_default").and_then(Value::as_u64).unwrap_or(1448).max(1);
    let mut streams: Vec<(u64, Vec<Interval>)> = Vec::new();
    for interval in intervals {
        let parts = interval.get("streams").and_then(Value::as_array).into_iter().flatten();
        for part in parts {
            let part = Interval::deserialize(part).map_err(|e| wrong(&e.to_string()))?;
            match streams.iter_mut().find(|(socket, _)| *socket == part.socket) {
                Some((_, parts)) => parts.push(part),
                None => streams.push((part.socket, vec![part])),
            }
        }
    }
    let begun_ms = begun.as_millis() as u64;
    Ok(streams
        .iter()
        .enumerate()
        .map(|(n, (_, parts))| flow(n, parts, begun_ms, warmup_ms, mss_bytes))
        .collect())
}

fn flow(n: usize, parts: &[Interval], begun_ms: u64, warmup_ms: u64, mss_bytes: u64) -> FlowResult {
    let at_ms = |seconds: f64| begun_ms + (seconds * 1000.0) as u64;
    let warm: Vec<&Interval> = parts.iter().filter(|p| at_ms(p.start) >= warmup_ms).collect();
    let warm_s: f64 = warm.iter().map(|p| p.end - p.start).sum();
    let warm_bytes: u64 = warm.iter().map(|p| p.bytes).sum();
    let rtts: Vec<u64> = warm.iter().map(|p| p.rtt).filter(|rtt| *rtt > 0).collect();
    let retransmits = parts.iter().map(|p| p.retransmits).sum();
    let mut series = Series::default();
    for part in parts {
        series.t_ms.push(at_ms(part.end));
        series.throughput_bps.push(part.bits_per_second as u64);
        series.srtt_us.push(part.rtt);
        series.cwnd_pkts.push(part.snd_cwnd / mss_bytes);
        series.pacing_bps.push(0);
    }
    FlowResult {
        name: (n + 1).to_string(),
        background: None,
        start_ms: begun_ms,
        end_ms: parts.last().map_or(begun_ms, |p| at_ms(p.end)),
        acked_bytes: parts.iter().map(|p| p.bytes).sum(),
        throughput_bps: if warm_s > 0.0 { (warm_bytes as f64 * 8.0 / warm_s) as u64 } else { 0 },
        min_rtt_us: parts.iter().map(|p| p.rtt).filter(|rtt| *rtt > 0).min().unwrap_or(0),
        rtt_us: percentiles(rtts),
        lost_pkts: retransmits,
        retransmitted_pkts: retransmits,
        series,
        states: Vec::new(),
    }
}

/// Whether the program is there.
///
/// # Errors
/// It cannot be started.
pub fn check_program() -> Result<()> {
    let mut command = Command::new(PROGRAM);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().context("start iperf3").map(drop)
}

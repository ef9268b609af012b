//! Bulk flows by sockets of this process: TCP's, or QUIC's.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use ccplane_engine::Engine;
use ccplane_results::{Datapath, FlowResult, Series};

use super::test_path::TestPath;
use crate::error::{Error, Result};
use crate::percentiles::percentiles;
use crate::quic::{QuicPlan, udp_wires};
use crate::traffic::{BulkFlow, FlowConfig, FlowOutcome, TcpSample};

/// A flow to come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    /// The algorithm's name, for background traffic.
    pub(super) background: Option<String>,
    /// Of a TCP flow.
    pub(super) congestion: String,
    pub(super) datapath: Datapath,
    pub(super) port: u16,
    pub(super) start_ms: u64,
    pub(super) stop_ms: u64,
    /// Whether the agent has to steer it.
    pub(super) steered: bool,
}

/// A flow under way.
pub(super) struct Running {
    pub(super) planned: Planned,
    pub(super) flow: BulkFlow,
    /// The sample that was shown last.
    shown: Option<TcpSample>,
    /// The hosts that its ports are in; they go after it.
    #[cfg(feature = "dpdk")]
    #[expect(dead_code, reason = "held")]
    edges: Option<[ccplane_emulator::edge::Edge; 2]>,
}

impl Running {
    /// Payload delivered since the last call, bits per second.
    pub(super) fn throughput_bps(&mut self) -> u64 {
        let newest = self.flow.latest();
        let before = std::mem::replace(&mut self.shown, newest);
        before.zip(newest).map_or(0, |(before, now)| rate_bps(&before, &now))
    }
}

/// Starts flows at the same time: each connection takes a round trip. `engine` carries those in user space.
pub(super) fn start(
    flows: Vec<Planned>,
    test_path: &TestPath,
    engine: Option<&Engine>,
    sample_every: Duration,
    epoch: Instant,
) -> Result<Vec<Running>> {
    let start = |planned: Planned| {
        let receiver = SocketAddr::new(test_path.receiver_ip(), planned.port);
        let duration = Duration::from_millis(planned.stop_ms);
        let quic = QuicPlan { duration, sample_every, epoch };
        #[cfg(feature = "dpdk")]
        if let (Datapath::Dpdk, Some(engine)) = (planned.datapath, engine) {
            let pair = (planned.port - super::CONTENDER_PORT) as u8;
            let edges = test_path.edges(pair)?;
            let edges =
                edges.ok_or(Error::Dpdk { why: "there is no link to be at the ends of".to_owned() })?;
            let wires = crate::dpdk::wires(&edges, planned.port)?;
            let flow = BulkFlow::start_quic(wires, engine, quic)?;
            return Ok(Running { planned, flow, shown: None, edges: Some(edges) });
        }
        let flow = match (planned.datapath, engine) {
            (Datapath::Quic, Some(engine)) => {
                let wires = udp_wires(test_path.sender(), test_path.receiver(), receiver)?;
                BulkFlow::start_quic(wires, engine, quic)?
            }
            _ => {
                let congestion = planned.congestion.clone();
                let config = FlowConfig { congestion, receiver, duration, bytes: None, sample_every };
                BulkFlow::start(&config, test_path.sender(), test_path.receiver(), epoch)?
            }
        };
        Ok(Running {
            planned,
            flow,
            shown: None,
            #[cfg(feature = "dpdk")]
            edges: None,
        })
    };
    thread::scope(|scope| {
        let threads: Vec<_> = flows.into_iter().map(|planned| scope.spawn(|| start(planned))).collect();
        threads.into_iter().map(|t| t.join().unwrap_or(Err(Error::Panicked("starter")))).collect()
    })
}

/// Waits for a flow's end; its figures count from `warmup_ms` on.
pub(super) fn finish(running: Running, warmup_ms: u64, sample_ms: u64) -> Result<FlowResult> {
    let Running { planned, flow, .. } = running;
    let outcome = flow.finish()?;
    Ok(measured(&planned, &outcome, warmup_ms, sample_ms))
}

fn measured(planned: &Planned, outcome: &FlowOutcome, warmup_ms: u64, sample_ms: u64) -> FlowResult {
    let (Some(first), Some(last)) = (outcome.samples.first(), outcome.samples.last()) else {
        return FlowResult { name: planned.name.clone(), ..FlowResult::default() };
    };
    let warm: Vec<&TcpSample> = outcome.samples.iter().filter(|s| s.at_us >= warmup_ms * 1000).collect();
    let from = warm.first().copied().unwrap_or(first);
    let rtts = warm.iter().map(|s| u64::from(s.info.rtt_us)).filter(|rtt| *rtt > 0).collect();
    let bits = (last.info.bytes_acked - from.info.bytes_acked) * 8;
    FlowResult {
        name: planned.name.clone(),
        background: planned.background.clone(),
        start_ms: first.at_us / 1000,
        end_ms: last.at_us / 1000,
        acked_bytes: last.info.bytes_acked - first.info.bytes_acked,
        throughput_bps: bits * 1_000_000 / (last.at_us - from.at_us).max(1),
        rtt_us: percentiles(rtts),
        min_rtt_us: if last.info.min_rtt_us == u32::MAX { 0 } else { last.info.min_rtt_us.into() },
        lost_pkts: last.info.total_retrans.into(),
        retransmitted_pkts: last.info.total_retrans.into(),
        series: series(&outcome.samples, sample_ms),
        states: Vec::new(),
    }
}

/// Each sample against the one before. One that comes sooner than half of the interval (a flow's last) says little about a
/// rate and is left out.
fn series(samples: &[TcpSample], sample_ms: u64) -> Series {
    let mut series = Series::default();
    let Some(mut before) = samples.first() else { return series };
    for now in samples.iter().skip(1) {
        let elapsed_us = now.at_us.saturating_sub(before.at_us);
        if elapsed_us < sample_ms * 500 {
            continue;
        }
        series.t_ms.push(now.at_us / 1000);
        series.throughput_bps.push(rate_bps(before, now));
        series.srtt_us.push(now.info.rtt_us.into());
        series.cwnd_pkts.push(now.info.snd_cwnd.into());
        series.pacing_bps.push(now.info.pacing_rate.checked_mul(8).unwrap_or(0));
        before = now;
    }
    series
}

/// Payload delivered between two samples, bits per second. Packets count, also those acknowledged selectively: a cumulative
/// ACK that closes a gap is no burst of the network's.
fn rate_bps(before: &TcpSample, now: &TcpSample) -> u64 {
    let packets = now.info.delivered.wrapping_sub(before.info.delivered);
    let bits = u64::from(packets) * u64::from(now.info.snd_mss_bytes) * 8;
    bits * 1_000_000 / now.at_us.saturating_sub(before.at_us).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp_info::TcpInfo;
    use crate::traffic::End;

    #[test]
    fn figures_count_from_the_warm_up_on() {
        let sample = |at_ms: u64, packets: u32, rtt_us: u32| TcpSample {
            at_us: at_ms * 1000,
            info: TcpInfo {
                delivered: packets,
                bytes_acked: u64::from(packets) * 1000 + 1,
                snd_mss_bytes: 1000,
                rtt_us,
                min_rtt_us: 40_000,
                total_retrans: 3,
                pacing_rate: u64::MAX,
                ..TcpInfo::default()
            },
        };
        let samples = vec![
            sample(40, 0, 0),
            sample(1000, 1000, 50_000),
            sample(2000, 2000, 60_000),
            sample(3000, 4000, 80_000),
            sample(3001, 4000, 80_000),
        ];
        let outcome = FlowOutcome { samples, samples_dropped: 0, received_bytes: 0, end: End::Duration };
        let planned = Planned {
            name: "1".into(),
            background: None,
            congestion: "reno".into(),
            datapath: Datapath::Kernel,
            port: 1,
            start_ms: 0,
            stop_ms: 3000,
            steered: false,
        };
        let flow = measured(&planned, &outcome, 2000, 1000);
        assert_eq!((flow.start_ms, flow.end_ms, flow.acked_bytes), (40, 3001, 4_000_000));
        assert_eq!(flow.throughput_bps, 2_000_000 * 8 * 1_000_000 / 1_001_000);
        assert_eq!((flow.rtt_us.p50, flow.rtt_us.p95, flow.min_rtt_us), (80_000, 80_000, 40_000));
        assert_eq!(flow.series.t_ms, [1000, 2000, 3000]);
        assert_eq!(flow.series.throughput_bps, [8_333_333, 8_000_000, 16_000_000]);
        assert_eq!(flow.series.pacing_bps, [0, 0, 0]);
    }
}

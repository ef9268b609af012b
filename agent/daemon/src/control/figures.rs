//! The figures of a flow, each absent where its datapath has not measured it.

use ccplane_contract::FlowStats;
use serde::{Deserialize, Serialize};

/// Transport statistics named as in `tcp_info`; `None` for those that are not measured.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Figures {
    /// Congestion window, packets.
    pub snd_cwnd: Option<u32>,
    /// Slow start threshold, packets; absent before the first one is set.
    pub snd_ssthresh: Option<u32>,
    /// Maximum segment size, bytes.
    pub mss_bytes: Option<u32>,
    /// Smoothed round-trip time, microseconds.
    pub srtt_us: Option<u32>,
    /// Smallest round-trip time, microseconds.
    pub min_rtt_us: Option<u32>,
    /// Pacing rate in force, bytes per second.
    pub pacing_rate: Option<u64>,
    /// Bytes acknowledged since the flow started.
    pub bytes_acked: Option<u64>,
    /// Packets delivered since the flow started.
    pub delivered: Option<u64>,
    /// Packets marked lost since the flow started.
    pub lost: Option<u64>,
    /// Packets in flight, as far as the sender knows.
    pub unacked: Option<u32>,
    /// Saturations and divisions by zero in its programs.
    pub faults: Option<u64>,
    /// Reports that its programs have sent.
    pub reports: u64,
}

impl From<&FlowStats> for Figures {
    /// Before a datapath's first sample a figure of 0 is one that is not known.
    fn from(stats: &FlowStats) -> Figures {
        let is_sampled = stats.sampled_at_us > 0;
        let small = |figure: u32| (is_sampled || figure > 0).then_some(figure);
        let large = |figure: u64| (is_sampled || figure > 0).then_some(figure);
        let t = &stats.transport;
        Figures {
            snd_cwnd: small(t.snd_cwnd),
            snd_ssthresh: t.snd_ssthresh,
            mss_bytes: small(t.mss_bytes),
            srtt_us: small(t.srtt_us),
            min_rtt_us: small(t.min_rtt_us),
            pacing_rate: large(t.pacing_rate),
            bytes_acked: large(t.bytes_acked),
            delivered: large(t.delivered),
            lost: large(t.lost),
            unacked: small(t.unacked),
            faults: large(t.faults),
            reports: t.reports,
        }
    }
}

//! `struct tcp_info` (include/uapi/linux/tcp.h), the fields that describe congestion control.

use std::mem::offset_of;
use std::os::fd::AsFd;

use libc::tcp_info as raw;

use ccplane_contract::TransportStats;

use crate::error::{Context, Result};
use crate::sys;

/// The congestion state of a socket: the kernel's `enum tcp_ca_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CaState {
    /// Nothing bad has been seen.
    #[default]
    Open,
    /// Duplicate ACKs or SACKs have.
    Disorder,
    /// The window is being reduced after a congestion notification.
    Cwr,
    /// The window was reduced, lost packets are sent again.
    Recovery,
    /// A retransmission timer has expired.
    Loss,
}

impl CaState {
    fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::Disorder,
            2 => Self::Cwr,
            3 => Self::Recovery,
            4 => Self::Loss,
            _ => Self::Open,
        }
    }

    /// The kernel's name, lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Disorder => "disorder",
            Self::Cwr => "cwr",
            Self::Recovery => "recovery",
            Self::Loss => "loss",
        }
    }
}

/// A flow's `tcp_info` at a moment. Fields have the kernel's names, without `tcpi_` and with units. A field that the
/// running kernel does not have is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpInfo {
    /// State of the sender's loss recovery.
    pub ca_state: CaState,
    /// Maximum segment size, bytes of payload.
    pub snd_mss_bytes: u32,
    pub snd_cwnd: u32,
    /// Slow start threshold, packets; [`INFINITE_SSTHRESH`](ccplane_contract::INFINITE_SSTHRESH) when none was set.
    pub snd_ssthresh: u32,
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Its mean deviation, microseconds.
    pub rttvar_us: u32,
    /// Smallest round-trip time in the kernel's window (five minutes), microseconds; `u32::MAX` before the first.
    pub min_rtt_us: u32,
    pub unacked: u32,
    /// Packets in flight now marked lost.
    pub lost: u32,
    /// Packets sent again, since the start.
    pub total_retrans: u32,
    /// Pacing rate, bytes per second; `u64::MAX` when the flow is not paced.
    pub pacing_rate: u64,
    /// Payload acknowledged, bytes; counts 1 for the SYN.
    pub bytes_acked: u64,
    /// Most recent delivery rate, payload bytes per second.
    pub delivery_rate: u64,
    /// Packets delivered, since the start.
    pub delivered: u32,
    /// Payload sent again, bytes, since the start.
    pub bytes_retrans: u64,
    /// Time that the receiver's window held the sender back, microseconds.
    pub rwnd_limited_us: u64,
    /// Time that the send buffer held the sender back, microseconds.
    pub sndbuf_limited_us: u64,
}

impl TcpInfo {
    /// Reads a TCP socket's.
    ///
    /// # Errors
    /// `Os` if the socket is none of TCP.
    pub fn of(socket: impl AsFd) -> Result<Self> {
        sys::tcp_info(socket).context("getsockopt TCP_INFO").map(|bytes| Self::parse(&bytes))
    }

    /// From the bytes that the kernel wrote; older kernels write fewer.
    fn parse(bytes: &[u8]) -> Self {
        let u32_at =
            |at: usize| bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        let u64_at = |at: usize| {
            let mut value = [0; 8];
            bytes.get(at..at + 8).map_or(0, |b| {
                value.copy_from_slice(b);
                u64::from_ne_bytes(value)
            })
        };
        Self {
            ca_state: CaState::from_raw(bytes.get(offset_of!(raw, tcpi_ca_state)).copied().unwrap_or(0)),
            snd_mss_bytes: u32_at(offset_of!(raw, tcpi_snd_mss)),
            snd_cwnd: u32_at(offset_of!(raw, tcpi_snd_cwnd)),
            snd_ssthresh: u32_at(offset_of!(raw, tcpi_snd_ssthresh)),
            rtt_us: u32_at(offset_of!(raw, tcpi_rtt)),
            rttvar_us: u32_at(offset_of!(raw, tcpi_rttvar)),
            min_rtt_us: u32_at(offset_of!(raw, tcpi_min_rtt)),
            unacked: u32_at(offset_of!(raw, tcpi_unacked)),
            lost: u32_at(offset_of!(raw, tcpi_lost)),
            total_retrans: u32_at(offset_of!(raw, tcpi_total_retrans)),
            pacing_rate: u64_at(offset_of!(raw, tcpi_pacing_rate)),
            bytes_acked: u64_at(offset_of!(raw, tcpi_bytes_acked)),
            delivery_rate: u64_at(offset_of!(raw, tcpi_delivery_rate)),
            delivered: u32_at(offset_of!(raw, tcpi_delivered)),
            bytes_retrans: u64_at(offset_of!(raw, tcpi_bytes_retrans)),
            rwnd_limited_us: u64_at(offset_of!(raw, tcpi_rwnd_limited)),
            sndbuf_limited_us: u64_at(offset_of!(raw, tcpi_sndbuf_limited)),
        }
    }

    /// The slow start threshold, if one was set.
    #[must_use]
    pub fn ssthresh(&self) -> Option<u32> {
        TransportStats::ssthresh(self.snd_ssthresh.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_the_kernels() {
        // include/uapi/linux/tcp.h of 6.18.
        assert_eq!(offset_of!(raw, tcpi_rtt), 68);
        assert_eq!(offset_of!(raw, tcpi_snd_cwnd), 80);
        assert_eq!(offset_of!(raw, tcpi_bytes_acked), 120);
        assert_eq!(offset_of!(raw, tcpi_delivery_rate), 160);
        assert_eq!(offset_of!(raw, tcpi_bytes_retrans), 208);
    }

    #[test]
    fn a_shorter_struct_leaves_the_rest_zero() {
        let mut bytes = vec![0u8; 104];
        bytes[1] = 3;
        bytes[68..72].copy_from_slice(&40_000u32.to_ne_bytes());
        bytes[80..84].copy_from_slice(&17u32.to_ne_bytes());
        for len in 0..bytes.len() {
            let info = TcpInfo::parse(&bytes[..len]);
            assert_eq!(info.snd_cwnd, if len >= 84 { 17 } else { 0 });
        }
        let info = TcpInfo::parse(&bytes);
        assert_eq!((info.ca_state, info.rtt_us, info.bytes_acked), (CaState::Recovery, 40_000, 0));
    }
}

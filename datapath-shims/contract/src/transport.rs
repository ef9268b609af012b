//! Statistics of a flow's transport, listed once: samples, messages, metrics and the control socket go by this list.

use serde::{Deserialize, Serialize};

/// Linux's slow start threshold before the first one is set (`TCP_INFINITE_SSTHRESH`), packets.
pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// The word of a slow start threshold before the first one is set.
const NO_SSTHRESH: u32 = u32::MAX;

/// A type of statistic, which fits a word.
trait Stat: Copy {
    /// The type that also says that it is not measured.
    type Known;
    /// Whether it has 64 bits in messages, else 32.
    const IS_WIDE: bool;
    fn to_word(self) -> u64;
    fn from_word(word: u64) -> Self;
    /// The value, unless it is 0 for want of a sample.
    fn known(self, is_sampled: bool) -> Self::Known;
}

macro_rules! integer_stat {
    ($ty:ty, $is_wide:literal) => {
        impl Stat for $ty {
            type Known = Option<$ty>;
            const IS_WIDE: bool = $is_wide;
            fn to_word(self) -> u64 {
                self.into()
            }
            fn from_word(word: u64) -> $ty {
                word as $ty
            }
            fn known(self, is_sampled: bool) -> Option<$ty> {
                (is_sampled || self > 0).then_some(self)
            }
        }
    };
}
integer_stat!(u32, false);
integer_stat!(u64, true);

impl Stat for Option<u32> {
    type Known = Option<u32>;
    const IS_WIDE: bool = false;
    fn to_word(self) -> u64 {
        self.unwrap_or(NO_SSTHRESH).into()
    }
    fn from_word(word: u64) -> Option<u32> {
        Some(word as u32).filter(|packets| *packets != NO_SSTHRESH)
    }
    fn known(self, _: bool) -> Option<u32> {
        self
    }
}

/// Describes a statistic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatInfo {
    pub name: &'static str,
    /// Whether it has 64 bits in messages, else 32.
    pub is_wide: bool,
    /// Name and help of the metric that sums it over flows, if it only grows.
    pub counter: Option<(&'static str, &'static str)>,
}

/// The type of a statistic that may not be measured.
macro_rules! known {
    (Option<$ty:ident>) => { Option<$ty> };
    ($ty:ident) => { Option<$ty> };
}

macro_rules! transport_stats {
    (@counter) => { None };
    (@counter $metric:literal $help:literal) => { Some(($metric, $help)) };
    ($($(#[doc = $doc:literal])+ $name:ident: $ty:ident $(<$arg:ident>)? $(, counter $metric:literal $help:literal)?;)+) => {
        /// Transport statistics of a flow, named as in `tcp_info`; shared by samples, metrics, the control socket and algorithms.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
        pub struct TransportStats {
            $($(#[doc = $doc])+ pub $name: $ty $(<$arg>)?,)+
        }

        /// Transport statistics of a flow; `None` for those that its datapath has not measured.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
        pub struct KnownStats {
            $($(#[doc = $doc])+ pub $name: known!($ty $(<$arg>)?),)+
        }

        impl TransportStats {
            /// Every statistic, in the order of messages.
            pub const LIST: &[StatInfo] = &[$(StatInfo {
                name: stringify!($name),
                is_wide: <$ty $(<$arg>)? as Stat>::IS_WIDE,
                counter: transport_stats!(@counter $($metric $help)?),
            },)+];

            /// Returns the statistics as words, in the order of [`TransportStats::LIST`].
            pub fn to_words(&self) -> [u64; TransportStats::COUNT] {
                [$(self.$name.to_word(),)+]
            }

            /// Returns the statistics that were such words.
            pub fn from_words(words: [u64; TransportStats::COUNT]) -> TransportStats {
                let [$($name,)+] = words;
                TransportStats { $($name: Stat::from_word($name),)+ }
            }

            /// Before a datapath's first sample a statistic of 0 is one that is not known.
            pub fn known(&self, is_sampled: bool) -> KnownStats {
                KnownStats { $($name: self.$name.known(is_sampled),)+ }
            }
        }
    };
}

transport_stats! {
    /// Congestion window, packets.
    snd_cwnd: u32;
    /// Slow start threshold, packets; `None` before the first one is set.
    snd_ssthresh: Option<u32>;
    /// Maximum segment size, bytes.
    mss_bytes: u32;
    /// Smoothed round-trip time, microseconds; 0 before the first sample.
    srtt_us: u32;
    /// Smallest round-trip time, microseconds; 0 before the first sample.
    min_rtt_us: u32;
    /// Pacing rate in force, bytes per second.
    pacing_rate: u64;
    /// Bytes acknowledged since the flow started.
    bytes_acked: u64, counter "acked_bytes" "Acknowledged, as last sampled";
    /// Packets delivered since the flow started.
    delivered: u64, counter "packets_delivered" "Packets delivered, as last sampled";
    /// Packets marked lost since the flow started.
    lost: u64, counter "packets_lost" "Packets marked lost, as last sampled";
    /// Packets in flight, as far as the sender knows.
    unacked: u32;
    /// Saturations and divisions by zero in its programs.
    faults: u64, counter "faults" "Saturations and divisions by zero in programs";
    /// Reports that its programs have sent.
    reports: u64;
}

impl TransportStats {
    /// The number of statistics.
    pub const COUNT: usize = TransportStats::LIST.len();

    /// Returns a slow start threshold, packets; `None` where it is infinite, because none was set.
    pub fn ssthresh(packets: u64) -> Option<u32> {
        u32::try_from(packets).ok().filter(|packets| *packets < INFINITE_SSTHRESH)
    }

    /// Returns the statistics of a flow that has sent nothing, with its window in packets of `mss_bytes`.
    pub fn new(mss_bytes: u32, snd_cwnd: u32) -> TransportStats {
        TransportStats { mss_bytes, snd_cwnd, ..TransportStats::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_every_statistic() {
        let mut words = [0; TransportStats::COUNT];
        words.iter_mut().zip(1..).for_each(|(word, n)| *word = n);
        let stats = TransportStats::from_words(words);
        assert_eq!((stats.snd_cwnd, stats.snd_ssthresh, stats.reports), (1, Some(2), words.len() as u64));
        assert_eq!(stats.to_words(), words);
        let unset = TransportStats { snd_ssthresh: None, ..stats };
        assert_eq!(TransportStats::from_words(unset.to_words()), unset);
    }

    #[test]
    fn zero_is_unknown_before_the_first_sample() {
        let stats = TransportStats::new(1448, 10);
        let known = stats.known(false);
        assert_eq!((known.mss_bytes, known.snd_cwnd, known.lost), (Some(1448), Some(10), None));
        assert_eq!(stats.known(true).lost, Some(0));
    }
}

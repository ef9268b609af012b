//! A plan as its file spells it: every key, its type and its range. What no single value shows is checked in `check`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU64;

use ccplane_netsim::MAX_ACK_EVERY;
use ccplane_results::{Datapath, Metric};
use serde::de::{Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, de};

use super::Overrides;
use super::number::{Ppm, Scaled, Whole};

/// Milliseconds, written in seconds: up to ten hours.
pub(super) type Seconds<const MIN: u64> = Scaled<1000, MIN, 36_000_000>;
/// Microseconds, written in milliseconds: up to the emulator's ten seconds.
pub(super) type Millis = Scaled<1000, 0, 10_000_000>;
/// Bits per second, written in megabits: the emulator's range.
pub(super) type Mbit = Scaled<1_000_000, 1_000, 10_000_000_000>;
/// Microseconds, written in milliseconds: CoDel's and PIE's.
pub(super) type QueueTime = Scaled<1000, 1, 60_000_000>;
/// A probability, in millionths.
pub(super) type Share = Ppm<0, 1_000_000>;

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanSource {
    pub title: String,
    #[serde(default)]
    pub about: String,
    pub duration_s: Seconds<100>,
    pub warmup_s: Option<Seconds<0>>,
    pub sample_ms: Option<Whole<10, 60_000>>,
    pub repeats: Option<Whole<1, 1000>>,
    #[serde(default)]
    pub at_once: bool,
    pub seed: Option<Whole<0, { i64::MAX as u64 }>>,
    #[serde(default)]
    pub link: Vec<LinkSource>,
    pub random: Option<RandomSource>,
    pub traffic: Option<TrafficSource>,
    #[serde(default)]
    pub simulator: SimulatorSource,
    pub algorithm: Vec<AlgorithmSource>,
    #[serde(default)]
    pub background: Vec<BackgroundSource>,
    #[serde(default)]
    pub compare: Vec<CompareSource>,
    #[serde(default)]
    pub paper: Vec<PaperSource>,
}

impl PlanSource {
    pub(super) fn override_by(&mut self, overrides: Overrides) {
        if let Some(repeats) = overrides.repeats {
            self.repeats = Some(Whole::nearest(repeats.into()));
        }
        let from = self.duration_s.get();
        let to = overrides.duration_ms.unwrap_or(from).min(overrides.at_most_ms.unwrap_or(u64::MAX));
        if from == to {
            return;
        }
        let stretch = |time: &mut Option<Seconds<0>>| *time = time.map(|t| t.stretched(from, to));
        self.duration_s = Seconds::nearest(to);
        stretch(&mut self.warmup_s);
        if let Some(traffic) = &mut self.traffic {
            stretch(&mut traffic.start_s);
            stretch(&mut traffic.stagger_s);
        }
        for background in &mut self.background {
            stretch(&mut background.start_s);
            stretch(&mut background.stop_s);
        }
        for change in self.link.iter_mut().flat_map(|link| &mut link.change) {
            change.at_s = change.at_s.stretched(from, to);
        }
    }
}

/// Links that change at random.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct RandomSource {
    pub seed: Whole<0, { u32::MAX as u64 }>,
    pub links: Whole<1, { super::MAX_SCENARIOS as u64 }>,
    pub changes: Whole<0, { super::MAX_CHANGES as u64 }>,
}

#[derive(Clone, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkSource {
    pub name: Option<String>,
    pub rate_mbit: Option<Mbit>,
    pub trace: Option<String>,
    pub medium: Option<MediumName>,
    pub return_trace: Option<String>,
    pub return_rate_mbit: Option<Mbit>,
    pub return_queue: Option<QueueName>,
    pub return_queue_packets: Option<Whole<1, 1_048_576>>,
    pub return_loss: Option<Share>,
    pub delay_ms: Option<Millis>,
    pub queue: Option<QueueName>,
    pub queue_packets: Option<Whole<1, 1_048_576>>,
    pub queue_bytes: Option<Whole<1, { 1 << 40 }>>,
    pub queue_bdp: Option<Ppm<10_000, 100_000_000>>,
    pub queue_ecn: Option<bool>,
    pub codel_target_ms: Option<QueueTime>,
    pub codel_interval_ms: Option<QueueTime>,
    pub pie_target_ms: Option<QueueTime>,
    pub pie_burst_ms: Option<QueueTime>,
    pub loss: Option<Share>,
    pub burst_loss: Option<Share>,
    pub burst_packets: Option<Whole<1, 1_000>>,
    pub jitter_ms: Option<Millis>,
    pub reorder: Option<Share>,
    pub reorder_ms: Option<Millis>,
    pub duplicate: Option<Share>,
    pub policer_mbit: Option<Mbit>,
    pub policer_bytes: Option<Whole<1_514, 1_073_741_824>>,
    pub flows: Option<Whole<1, { super::MAX_FLOWS as u64 }>>,
    #[serde(default)]
    pub change: Vec<ChangeSource>,
}

/// A change of a link during a run.
#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeSource {
    pub at_s: Seconds<1>,
    pub rate_mbit: Option<Mbit>,
    pub delay_ms: Option<Millis>,
    pub loss: Option<Share>,
}

/// A link that is not emulated.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MediumName {
    Veth,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum QueueName {
    Infinite,
    Droptail,
    Drophead,
    Codel,
    Pie,
}

/// Settings of the simulator that the kernel decides by itself.
#[derive(Clone, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct SimulatorSource {
    pub agent_latency_us: Option<Whole<0, 60_000_000>>,
    pub min_rto_ms: Option<Scaled<1000, 1, 60_000_000>>,
    pub emulated: Option<bool>,
}

#[derive(Clone, Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct TrafficSource {
    pub kind: Option<KindName>,
    pub flows: Option<Whole<1, { super::MAX_FLOWS as u64 }>>,
    pub start_s: Option<Seconds<0>>,
    pub stagger_s: Option<Seconds<0>>,
    #[serde(default)]
    pub extra_delay_ms: Vec<Millis>,
    #[serde(default)]
    pub extra_jitter_ms: Vec<Millis>,
    #[serde(default)]
    pub aggregate_acks_ms: Vec<Millis>,
    pub ack_every: Option<Whole<1, { MAX_ACK_EVERY as u64 }>>,
    pub conceal_losses: Option<bool>,
    pub ecn: Option<bool>,
    pub tool: Option<ToolName>,
    pub distribution: Option<String>,
    pub load: Option<Ppm<1_000, 2_000_000>>,
    pub senders: Option<Whole<1, { super::MAX_FLOWS as u64 }>>,
    pub bytes: Option<Whole<1, { 1 << 32 }>>,
    pub every_ms: Option<Scaled<1000, 100, 60_000_000>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KindName {
    Bulk,
    ShortFlows,
    Incast,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToolName {
    Native,
    Iperf3,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct AlgorithmSource {
    pub name: Option<String>,
    pub algorithm: String,
    pub datapath: OneOrMore<Datapath>,
    pub placement: Option<PlacementName>,
    #[serde(default)]
    pub parameters: BTreeMap<String, i64>,
    #[serde(default)]
    pub learning: bool,
}

/// The places where an algorithm's decisions are made.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "lowercase")]
pub(super) enum PlacementName {
    Fold,
    Agent,
    Snapshot,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BackgroundKind {
    Bulk,
    Udp,
    ShortFlows,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct BackgroundSource {
    pub links: Option<Vec<String>>,
    pub kind: Option<BackgroundKind>,
    pub algorithm: Option<String>,
    pub rate_mbit: Option<Mbit>,
    pub distribution: Option<String>,
    pub load: Option<Ppm<1_000, 2_000_000>>,
    pub on_ms: Option<Scaled<1000, 1_000, 60_000_000>>,
    pub off_ms: Option<Scaled<1000, 1_000, 60_000_000>>,
    pub datapath: Option<Datapath>,
    #[serde(default)]
    pub parameters: BTreeMap<String, i64>,
    pub flows: Option<Whole<1, { super::MAX_FLOWS as u64 }>>,
    pub start_s: Option<Seconds<0>>,
    pub stop_s: Option<Seconds<0>>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct CompareSource {
    pub metric: OneOrMore<Metric>,
    pub of: Option<String>,
    pub against: Option<String>,
    pub constant: Option<NonZeroU64>,
    pub across: Option<Datapath>,
    pub scenario: Option<String>,
    #[serde(default)]
    pub together: bool,
    pub within: Option<Ppm<0, 100_000_000>>,
    pub at_most: Option<Ppm<0, 1_000_000_000>>,
    pub at_least: Option<Ppm<0, 1_000_000_000>>,
    pub paper: Option<String>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperSource {
    pub source: String,
    pub says: String,
}

/// A word, or a list of them.
#[derive(Clone, Debug)]
pub(super) struct OneOrMore<T>(Vec<T>);

impl<T> OneOrMore<T> {
    /// Returns the values, of which there is at least one.
    pub(super) fn all(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Words(PhantomData))
    }
}

struct Words<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Words<T> {
    type Value = OneOrMore<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word or a list of words")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<OneOrMore<T>, E> {
        T::deserialize(word.into_deserializer()).map(|one| OneOrMore(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut words: A) -> Result<OneOrMore<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(word) = words.next_element()? {
            all.push(word);
        }
        if all.is_empty() { Err(A::Error::custom("the list is empty")) } else { Ok(OneOrMore(all)) }
    }
}

//! The records: qlog's own events where it has one (draft-ietf-quic-qlog-quic-events, `recovery:*`), ours under
//! `ccplane:*`. Sizes are bytes, times milliseconds, rates bits per second, as qlog has them.

use crate::mode::ModeName;
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

/// Serialisation of a qlog file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// RFC 7464: each record between a record separator and a line feed.
    JsonSeq,
    /// A record a line.
    Ndjson,
}

impl Format {
    /// Returns a record in the form that it has in the file.
    pub fn frame(self, record: &str) -> String {
        match self {
            Format::JsonSeq => format!("\u{1e}{record}\n"),
            Format::Ndjson => format!("{record}\n"),
        }
    }
}

/// The first record (draft-ietf-quic-qlog-main-schema, "QlogFileSeq"). `reference_ms`: when the events' times count from,
/// milliseconds since 1970; `protocol`: that of its flows.
pub fn header(format: Format, reference_ms: f64, protocol: &str) -> Value {
    json!({
        "qlog_version": "0.3",
        "qlog_format": match format { Format::JsonSeq => "JSON-SEQ", Format::Ndjson => "NDJSON" },
        "title": "ccplane: flows as the agent sees them",
        "trace": {
            "vantage_point": { "name": "ccplane", "type": "server" },
            "common_fields": { "time_format": "relative", "reference_time": reference_ms, "protocol_type": [protocol] },
            "event_schemas": ["urn:ietf:params:qlog:events:quic", "urn:ccplane:qlog:events:1"],
        },
    })
}

/// Name and uid of a program.
#[derive(PartialEq, Eq, Debug)]
pub struct Program {
    pub name: String,
    /// Report registers, in report order.
    pub reports: Vec<String>,
    /// All registers, in order.
    pub registers: Vec<String>,
}

/// State of a flow for `recovery:congestion_state_updated`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CongestionState {
    SlowStart,
    CongestionAvoidance,
    Recovery,
}

impl CongestionState {
    fn name(self) -> &'static str {
        match self {
            CongestionState::SlowStart => "slow_start",
            CongestionState::CongestionAvoidance => "congestion_avoidance",
            CongestionState::Recovery => "recovery",
        }
    }
}

/// Figures of a flow for `recovery:metrics_updated`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metrics {
    pub cwnd_bytes: u64,
    pub in_flight_bytes: u64,
    pub in_flight_packets: u32,
    pub srtt_us: u32,
    pub min_rtt_us: u32,
    pub ssthresh_bytes: Option<u64>,
    pub pacing_bytes_per_s: u64,
}

/// Decisions of a policy since the last record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decided {
    pub slot: u8,
    /// The deployment; none if the policy had no answer.
    pub snapshot: Option<u32>,
    pub action_q16: i64,
    /// Pacing rate that came of it, bytes per second.
    pub rate: u64,
}

/// Event of a flow.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    FlowStarted { local: SocketAddr, remote: SocketAddr, mss_bytes: u32, algorithm: &'static str },
    ProgramChanged { program: Arc<Program>, fields: Vec<(String, i64)> },
    FieldsUpdated { fields: Vec<(String, i64)> },
    Released,
    Report { program: Arc<Program>, seq: u32, at_us: u64, values: Vec<i64> },
    ModeChanged { old: ModeName, new: ModeName },
    Decided(Decided),
    MetricsUpdated(Metrics),
    StateUpdated { old: Option<CongestionState>, new: CongestionState },
    FlowEnded,
}

/// An event with its flow and time.
#[derive(Clone, PartialEq, Debug)]
pub struct EventRecord {
    /// The agent's clock, microseconds.
    pub at_us: u64,
    pub datapath: &'static str,
    pub flow: u64,
    pub event: Event,
}

fn named<'a>(values: impl IntoIterator<Item = (&'a String, &'a i64)>) -> Value {
    values.into_iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>().into()
}

fn ms(us: u32) -> f64 {
    f64::from(us) / 1000.0
}

impl EventRecord {
    /// Writes the record as a line; times count from `since_us`.
    pub fn line(&self, since_us: u64) -> String {
        let (name, data) = self.event.named();
        line(self.at_us, since_us, Some((self.datapath, self.flow)), name, data)
    }
}

/// Says that records were dropped.
pub fn dropped(count: u64, at_us: u64, since_us: u64) -> String {
    line(at_us, since_us, None, "ccplane:events_dropped", json!({ "count": count }))
}

fn line(at_us: u64, since_us: u64, of: Option<(&str, u64)>, name: &str, data: Value) -> String {
    let mut record = Map::new();
    record.insert("time".into(), json!(at_us.saturating_sub(since_us) as f64 / 1000.0));
    record.insert("name".into(), json!(name));
    if let Some((datapath, flow)) = of {
        record.insert("group_id".into(), json!(format!("{datapath}/{flow}")));
    }
    record.insert("data".into(), data);
    Value::Object(record).to_string()
}

impl Event {
    fn named(&self) -> (&'static str, Value) {
        match self {
            Event::FlowStarted { local, remote, mss_bytes, algorithm } => (
                "ccplane:flow_started",
                json!({ "local": local, "remote": remote, "mss": mss_bytes, "algorithm": algorithm }),
            ),
            Event::ProgramChanged { program, fields } => (
                "ccplane:program_changed",
                json!({ "program": program.name, "fields": named(fields.iter().map(|(n, v)| (n, v))) }),
            ),
            Event::FieldsUpdated { fields } => {
                ("ccplane:fields_updated", json!({ "fields": named(fields.iter().map(|(n, v)| (n, v))) }))
            }
            Event::Released => ("ccplane:released", json!({})),
            Event::Report { program, seq, at_us, values } => (
                "ccplane:report",
                json!({
                    "program": program.name,
                    "seq": seq,
                    "datapath_time_us": at_us,
                    "registers": named(program.reports.iter().zip(values)),
                }),
            ),
            Event::ModeChanged { old, new } => ("ccplane:mode_changed", json!({ "old": old, "new": new })),
            Event::Decided(d) => (
                "ccplane:policy_decided",
                json!({
                    "slot": d.slot,
                    "snapshot": d.snapshot,
                    "action": d.action_q16 as f64 / 65_536.0,
                    "pacing_rate": d.rate.saturating_mul(8),
                }),
            ),
            Event::MetricsUpdated(m) => ("recovery:metrics_updated", m.data()),
            Event::StateUpdated { old, new } => {
                let mut data = Map::new();
                if let Some(old) = old {
                    data.insert("old".into(), json!(old.name()));
                }
                data.insert("new".into(), json!(new.name()));
                ("recovery:congestion_state_updated", data.into())
            }
            Event::FlowEnded => ("ccplane:flow_ended", json!({})),
        }
    }
}

impl Metrics {
    fn data(&self) -> Value {
        let mut data = Map::new();
        data.insert("congestion_window".into(), json!(self.cwnd_bytes));
        data.insert("bytes_in_flight".into(), json!(self.in_flight_bytes));
        data.insert("packets_in_flight".into(), json!(self.in_flight_packets));
        if self.srtt_us > 0 {
            data.insert("smoothed_rtt".into(), json!(ms(self.srtt_us)));
            data.insert("min_rtt".into(), json!(ms(self.min_rtt_us)));
        }
        if let Some(ssthresh) = self.ssthresh_bytes {
            data.insert("ssthresh".into(), json!(ssthresh));
        }
        if self.pacing_bytes_per_s > 0 {
            data.insert("pacing_rate".into(), json!(self.pacing_bytes_per_s.saturating_mul(8)));
        }
        data.into()
    }
}

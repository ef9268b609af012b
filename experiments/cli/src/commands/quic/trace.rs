//! A qlog trace of this command's flows, written as they are steered.

use ccplane_agent::control::ModeName;
use ccplane_agent::failure::Failure;
use ccplane_agent::qlog::{
    Bounded, Decided, Event, EventRecord, Format, MAX_TRACE_BYTES, Metrics, Program, header,
};
use ccplane_channel::clock;
use ccplane_contract::FlowId;
use ccplane_quic::{Observer, QuicFlowState};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of its flows' datapath.
const DATAPATH: &str = "quic";
/// Least time between two records of a flow's figures, microseconds; decisions and changes of mode are told at once.
const METRICS_EVERY_US: u64 = 1000;

/// Flows that a trace remembers; of more, it forgets the one that it has told of least recently.
const MAX_FLOWS: usize = 4096;

/// A trace that has reached its bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "the trace has {MAX_TRACE_BYTES} bytes, the most that one file gets: {left_out} later records are not in it"
)]
struct Incomplete {
    left_out: u64,
}

/// A qlog file of bounded size that flows are traced to.
pub(super) struct Trace {
    out: Bounded<BufWriter<File>>,
    algorithm: &'static str,
    since_us: u64,
    flows: BTreeMap<FlowId, (u64, QuicFlowState)>,
    failed: Option<io::Error>,
}

impl Trace {
    /// Begins a file; `algorithm` is the name that flows get in it.
    pub(super) fn create(path: &Path, algorithm: &'static str) -> io::Result<Arc<Mutex<Trace>>> {
        let (since_us, now) = (clock::now_us(), SystemTime::now());
        let reference_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0;
        let mut out = Bounded::new(BufWriter::new(File::create(path)?), MAX_TRACE_BYTES);
        let first = header(Format::JsonSeq, reference_ms, "QUIC").to_string();
        out.put(Format::JsonSeq.frame(&first).as_bytes())?;
        Ok(Arc::new(Mutex::new(Trace { out, algorithm, since_us, flows: BTreeMap::new(), failed: None })))
    }

    /// An observer of flows that writes to the file.
    pub(super) fn observer(trace: &Arc<Mutex<Trace>>) -> Observer {
        let trace = Arc::clone(trace);
        Arc::new(move |seen: &QuicFlowState| trace.lock().unwrap_or_else(PoisonError::into_inner).saw(seen))
    }

    /// Writes the rest; fails if any record was not written.
    pub(super) fn finish(trace: &Arc<Mutex<Trace>>) -> Result<(), Failure> {
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        match trace.failed.take() {
            Some(e) => Err(e.into()),
            None => {
                trace.out.flush()?;
                match trace.out.left_out() {
                    0 => Ok(()),
                    left_out => Err(Failure::runtime(Incomplete { left_out })),
                }
            }
        }
    }

    fn put(&mut self, at_us: u64, flow: FlowId, event: Event) {
        let record = EventRecord { at_us, datapath: DATAPATH, flow: flow.0, event };
        let text = Format::JsonSeq.frame(&record.line(self.since_us));
        if let Err(e) = self.out.put(text.as_bytes()) {
            self.failed.get_or_insert(e);
        }
    }

    /// Forgets a flow where as many are known as may be.
    fn make_room(&mut self) {
        if self.flows.len() < MAX_FLOWS {
            return;
        }
        let oldest = self.flows.iter().min_by_key(|(_, (told_us, _))| *told_us).map(|(flow, _)| *flow);
        oldest.map(|flow| self.flows.remove(&flow));
    }

    fn saw(&mut self, seen: &QuicFlowState) {
        let now_us = clock::now_us();
        let before = self.flows.get(&seen.flow).copied();
        if before.is_none() {
            self.make_room();
            let unknown = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            let (local, remote) = seen.addresses.unwrap_or((unknown, unknown));
            let mss_bytes = seen.mss_bytes;
            let algorithm = self.algorithm;
            self.put(now_us, seen.flow, Event::FlowStarted { local, remote, mss_bytes, algorithm });
        }
        let last = before.map(|(_, last)| last);
        let is_new = |of: fn(&QuicFlowState) -> u64| last.as_ref().is_none_or(|last| of(last) != of(seen));
        if is_new(|s| s.decided.program.map_or(0, |uid| u64::from(uid.0)))
            && let Some(uid) = seen.decided.program
        {
            let (reports, registers) = Default::default();
            let program = Arc::new(Program { name: format!("#{}", uid.0), reports, registers });
            self.put(now_us, seen.flow, Event::ProgramChanged { program, fields: Vec::new() });
        }
        if let Some(last) = last.filter(|last| last.decided.mode != seen.decided.mode) {
            let (old, new) = (ModeName::from(last.decided.mode), ModeName::from(seen.decided.mode));
            self.put(now_us, seen.flow, Event::ModeChanged { old, new });
        }
        let decided = is_new(|s| s.decided.decisions.into());
        if decided && let Some(slot) = seen.decided.slot {
            let snapshot = seen.decided.snapshot.map(|uid| uid.0);
            let (action_q16, rate) = (seen.decided.action_q16, seen.steer.rate);
            self.put(now_us, seen.flow, Event::Decided(Decided { slot, snapshot, action_q16, rate }));
        }
        let told_us = before.map_or(0, |(at_us, _)| at_us);
        if decided || now_us - told_us >= METRICS_EVERY_US {
            let sampled = &seen.sampled;
            let metrics = Metrics {
                cwnd_bytes: seen.steer.cwnd_bytes,
                in_flight_bytes: seen.in_flight_bytes,
                in_flight_packets: sampled.unacked,
                srtt_us: sampled.srtt_us,
                min_rtt_us: sampled.min_rtt_us,
                ssthresh_bytes: None,
                pacing_bytes_per_s: seen.steer.rate,
            };
            self.put(now_us, seen.flow, Event::MetricsUpdated(metrics));
            self.flows.insert(seen.flow, (now_us, *seen));
        } else {
            self.flows.insert(seen.flow, (told_us, *seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_contract::Mode;
    use ccplane_engine::{LastDecision, Sampled, SendLimits};
    use std::time::Instant;

    fn seen(flow: u64) -> QuicFlowState {
        QuicFlowState {
            at: Instant::now(),
            flow: FlowId(flow),
            steer: SendLimits { cwnd_bytes: 14_480, rate: 0 },
            decided: LastDecision {
                mode: Mode::NativeNoProgram,
                program: None,
                slot: None,
                snapshot: None,
                action_q16: 0,
                decisions: 0,
            },
            addresses: None,
            mss_bytes: 1448,
            sampled: Sampled::default(),
            latest_rtt_us: 0,
            in_flight_bytes: 0,
        }
    }

    /// A trace of weeks has a file of bounded size, remembers a bounded number of flows, and reports the missing records.
    #[test]
    fn neither_the_file_nor_the_memory_of_a_trace_grows_for_ever() {
        const BYTES: u64 = 100_000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.qlog");
        let trace = Trace::create(&path, "reno").unwrap();
        let records = {
            let mut trace = trace.lock().unwrap();
            trace.out = Bounded::new(BufWriter::new(File::create(&path).unwrap()), BYTES);
            (0..MAX_FLOWS as u64 + 1000).for_each(|flow| trace.saw(&seen(flow)));
            assert_eq!(trace.flows.len(), MAX_FLOWS);
            assert!(trace.flows.contains_key(&FlowId(MAX_FLOWS as u64 + 999)), "the latest is known");
            trace.out.left_out()
        };
        let said = Trace::finish(&trace).unwrap_err().message();
        assert!(records > 0 && said.contains(&format!("{records} later records")), "{said}");
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(written.len() as u64 <= BYTES && written.ends_with("}\n"), "whole records");
    }
}

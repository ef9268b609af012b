//! A qlog trace of this command's flows, written as they are steered.

use crate::clock;
use crate::control::ModeName;
use crate::failure::Failure;
use crate::qlog::{Decided, Event, Format, Metrics, Program, Record, header};
use ccplane_contract::FlowId;
use ccplane_quic::{Observer, Seen};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The kind of its flows' datapath.
const DATAPATH: &str = "quic";
/// Least time between two records of a flow's figures, microseconds; decisions and changes of mode are told at once.
const METRICS_EVERY_US: u64 = 1000;

/// The file.
pub(super) struct Trace {
    out: BufWriter<File>,
    algorithm: &'static str,
    since_us: u64,
    flows: BTreeMap<FlowId, (u64, Seen)>,
    failed: Option<io::Error>,
}

impl Trace {
    /// Begins a file; `algorithm` is what flows are said to run.
    pub(super) fn create(path: &Path, algorithm: &'static str) -> io::Result<Arc<Mutex<Trace>>> {
        let (since_us, now) = (clock::now_us(), SystemTime::now());
        let reference_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0;
        let mut out = BufWriter::new(File::create(path)?);
        let first = header(Format::JsonSeq, reference_ms, "QUIC").to_string();
        out.write_all(Format::JsonSeq.frame(&first).as_bytes())?;
        Ok(Arc::new(Mutex::new(Trace { out, algorithm, since_us, flows: BTreeMap::new(), failed: None })))
    }

    /// Writes to it.
    pub(super) fn observer(trace: &Arc<Mutex<Trace>>) -> Observer {
        let trace = Arc::clone(trace);
        Arc::new(move |seen: &Seen| trace.lock().unwrap_or_else(PoisonError::into_inner).saw(seen))
    }

    /// All of it is written, or was not.
    pub(super) fn finish(trace: &Arc<Mutex<Trace>>) -> Result<(), Failure> {
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        match trace.failed.take() {
            Some(e) => Err(e.into()),
            None => Ok(trace.out.flush()?),
        }
    }

    fn put(&mut self, at_us: u64, flow: FlowId, event: Event) {
        let record = Record { at_us, datapath: DATAPATH, flow: flow.0, event };
        let text = Format::JsonSeq.frame(&record.line(self.since_us));
        if let Err(e) = self.out.write_all(text.as_bytes()) {
            self.failed.get_or_insert(e);
        }
    }

    fn saw(&mut self, seen: &Seen) {
        let now_us = clock::now_us();
        let before = self.flows.get(&seen.flow).copied();
        if before.is_none() {
            let unknown = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
            let (local, remote) = seen.addresses.unwrap_or((unknown, unknown));
            let mss_bytes = seen.mss_bytes;
            let algorithm = self.algorithm;
            self.put(now_us, seen.flow, Event::FlowStarted { local, remote, mss_bytes, algorithm });
        }
        let last = before.map(|(_, last)| last);
        let is_new = |of: fn(&Seen) -> u64| last.as_ref().is_none_or(|last| of(last) != of(seen));
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

//! Decisions on snapshots for people and programs: a line in the log, a JSON object in a file.

use crate::control::DecisionRecord;
use crate::privileges;
use ccplane_core::Decision;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use tracing::{info, warn};

/// The version of a line in the file. Fields may be added to a version; none changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;
/// Decisions that wait to be written; further ones are only logged.
const MAX_WAITING: usize = 256;

/// The queue to which decisions go.
#[derive(Clone, Default)]
pub(crate) struct DecisionLog(Option<SyncSender<DecisionRecord>>);

impl DecisionLog {
    /// Appends to the file at `path`, if there is to be one, on a thread of its own: no loop waits for a disk.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn open(path: Option<&Path>) -> io::Result<DecisionLog> {
        let Some(path) = path else { return Ok(DecisionLog(None)) };
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let (to, from) = sync_channel(MAX_WAITING);
        let run = move || {
            privileges::keep(privileges::NOTHING);
            write(file, &from);
        };
        std::thread::Builder::new().name("ccp-decisions".to_owned()).spawn(run)?;
        Ok(DecisionLog(Some(to)))
    }

    /// Writes a decision down. `datapath`: its kind.
    pub(crate) fn log_decision(&self, datapath: &str, decision: &Decision) {
        let record = DecisionRecord::new(datapath, decision);
        info!(
            datapath,
            algorithm = decision.algorithm,
            slot = decision.slot,
            snapshot = record.snapshot.as_deref().map(|hash| hash.get(..12).unwrap_or(hash)),
            uid = record.uid,
            origin = decision.origin.name(),
            converged = record.evidence.map(|e| e.converged),
            stability = record.evidence.map(|e| e.stability),
            fidelity_min = record.evidence.map(|e| e.fidelity_min),
            fidelity_mean = record.evidence.map(|e| e.fidelity_mean),
            safe = record.evidence.map(|e| e.safe),
            quantisation_error = record.evidence.map(|e| e.quantisation_error),
            gain = record.evidence.and_then(|e| e.gain),
            states = record.evidence.map(|e| e.states),
            canary = record.comparison.map(|c| c.canary_mean),
            active = record.comparison.map(|c| c.active_mean),
            pairs = record.comparison.map(|c| c.pairs),
            flows = record.comparison.map(|c| c.flows),
            controls = record.comparison.map(|c| c.controls),
            difference = record.comparison.map(|c| c.difference),
            t = record.comparison.and_then(|c| c.t),
            uncertainty = record.comparison.map(|c| c.uncertainty),
            margin = record.comparison.map(|c| c.margin),
            "{}",
            decision.verdict
        );
        if let Some(to) = &self.0
            && to.try_send(record).is_err()
        {
            warn!("a decision is not written to the decision log: the disk is slow");
        }
    }
}

/// A decision as a line of the file.
#[derive(Serialize)]
struct Line<'a> {
    schema: u32,
    #[serde(flatten)]
    decision: &'a DecisionRecord,
}

fn write(mut file: File, from: &Receiver<DecisionRecord>) {
    while let Ok(record) = from.recv() {
        if let Err(error) = append(&mut file, &record) {
            warn!(%error, "write the decision log");
        }
    }
}

/// Appends a record as a line. Of one that does not fit on the disk nothing stays, so that the next one begins a line.
fn append(file: &mut File, record: &DecisionRecord) -> io::Result<()> {
    let line = Line { schema: SCHEMA_VERSION, decision: record };
    let line = serde_json::to_string(&line).map_err(io::Error::from)? + "\n";
    let before = file.metadata()?.len();
    file.write_all(line.as_bytes()).or_else(|error| file.set_len(before).and(Err(error)))
}

#[cfg(test)]
mod tests {
    use ccplane_core::Evidence;

    #[test]
    fn each_measure_of_the_evidence_is_in_the_log() {
        let evidence = Evidence {
            converged: true,
            stability: 0.0,
            fidelity_min: 0.0,
            fidelity_mean: 0.0,
            safe: true,
            quantisation_error: 0.0,
            gain: None,
            states: 1,
        };
        let measures = serde_json::to_value(evidence).unwrap();
        let logged =
            |name: &str| include_str!("decisions.rs").contains(&format!("{name} = record.evidence."));
        let left_out = measures.as_object().unwrap().keys().filter(|name| !logged(name));
        assert_eq!(left_out.collect::<Vec<_>>(), [""; 0]);
    }
}

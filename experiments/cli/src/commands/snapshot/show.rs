//! A snapshot as text for people, and as JSON for programs.

use super::{SECONDS_PER_DAY, now_s};
use crate::commands::output::table;
use ccplane_infer::tables;
use ccplane_snapshot::{
    Calibration, Fidelity, Guards, Hash, PolicySpec, Provenance, Signature, Snapshot, Terms,
};
use serde::Serialize;
use std::fmt::Write;

/// `ccplane snapshot inspect --json`
#[derive(Serialize)]
pub(super) struct Summary<'a> {
    hash: Hash,
    bytes: usize,
    image_bytes: usize,
    bits: u8,
    widths: Vec<usize>,
    policy: &'a PolicySpec,
    guards: Guards,
    calibration: &'a Calibration,
    fidelity: &'a Fidelity,
    both_signs: bool,
    provenance: &'a Provenance,
    /// The key that it claims to be signed by.
    signed_by: Option<String>,
    /// The signature's sequence number.
    sequence: Option<u64>,
    /// The end of the signature's validity, seconds since 1970.
    expires_s: Option<u64>,
}

impl Summary<'_> {
    pub(super) fn of(snapshot: &Snapshot) -> Summary<'_> {
        let terms = snapshot.signature().and_then(|signature| signature.terms());
        Summary {
            hash: snapshot.hash(),
            bytes: snapshot.to_bytes().len(),
            image_bytes: snapshot.shape().image_bytes(),
            bits: snapshot.shape().bits() as u8,
            widths: snapshot.network().widths(),
            policy: snapshot.spec(),
            guards: snapshot.guards(),
            calibration: snapshot.calibration(),
            fidelity: snapshot.fidelity(),
            both_signs: snapshot.fidelity().both_signs(),
            provenance: snapshot.provenance(),
            signed_by: snapshot.signature().map(|signature| signature.key_hex()),
            sequence: terms.map(|terms| terms.sequence),
            expires_s: terms.map(|terms| terms.expires_s),
        }
    }
}

pub(super) fn text(snapshot: &Snapshot) -> String {
    let (fidelity, guards) = (snapshot.fidelity(), snapshot.guards());
    let widths: Vec<String> = snapshot.network().widths().iter().map(usize::to_string).collect();
    let mut out = format!("snapshot {}\n", snapshot.hash());
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:<12}{value}");
    };
    line("algorithm", snapshot.spec().algorithm().to_owned());
    line("network", format!("{}, {}", widths.join(" -> "), activations(snapshot)));
    let (bits, bytes) = (snapshot.shape().bits() as u8, snapshot.shape().image_bytes());
    line("integers", format!("{bits} bits, {bytes} bytes in a datapath"));
    line("action", action(snapshot.spec()));
    line("guards", guards_text(guards));
    line(
        "visited",
        errors(fidelity.visited_mean_error, fidelity.visited_max_error, fidelity.visited_samples),
    );
    line("off path", errors(fidelity.off_mean_error, fidelity.off_max_error, fidelity.off_samples));
    let (min, max) = (q16(fidelity.min_action_q16), q16(fidelity.max_action_q16));
    let signs = if fidelity.both_signs() { "" } else { ": one sign only" };
    line("actions", format!("{min:.3} to {max:.3}{signs}"));
    line("origin", origin(snapshot.provenance()));
    let signed =
        snapshot.signature().map(|s| format!("by {}, not checked here; {}", s.key_hex(), terms(s, now_s())));
    line("signed", signed.unwrap_or_else(|| "no".to_owned()));
    let rows: Vec<Vec<String>> = snapshot
        .spec()
        .inputs()
        .iter()
        .zip(&snapshot.calibration().inputs)
        .map(|(f, (lo, hi))| vec![f.name.clone(), range(f.lo, f.hi), range(*lo, *hi)])
        .collect();
    out + "\n" + &table(&["input", "counts from .. to", "visited"], &rows)
}

/// A signature's sequence number and what is left of its validity.
pub(super) fn terms(signature: &Signature, now_s: u64) -> String {
    let Some(Terms { sequence, expires_s }) = signature.terms() else {
        return "without sequence number and expiry".to_owned();
    };
    match expires_s.checked_sub(now_s) {
        None | Some(0) => format!("sequence {sequence}, expired"),
        Some(left_s) => format!("sequence {sequence}, valid for {} days", left_s.div_ceil(SECONDS_PER_DAY)),
    }
}

fn range(lo: i32, hi: i32) -> String {
    format!("{lo} .. {hi}")
}

fn q16(value: i64) -> f64 {
    value as f64 / 65536.0
}

fn activations(snapshot: &Snapshot) -> &'static str {
    let mut tables = snapshot.network().layers().iter().flat_map(|layer| &layer.tables);
    let relu = |table: &u8| usize::from(*table) >= tables::RELU;
    match (tables.clone().any(relu), tables.any(|table| !relu(table))) {
        (true, true) => "tanh and relu",
        (true, false) => "relu",
        (false, true) => "tanh",
        (false, false) => "linear",
    }
}

fn action(spec: &PolicySpec) -> String {
    use ccplane_snapshot::ActionMap;
    let action = spec.action();
    let knob = match action.map {
        ActionMap::None => return format!("within +-{:.3}, to the program", action.bound()),
        ActionMap::Rate => "rate (bytes/s)",
        ActionMap::Cwnd => "window (bytes)",
    };
    let step = f64::from(action.step_q20) / f64::from(1u32 << 20);
    format!(
        "within +-{:.3}, steps of {step:.4} on the {knob}, which stays in {} .. {}",
        action.bound(),
        action.knob_min,
        action.knob_max
    )
}

fn guards_text(guards: Guards) -> String {
    let trip = match guards.trip_limit {
        0 => "never falls back".to_owned(),
        limit => format!("falls back at a penalty of {limit}"),
    };
    format!("{trip}; up to {} inputs of a decision may be out of range", guards.clip_limit)
}

fn errors(mean: f64, max: f64, samples: u32) -> String {
    format!(
        "mean error {:.3} %, largest {:.3} % of the action's range, {samples} states",
        mean * 100.0,
        max * 100.0
    )
}

fn origin(provenance: &Provenance) -> String {
    let parent = provenance.parent.map_or("none".to_owned(), |hash| hash.short());
    format!(
        "{} steps, seed {}, parent {parent}, by {}: {}",
        provenance.steps, provenance.seed, provenance.created_by, provenance.command
    )
}

//! The encoding of snapshots; [`Snapshot::parse`](crate::Snapshot::parse) describes it.

use crate::keys::{Signature, Terms};
use crate::{
    Action, ActionMap, Calibration, FORMAT_VERSION, Feature, Fidelity, Guards, Hash, Layer, MAX_NAME_BYTES,
    MAX_SNAPSHOT_BYTES, MAX_TEXT_BYTES, Network, Parts, PolicySpec, Provenance, SnapshotError,
};
use ccplane_infer::{Bits, MAX_INPUTS, MAX_LAYERS, MAX_WIDTH};
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"CCPLSNAP";
const HEADER_BYTES: usize = 48;

const POLICY: u32 = 1;
const NETWORK: u32 = 2;
const GUARDS: u32 = 3;
const CALIBRATION: u32 = 4;
const FIDELITY: u32 = 5;
const PROVENANCE: u32 = 6;
/// Tag of a signature by an earlier version.
const SIGNATURE_WITHOUT_TERMS: u32 = 7;
const SIGNATURE: u32 = 8;

pub(crate) fn hash_of(content: &[u8]) -> Hash {
    let digest = Sha256::new().chain_update(MAGIC).chain_update(FORMAT_VERSION.to_le_bytes());
    Hash(digest.chain_update(content).finalize().into())
}

pub(crate) fn file(content: &[u8], signature: Option<&Signature>) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    put_u32(&mut out, FORMAT_VERSION);
    put_u32(&mut out, content.len() as u32);
    out.extend(hash_of(content).0);
    out.extend(content);
    if let Some(signature) = signature {
        let tag = if signature.terms.is_some() { SIGNATURE } else { SIGNATURE_WITHOUT_TERMS };
        section(&mut out, tag, |out| {
            if let Some(Terms { sequence, expires_s }) = signature.terms {
                put_u64(out, sequence);
                put_u64(out, expires_s);
            }
            out.extend(signature.key);
            out.extend(signature.signature);
        });
    }
    out
}

pub(crate) fn content(parts: &Parts) -> Vec<u8> {
    let mut out = Vec::new();
    section(&mut out, POLICY, |out| put_policy(out, &parts.spec));
    section(&mut out, NETWORK, |out| put_network(out, &parts.network));
    section(&mut out, GUARDS, |out| {
        put_u32(out, parts.guards.trip_limit);
        put_u32(out, parts.guards.clip_limit);
    });
    section(&mut out, CALIBRATION, |out| put_calibration(out, &parts.calibration));
    section(&mut out, FIDELITY, |out| put_fidelity(out, &parts.fidelity));
    section(&mut out, PROVENANCE, |out| put_provenance(out, &parts.provenance));
    out
}

/// Checks the fields that neither [`PolicySpec`] nor [`Network`] has checked.
pub(crate) fn check(parts: &Parts) -> Result<(), SnapshotError> {
    let shape = parts.network.shape();
    let agree = |field, found, expected| {
        if found == expected { Ok(()) } else { Err(SnapshotError::Disagree { field, found, expected }) }
    };
    agree("policy.inputs", parts.spec.inputs().len(), shape.inputs())?;
    range("guards.trip_limit", i64::from(parts.guards.trip_limit), 0, i64::from(Guards::MAX_TRIP_LIMIT))?;
    range("guards.clip_limit", i64::from(parts.guards.clip_limit), 0, MAX_INPUTS as i64)?;
    agree("calibration.inputs", parts.calibration.inputs.len(), shape.inputs())?;
    for (lo, hi) in &parts.calibration.inputs {
        range("calibration.inputs.lo", i64::from(*lo), i64::from(i32::MIN), i64::from(*hi))?;
    }
    agree("calibration.sums", parts.calibration.sums.len(), shape.layers())?;
    for sum in &parts.calibration.sums {
        range("calibration.sums", i64::from(*sum), 0, shape.bits().lane_offset() - 1)?;
    }
    let fidelity = &parts.fidelity;
    for (field, found, max) in [
        ("fidelity.visited_max_error", fidelity.visited_max_error, 1.0),
        ("fidelity.visited_mean_error", fidelity.visited_mean_error, fidelity.visited_max_error),
        ("fidelity.off_max_error", fidelity.off_max_error, 1.0),
        ("fidelity.off_mean_error", fidelity.off_mean_error, fidelity.off_max_error),
    ] {
        if !(0.0..=max).contains(&found) || found.is_sign_negative() {
            return Err(SnapshotError::Share { field, found, max });
        }
    }
    range("fidelity.min_action_q16", fidelity.min_action_q16, i64::MIN, fidelity.max_action_q16)?;
    let provenance = &parts.provenance;
    check_text("provenance.algorithm", &provenance.algorithm, MAX_NAME_BYTES)?;
    check_text("provenance.command", &provenance.command, MAX_TEXT_BYTES)?;
    check_text("provenance.created_by", &provenance.created_by, MAX_TEXT_BYTES)
}

fn range(field: &'static str, found: i64, min: i64, max: i64) -> Result<(), SnapshotError> {
    if (min..=max).contains(&found) { Ok(()) } else { Err(SnapshotError::Range { field, found, min, max }) }
}

/// Refuses control characters, because people print texts on terminals.
fn check_text(field: &'static str, text: &str, max: usize) -> Result<(), SnapshotError> {
    let good = text.len() <= max && !text.chars().any(char::is_control);
    if good { Ok(()) } else { Err(SnapshotError::Text { field, max }) }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

/// Appends a text; every text is bounded far below 2^32 bytes.
fn put_text(out: &mut Vec<u8>, text: &str) {
    put_u32(out, text.len() as u32);
    out.extend(text.as_bytes());
}

fn section(out: &mut Vec<u8>, tag: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    put_u32(out, tag);
    let at = out.len();
    put_u32(out, 0);
    fill(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

fn put_policy(out: &mut Vec<u8>, spec: &PolicySpec) {
    put_text(out, spec.algorithm());
    put_u32(out, spec.inputs().len() as u32);
    for feature in spec.inputs() {
        put_text(out, &feature.name);
        put_u32(out, feature.lo as u32);
        put_u32(out, feature.hi as u32);
    }
    let action = spec.action();
    put_u32(out, action.map.code());
    put_u32(out, action.bound_q16);
    put_u32(out, action.step_q20);
    put_u64(out, action.knob_min as u64);
    put_u64(out, action.knob_max as u64);
}

fn put_network(out: &mut Vec<u8>, network: &Network) {
    put_u32(out, network.shape().bits() as u32);
    let widths = network.widths();
    put_u32(out, widths.len() as u32);
    widths.iter().for_each(|width| put_u32(out, *width as u32));
    for layer in network.layers() {
        layer.weights.iter().for_each(|w| out.extend(w.to_le_bytes()));
        layer.biases.iter().for_each(|b| out.extend(b.to_le_bytes()));
        out.extend(&layer.tables);
    }
    put_u64(out, network.out_mult() as u64);
    put_u32(out, network.out_shift());
}

fn put_calibration(out: &mut Vec<u8>, calibration: &Calibration) {
    put_u32(out, calibration.inputs.len() as u32);
    for (lo, hi) in &calibration.inputs {
        put_u32(out, *lo as u32);
        put_u32(out, *hi as u32);
    }
    put_u32(out, calibration.sums.len() as u32);
    calibration.sums.iter().for_each(|sum| put_u32(out, *sum));
}

fn put_fidelity(out: &mut Vec<u8>, fidelity: &Fidelity) {
    put_u64(out, fidelity.visited_mean_error.to_bits());
    put_u64(out, fidelity.visited_max_error.to_bits());
    put_u32(out, fidelity.visited_samples);
    put_u64(out, fidelity.off_mean_error.to_bits());
    put_u64(out, fidelity.off_max_error.to_bits());
    put_u32(out, fidelity.off_samples);
    put_u64(out, fidelity.min_action_q16 as u64);
    put_u64(out, fidelity.max_action_q16 as u64);
}

fn put_provenance(out: &mut Vec<u8>, provenance: &Provenance) {
    put_text(out, &provenance.algorithm);
    put_u64(out, provenance.seed);
    put_u64(out, provenance.steps);
    put_text(out, &provenance.command);
    put_u32(out, u32::from(provenance.parent.is_some()));
    out.extend(provenance.parent.iter().flat_map(|hash| hash.0));
    put_text(out, &provenance.created_by);
}

pub(crate) fn parse(bytes: &[u8]) -> Result<(Parts, Hash, Option<Signature>), SnapshotError> {
    if bytes.len() > MAX_SNAPSHOT_BYTES {
        return Err(SnapshotError::TooLarge { found: bytes.len() });
    }
    let mut reader = Reader { bytes, at: 0 };
    if reader.take("magic", MAGIC.len())? != MAGIC {
        return Err(SnapshotError::Magic);
    }
    let version = reader.u32("version")?;
    if version != FORMAT_VERSION {
        return Err(SnapshotError::Version { found: version });
    }
    let len = reader.u32("length")? as usize;
    let stored = Hash(reader.array("hash")?);
    let computed = hash_of(reader.take("content", len)?);
    if stored != computed {
        return Err(SnapshotError::Altered { stored, computed });
    }
    let signature = match bytes.get(reader.at..) {
        None | Some([]) => None,
        Some(rest) if rest.starts_with(&SIGNATURE_WITHOUT_TERMS.to_le_bytes()) => {
            Some(reader.section(SIGNATURE_WITHOUT_TERMS, |r| signature(r, None))?)
        }
        Some(_) => Some(reader.section(SIGNATURE, |r| {
            let terms =
                Terms { sequence: r.u64("signature.sequence")?, expires_s: r.u64("signature.expires_s")? };
            signature(r, Some(terms))
        })?),
    };
    reader.end("file")?;
    let mut content = Reader { bytes: &bytes[..HEADER_BYTES + len], at: HEADER_BYTES };
    let parts = Parts {
        spec: content.section(POLICY, policy)?,
        network: content.section(NETWORK, network)?,
        guards: content.section(GUARDS, |r| {
            Ok(Guards { trip_limit: r.u32("guards.trip_limit")?, clip_limit: r.u32("guards.clip_limit")? })
        })?,
        calibration: content.section(CALIBRATION, calibration)?,
        fidelity: content.section(FIDELITY, fidelity)?,
        provenance: content.section(PROVENANCE, provenance)?,
    };
    content.end("content")?;
    check(&parts)?;
    Ok((parts, computed, signature))
}

/// Reads from `at` on, and never beyond `bytes`.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, field: &'static str, needed: usize) -> Result<&'a [u8], SnapshotError> {
        let left = self.bytes.len() - self.at;
        if needed > left {
            return Err(SnapshotError::Truncated { field, at: self.at, needed, left });
        }
        let taken = &self.bytes[self.at..self.at + needed];
        self.at += needed;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], SnapshotError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(field, N)?);
        Ok(array)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, SnapshotError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn i32(&mut self, field: &'static str) -> Result<i32, SnapshotError> {
        self.array(field).map(i32::from_le_bytes)
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, SnapshotError> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn i64(&mut self, field: &'static str) -> Result<i64, SnapshotError> {
        self.array(field).map(i64::from_le_bytes)
    }

    fn f64(&mut self, field: &'static str) -> Result<f64, SnapshotError> {
        self.u64(field).map(f64::from_bits)
    }

    fn count(&mut self, field: &'static str, min: usize, max: usize) -> Result<usize, SnapshotError> {
        let found = self.u32(field)?;
        range(field, i64::from(found), min as i64, max as i64)?;
        Ok(found as usize)
    }

    fn text(&mut self, field: &'static str, max: usize) -> Result<String, SnapshotError> {
        let len = self.u32(field)? as usize;
        if len > max {
            return Err(SnapshotError::Text { field, max });
        }
        let bytes = self.take(field, len)?.to_vec();
        String::from_utf8(bytes).map_err(|_| SnapshotError::Text { field, max })
    }

    fn section<T>(
        &mut self,
        expected: u32,
        read: impl FnOnce(&mut Reader<'a>) -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let found = self.u32("section.tag")?;
        if found != expected {
            return Err(SnapshotError::Section { found, expected });
        }
        let len = self.u32("section.length")? as usize;
        let start = self.at;
        self.take("section", len)?;
        let mut inner = Reader { bytes: &self.bytes[..start + len], at: start };
        let value = read(&mut inner)?;
        inner.end("section")?;
        Ok(value)
    }

    fn end(&self, field: &'static str) -> Result<(), SnapshotError> {
        let left = self.bytes.len() - self.at;
        if left == 0 { Ok(()) } else { Err(SnapshotError::Trailing { field, left }) }
    }
}

fn signature(r: &mut Reader<'_>, terms: Option<Terms>) -> Result<Signature, SnapshotError> {
    Ok(Signature { key: r.array("signature.key")?, signature: r.array("signature.signature")?, terms })
}

fn policy(r: &mut Reader<'_>) -> Result<PolicySpec, SnapshotError> {
    let algorithm = r.text("policy.algorithm", MAX_NAME_BYTES)?;
    let inputs = r.count("policy.inputs", 1, MAX_INPUTS)?;
    let inputs: Result<Vec<Feature>, SnapshotError> = (0..inputs)
        .map(|_| {
            let name = r.text("policy.inputs.name", MAX_NAME_BYTES)?;
            Ok(Feature { name, lo: r.i32("policy.inputs.lo")?, hi: r.i32("policy.inputs.hi")? })
        })
        .collect();
    let inputs = inputs?;
    let code = r.u32("policy.action.map")?;
    let map = ActionMap::from_code(code).ok_or(SnapshotError::Range {
        field: "policy.action.map",
        found: i64::from(code),
        min: 0,
        max: i64::from(ActionMap::Cwnd.code()),
    })?;
    let action = Action {
        map,
        bound_q16: r.u32("policy.action.bound_q16")?,
        step_q20: r.u32("policy.action.step_q20")?,
        knob_min: r.i64("policy.action.knob_min")?,
        knob_max: r.i64("policy.action.knob_max")?,
    };
    Ok(PolicySpec::new(algorithm, inputs, action)?)
}

fn network(r: &mut Reader<'_>) -> Result<Network, SnapshotError> {
    let code = r.u32("network.bits")?;
    let bits = match code {
        8 => Bits::W8,
        16 => Bits::W16,
        _ => {
            return Err(SnapshotError::Range {
                field: "network.bits (8 or 16)",
                found: i64::from(code),
                min: 8,
                max: 16,
            });
        }
    };
    let count = r.count("network.widths", 2, MAX_LAYERS + 1)?;
    let widths: Result<Vec<usize>, SnapshotError> =
        (0..count).map(|_| r.count("network.width", 1, MAX_WIDTH)).collect();
    let widths = widths?;
    let mut layers = Vec::new();
    for (n, pair) in widths.windows(2).enumerate() {
        let (inputs, outputs) = (pair[0], pair[1]);
        let weights = r.take("network.weights", 2 * inputs * outputs)?;
        let biases = r.take("network.biases", 4 * outputs)?;
        let tables = if n + 2 < widths.len() { outputs } else { 0 };
        layers.push(Layer {
            weights: weights.chunks_exact(2).map(|w| i16::from_le_bytes([w[0], w[1]])).collect(),
            biases: biases.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            tables: r.take("network.tables", tables)?.to_vec(),
        });
    }
    let (out_mult, out_shift) = (r.i64("network.out_mult")?, r.u32("network.out_shift")?);
    Ok(Network::new(bits, &widths, layers, out_mult, out_shift)?)
}

fn calibration(r: &mut Reader<'_>) -> Result<Calibration, SnapshotError> {
    let inputs = r.count("calibration.inputs", 0, MAX_INPUTS)?;
    let inputs: Result<Vec<(i32, i32)>, SnapshotError> =
        (0..inputs).map(|_| Ok((r.i32("calibration.inputs.lo")?, r.i32("calibration.inputs.hi")?))).collect();
    let inputs = inputs?;
    let sums = r.count("calibration.sums", 0, MAX_LAYERS)?;
    let sums: Result<Vec<u32>, SnapshotError> = (0..sums).map(|_| r.u32("calibration.sums")).collect();
    Ok(Calibration { inputs, sums: sums? })
}

fn fidelity(r: &mut Reader<'_>) -> Result<Fidelity, SnapshotError> {
    Ok(Fidelity {
        visited_mean_error: r.f64("fidelity.visited_mean_error")?,
        visited_max_error: r.f64("fidelity.visited_max_error")?,
        visited_samples: r.u32("fidelity.visited_samples")?,
        off_mean_error: r.f64("fidelity.off_mean_error")?,
        off_max_error: r.f64("fidelity.off_max_error")?,
        off_samples: r.u32("fidelity.off_samples")?,
        min_action_q16: r.i64("fidelity.min_action_q16")?,
        max_action_q16: r.i64("fidelity.max_action_q16")?,
    })
}

fn provenance(r: &mut Reader<'_>) -> Result<Provenance, SnapshotError> {
    let algorithm = r.text("provenance.algorithm", MAX_NAME_BYTES)?;
    let (seed, steps) = (r.u64("provenance.seed")?, r.u64("provenance.steps")?);
    let command = r.text("provenance.command", MAX_TEXT_BYTES)?;
    let parent = match r.count("provenance.parent", 0, 1)? {
        0 => None,
        _ => Some(Hash(r.array("provenance.parent")?)),
    };
    Ok(Provenance {
        algorithm,
        seed,
        steps,
        command,
        parent,
        created_by: r.text("provenance.created_by", MAX_TEXT_BYTES)?,
    })
}

//! Snapshots, and the images that datapaths get of them.

use crate::format;
use crate::keys::{Signature, SigningKey, Terms, VerifyingKey};
use crate::network::Maker;
use crate::{
    Calibration, Fidelity, Guards, Hash, MAX_SNAPSHOT_BYTES, Network, Parts, PolicySpec, Provenance,
    SnapshotError,
};
use ccplane_infer::{NOISE_DEVIATION, Shape, image, lanes, tables};
use std::num::NonZeroU32;

/// A policy as integers: immutable, and valid by construction.
#[derive(Clone, Debug)]
pub struct Snapshot {
    parts: Parts,
    hash: Hash,
    signature: Option<Signature>,
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Snapshot) -> bool {
        self.hash == other.hash && self.parts == other.parts && self.signature == other.signature
    }
}

/// Options of one deployment of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeployOptions {
    /// The deployment's number, which is never reused.
    pub uid: NonZeroU32,
    /// Standard deviation of the exploration noise on actions, Q16; 0 for none.
    pub noise_q16: u32,
    /// Whether a flow that has decided by this deployment keeps it as long as a buffer holds it.
    pub pin: bool,
}

impl DeployOptions {
    /// Options for a snapshot that is deployed once and as it was built.
    pub const ONLY: DeployOptions = DeployOptions { uid: NonZeroU32::MIN, noise_q16: 0, pin: false };
}

impl Snapshot {
    /// Makes a snapshot of these parts, with the origin of its network.
    ///
    /// # Errors
    /// The error of [`Snapshot::parse`] on its bytes.
    pub fn new(parts: Parts) -> Result<Snapshot, SnapshotError> {
        format::check(&parts)?;
        let hash = format::hash_of(&format::content(&parts));
        let snapshot = Snapshot { parts, hash, signature: None };
        let found = snapshot.to_bytes().len();
        if found > MAX_SNAPSHOT_BYTES {
            return Err(SnapshotError::TooLarge { found });
        }
        Ok(snapshot)
    }

    /// Reads a file's bytes. Every limit is checked anew; that no sum overflows is proved from the weights. A signature
    /// is read, not checked: see [`Snapshot::verify`].
    ///
    /// The bytes, little-endian: `CCPLSNAP`, u32 format version, u32 length of the content, SHA-256 of the three of
    /// magic, version and content; then the content; then nothing or a signature. The content is sections in the order
    /// policy (1), network (2), guards (3), calibration (4), fidelity (5), provenance (6);
    /// each is u32 tag, u32 length, and its fields in the order of the types here, texts and lists preceded by a u32
    /// count. A signature's fields are its sequence number (u64), the end of its validity (u64, seconds since 1970), key and
    /// ed25519 signature, tag 8; tag 7 is that of earlier versions, without the first two.
    ///
    /// # Errors
    /// The first field that is wrong. Never panics.
    pub fn parse(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
        Snapshot::read(bytes, Maker::Anyone)
    }

    /// Reads the bytes of a file that was built into this program and is trusted for it.
    ///
    /// # Errors
    /// As [`Snapshot::parse`].
    pub fn built_in(bytes: &'static [u8]) -> Result<Snapshot, SnapshotError> {
        Snapshot::read(bytes, Maker::Us)
    }

    fn read(bytes: &[u8], maker: Maker) -> Result<Snapshot, SnapshotError> {
        let (parts, hash, signature) = format::parse(bytes)?;
        let parts = Parts { network: parts.network.made_by(maker), ..parts };
        Ok(Snapshot { parts, hash, signature })
    }

    /// Whether its network was read from a file or a socket, so that only a signature can vouch for it.
    pub fn is_from_elsewhere(&self) -> bool {
        self.parts.network.maker() == Maker::Anyone
    }

    /// Encodes the snapshot as a file's bytes. The same snapshot always gives the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        format::file(&format::content(&self.parts), self.signature.as_ref())
    }

    /// The snapshot's name: the hash of its content. Signing does not change it.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The policy's inputs and action.
    pub fn spec(&self) -> &PolicySpec {
        &self.parts.spec
    }

    /// The network's shape; a slot must be defined with the same one to hold the snapshot.
    pub fn shape(&self) -> &Shape {
        self.parts.network.shape()
    }

    /// The integer network.
    pub fn network(&self) -> &Network {
        &self.parts.network
    }

    /// Limits at which a datapath's monitor steps in.
    pub fn guards(&self) -> Guards {
        self.parts.guards
    }

    /// The ranges that visited states reach.
    pub fn calibration(&self) -> &Calibration {
        &self.parts.calibration
    }

    /// The error against the float network.
    pub fn fidelity(&self) -> &Fidelity {
        &self.parts.fidelity
    }

    /// The snapshot's origin.
    pub fn provenance(&self) -> &Provenance {
        &self.parts.provenance
    }

    /// Takes the snapshot apart, to make another one of its parts.
    pub fn into_parts(self) -> Parts {
        self.parts
    }

    /// The signature, if the snapshot has one.
    pub fn signature(&self) -> Option<&Signature> {
        self.signature.as_ref()
    }

    /// Signs the snapshot with `key` on these terms; replaces its signature, if any.
    pub fn sign(mut self, key: &SigningKey, terms: Terms) -> Snapshot {
        self.signature = Some(key.sign(&self.hash, terms));
        self
    }

    /// Checks that the signature, if there is one, is by the key that it names. Nothing says who owns that key.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`].
    pub fn check_signature(&self) -> Result<(), SnapshotError> {
        let Some(signature) = &self.signature else { return Ok(()) };
        let key = VerifyingKey::from_bytes(&signature.key).map_err(|_| SnapshotError::Corrupt)?;
        if key.has_signed(&self.hash, signature) { Ok(()) } else { Err(SnapshotError::Corrupt) }
    }

    /// Checks that `key` has signed the snapshot.
    ///
    /// # Errors
    /// [`SnapshotError::Unsigned`], [`SnapshotError::Signature`].
    pub fn verify(&self, key: &VerifyingKey) -> Result<(), SnapshotError> {
        let signature = self.signature.as_ref().ok_or(SnapshotError::Unsigned)?;
        let good = signature.key == key.bytes() && key.has_signed(&self.hash, signature);
        if good { Ok(()) } else { Err(SnapshotError::Signature) }
    }

    /// The words that a datapath's `push` takes: [`ccplane_infer::image`].
    pub fn image(&self, options: &DeployOptions) -> Vec<u64> {
        let (shape, action) = (self.shape(), self.spec().action());
        let mut words = vec![0; shape.image_bytes() / 8];
        let noise_mult = ((i64::from(options.noise_q16) << 16) + NOISE_DEVIATION / 2) / NOISE_DEVIATION;
        image::set_u32(&mut words, image::UID, options.uid.get());
        image::set_u32(&mut words, image::CLIP_LIMIT, self.guards().clip_limit);
        image::set_u64(&mut words, image::SHAPE, shape.code());
        image::set_u32(&mut words, image::ACTION_BOUND_Q16, action.bound_q16);
        image::set_u32(&mut words, image::MAP, action.map.code());
        image::set_u64(&mut words, image::OUT_MULT, self.network().out_mult() as u64);
        image::set_u32(&mut words, image::OUT_SHIFT, self.network().out_shift());
        image::set_u32(&mut words, image::TRIP_LIMIT, self.guards().trip_limit);
        image::set_u64(&mut words, image::STEP_Q20, u64::from(action.step_q20));
        image::set_u64(&mut words, image::KNOB_MIN, action.knob_min as u64);
        image::set_u64(&mut words, image::KNOB_MAX, action.knob_max as u64);
        image::set_u64(&mut words, image::NOISE_MULT, noise_mult as u64);
        image::set_u32(&mut words, image::FLAGS, if options.pin { image::PIN } else { 0 });
        for (n, bytes) in self.hash().0.as_chunks::<8>().0.iter().enumerate() {
            image::set_u64(&mut words, image::NAME + 8 * n, u64::from_le_bytes(*bytes));
        }
        self.write_features(&mut words);
        for layer in 0..shape.layers() {
            self.write_layer(layer, &mut words);
        }
        words
    }

    fn write_features(&self, words: &mut [u64]) {
        for (n, feature) in self.spec().inputs().iter().enumerate() {
            let at = image::FEATURES + image::FEATURE_BYTES * n;
            image::set_u32(words, at + image::feature::LO, feature.lo as u32);
            image::set_u32(words, at + image::feature::HI, feature.hi as u32);
            let mult = image::feature::mult(self.shape().bits(), feature.lo, feature.hi);
            image::set_u64(words, at + image::feature::MULT, mult);
        }
    }

    fn write_layer(&self, n: usize, words: &mut [u64]) {
        let (shape, bits) = (self.shape(), self.shape().bits());
        let ((inputs, outputs), groups) = (shape.layer(n), shape.groups(n));
        let Some(layer) = self.network().layers().get(n) else { return };
        for group in 0..groups {
            let members = group * bits.lanes()..((group + 1) * bits.lanes()).min(outputs);
            let biases = layer.biases[members.clone()].iter().map(|b| i64::from(*b));
            image::set_u64(words, shape.bias_at(n) + 8 * group, lanes::pack_biases(bits, biases));
            for input in 0..inputs {
                let weights = members.clone().map(|m| i64::from(layer.weights[m * inputs + input]));
                let at = shape.weights_at(n) + 8 * (groups * input + group);
                image::set_u64(words, at, lanes::pack_weights(bits, weights));
            }
        }
        for (neuron, table) in layer.tables.iter().enumerate() {
            let base = usize::from(*table) * tables::stride(bits);
            image::set_u32(words, shape.tables_at(n) + 4 * neuron, base as u32);
        }
    }
}

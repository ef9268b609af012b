//! Why a file is no snapshot.

use crate::{FORMAT_VERSION, Hash, MAX_SNAPSHOT_BYTES, NetworkError, SpecError};

/// Why bytes, or parts, are no snapshot: which field, and what its limit is.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Too long to be one.
    #[error("{found} bytes, at most {MAX_SNAPSHOT_BYTES} are allowed")]
    TooLarge {
        /// How many bytes.
        found: usize,
    },
    /// It does not begin as snapshots do.
    #[error("not a snapshot: it does not begin with \"CCPLSNAP\"")]
    Magic,
    /// Of another format.
    #[error("format version {found}: this program reads version {FORMAT_VERSION}")]
    Version {
        /// Which.
        found: u32,
    },
    /// It ends too early.
    #[error("{field}: {needed} bytes are needed at byte {at}, {left} are left")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// Where it begins.
        at: usize,
        /// How long it is.
        needed: usize,
        /// How much there is.
        left: usize,
    },
    /// Bytes after the end of a section or of the file.
    #[error("{field}: {left} bytes too many")]
    Trailing {
        /// What has ended.
        field: &'static str,
        /// How many follow.
        left: usize,
    },
    /// Another section than the one that comes here.
    #[error("section {found} where {expected} belongs")]
    Section {
        /// Its tag.
        found: u32,
        /// The tag that belongs here.
        expected: u32,
    },
    /// Altered since it was made.
    #[error("altered: its content hashes to {computed}, it says {stored}")]
    Altered {
        /// The hash in the file.
        stored: Hash,
        /// The hash of the content.
        computed: Hash,
    },
    /// A number outside its limits.
    #[error("{field} is {found}, {min} to {max} are allowed")]
    Range {
        /// Which number.
        field: &'static str,
        /// What it was.
        found: i64,
        /// The smallest allowed.
        min: i64,
        /// The largest allowed.
        max: i64,
    },
    /// Not UTF-8, too long, or with control characters.
    #[error("{field}: no text of at most {max} bytes")]
    Text {
        /// Which text.
        field: &'static str,
        /// Its limit, bytes.
        max: usize,
    },
    /// Not a number, or outside its limits: an error as a share of the action's range, a mean above its largest.
    #[error("{field} is {found}, 0 to {max} are allowed")]
    Share {
        /// Which number.
        field: &'static str,
        /// What it was.
        found: f64,
        /// The largest allowed.
        max: f64,
    },
    /// The policy's inputs or action are wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The network is wrong.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Spec and network do not have as many inputs.
    #[error("{field}: {found}, the network has {expected}")]
    Disagree {
        /// What is counted.
        field: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Not signed, where only signed ones are taken.
    #[error("not signed: only signed snapshots are taken")]
    Unsigned,
    /// Signed by a key that is not trusted.
    #[error("signed by {key}, which is not trusted")]
    UnknownSigner {
        /// The key, in hexadecimal.
        key: String,
    },
    /// The signature is not this key's on this snapshot.
    #[error("the signature is not by this key on this snapshot")]
    Signature,
    /// The signature is not by the key that it names.
    #[error("the signature is corrupt: it is not by the key that it names, on this snapshot")]
    Corrupt,
    /// Signed by an earlier version.
    #[error("signed without a sequence number and an expiry, as earlier versions did: sign it anew")]
    NoTerms,
    /// The signature's validity has ended.
    #[error(
        "its signature expired {days} days ago: sign it anew, or take it all the same with --allow-older"
    )]
    Expired {
        /// How long ago, whole days.
        days: u64,
    },
    /// A later snapshot of the algorithm was taken before.
    #[error(
        "its sequence number is {sequence}, one with {newest} was taken before: take it all the same with --allow-older"
    )]
    Older {
        /// The signature's number.
        sequence: u64,
        /// The largest so far.
        newest: u64,
    },
}

//! Errors of reading, making and admitting snapshots.

use crate::{FORMAT_VERSION, Hash, MAX_SNAPSHOT_BYTES, NetworkError, SpecError};

/// Reasons why bytes or parts are not a snapshot, with the field and its limit.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The input is longer than any snapshot.
    #[error("{found} bytes, at most {MAX_SNAPSHOT_BYTES} are allowed")]
    TooLarge { found: usize },
    /// The input does not begin with the magic bytes.
    #[error("not a snapshot: it does not begin with \"CCPLSNAP\"")]
    Magic,
    /// The format version is another one.
    #[error("format version {found}: this program reads version {FORMAT_VERSION}")]
    Version { found: u32 },
    /// The input ends too early.
    #[error("{field}: {needed} bytes are needed at byte {at}, {left} are left")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
        /// Offset of the field, bytes.
        at: usize,
        /// Length of the field, bytes.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Bytes follow the end of a section or of the file.
    #[error("{field}: {left} bytes too many")]
    Trailing {
        /// The section that has ended, or the file.
        field: &'static str,
        left: usize,
    },
    /// A section is not the one expected here.
    #[error("section {found} where {expected} belongs")]
    Section {
        /// The section's tag.
        found: u32,
        /// The expected tag.
        expected: u32,
    },
    /// The content was altered.
    #[error("altered: its content hashes to {computed}, it says {stored}")]
    Altered {
        /// The hash in the file.
        stored: Hash,
        /// The hash of the content.
        computed: Hash,
    },
    /// A number is outside its limits.
    #[error("{field} is {found}, {min} to {max} are allowed")]
    Range { field: &'static str, found: i64, min: i64, max: i64 },
    /// A text is not UTF-8, is too long, or has control characters.
    #[error("{field}: no text of at most {max} bytes")]
    Text {
        field: &'static str,
        /// The text's limit, bytes.
        max: usize,
    },
    /// A share is not a number or is outside its limits: an error as a share of the action's range, or a mean above its
    /// largest.
    #[error("{field} is {found}, 0 to {max} are allowed")]
    Share { field: &'static str, found: f64, max: f64 },
    /// The policy's inputs or action are wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The network is wrong.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Spec and network have different numbers of inputs.
    #[error("{field}: {found}, the network has {expected}")]
    Disagree {
        /// The quantity that is counted.
        field: &'static str,
        found: usize,
        expected: usize,
    },
    /// The snapshot is not signed, but only signed ones are taken.
    #[error("not signed: only signed snapshots are taken")]
    Unsigned,
    /// An untrusted key signed the snapshot.
    #[error("signed by {key}, which is not trusted")]
    UnknownSigner {
        /// The key, in hexadecimal.
        key: String,
    },
    /// The signature does not match the key and the snapshot.
    #[error("the signature is not by this key on this snapshot")]
    Signature,
    /// The signature does not match the key that it names.
    #[error("the signature is corrupt: it is not by the key that it names, on this snapshot")]
    Corrupt,
    /// An earlier version signed the snapshot, without terms.
    #[error("signed without a sequence number and an expiry, as earlier versions did: sign it anew")]
    NoTerms,
    /// The signature has expired.
    #[error(
        "its signature expired {days} days ago: sign it anew, or take it all the same with --allow-older"
    )]
    Expired {
        /// Whole days since it expired.
        days: u64,
    },
    /// A later snapshot of the algorithm was taken before.
    #[error(
        "its sequence number is {sequence}, one with {newest} was taken before: take it all the same with --allow-older"
    )]
    Older {
        /// The signature's sequence number.
        sequence: u64,
        /// The largest sequence number taken so far.
        newest: u64,
    },
}

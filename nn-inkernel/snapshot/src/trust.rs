//! Admission: the only way from a snapshot to one that a slot may hold.

use crate::{Snapshot, SnapshotError, VerifyingKey};
use std::ops::Deref;
use std::sync::Arc;

/// The signers whose snapshots are admitted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Trust {
    /// Any snapshot is admitted, signed or not.
    #[default]
    Any,
    /// Snapshots signed by one of these keys are admitted, and those that this process made or was built with.
    SignedBy(Vec<VerifyingKey>),
}

/// The limits that a signature's terms are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Admission {
    /// The current time, seconds since 1970.
    pub now_s: u64,
    /// The largest sequence number of this algorithm admitted so far.
    pub newest: Option<u64>,
    /// Whether older or expired snapshots are admitted all the same.
    pub allow_older: bool,
}

/// A snapshot that a slot may hold: [`Trust::admit`] alone makes one.
#[derive(Clone, PartialEq, Debug)]
pub struct TrustedSnapshot(Arc<Snapshot>);

impl TrustedSnapshot {
    /// The admitted snapshot, shared.
    pub fn shared(&self) -> &Arc<Snapshot> {
        &self.0
    }
}

impl Deref for TrustedSnapshot {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.0
    }
}

impl Trust {
    /// Admits only snapshots that this process made or was built with.
    pub const OURS: Trust = Trust::SignedBy(Vec::new());

    /// Admits `snapshot`, or says why not.
    ///
    /// # Errors
    /// [`SnapshotError::Unsigned`], [`SnapshotError::UnknownSigner`], [`SnapshotError::Signature`],
    /// [`SnapshotError::NoTerms`], [`SnapshotError::Expired`], [`SnapshotError::Older`].
    pub fn admit(
        &self,
        snapshot: impl Into<Arc<Snapshot>>,
        admission: &Admission,
    ) -> Result<TrustedSnapshot, SnapshotError> {
        let snapshot = snapshot.into();
        if let Trust::SignedBy(keys) = self
            && snapshot.is_from_elsewhere()
        {
            let signature = snapshot.signature().ok_or(SnapshotError::Unsigned)?;
            let key = keys.iter().find(|key| key.bytes() == signature.key);
            let key = key.ok_or_else(|| SnapshotError::UnknownSigner { key: signature.key_hex() })?;
            snapshot.verify(key)?;
            let terms = signature.terms().ok_or(SnapshotError::NoTerms)?;
            let Admission { now_s, newest, allow_older } = *admission;
            if terms.expires_s <= now_s && !allow_older {
                return Err(SnapshotError::Expired { days: (now_s - terms.expires_s) / SECONDS_PER_DAY });
            }
            if let Some(newest) = newest.filter(|newest| terms.sequence < *newest && !allow_older) {
                return Err(SnapshotError::Older { sequence: terms.sequence, newest });
            }
        }
        Ok(TrustedSnapshot(snapshot))
    }
}

const SECONDS_PER_DAY: u64 = 86_400;

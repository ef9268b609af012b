//! Attacks on signed snapshots: bytes changed anywhere, signatures moved, forged, replayed or expired.
#![allow(clippy::unwrap_used)]

mod support;

use ccplane_infer::Bits;
use ccplane_snapshot::{
    Admission, KeyError, SigningKey, Snapshot, SnapshotError, Terms, Trust, TrustedSnapshot, VerifyingKey,
};
use ccplane_testing::attack_scale;
use support::{TERMS, key, snapshot};

const NOW: Admission = Admission { now_s: 1_000, newest: None, allow_older: false };
/// Bytes of a signature's section, with terms and without.
const SIGNATURE_BYTES: usize = 120;
const SIGNATURE_BYTES_WITHOUT_TERMS: usize = 104;

fn trust() -> Trust {
    Trust::SignedBy(vec![key().verifying_key()])
}

/// Parses and admits bytes as a datapath's agent does.
fn arrives(bytes: &[u8], admission: &Admission) -> Result<TrustedSnapshot, SnapshotError> {
    trust().admit(Snapshot::parse(bytes)?, admission)
}

#[test]
fn no_changed_byte_is_admitted() {
    let good = snapshot(Bits::W8).sign(&key(), TERMS).to_bytes();
    assert!(arrives(&good, &NOW).is_ok());
    let signature_at = good.len() - SIGNATURE_BYTES;
    for at in 0..good.len() {
        for bit in 0..attack_scale(1, 8) {
            let mut changed = good.clone();
            changed[at] ^= 1 << ((at + bit) % 8);
            let refused = arrives(&changed, &NOW);
            assert!(refused.is_err(), "byte {at}, bit {bit}");
            // Nor is it called sound where nobody knows the key: the key itself is 24 bytes into the section.
            let checked = Snapshot::parse(&changed).and_then(|s| s.check_signature());
            assert!(checked.is_err(), "byte {at}, bit {bit}, of a signature at {signature_at}");
        }
    }
    for len in 0..good.len() {
        // Without its signature, it is whole and unsigned.
        let expected = if len == signature_at { Err(SnapshotError::Unsigned) } else { Ok(()) };
        match (arrives(&good[..len], &NOW), expected) {
            (Err(found), Err(expected)) => assert_eq!(found, expected),
            (found, _) => assert!(found.is_err(), "cut at {len}"),
        }
    }
}

#[test]
fn signatures_are_by_one_key_on_one_snapshot() {
    let other = SigningKey::generate().unwrap();
    let plain = snapshot(Bits::W8);
    let signed = plain.clone().sign(&key(), TERMS);
    assert_eq!(signed.verify(&key().verifying_key()), Ok(()));
    assert_eq!(signed.verify(&other.verifying_key()), Err(SnapshotError::Signature));
    assert_eq!(arrives(&plain.to_bytes(), &NOW), Err(SnapshotError::Unsigned));
    let theirs = arrives(&plain.clone().sign(&other, TERMS).to_bytes(), &NOW);
    assert_eq!(theirs, Err(SnapshotError::UnknownSigner { key: other.verifying_key().to_hex() }));
    // The signature of another snapshot, moved here.
    let moved = snapshot(Bits::W16).sign(&key(), TERMS).to_bytes();
    let moved = [plain.to_bytes(), moved[moved.len() - SIGNATURE_BYTES..].to_vec()].concat();
    assert_eq!(arrives(&moved, &NOW), Err(SnapshotError::Signature));
    let either = Trust::SignedBy(vec![other.verifying_key(), key().verifying_key()]);
    let parsed = || Snapshot::parse(&signed.to_bytes()).unwrap();
    assert!(either.admit(parsed(), &NOW).is_ok());
    // What this process made or was built with needs no signature; what it read does, whoever is trusted.
    assert!(Trust::OURS.admit(plain.clone(), &NOW).is_ok());
    assert!(matches!(Trust::OURS.admit(parsed(), &NOW), Err(SnapshotError::UnknownSigner { .. })));
    assert!(Trust::OURS.admit(Snapshot::built_in(plain.to_bytes().leak()).unwrap(), &NOW).is_ok());
    assert!(Trust::Any.admit(Snapshot::parse(&plain.to_bytes()).unwrap(), &NOW).is_ok());
}

/// A snapshot that was read does not become ours by being taken apart, nor does its network under other parts.
#[test]
fn parts_of_a_snapshot_that_was_read_stay_untrusted() {
    let plain = snapshot(Bits::W8);
    let signed = plain.clone().sign(&key(), TERMS);
    let read = || Snapshot::parse(&signed.to_bytes()).unwrap();
    let rebuilt = Snapshot::new(read().into_parts()).unwrap();
    let mut parts = plain.clone().into_parts();
    parts.network = read().network().clone();
    let dressed = Snapshot::new(parts).unwrap();
    for (what, theirs) in [("rebuilt", rebuilt), ("dressed", dressed)] {
        assert_eq!(theirs, plain, "{what}: the same numbers");
        assert_eq!(Trust::OURS.admit(theirs.clone(), &NOW), Err(SnapshotError::Unsigned), "{what}");
        assert_eq!(trust().admit(theirs, &NOW), Err(SnapshotError::Unsigned), "{what}");
    }
    // What was built in stays ours when a part of it is changed.
    let mut parts = Snapshot::built_in(plain.to_bytes().leak()).unwrap().into_parts();
    parts.provenance.seed += 1;
    assert!(Trust::OURS.admit(Snapshot::new(parts).unwrap(), &NOW).is_ok());
}

#[test]
fn older_and_expired_snapshots_are_refused() {
    let signed =
        |sequence, expires_s| snapshot(Bits::W8).sign(&key(), Terms { sequence, expires_s }).to_bytes();
    let bytes = signed(7, 2_000);
    for (newest, now_s, expected) in [
        (None, 0, Ok(())),
        (Some(6), 1_999, Ok(())),
        (Some(7), 1_999, Ok(())),
        (Some(8), 1_999, Err(SnapshotError::Older { sequence: 7, newest: 8 })),
        (None, 2_000, Err(SnapshotError::Expired { days: 0 })),
        (Some(8), 2_000 + 3 * 86_400, Err(SnapshotError::Expired { days: 3 })),
        (Some(u64::MAX), u64::MAX, Err(SnapshotError::Expired { days: (u64::MAX - 2_000) / 86_400 })),
    ] {
        let admission = Admission { now_s, newest, allow_older: false };
        assert_eq!(arrives(&bytes, &admission).map(drop), expected, "{admission:?}");
        assert!(arrives(&bytes, &Admission { allow_older: true, ..admission }).is_ok());
    }
    // The numbers are signed, too: those of one signature do not go with another.
    let (mut forged, later) = (bytes, signed(9, u64::MAX));
    let terms = forged.len() - SIGNATURE_BYTES + 8..forged.len() - SIGNATURE_BYTES + 24;
    forged[terms.clone()].copy_from_slice(&later[terms]);
    let allowed = Admission { allow_older: true, ..NOW };
    assert_eq!(arrives(&forged, &allowed), Err(SnapshotError::Signature));
}

/// A signature as version 0.1 made it, by the key of [`key`]: read, shown, and not admitted where signatures are asked
/// for.
#[test]
fn a_signature_without_terms_admits_nothing() {
    use ed25519_dalek::Signer as _;
    let plain = snapshot(Bits::W8);
    let secret = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
    let signature = secret.sign(&[&b"ccplane snapshot\0"[..], &plain.hash().0].concat());
    let length = (SIGNATURE_BYTES_WITHOUT_TERMS as u32 - 8).to_le_bytes();
    let public = secret.verifying_key().to_bytes();
    let old = [&plain.to_bytes()[..], &7_u32.to_le_bytes(), &length, &public, &signature.to_bytes()].concat();
    let read = Snapshot::parse(&old).unwrap();
    assert_eq!((read.to_bytes(), read.signature().unwrap().terms()), (old.clone(), None));
    assert_eq!(read.check_signature(), Ok(()));
    for allow_older in [false, true] {
        assert_eq!(arrives(&old, &Admission { allow_older, ..NOW }), Err(SnapshotError::NoTerms));
    }
    // Nor does it pass with terms that somebody adds.
    let length = (SIGNATURE_BYTES as u32 - 8).to_le_bytes();
    let terms = [&1_u64.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
    let dressed =
        [&plain.to_bytes()[..], &8_u32.to_le_bytes(), &length, &terms, &public, &signature.to_bytes()];
    assert_eq!(arrives(&dressed.concat(), &NOW), Err(SnapshotError::Signature));
}

#[test]
fn keys_of_the_wrong_kind_are_refused() {
    let key = SigningKey::generate().unwrap();
    let (secret, public) = (key.to_text(), key.verifying_key().to_text());
    assert_eq!(SigningKey::from_text(&secret).unwrap().to_text(), secret);
    assert!(VerifyingKey::from_text(&public).unwrap() == key.verifying_key());
    assert!(VerifyingKey::from_text(&key.verifying_key().to_hex()).unwrap() == key.verifying_key());
    let signs = |text: &str| SigningKey::from_text(text).map(drop);
    assert_eq!(signs(&public), Err(KeyError::Public));
    assert_eq!(signs(&key.verifying_key().to_hex()), Err(KeyError::Untagged));
    assert_eq!(signs("ccplane-secret-key 12"), Err(KeyError::Text { found: 2 }));
    assert_eq!(VerifyingKey::from_text(&secret).map(drop), Err(KeyError::Secret));
    assert!(VerifyingKey::from_text(&"0".repeat(64)).is_err(), "of small order");
    let digits = secret.split(' ').nth(1).unwrap().trim();
    assert!(!format!("{key:?}").contains(digits), "a secret does not print");
}

//! Fuzz targets: no input panics; whatever parses is valid and encodes as the same bytes.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero, `cargo bolero test -p
//! ccplane-snapshot --test suite fuzz::bytes_that_parse_encode_as_the_same` runs one guided by coverage.

use crate::support::{TERMS, forge, key, snapshot};
use ccplane_infer::{Bits, Prepared};
use ccplane_snapshot::{DeployOptions, Snapshot, SnapshotError};
use ccplane_testing::fuzz::{Fuzz, shape};

/// A signature's section, at the end of a file.
const SIGNATURE_BYTES: usize = 120;

fn check(bytes: &[u8]) {
    let Ok(snapshot) = Snapshot::parse(bytes) else { return };
    assert_eq!(snapshot.to_bytes(), bytes, "canonical");
    let image = snapshot.image(&DeployOptions { noise_q16: 9, ..DeployOptions::ONLY });
    // Its own proof, on the packed words.
    Prepared::new(snapshot.shape(), &image).unwrap();
}

/// A snapshot with some of its content's bytes replaced and its hash set right.
fn mutate((wide, edits, cut): &(bool, Vec<(u16, u8)>, u8)) -> Vec<u8> {
    let key = key();
    let bytes = snapshot(if *wide { Bits::W16 } else { Bits::W8 }).sign(&key, TERMS).to_bytes();
    forge(&bytes, |content| {
        for (at, byte) in edits {
            let at = usize::from(*at) % content.len();
            content[at] = *byte;
        }
        // Most keep their length, so that they get past the first sections.
        if *cut < 32 {
            content.truncate(content.len() - usize::from(*cut));
        }
    })
}

#[test]
fn bytes_that_parse_encode_as_the_same() {
    bolero::check!().for_each(check);
}

#[test]
fn mutated_content_that_parses_encodes_as_the_same() {
    check(&mutate(&(false, Vec::new(), 255)));
    assert!(Snapshot::parse(&mutate(&(true, Vec::new(), 255))).is_ok());
    bolero::check!().with_type::<(bool, Vec<(u16, u8)>, u8)>().for_each(|m| check(&mutate(m)));
}

/// Replaces bytes of the content alone and corrects its hash; bytes at the end are the signature's.
#[test]
fn drawn_content_that_parses_encodes_as_the_same() {
    let signed = snapshot(Bits::W8).sign(&key(), TERMS).to_bytes();
    let target =
        Fuzz::new("snapshot", env!("CARGO_MANIFEST_DIR")).seeds([signed[48..].to_vec()]).max_bytes(1024);
    target.run(|bytes| {
        let (content, signature) = bytes.split_at(bytes.len().saturating_sub(SIGNATURE_BYTES));
        let mut file = forge(&signed, |whole| content.clone_into(whole));
        file.truncate(file.len() - SIGNATURE_BYTES);
        file.extend(signature);
        check(&file);
        match Snapshot::parse(&file) {
            Ok(snapshot) => u64::from(snapshot.check_signature().is_ok()),
            Err(SnapshotError::Spec(error)) => shape(&error),
            Err(SnapshotError::Network(error)) => shape(&error),
            Err(SnapshotError::Truncated { field, .. }) => field.len() as u64,
            Err(error) => shape(&error),
        }
    });
}

//! Fuzz targets: no bytes panic a reader; what is read is sound.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`.
#![allow(clippy::unwrap_used)]

mod toys;

use ccplane_learn::curves::read_events;
use ccplane_learn::{ActorCritic, Checkpoint, Policy};

fn check(bytes: &[u8]) {
    if let Ok(policy) = Policy::from_bytes(bytes) {
        let again = Policy::from_bytes(&policy.to_bytes().unwrap()).unwrap();
        assert_eq!(again, policy);
        let action = ActorCritic::new(&policy).mean(&vec![0.5; policy.architecture().inputs]);
        assert!(
            !action.is_nan()
                || policy.actor().layers().iter().any(|l| l.weights.iter().any(|w| w.abs() > 1e30))
        );
    }
    let _ = Checkpoint::from_bytes(bytes);
    let _ = read_events(bytes);
}

#[test]
fn any_bytes() {
    bolero::check!().for_each(check);
}

#[test]
fn altered_policies() {
    let policy = toys::policy(2, &[3], None).to_bytes().unwrap();
    let header = 8 + u64::from_le_bytes(*policy.first_chunk().unwrap()) as usize;
    bolero::check!().with_type::<(bool, Vec<(u16, u8)>)>().for_each(|(in_header, edits)| {
        let mut bytes = policy.clone();
        for (at, to) in edits {
            let range = if *in_header { 0..header } else { header..bytes.len() };
            let at = range.start + usize::from(*at) % range.len();
            bytes[at] = *to;
        }
        check(&bytes);
    });
}

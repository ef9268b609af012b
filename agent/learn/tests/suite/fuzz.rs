//! Fuzz targets: no bytes panic a reader; what is read is sound.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`.

use ccplane_learn::{
    ActorCritic, Checkpoint, Learner, Native, Policy, PolicyError, PpoConfig, PreferenceBlock, Progress,
};
use ccplane_testing::fuzz::{Fuzz, shape};
use std::hash::{DefaultHasher, Hash, Hasher};

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
    if let Ok(checkpoint) = Checkpoint::from_bytes(bytes) {
        let again = Checkpoint::from_bytes(&checkpoint.to_bytes().unwrap()).unwrap();
        // A moment that is no number is not equal to itself.
        assert_eq!(format!("{again:?}"), format!("{checkpoint:?}"));
        let mut learner = Native::new(&crate::toys::policy(2, &[3], None), PpoConfig::default()).unwrap();
        let _ = learner.restore(&checkpoint.state);
    }
}

/// A safetensors file with bytes of its header, or of what follows, replaced.
fn altered(file: &[u8], in_header: bool, edits: &[(u16, u8)]) -> Vec<u8> {
    let header = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    let mut bytes = file.to_vec();
    for (at, to) in edits {
        let range = if in_header { 0..header } else { header..bytes.len() };
        let at = range.start + usize::from(*at) % range.len();
        bytes[at] = *to;
    }
    bytes
}

#[test]
fn no_bytes_panic_the_readers_of_policies_and_checkpoints() {
    bolero::check!().for_each(check);
}

#[test]
fn an_altered_policy_is_refused_or_computes_a_number() {
    let policy = crate::toys::policy(2, &[3], None).to_bytes().unwrap();
    bolero::check!().with_type::<(bool, Vec<(u16, u8)>)>().for_each(|(in_header, edits)| {
        check(&altered(&policy, *in_header, edits));
    });
}

/// The state of a learner after three updates.
fn checkpoint(policy: &Policy) -> Checkpoint {
    let state = Native::new(policy, PpoConfig::default()).unwrap().state();
    let progress = Progress { updates: 3, best_reward: Some(0.5), ..Progress::default() };
    Checkpoint { state, best: Some(policy.clone()), progress, fingerprint: "{}".to_owned() }
}

#[test]
fn an_altered_checkpoint_is_refused_or_reads_back_as_itself() {
    let checkpoint = checkpoint(&crate::toys::policy(2, &[3], None));
    let bytes = checkpoint.to_bytes().unwrap();
    assert_eq!(Checkpoint::from_bytes(&bytes).unwrap(), checkpoint);
    bolero::check!().with_type::<(bool, Vec<(u16, u8)>)>().for_each(|(in_header, edits)| {
        check(&altered(&bytes, *in_header, edits));
    });
}

#[test]
fn a_checkpoint_of_another_format_is_refused_and_one_without_is_of_the_first() {
    let checkpoint = checkpoint(&crate::toys::policy(2, &[3], None));
    let bytes = checkpoint.to_bytes().unwrap();
    // Its own format: those of its policies are quoted twice.
    let first = br#"{\"format\":1,"#;
    let at = bytes.windows(first.len()).position(|window| window == first).unwrap();
    let with = |text: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + text.len()].copy_from_slice(text);
        Checkpoint::from_bytes(&bytes)
    };
    let without = format!("{:<width$}", "{", width = first.len());
    assert_eq!(with(without.as_bytes()).unwrap(), checkpoint);
    let refused = with(br#"{\"format\":2,"#).unwrap_err().to_string();
    assert_eq!(refused, "metadata `ccplane`: a checkpoint of format 2, this version reads 1");
}

/// The reason why it is refused, as the words of the refusal: numbers and what the input itself says tell nothing.
fn way(error: &PolicyError) -> u64 {
    let text = error.to_string();
    let quoted = text.split('`').step_by(2).flat_map(str::chars);
    let words: String = quoted.filter(|c| c.is_ascii_lowercase() || *c == ' ').take(80).collect();
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    hasher.finish() ^ shape(error)
}

/// Tokens of the headers of files of tensors.
const TENSORS: [&str; 5] = ["{", "}", "\"", "[0,4]", "\"dtype\":\"F32\""];

#[test]
fn a_drawn_policy_is_refused_or_read_again_once_written() {
    let [policy, deep, asked] = [
        crate::toys::policy(1, &[1], None),
        crate::toys::policy(2, &[3, 2], None),
        crate::toys::policy(3, &[3], Some(PreferenceBlock { inputs: 2, width: 1 })),
    ]
    .map(|policy| policy.to_bytes().unwrap());
    let tokens = [
        "\"shape\":",
        "\"data_offsets\":",
        "actor.0.weight",
        "actor.1.bias",
        "critic.0.weight",
        "log_std",
        "\\\"format\\\":1",
        "\\\"preference\\\":",
        "F64",
        "null",
        "relu",
    ];
    let target = Fuzz::new("policy", env!("CARGO_MANIFEST_DIR"))
        .seeds([&policy, &deep, &asked])
        .tokens(TENSORS)
        .tokens(tokens);
    let longest = deep.len().max(asked.len());
    target.max_bytes(longest + 64).max_kept_bytes(longest + 64).part(2_000).run(|bytes| {
        match Policy::from_bytes(bytes) {
            Ok(policy) => {
                // Not compared: a weight that is no number is not equal to itself.
                assert!(Policy::from_bytes(&policy.to_bytes().unwrap()).is_ok());
                1
            }
            Err(error) => way(&error),
        }
    });
}

#[test]
fn a_drawn_checkpoint_is_refused_or_read_again_once_written() {
    let seeds = [crate::toys::policy(1, &[1], None), crate::toys::policy(2, &[2], None)]
        .map(|policy| checkpoint(&policy).to_bytes().unwrap());
    let tokens =
        ["\"shape\":[1]", "\"data_offsets\":", "actor.0.weight", "log_std", "null", "\\\"updates\\\":"];
    let longest = seeds[0].len().max(seeds[1].len());
    let target = Fuzz::new("learner-checkpoint", env!("CARGO_MANIFEST_DIR"))
        .seeds(&seeds)
        .tokens(TENSORS)
        .tokens(tokens);
    target.max_bytes(longest + 64).max_kept_bytes(longest + 64).part(1_000).run(|bytes| {
        match Checkpoint::from_bytes(bytes) {
            Ok(checkpoint) => {
                assert!(Checkpoint::from_bytes(&checkpoint.to_bytes().unwrap()).is_ok());
                1
            }
            Err(error) => way(&error),
        }
    });
}

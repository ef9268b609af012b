//! Snapshots to test with.
#![allow(dead_code)]

use ccplane_infer::Bits;
use ccplane_snapshot::{
    Action, ActionMap, Calibration, Feature, Fidelity, Guards, Hash, Layer, Network, Parts, PolicySpec,
    Provenance, SigningKey, Snapshot, Terms,
};

pub fn action() -> Action {
    Action { map: ActionMap::Rate, bound_q16: 2 << 16, step_q20: 26_214, knob_min: 4_000, knob_max: 1 << 32 }
}

pub fn features() -> Vec<Feature> {
    let ranges = [
        ("latency_inflation", -1_000, 10_000),
        ("latency_ratio", 1_000, 10_000),
        ("any", i32::MIN, i32::MAX),
    ];
    ranges.map(|(name, lo, hi)| Feature { name: name.to_owned(), lo, hi }).to_vec()
}

/// Two layers, 3 -> 4 -> 1, with weights that follow no pattern.
pub fn layers() -> Vec<Layer> {
    let weight = |n: i16| (n * 79) % 97 * 5 - 250;
    vec![
        Layer {
            weights: (0..12).map(weight).collect(),
            biases: vec![1_000, -2_000, 0, 30_000],
            tables: vec![0, 2, 7, 1],
        },
        Layer { weights: (0..4).map(|n| weight(n + 3)).collect(), biases: vec![-500], tables: Vec::new() },
    ]
}

pub fn network(bits: Bits) -> Network {
    Network::new(bits, &[3, 4, 1], layers(), 0x9000_0000, 33).unwrap()
}

pub fn parts(bits: Bits) -> Parts {
    Parts {
        spec: PolicySpec::new("aurora", features(), action()).unwrap(),
        network: network(bits),
        guards: Guards { trip_limit: 64, clip_limit: 1 },
        calibration: Calibration {
            inputs: vec![(-5, 500), (1_000, 1_900), (7, 7)],
            sums: vec![90_000, 70_000],
        },
        fidelity: Fidelity {
            visited_mean_error: 0.001,
            visited_max_error: 0.01,
            visited_samples: 4_000,
            off_mean_error: 0.002,
            off_max_error: 0.02,
            off_samples: 12_288,
            min_action_q16: -60_000,
            max_action_q16: 70_000,
        },
        provenance: Provenance {
            algorithm: "aurora".to_owned(),
            seed: 7,
            steps: 4_000_000,
            command: "ccplane train aurora --seed 7".to_owned(),
            parent: Some(Hash([0xab; 32])),
            created_by: "ccplane 0.1.0".to_owned(),
        },
    }
}

pub fn snapshot(bits: Bits) -> Snapshot {
    Snapshot::new(parts(bits)).unwrap()
}

/// The content's bytes of a file, changed, with the hash set right again.
pub fn forge(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let mut content = bytes[48..48 + len].to_vec();
    change(&mut content);
    let hash = Sha256::new().chain_update(&bytes[..12]).chain_update(&content).finalize();
    [&bytes[..12], &(content.len() as u32).to_le_bytes(), &hash, &content, &bytes[48 + len..]].concat()
}

/// Terms that hold for long.
pub const TERMS: Terms = Terms { sequence: 5, expires_s: 1 << 40 };

/// A key that is always the same.
pub fn key() -> SigningKey {
    SigningKey::from_text(&format!("ccplane-secret-key {}", "07".repeat(32))).unwrap()
}

//! Files read back as they were written, and nothing else is read.

use crate::support::{TERMS, action, features, forge, key, layers, parts, snapshot};
use ccplane_infer::{Bits, Model, Prepared, check, image};
use ccplane_snapshot::{
    ActionMap, DeployOptions, Feature, Hash, MAX_SNAPSHOT_BYTES, Network, NetworkError, PolicySpec, Snapshot,
    SnapshotError, SpecError,
};
use std::num::NonZeroU32;

const DEPLOY: DeployOptions = DeployOptions { uid: NonZeroU32::new(5).unwrap(), noise_q16: 3_277, pin: true };

#[test]
fn files_read_as_they_were_written() {
    for bits in [Bits::W8, Bits::W16] {
        let snapshot = snapshot(bits);
        let bytes = snapshot.to_bytes();
        assert_eq!(Snapshot::parse(&bytes).unwrap(), snapshot);
        assert_eq!(Snapshot::parse(&bytes).unwrap().to_bytes(), bytes);
        assert_eq!(Snapshot::new(snapshot.clone().into_parts()).unwrap(), snapshot);
        let signed = snapshot.clone().sign(&key(), TERMS);
        assert_eq!(Snapshot::parse(&signed.to_bytes()).unwrap(), signed);
        assert_eq!(signed.hash(), snapshot.hash(), "signing does not rename");
    }
}

/// The format is a promise: a change that alters these is a new format version.
#[test]
fn hashes_and_actions_are_the_golden_ones() {
    let hash = |bits| snapshot(bits).hash().to_string();
    assert_eq!(hash(Bits::W8), "678c47c3f4505feaac9001b42c140a68b7b43f5053ffffd9227748effcdef536");
    assert_eq!(hash(Bits::W16), "3fad1ac23115cf586ef98b17991669f8f2a395650055662f543b41021081f304");
    assert_eq!(snapshot(Bits::W8).hash().short().len(), 12);
    assert_eq!(hash(Bits::W8).parse::<Hash>().unwrap(), snapshot(Bits::W8).hash());
    let actions = |bits| {
        let snapshot = snapshot(bits);
        let image = snapshot.image(&DEPLOY);
        let model = Model::new(snapshot.shape(), &image).unwrap();
        [[0, 0, 0], [10_000, 10_000, i32::MAX], [-1_000, 10_000, 5], [4_000, 1_000, i32::MIN]]
            .map(|cells| model.infer(&cells).action_q16)
    };
    assert_eq!(
        [actions(Bits::W8), actions(Bits::W16)],
        [[7_972, -6_663, 7_132, 6_735], [57_134, -63_494, 21_567, 23_979]]
    );
}

#[test]
fn images_are_what_datapaths_take() {
    for bits in [Bits::W8, Bits::W16] {
        let snapshot = snapshot(bits);
        let words = snapshot.image(&DEPLOY);
        assert_eq!(check(snapshot.shape(), &words), Ok(()));
        assert!(Prepared::new(snapshot.shape(), &words).is_ok());
        assert_eq!(image::u32_at(&words, image::UID), 5);
        assert_eq!(image::u32_at(&words, image::FLAGS), image::PIN);
        assert_eq!(image::u32_at(&words, image::TRIP_LIMIT), 64);
        assert_eq!(image::u32_at(&words, image::CLIP_LIMIT), 1);
        assert_eq!(image::u32_at(&words, image::MAP), image::map::RATE);
        // 0.05 in Q16, times 2^16, over a draw's deviation.
        assert_eq!(image::i64_at(&words, image::NOISE_MULT), (3_277 * 65_536 + 18_918) / 37_837);
        let quiet = snapshot.image(&DeployOptions { noise_q16: 0, pin: false, ..DEPLOY });
        assert_eq!(image::i64_at(&quiet, image::NOISE_MULT), 0);
        assert_eq!(image::u32_at(&quiet, image::FLAGS), 0);
        let loud = snapshot.image(&DeployOptions { noise_q16: u32::MAX, ..DEPLOY });
        assert_eq!(check(snapshot.shape(), &loud), Ok(()));
    }
}

#[test]
fn truncated_extended_and_altered_files_are_refused() {
    let bytes = snapshot(Bits::W8).to_bytes();
    for len in 0..bytes.len() {
        assert!(
            matches!(Snapshot::parse(&bytes[..len]), Err(SnapshotError::Truncated { .. })),
            "{len} bytes"
        );
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(Snapshot::parse(&longer), Err(SnapshotError::Truncated { field: "section.tag", .. })));
    for at in 0..bytes.len() {
        let mut altered = bytes.clone();
        altered[at] ^= 0x10;
        let error = Snapshot::parse(&altered).unwrap_err();
        match at {
            0..8 => assert_eq!(error, SnapshotError::Magic),
            8..12 => assert!(matches!(error, SnapshotError::Version { .. })),
            12..16 => assert!(matches!(
                error,
                SnapshotError::Truncated { field: "content", .. } | SnapshotError::Altered { .. }
            )),
            _ => assert!(matches!(error, SnapshotError::Altered { .. })),
        }
    }
    let large = vec![0; MAX_SNAPSHOT_BYTES + 1];
    assert_eq!(Snapshot::parse(&large), Err(SnapshotError::TooLarge { found: MAX_SNAPSHOT_BYTES + 1 }));
}

/// Forged content with a right hash gets no further than honest content.
#[test]
fn forged_content_is_refused_by_its_fields() {
    let bytes = snapshot(Bits::W8).to_bytes();
    let find = |needle: &[u8]| bytes[48..].windows(needle.len()).position(|w| w == needle).unwrap();
    let forged = |at: usize, with: &[u8]| {
        let forged = forge(&bytes, |content| content[at..at + with.len()].copy_from_slice(with));
        Snapshot::parse(&forged).unwrap_err()
    };
    let section = |error| match error {
        SnapshotError::Section { found, expected } => (found, expected),
        other => panic!("{other}"),
    };
    assert_eq!(section(forged(0, &[2])), (2, 1));
    assert!(matches!(forged(4, &[0xff]), SnapshotError::Trailing { .. } | SnapshotError::Truncated { .. }));
    assert!(matches!(forged(4, &[0, 0, 0, 0xff]), SnapshotError::Truncated { field: "section", .. }));
    let name = find(b"latency_ratio");
    assert!(matches!(forged(name, b"\x1b[2J"), SnapshotError::Spec(SpecError::Name { .. })));
    assert!(matches!(forged(name, &[0xff]), SnapshotError::Text { field: "policy.inputs.name", .. }));
    assert!(matches!(forged(name - 4, &[65]), SnapshotError::Text { .. }));
    let range = name + "latency_ratio".len();
    let error = forged(range, &10_000i32.to_le_bytes());
    assert_eq!(
        error,
        SnapshotError::Spec(SpecError::Range { name: "latency_ratio".to_owned(), lo: 10_000, hi: 10_000 })
    );
    let act = find(&i32::MAX.to_le_bytes()) + 4;
    assert!(matches!(forged(act, &[9]), SnapshotError::Range { field: "policy.action.map", found: 9, .. }));
    assert!(matches!(forged(act + 4, &[0; 4]), SnapshotError::Spec(SpecError::Bound { found: 0 })));
    assert!(matches!(forged(act + 8, &[0xff; 4]), SnapshotError::Spec(SpecError::Change { .. })));
    assert!(matches!(forged(act + 12, &[0; 8]), SnapshotError::Spec(SpecError::Knob { min: 0, .. })));
    let net = act + 28 + 8;
    assert!(matches!(forged(net, &[7]), SnapshotError::Range { found: 7, .. }));
    assert!(matches!(forged(net + 4, &[9]), SnapshotError::Range { field: "network.widths", found: 9, .. }));
    assert!(matches!(forged(net + 8, &[65]), SnapshotError::Range { field: "network.width", found: 65, .. }));
    let weights = net + 4 + 4 + 12;
    let overflow = forged(weights, &[0xff, 0x7f]);
    assert!(
        matches!(
            overflow,
            SnapshotError::Network(NetworkError::Overflow { layer: 1, neuron: 1, limit: 0x10_0000, .. })
        ),
        "{overflow}"
    );
    let tables = weights + 24 + 16;
    let error = forged(tables + 1, &[16]);
    assert_eq!(error, SnapshotError::Network(NetworkError::Table { layer: 1, neuron: 2, found: 16 }));
    let out = tables + 4 + 8 + 4;
    assert!(matches!(forged(out, &[0; 8]), SnapshotError::Network(NetworkError::OutMult { found: 0 })));
    assert!(matches!(forged(out + 8, &[64]), SnapshotError::Network(NetworkError::OutShift { found: 64 })));
    let guards = out + 12 + 8;
    assert!(matches!(forged(guards, &[0xff; 4]), SnapshotError::Range { field: "guards.trip_limit", .. }));
    let mean = find(&0.001f64.to_le_bytes());
    // The largest error is 0.01.
    for bad in [f64::NAN, f64::INFINITY, -0.5, -0.0, 0.011] {
        let error = forged(mean, &bad.to_le_bytes());
        assert!(matches!(error, SnapshotError::Share { field: "fidelity.visited_mean_error", .. }));
    }
    for bad in [f64::NAN, f64::INFINITY, -0.5, 1.1] {
        let error = forged(mean + 8, &bad.to_le_bytes());
        assert!(matches!(error, SnapshotError::Share { field: "fidelity.visited_max_error", max: 1.0, .. }));
    }
    let command = find(b"ccplane train");
    assert!(matches!(forged(command, b"\n"), SnapshotError::Text { field: "provenance.command", .. }));
}

#[test]
fn parts_that_do_not_fit_each_other_are_refused() {
    let with = |change: &dyn Fn(&mut ccplane_snapshot::Parts)| {
        let mut parts = parts(Bits::W8);
        change(&mut parts);
        Snapshot::new(parts).unwrap_err()
    };
    let disagree = |error, expected: &str| match error {
        SnapshotError::Disagree { field, .. } => assert_eq!(field, expected),
        other => panic!("{other}"),
    };
    let two = PolicySpec::new("x", features()[..2].to_vec(), action()).unwrap();
    disagree(with(&|p| p.spec = two.clone()), "policy.inputs");
    disagree(with(&|p| p.calibration.inputs.truncate(1)), "calibration.inputs");
    disagree(with(&|p| p.calibration.sums.push(1)), "calibration.sums");
    let range = |error, expected: &str| match error {
        SnapshotError::Range { field, .. } => assert_eq!(field, expected),
        other => panic!("{other}"),
    };
    range(with(&|p| p.calibration.inputs[0] = (2, 1)), "calibration.inputs.lo");
    range(with(&|p| p.calibration.sums[0] = 1 << 20), "calibration.sums");
    range(with(&|p| p.guards.clip_limit = 65), "guards.clip_limit");
    range(with(&|p| p.fidelity.max_action_q16 = -70_000), "fidelity.min_action_q16");
    let long = "x".repeat(1025);
    let text = with(&|p| p.provenance.created_by.clone_from(&long));
    assert_eq!(text, SnapshotError::Text { field: "provenance.created_by", max: 1024 });
}

#[test]
fn networks_are_refused_by_neuron() {
    let new = |change: fn(&mut Vec<ccplane_snapshot::Layer>)| {
        let mut layers = layers();
        change(&mut layers);
        Network::new(Bits::W8, &[3, 4, 1], layers, 1, 0).unwrap_err()
    };
    assert!(matches!(new(|l| drop(l.pop())), NetworkError::Count { what: "layers", .. }));
    assert!(matches!(new(|l| l[0].weights.push(0)), NetworkError::Count { layer: 1, what: "weights", .. }));
    assert!(matches!(new(|l| l[1].biases.push(0)), NetworkError::Count { layer: 2, what: "biases", .. }));
    assert!(matches!(new(|l| l[1].tables.push(0)), NetworkError::Count { layer: 2, what: "tables", .. }));
    let edge = |bias: i32| {
        let mut layers = layers();
        layers[0].weights[6..9].copy_from_slice(&[-8_000, 200, 50]);
        layers[0].biases[2] = bias;
        Network::new(Bits::W8, &[3, 4, 1], layers, 1, 0).map(drop)
    };
    let free = (1 << 20) - 1 - 8_250 * 127;
    assert_eq!(edge(free), Ok(()));
    assert_eq!(edge(-free), Ok(()));
    let over =
        NetworkError::Overflow { layer: 1, neuron: 3, max_activation: 127, reach: 1 << 20, limit: 1 << 20 };
    assert_eq!(edge(free + 1), Err(over));
    assert_eq!(edge(-free - 1), Err(over));
    assert!(edge(i32::MIN).is_err());
}

#[test]
fn specs_are_refused_by_field() {
    let named = |name: &str| Feature { name: name.to_owned(), lo: 0, hi: 1 };
    for name in ["", "two words", "bell\u{7}", "naïve", &"x".repeat(65)] {
        assert!(
            matches!(PolicySpec::new("a", vec![named(name)], action()), Err(SpecError::Name { .. })),
            "{name}"
        );
        assert!(matches!(PolicySpec::new(name, vec![named("a")], action()), Err(SpecError::Name { .. })));
    }
    assert_eq!(PolicySpec::new("a", vec![], action()), Err(SpecError::Inputs { found: 0 }));
    assert_eq!(PolicySpec::new("a", vec![named("a"); 65], action()), Err(SpecError::Inputs { found: 65 }));
    let json = serde_json::to_string(&PolicySpec::new("a", features(), action()).unwrap()).unwrap();
    assert_eq!(
        serde_json::from_str::<PolicySpec>(&json).unwrap(),
        PolicySpec::new("a", features(), action()).unwrap()
    );
    let swapped = json.replace("\"lo\":1000", "\"lo\":10001");
    assert!(serde_json::from_str::<PolicySpec>(&swapped).unwrap_err().to_string().contains("latency_ratio"));
    assert!(serde_json::from_str::<PolicySpec>(&json.replace("\"map\"", "\"mop\"")).is_err());
    assert_eq!(ActionMap::from_code(3), None);
}

#[test]
fn inputs_are_clipped_then_linear() {
    let spec = PolicySpec::new("a", features(), action()).unwrap();
    let mut out = [9.0; 3];
    spec.normalise(&[-1_000, 10_001, i32::MIN], &mut out);
    assert_eq!(out, [-1.0, 1.0, -1.0]);
    spec.normalise(&[4_500], &mut out);
    assert_eq!(out[..2], [0.0, -1.0], "missing cells are 0, which is below the ratio's range");
    assert!(out[2].abs() < 1e-6);
}

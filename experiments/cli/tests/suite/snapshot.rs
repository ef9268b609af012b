//! `ccplane snapshot`, where it needs no agent, as a process.

use ccplane_alg::Algorithm;
use ccplane_algs::Aurora;
use ccplane_env::spec::{self, Steps};
use ccplane_learn::{Architecture, Policy};
use ccplane_snapshot::Snapshot;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

fn ccplane(dir: &Path, args: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_ccplane");
    Command::new(binary).arg("snapshot").args(args).current_dir(dir).output().unwrap()
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let output = ccplane(dir, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command whose input is wrong, and returns its message; the exit code is 2.
fn refused(dir: &Path, args: &[&str]) -> String {
    let output = ccplane(dir, args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_policy_is_fitted_to_the_links_that_its_command_names() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let spec = spec::aurora(Steps::PUBLISHED).unwrap();
    let mut policy = Policy::initial(Architecture::aurora(), spec, -0.5, 7).unwrap();
    policy.provenance.command = "ccplane train --algorithm aurora --config published --seed 7".to_owned();
    policy.write(&dir.join("p.safetensors")).unwrap();
    let built = |config: &[&str]| {
        let build = ["build", "--policy", "p.safetensors", "--out", "p.snapshot", "--episodes", "2"];
        ok(dir, &[&build, config].concat());
        fs::read(dir.join("p.snapshot")).unwrap()
    };
    let own = built(&[]);
    assert_eq!(own, built(&["--config", "published"]));
    assert_ne!(own, built(&["--config", "real"]));
}

#[test]
fn a_policy_becomes_a_snapshot_that_can_be_signed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let spec = spec::aurora(Steps::REAL).unwrap();
    let policy = Policy::initial(Architecture::aurora(), spec, -0.5, 7).unwrap();
    policy.write(&dir.join("p.safetensors")).unwrap();

    let build = ["build", "--policy", "p.safetensors", "--out", "p.snapshot", "--episodes", "3", "--json"];
    let built: serde_json::Value = serde_json::from_str(&ok(dir, &build)).unwrap();
    let snapshot = Snapshot::parse(&fs::read(dir.join("p.snapshot")).unwrap()).unwrap();
    assert_eq!(built["hash"], snapshot.hash().to_string());
    assert_eq!((snapshot.spec().algorithm(), snapshot.provenance().seed), (Aurora::default().name(), 7));
    assert!(snapshot.fidelity().visited_mean_error <= 0.01, "{:?}", snapshot.fidelity());
    assert!(snapshot.fidelity().visited_samples > 300);
    let inspected: serde_json::Value =
        serde_json::from_str(&ok(dir, &["inspect", "p.snapshot", "--json"])).unwrap();
    assert_eq!(inspected, built);
    let text = ok(dir, &["inspect", "p.snapshot"]);
    assert!(
        text.contains(&snapshot.hash().to_string()) && text.contains("30 -> 32 -> 16 -> 1, tanh"),
        "{text}"
    );

    ok(dir, &["keygen", "ours"]);
    ok(dir, &["keygen", "theirs"]);
    assert_eq!(fs::metadata(dir.join("ours")).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!ccplane(dir, &["keygen", "ours"]).status.success(), "a key is never overwritten");
    assert!(ok(dir, &["verify", "p.snapshot"]).contains("not signed"));
    assert!(refused(dir, &["verify", "p.snapshot", "--key", "ours.pub"]).contains("not signed"));
    ok(dir, &["sign", "p.snapshot", "--key", "ours", "--out", "signed.snapshot"]);
    let unchecked = ccplane(dir, &["verify", "signed.snapshot"]);
    let text = String::from_utf8(unchecked.stdout).unwrap();
    assert_eq!(unchecked.status.code(), Some(3), "{text}");
    assert!(text.contains("signature not checked: no key") && !text.contains("ok"), "{text}");
    let verified = ok(dir, &["verify", "signed.snapshot", "--key", "theirs.pub", "--key", "ours.pub"]);
    assert!(verified.contains(&snapshot.hash().to_string()), "signing does not rename: {verified}");
    assert!(refused(dir, &["verify", "signed.snapshot", "--key", "theirs.pub"]).contains("not trusted"));

    let mut bytes = fs::read(dir.join("signed.snapshot")).unwrap();
    bytes[200] ^= 1;
    fs::write(dir.join("altered.snapshot"), bytes).unwrap();
    assert!(refused(dir, &["inspect", "altered.snapshot"]).contains("altered"));
    let strict = ["build", "--policy", "p.safetensors", "--out", "none", "--episodes", "1", "--budget", "0"];
    assert!(refused(dir, &strict).contains("not true enough"));
    assert!(!dir.join("none").exists());
    assert!(refused(dir, &["build", "--policy", "ours", "--out", "none"]).contains("ours"));
}

#[test]
fn a_network_from_elsewhere_becomes_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // A state_dict of torch's: the actor alone.
    let policy =
        Policy::initial(Architecture::aurora(), spec::aurora(Steps::REAL).unwrap(), -0.5, 7).unwrap();
    policy.write(&dir.join("p.safetensors")).unwrap();
    let build = ["build", "--out", "p.snapshot", "--episodes", "2"];
    let model = [&build[..], &["p.safetensors", "--algorithm", "aurora"]].concat();
    assert!(refused(dir, &model).contains("tanh or relu"));
    let model = [&model[..], &["--activation", "tanh"]].concat();
    assert!(refused(dir, &model).contains("layer 4"), "actor and critic are no chain");
    ok(dir, &[&model[..], &["--tensors", "actor."]].concat());
    let snapshot = Snapshot::parse(&fs::read(dir.join("p.snapshot")).unwrap()).unwrap();
    assert_eq!(snapshot.spec().algorithm(), "aurora");
    assert_eq!(snapshot.provenance().command, "ccplane snapshot build p.safetensors");
    // The same integers as from the policy file.
    ok(dir, &[&build[..], &["--policy", "p.safetensors"]].concat());
    let own = Snapshot::parse(&fs::read(dir.join("p.snapshot")).unwrap()).unwrap();
    assert_eq!(own.fidelity(), snapshot.fidelity());

    let models = concat!(env!("CARGO_MANIFEST_DIR"), "/../../nn-inkernel/import/tests/models/");
    let onnx = |name: &str| {
        refused(dir, &[&build[..], &[&format!("{models}{name}"), "--algorithm", "aurora"]].concat())
    };
    assert!(onnx("refused-softmax.onnx").contains("operator Softmax (node `/b/Softmax`)"));
    assert!(onnx("torch-sequential.onnx").contains("30 features for 6 inputs"));
    assert!(
        refused(dir, &[&build[..], &["p.snapshot", "--algorithm", "aurora"]].concat())
            .contains("neither in .onnx")
    );
}

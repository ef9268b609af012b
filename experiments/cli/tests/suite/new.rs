//! `ccplane new`: the files it writes and the names it refuses. `.ci/checks` builds, tests and simulates such a crate.

use crate::common::{command, stderr, stdout};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

fn new(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = command(&["new"]);
    command.args(arguments).current_dir(dir).output().unwrap()
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn the_crate_is_the_example_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let output = new(dir.path(), &["slow-tide"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("cd slow-tide\n"));
    let made = |file: &str| fs::read_to_string(dir.path().join("slow-tide").join(file)).unwrap();
    let example = |file: &str| fs::read_to_string(checkout().join("algs/examples/aimd").join(file)).unwrap();
    assert_eq!(made("src/slow-tide.fold"), example("src/aimd.fold"));
    assert_eq!(
        made("src/main.rs").replace("SlowTide", "Aimd").replace("slow-tide", "aimd"),
        example("src/main.rs")
    );
    assert_eq!(made("plan.toml").replace("slow-tide", "aimd"), example("plan.toml"));
    let manifest: toml::Table = made("Cargo.toml").parse().unwrap();
    assert_eq!(manifest["package"]["name"].as_str(), Some("slow-tide"));
    for (kind, package) in
        [("dependencies", "ccplane"), ("dependencies", "ccplane-alg"), ("dev-dependencies", "ccplane-kit")]
    {
        let path = Path::new(manifest[kind][package]["path"].as_str().unwrap());
        assert!(path.is_absolute() && path.starts_with(checkout()), "{path:?}");
        let package_there: toml::Table =
            fs::read_to_string(path.join("Cargo.toml")).unwrap().parse().unwrap();
        assert_eq!(package_there["package"]["name"].as_str(), Some(package));
    }
    assert_eq!(made("Cargo.lock"), fs::read_to_string(checkout().join("Cargo.lock")).unwrap());
    assert_eq!(made(".gitignore"), "/target\n/results\n");
}

#[test]
fn what_exists_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("mine")).unwrap();
    fs::write(dir.path().join("file"), "text").unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("link")).unwrap();
    for name in ["mine", "file", "link"] {
        let output = new(dir.path(), &[name]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("exists already"), "{}", stderr(&output));
    }
    assert_eq!(fs::read_dir(dir.path().join("mine")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "text");
}

#[test]
fn names_that_cargo_or_ccplane_would_refuse_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let long = "a".repeat(65);
    let refused = [
        ("", "is no name of a crate"),
        ("Mine", "is no name of a crate"),
        ("2x", "is no name of a crate"),
        ("-x", "is no name of a crate"),
        ("../x", "is no name of a crate"),
        ("a b", "is no name of a crate"),
        ("rückwärts", "is no name of a crate"),
        (&long, "is no name of a crate"),
        ("loop", "itself uses"),
        ("ccplane-mine", "itself uses"),
        ("reno", "there is an algorithm"),
    ];
    for (name, why) in refused {
        let output = new(dir.path(), &["--", name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(stderr(&output).contains(why), "{name}: {}", stderr(&output));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_that_is_no_checkout_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for path in [".", "nowhere", "/etc/passwd"] {
        let output = new(dir.path(), &["mine", "--ccplane", path]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("no checkout of ccplane"), "{}", stderr(&output));
    }
    assert!(!dir.path().join("mine").exists());
    let root = checkout();
    assert!(new(dir.path(), &["mine", "--ccplane", root.to_str().unwrap()]).status.success());
}

//! Trainings that are stopped and go on.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_testing::wait_within;
use common::{command, stderr};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The time that some updates may take.
const PATIENCE: Duration = Duration::from_secs(300);

fn training(out: &Path, more: &[&str]) -> Command {
    let mut command = command(&["train", "--config", "published", "--seed", "3", "--threads", "2"]);
    command.arg("--out").arg(out).args(more);
    command
}

/// The lines of a kind of the curve.
fn lines(out: &Path, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(out.join("aurora-published.jsonl")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["kind"] == kind).collect()
}

/// Runs a training until `updates` are on the curve, then asks it to end.
fn stopped_after(out: &Path, more: &[&str], updates: usize, signal: Signal) -> Output {
    let mut command = training(out, more);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let enough = || (lines(out, "update").len() >= updates).then_some(());
    wait_within(PATIENCE, &format!("{updates} updates"), enough);
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_stopped_training_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let first = stopped_after(dir.path(), &[], 1, Signal::SIGINT);
    assert_eq!(first.status.code(), Some(1), "{}", stderr(&first));
    assert!(stderr(&first).contains("with --resume goes on"), "{}", stderr(&first));
    let before = lines(dir.path(), "update");
    let expected = before.len() + 2;
    // What a training that was killed leaves after its checkpoint.
    let curve = dir.path().join("aurora-published.jsonl");
    let mut later = before[before.len() - 1].clone();
    later["step"] = (later["step"].as_u64().unwrap() + 1).into();
    fs::write(&curve, format!("{}{later}\n{{\"ki", fs::read_to_string(&curve).unwrap())).unwrap();

    let second = stopped_after(dir.path(), &["--resume"], expected, Signal::SIGTERM);
    assert_eq!(second.status.code(), Some(1), "{}", stderr(&second));
    let all = lines(dir.path(), "update");
    let updates: Vec<u64> = all.iter().map(|line| line["update"].as_u64().unwrap()).collect();
    assert_eq!(updates, (1..=all.len() as u64).collect::<Vec<_>>());
    assert_eq!(all[..before.len()], before);

    let whole = tempfile::tempdir().unwrap();
    stopped_after(whole.path(), &[], expected, Signal::SIGINT);
    let rewards = |lines: &[Value]| lines.iter().map(|l| l["mean_reward"].clone()).collect::<Vec<_>>();
    assert_eq!(rewards(&lines(whole.path(), "update"))[..expected], rewards(&all)[..expected]);

    let refused = training(dir.path(), &["--resume", "--steps", "1000000"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("other settings"), "{}", stderr(&refused));
}

#[cfg(not(feature = "torch"))]
#[test]
fn a_build_without_libtorch_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let refused = training(dir.path(), &["--backend", "torch"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("make torch"), "{}", stderr(&refused));
}

#[cfg(feature = "torch")]
#[test]
fn libtorch_trains() {
    let dir = tempfile::tempdir().unwrap();
    let torch = ["--backend", "torch", "--steps", "10000"];
    let trained = training(dir.path(), &torch).output().unwrap();
    assert!(trained.status.success(), "{}", stderr(&trained));
    let summary = fs::read(dir.path().join("aurora-published.json")).unwrap();
    let summary: Value = serde_json::from_slice(&summary).unwrap();
    assert!(summary["command"].as_str().unwrap().ends_with("--steps 10000 --backend torch"), "{summary}");
    // Another back end gives other bits: it does not go on from there.
    let refused = training(dir.path(), &["--resume", "--steps", "10000"]).output().unwrap();
    assert!(!refused.status.success() && stderr(&refused).contains("other settings"), "{}", stderr(&refused));
}

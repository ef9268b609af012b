//! A skip or a miss of a test that passes is in the summary of `make test`, and fails it in CI.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ccplane_testing::fuzz::{MAX_FILE_BYTES, MAX_KEPT};
use ccplane_testing::{LOG, skipped, within_tries};
use nix::unistd::{Uid, geteuid, seteuid};

/// Set for the process that is the suite which is summed up.
const SUITE: &str = "CCPLANE_TEST_SUITE";
const NOBODY: Uid = Uid::from_raw(65_534);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn run(command: &mut Command) -> (bool, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

/// A log as `make test` makes it.
struct Log(PathBuf);

impl Log {
    fn new() -> Log {
        let (made, path) = run(Command::new(root().join(".ci/summary")).arg("new"));
        assert!(made, "{path}");
        Log(path.trim().into())
    }

    fn with(lines: &str) -> Log {
        let log = Log::new();
        fs::write(&log.0, lines).unwrap();
        log
    }

    /// Whether the summary lets the run pass, and what it prints.
    fn sum_up(&self, ci: &str) -> (bool, String) {
        run(Command::new(root().join(".ci/summary")).arg(&self.0).env("CI", ci))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        fs::remove_dir_all(self.0.parent().unwrap()).unwrap();
    }
}

/// Runs in a process of its own, below the test runner, which captures what it prints; at its end as another user.
fn suite() {
    skipped("a skip", "is said");
    within_tries("a race", 3, |n| if n == 2 { Ok(()) } else { Err("7 of 10 bytes") });
    if geteuid().is_root() {
        seteuid(NOBODY).unwrap();
    }
    skipped("a skip of another user", "is said, in\ntwo lines");
}

#[test]
fn what_a_passing_suite_skips_and_misses_is_summed_up() {
    if std::env::var_os(SUITE).is_some() {
        return suite();
    }
    let log = Log::new();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "what_a_passing_suite_skips_and_misses_is_summed_up"]);
    let (passed, text) = run(command.env(SUITE, "1").env(LOG, &log.0));
    assert!(passed && text.contains("1 passed"), "{text}");

    let other_targets = other_targets();
    let expected = "Could not run here:
  a skip of another user: is said, in, two lines
  a skip: is said
Did not hold at every try:
  a race: try 1 of 3: 7 of 10 bytes
1 checks that may take several tries held, 1 of them not at the first; 1 tries missed
2 skips, 2 different ones
";
    let expected = other_targets + expected;
    assert_eq!(log.sum_up(""), (true, expected.clone()));
    let in_ci = format!(
        "{expected}FAILED: in CI nothing may be skipped but advisories, what this processor's vector units lack, and torch in Python\n"
    );
    assert_eq!(log.sum_up("true"), (false, in_ci));
}

#[test]
fn a_run_that_skips_only_what_no_installation_gives_passes_in_ci() {
    let vectors = "SKIPPED: networks on AVX-512: this processor has none\n";
    let torch = "SKIPPED: the notebook that asks torch: no target/trainers (make trainers makes it)\n";
    for (lines, skips) in [
        ("", "0 skips, 0"),
        ("SKIPPED: advisories: no network\n", "1 skips, 1"),
        (vectors, "1 skips, 1"),
        (torch, "1 skips, 1"),
    ] {
        let (passes, text) = Log::with(lines).sum_up("true");
        assert!(passes && text.contains(skips), "{text}");
    }
    let twice = "SKIPPED: advisories: no network\nSKIPPED: a: b\nSKIPPED: a: b\n";
    let (passes, text) = Log::with(twice).sum_up("true");
    assert!(!passes && text.contains("  a: b (2 times)\n") && text.contains("3 skips, 2"), "{text}");
}

#[test]
fn the_longest_stall_is_summed_up() {
    let lines = "STALLED: kill -9: 20 ms of 1000\nSTALLED: stop: it said 7 ms of 8: 153 ms of 1000\n";
    let (passes, text) = Log::with(lines).sum_up("true");
    assert!(
        passes && text.contains("2 mishaps of flows' agents; the longest stall of a flow: 153 ms\n"),
        "{text}"
    );
}

#[test]
fn a_log_that_is_not_there_is_no_clean_run() {
    let nowhere = tempfile::tempdir().unwrap().path().join("said");
    let (passes, text) = run(Command::new(root().join(".ci/summary")).arg(&nowhere));
    assert!(!passes && text.contains("No such file"), "{text}");
}

/// Rust files below a folder, but for build products.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    files(folder, "rs", found);
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") && !path.ends_with(".git") {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
}

/// Tests that run elsewhere: in a virtual machine that another test starts, or by a target of their own.
const ELSEWHERE: [&str; 4] = [
    "#[ignore = \"runs in a machine that has the module\"]",
    "#[ignore = \"takes four minutes: make module-test\"]",
    "#[ignore = \"takes minutes: make module-test\"]",
    "#[ignore = \"needs a kernel that .ci/guest-debug builds: make module-debug\"]",
];

/// The build feature of tests that `make nightly` alone runs.
const NIGHTLY: &str = "#[cfg(feature = \"nightly\")]";

/// The part of the summary about tests that other targets run, from the sources themselves.
fn other_targets() -> String {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let mut counts = BTreeMap::<String, usize>::new();
    for path in files {
        for line in fs::read_to_string(path).unwrap().lines().map(str::trim) {
            let why = line.strip_prefix("#[ignore = \"").and_then(|rest| rest.strip_suffix("\"]"));
            let why = why.or((line == NIGHTLY).then_some("takes minutes: make nightly"));
            if let Some(why) = why {
                *counts.entry(why.to_owned()).or_default() += 1;
            }
        }
    }
    assert_eq!(counts.len(), ELSEWHERE.len() + 1, "{counts:?}");
    let lines = counts.iter().map(|(why, count)| format!("  {why} ({count} tests)\n"));
    format!("Tests that other targets run:\n{}", lines.collect::<String>())
}

/// A script that stands in for a command, and the search path that finds it.
fn stand_in(command: &str, script: &str) -> (tempfile::TempDir, String) {
    stand_ins(&[(command, script)])
}

fn stand_ins(commands: &[(&str, &str)]) -> (tempfile::TempDir, String) {
    let bin = tempfile::tempdir().unwrap();
    for (command, script) in commands {
        let file = bin.path().join(command);
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap());
    (bin, path)
}

/// In CI a skip fails the run, whoever starts it and with whatever environment.
#[test]
fn what_ci_runs_lets_nothing_be_skipped() {
    let (_bin, path) = stand_in("make", "#!/bin/sh\necho \"make $* with CI=$CI\"\n");
    for ci in ["", "false"] {
        let (passed, text) = run(Command::new(root().join(".ci/run")).env("PATH", &path).env("CI", ci));
        assert_eq!((passed, text.as_str()), (true, "make test with CI=true\n"));
    }
}

/// A count without names asks for each target that can be counted in an hour, and for no sequences.
#[test]
fn sequences_are_fuzzed_by_name_only() {
    let (_bin, path) = stand_in("cargo", "#!/bin/sh\nfor last; do :; done\necho \"$last\"\n");
    let asked = |names: &[&str]| {
        let mut fuzz = Command::new(root().join(".ci/fuzz"));
        // More than any has had.
        fuzz.args(["--count", "1000000000000000"]).args(names);
        let (passed, text) = run(fuzz.env("PATH", &path).env("CI", ""));
        assert!(passed, "{text}");
        let tests = text.lines().take_while(|line| !line.starts_with("inputs of each"));
        tests.map(str::to_owned).collect::<Vec<_>>()
    };
    let all = asked(&[]);
    let script = fs::read_to_string(root().join(".ci/fuzz")).unwrap();
    // Each line of its list: target, package, kind of test, test.
    let test_of = |line: &str| line.split(' ').nth(3).map(str::to_owned);
    let listed =
        |part: &str| script.lines().filter(|l| l.contains(part)).filter_map(test_of).collect::<Vec<_>>();
    let (sequences, of_v1) = (listed("-sequences ccplane-"), listed("wire-v1 ccplane-"));
    assert!(all.len() >= 15 && of_v1.len() == 1 && all.contains(&of_v1[0]), "{all:?}");
    assert!(sequences.len() >= 4 && !all.iter().any(|test| sequences.contains(test)), "{all:?}");
    let of_control = listed("control-sequences ccplane-");
    assert_eq!(asked(&["control-sequences", "wire-v1"]), [of_v1, of_control].concat());
}

/// The name of the package that a file belongs to.
fn package_of(file: &Path) -> String {
    let manifest = file.ancestors().map(|folder| folder.join("Cargo.toml")).find(|at| at.exists()).unwrap();
    let text = fs::read_to_string(manifest).unwrap();
    let name = text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.unwrap().to_owned()
}

/// Rust files outside of this crate, with their text.
fn texts() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    files.retain(|path| !path.starts_with(root().join("agent/testing")));
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn each_package_with_targets_of_random_bytes_is_fuzzed_for_a_time() {
    let cargo = "#!/bin/sh\nwhile [ \"$1\" != -p ]; do shift; done\necho \"package: $2\"\n";
    let (_bin, path) = stand_ins(&[("cargo", cargo), ("pkg-config", "#!/bin/sh\n")]);
    let (passed, text) = run(Command::new(root().join(".ci/fuzz")).arg("1").env("PATH", &path).env("CI", ""));
    assert!(passed, "{text}");
    let fuzzed: BTreeSet<&str> = text.lines().filter_map(|line| line.strip_prefix("package: ")).collect();
    let mut packages = BTreeSet::new();
    for (file, text) in texts() {
        if text.contains("bolero::check!") {
            packages.insert(package_of(&file));
        }
    }
    assert!(packages.len() > 10, "{packages:?}");
    let missing: Vec<_> = packages.iter().filter(|package| !fuzzed.contains(package.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} of {packages:?}");
}

/// A target finds its corpus by its name: where they differ it begins with none, and nobody notices.
#[test]
fn each_target_that_is_counted_has_a_small_corpus() {
    let script = fs::read_to_string(root().join(".ci/fuzz")).unwrap();
    // Target and package, of each line of its list.
    let of_line = |line: &str| {
        let mut words = line.split(' ').map(str::to_owned);
        let (target, package) = (words.next()?, words.next()?);
        package.starts_with("ccplane-").then_some((target, package))
    };
    let listed: BTreeMap<String, String> = script.lines().filter_map(of_line).collect();
    let mut targets = BTreeSet::new();
    for (_, text) in texts() {
        let names = text.split("Fuzz::new(\"").skip(1).filter_map(|rest| rest.split('"').next());
        targets.extend(names.map(str::to_owned));
    }
    assert!(targets.iter().eq(listed.keys()), "{targets:?}, counted {listed:?}");
    let mut corpora = Vec::new();
    files(&root(), "hex", &mut corpora);
    let mut missing = listed.clone();
    for file in corpora {
        let shown = file.display();
        let name = file.file_stem().unwrap().to_str().unwrap();
        let package = listed.get(name).unwrap_or_else(|| panic!("{shown}: no target has that name"));
        let place = file.parent().unwrap();
        assert!(place.ends_with("tests/corpus") && package_of(&file) == *package, "{shown}: of {package}");
        let text = fs::read_to_string(&file).unwrap();
        let (inputs, bytes) = (text.lines().count(), text.len());
        assert!(
            (1..=MAX_KEPT).contains(&inputs) && bytes <= MAX_FILE_BYTES,
            "{shown}: {inputs}, {bytes} bytes"
        );
        missing.remove(name);
    }
    assert!(missing.is_empty(), "no corpus, .ci/fuzz --keep writes one: {:?}", missing.keys());
}

/// A skip that scrolls by among hours of output is not said.
#[test]
fn what_targets_skip_is_in_their_summaries() {
    for target in ["checks", "attack", "nightly", "fuzz"] {
        let script = fs::read_to_string(root().join(".ci").join(target)).unwrap();
        let sums_up = |line: &str| line.trim_start().starts_with(".ci/summary \"$CCPLANE_TEST_LOG\" || ");
        assert!(script.lines().any(sums_up), "{target} sums up");
        for line in script.lines().filter(|line| line.contains("echo \"SKIPPED: ")) {
            assert!(line.contains("| tee -a \"$CCPLANE_TEST_LOG\""), "{target}: {line}");
        }
    }
}

#[test]
fn what_cannot_be_fuzzed_is_summed_up_at_the_end() {
    let cargo = "#!/bin/sh\necho \"SKIPPED: a target: is said\" >>\"$CCPLANE_TEST_LOG\"\n";
    for arguments in [&["1"][..], &["--count", "1000000000000000", "wire-v1"], &["--keep", "wire-v1"]] {
        let (_bin, path) = stand_ins(&[("cargo", cargo), ("pkg-config", "#!/bin/sh\nexit 1\n")]);
        let mut fuzz = Command::new(root().join(".ci/fuzz"));
        let (passed, text) = run(fuzz.args(arguments).env("PATH", &path).env("CI", ""));
        assert!(passed, "{text}");
        let summary = text.split("Could not run here:\n").nth(1).unwrap_or_else(|| panic!("{text}"));
        assert!(
            summary.contains("  ccplane-dpdk: no DPDK\n") && summary.contains("  a target: is said"),
            "{text}"
        );
        assert!(summary.contains(" skips, 2 different ones\n"), "{text}");
    }
}

/// The runner captures what passing tests print, and counts ignored tests without a reason.
#[test]
fn no_test_skips_but_by_saying_so() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    assert!(files.len() > 500, "{} files", files.len());
    for path in files.iter().filter(|path| !path.starts_with(root().join("agent/testing"))) {
        let text = fs::read_to_string(path).unwrap();
        let text = ELSEWHERE.iter().fold(text, |text, elsewhere| text.replace(elsewhere, ""));
        for silent in ["SKIPPED", "#[ignore"] {
            assert!(!text.contains(silent), "{}: {silent}: use ccplane_testing::skipped", path.display());
        }
    }
}

//! `ccplane league` as a person runs it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use crate::common::ccplane;
use ccplane_alg::FoldAlgorithm;
use ccplane_league::Cell;
use serde_json::Value;

/// An algorithm that does not come with ccplane: the example that `ccplane new` copies.
const OUTSIDE: FoldAlgorithm = FoldAlgorithm {
    name: "aimd",
    source: include_str!("../../../../algs/examples/aimd/src/aimd.fold"),
    parameters: &[],
    registers: &[("mss", |start| start.info.mss_bytes.into())],
    resumed: &[],
};

fn cells(results: &Path) -> Vec<Cell> {
    let text = fs::read_to_string(results.join("league.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn league(results: &Path, arguments: &[&str]) -> String {
    let results = results.to_str().unwrap();
    let done = ccplane(&[&["league", "--results", results], arguments].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// The command line printed for a worst link plays that link again, alone and to the bit.
#[test]
fn a_worst_link_is_replayed_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (all, alone) = (directory.path().join("all"), directory.path().join("alone"));
    let shown = league(
        &all,
        &["--algorithm", "cubic,copa", "--family", "policer,shallow", "--links", "3", "--set", "training"],
    );
    assert!(shown.contains("\nalone on wired links: won % "), "{shown}");
    let (_, command) = shown.lines().find_map(|line| line.split_once("ccplane league ")).unwrap();
    league(&alone, &command.split(' ').collect::<Vec<_>>());
    let (all, alone) = (cells(&all), cells(&alone));
    assert_eq!((all.len(), alone.len()), (12, 2));
    assert!(alone.iter().all(|cell| all.contains(cell)), "{alone:?}");
    assert!(fs::metadata(directory.path().join("all/league.html")).unwrap().len() < 50_000);
}

#[test]
fn figures_are_json_and_a_link_is_drawn_on_demand() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--algorithm", "reno", "--link", "loss/training/1"];
    let json: Value =
        serde_json::from_str(&league(directory.path(), &[&arguments[..], &["--json"]].concat())).unwrap();
    assert_eq!(json["total"][0][0], "reno");
    assert_eq!(json["families"][0][0], "loss");
    assert_eq!(json["total"][0][1]["links"], 1);
    let (name, summary) = (&json["summary"][0][0], &json["summary"][0][1]);
    assert!(name == "reno" && summary["hard_undominated"] == 1.0, "{json}");
    assert!(summary["cubic_won"].is_null() && summary["loss_kept"].is_null(), "{json}");
    let page = league(directory.path(), &[&arguments[..], &["--plots"]].concat());
    assert!(page.trim().ends_with("loss-training-1.html"), "{page}");
    assert!(directory.path().join("loss-training-1-charts").read_dir().unwrap().count() > 2);
}

/// The command of a crate that is not ours ranks the crate's algorithm unasked, before those that come with ccplane.
#[test]
fn an_algorithm_of_an_outside_crate_plays() {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().to_str().unwrap();
    let arguments = ["/opt/tide", "league", "--link", "jitter/training/0", "--results", results];
    let code = ccplane::run_from(arguments.map(OsString::from), vec![Arc::new(OUTSIDE)]);
    assert_eq!(code, ExitCode::SUCCESS);
    let played = cells(directory.path());
    assert_eq!((played[0].algorithm.as_str(), played.len()), ("aimd", 10));
    assert!(played.iter().all(|cell| cell.throughput_bps > 0), "{played:?}");
    let page = fs::read_to_string(directory.path().join("league.html")).unwrap();
    assert!(page.contains("<code>tide league --link jitter/training/0 --algorithm "), "{page}");
}

/// A network or a program in a file plays as the one that ships does, where it is the same; its worst link's command names the file.
#[test]
fn a_network_and_a_program_of_a_file_play() {
    let directory = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let network = format!("aurora@{}", root.join("algs/policies/aurora.snapshot").display());
    let program = format!("cubic@{}", root.join("algs/src/cubic.fold").display());
    let play = |algorithms: &str, more: &[&str]| {
        let links = ["--family", "beside-cubic,steady", "--links", "1", "--set", "training"];
        league(directory.path(), &[&["--algorithm", algorithms][..], &links, more].concat())
    };
    play("aurora,cubic", &[]);
    let shipped = cells(directory.path());
    let text = play(&format!("{network},{program}"), &[]);
    let of_files = cells(directory.path());
    for (one, other) in shipped.iter().zip(&of_files) {
        assert!(other.algorithm.starts_with(&format!("{}@", one.algorithm)), "{}", other.algorithm);
        let renamed = Cell { algorithm: one.algorithm.clone(), ..other.clone() };
        assert_eq!(&renamed, one);
    }
    assert_eq!(of_files.len(), 4);
    assert!(text.contains("cubic@cubic") && text.contains(&format!("--algorithm {network}")), "{text}");
}

#[test]
fn files_that_make_no_algorithm_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let lacks = directory.path().join("lacks.fold");
    fs::write(&lacks, "(def (Report.acked 0)) (when true (report))").unwrap();
    let broken = directory.path().join("broken.fold");
    fs::write(&broken, "(def (Report.acked 0)) (when true (fly))").unwrap();
    let refused = [
        (format!("cubic@{}", lacks.display()), "the program declares no such register"),
        (format!("cubic@{}", broken.display()), "broken.fold:1"),
        (format!("cubix@{}", lacks.display()), "no algorithm is called `cubix`"),
        ("aurora@/dev/null".to_owned(), "/dev/null"),
    ];
    for (named, why) in refused {
        let done = ccplane(&["league", "--algorithm", &named, "--link", "steady/training/0"]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(2) && said.contains(why), "{named}: {said}");
    }
}

/// No flag plays or shows a test link unless its use is written to a file under version control.
#[test]
fn test_links_are_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let untracked = directory.path().join("uses.jsonl");
    fs::write(&untracked, "").unwrap();
    let untracked = untracked.to_str().unwrap();
    let refused: [&[&str]; 7] = [
        &["--link", "steady/test/0"],
        &["--show", "steady/test/0"],
        &["--link", "steady/test/0", "--plots"],
        &["--set", "test"],
        &["--final", "--book", "/dev/null", "--links", "1", "--family", "steady"],
        &["--final", "--book", untracked, "--links", "1", "--family", "steady"],
        &["--final", "--book", "/proc/self/mem", "--links", "1", "--family", "steady"],
    ];
    for arguments in refused {
        let results = directory.path().join("results");
        let done = ccplane(
            &[&["league", "--results", results.to_str().unwrap(), "--algorithm", "reno"], arguments].concat(),
        );
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {}", String::from_utf8_lossy(&done.stdout));
        assert!(!results.exists(), "{arguments:?}");
    }
    assert_eq!(fs::read_to_string(untracked).unwrap(), "");
}

//! Files of results: what is written is read again; torn lines; refusals.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::support::{any_run, header, run};
use ccplane_results::{RESULTS, ResultsError, append, create, read, repair};
use proptest::prelude::*;

#[test]
fn resumes_after_a_torn_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    create(&path, &header()).unwrap();
    append(&path, run("a", 0)).unwrap();
    let whole = std::fs::metadata(&path).unwrap().len();
    append(&path, run("a", 1)).unwrap();
    let both = std::fs::metadata(&path).unwrap().len();
    assert_eq!(repair(&path).unwrap(), 0, "nothing is torn");

    // Cut at every byte of the last line.
    let bytes = std::fs::read(&path).unwrap();
    for cut in whole + 1..both {
        std::fs::write(&path, &bytes[..cut as usize]).unwrap();
        assert_eq!(read(&path).unwrap().runs, [run("a", 0)]);
        assert!(matches!(append(&path, run("a", 2)), Err(ResultsError::Torn { .. })), "would be lost");
        assert_eq!(repair(&path).unwrap(), cut - whole);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
    }
    append(&path, run("a", 2)).unwrap();
    assert_eq!(read(&path).unwrap().runs, [run("a", 0), run("a", 2)]);
}

#[test]
fn a_torn_line_may_be_long() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    create(&path, &header()).unwrap();
    let whole = std::fs::metadata(&path).unwrap().len();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&vec![b'x'; 300_000]).unwrap();
    assert_eq!(repair(&path).unwrap(), 300_000);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), whole);
    // Torn in its very first line.
    std::fs::write(&path, b"{\"record\":").unwrap();
    assert_eq!(repair(&path).unwrap(), 10);
    assert!(matches!(read(&path), Err(ResultsError::Order { line: 1, expected: "a header", .. })));
}

#[test]
fn refusals_name_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    assert!(matches!(read(&path), Err(ResultsError::Unread(why)) if why.file() == path));
    create(&path, &header()).unwrap();
    assert!(matches!(create(&path, &header()), Err(ResultsError::Io { .. })), "never written over");
    let first = std::fs::read_to_string(&path).unwrap();

    let said = |text: &str| {
        std::fs::write(&path, text).unwrap();
        read(&path).unwrap_err().to_string()
    };
    assert!(said(&format!("{first}{{\n")).contains("r.jsonl:2: EOF"));
    assert!(said(&format!("{first}{first}")).ends_with("r.jsonl:2: expected a run"));
    let line = serde_json::to_string(&ccplane_results::ResultRecord::Run(Box::new(run("a", 0)))).unwrap();
    assert!(said(&format!("{line}\n{first}")).ends_with("r.jsonl:1: expected a header"));
    assert!(said("\u{1}\n").contains("r.jsonl:1: "));
    let newer = r#"{"record":"header","schema":2,"plan":"of another kind"}"#;
    assert!(said(&format!("{newer}\n")).ends_with("format version 2, this ccplane reads 1"));
}

#[test]
fn what_has_no_end_is_refused_before_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, large) = (dir.path().join("pipe"), dir.path().join("large.jsonl"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::File::create(&large).unwrap().set_len(RESULTS.bytes + 1).unwrap();
    for (path, why) in [
        (Path::new("/dev/zero"), "is a device: a file of results is read from a regular file"),
        (&pipe, "is a pipe: a file of results is read from a regular file"),
        (&large, "more than 4294967296 bytes, the most that a file of results may have"),
    ] {
        assert_eq!(read(path).unwrap_err().to_string(), format!("{}: {why}", path.display()));
    }
}

/// An earlier build wrote it: `ccplane run` of one simulated flow.
#[test]
fn results_of_an_earlier_build_are_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/earlier/run.jsonl");
    let results = read(Path::new(path)).unwrap();
    assert_eq!(results.header.plan.title, "Earlier");
    let [run] = results.runs.as_slice() else { panic!("{} runs", results.runs.len()) };
    assert_eq!((run.scenario.as_str(), run.contender.as_str()), ("8 Mb/s, 20 ms", "reno sim"));
}

/// Half a line of a quarter of a gigabyte is no record, and no more of it is read.
#[test]
fn a_line_without_end_is_refused_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    create(&path, &header()).unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(300 << 20).unwrap();
    assert!(matches!(read(&path), Err(ResultsError::Long { line: 2, .. })));
}

proptest! {
    #[test]
    fn whatever_is_written_is_read(runs in proptest::collection::vec(any_run(), 0..4)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.jsonl");
        create(&path, &header()).unwrap();
        for run in &runs {
            append(&path, run.clone()).unwrap();
        }
        let got = read(&path).unwrap();
        prop_assert_eq!(got.header, header());
        prop_assert_eq!(got.runs, runs);
    }
}

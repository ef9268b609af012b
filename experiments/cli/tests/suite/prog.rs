//! `ccplane prog`: good and bad programs.

use crate::common::{ccplane, command, stderr, stdout};
use std::fs;
use std::io::Write;
use std::process::Stdio;

const GOOD: &str = "(def (Report (volatile acked 0)) (gain 2))\n\
                    (when true\n  (:= Report.acked (+ Report.acked (* gain Ack.bytes_acked)))\n  (report))\n";
/// `<=` against a negative number: beyond CCP's language.
const FULL: &str = "(def (Report (x 0)))\n(when (<= Report.x -1) (report))\n";

fn file(text: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.fold");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[test]
fn a_good_program_is_summed_up() {
    let (_dir, path) = file(GOOD);
    let output = ccplane(&["prog", "check", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("registers: 1 report, 1 control, 0 local"), "{}", stdout(&output));
    let output = ccplane(&["prog", "check", &path, "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["report_registers"], &summary["clauses"]), (&1.into(), &1.into()));
    assert!(summary["stock_refusal"].is_null() && summary["stock_instructions"].is_number());
}

#[test]
fn a_bad_program_is_refused_with_line_column_and_caret() {
    let (_dir, path) = file("(def (Report (x 0)))\n(when true (:= Report.x (foo 1 2)))\n");
    for subcommand in ["check", "show"] {
        let output = ccplane(&["prog", subcommand, &path]);
        assert_eq!(output.status.code(), Some(2));
        let said = stderr(&output);
        assert!(said.contains(&format!("{path}:2:26")), "{said}");
        assert!(said.contains("^^^ expected an operator"), "{said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_is_no_program_text_is_refused() {
    assert_eq!(ccplane(&["prog", "check", "/nonexistent.fold"]).status.code(), Some(2));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.fold");
    for (bytes, why) in [(vec![b'('; 1 << 19], "more than"), (vec![b'(', 0xff, 0xfe], "byte 1 is not UTF-8")]
    {
        fs::write(&path, bytes).unwrap();
        let output = ccplane(&["prog", "check", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn a_program_is_shown_in_each_form() {
    let (_dir, path) = file(GOOD);
    let ir = stdout(&ccplane(&["prog", "show", &path]));
    assert_eq!(ir, stdout(&ccplane(&["prog", "show", &path, "--ir"])));
    assert!(ir.contains("Report.acked") && ir.contains("clause 0"), "{ir}");
    let stock = stdout(&ccplane(&["prog", "show", &path, "--stock"]));
    assert!(
        stock.contains("event 0: when") && stock.contains("MUL") && stock.contains("Ack.bytes_acked"),
        "{stock}"
    );
    assert_eq!(ccplane(&["prog", "show", &path, "--stock", "--ir"]).status.code(), Some(2));
    let bpf = ccplane(&["prog", "show", &path, "--bpf"]);
    if bpf.status.success() {
        let text = stdout(&bpf);
        assert!(text.contains("; Report.acked <-") && text.contains("exit"), "{text}");
    } else {
        ccplane_testing::skipped("prog show --bpf", stderr(&bpf));
    }
}

/// The instructions that decide in a policy slot are listed where an algorithm has a policy for that slot.
#[test]
fn a_policys_instructions_are_shown() {
    let asks = |depth: usize| {
        format!(
            "(def (Report (x 0)) (y 0) (z 0)) (when true (history {depth} Report.x y z) (policy 0) (report))"
        )
    };
    let cases = [
        (asks(10), "; policy slot 0: 30 -> 32 -> 16 -> 1\n"),
        (asks(3), "; policy slot 0, which has no shape: no answer\n"),
    ];
    let mut counts = Vec::new();
    for (text, said) in cases {
        let (_dir, path) = file(&text);
        let bpf = ccplane(&["prog", "show", &path, "--bpf"]);
        if !bpf.status.success() {
            return ccplane_testing::skipped("prog show --bpf", stderr(&bpf));
        }
        let text = stdout(&bpf);
        let (program, decider) = text.split_once(said).unwrap_or_else(|| panic!("{said}: {text}"));
        assert!(program.contains("call pc+") && decider.contains("exit"), "{text}");
        counts.push(decider.lines().count());
    }
    assert!(counts[0] > 500 && counts[1] < 10, "instructions that decide: {counts:?}");
}

#[test]
fn beyond_stock_is_said_and_refused() {
    let (_dir, path) = file(FULL);
    let check = ccplane(&["prog", "check", &path]);
    assert_eq!(check.status.code(), Some(0));
    assert!(stdout(&check).contains("stock CCP datapaths cannot run this program"), "{}", stdout(&check));
    assert!(stdout(&check).contains("(line 2)"), "{}", stdout(&check));
    let show = ccplane(&["prog", "show", &path, "--stock"]);
    assert_eq!(show.status.code(), Some(2));
    let said = stderr(&show);
    assert!(
        said.contains(&format!("{path}:2: stock CCP datapaths cannot run this program: it uses -1")),
        "{said}"
    );
    let report: String = (0..17).map(|n| format!("(r{n}\n 0)")).collect();
    let (_dir, path) = file(&format!("(def (Report {report}))\n(when true (report))\n"));
    assert_eq!(
        ccplane(&["prog", "show", &path, "--stock"]).status.code(),
        Some(0),
        "libccp has 110 registers"
    );
    let check = stdout(&ccplane(&["prog", "check", &path, "--as-portus"]));
    assert!(check.contains("it needs 17 report registers, stock CCP has 16 (line 17)"), "{check}");
}

/// Another tool gets all that it needs to install a program: the bytes, and where its registers are.
#[test]
fn stock_bytecode_is_shown_with_its_registers() {
    let (_dir, path) = file(GOOD);
    let output = ccplane(&["prog", "show", &path, "--stock", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let stock = ccplane_program::stock::lower(&ccplane_program::compile(GOOD).unwrap()).unwrap();
    let bytes: String = stock.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(shown["bytes"], bytes);
    assert_eq!(shown["expressions"], stock.num_expressions());
    assert_eq!(shown["instructions"], stock.num_instructions());
    assert_eq!(shown["report"], serde_json::json!(["Report.acked"]));
    let [acked, gain] = &shown["registers"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert_eq!(
        (&acked["name"], &acked["type"], &acked["index"]),
        (&"Report.acked".into(), &5.into(), &0.into())
    );
    assert_eq!(
        (&gain["type_name"], &gain["initial"], &gain["settable"]),
        (&"control".into(), &2.into(), &true.into())
    );
    assert_eq!(acked["settable"], false);
    assert_eq!(ccplane(&["prog", "show", &path, "--json"]).status.code(), Some(2), "only of stock bytecode");
}

/// portus takes a local that nothing reads; by itself the compiler takes that for a slip.
#[test]
fn as_portus_takes_unread_locals() {
    let (_dir, path) = file("(def (Report (x 0)))\n(when true (:= unread Ack.bytes_acked) (report))\n");
    assert_eq!(ccplane(&["prog", "check", &path]).status.code(), Some(2));
    let output = ccplane(&["prog", "check", &path, "--as-portus"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn standard_input_is_a_file_too() {
    let mut command = command(&["prog", "check", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(GOOD.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).starts_with("<stdin>: ok"));
}

//! `ccplane host measure` and `tune` on a pair of interfaces in namespaces of their own: what they do, and what happens when
//! the host fails them.

use std::process::{Command, Output};

use crate::common::shell::{self, pair_with_far};
use crate::common::{stderr, stdout};
use serde_json::Value;

/// Defines what scripts below say on a pair of interfaces.
const WORDS: &str = r#"
    over="--interface here --peer far --duration-ms 100 --journal $journal"
    knob="--knob net/here/gro_flush_timeout=20000"
    values() { cat /sys/class/net/here/gro_flush_timeout /sys/class/net/here/queues/rx-0/rps_cpus | tr '\n' ' '; echo; }
    set +e
"#;
/// The values of the settings as they are at first.
const BEFORE: &str = "0 0 \n";

fn shell(test: &str, script: &str) -> Option<Output> {
    shell::shell(test, &format!("{}{WORDS}", pair_with_far("")), script)
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn a_host_is_measured_learned_from_and_left_as_it_was() {
    const SCRIPT: &str = r#"
        $ccplane host measure $over $knob --results $journal/dry.jsonl
        ls $journal/dry.jsonl
        values
        $ccplane host measure $over $knob --results $journal/r.jsonl --cells 24 --repeats 1 --apply --json \
            --csv $journal/r.csv --report $journal/r.html
        values
        $ccplane host measure $over $knob --results $journal/r.jsonl --cells 24 --repeats 1 --apply --json
        $ccplane host learn $journal/r.jsonl --groups 2 --json
        $ccplane host learn $journal/r.csv --groups 2 --input application,interrupt,flow,gro_flush_timeout --json
        grep -c '<path' $journal/r.html
        $ccplane host undo --journal $journal
    "#;
    let Some(output) = shell("a_host_is_measured_learned_from_and_left_as_it_was", SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    let (dry, rest) = said.split_once(BEFORE).unwrap();
    assert!(dry.contains("echo 20000 > /sys/class/net/here/gro_flush_timeout\n"), "{said}{errors}");
    assert!(dry.contains("nothing was changed") && errors.contains("dry.jsonl"), "{said}{errors}");
    let mut lines = rest.lines();
    let first = json(lines.next().unwrap());
    assert_eq!(
        (&first["measured"], &first["failed"], &first["left"]),
        (&24.into(), &0.into(), &0.into()),
        "{errors}"
    );
    let cells = first["cells"].as_array().unwrap();
    assert!(cells.iter().all(|cell| cell["throughput_bps"].as_f64() > Some(1e6)), "{first}");
    assert!(
        cells.iter().any(|cell| cell["setting"].as_str().unwrap().contains("gro_flush_timeout=20000")),
        "{first}"
    );
    assert_eq!(format!("{}\n", lines.next().unwrap()), BEFORE);
    assert_eq!(json(lines.next().unwrap())["measured"], 0, "all of it was done");
    for _ in 0..2 {
        let learned = json(lines.next().unwrap_or_else(|| panic!("{said}{errors}")));
        assert_eq!(
            (&learned["settings"], learned["groups"]["groups"].as_array().unwrap().len()),
            (&24.into(), 2)
        );
        assert!(learned["throughput"]["mean"].as_f64().unwrap().is_finite(), "{learned}");
    }
    assert!(lines.next().unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(lines.next(), Some("nothing to take back"));
}

/// A pair of its own needs no permission, since nothing of the host is touched.
#[test]
fn a_pair_of_its_own_is_measured_and_tuned() {
    const SCRIPT: &str = r#"
        $ccplane host measure --duration-ms 100 --cells 3 --repeats 1 --results $journal/own.jsonl --json
        $ccplane host tune --duration-ms 100 --trials 2 --search random --json --report $journal/own.html
        values
        ip link | grep -c veth0
    "#;
    let Some(output) = shell("a_pair_of_its_own_is_measured_and_tuned", SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    let mut lines = said.lines();
    let measured = json(lines.next().unwrap_or_else(|| panic!("{errors}")));
    let counts = ["measured", "failed"].map(|count| measured[count].as_u64().unwrap());
    // A veth device without GRO refuses a thread for its NAPI.
    let reasons: Vec<&str> =
        measured["reasons"].as_array().unwrap().iter().filter_map(|why| why.as_str()).collect();
    assert!(counts[0] > 0 && reasons.iter().all(|why| why.contains("threaded is refused")), "{measured}");
    assert_eq!((counts[0] + counts[1], &measured["source"]["is_own"]), (3, &true.into()), "{errors}");
    let tuned = json(lines.next().unwrap_or_else(|| panic!("{errors}")));
    assert_eq!((tuned["trials"].as_array().unwrap().len(), &tuned["applied"]), (2, &false.into()), "{tuned}");
    assert_eq!(
        (lines.next(), lines.next()),
        (Some(BEFORE.trim_end_matches('\n')), Some("0")),
        "{said}{errors}"
    );
}

/// An interface that is deleted is down for a moment before it is gone.
fn says_that_it_went(said: &str) -> bool {
    ["here: the interface is gone", "here: its link is down"].iter().any(|why| said.contains(why))
}

#[test]
fn an_interface_that_vanishes_ends_a_sweep_and_what_was_measured_is_kept() {
    const SCRIPT: &str = r#"
        $ccplane host measure $over $knob --results $journal/r.jsonl --apply --json >$journal/said 2>$journal/errors &
        while [ "$(cat $journal/r.jsonl 2>/dev/null | wc -l)" -lt 4 ]; do sleep 0.05; done
        ip link del here
        wait $!
        echo "ended with $?"
        grep -c measured $journal/r.jsonl
        $ccplane host undo --journal $journal
        cat $journal/errors $journal/said
    "#;
    let test = "an_interface_that_vanishes_ends_a_sweep_and_what_was_measured_is_kept";
    let Some(output) = shell(test, SCRIPT) else { return };
    let said = stdout(&output);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("ended with 1"), "{said}{}", stderr(&output));
    assert!(lines.next().unwrap().parse::<u32>().unwrap() >= 3, "{said}");
    assert_eq!(lines.next(), Some("nothing to take back"), "{said}");
    assert!(says_that_it_went(&said), "{said}");
}

#[test]
fn a_link_that_goes_down_ends_a_sweep_and_settings_come_back() {
    const SCRIPT: &str = r#"
        $ccplane host measure $over $knob --results $journal/r.jsonl --apply >$journal/said 2>$journal/errors &
        while [ "$(cat $journal/r.jsonl 2>/dev/null | wc -l)" -lt 4 ]; do sleep 0.05; done
        ip -n far link set there down
        wait $!
        echo "ended with $?"
        values
        cat $journal/errors
        ip -n far link set there up
        await_link
        $ccplane host measure $over $knob --results $journal/r.jsonl --apply --cells 6 --repeats 1 --json
    "#;
    let test = "a_link_that_goes_down_ends_a_sweep_and_settings_come_back";
    let Some(output) = shell(test, SCRIPT) else { return };
    let said = stdout(&output);
    assert!(said.starts_with(&format!("ended with 1\n{BEFORE}")), "{said}{}", stderr(&output));
    assert!(said.contains("here: its link is down"), "{said}");
    // The sweep goes on where it was.
    let again = json(said.lines().last().unwrap());
    assert_eq!((&again["left"], &again["ended_by"]), (&0.into(), &Value::Null), "{said}{}", stderr(&output));
}

#[test]
fn a_search_ends_where_its_link_or_interface_goes_and_settings_come_back() {
    const SCRIPT: &str = r#"
        for end in "ip -n far link set there down" "ip link del here"; do
            $ccplane host tune $over $knob --trials 100 --search random --apply >$journal/said 2>$journal/errors &
            # As soon as it has changed something.
            for n in $(seq 1 1200); do [ -s $journal/host.jsonl ] && break; sleep 0.05; done
            $end
            wait $!
            echo "ended with $?"
            [ -e /sys/class/net/here ] && values
            $ccplane host undo --journal $journal
            cat $journal/errors $journal/said
            ip -n far link set there up 2>/dev/null
            await_link
        done
    "#;
    let test = "a_search_ends_where_its_link_or_interface_goes_and_settings_come_back";
    let Some(output) = shell(test, SCRIPT) else { return };
    let said = stdout(&output);
    let all = format!("{said}{}", stderr(&output));
    let (down, gone) = said.trim_start_matches("ended with 1\n").split_once("ended with 1\n").unwrap();
    assert!(down.starts_with(&format!("{BEFORE}nothing to take back\n")), "{all}");
    assert!(down.contains("here: its link is down"), "{all}");
    assert!(gone.starts_with("nothing to take back\n") && says_that_it_went(gone), "{all}");
    for said in [down, gone] {
        assert!(said.contains("nothing is known, as the search ended early: none of "), "{all}");
    }
}

/// Settings that the driver refuses, as not supported or as busy: the rest is measured.
#[test]
fn settings_that_are_refused_are_said_and_the_rest_is_measured() {
    const SCRIPT: &str = r#"
        mkdir $journal/bin
        cat >$journal/bin/ethtool <<'END'
#!/bin/sh
case "$1 $3 $4" in
    "-c  ") printf 'Coalesce parameters for here:\nrx-usecs:\t3\nrx-frames:\t0\n' ;;
    "-C rx-usecs 8") echo 'netlink error: Operation not supported' >&2; exit 1 ;;
    "-C rx-frames 16") echo 'netlink error: Device or resource busy' >&2; exit 1 ;;
    *) echo "netlink error: Operation not supported" >&2; exit 1 ;;
esac
END
        chmod +x $journal/bin/ethtool
        PATH=$journal/bin:$PATH $ccplane host measure $over $knob --knob net/here/coalesce/rx-usecs=8 \
            --knob net/here/coalesce/rx-frames=16 --results $journal/r.jsonl --cells 16 --repeats 1 --apply --json
        values
        $ccplane host measure $over --knob net/here/ring/rx=512 --results $journal/none.jsonl --apply
        echo "ended with $?"
        $ccplane host measure $over --knob net/lo/mtu=1400 --results $journal/none.jsonl --apply
        echo "ended with $?"
    "#;
    let test = "settings_that_are_refused_are_said_and_the_rest_is_measured";
    let Some(output) = shell(test, SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    let (first, rest) = said.split_once('\n').unwrap_or_else(|| panic!("{said}{errors}"));
    let first = json(first);
    let reasons: Vec<&str> =
        first["reasons"].as_array().unwrap().iter().map(|why| why.as_str().unwrap()).collect();
    assert!(reasons.iter().any(|why| why.contains("rx-usecs") && why.contains("not supported")), "{first}");
    assert!(reasons.iter().any(|why| why.contains("rx-frames") && why.contains("busy")), "{first}");
    let count = |name: &str| first[name].as_u64().unwrap();
    assert!(
        count("measured") >= 1 && count("failed") >= 2 && count("measured") + count("failed") == 16,
        "{first}"
    );
    assert_eq!(rest, format!("{BEFORE}ended with 2\nended with 2\n"), "{errors}");
    assert!(errors.contains("net/here/ring/rx") && errors.contains("no setting of here"), "{errors}");
}

#[test]
fn perf_that_is_not_allowed_is_said_and_time_counts_instead() {
    const SCRIPT: &str = r#"
        mkdir $journal/bin
        printf '#!/bin/sh\necho "Error:" >&2\necho "Access to performance monitoring is limited." >&2\nexit 255\n' >$journal/bin/perf
        chmod +x $journal/bin/perf
        PATH=$journal/bin:$PATH $ccplane host measure $over $knob --results $journal/r.jsonl --cells 2 --repeats 1 --apply \
            --flames $journal/flames
        grep -c '"instructions":null' $journal/r.jsonl
        printf '#!/bin/sh\necho "12345678,,instructions,100,100.00,," >&2\n' >$journal/bin/perf
        PATH=$journal/bin:$PATH $ccplane host measure $over $knob --results $journal/c.jsonl --cells 2 --repeats 1 --apply
        grep -c '"instructions":12345678' $journal/c.jsonl
    "#;
    let test = "perf_that_is_not_allowed_is_said_and_time_counts_instead";
    let Some(output) = shell(test, SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    assert!(
        errors.contains("instructions are not counted: perf: Access to performance monitoring is limited"),
        "{errors}"
    );
    assert!(errors.contains("no flame graph: perf: Access"), "{errors}");
    assert!(
        said.contains("bytes per processor second") && said.contains("bytes per instruction"),
        "{said}{errors}"
    );
    let counts: Vec<&str> = said.lines().filter(|line| *line == "2").collect();
    assert_eq!(counts.len(), 2, "{said}{errors}");
}

/// A container whose /sys is mounted for reading: the defaults are measured, and each setting's refusal is said.
#[test]
fn files_that_cannot_be_written_leave_the_defaults_to_measure() {
    const SCRIPT: &str = r#"
        mount -o remount,bind,ro /sys
        $ccplane host measure $over $knob --results $journal/r.jsonl --cells 12 --repeats 1 --apply --json
        $ccplane host tune $over $knob --trials 3 --search random --apply --json
        values
    "#;
    let test = "files_that_cannot_be_written_leave_the_defaults_to_measure";
    let Some(output) = shell(test, SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    let mut lines = said.lines();
    let measured = json(lines.next().unwrap_or_else(|| panic!("{errors}")));
    assert!(measured["measured"].as_u64() >= Some(1) && measured["failed"].as_u64() >= Some(1), "{measured}");
    let reasons = measured["reasons"].as_array().unwrap();
    assert!(reasons.iter().all(|why| why.as_str().unwrap().contains("Read-only file system")), "{measured}");
    let tuned = json(lines.next().unwrap_or_else(|| panic!("{errors}")));
    assert_eq!(tuned["applied"], false, "{tuned}");
    assert_eq!(lines.next(), Some(BEFORE.trim_end_matches('\n')));
}

#[test]
fn two_tuners_do_not_meet() {
    const SCRIPT: &str = r#"
        $ccplane host tune $over $knob --trials 20 --apply >/dev/null 2>&1 &
        first=$!
        for n in $(seq 1 100); do [ -e $journal/host.lock ] && break; sleep 0.05; done
        sleep 0.3
        $ccplane host tune $over $knob --trials 2 --apply
        echo "ended with $?"
        $ccplane host undo --journal $journal
        echo "ended with $?"
        kill -INT $first
        wait $first
        echo "ended with $?"
        values
    "#;
    let Some(output) = shell("two_tuners_do_not_meet", SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    let ends: Vec<&str> = said.lines().filter(|line| line.starts_with("ended")).collect();
    assert_eq!(ends, ["ended with 1", "ended with 1", "ended with 130"], "{said}{errors}");
    assert_eq!(errors.matches("another process changes this host's settings").count(), 2, "{errors}");
    assert!(said.ends_with(BEFORE), "{said}{errors}");
}

#[test]
fn a_full_disk_ends_a_sweep_and_what_was_measured_is_kept() {
    const SCRIPT: &str = r#"
        mkdir $journal/small
        mount -t tmpfs -o size=8k tmpfs $journal/small
        $ccplane host measure $over $knob --results $journal/small/r.jsonl --apply
        echo "ended with $?"
        values
        $ccplane host undo --journal $journal
        tail -n +2 $journal/small/r.jsonl | grep -c '}}$'
        tail -n +2 $journal/small/r.jsonl | grep -vc '}}$'
    "#;
    let Some(output) = shell("a_full_disk_ends_a_sweep_and_what_was_measured_is_kept", SCRIPT) else {
        return;
    };
    let (said, errors) = (stdout(&output), stderr(&output));
    assert!(errors.contains("No space left"), "{said}{errors}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..3], ["ended with 1", BEFORE.trim_end_matches('\n'), "nothing to take back"], "{said}");
    assert!(lines[3].parse::<u32>().unwrap() >= 5 && lines[4] == "0", "{said}{errors}");
}

/// Whatever moment a search is killed at, everything can be taken back.
#[test]
fn a_tuner_that_is_killed_leaves_what_can_be_taken_back() {
    const SCRIPT: &str = r#"
        for n in 1 2 3 4; do
            $ccplane host tune $over $knob --trials 20 --search random --seed $n --apply >/dev/null 2>&1 &
            # As soon as it has changed something, or a little later.
            for wait in $(seq 1 1200); do [ -s $journal/host.jsonl ] && break; sleep 0.05; done
            sleep 0.$n$n
            kill -9 $!
            wait $! 2>/dev/null
            $ccplane host undo --journal $journal >>$journal/undone
            values
        done
        echo "restored $(grep -c again $journal/undone)"
    "#;
    let Some(output) = shell("a_tuner_that_is_killed_leaves_what_can_be_taken_back", SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    let (rounds, restored) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(format!("{rounds}\n"), BEFORE.repeat(4), "{said}{errors}");
    let restored: u32 = restored.strip_prefix("restored ").unwrap().parse().unwrap();
    assert!(restored > 0, "{said}{errors}");
    eprintln!("of 4 rounds: {restored} changes");
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    for wrong in [
        &["measure", "--interface", "lo"][..],
        &["measure", "--model", "2y4"],
        &["measure", "--model", "2x4", "--knob", "net/lo/mtu=1"],
        &["measure", "--knob", "net/lo/mtu"],
        &["measure", "--flows", "0"],
        &["tune", "--trials", "0"],
        &["learn"],
        &["learn", "/dev/null"],
        &["learn", "/no/such/file"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ccplane")).arg("host").args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {}{}", stdout(&output), stderr(&output));
    }
}

/// A model needs no privileges, is called one wherever its figures are, and says the same each time.
#[test]
fn a_model_is_swept_learned_from_and_tuned() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let ccplane = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ccplane")).arg("host").args(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    let (results, csv, page) = (path("m.jsonl"), path("m.csv"), path("m.html"));
    let sweep = [
        "measure",
        "--model",
        "2x16",
        "--cells",
        "300",
        "--results",
        &results,
        "--csv",
        &csv,
        "--report",
        &page,
    ];
    let said = ccplane(&sweep);
    assert!(said.contains("600 measured, 0 failed, 0 left"), "{said}");
    assert!(said.contains("by a model of a host with 2 nodes of 16 cores, not measured"), "{said}");
    assert!(ccplane(&sweep).contains("0 measured, 0 failed, 0 left"));
    assert!(std::fs::read_to_string(&csv).unwrap().lines().skip(1).all(|line| line.contains(",model,")));
    assert!(std::fs::read_to_string(&page).unwrap().contains("not measured"));
    let learned = ccplane(&["learn", &results, "--report", &path("l.html")]);
    assert!(learned.contains("by a model of a host") && learned.contains("best microseconds"), "{learned}");
    let few = path("few.jsonl");
    ccplane(&["measure", "--model", "2x4", "--cells", "24", "--repeats", "1", "--results", &few]);
    let counted = ccplane(&["learn", &few, "--groups", "2", "--features", "counters"]);
    assert!(counted.contains("predicted from counters, too"), "{counted}");
    assert!(!counted.contains("best microseconds"), "{counted}");
    let tune = ["tune", "--model", "2x4", "--trials", "12", "--seed", "2"];
    let tuned = ccplane(&tune);
    assert!(
        tuned.contains("by a model of a host") && tuned.contains("nothing of this host was changed"),
        "{tuned}"
    );
    assert!(tuned.contains("\n[agent]\ncores = ["), "{tuned}");
    assert_eq!(ccplane(&tune), tuned);
}

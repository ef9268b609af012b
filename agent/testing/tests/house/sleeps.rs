//! Tests wait for states (`ccplane_testing::wait_for` and its kin). Those that sleep do so for the time itself, and are
//! listed here.

use std::collections::BTreeMap;
use std::path::Path;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The function that these tests are to do without.
const SLEEP: &str = "sleep";
/// The line that a unit test module begins with.
const UNIT_TESTS: &str = "\nmod tests {";

/// Files whose tests sleep, how often they call for it, and why no state can be waited for.
const ALLOWED: [(&str, usize, &str); 23] = [
    ("agent/daemon/src/agent/worker.rs", 1, "the wait of a source that a test stands in for"),
    ("agent/daemon/src/learning/thread.rs", 1, "a learner's share of the time in which it gets batches"),
    ("datapath-shims/dpdk/tests/live/echo.rs", 2, "a pause between retries; how long a link is down"),
    ("datapath-shims/dpdk/tests/live/failures.rs", 1, "how long a link is down"),
    ("datapath-shims/ebpf/tests/live/flows.rs", 1, "heartbeats, and a rate measured between them"),
    ("datapath-shims/ebpf/tests/live/killed.rs", 1, "each kill hits another place of a loop"),
    ("datapath-shims/ebpf/tests/live/wakes.rs", 1, "the gap between events, in which a loop falls asleep"),
    ("datapath-shims/ebpf/tests/packets.rs", 1, "the turn of an agent that runs until it is killed"),
    ("datapath-shims/ebpf/tests/packets_lab/mod.rs", 1, "gaps between packets, longer than a flowlet's"),
    ("datapath-shims/ebpf/tests/record.rs", 1, "a client's silence, which is recorded"),
    (
        "datapath-shims/ebpf/tests/recovery.rs",
        2,
        "the seconds over which flows are compared; a delay's length",
    ),
    ("datapath-shims/quic/tests/endpoints/live.rs", 1, "the pace of a transfer"),
    ("datapath-shims/quic/tests/endpoints/stock_quinn.rs", 1, "the turn of an agent beside the transfer"),
    ("experiments/cli/tests/attack/agent.rs", 1, "how long an agent stands still, which its log tells"),
    (
        "experiments/cli/tests/dpdk.rs",
        4,
        "intervals of samples; the time a flow is watched; an agent's silences",
    ),
    (
        "experiments/cli/tests/live/kernel.rs",
        2,
        "the time in which descriptors stay the same; a stall's length",
    ),
    (
        "experiments/cli/tests/live/learned.rs",
        2,
        "each kill hits another place of a loop; sleeps are counted",
    ),
    ("experiments/cli/tests/live/quic.rs", 1, "a slow reader"),
    ("experiments/cli/tests/live/upgrade.rs", 2, "a slow reader; intervals of samples"),
    ("experiments/cli/tests/suite/monitor.rs", 1, "a slow reader"),
    ("experiments/emulator/tests/processes.rs", 2, "children that are there until they are killed"),
    (
        "experiments/emulator/tests/suite/emulator.rs",
        2,
        "the phase of a ping; the time a rate is measured over",
    ),
    ("experiments/oracle/tests/common/mod.rs", 1, "a socket of libccp's that blocks while its queue is full"),
];

/// Calls of functions named [`SLEEP`], methods apart.
fn calls(tokens: TokenStream) -> usize {
    let mut count = 0;
    let mut before = [String::new(), String::new()];
    for token in tokens {
        let text = match &token {
            TokenTree::Group(group) => {
                let called = before[1] == SLEEP && ![".", "fn"].contains(&before[0].as_str());
                count += usize::from(called && group.delimiter() == Delimiter::Parenthesis);
                count += calls(group.stream());
                String::new()
            }
            token => token.to_string(),
        };
        before.swap(0, 1);
        before[1] = text;
    }
    count
}

/// The part of a source that is a test's.
fn tests_of(path: &Path, source: &str) -> Option<String> {
    let is_test =
        path.iter().any(|part| part == "tests") || path.file_name().is_some_and(|f| f == "tests.rs");
    if is_test {
        return Some(source.to_owned());
    }
    source.split_once(UNIT_TESTS).map(|(_, tests)| format!("{UNIT_TESTS}{tests}"))
}

#[test]
fn tests_wait_for_states_and_sleep_for_the_time_itself_only() {
    let mut found = BTreeMap::new();
    crate::sources::each("", &[], |path, source| {
        let Some(tests) = tests_of(&path, source) else { return };
        let tokens = tests.parse::<TokenStream>();
        let count = calls(tokens.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
        if count > 0 {
            found.insert(path.to_str().unwrap().to_owned(), count);
        }
    });
    let allowed = ALLOWED.map(|(path, count, _)| (path.to_owned(), count));
    assert_eq!(found, BTreeMap::from(allowed), "wait for a state, or say here why there is none");
}

#[test]
fn calls_are_told_from_methods_definitions_and_words() {
    let count = |source: &str| calls(source.replace("NAP", SLEEP).parse::<TokenStream>().unwrap());
    assert_eq!(count("std::thread::NAP(LONG); spawn(|| { assert!(NAP(1)) });"), 2);
    assert_eq!(count("by.NAP(LONG); fn NAP(long: u64) {} \"NAP(1)\"; use std::thread::NAP; NAP"), 0);
    let unit = "fn f() {\n    NAP(1);\n}\n\n#[cfg(test)]\nmod tests {\n    NAP(1);\n}\n";
    let tests = tests_of(Path::new("a/src/b.rs"), unit).unwrap();
    assert_eq!(count(&tests), 1);
    assert_eq!(tests_of(Path::new("a/src/b.rs"), "fn f() {}\n"), None);
    assert!(tests_of(Path::new("a/tests/suite/b.rs"), "fn f() {}\n").is_some());
}

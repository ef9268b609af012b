//! The side of the machine that tests: it starts virtual ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use ccplane_testing::guest::Guest;

/// The kernels of `.ci/guest`: the last ones on each side of a change of `cong_control`.
const OLD: &str = "6.1";
const NEW: &str = "6.12";
/// The kernel of `.ci/guest-debug`, with KASAN and lockdep.
const DEBUG: &str = "6.12-debug";
/// Longer than a machine takes beside other work, seconds.
const LIMIT_S: u32 = 600;
/// Tests of what is the module's own on each kernel: its parser, its flow table and locks, its timer of heartbeats, its names, its device
/// for portus. `make test` runs them on the newer kernel alone, `make module-test` on both.
const ON_ONE_KERNEL: [&str; 7] = [
    "faults::garbage_on_the_device_changes_nothing_but_its_writer",
    "faults::flows_come_and_go_by_the_thousand",
    "faults::a_flow_is_updated_while_others_come_and_go",
    "agent::rules_go_by_the_name_that_a_socket_asks_for",
    "agent::an_agent_hangs_and_goes_on",
    "agent::agents_are_restarted_again_and_again",
    "portus::a_stock_portus_steers_flows_over_its_device",
];

/// Runs this program's tests of these modules in a machine, each on a freshly loaded kernel module.
fn in_guest(test: &str, version: &str, of: &[&str], files: &[PathBuf]) {
    let Some(guest) = Guest::with_module(test, version) else { return };
    let this = std::env::current_exe().unwrap();
    let name = this.file_name().unwrap().to_str().unwrap();
    let times = super::lab::times(1);
    let left_out = if version == OLD && times == 1 { &ON_ONE_KERNEL[..] } else { &[] };
    let skips: String = left_out.iter().map(|test| format!(" --skip {test}")).collect();
    let of = of.join(" ");
    let script = format!(
        "load veth && load tun && load sch_netem && load tcp_diag \
         && CCPLANE_TIMES={times} ./{name} --ignored --test-threads=1 --nocapture {of}{skips} \
         && ! grep -q ^ccplane /proc/modules"
    );
    let files: Vec<&Path> = files.iter().chain([&this]).map(PathBuf::as_path).collect();
    let ran = guest.run(&script, &files, LIMIT_S * times);
    assert!(ran.output.contains("test result: ok."), "{}", ran.output);
    assert!(!ran.output.contains("running 0 tests"), "nothing ran: {}", ran.output);
}

/// A program of ours, where the workspace was built.
fn built(test: &str, name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().unwrap();
    let program = this.ancestors().nth(2).unwrap().join(name);
    if !program.exists() {
        ccplane_testing::skipped(
            test,
            format_args!("{name} on the module: {} is not built", program.display()),
        );
        return None;
    }
    Some(program)
}

/// The portus agents, where `.ci/portus` has built them.
fn portus(test: &str) -> Option<[PathBuf; 4]> {
    let built = ["reno", "ccplane-portus-0.6.1", "ccplane-portus-0.8.0", "ccplane-portus-0.9.0"]
        .map(|name| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/portus/bin").join(name));
    if let Some(missing) = built.iter().find(|program| !program.exists()) {
        let missing = missing.display();
        ccplane_testing::skipped(
            test,
            format_args!("portus on the module: {missing} is not there (.ci/portus target/portus)"),
        );
        return None;
    }
    Some(built)
}

fn everything_but_the_contract(test: &str, version: &str) {
    let (mut of, mut files) =
        (vec!["faults::", "live::", "portus::portus_is_off", "portus::the_two_ends"], Vec::new());
    if let Some(agent) = built(test, "ccplaned") {
        files.push(agent);
        of.push("agent::");
        if let Some(portus) = portus(test) {
            files.extend(portus);
            of.push("portus::a_stock_portus");
        }
    }
    in_guest(test, version, &of, &files);
}

#[test]
fn what_runs_on_one_kernel_is_left_out_of_the_other() {
    let listed =
        Command::new(std::env::current_exe().unwrap()).args(["--ignored", "--list"]).output().unwrap();
    let tests = String::from_utf8(listed.stdout).unwrap();
    for test in ON_ONE_KERNEL {
        assert!(tests.lines().any(|line| line == format!("{test}: test")), "no {test} among {tests}");
    }
}

#[test]
fn flows_are_steered_and_faults_borne_on_linux_6_1() {
    everything_but_the_contract("flows_are_steered_and_faults_borne_on_linux_6_1", OLD);
}

#[test]
fn flows_are_steered_and_faults_borne_on_linux_6_12() {
    everything_but_the_contract("flows_are_steered_and_faults_borne_on_linux_6_12", NEW);
}

#[test]
#[ignore = "needs a kernel that .ci/guest-debug builds: make module-debug"]
fn nothing_is_found_by_kasan_and_lockdep() {
    everything_but_the_contract("nothing_is_found_by_kasan_and_lockdep", DEBUG);
}

#[test]
#[ignore = "takes minutes: make module-test"]
fn every_algorithm_runs_on_linux_6_1() {
    in_guest("every_algorithm_runs_on_linux_6_1", OLD, &["algorithms::"], &[]);
}

#[test]
#[ignore = "takes minutes: make module-test"]
fn every_algorithm_runs_on_linux_6_12() {
    in_guest("every_algorithm_runs_on_linux_6_12", NEW, &["algorithms::"], &[]);
}

#[test]
#[ignore = "takes minutes: make module-test"]
fn a_plan_runs_on_linux_6_12() {
    const TEST: &str = "a_plan_runs_on_linux_6_12";
    let Some(ccplane) = built(TEST, "ccplane") else { return };
    in_guest(TEST, NEW, &["plans::"], &[ccplane]);
}

#[test]
#[ignore = "takes four minutes: make module-test"]
fn the_contract_is_kept_on_linux_6_1() {
    in_guest("the_contract_is_kept_on_linux_6_1", OLD, &["contract::"], &[]);
}

#[test]
#[ignore = "takes four minutes: make module-test"]
fn the_contract_is_kept_on_linux_6_12() {
    in_guest("the_contract_is_kept_on_linux_6_12", NEW, &["contract::"], &[]);
}

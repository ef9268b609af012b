//! Shell scripts in network and mount namespaces of their own, which are gone with the shell.

use super::CCPLANE;
use ccplane_testing::lacks;
use std::process::{Command, Output};

/// Makes a pair of interfaces, `here` and `there`, whose files are in /sys.
pub const PAIR: &str =
    "set -e; mount -t sysfs sysfs /sys; ip link add here type veth peer name there; ip link set here up; ";

const FAR: &str = "
    set -e
    mount -t sysfs sysfs /sys
    mount -t tmpfs tmpfs /run
    ip link set lo up
    ip netns add far
    ip link add here type veth peer name there netns far
";
const UP: &str = "
    ip addr add 10.77.0.1/30 dev here
    ip link set here up
    ip -n far addr add 10.77.0.2/30 dev there
    ip -n far link set there up
    await_link() {
        for n in $(seq 1 50); do grep -q up /sys/class/net/here/operstate 2>/dev/null && break; sleep 0.1; done
    }
    await_link
";

/// Makes a pair of interfaces, `here` and one in the namespace `far`; `while_down` runs before `here` is up.
pub fn pair_with_far(while_down: &str) -> String {
    format!("{FAR}{while_down}{UP}")
}

/// Runs a script with `$ccplane` and `$journal`, an empty folder, after its set-up; none where that cannot be done.
pub fn shell(test: &str, setup: &str, script: &str) -> Option<Output> {
    if lacks(test, ccplane_runner::missing_for_links().first()) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "sh", "-c"]).arg(format!("{setup}{script}"));
    command.env("ccplane", CCPLANE).env("journal", folder.path());
    Some(command.output().unwrap())
}

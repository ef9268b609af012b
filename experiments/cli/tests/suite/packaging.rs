//! The agent as a service: its unit by systemd's own judgement, and what it tells the manager that started it.

use crate::common::{Home, ccplane, stdout, wait_for};
use ccplane_testing::skipped;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const UNIT: &str = include_str!("../../../../agent/packaging/ccplane-agent.service");
/// The unit that takes a host's settings back.
const UNDO: &str = include_str!("../../../../agent/packaging/ccplane-host-undo.service");
/// The recipe of the container's image, whose comment has the command that runs it.
const CONTAINER: &str = include_str!("../../../../agent/packaging/Containerfile");
/// The script that gives the recipe its context.
const CONTAINER_SCRIPT: &str = include_str!("../../../../.ci/container");
/// The worst exposure, in tenths.
const MAX_EXPOSURE: &str = "--threshold=30";
/// Patience of the service manager, microseconds.
const WATCHDOG_USEC: &str = "400000";

/// Runs `systemd-analyze` on the agent's unit.
fn analyze(arguments: &[&str]) -> Option<(bool, String)> {
    analyze_unit("ccplane-agent.service", &UNIT.replace("/usr/sbin/ccplaned", "/bin/true"), arguments)
}

/// Runs `systemd-analyze` on a unit of this text, whose program is one that is installed here.
fn analyze_unit(name: &str, text: &str, arguments: &[&str]) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join(name);
    fs::write(&unit, text).unwrap();
    let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output().ok()?;
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Some((output.status.success(), text))
}

#[test]
fn systemd_takes_the_unit_and_finds_little_exposed() {
    let Some((is_taken, said)) = analyze(&["verify", "--man=no"]) else {
        return skipped("systemd takes the service's unit", "needs systemd-analyze (Debian: systemd)");
    };
    // A machine's own units may be wrong, too.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("ccplane-agent")).collect();
    assert!(ours.is_empty() && is_taken, "{said}");
    let (is_low, said) = analyze(&["security", "--offline=true", "--no-pager", MAX_EXPOSURE]).unwrap();
    assert!(is_low, "{said}");
}

#[test]
fn doctor_says_whether_the_kernel_has_sched_ext_and_that_it_is_not_used() {
    let is_there = Path::new("/sys/kernel/sched_ext").exists();
    let said = stdout(&ccplane(&["doctor"]));
    let words = if is_there { "in this kernel" } else { "not in this kernel" };
    assert_eq!(said.lines().last(), Some(&*format!("sched_ext: {words}; no way to wait uses it")), "{said}");
    let told: serde_json::Value = serde_json::from_slice(&ccplane(&["doctor", "--json"]).stdout).unwrap();
    assert_eq!(told["sched_ext"], is_there);
}

#[test]
fn the_service_has_the_capabilities_that_doctor_lists() {
    let output = ccplane(&["doctor", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let needs = said["needs"].as_array().unwrap().iter().map(|need| need["what"].as_str().unwrap());
    let listed: BTreeSet<&str> =
        needs.filter(|what| what.starts_with("CAP_")).filter_map(|what| what.split(',').next()).collect();
    let given = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    assert_eq!(given.split(' ').collect::<BTreeSet<_>>(), listed);
}

/// The recipe of the image, which may not be built here, gives the capabilities of the service and a mount for what is learned.
#[test]
fn the_container_has_what_the_service_has() {
    let after = |text: &'static str, words: &str| {
        let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("no {words}: {text}"));
        rest.split_whitespace().next().unwrap()
    };
    let given: BTreeSet<&str> = after(CONTAINER, "--cap-add ").split(',').collect();
    let service = UNIT.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let service: BTreeSet<&str> = service.split(' ').map(|name| name.trim_start_matches("CAP_")).collect();
    assert_eq!(given, service);
    let state = after(CONTAINER, "\nENV STATE_DIRECTORY=");
    assert_eq!(state, format!("/var/lib/{}", after(UNIT, "\nStateDirectory=")));
    let run = format!("/run/{}", after(UNIT, "\nRuntimeDirectory="));
    for mounted in [state, run.as_str(), after(UNIT, "\nReadWritePaths=-")] {
        assert!(CONTAINER.contains(&format!("-v {mounted}:{mounted} ")), "{mounted} is not mounted");
    }
    // It starts the file that it copies, and the script puts that file into the context.
    let instructions: Vec<&str> = CONTAINER.lines().filter(|line| !line.starts_with('#')).collect();
    let copied = instructions.iter().find_map(|line| line.strip_prefix("COPY --chmod=0755 ")).unwrap();
    let (file, to) = copied.split_once(' ').unwrap();
    assert_eq!(instructions.first(), Some(&"FROM scratch"));
    assert_eq!(instructions.last(), Some(&&*format!("ENTRYPOINT [\"{to}\"]")));
    assert!(
        CONTAINER_SCRIPT
            .contains(&format!("cp target/static/{file} agent/packaging/Containerfile \"$context\""))
    );
    assert!(CONTAINER_SCRIPT.contains(&format!("-- {to} --version")));
}

#[test]
fn systemd_takes_the_unit_that_takes_settings_back() {
    let name = "ccplane-host-undo.service";
    let Some((is_taken, said)) =
        analyze_unit(name, &UNDO.replace("/usr/bin/ccplane", "/bin/true"), &["verify", "--man=no"])
    else {
        return skipped("systemd takes the unit of host undo", "needs systemd-analyze (Debian: systemd)");
    };
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("ccplane-host-undo")).collect();
    assert!(ours.is_empty() && is_taken, "{said}");
    // It runs a command that there is, on the journal that is the default.
    let started = UNDO.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/ccplane ")).unwrap();
    let help = stdout(&ccplane(&[&started.split(' ').collect::<Vec<_>>()[..], &["--help"]].concat()));
    assert!(help.contains("[default: /var/lib/ccplane]"), "{help}");
    assert!(UNDO.contains("ConditionPathExists=/var/lib/ccplane/host.jsonl\n"));
}

#[test]
fn the_service_manager_is_told_of_start_life_and_end() {
    let home = Home::new("");
    let manager = UnixDatagram::bind(home.path("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut command = home.command(&["agent"]);
    command.env("NOTIFY_SOCKET", home.path("notify")).env("WATCHDOG_USEC", WATCHDOG_USEC);
    let mut agent = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let told = |words: &str| {
        wait_for(words, || {
            let mut said = [0; 128];
            let bytes = manager.recv(&mut said).ok()?;
            String::from_utf8_lossy(&said[..bytes]).contains(words).then_some(())
        });
    };
    told("READY=1");
    assert!(home.run(&["status"]).status.success(), "it serves when it says so");
    told("WATCHDOG=1");
    told("WATCHDOG=1");
    kill(Pid::from_raw(agent.id() as i32), Signal::SIGTERM).unwrap();
    told("STOPPING=1");
    assert!(wait_for("it ends", || agent.try_wait().unwrap()).success());
}

#[test]
fn the_scripts_of_packages_are_shell() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scripts = [
        ("bash", ".ci/deb"),
        ("bash", ".ci/deb-test"),
        ("bash", ".ci/static"),
        ("bash", ".ci/container"),
        ("sh", ".ci/deb-life"),
        ("sh", "agent/packaging/debian/ccplane-agent.postrm"),
        ("sh", "agent/packaging/debian/ccplane.postrm"),
    ];
    for (shell, script) in scripts {
        let output = Command::new(shell).arg("-n").arg(root.join(script)).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Runs a package's script as its purge does, on another folder of state; returns what it says.
fn purge(package: &str, state: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = fs::read_to_string(root.join(format!("agent/packaging/debian/{package}.postrm"))).unwrap();
    let script = script.replace("/var/lib/ccplane", state.to_str().unwrap());
    let script = script.replace("/run/ccplane", state.with_extension("run").to_str().unwrap());
    let output = Command::new("sh").args(["-c", &script, "postrm", "purge"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{package}: {said}");
    said
}

#[test]
fn packages_take_their_own_state_and_a_journal_stays_while_its_changes_are_in_force() {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (boot, is_in_force) in [(boot.trim(), true), ("of-an-earlier-boot", false)] {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (folder.path().join("state"), folder.path().join("state.run"));
        fs::create_dir_all(state.join("policies")).unwrap();
        fs::create_dir(&run).unwrap();
        fs::write(state.join("policies/any.snapshot"), "learned").unwrap();
        fs::write(state.join("host.lock"), "").unwrap();
        let journal = state.join("host.jsonl");
        fs::write(&journal, format!("{{\"version\":1,\"boot\":\"{boot}\"}}\n")).unwrap();
        assert_eq!(purge("ccplane-agent", &state), "");
        assert!(journal.exists() && !state.join("policies").exists() && !run.exists());
        let said = purge("ccplane", &state);
        assert_eq!(said.contains(journal.to_str().unwrap()), is_in_force, "{said}");
        assert_eq!((journal.exists(), state.exists()), (is_in_force, is_in_force));
        // The order does not matter, and neither does a state that is gone.
        assert_eq!((purge("ccplane-agent", &state), state.exists()), (String::new(), is_in_force));
    }
}

//! The example, whose command line and logger are those of the algorithm that it hosts, and which steers flows of other processes.

use ccplane_testing::Ended;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The configuration of programs that do not know the hosted algorithm.
const CLIENT: &str = "client.toml";

/// A home of an agent that steers by the hosted algorithm.
struct Home {
    dir: tempfile::TempDir,
    example: PathBuf,
}

impl Home {
    /// Returns none, and reports a skip, where the example was not built.
    fn new(test: &str) -> Option<Home> {
        // target/PROFILE/deps/TEST
        let this = std::env::current_exe().unwrap();
        let example = this.ancestors().nth(2).unwrap().join("examples/generic_reno");
        if !example.exists() {
            let why = format_args!("{} is not built (cargo build --examples)", example.display());
            ccplane_testing::skipped(test, why);
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let path = |name: &str| dir.path().join(name);
        let sockets = format!(
            "control.socket = {:?}\n[datapath.ebpf]\nmode = \"off\"\n\
             [datapath.module]\nmode = \"off\"\n[datapath.unix]\nsocket = {:?}\n",
            path("control.sock"),
            path("ccp.sock")
        );
        let agents = format!("default_algorithm = \"generic-reno\"\n{sockets}");
        fs::write(path("agent.toml"), agents).unwrap();
        fs::write(path(CLIENT), sockets).unwrap();
        Some(Home { dir, example })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn example(&self, arguments: &[&str]) -> Command {
        self.command(&self.example, "agent.toml", arguments)
    }

    fn command(&self, program: &Path, config: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).env("CCPLANE_CONFIG", self.path(config)).env_remove("CCPLANE_SOCKET");
        command.stdin(Stdio::null());
        command
    }
}

#[test]
fn an_option_of_the_algorithm_is_taken_and_its_logger_has_the_agents_log() {
    let test = "an_option_of_the_algorithm_is_taken_and_its_logger_has_the_agents_log";
    let Some(home) = Home::new(test) else { return };
    let mut example = home.example(&["--init_cwnd", "28960"]);
    let mut agent = example.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("kernel datapath off")));
    assert!(line.is_some(), "its log ended");
    ccplane_testing::wait_until("the agent serves", || home.path("control.sock").exists());
    kill(Pid::from_raw(agent.id() as i32), Signal::SIGTERM).unwrap();
    // Nobody else reads what it says.
    lines.for_each(drop);
    assert_eq!(agent.wait().unwrap().code(), Some(0));
}

#[test]
fn a_bad_option_ends_the_program_before_an_agent_starts() {
    let Some(home) = Home::new("a_bad_option_ends_the_program_before_an_agent_starts") else { return };
    let said = |arguments: &[&str], code: i32| {
        let output = home.example(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    };
    assert_eq!(said(&["--init_cwnd", "many"], 2), "invalid digit found in string\n");
    // The algorithm's own clap, of version 2, has another code for what it does not know.
    let unknown = said(&["--nonesuch"], 1);
    assert!(unknown.contains("'--nonesuch'"), "{unknown}");
    assert!(!home.path("control.sock").exists());
}

/// QUIC in a process of its own, over the channel.
#[test]
fn the_hosted_algorithm_steers_a_quic_flow() {
    let test = "the_hosted_algorithm_steers_a_quic_flow";
    let Some(home) = Home::new(test) else { return };
    // target/PROFILE/ccplane
    let ccplane = home.example.ancestors().nth(2).unwrap().join("ccplane");
    if !ccplane.exists() {
        let why = format_args!("{} is not built (cargo build -p ccplane)", ccplane.display());
        return ccplane_testing::skipped(test, why);
    }
    let _agent = Ended(home.example(&[]).stderr(Stdio::null()).spawn().unwrap());
    ccplane_testing::wait_until("the agent serves", || home.path("control.sock").exists());
    let folder = home.path("served");
    fs::create_dir(&folder).unwrap();
    fs::File::create(folder.join("file")).unwrap().set_len(1 << 36).unwrap();
    let serve = ["quic", "serve", folder.to_str().unwrap(), "--listen", "127.0.0.1:0", "--json", "--agent"];
    let mut serve = home.command(&ccplane, CLIENT, &serve);
    let mut serve = Ended(serve.stdout(Stdio::piped()).spawn().unwrap());
    // Kept open: it says more.
    let (mut lines, mut line) = (BufReader::new(serve.0.stdout.take().unwrap()), String::new());
    lines.read_line(&mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let text = |key: &str| said[key].as_str().unwrap().to_owned();
    // Of the two ends' flows only the server's is the agent's.
    let (address, fingerprint) = (text("address"), text("fingerprint"));
    let get =
        ["quic", "get", &address, "file", "-o", "-", "--fingerprint", &fingerprint, "--algorithm", "reno"];
    let _get = Ended(home.command(&ccplane, CLIENT, &get).stdout(Stdio::null()).spawn().unwrap());
    let steered = || -> Option<serde_json::Value> {
        let output = home.command(&ccplane, CLIENT, &["flows", "--json"]).output().unwrap();
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let is_it = |flow: &&serde_json::Value| flow["mode"] == "program" && flow["datapath"] == "quic";
        listed["flows"].as_array()?.iter().find(is_it).cloned()
    };
    let flow = ccplane_testing::wait_for("the flow is steered", steered);
    assert_eq!(flow["algorithm"], "generic-reno", "{flow}");
    assert!(flow["program"].as_str().unwrap().starts_with("generic-reno-"), "{flow}");
    let reports = |flow: &serde_json::Value| flow["reports"].as_u64().unwrap();
    let so_far = reports(&flow);
    ccplane_testing::wait_for("reports", || (reports(&steered()?) > so_far + 10).then_some(()));
}

//! The example, whose command line and logger are those of the algorithm that it hosts.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

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
        let config = format!(
            "default_algorithm = \"generic-reno\"\ncontrol.socket = {:?}\n[datapath.ebpf]\nmode = \"off\"\n\
             [datapath.module]\nmode = \"off\"\n[datapath.unix]\nsocket = {:?}\n",
            path("control.sock"),
            path("ccp.sock")
        );
        fs::write(path("agent.toml"), config).unwrap();
        Some(Home { dir, example })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn example(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.example);
        command.args(arguments).env("CCPLANE_CONFIG", self.path("agent.toml")).env_remove("CCPLANE_SOCKET");
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

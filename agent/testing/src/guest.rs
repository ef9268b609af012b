//! Virtual machines with other kernels, in which the kernel module is tested.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::skipped;

/// The status of `.ci/guest-run` where no machine ran to its end.
const NO_MACHINE: i32 = 125;
/// Words of a kernel's log that tell of a defect.
const DEFECTS: [&str; 9] = [
    "WARNING:",
    "BUG:",
    "BUG ",
    "Oops",
    "Call Trace",
    "general protection",
    "refcount_t",
    "possible recursive locking",
    "rcu_sched self-detected",
];
/// Machines run one at a time: each has two processors, as most that test.
static ONE: Mutex<()> = Mutex::new(());

/// A kernel that `.ci/guest` has fetched, with the module built for it.
#[derive(Debug)]
pub struct Guest {
    root: PathBuf,
    kernel: PathBuf,
}

/// The result of a script in a machine.
#[derive(Debug)]
pub struct Ran {
    /// Standard output and error of the script.
    pub output: String,
    /// The kernel's log.
    pub log: String,
}

impl Guest {
    /// A machine with this version of Linux and the module built for it; reports a skip and returns `None` where there is none.
    ///
    /// # Panics
    /// The module does not build without a warning.
    #[track_caller]
    pub fn with_module(test: &str, version: &str) -> Option<Guest> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let kernel = root.join("target/guest").join(version);
        if !kernel.join("complete").exists() {
            skipped(test, format_args!("Linux {version} was not fetched (.ci/guest target/guest says why)"));
            return None;
        }
        if Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err() {
            skipped(test, "qemu-system-x86_64 is not installed");
            return None;
        }
        let built = Command::new(root.join(".ci/module-build"))
            .arg(&kernel)
            .output()
            .unwrap_or_else(|e| panic!("{e}"));
        assert!(built.status.success(), "Linux {version}: {}", String::from_utf8_lossy(&built.stderr));
        Some(Guest { root, kernel })
    }

    /// Runs a script, which finds the module and `files` in its folder, for at most `limit_s` seconds.
    ///
    /// # Panics
    /// The script fails, the machine does not come to its end, or the kernel's log tells of a defect.
    #[track_caller]
    pub fn run(&self, script: &str, files: &[&Path], limit_s: u32) -> Ran {
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let (at, log_at) = (folder.path().join("script"), folder.path().join("log"));
        let written = File::create(&at).and_then(|mut file| file.write_all(script.as_bytes()));
        written.unwrap_or_else(|e| panic!("{e}"));
        let mut run = Command::new("bash");
        // The kernel's log comes over descriptor 3.
        run.args(["-c", "log=$1; shift; exec 3>\"$log\"; exec \"$@\"", "guest"]).arg(&log_at);
        run.arg(self.root.join(".ci/guest-run")).args(["-t", &limit_s.to_string()]);
        run.arg(&self.kernel).arg(&at).arg(self.kernel.join("built/ccplane.ko")).args(files);
        let ran = run.output().unwrap_or_else(|e| panic!("{e}"));
        let output = String::from_utf8_lossy(&ran.stdout).into_owned();
        let errors = String::from_utf8_lossy(&ran.stderr);
        let log = std::fs::read_to_string(&log_at).unwrap_or_default();
        assert_ne!(ran.status.code(), Some(NO_MACHINE), "no machine: {errors}\n{output}");
        assert!(ran.status.success(), "the script failed ({}): {errors}\n{output}\n{log}", ran.status);
        let defect = log.lines().find(|line| DEFECTS.iter().any(|defect| line.contains(defect)));
        assert_eq!(defect, None, "in the kernel's log:\n{log}\n{output}");
        Ran { output, log }
    }
}

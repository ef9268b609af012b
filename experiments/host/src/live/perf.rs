//! Instructions and flame graphs by perf(1), where it is installed and allowed.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ccplane_report::draw::svg;

use super::flames::{self, Flame};

/// Samples of stacks in a second and on each processor; no divisor of the timer's rate.
const STACKS_PER_S: &str = "199";
/// The longest text of stacks that is read, bytes.
const MAX_STACKS_BYTES: u64 = 256 << 20;

/// Reasons why perf counts nothing here.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The program could not be run.
    #[error("perf could not be run: {0}")]
    Run(io::Error),
    /// The program refuses, for lack of permission for one.
    #[error("perf: {said}")]
    Refused {
        /// The last line that it wrote.
        said: String,
    },
    /// The machine has no counter of instructions.
    #[error("this machine counts no instructions")]
    NoCounter,
    /// The picture cannot be written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

fn command(name: &str) -> Command {
    // So that its words are those that are parsed here.
    let mut command = Command::new("perf");
    command.env("LC_ALL", "C").arg(name).stdin(Stdio::null());
    command
}

/// A count of all processors' instructions under way.
#[derive(Debug)]
pub(super) struct Counting(Child);

impl Counting {
    /// Counts for so long.
    pub(super) fn start(duration: Duration) -> Result<Counting, PerfError> {
        let mut stat = command("stat");
        stat.args(["-a", "-x", ",", "-e", "instructions", "--", "sleep"]);
        stat.arg(format!("{:.3}", duration.as_secs_f64())).stdout(Stdio::null()).stderr(Stdio::piped());
        stat.spawn().map(Counting).map_err(PerfError::Run)
    }

    /// Waits for the count.
    pub(super) fn finish(self) -> Result<u64, PerfError> {
        let output = self.0.wait_with_output().map_err(PerfError::Run)?;
        let said = String::from_utf8_lossy(&output.stderr);
        match (output.status.success(), parse(&said)) {
            (true, Some(count)) => Ok(count),
            (true, None) => Err(PerfError::NoCounter),
            (false, _) => Err(PerfError::Refused { said: last_line(&said) }),
        }
    }
}

/// Says whether instructions can be counted here.
pub(super) fn probe() -> Result<(), PerfError> {
    Counting::start(Duration::ZERO)?.finish().map(drop)
}

/// Returns the count in what `perf stat -x ,` writes: the value, its unit, the event's name, and more.
fn parse(text: &str) -> Option<u64> {
    let count = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let is_it = fields.get(2).is_some_and(|event| event.starts_with("instructions"));
        fields.first().filter(|_| is_it)?.trim().parse().ok()
    };
    text.lines().find_map(count)
}

fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.unwrap_or("it failed and said nothing").trim().to_owned()
}

/// Samples the stacks of all processors for so long, into a file of perf's.
pub(super) fn record(duration: Duration, file: &Path) -> Result<(), PerfError> {
    let mut record = command("record");
    record.args(["-q", "-a", "-g", "-F", STACKS_PER_S, "-e", "cpu-clock", "-o"]).arg(file);
    record.args(["--", "sleep"]).arg(format!("{:.3}", duration.as_secs_f64()));
    let output = record.output().map_err(PerfError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    Err(PerfError::Refused { said: last_line(&String::from_utf8_lossy(&output.stderr)) })
}

/// Draws the stacks of a file of perf's as a flame graph.
pub(super) fn draw(recorded: &Path, title: &str, file: &Path) -> Result<(), PerfError> {
    let mut script = command("script");
    script.args(["-F", "comm,ip,sym", "-i"]).arg(recorded).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = script.spawn().map_err(PerfError::Run)?;
    let mut stacks = Vec::new();
    if let Some(out) = child.stdout.take() {
        out.take(MAX_STACKS_BYTES).read_to_end(&mut stacks).map_err(PerfError::Run)?;
    }
    child.wait().map_err(PerfError::Run)?;
    let root = Flame::parse(&String::from_utf8_lossy(&stacks));
    let written = std::fs::write(file, svg::write(&flames::draw(&root, title)));
    written.map_err(|source| PerfError::File { path: file.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let text = "123456,,instructions:u,1000,100.00,0.5,insn per cycle\n";
        assert_eq!(parse(text), Some(123_456));
        assert_eq!(parse("# started on\n\n77,,instructions,1,100.00,,\n"), Some(77));
        for none in ["", "<not supported>,,instructions,0,100.00,,", "5,,cycles,1,1,,", ",,"] {
            assert_eq!(parse(none), None, "{none}");
        }
    }
}

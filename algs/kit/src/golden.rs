//! Golden trajectories: what window and rate an algorithm had after each operation of each scenario, in integers, in
//! one file an algorithm. A change of an algorithm's decisions is a diff of its file.
//!
//! They hold an algorithm to what it did, not to what it should do: `ORACLES.md` says which have a model of that besides.
//!
//! Where they differ on purpose, run the test with [`BLESS`] set in the environment and read the diff.

use crate::rig::Trajectory;
use crate::scenario::Scenario;
use crate::violation::{Bounds, Failure};
use crate::{check, scenario};
use ccplane_alg::Algorithm;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// The environment variable that has goldens written instead of compared.
pub const BLESS: &str = "CCPLANE_BLESS";

/// The reason why goldens do not hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// The algorithm broke an invariant on the way.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The file cannot be read or written.
    #[error("{path}: {error}; set {BLESS}=1 to write it")]
    File { path: String, error: std::io::Error },
    /// A line of the golden differs.
    #[error(
        "{path}:{line}: the golden has `{golden}`, the algorithm `{found}`; if that is meant, set {BLESS}=1 to rewrite it"
    )]
    Differs {
        path: String,
        /// The line's number, counted from 1.
        line: usize,
        /// The file's line; empty past its end.
        golden: String,
        /// The line as it would be now.
        found: String,
    },
}

/// The goldens of an algorithm as text: for each scenario a headline and `operation window rate` lines.
///
/// # Errors
/// An invariant that is broken on the way.
pub fn render(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds) -> Result<String, Failure> {
    let mut text = format!(
        "# {}: window (bytes) and rate (bytes per second, 0: unset) after each operation. {BLESS}=1 rewrites it.\n",
        algorithm.name()
    );
    for Scenario { name, path, operations } in scenario::all() {
        let trajectory = check(algorithm, path, &operations, bounds)
            .map_err(|violation| Failure::new(&**algorithm, name, path, &operations, violation))?;
        let Trajectory { acks, reports, lost_packets, timeouts, points, .. } = &trajectory;
        // A `String` takes whatever is written to it.
        let _ = writeln!(
            text,
            "\n{name}: {acks} acks, {reports} reports, {lost_packets} packets lost, {timeouts} timeouts"
        );
        for (n, point) in points.iter().enumerate() {
            let _ = writeln!(text, "{n} {} {}", point.cwnd_bytes, point.rate_bytes_per_s);
        }
    }
    Ok(text)
}

/// Compares an algorithm with its golden file `directory/NAME.txt`, or writes that where [`BLESS`] is set.
///
/// # Errors
/// The first line that differs, or why there is none to compare.
pub fn compare(algorithm: &Arc<dyn Algorithm>, bounds: &Bounds, directory: &Path) -> Result<(), GoldenError> {
    let found = render(algorithm, bounds)?;
    let file = directory.join(format!("{}.txt", algorithm.name()));
    let path = file.display().to_string();
    if std::env::var_os(BLESS).is_some() {
        return std::fs::write(&file, found).map_err(|error| GoldenError::File { path, error });
    }
    let golden =
        std::fs::read_to_string(&file).map_err(|error| GoldenError::File { path: path.clone(), error })?;
    let lines = golden.lines().count().max(found.lines().count());
    let pad = std::iter::repeat("");
    let pairs = golden.lines().chain(pad.clone()).zip(found.lines().chain(pad)).take(lines);
    match pairs.enumerate().find(|(_, (golden, found))| golden != found) {
        None => Ok(()),
        Some((n, (golden, found))) => Err(GoldenError::Differs {
            path,
            line: n + 1,
            golden: golden.to_owned(),
            found: found.to_owned(),
        }),
    }
}

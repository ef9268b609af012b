//! Memories of algorithms, kept in files: the agent reads them when it starts, and writes them while it runs and when it stops.

use crate::control::StandingRecord;
use crate::owned::{Folder, OwnedError};
use crate::place::StateFolder;
use ccplane_alg::{Algorithm, MAX_MEMORY_BYTES, Memory};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The extension of a memory file, which has its algorithm's name.
const ENDING: &str = "memory";

/// Opens the folder of memories, and moves there what agents of earlier versions kept in the run directory. What cannot be moved is logged.
///
/// # Errors
/// The folder cannot be used.
pub(crate) fn open_folder(at: &StateFolder, algorithms: &[Arc<dyn Algorithm>]) -> Result<Folder, OwnedError> {
    let folder = Folder::open(&at.folder)?;
    for (algorithm, _) in of(algorithms).filter(|_| at.folder != at.former) {
        match moved(&at.former, &folder, &file(algorithm)) {
            Ok(false) => {}
            Ok(true) => {
                info!(algorithm, to = %at.folder.display(), "what was known of destinations was moved")
            }
            Err(error) => {
                warn!(algorithm, %error, "what was known of destinations stays where it was, and is not used");
            }
        }
    }
    Ok(folder)
}

/// Moves a file from `former` to `to`, if it is there and nothing is in its place; whether it did.
fn moved(former: &Path, to: &Folder, name: &str) -> Result<bool, OwnedError> {
    let Some(from) = Folder::find(former)? else { return Ok(false) };
    if !to.copy_from(&from, name, MAX_MEMORY_BYTES)? {
        return Ok(false);
    }
    from.remove(name).map(|()| true)
}

/// The memory of one algorithm.
struct Kept {
    algorithm: &'static str,
    memory: Arc<dyn Memory>,
    /// The version that was last read or written.
    version: Option<u64>,
}

/// The memories of all algorithms that have one.
pub(crate) struct Memories {
    folder: Folder,
    kept: Vec<Kept>,
    every: Duration,
    written: Instant,
}

impl Memories {
    /// Reads what was kept in a folder. What cannot be read is said, and begun anew; its file is replaced by the next one.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub(crate) fn open(
        folder: Folder,
        algorithms: &[Arc<dyn Algorithm>],
        every: Duration,
    ) -> Result<Memories, OwnedError> {
        let kept =
            of(algorithms).map(|(algorithm, memory)| Kept { algorithm, memory, version: None }).collect();
        let mut memories = Memories { folder, kept, every, written: Instant::now() };
        for kept in &mut memories.kept {
            let name = file(kept.algorithm);
            match memories.folder.read(&name, MAX_MEMORY_BYTES) {
                Ok(None) => {}
                Ok(Some(content)) => match kept.memory.import(&content) {
                    Ok(()) => kept.version = Some(kept.memory.version()),
                    Err(error) => warn!(
                        algorithm = kept.algorithm,
                        file = %memories.folder.path().join(&name).display(),
                        %error,
                        "what was known of destinations cannot be read: it is learned anew"
                    ),
                },
                Err(OwnedError::Long { path, limit }) => warn!(
                    algorithm = kept.algorithm,
                    file = %path.display(),
                    limit,
                    "what was known of destinations is too long: it is learned anew"
                ),
                Err(error) => return Err(error),
            }
        }
        Ok(memories)
    }

    /// Writes the changed memories, if the interval has passed.
    pub(crate) fn keep(&mut self) {
        if self.written.elapsed() >= self.every {
            self.write();
        }
    }

    /// Writes the changed memories; errors are logged.
    pub(crate) fn write(&mut self) {
        self.written = Instant::now();
        for kept in &mut self.kept {
            let version = kept.memory.version();
            if kept.version == Some(version) || (kept.version.is_none() && version == 0) {
                continue;
            }
            match self.folder.replace(&file(kept.algorithm), &kept.memory.export()) {
                Ok(()) => kept.version = Some(version),
                Err(error) => {
                    warn!(algorithm = kept.algorithm, %error, "what is known of destinations is not kept")
                }
            }
        }
    }
}

/// Returns the destinations that the algorithms have measured.
pub(crate) fn standings(algorithms: &[Arc<dyn Algorithm>]) -> Vec<StandingRecord> {
    let records = |(name, memory): (&'static str, Arc<dyn Memory>)| {
        memory.standings().into_iter().map(move |standing| StandingRecord::new(name, standing))
    };
    of(algorithms).flat_map(records).collect()
}

/// Returns the name and the memory of each algorithm that has one.
fn of(algorithms: &[Arc<dyn Algorithm>]) -> impl Iterator<Item = (&'static str, Arc<dyn Memory>)> {
    algorithms.iter().filter_map(|algorithm| Some((algorithm.name(), algorithm.memory()?)))
}

fn file(algorithm: &str) -> String {
    format!("{algorithm}.{ENDING}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_alg::{FlowInfo, PathSample};
    use ccplane_algs::Portfolio;
    use ccplane_contract::TransportStats;

    fn portfolio() -> Vec<Arc<dyn Algorithm>> {
        vec![Arc::new(Portfolio::default())]
    }

    /// Half a minute of a flow whose arms all do the same.
    fn learn(algorithms: &[Arc<dyn Algorithm>]) {
        let info = FlowInfo {
            mss_bytes: 1448,
            init_cwnd_bytes: 14_480,
            local: "192.0.2.1:1".parse().unwrap(),
            remote: "198.51.100.7:2".parse().unwrap(),
            cgroup: None,
            min_rtt_us: None,
        };
        let mut chooser = algorithms[0].chooser(&info).unwrap();
        chooser.first(&["dual", "copa", "cubic"]);
        for n in 1..300u32 {
            let sample = PathSample {
                at_us: u64::from(n) * 100_000,
                transport: TransportStats {
                    bytes_acked: u64::from(n) * 100_000,
                    srtt_us: 40_000,
                    min_rtt_us: 40_000,
                    snd_cwnd: 27,
                    unacked: 27,
                    mss_bytes: 1448,
                    ..TransportStats::default()
                },
                steered: true,
                ..PathSample::default()
            };
            chooser.on_sample(&sample);
        }
    }

    fn open(path: &std::path::Path, algorithms: &[Arc<dyn Algorithm>]) -> Memories {
        Memories::open(Folder::open(path).unwrap(), algorithms, Duration::ZERO).unwrap()
    }

    #[test]
    fn the_next_agent_knows_what_this_one_learned() {
        let directory = tempfile::tempdir().unwrap();
        let first = portfolio();
        let mut memories = open(directory.path(), &first);
        memories.keep();
        assert!(!directory.path().join("portfolio.memory").exists(), "nothing was learned");
        learn(&first);
        memories.keep();
        let next = portfolio();
        assert!(standings(&next).is_empty());
        open(directory.path(), &next);
        assert_eq!(standings(&next), standings(&first));
        let standing = &standings(&next)[0];
        assert_eq!((standing.algorithm.as_str(), standing.prefix.as_str()), ("portfolio", "198.51.100.0/24"));
        assert!(standing.evidence.iter().any(|arm| arm.intervals > 0), "{standing:?}");
    }

    /// A memory in the run directory, where versions before kept it, goes to the folder that the next start of the machine leaves alone.
    #[test]
    fn what_a_version_before_kept_is_moved() {
        let base = tempfile::tempdir().unwrap();
        let at = StateFolder { folder: base.path().join("state"), former: base.path().join("run") };
        let first = portfolio();
        open_folder(&at, &first).unwrap();
        assert!(!at.former.exists(), "nothing was there");
        let mut memories = open(&at.former, &first);
        learn(&first);
        memories.write();
        let next = portfolio();
        let folder = open_folder(&at, &next).unwrap();
        Memories::open(folder, &next, Duration::ZERO).unwrap();
        assert_eq!(standings(&next), standings(&first));
        assert!(!standings(&next).is_empty() && !at.former.join("portfolio.memory").exists());
        // What is there by now is not replaced by an older agent's.
        std::fs::write(at.former.join("portfolio.memory"), "older").unwrap();
        open_folder(&at, &next).unwrap();
        assert_ne!(std::fs::read(at.folder.join("portfolio.memory")).unwrap(), b"older");
    }

    #[test]
    fn a_file_that_was_cut_off_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let first = portfolio();
        let mut memories = open(directory.path(), &first);
        learn(&first);
        memories.write();
        let path = directory.path().join("portfolio.memory");
        let whole = std::fs::read(&path).unwrap();
        for content in [&whole[..whole.len() / 2], b"", &vec![b'x'; MAX_MEMORY_BYTES + 1]] {
            std::fs::write(&path, content).unwrap();
            let next = portfolio();
            let mut memories = open(directory.path(), &next);
            assert!(standings(&next).is_empty());
            learn(&next);
            memories.write();
            assert_eq!(std::fs::read(&path).unwrap(), whole, "the same flow teaches the same");
        }
    }
}

//! Recorded flows as the workload of a plan: those that come with ccplane, by name, or a file of `ccplane record`.

use ccplane_files::Bound;
use ccplane_netsim::workload::recorded::{Recording, RecordingError, Unit};
use ccplane_netsim::workload::{FlowSizes, Playback, WorkloadError};
use std::path::Path;

/// The words that a plan begins a recording's name with.
const PREFIX: &str = "recording:";
/// The end of the name of a file, which no recording that comes with ccplane has.
const FILE: &str = ".jsonl";
const BOUND: Bound = Bound { what: "a recording", bytes: 64 << 20 };

/// The recordings that come with ccplane, each with its text.
const SHIPPED: [(&str, &str); 4] = [
    ("http", include_str!("../../traces/recordings/http.jsonl")),
    ("postgres", include_str!("../../traces/recordings/postgres.jsonl")),
    ("rsync", include_str!("../../traces/recordings/rsync.jsonl")),
    ("shuffle", include_str!("../../traces/recordings/shuffle.jsonl")),
];

/// Reasons why there is no such recording.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordedError {
    #[error(
        "no recording is called `{0}`: there are http, postgres, rsync and shuffle, and files whose name ends with {FILE}"
    )]
    Unknown(String),
    #[error(transparent)]
    Read(#[from] ccplane_files::ReadError),
    #[error("{name}: {source}")]
    Recording { name: String, source: RecordingError },
    #[error("{name}: {source}")]
    Workload { name: String, source: WorkloadError },
}

/// The flows of a recording: their sizes, and their order.
pub(crate) struct Recorded {
    pub(crate) sizes: FlowSizes,
    pub(crate) playback: Playback,
}

/// Returns the recording that a plan names, files as seen from a folder; `None` where the name is not one of a recording.
pub(crate) fn recorded(name: &str, folder: &Path) -> Option<Result<Recorded, RecordedError>> {
    let own = name.strip_prefix(PREFIX)?;
    Some(text(own, folder).and_then(|text| {
        let recording = Recording::parse(&text)
            .map_err(|source| RecordedError::Recording { name: own.to_owned(), source })?;
        let refused = |source| RecordedError::Workload { name: own.to_owned(), source };
        let sizes = recording.sizes(name, Unit::Connection).map_err(refused)?;
        Ok(Recorded { sizes, playback: Playback::new(&recording).map_err(refused)? })
    }))
}

fn text(own: &str, folder: &Path) -> Result<String, RecordedError> {
    if own.ends_with(FILE) {
        return Ok(ccplane_files::read_text(&folder.join(own), BOUND)?);
    }
    let shipped = SHIPPED.iter().find(|(shipped, _)| *shipped == own);
    let (_, text) = shipped.ok_or_else(|| RecordedError::Unknown(own.to_owned()))?;
    Ok((*text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_found_by_name_and_by_file() {
        let nowhere = Path::new("/nowhere");
        assert!(recorded("web-search", nowhere).is_none());
        for (name, text) in SHIPPED {
            let found = recorded(&format!("recording:{name}"), nowhere).unwrap().unwrap();
            assert_eq!(found.sizes.name(), format!("recording:{name}"));
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("own.jsonl"), text).unwrap();
            let own = recorded("recording:own.jsonl", folder.path()).unwrap().unwrap();
            assert_eq!((own.playback, own.sizes.points()), (found.playback, found.sizes.points()));
        }
    }

    #[test]
    fn what_is_no_recording_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("empty.jsonl"), "").unwrap();
        let refused = |name: &str| match recorded(name, folder.path()) {
            Some(Err(error)) => error.to_string(),
            _ => panic!("{name} is none"),
        };
        assert!(refused("recording:ftp").contains("no recording is called `ftp`"));
        assert!(refused("recording:empty.jsonl").contains("empty.jsonl: the recording ends after 0 flows"));
        assert!(refused("recording:missing.jsonl").contains("missing.jsonl"));
    }
}

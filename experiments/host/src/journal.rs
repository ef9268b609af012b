//! The record of what was changed on a host, from which every change can be taken back.
//!
//! A line is on the disk before its change is made. A change may therefore be missing where its line is there, but never the
//! other way round, whatever ends the process or the machine. A line whose end is missing is of a change that was not made.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ccplane_files::{Bound, Directory, DirectoryError, LockError, LockFile, Others, ReadError};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::setting::{Setting, SettingError};

/// The largest journal, bytes; a change that would not fit is refused.
pub const MAX_JOURNAL_BYTES: u64 = 1 << 20;
const JOURNAL: Bound = Bound { what: "a journal of settings", bytes: MAX_JOURNAL_BYTES };
const FILE: &str = "host.jsonl";
const NEW_FILE: &str = "host.jsonl.new";
const LOCK: &str = "host.lock";
/// The format's version; a journal of another is refused.
const VERSION: u32 = 1;
/// The file that names this boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A change as the journal holds it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    version: u32,
    /// The boot in which the change was made: a later one starts with the host's own settings.
    boot: String,
    /// The setting's name.
    pub setting: String,
    /// The value before the change.
    pub old: String,
    /// The value that was asked for.
    pub new: String,
}

/// A change that was made, or was not needed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Applied {
    pub setting: Setting,
    /// The value before.
    pub old: String,
    /// The value now; the same as before where nothing was to be done.
    pub new: String,
}

/// The end of one change that was to be taken back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Undone {
    /// The setting's name.
    pub setting: String,
    /// The value that was to come back.
    pub old: String,
    pub outcome: UndoOutcome,
}

/// The outcome of taking one change back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UndoOutcome {
    /// The old value is in force again.
    Restored,
    /// The old value was in force already.
    WasOld,
    /// The change did not outlive the boot in which it was made.
    OlderBoot,
    /// Somebody else has changed the setting since; it stays as it is.
    ChangedSince {
        /// The value that was found.
        found: String,
    },
    /// The setting is gone, with its interface for one.
    Gone {
        /// The reason why it cannot be read.
        why: String,
    },
    /// The system refuses; the change stays in the journal.
    Refused {
        /// The system's reason.
        why: String,
    },
}

/// Reasons why changes are not made or not taken back.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The journal's folder cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Another process changes this host's settings.
    #[error("another process changes this host's settings: {0}")]
    Held(#[source] LockError),
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A line is none of a journal.
    #[error("{}:{line}: {reason}", path.display())]
    BadLine { path: PathBuf, line: usize, reason: String },
    /// The journal cannot be written; nothing was changed without it.
    #[error("{}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The journal holds as many changes as it may.
    #[error("{} would be over {MAX_JOURNAL_BYTES} bytes; take the changes back first", path.display())]
    Full { path: PathBuf },
    /// A setting is not read or not changed; the changes before it were taken back.
    #[error("{source}; {} changes before it were taken back{}", undone.len(), left_over(undone))]
    Setting {
        source: Box<SettingError>,
        /// The changes that were taken back.
        undone: Vec<Undone>,
    },
    /// The journal could not be written; the changes before were taken back.
    #[error("{source}; {} changes before it were taken back{}", undone.len(), left_over(undone))]
    Stopped {
        source: Box<JournalError>,
        /// The changes that were taken back.
        undone: Vec<Undone>,
    },
}

/// Names the changes that could not be taken back.
fn left_over(undone: &[Undone]) -> String {
    let refused = |u: &&Undone| matches!(u.outcome, UndoOutcome::Refused { .. });
    let names: Vec<&str> = undone.iter().filter(refused).map(|u| u.setting.as_str()).collect();
    if names.is_empty() { String::new() } else { format!(", but not {}", names.join(", ")) }
}

/// The journal of a host's changes, held by one process at a time.
#[derive(Debug)]
pub struct Journal {
    machine: Machine,
    folder: PathBuf,
    path: PathBuf,
    boot: String,
    entries: Vec<Entry>,
    bytes: u64,
    _lock: LockFile,
}

impl Journal {
    /// Opens the journal in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// Another process holds it, or it is no journal.
    pub fn open(machine: &Machine, folder: &Path) -> Result<Journal, JournalError> {
        let directory = Directory::create(folder, Others::Read)?;
        let lock = LockFile::take(&directory, LOCK).map_err(JournalError::Held)?;
        let path = folder.join(FILE);
        let text = if path.exists() { ccplane_files::read_text(&path, JOURNAL)? } else { String::new() };
        // What follows the last line feed was not written to its end.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        let entries = parse(&path, whole)?;
        let boot = machine.text(BOOT_ID).unwrap_or_default();
        let bytes = whole.len() as u64;
        let mut journal = Journal {
            machine: machine.clone(),
            folder: folder.to_owned(),
            path,
            boot,
            entries,
            bytes,
            _lock: lock,
        };
        if whole.len() < text.len() {
            journal.rewrite()?;
        }
        Ok(journal)
    }

    /// Returns the changes that were made and not taken back, the oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Makes changes in order, each after its old value is on the disk. What is as it should be stays.
    ///
    /// # Errors
    /// A change fails; those before it are taken back.
    pub fn apply(&mut self, changes: &[(Setting, String)]) -> Result<Vec<Applied>, JournalError> {
        let before = self.entries.len();
        let mut applied = Vec::new();
        for (setting, value) in changes {
            match self.change(setting, value) {
                Ok(change) => applied.push(change),
                Err(error) => {
                    // The last one may have come about in another way than was asked.
                    let undone = self.take_back(before, true)?;
                    return Err(match error {
                        JournalError::Setting { source, .. } => JournalError::Setting { source, undone },
                        source => JournalError::Stopped { source: Box::new(source), undone },
                    });
                }
            }
        }
        Ok(applied)
    }

    /// Takes every change back, the newest first. What somebody else has changed since stays, unless `force` is true.
    ///
    /// # Errors
    /// The journal cannot be written. What the system refuses is an outcome.
    pub fn undo(&mut self, force: bool) -> Result<Vec<Undone>, JournalError> {
        self.take_back(0, force)
    }

    /// Returns the number of changes so far, to which [`Journal::undo_to`] goes back.
    pub fn mark(&self) -> usize {
        self.entries.len()
    }

    /// Takes back the changes since a mark, the newest first; `force` is as in [`Journal::undo`].
    ///
    /// # Errors
    /// The journal cannot be written. What the system refuses is an outcome.
    pub fn undo_to(&mut self, mark: usize, force: bool) -> Result<Vec<Undone>, JournalError> {
        self.take_back(mark.min(self.entries.len()), force)
    }

    fn change(&mut self, setting: &Setting, value: &str) -> Result<Applied, JournalError> {
        let failed = |source| JournalError::Setting { source: Box::new(source), undone: Vec::new() };
        let old = setting.read(&self.machine).map_err(failed)?;
        let new = setting.value(value).map_err(failed)?;
        if old != new {
            let entry = Entry {
                version: VERSION,
                boot: self.boot.clone(),
                setting: setting.to_string(),
                old: old.clone(),
                new: new.clone(),
            };
            self.record(entry)?;
            setting.write(&self.machine, &new).map_err(failed)?;
        }
        Ok(Applied { setting: setting.clone(), old, new })
    }

    /// Takes back the changes from the `first` one on.
    fn take_back(&mut self, first: usize, force: bool) -> Result<Vec<Undone>, JournalError> {
        let mut undone = Vec::new();
        let mut kept = Vec::new();
        for entry in self.entries.split_off(first).into_iter().rev() {
            let outcome = self.restore(&entry, force);
            undone.push(Undone { setting: entry.setting.clone(), old: entry.old.clone(), outcome });
            if matches!(undone.last(), Some(Undone { outcome: UndoOutcome::Refused { .. }, .. })) {
                kept.push(entry);
            }
        }
        self.entries.extend(kept.into_iter().rev());
        self.rewrite()?;
        Ok(undone)
    }

    fn restore(&self, entry: &Entry, force: bool) -> UndoOutcome {
        if entry.boot != self.boot {
            return UndoOutcome::OlderBoot;
        }
        // The journal was parsed: its names are of settings.
        let Ok(setting) = entry.setting.parse::<Setting>() else {
            return UndoOutcome::Gone { why: "no setting has this name".into() };
        };
        match setting.read(&self.machine) {
            Err(error) => UndoOutcome::Gone { why: error.to_string() },
            Ok(found) if found == entry.old => UndoOutcome::WasOld,
            Ok(found) if found != entry.new && !force => UndoOutcome::ChangedSince { found },
            Ok(_) => match setting.write(&self.machine, &entry.old) {
                Ok(()) => UndoOutcome::Restored,
                Err(error) => UndoOutcome::Refused { why: error.to_string() },
            },
        }
    }

    /// Appends a change and waits until the disk has it.
    fn record(&mut self, entry: Entry) -> Result<(), JournalError> {
        let line = line(&entry);
        if self.bytes + line.len() as u64 > MAX_JOURNAL_BYTES {
            return Err(JournalError::Full { path: self.path.clone() });
        }
        let failed = |source| JournalError::Write { path: self.path.clone(), source };
        let is_new = !self.path.exists();
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(&self.path).map_err(failed)?;
        file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map_err(failed)?;
        if is_new {
            self.sync_folder()?;
        }
        self.bytes += line.len() as u64;
        self.entries.push(entry);
        Ok(())
    }

    /// Writes the journal anew, whole or not at all; without a change there is no file.
    fn rewrite(&mut self) -> Result<(), JournalError> {
        let failed = |source| JournalError::Write { path: self.path.clone(), source };
        let text: String = self.entries.iter().map(line).collect();
        if text.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        } else {
            let new = self.folder.join(NEW_FILE);
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new);
            file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_data()))
                .map_err(failed)?;
            fs::rename(&new, &self.path).map_err(failed)?;
        }
        self.bytes = text.len() as u64;
        self.sync_folder()
    }

    fn sync_folder(&self) -> Result<(), JournalError> {
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| JournalError::Write { path: self.folder.clone(), source })
    }
}

fn line(entry: &Entry) -> String {
    // Texts and numbers alone: they have a form in JSON.
    serde_json::to_string(entry).map_or_else(|_| String::new(), |json| json + "\n")
}

fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, JournalError> {
    let entry = |(n, text): (usize, &str)| {
        let bad = |reason: String| JournalError::BadLine { path: path.to_owned(), line: n + 1, reason };
        let entry: Entry = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        if entry.version != VERSION {
            return Err(bad(format!(
                "version {} of the format; this program knows {VERSION}",
                entry.version
            )));
        }
        entry.setting.parse::<Setting>().map_err(|error| bad(error.to_string()))?;
        Ok(entry)
    };
    text.lines().enumerate().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_testing::fuzz::{Fuzz, JSON, words};

    /// Entries that were read are read as the same once they are written again, and each of their settings has a name.
    #[test]
    fn entries_that_are_read_are_written_as_the_same() {
        let entry = |setting: &str| Entry {
            version: VERSION,
            boot: "5c7e".to_owned(),
            setting: setting.to_owned(),
            old: "1".to_owned(),
            new: "0".to_owned(),
        };
        let good: String =
            ["irq/24", "cpu/0/governor", "net/eth0/rx-0/rps_cpus"].map(|name| line(&entry(name))).concat();
        let tokens = ["\n", "\"version\":1", "\"boot\":", "\"setting\":", "\"old\":", "\"new\":"];
        let target =
            Fuzz::new("host-journal", env!("CARGO_MANIFEST_DIR")).seeds([&good]).tokens(JSON).tokens(tokens);
        target.max_bytes(512).run(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            match parse(Path::new("fuzz"), &text) {
                Ok(entries) => {
                    assert!(entries.iter().all(|entry| entry.setting.parse::<Setting>().is_ok()));
                    let again: String = entries.iter().map(line).collect();
                    assert_eq!(parse(Path::new("fuzz"), &again).unwrap(), entries);
                    1 + entries.len().min(8) as u64
                }
                Err(JournalError::BadLine { line, reason, .. }) => words(line, &reason),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

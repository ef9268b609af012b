//! Bounded reads of regular files and of standard input, with a bound for each kind of content.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// A kind of content and its size limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The kind as error messages name it, such as "a configuration".
    pub what: &'static str,
    /// The size limit, bytes.
    pub bytes: u64,
}

/// Reasons why a file is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refuses to open or read the file.
    #[error("{}: {source}", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    /// The file is a device, a pipe, a directory or the like.
    #[error("{}: is {found}: {what} is read from a regular file", file.display())]
    NotRegular {
        file: PathBuf,
        /// The file's actual type.
        found: &'static str,
        /// The kind of content.
        what: &'static str,
    },
    /// The file is larger than its kind may be.
    #[error("{}: more than {limit} bytes, the most that {what} may have", file.display())]
    TooLarge {
        file: PathBuf,
        /// The kind of content.
        what: &'static str,
        /// The size limit, bytes.
        limit: u64,
    },
    /// The file is not text.
    #[error("{}:{line}: byte {at} is not UTF-8 text", file.display())]
    NotText {
        file: PathBuf,
        /// The line of the first wrong byte, counted from 1.
        line: usize,
        /// Offset of the first wrong byte.
        at: usize,
    },
}

impl ReadError {
    /// The file that is not read.
    pub fn file(&self) -> &Path {
        match self {
            ReadError::Unreadable { file, .. }
            | ReadError::NotRegular { file, .. }
            | ReadError::TooLarge { file, .. }
            | ReadError::NotText { file, .. } => file,
        }
    }

    /// The reason without the file's name, for messages that already have it.
    pub fn reason(&self) -> String {
        let text = self.to_string();
        let name = format!("{}:", self.file().display());
        text.strip_prefix(&name).map_or(text.as_str(), str::trim_start).to_owned()
    }
}

/// Opens a regular file within a bound, for reading piece by piece.
///
/// # Errors
/// [`ReadError`], but not `NotText`.
pub fn open(file: &Path, bound: Bound) -> Result<File, ReadError> {
    let unreadable = |source| ReadError::Unreadable { file: file.to_owned(), source };
    // Opening a pipe that nobody writes to would wait for ever.
    let flags = (OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file).map_err(unreadable)?;
    let meta = opened.metadata().map_err(unreadable)?;
    let kind = meta.file_type();
    if !kind.is_file() {
        let found = if kind.is_dir() {
            "a directory"
        } else if kind.is_fifo() {
            "a pipe"
        } else if kind.is_char_device() || kind.is_block_device() {
            "a device"
        } else {
            "no file"
        };
        return Err(ReadError::NotRegular { file: file.to_owned(), found, what: bound.what });
    }
    // What is too large is not read at all.
    if meta.len() > bound.bytes {
        return Err(ReadError::TooLarge { file: file.to_owned(), what: bound.what, limit: bound.bytes });
    }
    Ok(opened)
}

/// Reads a regular file within a bound.
///
/// # Errors
/// [`ReadError`], but not `NotText`.
pub fn read(file: &Path, bound: Bound) -> Result<Vec<u8>, ReadError> {
    read_from(open(file, bound)?, file, bound)
}

/// Reads `input`, which messages call `name`, within a bound.
///
/// # Errors
/// `Unreadable`, `TooLarge`.
pub fn read_from(input: impl Read, name: &Path, bound: Bound) -> Result<Vec<u8>, ReadError> {
    let file = || name.to_owned();
    let mut bytes = Vec::new();
    let read = input.take(bound.bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| ReadError::Unreadable { file: file(), source })?;
    if bytes.len() as u64 > bound.bytes {
        return Err(ReadError::TooLarge { file: file(), what: bound.what, limit: bound.bytes });
    }
    Ok(bytes)
}

/// Reads the text of a regular file within a bound.
///
/// # Errors
/// [`ReadError`].
pub fn read_text(file: &Path, bound: Bound) -> Result<String, ReadError> {
    text(read(file, bound)?, file)
}

/// Decodes the bytes of `name` as text.
///
/// # Errors
/// `NotText`.
pub fn text(bytes: Vec<u8>, name: &Path) -> Result<String, ReadError> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = error.as_bytes().iter().take(at);
        let line = before.filter(|b| **b == b'\n').count() + 1;
        ReadError::NotText { file: name.to_owned(), line, at }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::fs;
    use std::time::{Duration, Instant};

    const BOUND: Bound = Bound { what: "a note", bytes: 8 };

    #[test]
    fn only_regular_files_within_their_bound_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("note");
        fs::write(&file, "12345678").unwrap();
        assert_eq!(read_text(&file, BOUND).unwrap(), "12345678");
        fs::write(&file, "123456789").unwrap();
        let said = read(&file, BOUND).unwrap_err().to_string();
        assert_eq!(said, format!("{}: more than 8 bytes, the most that a note may have", file.display()));
        // Of 300 MB no more than the bound is read.
        fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(300 << 20).unwrap();
        assert!(matches!(read(&file, BOUND), Err(ReadError::TooLarge { limit: 8, .. })));
    }

    #[test]
    fn devices_pipes_and_folders_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        let start = Instant::now();
        for (path, what) in
            [(Path::new("/dev/zero"), "a device"), (&pipe, "a pipe"), (dir.path(), "a directory")]
        {
            match read(path, BOUND) {
                Err(ReadError::NotRegular { found, .. }) => assert_eq!(found, what),
                other => panic!("{other:?}"),
            }
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(matches!(read_from(io::repeat(0), Path::new("-"), BOUND), Err(ReadError::TooLarge { .. })));
    }

    #[test]
    fn files_that_are_not_text_are_refused_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("note");
        fs::write(&file, b"a\nb\n\xff").unwrap();
        let said = read_text(&file, BOUND).unwrap_err().to_string();
        assert_eq!(said, format!("{}:3: byte 4 is not UTF-8 text", file.display()));
    }
}

//! A host's files are read and written below one root.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ccplane_files::Bound;

/// The largest file of the kernel's that is read, bytes: /proc/interrupts of a host with many processors.
pub const MAX_FILE_BYTES: u64 = 4 << 20;
const KERNEL_FILE: Bound = Bound { what: "a file of the kernel's", bytes: MAX_FILE_BYTES };
/// The folder of a recorded machine that holds what ethtool(8) said, in files such as `eth0 -c`.
const RECORDED_ETHTOOL: &str = "ethtool";

/// A host: this one, or one whose files lie in a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    root: PathBuf,
    is_recorded: bool,
}

impl Machine {
    /// Returns the host that this process runs on.
    pub fn this() -> Machine {
        Machine { root: PathBuf::from("/"), is_recorded: false }
    }

    /// Returns a recorded host: copies of `/sys` and `/proc` in `folder`, and ethtool's output in `ethtool/`.
    pub fn recorded(folder: &Path) -> Machine {
        Machine { root: folder.to_owned(), is_recorded: true }
    }

    /// Whether its files lie in a folder, so that nobody but these can be asked.
    pub(crate) fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Returns the file with what ethtool said of an interface, where the machine is recorded.
    pub(crate) fn recorded_ethtool(&self, interface: &str, flag: &str) -> Option<PathBuf> {
        self.is_recorded.then(|| self.root.join(RECORDED_ETHTOOL).join(format!("{interface} {flag}")))
    }

    /// Returns the path of a file on this machine; `path` is absolute.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Reads a file without the blanks around its text.
    ///
    /// # Errors
    /// The file cannot be read, is no text, or is larger than [`MAX_FILE_BYTES`].
    pub fn read(&self, path: &str) -> io::Result<String> {
        let text = ccplane_files::read_text(&self.path(path), KERNEL_FILE);
        text.map(|text| text.trim().to_owned()).map_err(|error| io::Error::other(error.reason()))
    }

    /// Reads a file that may not be there.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok()
    }

    /// Reads a file that holds one number.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Returns the names in a folder, in order; none where there is no such folder.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the numbers of the folder's entries that are named `prefix` and a number, in order.
    pub fn numbered(&self, path: &str, prefix: &str) -> Vec<u32> {
        let number = |name: String| name.strip_prefix(prefix)?.parse().ok();
        let mut numbers: Vec<u32> = self.names(path).into_iter().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the last part of what a link leads to.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    /// Whether the file exists and may be opened for writing; nothing is written.
    ///
    /// # Errors
    /// The system's reason why not.
    pub fn is_writable(&self, path: &str) -> io::Result<()> {
        OpenOptions::new().write(true).open(self.path(path)).map(drop)
    }

    /// Writes a value to a file that exists.
    ///
    /// # Errors
    /// The system refuses to open or write it.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path(path))?;
        // In one call, as the kernel's files take a value.
        file.write_all(format!("{value}\n").as_bytes())
    }
}

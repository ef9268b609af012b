//! The command line as it was given.

use std::ffi::OsString;
use std::path::Path;

/// The command line that was parsed, which from Python is not the process's own.
pub(crate) struct Invoked {
    /// The name of the program, which for an outside crate is its own.
    pub(super) program: String,
    /// The whole line, to be shown.
    pub(super) line: String,
}

impl Invoked {
    /// Takes the arguments, the program's name first.
    pub(crate) fn new(arguments: &[OsString]) -> Invoked {
        let words: Vec<_> = arguments.iter().map(|argument| argument.to_string_lossy()).collect();
        let name = arguments.first().and_then(|path| Path::new(path).file_name());
        let program = name.map_or_else(|| "ccplane".to_owned(), |name| name.to_string_lossy().into_owned());
        Invoked { program, line: words.join(" ") }
    }
}

//! Output to standard output, which its reader may close early.

use crate::failure::Failure;
use std::io::{self, Write};

/// Prints `text` at once.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
        other => Ok(other?),
    }
}

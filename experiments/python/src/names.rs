//! Names that live as long as the process, as algorithms need them.

use pyo3::PyErr;
use pyo3::exceptions::PyValueError;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Bytes of all names and programs that Python may bring, at most: they are never freed.
const MAX_BYTES: usize = 16 << 20;

/// The texts so far, and their bytes.
static INTERNED: Mutex<(Option<HashSet<&'static str>>, usize)> = Mutex::new((None, 0));

/// Returns the text for as long as the process lives; the same one each time.
///
/// # Errors
/// There are too many.
pub(crate) fn interned(text: &str) -> Result<&'static str, PyErr> {
    let mut all = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    let (texts, bytes) = &mut *all;
    let texts = texts.get_or_insert_default();
    if let Some(&text) = texts.get(text) {
        return Ok(text);
    }
    if *bytes + text.len() > MAX_BYTES {
        return Err(PyValueError::new_err(format!(
            "algorithms' names and programs exceed {MAX_BYTES} bytes"
        )));
    }
    *bytes += text.len();
    let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.insert(text);
    Ok(text)
}

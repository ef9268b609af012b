//! Waits for states: polls that are bounded in time.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The time that a test waits for an event that must happen: far longer than a busy machine takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks.
const NAP: Duration = Duration::from_millis(5);

/// Waits until `found` finds something.
///
/// # Panics
/// The condition does not hold within [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, found: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, found)
}

/// Waits until `holds` is true.
///
/// # Panics
/// It is not within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || holds().then_some(()));
}

/// Waits until `found` finds something, but not longer than `patience`.
///
/// # Panics
/// It finds nothing by then.
#[track_caller]
pub fn wait_within<T>(patience: Duration, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    match poll_within(patience, || found().ok_or(())) {
        Ok(value) => value,
        Err(()) => panic!("{what}: not within {patience:?}"),
    }
}

/// Waits until `found` returns `Ok`, but not longer than `patience`.
///
/// # Panics
/// `found` returns errors for so long; the message shows the last one.
#[track_caller]
pub fn wait_for_ok<T, E: Debug>(patience: Duration, what: &str, found: impl FnMut() -> Result<T, E>) -> T {
    match poll_within(patience, found) {
        Ok(value) => value,
        Err(last) => panic!("{what}: not within {patience:?}, at last {last:?}"),
    }
}

/// Calls `found` until it returns `Ok` or `limit` has passed.
///
/// # Errors
/// The last one that `found` returned.
pub fn poll_within<T, E>(limit: Duration, mut found: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let start = Instant::now();
    loop {
        match found() {
            Err(_) if start.elapsed() < limit => std::thread::sleep(NAP),
            last => return last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_found_and_what_does_not_ends_the_wait() {
        let mut polls = 0;
        wait_until("the third look", || {
            polls += 1;
            polls == 3
        });
        let never = || wait_within(Duration::from_millis(5), "nothing", || None::<()>);
        let said = std::panic::catch_unwind(never).err().and_then(|said| said.downcast::<String>().ok());
        assert_eq!(said.as_deref().map(String::as_str), Some("nothing: not within 5ms"));
    }

    #[test]
    fn a_wait_in_vain_shows_the_last_error() {
        let never = || wait_for_ok(Duration::ZERO, "a file", || Err::<(), _>("no file"));
        let said = std::panic::catch_unwind(never).err().and_then(|said| said.downcast::<String>().ok());
        assert_eq!(said.as_deref().map(String::as_str), Some("a file: not within 0ns, at last \"no file\""));
        assert_eq!(poll_within(Duration::ZERO, || Err::<(), _>(3)), Err(3));
        assert_eq!(poll_within(Duration::ZERO, || Ok::<_, ()>(4)), Ok(4));
    }
}

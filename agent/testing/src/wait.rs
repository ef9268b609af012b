//! Waits for states: polls that are bounded in time.

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
    let start = Instant::now();
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(start.elapsed() < patience, "{what}: not within {patience:?}");
        std::thread::sleep(NAP);
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
}

//! Keeps a panic of an algorithm's code away from the agent.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs an algorithm's code and catches its panic.
///
/// # Errors
/// Its panic message. What the code was changing is in an unknown state then, so the caller drops it.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| panic_message(&*payload))
}

/// Returns the message of a panic that was caught.
pub fn panic_message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

//! Signals that end a command.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The exit code of a process that a signal has stopped.
pub(crate) const SIGNALLED: u8 = 130;

/// Makes the first SIGINT or SIGTERM ask to stop and the second one end the process.
pub(crate) fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, SIGNALLED.into(), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

//! Processes that do not outlive their test.

use std::process::Child;

/// A process that is killed when this is dropped.
#[derive(Debug)]
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Where it has ended already, there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

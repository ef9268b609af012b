//! A word on which threads of this process sleep (futex(2)).

#[cfg(not(all(loom, test)))]
pub use system::{Futex, MAX_WAITED, wait_any};

#[cfg(all(loom, test))]
pub use model::Futex;

#[cfg(not(all(loom, test)))]
mod system {
    use crate::sys::futex;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Words that one thread can wait for at once, at most (FUTEX_WAITV_MAX).
    pub const MAX_WAITED: usize = 128;

    /// A word on which threads sleep as long as it has the value that they know.
    #[derive(Debug)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// Creates a word with this value.
        pub fn new(value: u32) -> Futex {
            Futex(AtomicU32::new(value))
        }

        /// Borrows the word itself.
        #[inline]
        pub fn value(&self) -> &AtomicU32 {
            &self.0
        }

        /// Sleeps while the word has the value `expected`; may return early, as by a signal.
        pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
            futex::wait(&self.0, expected, timeout);
        }

        /// Wakes up to `threads` of those that sleep.
        pub fn wake(&self, threads: u32) {
            futex::wake(&self.0, threads);
        }
    }

    /// Sleeps while each word has the value beside it, of at most [`MAX_WAITED`]; may return early, as by a signal.
    ///
    /// # Errors
    /// The kernel has no futex_waitv(2), which is of Linux 5.16.
    pub fn wait_any(words: &[(&Futex, u32)], timeout: Duration) -> std::io::Result<()> {
        let words: Vec<(&AtomicU32, u32)> = words.iter().map(|(word, value)| (&word.0, *value)).collect();
        futex::wait_any(&words, timeout)
    }
}

/// The same for loom, whose threads sleep on its own condition variable.
#[cfg(all(loom, test))]
mod model {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};
    use std::time::Duration;

    /// A word on which threads of a model sleep.
    #[derive(Debug)]
    pub struct Futex {
        value: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub fn new(value: u32) -> Futex {
            Futex { value: AtomicU32::new(value), queue: Mutex::new(()), woken: Condvar::new() }
        }

        pub fn value(&self) -> &AtomicU32 {
            &self.value
        }

        /// The kernel compares under the lock of its queue.
        pub fn wait(&self, expected: u32, _timeout: Option<Duration>) {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::SeqCst) == expected {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        pub fn wake(&self, _threads: u32) {
            drop(self.queue.lock().unwrap());
            self.woken.notify_all();
        }
    }
}

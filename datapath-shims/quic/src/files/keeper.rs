//! Finished files on their way to the disk. A thread of its own flushes them, which may take long, while connections go
//! on.

use super::folder::PutFile;
use super::refusal::Refused;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Flushes and names finished files one after the other; each belongs to a key `K`.
pub(super) struct Keeper<K> {
    /// `None` while it shuts down.
    files: Option<Sender<(K, PutFile)>>,
    kept: Receiver<(K, Result<(), Refused>)>,
    thread: Option<JoinHandle<()>>,
    /// Files without a result yet.
    open: usize,
}

impl<K: Send + 'static> Keeper<K> {
    pub(super) fn start() -> io::Result<Keeper<K>> {
        let (files, to_keep) = channel::<(K, PutFile)>();
        let (answers, kept) = channel();
        let keep = move || {
            for (key, file) in to_keep {
                // If nobody takes the result, the file is kept all the same.
                let _ = answers.send((key, file.keep()));
            }
        };
        let thread = Builder::new().name("quic-files".to_owned()).spawn(keep)?;
        Ok(Keeper { files: Some(files), kept, thread: Some(thread), open: 0 })
    }

    /// Begins to flush and name a file.
    pub(super) fn keep(&mut self, key: K, file: PutFile) {
        let sent = self.files.as_ref().map(|files| files.send((key, file)));
        // The thread ends with this, and not before.
        self.open += usize::from(matches!(sent, Some(Ok(()))));
    }

    /// Takes the result of a file, if one is ready.
    pub(super) fn poll(&mut self) -> Option<(K, Result<(), Refused>)> {
        let kept = self.kept.try_recv().ok()?;
        self.open -= 1;
        Some(kept)
    }

    /// The number of files that are being kept.
    pub(super) fn open(&self) -> usize {
        self.open
    }
}

impl<K> Drop for Keeper<K> {
    fn drop(&mut self) {
        self.files = None;
        // A panic there was printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

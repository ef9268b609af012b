//! Files that are whole, on their way to the disk. Flushing may take long: a thread of its own does it, and connections go on.

use super::folder::{PutFile, Refused};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};

/// Keeps files for whoever has the `K`s, one after the other.
pub(super) struct Keeper<K> {
    /// `None` once it ends.
    files: Option<Sender<(K, PutFile)>>,
    kept: Receiver<(K, Result<(), Refused>)>,
    thread: Option<JoinHandle<()>>,
    /// Files that it has and has not answered for.
    open: usize,
}

impl<K: Send + 'static> Keeper<K> {
    pub(super) fn start() -> io::Result<Keeper<K>> {
        let (files, to_keep) = channel::<(K, PutFile)>();
        let (answers, kept) = channel();
        let keep = move || {
            for (key, file) in to_keep {
                // Where nobody hears the answer, the file is kept all the same.
                let _ = answers.send((key, file.keep()));
            }
        };
        let thread = Builder::new().name("quic-files".to_owned()).spawn(keep)?;
        Ok(Keeper { files: Some(files), kept, thread: Some(thread), open: 0 })
    }

    /// Begins to keep a file.
    pub(super) fn keep(&mut self, key: K, file: PutFile) {
        let sent = self.files.as_ref().map(|files| files.send((key, file)));
        // The thread ends with this, and not before.
        self.open += usize::from(matches!(sent, Some(Ok(()))));
    }

    /// A file that was kept, or why it was not, if there is one that was not taken yet.
    pub(super) fn poll(&mut self) -> Option<(K, Result<(), Refused>)> {
        let kept = self.kept.try_recv().ok()?;
        self.open -= 1;
        Some(kept)
    }

    /// Files that are being kept.
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

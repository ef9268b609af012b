//! An algorithm crate of portus in this process, on a thread of its own: a channel stands in for portus's socket.

use ccplane_alg::Algorithm;
use ccplane_core::panic_message;
use nix::sys::eventfd::EventFd;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Messages from portus that wait for one loop of the agent; portus waits while there are more.
const MAX_ANSWERS: usize = 1024;

/// The reason for which a hosted portus gets no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// The agent needs it no longer.
    #[error("the agent has ended")]
    Over,
    /// Its buffer is too short for a message.
    #[error("a message of {bytes} bytes, and room for {room}")]
    TooLong { bytes: usize, room: usize },
}

/// A message to portus.
struct Message {
    /// The loop of the agent that sent it.
    from: u32,
    bytes: Vec<u8>,
    handled: Handled,
}

/// Counts a message as handled when dropped.
struct Handled(Arc<AtomicU64>);

impl Drop for Handled {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Messages from portus to one loop of the agent.
#[derive(Clone)]
struct Outlet {
    answers: SyncSender<Vec<u8>>,
    wake: Arc<EventFd>,
}

impl Outlet {
    fn wake(&self) {
        // A counter that is full wakes, too.
        let _ = self.wake.write(1);
    }
}

/// The loops of the agent, and how the thread of portus ended.
#[derive(Default)]
struct Loops {
    outlets: Mutex<HashMap<u32, Outlet>>,
    ended: OnceLock<Arc<str>>,
}

impl Loops {
    fn outlets(&self) -> MutexGuard<'_, HashMap<u32, Outlet>> {
        // The table is whole after each statement that changes it.
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end of the channel that portus has: its own `Ipc` trait is implemented over this.
pub struct Wire {
    inbox: Receiver<Message>,
    /// The message that is being handled.
    handling: RefCell<Option<Handled>>,
    loops: Arc<Loops>,
    running: Arc<AtomicBool>,
}

impl Wire {
    /// Becomes false when portus is to end: portus's own stop handle.
    pub fn running(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.running)
    }

    /// Waits for the next message; returns its length and from whom it is. The one before counts as handled.
    ///
    /// # Errors
    /// `Over` when the agent has ended, `TooLong` for a buffer that does not hold the message.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<(usize, u32), WireError> {
        drop(self.handling.take());
        let Ok(Message { from, bytes, handled }) = self.inbox.recv() else {
            self.running.store(false, SeqCst);
            return Err(WireError::Over);
        };
        self.handling.replace(Some(handled));
        let (bytes, room) = (&bytes[..], buffer.len());
        let start = buffer.get_mut(..bytes.len()).ok_or(WireError::TooLong { bytes: bytes.len(), room })?;
        start.copy_from_slice(bytes);
        Ok((bytes.len(), from))
    }

    /// Sends a message to a loop of the agent; one that is gone is not missed.
    pub fn send(&self, bytes: &[u8], to: u32) {
        // Not held while portus waits for room.
        let outlet = self.loops.outlets().get(&to).cloned();
        if let Some(outlet) = outlet
            && outlet.answers.send(bytes.to_vec()).is_ok()
        {
            outlet.wake();
        }
    }
}

/// The code of an algorithm crate that speaks over a [`Wire`] until that is over.
type Run = Box<dyn FnOnce(Wire) -> Result<(), String> + Send>;

/// An algorithm crate of portus, as an algorithm of ours. Its thread starts with the agent's first loop and ends with its `Hosted`.
pub struct Hosted {
    name: &'static str,
    inbox: Sender<Message>,
    loops: Arc<Loops>,
    next_loop: AtomicU32,
    idle: Mutex<Option<(Wire, Run)>>,
}

impl Hosted {
    /// Names an algorithm that `run` hosts: portus's own loop over the wire.
    pub fn new(name: &'static str, run: impl FnOnce(Wire) -> Result<(), String> + Send + 'static) -> Hosted {
        let (to, inbox) = channel();
        let loops = Arc::<Loops>::default();
        let running = Arc::new(AtomicBool::new(true));
        let wire = Wire { inbox, handling: RefCell::default(), loops: Arc::clone(&loops), running };
        let idle = Mutex::new(Some((wire, Box::new(run) as Run)));
        Hosted { name, inbox: to, loops, next_loop: AtomicU32::new(1), idle }
    }

    /// Starts the thread unless it runs already. `enter` is the first that it calls.
    fn start(&self, enter: fn()) -> io::Result<()> {
        let Some((wire, run)) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        let loops = Arc::clone(&self.loops);
        let body = move || {
            enter();
            let why = match catch_unwind(AssertUnwindSafe(|| run(wire))) {
                Ok(Ok(())) => "it returned".to_owned(),
                Ok(Err(error)) => error,
                Err(payload) => format!("it panicked: {}", panic_message(&*payload)),
            };
            let _ = loops.ended.set(why.into());
            loops.outlets().values().for_each(Outlet::wake);
        };
        std::thread::Builder::new().name(self.name.to_owned()).spawn(body).map(drop)
    }

    /// Gives a loop of the agent a channel of its own. What comes over it writes to `wake`.
    pub(crate) fn join(&self, wake: &Arc<EventFd>, enter: fn()) -> io::Result<Channel> {
        let (to, answers) = sync_channel(MAX_ANSWERS);
        let id = self.next_loop.fetch_add(1, SeqCst);
        self.loops.outlets().insert(id, Outlet { answers: to, wake: Arc::clone(wake) });
        let channel = Channel {
            name: self.name,
            id,
            inbox: self.inbox.clone(),
            answers,
            loops: Arc::clone(&self.loops),
            sent: 0,
            handled: Arc::default(),
        };
        self.start(enter)?;
        Ok(channel)
    }
}

impl fmt::Debug for Hosted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosted").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Algorithm for Hosted {
    fn name(&self) -> &'static str {
        self.name
    }

    runs_elsewhere!();
}

/// The end of the channel that a loop of the agent has.
pub(crate) struct Channel {
    pub name: &'static str,
    id: u32,
    inbox: Sender<Message>,
    answers: Receiver<Vec<u8>>,
    loops: Arc<Loops>,
    sent: u64,
    handled: Arc<AtomicU64>,
}

impl Channel {
    /// Returns how its thread ended, if it has.
    pub fn ended(&self) -> Option<&Arc<str>> {
        self.loops.ended.get()
    }

    /// Sends a message to portus; one to a portus that has ended counts as handled.
    pub fn send(&mut self, bytes: &[u8]) {
        self.sent += 1;
        let handled = Handled(Arc::clone(&self.handled));
        let _ = self.inbox.send(Message { from: self.id, bytes: bytes.to_vec(), handled });
    }

    /// Takes the next message of portus.
    pub fn answer(&self) -> Option<Vec<u8>> {
        self.answers.try_recv().ok()
    }

    /// Messages that portus has handled.
    pub fn handled(&self) -> u64 {
        self.handled.load(SeqCst)
    }

    /// Messages that wait for portus, the one that it is handling included.
    pub fn unhandled(&self) -> usize {
        usize::try_from(self.sent.saturating_sub(self.handled())).unwrap_or(usize::MAX)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.loops.outlets().remove(&self.id);
    }
}

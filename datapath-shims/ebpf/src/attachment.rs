//! Who takes the datapath out of the kernel again: whatever is attached has an owner from its first pin on.

use std::fs::File;

use crate::error::{EbpfError, os};
use crate::lock::Lock;
use crate::options::Options;
use crate::{movement, pins};

/// Descriptors that the way out needs at once: the iterator's map, program, link and instance, a namespace, two folders.
const RESERVED_DESCRIPTORS: usize = 10;
/// Address space that the way out needs: a thread's stack and heap, lists of processes and namespaces.
const RESERVED_BYTES: usize = 8 << 20;

/// Descriptors and address space that are kept back for the way out, so that a process whose limits are reached can still
/// take out what it has attached.
struct Reserve {
    _descriptors: Vec<File>,
    _memory: Vec<u8>,
}

impl Reserve {
    fn new() -> Result<Reserve, EbpfError> {
        let open = || os("open /dev/null", File::open("/dev/null"));
        let descriptors = (0..RESERVED_DESCRIPTORS).map(|_| open()).collect::<Result<_, _>>()?;
        let mut memory = Vec::new();
        // Never written to: it takes no memory, only room.
        let reserved = memory.try_reserve_exact(RESERVED_BYTES);
        os("reserve address space", reserved.map_err(|_| std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Reserve { _descriptors: descriptors, _memory: memory })
    }
}

/// What this process has in the kernel under a name; dropped, it removes the pins, with which the congestion control goes.
pub struct Attachment {
    options: Options,
    lock: Lock,
    reserve: Option<Reserve>,
    /// Whether there is something to remove.
    is_ours: bool,
}

impl Attachment {
    /// Takes the locks; nothing is attached yet.
    pub fn new(options: &Options) -> Result<Attachment, EbpfError> {
        let reserve = Some(Reserve::new()?);
        Ok(Attachment { options: options.clone(), lock: Lock::take(options)?, reserve, is_ours: false })
    }

    /// From now on what is pinned is this process's to remove.
    pub fn own(&mut self) {
        self.is_ours = true;
    }

    /// What is pinned stays when this is dropped.
    pub fn disown(&mut self) {
        self.is_ours = false;
    }

    /// Whether there is something to remove.
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Gives descriptors and address space back, for the way out.
    pub fn draw_on_reserve(&mut self) {
        self.reserve = None;
    }

    /// Whether what is attached may be touched: no other agent has begun to use it.
    pub fn check(&self) -> Result<(), EbpfError> {
        self.lock.replaced().map_or(Ok(()), |lock| Err(EbpfError::Replaced(lock.to_owned())))
    }

    /// Removes the pins and waits until the congestion control is gone.
    pub fn remove(&mut self) -> Result<(), EbpfError> {
        self.unpin()?;
        movement::wait_unregistered(&self.options.name)
    }

    fn unpin(&mut self) -> Result<(), EbpfError> {
        self.draw_on_reserve();
        if !std::mem::take(&mut self.is_ours) {
            return Ok(());
        }
        self.check()?;
        pins::remove(&self.options.run_dir, &self.options.name).map(drop)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Whoever wants to know calls `remove`.
        let _ = self.unpin();
    }
}

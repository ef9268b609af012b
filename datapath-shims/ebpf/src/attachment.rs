//! Ownership of what is attached to the kernel: from its first pin on, an owner removes it.

use std::fs::File;

use crate::error::{EbpfError, os};
use crate::lock::Lock;
use crate::options::Options;
use crate::{movement, pins};

/// Descriptors that removal needs at once: the iterator's map, program, link and instance, a namespace, two folders.
const RESERVED_DESCRIPTORS: usize = 10;
/// Address space that removal needs: a thread's stack and heap, lists of processes and namespaces.
const RESERVED_BYTES: usize = 8 << 20;

/// Descriptors and address space that are reserved for removal.
///
/// A process that has reached its limits can thus still remove what it has attached.
struct Reserve {
    _descriptors: Vec<File>,
    _memory: Vec<u8>,
}

impl Reserve {
    fn new() -> Result<Reserve, EbpfError> {
        let open = || os("open /dev/null", File::open("/dev/null"));
        let descriptors = (0..RESERVED_DESCRIPTORS).map(|_| open()).collect::<Result<_, _>>()?;
        let mut memory = Vec::new();
        // The mapping is never written to, so it reserves address space but no memory.
        let reserved = memory.try_reserve_exact(RESERVED_BYTES);
        os("reserve address space", reserved.map_err(|_| std::io::ErrorKind::OutOfMemory.into()))?;
        Ok(Reserve { _descriptors: descriptors, _memory: memory })
    }
}

/// The objects of this process in the kernel under a name; dropping it removes the pins, and with them the congestion
/// control.
pub struct Attachment {
    options: Options,
    lock: Lock,
    reserve: Option<Reserve>,
    /// Whether the pins are this process's to remove.
    is_ours: bool,
}

impl Attachment {
    /// Takes the locks; nothing is attached yet.
    pub fn new(options: &Options) -> Result<Attachment, EbpfError> {
        let reserve = Some(Reserve::new()?);
        Ok(Attachment { options: options.clone(), lock: Lock::take(options)?, reserve, is_ours: false })
    }

    /// Makes this process the owner of the pins.
    pub fn own(&mut self) {
        self.is_ours = true;
    }

    /// Gives up ownership: the pins stay when this is dropped.
    pub fn disown(&mut self) {
        self.is_ours = false;
    }

    /// Whether the pins are this process's to remove.
    pub fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// Releases the reserved descriptors and address space, for removal.
    pub fn draw_on_reserve(&mut self) {
        self.reserve = None;
    }

    /// Checks that no other agent has begun to use the datapath.
    pub fn check(&self) -> Result<(), EbpfError> {
        self.lock.replaced().map_or(Ok(()), |lock| Err(EbpfError::Replaced(lock.to_owned())))
    }

    /// Removes the pins and waits until the congestion control is gone.
    pub fn remove(&mut self) -> Result<(), EbpfError> {
        let names = pins::names(&self.options.run_dir, &self.options.name);
        self.unpin()?;
        movement::wait_all_unregistered(&names, &self.options.name)
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
        // Callers that need the error call `remove`.
        let _ = self.unpin();
    }
}

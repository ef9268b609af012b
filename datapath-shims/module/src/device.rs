//! The agent's end of the module's character device.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ccplane_channel::hub::{Carrier, GreetError, HubOptions, LonePeer, SendError};
use ccplane_channel::ring::{self, Glance, ReadError, Reader};
use ccplane_channel::{RecordBuffer, SharedWords, Wake, clock};
use ccplane_contract::{Datapath, Event, FlowStats, Forward};
use ccplane_files::Bound;
use ccplane_wire::DecodeError;
use ccplane_wire::v2::MAX_FRAME_BYTES;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use tracing::warn;

/// The module's device where its name was left as it is.
pub const DEFAULT_DEVICE: &str = "/dev/ccplane";
/// Bytes that one read of the device may return: a few of the longest frames.
const READ_BYTES: usize = 4 * MAX_FRAME_BYTES;
/// Most reads of one poll, so that no flood of reports keeps the loop from its other work.
const MAX_READS: usize = 16;
/// Words of a page, of which the module maps whole ones.
const PAGE_WORDS: usize = 4096 / size_of::<u64>();
/// Most frames that one poll takes from the ring.
const MAX_FRAMES: usize = 4096;
/// The module's parameter that holds the length of its rings, bytes.
const RING_PARAMETER: &str = "/sys/module/ccplane/parameters/ring";
/// Longest text of that parameter.
const PARAMETER: Bound = Bound { what: "a parameter of the kernel module", bytes: 4096 };

/// Reasons why the module cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    #[error("{what} {}: {source}", path.display())]
    Os {
        /// The operation that failed.
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{}: {source}; load the module that came with this agent", path.display())]
    Greet { path: PathBuf, source: GreetError },
}

/// The kernel's TCP flows under the module.
#[derive(Debug)]
pub struct ModuleDatapath {
    device: Arc<File>,
    peer: LonePeer,
    events: Events,
    /// Whether the module said something that cannot be parsed.
    is_broken: bool,
}

/// The ways in which the module's frames come in.
#[derive(Debug)]
enum Events {
    /// From memory that the module writes to, without a system call.
    Ring { reader: Reader, record: RecordBuffer },
    /// By reads of the device.
    Reads(Box<[u8]>),
}

impl Events {
    /// Maps the ring of an open device; falls back to reads.
    fn of(device: &File, frames: Box<[u8]>) -> Events {
        match map_ring(device) {
            Some(reader) => Events::Ring { reader, record: RecordBuffer::default() },
            None => {
                warn!("the module's ring is not mapped: its events are read one by one");
                Events::Reads(frames)
            }
        }
    }
}

fn map_ring(device: &File) -> Option<Reader> {
    let bytes = ccplane_files::read_text(Path::new(RING_PARAMETER), PARAMETER).ok()?.trim().parse().ok()?;
    if !ring::is_valid(bytes) {
        return None;
    }
    let memory = SharedWords::of_device(device, ring::words_of(bytes).next_multiple_of(PAGE_WORDS)).ok()?;
    Reader::new(Arc::new(memory), 0, bytes)
}

impl ModuleDatapath {
    /// Opens the device and takes over the flows of this process's network namespace; those of all namespaces without an agent
    /// of their own where it is the machine's first.
    ///
    /// # Errors
    /// The device is not there, belongs to others, or has an agent already.
    pub fn open(path: &Path, heartbeat_timeout: Duration) -> Result<ModuleDatapath, ModuleError> {
        let os = |what| move |source| ModuleError::Os { what, path: path.to_owned(), source };
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
        let device = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let device = Arc::new(device.map_err(os("open"))?);
        let mut frames = vec![0; READ_BYTES].into_boxed_slice();
        let read = (&*device).read(&mut frames).map_err(os("read"))?;
        let hello = frames.get(..read).unwrap_or_default().to_vec();
        let events = Events::of(&device, frames);
        let options = HubOptions {
            max_peers: 1,
            heartbeat_timeout,
            session: clock::now_us() ^ (u64::from(std::process::id()) << 48),
            rings: false,
            wake: Wake::Sleep,
        };
        let carrier = DeviceCarrier { device: Arc::clone(&device) };
        let peer = LonePeer::greet(Box::new(carrier), &hello, &options);
        let peer = peer.map_err(|source| ModuleError::Greet { path: path.to_owned(), source })?;
        Ok(ModuleDatapath { device, peer, events, is_broken: false })
    }

    /// Blocks until the module has something to say, `also` becomes readable, or `timeout` passed.
    ///
    /// # Errors
    /// ppoll(2) failed.
    pub fn wait_also(&self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if let Events::Ring { reader, .. } = &self.events
            && !reader.doze()
        {
            return Ok(());
        }
        let device = self.device.as_fd();
        // Without another descriptor the device is asked twice.
        let mut fds = [device, also.unwrap_or(device)].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let polled = ppoll(&mut fds, Some(TimeSpec::from_duration(timeout)), None);
        if let Events::Ring { reader, .. } = &self.events {
            reader.awake();
        }
        match polled {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a look at what the module says, for another thread; `None` where its ring is not mapped and the device itself tells.
    pub fn glance(&self) -> Option<Glance> {
        match &self.events {
            Events::Ring { reader, .. } => Some(reader.glance()),
            Events::Reads(_) => None,
        }
    }

    /// Shows glances what has been taken; returns whether something waits in the ring.
    pub fn show(&self) -> bool {
        match &self.events {
            Events::Ring { reader, .. } => reader.show(),
            Events::Reads(_) => false,
        }
    }

    /// Whether a command waits for room in the module's ring.
    pub fn has_backlog(&self) -> bool {
        self.peer.has_backlog()
    }

    /// Hands all flows to the native algorithm and leaves the device.
    pub fn detach(mut self) {
        self.peer.farewell();
    }

    /// Takes what the module has said.
    fn receive(&mut self) {
        if self.is_broken {
            return;
        }
        let taken = match &mut self.events {
            Events::Ring { reader, record } => take_ring(reader, record, &mut self.peer),
            Events::Reads(frames) => take_reads(&self.device, frames, &mut self.peer),
        };
        if let Err(why) = taken {
            warn!(%why, "messages of the module are not read any more");
            self.is_broken = true;
            self.peer.close_all();
        }
    }
}

impl AsFd for ModuleDatapath {
    /// Readable while the module has something to say.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Messages of the module cannot be read or understood.
#[derive(Debug, thiserror::Error)]
enum DeviceError {
    #[error("read: {0}")]
    Read(#[from] io::Error),
    #[error("{0}")]
    Ring(#[from] ReadError),
    #[error("{0}")]
    Decode(#[from] DecodeError),
}

fn take_ring(reader: &mut Reader, record: &mut RecordBuffer, peer: &mut LonePeer) -> Result<(), DeviceError> {
    let mut taken = 0;
    while taken < MAX_FRAMES && reader.read(record)? {
        taken += 1;
        peer.take(record.bytes())?;
    }
    Ok(())
}

fn take_reads(mut device: &File, frames: &mut [u8], peer: &mut LonePeer) -> Result<(), DeviceError> {
    for _ in 0..MAX_READS {
        match device.read(frames) {
            Ok(0) => return Ok(()),
            Ok(read) => peer.take(frames.get(..read).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

impl Forward for ModuleDatapath {
    ccplane_contract::forward_to!(peer);

    /// Returns the flows as they are now: the module answers before the write that asks returns.
    fn forward_flows(&mut self) -> Vec<FlowStats> {
        self.receive();
        self.peer.ask_for_flows();
        self.receive();
        self.peer.listed()
    }

    fn forward_poll(&mut self, max: usize, events: &mut Vec<Event>) -> usize {
        self.receive();
        self.peer.poll(max, events)
    }
}

/// Commands as writes to the device, each carried out before its write returns.
#[derive(Debug)]
struct DeviceCarrier {
    device: Arc<File>,
}

impl Carrier for DeviceCarrier {
    fn send(&self, datagram: &[u8]) -> Result<(), SendError> {
        loop {
            return match (&*self.device).write(datagram) {
                Ok(_) => Ok(()),
                Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
                    Errno::EINTR => continue,
                    Errno::EAGAIN => Err(SendError::Full),
                    Errno::EBADMSG => Err(SendError::Gone),
                    errno => Err(SendError::Failed(errno)),
                },
            };
        }
    }

    /// The device takes no descriptors.
    fn send_with(&self, datagram: &[u8], _: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), SendError> {
        self.send(datagram)
    }

    /// The module stays as long as its device is open.
    fn is_there(&self) -> bool {
        true
    }
}

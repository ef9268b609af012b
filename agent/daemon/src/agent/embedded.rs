//! A datapath in this very process, steered by a loop beside it: application-integrated congestion control.

use super::source::{Source, records, samples};
use crate::control::FlowRecord;
use crate::metrics::FlowSample;
use crate::qlog::Taps;
use ccplane_channel::clock;
use ccplane_contract::Datapath;
use ccplane_core::{Core, DatapathId, Driven};
use ccplane_ebpf::EbpfError;
use ccplane_engine::Waker;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;
use tracing::warn;

/// How often the host of an algorithm is looked at while the datapath is quiet.
const HOST_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The loop's end of a [`Waker`].
pub struct Woken(Receiver<()>);

/// Makes a waker for a datapath's events, and the end on which its loop waits.
pub fn waker() -> (Waker, Woken) {
    let (call, called) = sync_channel(1);
    // Full: the loop has been called already.
    let call = move || {
        let _ = call.try_send(());
    };
    (Arc::new(call), Woken(called))
}

/// A datapath and who calls for it.
pub(super) struct Embedded {
    datapath: Box<dyn Datapath + Send>,
    woken: Woken,
}

impl Embedded {
    const ID: DatapathId = DatapathId(0);

    /// Makes it known to the core.
    pub(super) fn new(datapath: Box<dyn Datapath + Send>, woken: Woken, core: &mut Core) -> Embedded {
        if let Err(error) = core.attach(Embedded::ID, datapath.capabilities(), clock::now_us()) {
            warn!(%error, "attach a datapath of this process");
        }
        Embedded { datapath, woken }
    }
}

impl Source for Embedded {
    fn drive(&mut self, core: &mut Core, now_us: u64, taps: &mut Taps) -> Driven {
        taps.drive(core, Embedded::ID, &mut *self.datapath, now_us)
    }

    fn wait(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>) -> io::Result<()> {
        // One thread cannot wait for a channel and a descriptor at once.
        let timeout = if also.is_some() { timeout.min(HOST_POLL_INTERVAL) } else { timeout };
        match self.woken.0.recv_timeout(timeout) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn flows(&mut self, core: &Core) -> Vec<FlowRecord> {
        records(Embedded::ID, &mut *self.datapath, core)
    }

    fn samples(&mut self, core: &Core) -> Vec<FlowSample> {
        samples(Embedded::ID, &mut *self.datapath, core)
    }

    fn detach(self: Box<Self>) -> Result<(), EbpfError> {
        Ok(())
    }
}

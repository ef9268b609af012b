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
use ccplane_wait::{Parker, Queues, Watched};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// The interval at which the host of an algorithm is polled while the datapath is quiet.
const HOST_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The loop's end of a [`Waker`].
pub struct Woken(Arc<Parker>);

/// Makes a waker for a datapath's events, and the end on which its loop waits.
pub fn waker() -> (Waker, Woken) {
    let parker = Arc::new(Parker::new());
    let called = Arc::clone(&parker);
    let call = move || {
        called.call();
    };
    (Arc::new(call), Woken(parker))
}

/// A datapath in this process, and the means by which it wakes the loop.
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
        // One thread cannot wait for a parker and a descriptor at once.
        let timeout = if also.is_some() { timeout.min(HOST_POLL_INTERVAL) } else { timeout };
        self.woken.0.wait(timeout);
        Ok(())
    }

    fn queues(&mut self) -> io::Result<Queues> {
        let parker = Arc::clone(&self.woken.0);
        Ok(Queues { in_memory: vec![Box::new(move || parker.is_called())], ..Queues::default() })
    }

    fn doze(&mut self, timeout: Duration, also: Option<BorrowedFd<'_>>, by: &Watched) -> io::Result<()> {
        // The datapath's calls cost it no system call: nobody sleeps on its parker.
        if !self.woken.0.take_call() {
            by.sleep(timeout, also);
            self.woken.0.take_call();
        }
        Ok(())
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

//! A DPDK port that serves, at the far end of a cable of its own.
//!
//! The kernel must not have the port's address, and the interface is the port's for as long as it is open.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use ccplane_dpdk::DpdkWire;
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth::{self, DEVICE, ENDS};
use ccplane_predict::{Service, wire};
use ccplane_predict_xdp::{Attachment, Plain, XdpMode};

use super::missing;
use crate::dpdk;
use crate::error::BenchError;

/// The cable, with the same XDP program at the client's end as the other datapaths' cable.
pub(super) struct PortCable {
    client: Namespace,
    far: Namespace,
    port: SharedPort,
    _pass: Attachment,
}

impl PortCable {
    pub(super) fn new(pass: &Plain, port: u16) -> Result<PortCable, BenchError> {
        let (client, far) = (Namespace::anonymous()?, Namespace::anonymous()?);
        veth::connect_to_bare(&client, &far)?;
        let attached = client.run(|| pass.attach(DEVICE, XdpMode::Native))?.map_err(missing)?;
        let eal = dpdk::eal()?;
        let wire = far.run(|| dpdk::wire_at_bare_end(eal, SocketAddr::new(ENDS[1], port)))??;
        let port = SharedPort(Arc::new(Mutex::new(Some(wire))));
        Ok(PortCable { client, far, port, _pass: attached })
    }

    pub(super) fn client(&self) -> &Namespace {
        &self.client
    }

    pub(super) fn port(&self) -> SharedPort {
        self.port.clone()
    }
}

impl Drop for PortCable {
    fn drop(&mut self) {
        let wire = self.port.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A namespace that cannot be entered any more has no port to close.
        let _ = self.far.run(|| drop(wire));
    }
}

/// The port, which one server after the other polls.
#[derive(Clone)]
pub(super) struct SharedPort(Arc<Mutex<Option<DpdkWire>>>);

impl SharedPort {
    pub(super) fn serve(&self, service: &mut Service, stop: &AtomicBool) -> io::Result<()> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let port = open.as_mut().ok_or_else(|| io::Error::other("the port is closed"))?;
        wire::serve(port, service, stop)
    }
}

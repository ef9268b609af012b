//! A DPDK port that serves, at the far end of a cable of its own.
//!
//! The kernel must not have the port's address, and the interface is the port's for as long as it is open.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use ccplane_dpdk::DpdkWire;
use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth::{self, ENDS};
use ccplane_predict::{Service, wire};

use super::client::ClientEnd;
use crate::dpdk;
use crate::error::BenchError;

/// The cable, with such a client at its end as the other datapaths' cable has.
pub(super) struct PortCable {
    client: ClientEnd,
    far: Namespace,
    port: SharedPort,
}

impl PortCable {
    pub(super) fn new(port: u16) -> Result<PortCable, BenchError> {
        let (client, far) = (Namespace::anonymous()?, Namespace::anonymous()?);
        veth::connect_to_bare(&client, &far)?;
        let client = ClientEnd::open(client, &far, port)?;
        let eal = dpdk::eal()?;
        let wire = far.run(|| dpdk::wire_at_bare_end(eal, SocketAddr::new(ENDS[1], port)))??;
        let port = SharedPort(Arc::new(Mutex::new(Some(wire))));
        Ok(PortCable { client, far, port })
    }

    pub(super) fn client(&self) -> &ClientEnd {
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

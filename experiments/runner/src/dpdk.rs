//! DPDK ports at the two ends of an emulated link.

use std::sync::OnceLock;
use std::time::Duration;

use ccplane_dpdk::{DpdkWire, Eal, EalOptions, Idle, Port, PortName, PortOptions, WireOptions};
use ccplane_emulator::edge::{DEVICE, Edge, PREFIX_LEN};
use ipnet::{IpNet, Ipv4Net};

use crate::error::{Error, Result};

/// The sleep of a poll loop after nothing has arrived: both ends and the link share the machine's cores.
const PAUSE: Duration = Duration::from_micros(50);
/// Packet buffers of a port, MiB; and of all that a run may have.
const MEMORY_MIB: u32 = 512;

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Dpdk { why: error.to_string() }
}

/// DPDK, which a process starts once and which runs until its end.
fn running() -> Result<Eal> {
    static EAL: OnceLock<std::result::Result<Eal, String>> = OnceLock::new();
    let start = || {
        let options = EalOptions { memory_mib: MEMORY_MIB, ..EalOptions::default() };
        Eal::start(&options).map_err(|error| error.to_string())
    };
    EAL.get_or_init(start).clone().map_err(failed)
}

/// Wires for a flow between two hosts: the sender's, and the receiver's at `udp_port`.
///
/// # Errors
/// DPDK does not start, or a port cannot be opened: its own words.
pub(crate) fn wires([sender, receiver]: &[Edge; 2], udp_port: u16) -> Result<(DpdkWire, DpdkWire)> {
    Ok((wire(sender, 0)?, wire(receiver, udp_port)?))
}

fn wire(edge: &Edge, udp_port: u16) -> Result<DpdkWire> {
    let eal = running()?;
    let name: PortName = format!("af_packet:{DEVICE}").parse().map_err(failed)?;
    let open = || Port::open(&eal, &name, PortOptions::default());
    let port = edge.namespace.run(open)?.map_err(failed)?;
    let network = Ipv4Net::new(edge.address, PREFIX_LEN).map_err(failed)?;
    let options = WireOptions {
        addresses: vec![IpNet::V4(network)],
        gateways: vec![edge.gateway.into()],
        udp_port,
        idle: Idle::Pause(PAUSE),
        ..WireOptions::default()
    };
    let wires = DpdkWire::over(port, &options).map_err(failed)?;
    wires.into_iter().next().ok_or_else(|| failed("the port has no queue"))
}

//! The client's end of a cable: a socket of AF_XDP that is polled, and ordinary sockets.

use std::cell::{RefCell, RefMut};
use std::net::{IpAddr, SocketAddrV4, UdpSocket};

use ccplane_emulator::netns::Namespace;
use ccplane_emulator::veth::{self, DEVICE, ENDS};
use ccplane_predict::frame::Ends;
use ccplane_predict::xsk::XskClient;

use super::missing;
use crate::error::{BenchError, context};

/// A client's end. Its XDP program, in native mode, leads one port's datagrams to the polled socket and passes on all else.
pub(super) struct ClientEnd {
    namespace: Namespace,
    polling: RefCell<XskClient>,
    server_port: u16,
}

impl ClientEnd {
    /// Opens the polled socket in the namespace of a cable's first end, for a server in the other one's.
    pub(super) fn open(
        namespace: Namespace,
        far: &Namespace,
        server_port: u16,
    ) -> Result<ClientEnd, BenchError> {
        let macs = [veth::mac(&namespace)?, veth::mac(far)?];
        let [IpAddr::V4(own), IpAddr::V4(server)] = ENDS else {
            return Err(missing("the cable has no IPv4"));
        };
        let addresses = [SocketAddrV4::new(own, 0), SocketAddrV4::new(server, server_port)];
        let client = namespace.run(|| XskClient::open(DEVICE, Ends { macs, addresses }))?.map_err(missing)?;
        Ok(ClientEnd { namespace, polling: RefCell::new(client), server_port })
    }

    /// Takes the polled socket, from which no late reply to an earlier load comes any more.
    pub(super) fn polling(&self) -> RefMut<'_, XskClient> {
        let mut client = self.polling.borrow_mut();
        client.forget();
        client
    }

    /// Opens another ordinary socket.
    pub(super) fn socket(&self) -> Result<UdpSocket, BenchError> {
        let socket = context("bind", self.namespace.run(|| UdpSocket::bind((ENDS[0], 0)))?)?;
        context("connect", socket.connect((ENDS[1], self.server_port)))?;
        Ok(socket)
    }
}

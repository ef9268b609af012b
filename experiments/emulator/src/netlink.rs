//! The few rtnetlink requests that a link needs, made in the calling thread's network namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{self, AddressFamily as SocketFamily, MsgFlags, SockFlag, SockProtocol, SockType};

use crate::error::{Context, Result};

/// Longest reply read: an acknowledgement carries at most the request.
const MAX_REPLY: usize = 8192;

/// A route socket of the namespace that it was opened in.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    pub(crate) fn open() -> Result<Netlink> {
        let flags = SockFlag::SOCK_CLOEXEC;
        socket::socket(SocketFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
            .map(Netlink)
            .context("open", "a netlink route socket")
    }

    /// Sets a device up, with the attributes given.
    pub(crate) fn set_up(&self, device: &str, attributes: Vec<LinkAttribute>) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index(device)?;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = attributes;
        self.request(RouteNetlinkMessage::SetLink(message), 0).context("set up", device)
    }

    /// Makes a veth pair of two devices of the same name, the second one in the namespace at `peer_ns`.
    pub(crate) fn add_veth(&self, device: &str, peer_ns: RawFd) -> Result<()> {
        self.add_veth_named(device, device, peer_ns)
    }

    /// Makes a veth pair, the second device of which is called `peer` and in the namespace at `peer_ns`.
    pub(crate) fn add_veth_named(&self, device: &str, peer: &str, peer_ns: RawFd) -> Result<()> {
        let name = peer;
        let mut peer = LinkMessage::default();
        peer.attributes = vec![LinkAttribute::IfName(name.into()), LinkAttribute::NetNsFd(peer_ns)];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(device.into()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.request(RouteNetlinkMessage::NewLink(message), flags).context("make a veth pair", device)
    }

    /// Gives a device an address; an IPv6 one is usable at once (no duplicate detection).
    pub(crate) fn add_address(&self, device: &str, address: IpAddr, prefix_len: u8) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = index(device)?;
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.attributes = vec![AddressAttribute::Address(address), AddressAttribute::Local(address)];
        if address.is_ipv6() {
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.request(RouteNetlinkMessage::NewAddress(message), flags).context("add an address to", device)
    }

    /// Sends what no other route covers through `gateway` on `device`.
    pub(crate) fn add_default_route(&self, device: &str, gateway: IpAddr) -> Result<()> {
        let gateway_of = RouteAttribute::Gateway(gateway.into());
        self.new_route(device, family(gateway), 0, RouteScope::Universe, vec![gateway_of])
            .context("add a default route by", device)
    }

    /// Sends what is for this network out of `device`.
    pub(crate) fn add_route(&self, device: &str, network: Ipv4Addr, prefix_len: u8) -> Result<()> {
        let to = RouteAttribute::Destination(IpAddr::V4(network).into());
        self.new_route(device, AddressFamily::Inet, prefix_len, RouteScope::Link, vec![to])
            .context("add a route by", device)
    }

    /// Sends what is for this address out of `device`, from the address `source`; in a table of its own if one is given.
    pub(crate) fn add_host_route(
        &self,
        device: &str,
        to: IpAddr,
        source: IpAddr,
        table: Option<u32>,
    ) -> Result<()> {
        let mut attributes =
            vec![RouteAttribute::Destination(to.into()), RouteAttribute::PrefSource(source.into())];
        attributes.extend(table.map(RouteAttribute::Table));
        let prefix_len = if to.is_ipv4() { 32 } else { 128 };
        self.new_route(device, family(to), prefix_len, RouteScope::Universe, attributes)
            .context("add a route by", device)
    }

    /// Sends what carries `mark` through a routing table; rules of lower `preference` come first.
    pub(crate) fn add_mark_rule(&self, v6: bool, mark: u32, table: u32, preference: u32) -> Result<()> {
        let mut message = RuleMessage::default();
        message.header = RuleHeader {
            family: if v6 { AddressFamily::Inet6 } else { AddressFamily::Inet },
            action: RuleAction::ToTable,
            ..RuleHeader::default()
        };
        message.attributes = vec![
            RuleAttribute::FwMark(mark),
            RuleAttribute::Table(table),
            RuleAttribute::Priority(preference),
        ];
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.request(RouteNetlinkMessage::NewRule(message), flags).context("add a rule for mark", mark)
    }

    fn new_route(
        &self,
        device: &str,
        address_family: AddressFamily,
        destination_prefix_length: u8,
        scope: RouteScope,
        mut attributes: Vec<RouteAttribute>,
    ) -> nix::Result<()> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family,
            destination_prefix_length,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        attributes.push(RouteAttribute::Oif(if_nametoindex(device)?));
        message.attributes = attributes;
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends a request and waits for its acknowledgement.
    fn request(&self, message: RouteNetlinkMessage, flags: u16) -> nix::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
        message.finalize();
        let mut buffer = vec![0; message.buffer_len()];
        message.serialize(&mut buffer);
        socket::send(self.0.as_raw_fd(), &buffer, MsgFlags::empty())?;
        let mut reply = [0; MAX_REPLY];
        let len = socket::recv(self.0.as_raw_fd(), &mut reply, MsgFlags::empty())?;
        let reply = NetlinkMessage::<RouteNetlinkMessage>::deserialize(reply.get(..len).unwrap_or_default())
            .map_err(|_| Errno::EBADMSG)?;
        match reply.payload {
            NetlinkPayload::Error(e) => match e.code {
                None => Ok(()),
                Some(code) => Err(Errno::from_raw(-code.get())),
            },
            _ => Err(Errno::EBADMSG),
        }
    }
}

fn index(device: &str) -> Result<u32> {
    if_nametoindex(device).context("find device", device)
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

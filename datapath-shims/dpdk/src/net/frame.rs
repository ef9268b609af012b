//! Ethernet frames: incoming ones are parsed once, outgoing ones are written in place.
//!
//! The headers are etherparse's: it borrows from the frame, allocates nothing, and checks every length before use. This
//! module adds the checks of an end system (RFC 1122, 4861, 8200) and the form that segments share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::checksum::Sum16BitWords;
use etherparse::icmpv6::{
    NdpOptionSlice, NdpOptionsIterator, NeighborAdvertisementHeader, NeighborAdvertisementPayloadSlice,
    NeighborSolicitationPayloadSlice,
};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Ethernet2Header, Icmpv6Header, Icmpv6Slice, Icmpv6Type,
    IpDscp, IpEcn, IpNumber, Ipv4Header, Ipv6Header, LinkSlice, NetSlice, SlicedPacket, TransportSlice,
    UdpHeader, UdpSlice,
};

use super::{Mac, sum};

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes of a UDP header.
pub const UDP_BYTES: usize = UdpHeader::LEN;
/// Bytes of headers before a UDP payload over IPv4.
pub const IPV4_UDP_BYTES: usize = ETHERNET_BYTES + Ipv4Header::MIN_LEN + UDP_BYTES;
/// Bytes of headers before a UDP payload over IPv6.
pub const IPV6_UDP_BYTES: usize = ETHERNET_BYTES + Ipv6Header::LEN + UDP_BYTES;
/// Bytes of the longest frame of address resolution: a neighbour solicitation with its option.
pub const CONTROL_BYTES: usize = ETHERNET_BYTES + Ipv6Header::LEN + 8 + 16 + OPTION_BYTES;
/// The hop limit that proves that a neighbour's message was not forwarded (RFC 4861, section 7.1).
const ON_LINK_HOPS: u8 = 255;
/// The time to live of datagrams (RFC 1700).
const HOPS: u8 = 64;
/// Bytes of a link-layer address option.
const OPTION_BYTES: usize = 8;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;

/// Reasons why a frame is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dropped {
    /// The frame is for another station, IP address or UDP port.
    Elsewhere,
    /// The frame is too short, or its lengths contradict each other.
    Malformed,
    /// A checksum is wrong.
    Checksum,
    /// The frame is a fragment: datagrams are not reassembled here (QUIC sends none, RFC 9000, section 14).
    Fragment,
    /// The protocol is neither UDP nor address resolution.
    Protocol,
    /// RFC 4861 requires this neighbour message to be ignored.
    Invalid,
}

/// Checksums that the port has verified already.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// The checksum of the IPv4 header.
    pub ip: bool,
    /// The checksum of UDP or ICMPv6.
    pub transport: bool,
}

/// Checksums that the port computes itself, or that a virtual port's peer omits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offload {
    /// The port fills in the IPv4 header's checksum.
    pub ip: bool,
    /// The port fills in UDP's checksum, given the pseudo header's sum in the field.
    pub udp: bool,
}

/// A UDP datagram in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// The ECN field's two bits (RFC 3168).
    pub ecn: u8,
    pub payload: &'a [u8],
}

/// A message of ARP or neighbour discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// `sender` asks for the address of `target`; `None` if it has no IP address yet (RFC 5227, RFC 4862).
    Solicitation {
        /// The address asked for.
        target: IpAddr,
        sender: Option<(IpAddr, Mac)>,
    },
    /// The neighbour `address` is at `mac`.
    Advertisement {
        address: IpAddr,
        mac: Mac,
        /// Whether the message overrides a known address.
        overrides: bool,
    },
}

/// A frame that an end system handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    Datagram(Datagram<'a>),
    Resolution(Resolution),
}

/// Parses a frame that a port received.
///
/// With `lenient`, UDP's checksum may be the sum of the pseudo header alone: a veth pair hands frames over before any
/// NIC completes the checksum, and software ports have no flag that says so.
///
/// # Errors
/// Why the frame is of no use; never a panic, whatever it holds.
pub fn parse(frame: &[u8], verified: Verified, lenient: bool) -> Result<Frame<'_>, Dropped> {
    let sliced = SlicedPacket::from_ethernet(frame).map_err(|_| Dropped::Malformed)?;
    let Some(LinkSlice::Ethernet2(ethernet)) = &sliced.link else { return Err(Dropped::Malformed) };
    if !sliced.link_exts.is_empty() {
        return Err(Dropped::Protocol);
    }
    let (source, destination, ecn, hops) = match &sliced.net {
        Some(NetSlice::Arp(arp)) => {
            let arp = arp.to_packet().try_eth_ipv4().map_err(|_| Dropped::Protocol)?;
            return parse_arp(&arp).map(Frame::Resolution);
        }
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            if !verified.ip && Sum16BitWords::new().add_slice(header.slice()).ones_complement() != 0 {
                return Err(Dropped::Checksum);
            }
            let ends = (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()));
            (ends.0, ends.1, header.ecn().value(), header.ttl())
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let ends = (IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()));
            (ends.0, ends.1, header.ecn().value(), header.hop_limit())
        }
        None => return Err(Dropped::Protocol),
    };
    if sliced.is_ip_payload_fragmented() {
        return Err(Dropped::Fragment);
    }
    match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => {
            if usize::from(udp.length()) < UDP_BYTES {
                return Err(Dropped::Malformed);
            }
            if !verified.transport && !udp_is_intact(udp, source, destination, lenient) {
                return Err(Dropped::Checksum);
            }
            let (source, destination) = (
                SocketAddr::new(source, udp.source_port()),
                SocketAddr::new(destination, udp.destination_port()),
            );
            Ok(Frame::Datagram(Datagram { source, destination, ecn, payload: udp.payload() }))
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) else {
                return Err(Dropped::Protocol);
            };
            if !verified.transport && !icmp.is_checksum_valid(source.octets(), destination.octets()) {
                return Err(Dropped::Checksum);
            }
            let from = Mac(ethernet.source());
            parse_neighbour_discovery(icmp, from, source, destination, hops).map(Frame::Resolution)
        }
        _ => Err(Dropped::Protocol),
    }
}

/// The destination address of a frame; `None` if it has no Ethernet header.
pub fn station(frame: &[u8]) -> Option<Mac> {
    frame.first_chunk::<6>().filter(|_| frame.len() >= ETHERNET_BYTES).map(|mac| Mac(*mac))
}

fn parse_arp(arp: &ArpEthIpv4Packet) -> Result<Resolution, Dropped> {
    let mac = Mac(arp.sender_mac);
    let (sender, target) = (arp.sender_ipv4_addr(), arp.target_ipv4_addr());
    if !mac.is_unicast() || sender.is_multicast() || sender.is_broadcast() {
        return Err(Dropped::Invalid);
    }
    match arp.operation {
        ArpOperation::REQUEST if sender == target => {
            Ok(Resolution::Advertisement { address: sender.into(), mac, overrides: true })
        }
        ArpOperation::REQUEST => {
            let sender = (!sender.is_unspecified()).then_some((sender.into(), mac));
            Ok(Resolution::Solicitation { target: target.into(), sender })
        }
        ArpOperation::REPLY if !sender.is_unspecified() => {
            Ok(Resolution::Advertisement { address: sender.into(), mac, overrides: true })
        }
        _ => Err(Dropped::Invalid),
    }
}

/// Parses a neighbour solicitation or advertisement (RFC 4861, sections 7.1.1 and 7.1.2).
fn parse_neighbour_discovery(
    icmp: &Icmpv6Slice<'_>,
    from: Mac,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hops: u8,
) -> Result<Resolution, Dropped> {
    let valid = |holds: bool| holds.then_some(()).ok_or(Dropped::Invalid);
    match icmp.icmp_type() {
        Icmpv6Type::NeighborSolicitation => {
            valid(hops == ON_LINK_HOPS)?;
            let asked = NeighborSolicitationPayloadSlice::from_slice(icmp.payload())
                .map_err(|_| Dropped::Malformed)?;
            let target = asked.target_address();
            valid(!target.is_multicast())?;
            let at = link_layer_address(asked.options(), SOURCE_OPTION)?;
            if source.is_unspecified() {
                valid(at.is_none() && destination == solicited_node(target))?;
                return Ok(Resolution::Solicitation { target: target.into(), sender: None });
            }
            // A unicast probe may omit the option: its sender has an entry for us, and the frame shows its address.
            let mac = at.unwrap_or(from);
            valid(mac.is_unicast() && !source.is_multicast())?;
            Ok(Resolution::Solicitation { target: target.into(), sender: Some((source.into(), mac)) })
        }
        Icmpv6Type::NeighborAdvertisement(header) => {
            valid(hops == ON_LINK_HOPS && !(destination.is_multicast() && header.solicited))?;
            let advertisement = NeighborAdvertisementPayloadSlice::from_slice(icmp.payload())
                .map_err(|_| Dropped::Malformed)?;
            let target = advertisement.target_address();
            // An answer to a unicast probe may omit the option, too.
            let mac = link_layer_address(advertisement.options(), TARGET_OPTION)?.unwrap_or(from);
            valid(!target.is_multicast() && mac.is_unicast())?;
            Ok(Resolution::Advertisement { address: target.into(), mac, overrides: header.r#override })
        }
        _ => Err(Dropped::Protocol),
    }
}

/// Finds the Ethernet address among the options; an unreadable option makes the message invalid (RFC 4861, section
/// 4.6).
fn link_layer_address(options: &[u8], which: u8) -> Result<Option<Mac>, Dropped> {
    let mut found = None;
    for option in NdpOptionsIterator::from_slice(options) {
        let option = option.map_err(|_| Dropped::Invalid)?;
        let address = match &option {
            NdpOptionSlice::SourceLinkLayerAddress(address) if which == SOURCE_OPTION => {
                address.link_layer_address()
            }
            NdpOptionSlice::TargetLinkLayerAddress(address) if which == TARGET_OPTION => {
                address.link_layer_address()
            }
            _ => continue,
        };
        found = address.first_chunk::<6>().copied().map(Mac);
    }
    Ok(found)
}

/// The multicast group of solicitations for an address (RFC 4291, section 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

fn udp_is_intact(udp: &UdpSlice<'_>, source: IpAddr, destination: IpAddr, lenient: bool) -> bool {
    if udp.checksum() == 0 {
        // IPv4 may omit the checksum, IPv6 may not (RFC 8200, section 8.1).
        return source.is_ipv4();
    }
    let pseudo = pseudo_header(source, destination).add_2bytes(udp.length().to_be_bytes());
    let whole = sum::add(pseudo.clone(), udp.slice());
    whole.ones_complement() == 0 || (lenient && udp.checksum() == (!pseudo.ones_complement()).to_be())
}

/// The sum of a pseudo header without its length (RFC 768; RFC 8200, section 8.1).
fn pseudo_header(source: IpAddr, destination: IpAddr) -> Sum16BitWords {
    let mut sum = Sum16BitWords::new();
    for end in [source, destination] {
        sum = match end {
            IpAddr::V4(end) => sum.add_4bytes(end.octets()),
            IpAddr::V6(end) => sum.add_16bytes(end.octets()),
        };
    }
    sum.add_2bytes([0, IpNumber::UDP.0])
}

/// Prepared headers of datagrams between two ends.
#[derive(Debug, Clone)]
pub struct Headers {
    bytes: [u8; IPV6_UDP_BYTES],
    len: usize,
    pseudo: Sum16BitWords,
    offload: Offload,
}

impl Headers {
    /// Prepares headers of this traffic class (IPv4's TOS); `None` if the ends are of different families.
    pub fn new(
        stations: [Mac; 2],
        source: SocketAddr,
        destination: SocketAddr,
        class: u8,
        offload: Offload,
    ) -> Option<Headers> {
        let (dscp, ecn) = (IpDscp::try_new(class >> 2).ok()?, IpEcn::try_new(class & 3).ok()?);
        let udp = UdpHeader {
            source_port: source.port(),
            destination_port: destination.port(),
            length: 0,
            checksum: 0,
        };
        let mut bytes = [0; IPV6_UDP_BYTES];
        let mut len = ETHERNET_BYTES;
        let ether_type = match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut ip =
                    Ipv4Header::new(0, HOPS, IpNumber::UDP, source.octets(), destination.octets()).ok()?;
                (ip.dscp, ip.ecn, ip.dont_fragment) = (dscp, ecn, true);
                bytes[len..len + Ipv4Header::MIN_LEN].copy_from_slice(&ip.to_bytes());
                len += Ipv4Header::MIN_LEN;
                EtherType::IPV4
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut ip = ipv6(source, destination, IpNumber::UDP, HOPS, 0);
                ip.traffic_class = class;
                bytes[len..len + Ipv6Header::LEN].copy_from_slice(&ip.to_bytes());
                len += Ipv6Header::LEN;
                EtherType::IPV6
            }
            _ => return None,
        };
        bytes[..ETHERNET_BYTES].copy_from_slice(&ethernet(stations[0], stations[1], ether_type).to_bytes());
        bytes[len..len + UDP_BYTES].copy_from_slice(&udp.to_bytes());
        let pseudo = pseudo_header(source.ip(), destination.ip());
        Some(Headers { bytes, len: len + UDP_BYTES, pseudo, offload })
    }

    /// Length of all headers, bytes.
    pub fn header_bytes(&self) -> usize {
        self.len
    }

    /// Whether the packets are IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.len == IPV4_UDP_BYTES
    }

    /// Changes the destination station.
    pub fn set_station(&mut self, to: Mac) {
        self.bytes[..6].copy_from_slice(&to.0);
    }

    /// Writes one frame and returns its length; `None` if it does not fit into `frame` or into an IP packet.
    pub fn write(&self, payload: &[u8], frame: &mut [u8]) -> Option<usize> {
        let udp_len = u16::try_from(UDP_BYTES + payload.len()).ok()?;
        let ip_at = ETHERNET_BYTES;
        let udp_at = self.len - UDP_BYTES;
        let frame = frame.get_mut(..self.len + payload.len())?;
        let (headers, body) = frame.split_at_mut(self.len);
        headers.copy_from_slice(&self.bytes[..self.len]);
        body.copy_from_slice(payload);
        if self.is_ipv4() {
            let total = udp_len.checked_add(Ipv4Header::MIN_LEN as u16)?;
            headers[ip_at + 2..ip_at + 4].copy_from_slice(&total.to_be_bytes());
            // The field is 0 so far, as the checksum's computation needs it.
            if !self.offload.ip {
                // etherparse sums words in memory order.
                let sum = Sum16BitWords::new().add_slice(&headers[ip_at..udp_at]).ones_complement();
                headers[ip_at + 10..ip_at + 12].copy_from_slice(&sum.to_ne_bytes());
            }
        } else {
            headers[ip_at + 4..ip_at + 6].copy_from_slice(&udp_len.to_be_bytes());
        }
        headers[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len.to_be_bytes());
        let pseudo = self.pseudo.clone().add_2bytes(udp_len.to_be_bytes());
        let checksum = if self.offload.udp {
            !pseudo.ones_complement()
        } else {
            sum::add(pseudo.add_slice(&headers[udp_at..]), body).to_ones_complement_with_no_zero()
        };
        headers[udp_at + 6..udp_at + 8].copy_from_slice(&checksum.to_ne_bytes());
        Some(frame.len())
    }
}

/// Writes an ARP request or reply about `address` (RFC 826); `to` is the receiver, if known.
pub fn write_arp(
    operation: ArpOperation,
    sender: (Ipv4Addr, Mac),
    target: (Ipv4Addr, Option<Mac>),
    frame: &mut Vec<u8>,
) {
    let arp = ArpEthIpv4Packet {
        operation,
        sender_mac: sender.1.0,
        sender_ipv4: sender.0.octets(),
        target_mac: target.1.map_or([0; 6], |mac| mac.0),
        target_ipv4: target.0.octets(),
    };
    frame.clear();
    frame.extend(ethernet(sender.1, target.1.unwrap_or(Mac::BROADCAST), EtherType::ARP).to_bytes());
    frame.extend(arp.to_bytes());
}

/// Writes a neighbour solicitation (RFC 4861, section 4.3): to `at`, or to the solicited-node group of `target`.
pub fn write_solicitation(sender: (Ipv6Addr, Mac), target: Ipv6Addr, at: Option<Mac>, frame: &mut Vec<u8>) {
    let destination = if at.is_some() { target } else { solicited_node(target) };
    let station = at.unwrap_or_else(|| Mac::of_group(destination));
    let stations = [sender.1, station];
    write_icmpv6(
        Icmpv6Type::NeighborSolicitation,
        stations,
        [sender.0, destination],
        target,
        SOURCE_OPTION,
        frame,
    );
}

/// Writes an advertisement of our own address (RFC 4861, section 4.4): to the asker, or to all nodes.
pub fn write_advertisement(ours: (Ipv6Addr, Mac), to: Option<(Ipv6Addr, Mac)>, frame: &mut Vec<u8>) {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let header = NeighborAdvertisementHeader { router: false, solicited: to.is_some(), r#override: true };
    let (destination, station) = to.unwrap_or((ALL_NODES, Mac::of_group(ALL_NODES)));
    let kind = Icmpv6Type::NeighborAdvertisement(header);
    write_icmpv6(kind, [ours.1, station], [ours.0, destination], ours.0, TARGET_OPTION, frame);
}

fn write_icmpv6(
    kind: Icmpv6Type,
    [from, to]: [Mac; 2],
    [source, destination]: [Ipv6Addr; 2],
    target: Ipv6Addr,
    option: u8,
    frame: &mut Vec<u8>,
) {
    let mut payload = [0; 16 + OPTION_BYTES];
    payload[..16].copy_from_slice(&target.octets());
    payload[16..18].copy_from_slice(&[option, 1]);
    payload[18..].copy_from_slice(&from.0);
    let checksum = kind.calc_checksum(source.octets(), destination.octets(), &payload).unwrap_or_default();
    let header = Icmpv6Header { icmp_type: kind, checksum };
    let len = (header.header_len() + payload.len()) as u16;
    frame.clear();
    frame.extend(ethernet(from, to, EtherType::IPV6).to_bytes());
    frame.extend(ipv6(source, destination, IpNumber::IPV6_ICMP, ON_LINK_HOPS, len).to_bytes());
    frame.extend(header.to_bytes());
    frame.extend(payload);
}

fn ethernet(source: Mac, destination: Mac, ether_type: EtherType) -> Ethernet2Header {
    Ethernet2Header { source: source.0, destination: destination.0, ether_type }
}

fn ipv6(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    next_header: IpNumber,
    hop_limit: u8,
    payload_length: u16,
) -> Ipv6Header {
    let (source, destination) = (source.octets(), destination.octets());
    Ipv6Header { payload_length, next_header, hop_limit, source, destination, ..Ipv6Header::default() }
}

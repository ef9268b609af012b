//! smoltcp's reading and writing of the same frames.

use std::net::{IpAddr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr, IpAddress, IpProtocol, Ipv4Packet,
    Ipv4Repr, Ipv6Packet, Ipv6Repr, UdpPacket, UdpRepr,
};

/// A datagram as smoltcp reads it.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub stations: [[u8; 6]; 2],
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub ecn: u8,
    pub payload: Vec<u8>,
}

/// Reads a UDP datagram with all checksums checked; `None` for anything else.
pub fn read_udp(frame: &[u8]) -> Option<Read> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    let caps = ChecksumCapabilities::default();
    let (source, destination, ecn, body): (IpAddress, IpAddress, u8, &[u8]) = match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_checked(ethernet.payload()).ok()?;
            let repr = Ipv4Repr::parse(&ip, &caps).ok()?;
            if repr.next_header != IpProtocol::Udp || ip.more_frags() || ip.frag_offset() != 0 {
                return None;
            }
            (repr.src_addr.into(), repr.dst_addr.into(), ip.ecn(), ip.payload())
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_checked(ethernet.payload()).ok()?;
            let repr = Ipv6Repr::parse(&ip).ok()?;
            if repr.next_header != IpProtocol::Udp {
                return None;
            }
            (repr.src_addr.into(), repr.dst_addr.into(), ip.traffic_class() & 3, ip.payload())
        }
        _ => return None,
    };
    let udp = UdpPacket::new_checked(body).ok()?;
    // smoltcp lets a missing checksum pass over IPv6, too.
    if matches!(source, IpAddress::Ipv6(_)) && udp.checksum() == 0 {
        return None;
    }
    let repr = UdpRepr::parse(&udp, &source, &destination, &caps).ok()?;
    Some(Read {
        stations: [ethernet.src_addr().0, ethernet.dst_addr().0],
        source: SocketAddr::new(IpAddr::from(source), repr.src_port),
        destination: SocketAddr::new(IpAddr::from(destination), repr.dst_port),
        ecn,
        payload: udp.payload().to_vec(),
    })
}

/// Writes what [`read_udp`] reads.
pub fn write_udp(datagram: &Read) -> Vec<u8> {
    let caps = ChecksumCapabilities::default();
    let udp_len = 8 + datagram.payload.len();
    let [src_addr, dst_addr] = datagram.stations.map(EthernetAddress);
    let v4 = datagram.source.is_ipv4();
    let (ethertype, ip_len) = if v4 { (EthernetProtocol::Ipv4, 20) } else { (EthernetProtocol::Ipv6, 40) };
    let mut bytes = vec![0; 14 + ip_len + udp_len];
    let mut ethernet = EthernetFrame::new_unchecked(&mut bytes[..]);
    EthernetRepr { src_addr, dst_addr, ethertype }.emit(&mut ethernet);
    match (datagram.source.ip(), datagram.destination.ip()) {
        (IpAddr::V4(src_addr), IpAddr::V4(dst_addr)) => {
            let mut ip = Ipv4Packet::new_unchecked(&mut bytes[14..]);
            let (next_header, payload_len, hop_limit) = (IpProtocol::Udp, udp_len, 9);
            Ipv4Repr { src_addr, dst_addr, next_header, payload_len, hop_limit }.emit(&mut ip, &caps);
            ip.set_ecn(datagram.ecn);
            ip.fill_checksum();
        }
        (IpAddr::V6(src_addr), IpAddr::V6(dst_addr)) => {
            let mut ip = Ipv6Packet::new_unchecked(&mut bytes[14..]);
            let (next_header, payload_len, hop_limit) = (IpProtocol::Udp, udp_len, 9);
            Ipv6Repr { src_addr, dst_addr, next_header, payload_len, hop_limit }.emit(&mut ip);
            ip.set_traffic_class(datagram.ecn);
        }
        _ => panic!("two families"),
    }
    let mut udp = UdpPacket::new_unchecked(&mut bytes[14 + ip_len..]);
    let repr = UdpRepr { src_port: datagram.source.port(), dst_port: datagram.destination.port() };
    let ends = (datagram.source.ip().into(), datagram.destination.ip().into());
    let fill = |to: &mut [u8]| to.copy_from_slice(&datagram.payload);
    repr.emit(&mut udp, &ends.0, &ends.1, datagram.payload.len(), fill, &caps);
    bytes
}

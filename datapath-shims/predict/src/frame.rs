//! Datagrams in Ethernet frames, below the kernel's network stack: answered in place, or sent by a client.
//!
//! A reply is the request's frame with both ends exchanged, so that nobody's address has to be looked up. A client's frames have the
//! same headers but for lengths and checksums, and what comes back is held against them.

use crate::packet::MESSAGE_BYTES;
use std::net::SocketAddrV4;

/// Bytes of an Ethernet header, without VLAN.
const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Bytes before the payload of a datagram over IPv4.
const HEADERS_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// Offsets of the IP header in any frame, and of the UDP header in one of IPv4.
const IP: usize = ETHERNET_BYTES;
const UDP: usize = ETHERNET_BYTES + IPV4_BYTES;
/// Bytes of the shortest frame that an interface sends, without its checksum.
pub const MIN_FRAME_BYTES: usize = 60;

const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
/// IPv4 without options; IPv6.
const VERSION_IPV4: u8 = 0x45;
const VERSION_IPV6: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// More fragments, and the fragment's offset.
const FRAGMENT: [u8; 2] = [0x3f, 0xff];
/// The hops that a reply may take.
const HOPS: u8 = 64;

/// The place of a UDP datagram in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramPlace {
    /// The first byte of the UDP header.
    udp: usize,
    /// Bytes of the payload.
    payload_bytes: usize,
}

impl DatagramPlace {
    /// Finds the UDP datagram to a port; `None` if the frame is anything else: a fragment, an IP option, another port.
    ///
    /// Checksums are not looked at: what arrives from a virtual interface has none yet, and a NIC has checked what is its own.
    pub fn find(frame: &[u8], port: u16) -> Option<DatagramPlace> {
        let (head, ip) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
        let kind = [head[12], head[13]];
        let (ip_bytes, ip_length) = if kind == TYPE_IPV4 {
            let ip = ip.first_chunk::<IPV4_BYTES>()?;
            let is_whole = [ip[6] & FRAGMENT[0], ip[7] & FRAGMENT[1]] == [0, 0];
            if ip[0] != VERSION_IPV4 || ip[9] != PROTOCOL_UDP || !is_whole {
                return None;
            }
            (IPV4_BYTES, usize::from(u16::from_be_bytes([ip[2], ip[3]])))
        } else if kind == TYPE_IPV6 {
            let ip = ip.first_chunk::<IPV6_BYTES>()?;
            if ip[0] >> 4 != VERSION_IPV6 || ip[6] != PROTOCOL_UDP {
                return None;
            }
            (IPV6_BYTES, IPV6_BYTES + usize::from(u16::from_be_bytes([ip[4], ip[5]])))
        } else {
            return None;
        };
        let udp = ip.get(ip_bytes..ip_length)?;
        let header = udp.first_chunk::<UDP_BYTES>()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let is_ours = u16::from_be_bytes([header[2], header[3]]) == port && length == udp.len();
        is_ours.then(|| DatagramPlace { udp: ETHERNET_BYTES + ip_bytes, payload_bytes: length - UDP_BYTES })
    }

    /// The payload of the datagram.
    pub fn payload<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        let start = self.udp + UDP_BYTES;
        frame.get(start..start + self.payload_bytes).unwrap_or_default()
    }

    /// Makes the frame its own reply, and returns its length; `None` if there is no room.
    pub fn reply(&self, frame: &mut [u8], payload: &[u8; MESSAGE_BYTES]) -> Option<usize> {
        let end = self.udp + UDP_BYTES + MESSAGE_BYTES;
        let length = end.max(MIN_FRAME_BYTES);
        let frame = frame.get_mut(..length)?;
        frame.get_mut(end..)?.fill(0);
        frame.get_mut(end - MESSAGE_BYTES..end)?.copy_from_slice(payload);
        let (destination, source) = frame.get_mut(..12)?.split_at_mut(6);
        destination.swap_with_slice(source);
        let (ip, udp) = frame.get_mut(ETHERNET_BYTES..end)?.split_at_mut(self.udp - ETHERNET_BYTES);
        let udp_bytes = ((UDP_BYTES + MESSAGE_BYTES) as u16).to_be_bytes();
        let addresses = if ip.len() == IPV4_BYTES {
            let total = ((IPV4_BYTES + UDP_BYTES + MESSAGE_BYTES) as u16).to_be_bytes();
            ip.get_mut(2..4)?.copy_from_slice(&total);
            // Nothing that was reserved or marked, no congestion mark of the request, fresh hops.
            ip.get_mut(6..12)?.copy_from_slice(&[0x40, 0, HOPS, PROTOCOL_UDP, 0, 0]);
            *ip.get_mut(1)? = 0;
            let (source, destination) = ip.get_mut(12..)?.split_at_mut(4);
            source.swap_with_slice(destination);
            let sum = checksum(sum(0, ip)).to_be_bytes();
            ip.get_mut(10..12)?.copy_from_slice(&sum);
            ip.get(12..)?
        } else {
            ip.get_mut(..8)?.copy_from_slice(&[
                0x60,
                0,
                0,
                0,
                udp_bytes[0],
                udp_bytes[1],
                PROTOCOL_UDP,
                HOPS,
            ]);
            let (source, destination) = ip.get_mut(8..)?.split_at_mut(16);
            source.swap_with_slice(destination);
            ip.get(8..)?
        };
        let (from, to) = udp.get_mut(..4)?.split_at_mut(2);
        from.swap_with_slice(to);
        udp.get_mut(4..8)?.copy_from_slice(&[udp_bytes[0], udp_bytes[1], 0, 0]);
        // The pseudo-header: addresses, protocol and length (RFC 768, RFC 8200).
        let pseudo = sum(u32::from(PROTOCOL_UDP) + u32::from(u16::from_be_bytes(udp_bytes)), addresses);
        let sum = udp_checksum(sum(pseudo, udp));
        udp.get_mut(6..8)?.copy_from_slice(&sum);
        Some(length)
    }
}

/// The ends of a client's datagrams, its own before the server's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// The Ethernet address of each.
    pub macs: [[u8; 6]; 2],
    pub addresses: [SocketAddrV4; 2],
}

/// The headers of a client's frames, and the checks of the frames that come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Template {
    ends: Ends,
    /// Headers without lengths and checksums.
    headers: [u8; HEADERS_BYTES],
    /// The sum of the IP header's words.
    ip_sum: u32,
    /// The sum of the words of the pseudo-header and of the ports.
    udp_sum: u32,
}

impl Template {
    /// Makes the headers of datagrams between two ends.
    pub fn new(ends: Ends) -> Template {
        let ([from, to], [client, server]) = (ends.macs, ends.addresses);
        let mut headers = [0; HEADERS_BYTES];
        headers[..6].copy_from_slice(&to);
        headers[6..12].copy_from_slice(&from);
        headers[12..IP].copy_from_slice(&TYPE_IPV4);
        headers[IP] = VERSION_IPV4;
        // Nobody may cut it into fragments.
        headers[IP + 6..IP + 10].copy_from_slice(&[0x40, 0, HOPS, PROTOCOL_UDP]);
        headers[IP + 12..IP + 16].copy_from_slice(&client.ip().octets());
        headers[IP + 16..UDP].copy_from_slice(&server.ip().octets());
        headers[UDP..UDP + 2].copy_from_slice(&client.port().to_be_bytes());
        headers[UDP + 2..UDP + 4].copy_from_slice(&server.port().to_be_bytes());
        let ip_sum = sum(0, &headers[IP..UDP]);
        let udp_sum = sum(PROTOCOL_UDP.into(), &headers[IP + 12..UDP + 4]);
        Template { ends, headers, ip_sum, udp_sum }
    }

    /// The ends that the headers are between.
    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Writes the frame of a datagram, and returns its length; `None` if there is no room.
    pub fn write(&self, frame: &mut [u8], payload: &[u8]) -> Option<usize> {
        let end = HEADERS_BYTES + payload.len();
        let length = end.max(MIN_FRAME_BYTES);
        let ip_bytes = u16::try_from(end - IP).ok()?;
        let udp_bytes = u16::try_from(end - UDP).ok()?;
        let (headers, rest) = frame.get_mut(..length)?.split_first_chunk_mut::<HEADERS_BYTES>()?;
        *headers = self.headers;
        headers[IP + 2..IP + 4].copy_from_slice(&ip_bytes.to_be_bytes());
        let ip_sum = checksum(self.ip_sum + u32::from(ip_bytes));
        headers[IP + 10..IP + 12].copy_from_slice(&ip_sum.to_be_bytes());
        headers[UDP + 4..UDP + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        // The length is in the pseudo-header, too.
        let udp_sum = sum(self.udp_sum + 2 * u32::from(udp_bytes), payload);
        headers[UDP + 6..].copy_from_slice(&udp_checksum(udp_sum));
        let (body, padding) = rest.split_at_mut_checked(payload.len())?;
        body.copy_from_slice(payload);
        padding.fill(0);
        Some(length)
    }

    /// Finds the payload of a datagram from the server to the client; `None` if the frame is anything else, or damaged.
    pub fn read<'f>(&self, frame: &'f [u8]) -> Option<&'f [u8]> {
        let [client, server] = self.ends.addresses;
        let place = DatagramPlace::find(frame, client.port())?;
        let headers = frame.first_chunk::<HEADERS_BYTES>()?;
        let is_between = place.udp == UDP
            && headers[IP + 12..IP + 16] == server.ip().octets()
            && headers[IP + 16..UDP] == client.ip().octets()
            && headers[UDP..UDP + 2] == server.port().to_be_bytes();
        let payload = place.payload(frame);
        let is_whole = checksum(sum(0, &headers[IP..UDP])) == 0 && is_intact(headers, payload);
        (is_between && is_whole).then_some(payload)
    }
}

/// Whether the checksum of a datagram over IPv4 is right, absent, or that of the pseudo-header alone.
///
/// The last is how a virtual interface hands over what no wire has completed.
fn is_intact(headers: &[u8; HEADERS_BYTES], payload: &[u8]) -> bool {
    let udp_bytes = u16::from_be_bytes([headers[UDP + 4], headers[UDP + 5]]);
    let found = u16::from_be_bytes([headers[UDP + 6], headers[UDP + 7]]);
    let pseudo = sum(u32::from(PROTOCOL_UDP) + u32::from(udp_bytes), &headers[IP + 12..UDP]);
    let whole = sum(sum(pseudo, &headers[UDP..]), payload);
    found == 0 || found == !checksum(pseudo) || checksum(whole) == 0
}

/// Adds the 16-bit words of `bytes`, which may end with half of one.
fn sum(start: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let half = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    words.iter().fold(start + half, |sum, word| sum + u32::from(u16::from_be_bytes(*word)))
}

/// The Internet checksum of a sum of words (RFC 1071).
fn checksum(sum: u32) -> u16 {
    let folded = (sum & 0xffff) + (sum >> 16);
    !(((folded & 0xffff) + (folded >> 16)) as u16)
}

/// The checksum of a datagram in network order. A sum of 0 is sent as its other form, since 0 says that there is none.
fn udp_checksum(sum: u32) -> [u8; 2] {
    let sum = checksum(sum);
    if sum == 0 { [u8::MAX; 2] } else { sum.to_be_bytes() }
}

//! Segmentation offload: the kernel hands over TCP segments in trains of up to 64 KiB, and takes them back so.
//!
//! A train is split as it is read, so that each segment meets its own fate; segments of one train that leave at the same time are
//! joined again as they are written. That saves both stacks the work per packet, as network cards do. Checksums stay partial,
//! as the kernel gives them (the sum of the pseudo header), for packets never leave this machine.

use ccplane_netsim::trace::OPPORTUNITY_BYTES;

/// Bytes of `struct virtio_net_hdr`, which comes before each packet (virtio 1.2, section 5.1.6).
pub(crate) const VNET_BYTES: usize = 10;
/// Longest packet or train: an IP length is 16 bits.
pub(crate) const MAX_TRAIN_BYTES: usize = 65_535;
/// Most segments written as one: no train of full segments holds more.
pub(crate) const MAX_JOINED: usize = MAX_TRAIN_BYTES / (OPPORTUNITY_BYTES as usize - 4 - MAX_HEADER_BYTES);
/// Longest IPv4 header, or IPv6 header without extensions, and longest TCP header.
pub(crate) const MAX_HEADER_BYTES: usize = 60 + 60;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const IPV6_HEADER_BYTES: usize = 40;
const TCP_PROTOCOL: u32 = 6;
const TCP_HEADER_BYTES: usize = 20;
const TCP_CHECKSUM: usize = 16;
const TCP_FLAGS: usize = 13;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// The header before a packet, in the machine's byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Vnet {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    checksum: Checksum,
}

/// The place where the kernel is to complete a checksum, if anywhere: from `start` on, written at
/// `start + offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Checksum {
    start: u16,
    offset: u16,
}

/// A segment's place in its train.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Place {
    /// The train's number; 0: none.
    pub(crate) train: u32,
    pub(crate) index: u16,
    /// Bytes of the IP and TCP headers.
    pub(crate) header_len: u16,
    pub(crate) checksum: Checksum,
}

impl Vnet {
    pub(crate) fn read(bytes: [u8; VNET_BYTES]) -> Vnet {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = bytes;
        let [header_len, gso_size, start, offset] = [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes);
        Vnet { flags, gso_type, header_len, gso_size, checksum: Checksum { start, offset } }
    }

    pub(crate) fn bytes(self) -> [u8; VNET_BYTES] {
        let Checksum { start, offset } = self.checksum;
        let [[a, b], [c, d], [e, f], [g, h]] =
            [self.header_len, self.gso_size, start, offset].map(u16::to_ne_bytes);
        [self.flags, self.gso_type, a, b, c, d, e, f, g, h]
    }

    /// Returns the header of a packet that is written alone.
    pub(crate) fn alone(checksum: Checksum) -> Vnet {
        let flags = if checksum == Checksum::default() { 0 } else { NEEDS_CSUM };
        Vnet { flags, checksum, ..Vnet::default() }
    }

    /// Returns the place where the checksum of the packet behind is to be completed.
    pub(crate) fn checksum(self) -> Checksum {
        if self.flags & NEEDS_CSUM == 0 { Checksum::default() } else { self.checksum }
    }
}

/// A train of TCP segments, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Train<'a> {
    packet: &'a [u8],
    tcp: usize,
    header_len: usize,
    segment_bytes: usize,
}

impl<'a> Train<'a> {
    /// The train behind `vnet`; `None` if it is a packet alone, or none that can be split.
    pub(crate) fn of(vnet: Vnet, packet: &'a [u8]) -> Option<Train<'a>> {
        if vnet.gso_type == GSO_NONE || vnet.gso_size == 0 {
            return None;
        }
        let tcp = usize::from(vnet.checksum.start);
        let header_len = tcp + usize::from(packet.get(tcp + 12)? >> 4) * 4;
        let fits =
            tcp >= TCP_HEADER_BYTES && header_len >= tcp + TCP_HEADER_BYTES && header_len <= MAX_HEADER_BYTES;
        let long_enough = packet.len() > header_len && (is_v4(packet) || tcp >= IPV6_HEADER_BYTES);
        let segment_bytes = usize::from(vnet.gso_size);
        (fits && long_enough).then_some(Train { packet, tcp, header_len, segment_bytes })
    }

    /// Returns the number of segments.
    pub(crate) fn len(self) -> usize {
        (self.packet.len() - self.header_len).div_ceil(self.segment_bytes)
    }

    /// Writes segment `index` to `to`, if it is long enough; returns the length.
    pub(crate) fn segment(self, index: usize, to: &mut [u8]) -> Option<usize> {
        let (header, payload) = self.packet.split_at_checked(self.header_len)?;
        let first = index * self.segment_bytes;
        let payload = payload.get(first..(first + self.segment_bytes).min(payload.len()))?;
        let len = header.len() + payload.len();
        let to = to.get_mut(..len)?;
        to.get_mut(..header.len())?.copy_from_slice(header);
        to.get_mut(header.len()..)?.copy_from_slice(payload);
        if let Some(flags) = to.get_mut(self.tcp + TCP_FLAGS) {
            *flags &= if index + 1 < self.len() { !FIN_PSH } else { !0 };
            *flags &= if index > 0 { !CWR } else { !0 };
        }
        add(to, self.tcp + 4, first as u32);
        set_lengths(to, len, index as u16, self.tcp);
        Some(len)
    }

    /// Returns the place that segment `index` belongs to.
    pub(crate) fn place(self, train: u32, index: usize) -> Place {
        Place {
            train,
            index: index as u16,
            header_len: self.header_len as u16,
            checksum: Checksum { start: self.tcp as u16, offset: TCP_CHECKSUM as u16 },
        }
    }
}

/// The header of `count` consecutive segments of one train, `first` to `last`, together `payload_bytes` long; and what goes before it.
pub(crate) fn join(
    first: &[u8],
    last: &[u8],
    place: Place,
    payload_bytes: usize,
) -> Option<(Vnet, [u8; MAX_HEADER_BYTES])> {
    let (header_len, tcp) = (usize::from(place.header_len), usize::from(place.checksum.start));
    let mut header = [0; MAX_HEADER_BYTES];
    let to = header.get_mut(..header_len)?;
    to.copy_from_slice(first.get(..header_len)?);
    *to.get_mut(tcp + TCP_FLAGS)? |= last.get(tcp + TCP_FLAGS)? & FIN_PSH;
    set_lengths(to, header_len + payload_bytes, 0, tcp);
    let vnet = Vnet {
        flags: NEEDS_CSUM,
        gso_type: if is_v4(to) { GSO_TCPV4 } else { GSO_TCPV6 },
        header_len: place.header_len,
        gso_size: (first.len() - header_len) as u16,
        checksum: place.checksum,
    };
    Some((vnet, header))
}

fn is_v4(packet: &[u8]) -> bool {
    packet.first().is_some_and(|byte| byte >> 4 == 4)
}

/// Adds to the 32-bit number at `at`.
fn add(packet: &mut [u8], at: usize, by: u32) {
    if let Some(field) = packet.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        *field = u32::from_be_bytes(*field).wrapping_add(by).to_be_bytes();
    }
}

fn set(packet: &mut [u8], at: usize, to: u16) {
    if let Some(field) = packet.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        *field = to.to_be_bytes();
    }
}

/// Makes the headers those of a packet `len` bytes long, `further` identifications on, with a partial TCP checksum.
fn set_lengths(packet: &mut [u8], len: usize, further: u16, tcp: usize) {
    let addresses = if is_v4(packet) {
        let identification =
            packet.get(4..).and_then(|rest| rest.first_chunk::<2>().copied()).unwrap_or_default();
        set(packet, 2, len as u16);
        set(packet, 4, u16::from_be_bytes(identification).wrapping_add(further));
        set(packet, 10, 0);
        let checksum = !fold(sum(packet.get(..tcp).unwrap_or_default()));
        set(packet, 10, checksum);
        packet.get(12..20)
    } else {
        set(packet, 4, (len - IPV6_HEADER_BYTES) as u16);
        packet.get(8..40)
    };
    let pseudo = sum(addresses.unwrap_or_default()) + TCP_PROTOCOL + (len - tcp) as u32;
    set(packet, tcp + TCP_CHECKSUM, fold(pseudo));
}

/// Of 16-bit words; an IP header has whole ones.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum()
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A train as the kernel gives it.
    fn train(v6: bool, options: usize, segment: u16, payload: &[u8], flags: u8) -> (Vnet, Vec<u8>) {
        let ip = if v6 { IPV6_HEADER_BYTES } else { 20 };
        let mut packet = vec![0; ip];
        packet[0] = if v6 { 0x60 } else { 0x45 };
        packet[if v6 { 6 } else { 9 }] = 6;
        packet[4..8].copy_from_slice(if v6 { &[0, 0, 6, 64] } else { &[0xff, 0xfe, 0x40, 0] });
        packet.iter_mut().skip(if v6 { 8 } else { 12 }).zip(1..).for_each(|(byte, n)| *byte = n);
        let mut tcp = vec![0; TCP_HEADER_BYTES + options];
        tcp[..8].copy_from_slice(&[1, 2, 3, 4, 0xff, 0xff, 0xff, 0x00]);
        tcp[12] = ((tcp.len() / 4) << 4) as u8;
        tcp[TCP_FLAGS] = flags;
        packet.extend(&tcp);
        packet.extend(payload);
        let len = packet.len();
        set_lengths(&mut packet, len, 0, ip);
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            gso_type: if v6 { GSO_TCPV6 } else { GSO_TCPV4 },
            header_len: (ip + tcp.len()) as u16,
            gso_size: segment,
            checksum: Checksum { start: ip as u16, offset: TCP_CHECKSUM as u16 },
        };
        (vnet, packet)
    }

    #[test]
    fn a_segment_is_a_packet_of_its_own() {
        let (vnet, packet) = train(false, 0, 3, b"abcdefgh", 0x10 | FIN_PSH | CWR);
        let split = Train::of(vnet, &packet).unwrap();
        let mut bytes = [0; 64];
        let segments: Vec<Vec<u8>> = (0..split.len())
            .map(|n| {
                let len = split.segment(n, &mut bytes).unwrap();
                bytes[..len].to_vec()
            })
            .collect();
        assert_eq!(segments.len(), 3);
        assert_eq!(segments.iter().map(|s| &s[40..]).collect::<Vec<_>>(), [&b"abc"[..], b"def", b"gh"]);
        assert_eq!(
            segments.iter().map(|s| s[33]).collect::<Vec<_>>(),
            [0x90, 0x10, 0x19],
            "CWR first, FIN and PSH last"
        );
        assert_eq!(
            segments.iter().map(|s| &s[24..28]).collect::<Vec<_>>(),
            [[255, 255, 255, 0], [255, 255, 255, 3], [255, 255, 255, 6]]
        );
        assert_eq!(
            segments.iter().map(|s| &s[2..6]).collect::<Vec<_>>(),
            [[0, 43, 255, 254], [0, 43, 255, 255], [0, 42, 0, 0]]
        );
        // A header with its checksum sums to all ones (RFC 1071).
        assert!(segments.iter().all(|s| fold(sum(&s[..20])) == 0xffff));
        // The pseudo header: addresses, protocol, TCP length.
        let pseudo = |s: &[u8]| fold(sum(&s[12..20]) + 6 + (s.len() as u32 - 20));
        assert!(segments.iter().all(|s| s[36..38] == pseudo(s).to_be_bytes()));
    }

    #[test]
    fn what_is_no_train_is_left_alone() {
        let (vnet, packet) = train(false, 0, 3, b"abcdefgh", 0x10);
        assert!(Train::of(Vnet { gso_type: GSO_NONE, ..vnet }, &packet).is_none());
        assert!(Train::of(Vnet { gso_size: 0, ..vnet }, &packet).is_none());
        assert!(
            Train::of(Vnet { checksum: Checksum { start: 60_000, offset: 16 }, ..vnet }, &packet).is_none()
        );
        assert!(Train::of(vnet, &packet[..30]).is_none());
        assert_eq!(Vnet::read(vnet.bytes()), vnet);
    }

    proptest! {
        #[test]
        fn joined_again_a_train_is_what_it_was(
            v6: bool, options in 0usize..=10, segment in 1u16..1400, flags in prop_oneof![Just(0x10u8), Just(0x18), Just(0x19)],
            payload in prop::collection::vec(any::<u8>(), 1..9_000),
        ) {
            let (vnet, packet) = train(v6, options * 4, segment, &payload, flags);
            let split = Train::of(vnet, &packet).unwrap();
            let mut segments = vec![];
            for n in 0..split.len() {
                let mut bytes = [0; 1536];
                let len = split.segment(n, &mut bytes).unwrap();
                segments.push(bytes[..len].to_vec());
            }
            let place = split.place(1, 0);
            let (first, last) = (&segments[0], &segments[segments.len() - 1]);
            let (back, header) = join(first, last, place, payload.len()).unwrap();
            let header_len = usize::from(place.header_len);
            let mut joined = header[..header_len].to_vec();
            segments.iter().for_each(|s| joined.extend(&s[header_len..]));
            prop_assert_eq!(joined, packet);
            prop_assert_eq!(back.gso_size, segment.min(payload.len() as u16));
            prop_assert_eq!(Vnet { gso_size: segment, ..back }, vnet);
        }

        #[test]
        fn no_packet_panics(vnet: [u8; VNET_BYTES], packet in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(train) = Train::of(Vnet::read(vnet), &packet) {
                let mut bytes = [0; 256];
                for n in 0..train.len().min(9) {
                    let _ = train.segment(n, &mut bytes);
                }
            }
        }
    }
}

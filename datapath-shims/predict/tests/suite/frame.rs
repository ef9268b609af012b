//! Frames answered in place, and those of clients, against etherparse.

use ccplane_predict::frame::{DatagramPlace, Ends, MIN_FRAME_BYTES, Template};
use ccplane_predict::packet::MESSAGE_BYTES;
use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::net::{Ipv4Addr, SocketAddrV4};

const PORT: u16 = 4434;
const V6: [[u8; 16]; 2] = [[0xfd; 16], [0xfe; 16]];

/// A client and its server.
const ENDS: Ends = Ends {
    macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
    addresses: [
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1234),
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), PORT),
    ],
};
/// Bytes of the longest frame.
const FRAME_BYTES: usize = 2048;

/// A frame from the server to the client, as the server answers the client's.
fn answered(reply: &[u8; MESSAGE_BYTES]) -> Vec<u8> {
    let mut frame = vec![0xff; FRAME_BYTES];
    let length = Template::new(ENDS).write(&mut frame, &[7; 80]).unwrap();
    let place = DatagramPlace::find(&frame[..length], PORT).unwrap();
    let length = place.reply(&mut frame, reply).unwrap();
    frame.truncate(length);
    frame
}

/// A datagram in a frame, as etherparse builds it.
fn frame(is_v6: bool, port: u16, payload: &[u8]) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let udp = if is_v6 {
        ethernet.ipv6(V6[0], V6[1], 9).udp(1234, port)
    } else {
        ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(1234, port)
    };
    let mut frame = Vec::new();
    udp.write(&mut frame, payload).unwrap();
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_reply_is_the_request_turned_round(
        is_v6: bool,
        payload in prop::collection::vec(any::<u8>(), 0..200),
        reply: [u8; 32],
    ) {
        let mut bytes = frame(is_v6, PORT, &payload);
        let place = DatagramPlace::find(&bytes, PORT).unwrap();
        prop_assert_eq!(place.payload(&bytes), &payload[..]);
        prop_assert_eq!(DatagramPlace::find(&bytes, PORT + 1), None);
        let reply: [u8; MESSAGE_BYTES] = std::array::from_fn(|n| reply[n % 32]);
        let before = bytes.len();
        match place.reply(&mut bytes, &reply) {
            Some(length) => {
                bytes.truncate(length);
                let parsed = SlicedPacket::from_ethernet(&bytes).unwrap();
                let link = parsed.link.unwrap().to_header().unwrap().ethernet2().unwrap();
                prop_assert_eq!((link.source, link.destination), ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]));
                let Some(TransportSlice::Udp(udp)) = parsed.transport else { panic!("no UDP") };
                let header = udp.to_header();
                prop_assert_eq!((header.source_port, header.destination_port), (PORT, 1234));
                prop_assert_eq!(udp.payload(), reply);
                let (expected, is_sound) = match parsed.net.unwrap() {
                    NetSlice::Ipv4(ip) => {
                        let ip = ip.header().to_header();
                        prop_assert_eq!((ip.source, ip.destination), ([10, 0, 0, 2], [10, 0, 0, 1]));
                        let sum = header.calc_checksum_ipv4(&ip, udp.payload()).unwrap();
                        (sum, ip.header_checksum == ip.calc_header_checksum() && ip.time_to_live == 64)
                    }
                    NetSlice::Ipv6(ip) => {
                        let ip = ip.header().to_header();
                        prop_assert_eq!((ip.source, ip.destination), (V6[1], V6[0]));
                        (header.calc_checksum_ipv6(&ip, udp.payload()).unwrap(), ip.hop_limit == 64)
                    }
                    other => panic!("{other:?}"),
                };
                prop_assert_eq!(header.checksum, expected);
                prop_assert!(is_sound && length >= MIN_FRAME_BYTES);
            }
            None => prop_assert!(before < frame(is_v6, PORT, &reply).len().max(MIN_FRAME_BYTES)),
        }
    }

    #[test]
    fn a_clients_frame_is_one_that_the_server_finds(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = vec![0xff; FRAME_BYTES];
        let length = Template::new(ENDS).write(&mut bytes, &payload).unwrap();
        bytes.truncate(length);
        let place = DatagramPlace::find(&bytes, PORT).unwrap();
        prop_assert_eq!(place.payload(&bytes), &payload[..]);
        prop_assert!(length >= MIN_FRAME_BYTES && bytes[42 + payload.len()..].iter().all(|byte| *byte == 0));
        let parsed = SlicedPacket::from_ethernet(&bytes).unwrap();
        let link = parsed.link.unwrap().to_header().unwrap().ethernet2().unwrap();
        prop_assert_eq!([link.source, link.destination], ENDS.macs);
        let Some(NetSlice::Ipv4(ip)) = parsed.net else { panic!("no IPv4") };
        let Some(TransportSlice::Udp(udp)) = parsed.transport else { panic!("no UDP") };
        prop_assert_eq!(udp.payload(), &payload[..]);
        let (ip, udp) = (ip.header().to_header(), udp.to_header());
        prop_assert_eq!([ip.source, ip.destination], ENDS.addresses.map(|end| end.ip().octets()));
        prop_assert_eq!([udp.source_port, udp.destination_port], ENDS.addresses.map(|end| end.port()));
        prop_assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        prop_assert_eq!(udp.checksum, udp.calc_checksum_ipv4(&ip, &payload).unwrap());
        prop_assert!(ip.dont_fragment && ip.time_to_live == 64);
        // No room, not even for the padding.
        prop_assert_eq!(Template::new(ENDS).write(&mut vec![0; length - 1], &payload), None);
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..150), is_v6: bool, at in 0..150_usize) {
        let mut mangled = frame(is_v6, PORT, &[7; 80]);
        for (n, byte) in bytes.iter().enumerate().take(4) {
            let place = (at + 7 * n) % mangled.len();
            mangled[place] = *byte;
        }
        for mut frame in [bytes, mangled] {
            Template::new(ENDS).read(&frame);
            if let Some(place) = DatagramPlace::find(&frame, PORT) {
                prop_assert!(place.payload(&frame).len() <= frame.len());
                place.reply(&mut frame, &[1; MESSAGE_BYTES]);
            }
        }
    }
}

#[test]
fn fragments_options_and_other_protocols_are_not_ours() {
    let good = frame(false, PORT, &[7; 80]);
    assert!(DatagramPlace::find(&good, PORT).is_some());
    let with = |at: usize, value: u8| {
        let mut other = good.clone();
        other[at] = value;
        DatagramPlace::find(&other, PORT)
    };
    assert_eq!(with(14, 0x46), None, "options");
    assert_eq!(with(20, 0x20), None, "more fragments");
    assert_eq!(with(21, 1), None, "a later fragment");
    assert_eq!(with(23, 6), None, "TCP");
    assert_eq!(with(12, 0x81), None, "a VLAN");
    assert_eq!(with(17, 200), None, "longer than the frame");
    assert_eq!(with(39, 1), None, "UDP's length is another than IP's");
    for length in 0..good.len() {
        assert_eq!(DatagramPlace::find(&good[..length], PORT), None, "cut off at {length}");
    }
    assert!(DatagramPlace::find(&[good, vec![0; 9]].concat(), PORT).is_some(), "padding of the link");
}

#[test]
fn a_client_reads_its_servers_replies() {
    let reply = std::array::from_fn(|n| n as u8);
    let frame = answered(&reply);
    assert_eq!(Template::new(ENDS).read(&frame), Some(&reply[..]));
    assert_eq!(Template::new(ENDS).read(&[frame.clone(), vec![0; 9]].concat()), Some(&reply[..]), "padding");
    for end in 0..2 {
        let mut others = ENDS;
        others.addresses[end].set_port(5);
        assert_eq!(Template::new(others).read(&frame), None, "another port");
        others = ENDS;
        others.addresses[end].set_ip(Ipv4Addr::new(10, 0, 0, 9));
        assert_eq!(Template::new(others).read(&frame), None, "another address");
    }
    let over_v6 = self::frame(true, ENDS.addresses[0].port(), &reply);
    assert_eq!(Template::new(ENDS).read(&over_v6), None, "IPv6");
}

#[test]
fn no_damage_of_a_reply_goes_unseen() {
    let frame = answered(&std::array::from_fn(|n| n as u8));
    for length in 0..frame.len() {
        assert_eq!(Template::new(ENDS).read(&frame[..length]), None, "cut off at {length}");
    }
    // From the kind of the frame on: who it is for is the link's to say.
    for at in 12..frame.len() {
        for bits in [0x01, 0x80, 0xff] {
            let mut damaged = frame.clone();
            damaged[at] ^= bits;
            assert_eq!(Template::new(ENDS).read(&damaged), None, "{bits:x} at {at}");
        }
    }
}

/// A veth pair hands over what the kernel sends before anything completes the checksum.
#[test]
fn a_checksum_may_be_absent_or_the_pseudo_headers() {
    let reply = [9; MESSAGE_BYTES];
    let udp_bytes = (8 + MESSAGE_BYTES) as u16;
    let [client, server] = ENDS.addresses.map(|end| end.ip().octets());
    let pseudo = Sum16BitWords::new().add_4bytes(server).add_4bytes(client).add_2bytes([0, 17]);
    let pseudo = pseudo.add_2bytes(udp_bytes.to_be_bytes());
    for (sum, is_read) in [(0, true), (!pseudo.ones_complement(), true), (0x1234, false)] {
        let mut frame = answered(&reply);
        frame[40..42].copy_from_slice(&u16::to_ne_bytes(sum));
        assert_eq!(Template::new(ENDS).read(&frame).is_some(), is_read, "{sum:x}");
    }
}

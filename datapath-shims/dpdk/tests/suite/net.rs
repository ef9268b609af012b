//! Frames checked against smoltcp's reader and writer, and interfaces that talk to each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::support::{Read, read_udp, write_udp};
use ccplane_dpdk::net::frame::{self, Dropped, Frame, Headers, Offload, Resolution, Verified};
use ccplane_dpdk::net::{ConfigError, Interface, InterfaceConfig, Mac, NextHop};
use etherparse::ArpOperation;
use proptest::prelude::*;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation as SmolOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol,
    Icmpv6Packet, Icmpv6Repr, Ipv6Packet, Ipv6Repr, NdiscNeighborFlags, NdiscRepr,
};

fn station() -> impl Strategy<Value = [u8; 6]> {
    any::<[u8; 6]>().prop_map(|mut mac| {
        mac[0] = mac[0] & 0xfe | 2;
        mac
    })
}

fn ends() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    let v4 = (any::<[u8; 4]>(), any::<[u8; 4]>()).prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>()).prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b)));
    let ports = (any::<u16>(), 1..u16::MAX);
    (prop_oneof![v4, v6], ports)
        .prop_map(|(ips, ports)| (SocketAddr::new(ips.0, ports.0), SocketAddr::new(ips.1, ports.1)))
        // smoltcp refuses to read these.
        .prop_filter("unicast", |(a, _)| {
            !a.ip().is_multicast()
                && !a.ip().is_unspecified()
                && !matches!(a.ip(), IpAddr::V4(ip) if ip.is_broadcast())
        })
}

fn datagram() -> impl Strategy<Value = Read> {
    let payload = proptest::collection::vec(any::<u8>(), 0..1473);
    (station(), station(), ends(), 0..4_u8, payload).prop_map(
        |(from, to, (source, destination), ecn, payload)| Read {
            stations: [from, to],
            source,
            destination,
            ecn,
            payload,
        },
    )
}

fn headers(of: &Read, offload: Offload) -> Headers {
    Headers::new(of.stations.map(Mac), of.source, of.destination, of.ecn, offload).unwrap()
}

fn written(of: &Read, offload: Offload) -> Vec<u8> {
    let mut frame = vec![0xaa; 2048];
    let len = headers(of, offload).write(&of.payload, &mut frame).unwrap();
    frame.truncate(len);
    frame
}

fn parsed(frame: &[u8]) -> Result<Frame<'_>, Dropped> {
    frame::parse(frame, Verified::default(), false)
}

fn is(frame: &Frame<'_>, expected: &Read) -> bool {
    let Frame::Datagram(found) = frame else { return false };
    let ends = (found.source, found.destination) == (expected.source, expected.destination);
    ends && (found.ecn, found.payload) == (expected.ecn, &expected.payload[..])
}

proptest! {
    #[test]
    fn frames_that_we_write_are_read_by_smoltcp_and_by_us(expected in datagram()) {
        let frame = written(&expected, Offload::default());
        prop_assert_eq!(&read_udp(&frame).unwrap(), &expected);
        prop_assert!(is(&parsed(&frame).unwrap(), &expected));
    }

    #[test]
    fn frames_that_smoltcp_writes_are_read_by_us(expected in datagram(), padding in 0..40_usize) {
        let mut frame = write_udp(&expected);
        frame.resize(frame.len() + padding, 0);
        prop_assert!(is(&parsed(&frame).unwrap(), &expected));
    }

    /// A NIC sums from the UDP header on, starting with the checksum field's value.
    #[test]
    fn a_port_that_fills_checksums_in_gets_what_it_needs(expected in datagram()) {
        let whole = written(&expected, Offload::default());
        let mut frame = written(&expected, Offload { ip: true, udp: true });
        let ip_len = if expected.source.is_ipv4() { 20 } else { 40 };
        if ip_len == 20 {
            prop_assert_eq!(&frame[24..26], [0, 0]);
            let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[14..34]).ones_complement();
            frame[24..26].copy_from_slice(&sum.to_ne_bytes());
        }
        let udp = 14 + ip_len;
        let sum = etherparse::checksum::Sum16BitWords::new().add_slice(&frame[udp..]);
        frame[udp + 6..udp + 8].copy_from_slice(&sum.to_ones_complement_with_no_zero().to_ne_bytes());
        prop_assert_eq!(frame, whole);
    }

    /// A frame as a veth pair hands it over: the kernel left the checksum to a NIC.
    #[test]
    fn unfinished_checksums_pass_where_they_are_expected(expected in datagram()) {
        let frame = written(&expected, Offload { ip: false, udp: true });
        let lenient = frame::parse(&frame, Verified::default(), true);
        prop_assert!(is(&lenient.unwrap(), &expected));
        let verified = frame::parse(&frame, Verified { ip: false, transport: true }, false);
        prop_assert!(is(&verified.unwrap(), &expected));
    }

    #[test]
    fn a_flipped_bit_is_noticed(expected in datagram(), place in any::<prop::sample::Index>(), bit in 0..8) {
        let mut frame = written(&expected, Offload::default());
        // Of IPv6's header, only the addresses are summed.
        let first = if expected.source.is_ipv4() { 14 } else { 22 };
        let at = first + place.index(frame.len() - first);
        frame[at] ^= 1_u8 << bit;
        let v4 = expected.source.is_ipv4();
        let unchecked = v4 && frame[40..42] == [0, 0];
        prop_assert!(unchecked || parsed(&frame).is_err(), "{at}: {:?}", parsed(&frame));
    }

    /// Whatever we parse as a datagram, smoltcp parses as the same one.
    #[test]
    fn no_mangled_frame_means_something_else_to_smoltcp(
        expected in datagram(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut frame = write_udp(&expected);
        let all = frame.len();
        for (place, value) in changes {
            // Among the headers, where it matters.
            frame[place.index(all.min(62))] = value;
        }
        if keep.index(4) == 0 {
            frame.truncate(keep.index(all));
        }
        let caps = Verified { ip: false, transport: false };
        if let Ok(Frame::Datagram(found)) = frame::parse(&frame, caps, false) {
            // smoltcp does not look behind IPv6's extension headers, and refuses UDP port 0 and odd senders.
            let plain = frame[if frame[12] == 8 { 23 } else { 20 }] == 17;
            let odd = found.destination.port() == 0 || found.source.ip().is_multicast() || found.source.ip().is_unspecified()
                || matches!(found.source.ip(), IpAddr::V4(ip) if ip.is_broadcast());
            if plain && !odd {
                let smoltcp = read_udp(&frame);
                prop_assert!(smoltcp.is_some_and(|read| is(&Frame::Datagram(found), &read)));
            }
        }
    }

    #[test]
    fn arp_is_as_smoltcp_reads_and_writes_it(from in station(), at in station(), a in any::<[u8; 4]>(), b in any::<[u8; 4]>()) {
        let (sender, target) = (Ipv4Addr::from(a), Ipv4Addr::from(b));
        let mut bytes = Vec::new();
        frame::write_arp(ArpOperation::REPLY, (sender, Mac(from)), (target, Some(Mac(at))), &mut bytes);
        let repr = ArpRepr::EthernetIpv4 {
            operation: SmolOperation::Reply,
            source_hardware_addr: EthernetAddress(from),
            source_protocol_addr: sender,
            target_hardware_addr: EthernetAddress(at),
            target_protocol_addr: target,
        };
        let ethernet = EthernetFrame::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!((ethernet.ethertype(), ethernet.dst_addr().0), (EthernetProtocol::Arp, at));
        prop_assert_eq!(ArpRepr::parse(&ArpPacket::new_checked(ethernet.payload()).unwrap()).unwrap(), repr);
        let mut theirs = bytes.clone();
        theirs[14..].fill(0);
        repr.emit(&mut ArpPacket::new_unchecked(&mut theirs[14..]));
        prop_assert_eq!(&theirs, &bytes);
        let unusable = sender.is_multicast() || sender.is_broadcast() || sender.is_unspecified();
        let says = Frame::Resolution(Resolution::Advertisement { address: sender.into(), mac: Mac(from), overrides: true });
        prop_assert_eq!(parsed(&bytes), if unusable { Err(Dropped::Invalid) } else { Ok(says) });
    }

    #[test]
    fn neighbour_discovery_is_as_smoltcp_reads_it(from in station(), at in station(), a in any::<u64>(), b in any::<u64>()) {
        let ours = Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(a));
        let theirs = Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(b));
        let mut bytes = Vec::new();
        frame::write_solicitation((ours, Mac(from)), theirs, None, &mut bytes);
        let asked = Resolution::Solicitation { target: theirs.into(), sender: Some((ours.into(), Mac(from))) };
        prop_assert_eq!(parsed(&bytes), Ok(Frame::Resolution(asked)));
        let lladdr = Some(EthernetAddress(from).into());
        prop_assert_eq!(ndisc(&bytes), NdiscRepr::NeighborSolicit { target_addr: theirs, lladdr });
        frame::write_advertisement((ours, Mac(from)), Some((theirs, Mac(at))), &mut bytes);
        let said = Resolution::Advertisement { address: ours.into(), mac: Mac(from), overrides: true };
        prop_assert_eq!(parsed(&bytes), Ok(Frame::Resolution(said)));
        let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
        prop_assert_eq!(ndisc(&bytes), NdiscRepr::NeighborAdvert { flags, target_addr: ours, lladdr });
        bytes[21] -= 1;
        prop_assert_eq!(parsed(&bytes), Err(Dropped::Invalid), "forwarded: its hop limit is not 255");
    }
}

/// Parses neighbour discovery with smoltcp, checksum and hop limit included.
fn ndisc(frame: &[u8]) -> NdiscRepr<'_> {
    let ethernet = EthernetFrame::new_unchecked(frame);
    let ip = Ipv6Packet::new_checked(ethernet.payload()).unwrap();
    let repr = Ipv6Repr::parse(&ip).unwrap();
    assert_eq!(repr.hop_limit, 255);
    let packet = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    let caps = ChecksumCapabilities::default();
    match Icmpv6Repr::parse(&repr.src_addr, &repr.dst_addr, &packet, &caps).unwrap() {
        Icmpv6Repr::Ndisc(ndisc) => ndisc,
        other => panic!("{other:?}"),
    }
}

fn interface(last: u8) -> Interface {
    Interface::new(config(last)).unwrap()
}

fn config(last: u8) -> InterfaceConfig {
    InterfaceConfig {
        mac: Mac([2, 0, 0, 0, 0, last]),
        mtu_bytes: 1500,
        addresses: vec![
            format!("10.0.0.{last}/24").parse().unwrap(),
            format!("fd00::{last}/64").parse().unwrap(),
        ],
        gateways: vec!["10.0.0.254".parse().unwrap()],
        neighbours: Vec::new(),
        offload: Offload::default(),
        lenient: false,
    }
}

/// Moves all ready frames to the other side; returns the payloads that arrived there.
fn carry(from: &mut Interface, to: &mut Interface, now: Instant) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    while let Some(frame) = from.ready() {
        if let Ok(Frame::Datagram(datagram)) = to.receive(&frame, Verified::default(), now) {
            arrived.push(datagram.payload.to_vec());
        }
    }
    arrived
}

fn send(from: &mut Interface, to: SocketAddr, payload: &[u8], now: Instant) -> Option<Vec<u8>> {
    match from.path(None, 1000, to, 2, now) {
        NextHop::Open(headers) => {
            let mut frame = vec![0; 2048];
            let len = headers.write(payload, &mut frame)?;
            frame.truncate(len);
            Some(frame)
        }
        NextHop::Waits(hop, headers) => {
            from.hold(hop, &headers, payload);
            None
        }
        NextHop::None => panic!("no route to {to}"),
    }
}

#[test]
fn two_interfaces_find_each_other_in_both_families() {
    for to in ["10.0.0.2:7", "[fd00::2]:7"] {
        let to: SocketAddr = to.parse().unwrap();
        let (mut a, mut b, now) = (interface(1), interface(2), Instant::now());
        // Announced before anyone listened.
        while a.ready().or_else(|| b.ready()).is_some() {}
        assert_eq!(send(&mut a, to, b"one", now), None, "not before it is known where");
        assert_eq!(send(&mut a, to, b"two", now), None);
        a.poll(now);
        assert!(carry(&mut a, &mut b, now).is_empty(), "a question only");
        assert!(carry(&mut b, &mut a, now).is_empty(), "an answer only");
        assert_eq!(carry(&mut a, &mut b, now), [b"one", b"two"]);
        let frame = send(&mut a, to, b"three", now).unwrap();
        let Ok(Frame::Datagram(found)) = b.receive(&frame, Verified::default(), now) else { panic!() };
        assert_eq!((found.payload, found.ecn), (&b"three"[..], 2));
        // Who was asked knows who asked.
        assert!(send(&mut b, found.source, b"back", now).is_some());
        assert_eq!((a.drops(), b.drops()), (Default::default(), Default::default()));
    }
}

#[test]
fn a_traffic_class_is_in_the_frames_of_both_families() {
    let class = ccplane_contract::traffic_class(46, 2);
    for (from, to) in [("10.0.0.1:7", "10.0.0.2:7"), ("[fd00::1]:7", "[fd00::2]:7")] {
        let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
        let stations = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
        let headers = Headers::new(stations, from, to, class, Offload::default()).unwrap();
        let mut frame = vec![0; 200];
        let len = headers.write(b"x", &mut frame).unwrap();
        let frame = &frame[..len];
        let found = match from {
            SocketAddr::V4(_) => frame[15],
            SocketAddr::V6(_) => frame[14] << 4 | frame[15] >> 4,
        };
        assert_eq!(found, class);
        // The checksums hold, and the marks are where they were.
        assert_eq!(read_udp(frame).unwrap().ecn, 2);
    }
}

#[test]
fn announcements_correct_what_is_known_and_create_nothing() {
    let (mut a, mut b, now) = (interface(1), interface(2), Instant::now());
    carry(&mut b, &mut a, now);
    assert_eq!(send(&mut a, "10.0.0.2:7".parse().unwrap(), b"x", now), None, "never asked for");
    a.poll(now);
    carry(&mut a, &mut b, now);
    carry(&mut b, &mut a, now);
    let moved = InterfaceConfig { mac: Mac([2, 0, 0, 0, 0, 99]), ..config(2) };
    let mut moved = Interface::new(moved).unwrap();
    carry(&mut moved, &mut a, now);
    let frame = send(&mut a, "10.0.0.2:7".parse().unwrap(), b"x", now).unwrap();
    assert_eq!(frame::station(&frame), Some(Mac([2, 0, 0, 0, 0, 99])));
}

#[test]
fn the_gateway_takes_what_is_not_on_the_link() {
    let (mut a, now) = (interface(1), Instant::now());
    while a.ready().is_some() {}
    assert_eq!(send(&mut a, "192.0.2.1:7".parse().unwrap(), b"far", now), None);
    a.poll(now);
    let asked = a.ready().unwrap();
    let target = IpAddr::from([10, 0, 0, 254]);
    let expected = Resolution::Solicitation {
        target,
        sender: Some((IpAddr::from([10, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 1]))),
    };
    assert_eq!(parsed(&asked), Ok(Frame::Resolution(expected)));
    let mut nowhere = |to: &str| matches!(a.path(None, 1, to.parse().unwrap(), 0, now), NextHop::None);
    // No gateway of that family; groups; ourselves; nobody.
    for to in ["[2001:db8::1]:7", "224.0.0.1:7", "255.255.255.255:7", "10.0.0.1:7", "0.0.0.0:7"] {
        assert!(nowhere(to), "{to}");
    }
    assert_eq!(a.drops().no_route, 5);
}

#[test]
fn permanent_neighbours_are_not_asked_for() {
    let at = Mac([2, 0, 0, 0, 0, 42]);
    let far = IpAddr::from([192, 0, 2, 1]);
    let mut a = Interface::new(InterfaceConfig { neighbours: vec![(far, at)], ..config(1) }).unwrap();
    let frame = send(&mut a, SocketAddr::new(far, 7), b"x", Instant::now()).unwrap();
    assert_eq!(frame::station(&frame), Some(at));
}

#[test]
fn a_datagram_longer_than_the_link_carries_is_dropped() {
    let (mut a, now) = (interface(1), Instant::now());
    a.receive(&advertised(2), Verified::default(), now).unwrap();
    let NextHop::Waits(_, v4) = a.path(None, 1, "10.0.0.2:7".parse().unwrap(), 0, now) else { panic!() };
    let NextHop::Waits(_, v6) = a.path(None, 1, "[fd00::2]:7".parse().unwrap(), 0, now) else { panic!() };
    assert_eq!(a.max_payload_bytes(), 1452);
    assert!(a.fits(&v4, &[0; 1472]) && a.fits(&v6, &[0; 1452]));
    assert!(!a.fits(&v4, &[0; 1473]) && !a.fits(&v6, &[0; 1453]));
    assert_eq!(a.drops().too_long, 2);
}

fn advertised(last: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    let address = format!("fd00::{last}").parse().unwrap();
    frame::write_advertisement((address, Mac([2, 0, 0, 0, 0, last])), None, &mut frame);
    frame
}

#[test]
fn frames_for_others_are_counted_and_not_answered() {
    let (mut a, now) = (interface(1), Instant::now());
    while a.ready().is_some() {}
    let ours: SocketAddr = "10.0.0.1:9".parse().unwrap();
    let theirs: SocketAddr = "10.0.0.2:9".parse().unwrap();
    let stations = |to| [Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, to])];
    let mut from = |to, destination, now| {
        let mut frame = vec![0; 64];
        let headers = Headers::new(stations(to), theirs, destination, 0, Offload::default()).unwrap();
        let len = headers.write(b"x", &mut frame).unwrap();
        a.receive(&frame[..len], Verified::default(), now).err()
    };
    assert_eq!(from(1, ours, now), None);
    assert_eq!(from(3, ours, now), Some(Dropped::Elsewhere), "another station's");
    assert_eq!(from(1, "10.0.0.3:9".parse().unwrap(), now), Some(Dropped::Elsewhere), "another host's");
    let mut question = Vec::new();
    let sender = (Ipv4Addr::new(10, 0, 0, 2), Mac([2, 0, 0, 0, 0, 2]));
    frame::write_arp(ArpOperation::REQUEST, sender, (Ipv4Addr::new(10, 0, 0, 3), None), &mut question);
    assert!(a.receive(&question, Verified::default(), now).is_ok());
    assert_eq!(a.ready(), None, "asked for another");
    assert_eq!(a.receive(&[0; 9], Verified::default(), now), Err(Dropped::Malformed));
    assert_eq!((a.drops().elsewhere, a.drops().malformed), (2, 1));
}

#[test]
fn a_neighbour_off_the_link_or_with_our_own_address_is_not_believed() {
    let (mut a, now) = (interface(1), Instant::now());
    while a.ready().is_some() {}
    for who in [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 0, 2, 7)] {
        let mut question = Vec::new();
        let sender = (who, Mac([2, 0, 0, 0, 0, 66]));
        frame::write_arp(ArpOperation::REQUEST, sender, (Ipv4Addr::new(10, 0, 0, 1), None), &mut question);
        let _ = a.receive(&question, Verified::default(), now);
    }
    assert!(
        send(&mut a, "192.0.2.7:7".parse().unwrap(), b"x", now).is_none(),
        "goes by the gateway, which is unknown"
    );
}

#[test]
fn a_probe_for_our_address_is_answered() {
    let (mut a, now) = (interface(1), Instant::now());
    while a.ready().is_some() {}
    let mut probe = Vec::new();
    let nobody = (Ipv4Addr::UNSPECIFIED, Mac([2, 0, 0, 0, 0, 9]));
    frame::write_arp(ArpOperation::REQUEST, nobody, (Ipv4Addr::new(10, 0, 0, 1), None), &mut probe);
    a.receive(&probe, Verified::default(), now).unwrap();
    let answer = a.ready().unwrap();
    assert_eq!(frame::station(&answer), Some(Mac::BROADCAST));
    assert!(
        matches!(parsed(&answer), Ok(Frame::Resolution(Resolution::Advertisement { address, .. })) if address == IpAddr::from([10, 0, 0, 1]))
    );
}

#[test]
fn contradictory_configurations_are_refused() {
    let refused = |change: &dyn Fn(&mut InterfaceConfig)| {
        let mut config = config(1);
        change(&mut config);
        Interface::new(config).unwrap_err()
    };
    assert_eq!(refused(&|c| c.addresses.clear()), ConfigError::NoAddress);
    assert!(matches!(
        refused(&|c| c.addresses.push("224.0.0.1/32".parse().unwrap())),
        ConfigError::Address { .. }
    ));
    assert!(matches!(
        refused(&|c| c.gateways = vec!["10.1.0.1".parse().unwrap()]),
        ConfigError::Gateway { .. }
    ));
    let group = (IpAddr::from([10, 0, 0, 9]), Mac::BROADCAST);
    assert!(matches!(refused(&|c| c.neighbours = vec![group]), ConfigError::Neighbour { .. }));
    assert_eq!(refused(&|c| c.mtu_bytes = 576), ConfigError::Mtu { mtu_bytes: 576 });
}

proptest! {
    /// Over a link that loses frames, of resolution too, each datagram arrives in order and once, or is counted lost.
    #[test]
    fn datagrams_wait_for_resolution_and_keep_their_order(losses in proptest::collection::vec(any::<bool>(), 40)) {
        let (mut a, mut b, mut now) = (interface(1), interface(2), Instant::now());
        let to: SocketAddr = "[fd00::2]:7".parse().unwrap();
        let (mut arrived, mut sent) = (Vec::new(), 0_u8);
        for lost in losses {
            if let Some(frame) = send(&mut a, to, &[sent], now) {
                let got = b.receive(&frame, Verified::default(), now);
                let Ok(Frame::Datagram(datagram)) = got else { panic!("{got:?}") };
                arrived.push(datagram.payload[0]);
            }
            sent += 1;
            a.poll(now);
            b.poll(now);
            if lost {
                // Only questions and answers: what waited is ours to deliver.
                while b.ready().is_some() {}
            }
            arrived.extend(carry(&mut a, &mut b, now).into_iter().map(|payload| payload[0]));
            arrived.extend(carry(&mut b, &mut a, now).into_iter().map(|payload| payload[0]));
            arrived.extend(carry(&mut a, &mut b, now).into_iter().map(|payload| payload[0]));
            now += Duration::from_millis(300);
        }
        prop_assert!(arrived.is_sorted());
        prop_assert!(arrived.len() + a.drops().unresolved as usize <= usize::from(sent));
        for _ in 0..10 {
            now += Duration::from_secs(1);
            a.poll(now);
            arrived.extend(carry(&mut a, &mut b, now).into_iter().map(|payload| payload[0]));
            carry(&mut b, &mut a, now);
        }
        arrived.extend(carry(&mut a, &mut b, now).into_iter().map(|payload| payload[0]));
        prop_assert_eq!(arrived.len() + a.drops().unresolved as usize, usize::from(sent));
    }
}

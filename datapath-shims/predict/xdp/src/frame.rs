//! Ethernet, IPv4, IPv6 and UDP in XDP: which packets are the server's, and the headers of its replies.
//!
//! One VLAN tag may be there. Packets with IP options, extension headers or fragments are left to the stack. A request's UDP
//! checksum is the device's to verify: between virtual devices it is not even there. A reply has one.

use std::net::IpAddr;

use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, Label, R, Size};

/// The verdict that drops a frame.
pub const XDP_DROP: i64 = 1;
/// The verdict that hands a frame to the kernel's stack.
pub const XDP_PASS: i64 = 2;
/// The verdict that sends a frame out of the device that it came from.
pub const XDP_TX: i64 = 3;

/// Most addresses that a server answers at.
pub const MAX_ADDRESSES: usize = 8;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;

const ETHERNET: i16 = 14;
const VLAN: i16 = 4;
const IPV4: i16 = 20;
const IPV6: i16 = 40;
const UDP: i16 = 8;
const PROTOCOL_UDP: i32 = 17;
/// The time to live, or hop limit, of replies.
const TTL: i32 = 64;
/// The flags and offset bits of a fragment.
const FRAGMENT: u16 = 0x3fff;
const DONT_FRAGMENT: u16 = 0x4000;

/// Register of the packet's first byte, of its end, and of the program's context.
const START: R = R::R2;
const END: R = R::R3;
/// Offset on the stack of the context.
pub const CTX: i16 = -8;

/// The packets that a program takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The UDP port.
    pub port: u16,
    /// The addresses; any if there is none.
    pub addresses: Vec<IpAddr>,
}

/// The IP version of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn header(self) -> i16 {
        match self {
            Family::V4 => IPV4,
            Family::V6 => IPV6,
        }
    }
}

/// Each kind of packet: the offset of its IP header, and its family.
const KINDS: [(i16, Family); 4] = [
    (ETHERNET, Family::V4),
    (ETHERNET, Family::V6),
    (ETHERNET + VLAN, Family::V4),
    (ETHERNET + VLAN, Family::V6),
];

/// The largest offset of a UDP payload in a packet, plus 1, is at most this power of two.
pub const PAYLOAD_OFFSETS: i32 = 128;
const _: () = assert!(ETHERNET + VLAN + IPV6 + UDP < PAYLOAD_OFFSETS as i16);

fn payload_at((header, family): (i16, Family)) -> i16 {
    header + family.header() + UDP
}

/// A 16-bit number in network order, as it reads in memory.
fn network(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Emits START and END from the context on the stack; R1 is lost.
pub fn bounds(asm: &mut Asm) {
    asm.load(Size::B8, R::R1, R::R10, CTX);
    asm.load(Size::B4, START, R::R1, DATA);
    asm.load(Size::B4, END, R::R1, DATA_END);
}

/// Emits a jump to `short` unless `bytes` from `at` on are within the packet; R4 is lost.
pub fn within(asm: &mut Asm, at: R, bytes: i16, short: Label) {
    asm.mov(R::R4, at);
    asm.alu_imm(Alu::Add, R::R4, bytes.into());
    asm.jump_if(R::R4, Cond::Gt, END, short);
}

/// Emits the program's entry: R9 becomes the payload's offset in the packet, R8 its length; jumps to `pass` if the packet is not for
/// `target`. R1-R5 are lost.
pub fn parse(asm: &mut Asm, target: &Target, pass: Label) {
    const VALUE: R = R::R5;
    let found = asm.label();
    asm.store(Size::B8, R::R10, CTX, R::R1);
    bounds(asm);
    within(asm, START, ETHERNET, pass);
    let (tagged, untagged) = (asm.label(), asm.label());
    asm.load(Size::B2, VALUE, START, ETHERNET - 2);
    for ethertype in [0x8100, 0x88a8] {
        asm.jump_if_imm(VALUE, Cond::Eq, network(ethertype), tagged);
    }
    asm.jump(untagged);
    asm.bind(tagged);
    within(asm, START, ETHERNET + VLAN, pass);
    asm.load(Size::B2, VALUE, START, ETHERNET + VLAN - 2);
    families(asm, target, ETHERNET + VLAN, found, pass);
    asm.bind(untagged);
    families(asm, target, ETHERNET, found, pass);
    asm.bind(found);
}

/// Emits the parser of what lies behind the ethertype in R5.
fn families(asm: &mut Asm, target: &Target, header: i16, found: Label, pass: Label) {
    let v6 = asm.label();
    asm.jump_if_imm(R::R5, Cond::Eq, network(0x86dd), v6);
    asm.jump_if_imm(R::R5, Cond::Ne, network(0x0800), pass);
    internet(asm, target, (header, Family::V4), pass);
    asm.jump(found);
    asm.bind(v6);
    internet(asm, target, (header, Family::V6), pass);
    asm.jump(found);
}

/// Emits the checks of the IP and UDP headers.
fn internet(asm: &mut Asm, target: &Target, kind: (i16, Family), pass: Label) {
    const VALUE: R = R::R5;
    let (header, family) = kind;
    let udp = header + family.header();
    within(asm, START, udp + UDP, pass);
    asm.load(Size::B1, VALUE, START, header);
    match family {
        Family::V4 => {
            // Version 4, no options.
            asm.jump_if_imm(VALUE, Cond::Ne, 0x45, pass);
            asm.load(Size::B1, VALUE, START, header + 9);
            asm.jump_if_imm(VALUE, Cond::Ne, PROTOCOL_UDP, pass);
            asm.load(Size::B2, VALUE, START, header + 6);
            asm.jump_if_imm(VALUE, Cond::Set, network(FRAGMENT), pass);
            asm.load(Size::B2, R::R8, START, header + 2);
            asm.be16(R::R8);
            asm.alu_imm(Alu::Sub, R::R8, IPV4.into());
        }
        Family::V6 => {
            asm.alu_imm(Alu::Rsh, VALUE, 4);
            asm.jump_if_imm(VALUE, Cond::Ne, 6, pass);
            asm.load(Size::B1, VALUE, START, header + 6);
            asm.jump_if_imm(VALUE, Cond::Ne, PROTOCOL_UDP, pass);
            asm.load(Size::B2, R::R8, START, header + 4);
            asm.be16(R::R8);
        }
    }
    asm.load(Size::B2, VALUE, START, udp + 2);
    asm.jump_if_imm(VALUE, Cond::Ne, network(target.port), pass);
    addressed(asm, target, kind, pass);
    // R8 is the length that IP tells; UDP's own may be less, and must be within the packet.
    asm.load(Size::B2, VALUE, START, udp + 4);
    asm.be16(VALUE);
    asm.jump_if(VALUE, Cond::Sgt, R::R8, pass);
    asm.mov(R::R8, VALUE);
    asm.alu_imm(Alu::Sub, R::R8, UDP.into());
    asm.jump_if_imm(R::R8, Cond::Slt, 0, pass);
    asm.mov(R::R4, END);
    asm.alu(Alu::Sub, R::R4, START);
    asm.alu_imm(Alu::Sub, R::R4, payload_at(kind).into());
    asm.jump_if(R::R8, Cond::Sgt, R::R4, pass);
    asm.mov_imm(R::R9, payload_at(kind).into());
}

/// Emits a jump to `pass` unless the packet's destination is one of the target's addresses.
fn addressed(asm: &mut Asm, target: &Target, (header, family): (i16, Family), pass: Label) {
    if target.addresses.is_empty() {
        return;
    }
    let ours = asm.label();
    for address in &target.addresses {
        match (family, address) {
            (Family::V4, IpAddr::V4(address)) => {
                asm.load(Size::B4, R::R1, START, header + 16);
                asm.mov_imm(R::R4, u32::from_ne_bytes(address.octets()).into());
                asm.jump_if(R::R1, Cond::Eq, R::R4, ours);
            }
            (Family::V6, IpAddr::V6(address)) => {
                let other = asm.label();
                let octets = address.octets();
                for (half, octets) in octets.chunks_exact(8).enumerate() {
                    asm.load(Size::B8, R::R1, START, header + 24 + 8 * half as i16);
                    let octets = octets.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
                    asm.mov_imm(R::R4, u64::from_le(octets) as i64);
                    asm.jump_if(R::R1, Cond::Ne, R::R4, other);
                }
                asm.jump(ours);
                asm.bind(other);
            }
            _ => {}
        }
    }
    asm.jump(pass);
    asm.bind(ours);
}

/// Emits the reply's headers and its end, and returns `XDP_TX`: R9 is the payload's offset, its `bytes` bytes are written. Jumps to
/// `drop` if the packet has become too short, which it cannot.
pub fn reply(asm: &mut Asm, bytes: i16, drop: Label) {
    let sent = asm.label();
    for kind in KINDS {
        let other = asm.label();
        asm.jump_if_imm(R::R9, Cond::Ne, payload_at(kind).into(), other);
        bounds(asm);
        within(asm, START, payload_at(kind) + bytes, drop);
        headers(asm, kind, bytes);
        asm.jump(sent);
        asm.bind(other);
    }
    asm.jump(drop);
    asm.bind(sent);
    // R2 = what is beyond the reply, negated. A reply that keeps its tail is whole, too.
    asm.alu_imm(Alu::Add, R::R9, bytes.into());
    asm.alu(Alu::Sub, END, START);
    asm.alu(Alu::Sub, R::R9, END);
    asm.mov(R::R2, R::R9);
    asm.load(Size::B8, R::R1, R::R10, CTX);
    asm.call(Helper::XdpAdjustTail);
    asm.exit_with(XDP_TX);
}

/// Emits the headers of a reply, source and destination swapped. R1, R4, R5 and R8 are lost.
fn headers(asm: &mut Asm, kind: (i16, Family), bytes: i16) {
    let (header, family) = kind;
    let udp = header + family.header();
    swap(asm, Size::B4, (0, 6));
    swap(asm, Size::B2, (4, 10));
    swap(asm, Size::B2, (udp, udp + 2));
    let length = network((bytes + UDP) as u16);
    asm.store_imm(Size::B2, START, udp + 4, length);
    asm.store_imm(Size::B2, START, udp + 6, 0);
    match family {
        Family::V4 => {
            swap(asm, Size::B4, (header + 12, header + 16));
            asm.store_imm(Size::B2, START, header + 2, network((IPV4 + UDP + bytes) as u16));
            asm.store_imm(Size::B2, START, header + 6, network(DONT_FRAGMENT));
            asm.store_imm(Size::B1, START, header + 1, 0);
            asm.store_imm(Size::B1, START, header + 8, TTL);
            asm.store_imm(Size::B2, START, header + 10, 0);
            asm.mov_imm(SUM, 0);
            sum(asm, header..udp);
            fold(asm);
            asm.store(Size::B2, START, header + 10, SUM);
            asm.mov_imm(SUM, i64::from(length) + i64::from(network(PROTOCOL_UDP as u16)));
            sum(asm, header + 12..udp);
        }
        Family::V6 => {
            for word in [0, 8] {
                swap(asm, Size::B8, (header + 8 + word, header + 24 + word));
            }
            // Version 6, no traffic class, no flow label.
            asm.store_imm(Size::B4, START, header, i32::from_ne_bytes([0x60, 0, 0, 0]));
            asm.store_imm(Size::B2, START, header + 4, length);
            asm.store_imm(Size::B1, START, header + 7, TTL);
            asm.mov_imm(SUM, i64::from(length) + i64::from(network(PROTOCOL_UDP as u16)));
            sum(asm, header + 8..udp);
        }
    }
    sum(asm, udp..udp + UDP + bytes);
    fold(asm);
    // 0 would say that there is no checksum.
    let some = asm.label();
    asm.jump_if_imm(SUM, Cond::Ne, 0, some);
    asm.mov_imm(SUM, 0xffff);
    asm.bind(some);
    asm.store(Size::B2, START, udp + 6, SUM);
}

/// Register of a checksum.
const SUM: R = R::R8;

/// Emits the swap of two fields of the packet; R4 and R5 are lost.
fn swap(asm: &mut Asm, size: Size, (a, b): (i16, i16)) {
    asm.load(size, R::R4, START, a);
    asm.load(size, R::R5, START, b);
    asm.store(size, START, a, R::R5);
    asm.store(size, START, b, R::R4);
}

/// Emits the addition of the packet's 32-bit words in a range, a multiple of 4, to SUM; R4 is lost.
fn sum(asm: &mut Asm, range: std::ops::Range<i16>) {
    for at in range.step_by(4) {
        asm.load(Size::B4, R::R4, START, at);
        asm.alu(Alu::Add, SUM, R::R4);
    }
}

/// Emits the Internet checksum (RFC 1071) of the words in SUM; R4 is lost.
fn fold(asm: &mut Asm) {
    for (bits, mask) in [(32, None), (16, Some(0xffff)), (16, Some(0xffff)), (16, Some(0xffff))] {
        asm.mov(R::R4, SUM);
        asm.alu_imm(Alu::Rsh, R::R4, bits);
        match mask {
            None => asm.zext32(SUM),
            Some(mask) => asm.alu_imm(Alu::And, SUM, mask),
        }
        asm.alu(Alu::Add, SUM, R::R4);
    }
    asm.alu_imm(Alu::Xor, SUM, 0xffff);
}

/// Emits a server that sends each datagram back as it came, but for one byte of its payload, and cut to `bytes` bytes: what any server
/// in XDP takes at least.
pub fn echo(asm: &mut Asm, target: &Target, bytes: i16, (at, byte): (i16, u8)) {
    let (pass, drop) = (asm.label(), asm.label());
    parse(asm, target, pass);
    asm.jump_if_imm(R::R8, Cond::Lt, bytes.into(), drop);
    bounds(asm);
    asm.alu(Alu::Add, START, R::R9);
    within(asm, START, bytes, drop);
    asm.store_imm(Size::B1, START, at, byte.into());
    reply(asm, bytes, drop);
    asm.bind(pass);
    asm.exit_with(XDP_PASS);
    asm.bind(drop);
    asm.exit_with(XDP_DROP);
}

/// Emits a program that passes everything: without one at the other end, a veth device does not take what XDP sends.
pub fn pass(asm: &mut Asm) {
    asm.exit_with(XDP_PASS);
}

//! Code that reads and writes a packet: its payload's length, its marks, its header.

use super::layout::flow;
use crate::frame::REC;
use crate::kernel::STACK_S1;
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, Label, R, Size};

/// The context of a classifier, through the whole program.
pub const CTX: R = R::R6;
/// The register of the flow's socket.
pub const TP: R = R::R8;

/// Offsets in a classifier's context (`struct __sk_buff`, include/uapi/linux/bpf.h).
pub mod skb {
    pub(crate) const MARK: i16 = 8;
    pub(crate) const PROTOCOL: i16 = 16;
    pub(crate) const PRIORITY: i16 = 32;
    pub(crate) const IFINDEX: i16 = 40;
    pub(crate) const TC_INDEX: i16 = 44;
    /// The control block, five words of which a classifier may use.
    pub(crate) const CB: i16 = 48;
    pub(crate) const HASH: i16 = 68;
    pub(crate) const DATA: i16 = 76;
    pub(crate) const DATA_END: i16 = 80;
    pub(crate) const GSO_SEGS: i16 = 164;
    /// When TCP sends it, nanoseconds of CLOCK_MONOTONIC; 0 for other transports.
    pub(crate) const TSTAMP: i16 = 152;
    pub(crate) const SK: i16 = 168;
}

/// The verdict `TC_ACT_UNSPEC`, also `TCX_NEXT`: what others have attached decides.
const NEXT: i64 = -1;
/// The start `BPF_HDR_START_NET` of a relative load.
const FROM_NETWORK_HEADER: i64 = 1;
/// `ETH_P_IP` and `ETH_P_IPV6` in network order.
const ETH_P_IP: i32 = 0x0800_u16.to_be() as i32;
const ETH_P_IPV6: i32 = 0x86dd_u16.to_be() as i32;
const IPV6_HEADER_BYTES: i32 = 40;
/// Bytes that are loaded of an IP and of a TCP header.
const IP_BYTES: i32 = 20;
const TCP_BYTES: i32 = 16;
/// Bytes of an IPv4 header up to the end of its checksum.
const TO_CHECKSUM: i32 = 12;
/// The value of [`skb::TC_INDEX`] on a packet that was sent on from another device.
pub const REDIRECTED: i32 = 0x6363;
/// Bits of [`skb::CB`]'s second word that hold the length of a link header.
const LINK_MASK: i32 = 15;

/// Stack slot of the packet's header.
const STACK_HEADER: i16 = STACK_S1 - 24;
/// The host's further stack slots begin here.
pub const STACK_NEXT: i16 = STACK_HEADER - 8;

/// The parts of packets that the datapath writes; fixed while it is attached.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// The bits of the mark that it writes.
    pub mark_mask: u32,
    pub dscp: bool,
    pub flow_label: bool,
    /// Whether some path has a device of its own.
    pub devices: bool,
}

/// The place where the network header begins.
#[derive(Clone, Copy, Debug)]
pub enum HeaderOffset {
    /// After so many bytes.
    Bytes(u32),
    /// The dispatcher has left the length in the control block.
    InControlBlock,
}

/// Offset of the control block's word that holds the length of the link header.
pub const CB_LINK: i16 = skb::CB + 4;

impl HeaderOffset {
    fn load(self, asm: &mut Asm, to: R) {
        match self {
            HeaderOffset::Bytes(bytes) => asm.mov_imm(to, bytes.into()),
            HeaderOffset::InControlBlock => {
                asm.load(Size::B4, to, CTX, CB_LINK);
                asm.alu_imm(Alu::And, to, LINK_MASK);
            }
        }
    }
}

/// Emits the end of a classifier that leaves the packet to others.
pub fn exit_next(asm: &mut Asm) {
    asm.mov_imm(R::R0, NEXT);
    asm.exit();
}

/// Emits the load of `bytes` from the offset in R2 of the network header to the stack; R0 is negative where they are not there.
fn load_relative(asm: &mut Asm, bytes: i32) {
    asm.mov(R::R1, CTX);
    asm.mov(R::R3, R::R10);
    asm.alu_imm(Alu::Add, R::R3, i32::from(STACK_HEADER));
    asm.mov_imm(R::R4, bytes.into());
    asm.mov_imm(R::R5, FROM_NETWORK_HEADER);
    asm.call(Helper::SkbLoadBytesRelative);
}

/// Emits R1 = the flags of the packet's TCP header, whose sequence number goes into the record; jumps to `none` where it has
/// no such header. R0-R5 are lost.
pub fn read_tcp_header(asm: &mut Asm, none: Label) {
    let (v6, tcp) = (asm.label(), asm.label());
    asm.mov_imm(R::R2, 0);
    load_relative(asm, IP_BYTES);
    asm.jump_if_imm(R::R0, Cond::Slt, 0, none);
    asm.load(Size::B1, R::R2, R::R10, STACK_HEADER);
    asm.mov(R::R1, R::R2);
    asm.alu_imm(Alu::Rsh, R::R1, 4);
    asm.jump_if_imm(R::R1, Cond::Ne, 4, v6);
    asm.alu_imm(Alu::And, R::R2, 15);
    asm.alu_imm(Alu::Lsh, R::R2, 2);
    asm.jump(tcp);
    asm.bind(v6);
    asm.mov_imm(R::R2, IPV6_HEADER_BYTES.into());
    asm.bind(tcp);
    load_relative(asm, TCP_BYTES);
    asm.jump_if_imm(R::R0, Cond::Slt, 0, none);
    asm.load(Size::B4, R::R1, R::R10, STACK_HEADER + 4);
    asm.be32(R::R1);
    asm.store(Size::B4, REC, flow::SEQUENCE as i16, R::R1);
    asm.load(Size::B1, R::R1, R::R10, STACK_HEADER + 13);
}

/// Emits what the record says onto the packet, and the end of the classifier.
pub fn stamp(asm: &mut Asm, output: &Output, link: HeaderOffset) {
    if output.dscp || output.flow_label {
        write_header(asm, output, link);
    }
    asm.load(Size::B4, R::R1, REC, flow::SKB_PRIORITY as i16);
    asm.store(Size::B4, CTX, skb::PRIORITY, R::R1);
    if output.mark_mask != 0 {
        asm.load(Size::B4, R::R1, CTX, skb::MARK);
        asm.mov_imm(R::R2, i64::from(!output.mark_mask));
        asm.alu(Alu::And, R::R1, R::R2);
        asm.load(Size::B4, R::R2, REC, flow::MARK as i16);
        asm.alu(Alu::Or, R::R1, R::R2);
        asm.store(Size::B4, CTX, skb::MARK, R::R1);
    }
    if output.devices {
        let (stays, bare) = (asm.label(), asm.label());
        asm.load(Size::B4, R::R1, REC, flow::IFINDEX as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, stays);
        asm.load(Size::B4, R::R2, CTX, skb::IFINDEX);
        asm.jump_if(R::R1, Cond::Eq, R::R2, stays);
        asm.mov_imm(R::R2, REDIRECTED.into());
        asm.store(Size::B4, CTX, skb::TC_INDEX, R::R2);
        link.load(asm, R::R3);
        asm.mov_imm(R::R2, 0);
        // Where packets have no link header, there is no neighbour to write into it.
        asm.jump_if_imm(R::R3, Cond::Eq, 0, bare);
        asm.mov_imm(R::R3, 0);
        asm.mov_imm(R::R4, 0);
        asm.call(Helper::RedirectNeigh);
        asm.exit();
        asm.bind(bare);
        asm.call(Helper::Redirect);
        asm.exit();
        asm.bind(stays);
    }
    exit_next(asm);
}

/// Emits code point and flow label into the packet's header; R0-R5 are lost.
fn write_header(asm: &mut Asm, output: &Output, link: HeaderOffset) {
    /// Registers of the header, of its first word before and after.
    const HEADER: R = R::R2;
    const BEFORE: R = R::R4;
    const AFTER: R = R::R5;
    let (v6, done) = (asm.label(), asm.label());
    asm.load(Size::B4, R::R0, CTX, skb::PROTOCOL);
    link.load(asm, R::R1);
    asm.load(Size::B4, HEADER, CTX, skb::DATA);
    asm.load(Size::B4, R::R3, CTX, skb::DATA_END);
    asm.alu(Alu::Add, HEADER, R::R1);
    if output.flow_label || output.dscp {
        asm.jump_if_imm(R::R0, Cond::Eq, ETH_P_IPV6, v6);
    }
    if output.dscp {
        asm.jump_if_imm(R::R0, Cond::Ne, ETH_P_IP, done);
        asm.mov(R::R4, HEADER);
        asm.alu_imm(Alu::Add, R::R4, TO_CHECKSUM);
        asm.jump_if(R::R4, Cond::Gt, R::R3, done);
        write_dscp_v4(asm, link, done);
    }
    asm.jump(done);

    asm.bind(v6);
    asm.mov(R::R4, HEADER);
    asm.alu_imm(Alu::Add, R::R4, 4);
    asm.jump_if(R::R4, Cond::Gt, R::R3, done);
    asm.load(Size::B4, BEFORE, HEADER, 0);
    asm.be32(BEFORE);
    asm.mov(AFTER, BEFORE);
    if output.dscp {
        asm.mov_imm(R::R0, 0xf03f_ffff);
        asm.alu(Alu::And, AFTER, R::R0);
        asm.load(Size::B4, R::R0, REC, flow::DSCP as i16);
        asm.alu_imm(Alu::Lsh, R::R0, 22);
        asm.alu(Alu::Or, AFTER, R::R0);
    }
    if output.flow_label {
        let own = asm.label();
        asm.load(Size::B4, R::R0, REC, flow::LABEL as i16);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, own);
        asm.mov_imm(R::R1, 0xfff0_0000);
        asm.alu(Alu::And, AFTER, R::R1);
        asm.alu(Alu::Or, AFTER, R::R0);
        asm.bind(own);
    }
    asm.jump_if(AFTER, Cond::Eq, BEFORE, done);
    asm.be32(AFTER);
    asm.store(Size::B4, R::R10, STACK_HEADER, AFTER);
    store_header(asm, link, 4);
    asm.bind(done);
}

/// Emits the code point of an IPv4 header at R2, with its checksum; jumps to `same` if it is there already.
fn write_dscp_v4(asm: &mut Asm, link: HeaderOffset, same: Label) {
    // The first two bytes as one number: the lower one is version and length, the other one the class.
    asm.load(Size::B2, R::R4, R::R2, 0);
    asm.load(Size::B4, R::R5, REC, flow::DSCP as i16);
    asm.alu_imm(Alu::Lsh, R::R5, 10);
    asm.mov(R::R0, R::R4);
    asm.alu_imm(Alu::And, R::R0, 0x03ff);
    asm.alu(Alu::Or, R::R5, R::R0);
    asm.jump_if(R::R5, Cond::Eq, R::R4, same);
    asm.load(Size::B8, R::R0, R::R2, 0);
    asm.store(Size::B8, R::R10, STACK_HEADER, R::R0);
    asm.load(Size::B4, R::R0, R::R2, 8);
    asm.store(Size::B4, R::R10, STACK_HEADER + 8, R::R0);
    asm.load(Size::B2, R::R0, R::R2, 10);
    asm.store(Size::B2, R::R10, STACK_HEADER, R::R5);
    // RFC 1624: the complement of the sum of the complements and the new word.
    asm.alu_imm(Alu::Xor, R::R0, 0xffff);
    asm.alu_imm(Alu::Xor, R::R4, 0xffff);
    asm.alu(Alu::Add, R::R0, R::R4);
    asm.alu(Alu::Add, R::R0, R::R5);
    for _ in 0..2 {
        asm.mov(R::R4, R::R0);
        asm.alu_imm(Alu::Rsh, R::R4, 16);
        asm.alu_imm(Alu::And, R::R0, 0xffff);
        asm.alu(Alu::Add, R::R0, R::R4);
    }
    asm.alu_imm(Alu::Xor, R::R0, 0xffff);
    asm.store(Size::B2, R::R10, STACK_HEADER + 10, R::R0);
    store_header(asm, link, TO_CHECKSUM);
}

/// Emits the copy of `bytes` from the stack to the network header.
fn store_header(asm: &mut Asm, link: HeaderOffset, bytes: i32) {
    asm.mov(R::R1, CTX);
    link.load(asm, R::R2);
    asm.mov(R::R3, R::R10);
    asm.alu_imm(Alu::Add, R::R3, i32::from(STACK_HEADER));
    asm.mov_imm(R::R4, bytes.into());
    asm.mov_imm(R::R5, 0);
    asm.call(Helper::SkbStoreBytes);
}

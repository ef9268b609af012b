//! Code that finds a flow's record, and writes what its packets need into it.

use super::header::{CTX, Output, TP, skb};
use super::layout::{cache, flow, marking, page, route, storage};
use super::maps::PacketMaps;
use crate::frame::REC;
use crate::kernel::STACK_KEY;
use crate::layout::{ctl, mode, rec};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, Label, R, Size};
use ccplane_program::ir::{MAX_PATHS, MAX_PRIORITY};

/// The flag `BPF_SK_STORAGE_GET_F_CREATE`: storage is made where it is missing.
const CREATE: i64 = 1;

/// Emits R0 = what is kept with the socket `sk`, or a jump to `none`; R1-R5 are lost.
pub fn find_storage(asm: &mut Asm, maps: &PacketMaps, sk: R, none: Label) {
    get_storage(asm, maps, sk, 0, none);
}

/// Finds the storage as [`find_storage`] does, and makes it where it is missing.
pub fn make_storage(asm: &mut Asm, maps: &PacketMaps, sk: R, none: Label) {
    get_storage(asm, maps, sk, CREATE, none);
}

fn get_storage(asm: &mut Asm, maps: &PacketMaps, sk: R, flags: i64, none: Label) {
    asm.map(R::R1, maps.storage);
    asm.mov(R::R2, sk);
    asm.mov_imm(R::R3, 0);
    asm.mov_imm(R::R4, flags);
    asm.call(Helper::SkStorageGet);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, none);
}

/// Emits [`REC`] = the record that the storage in R0 names, whose index is left in [`STACK_KEY`]; or a jump to `none`.
pub fn find_record(asm: &mut Asm, maps: &PacketMaps, none: Label) {
    look_up_numbered(asm, maps, (R::R0, storage::INDEX as i16), none);
}

/// Emits the search for the record whose index plus 1 stands at an address, or a jump to `none` where 0 does. Its address goes to
/// [`REC`], and its index to the stack at [`STACK_KEY`].
fn look_up_numbered(asm: &mut Asm, maps: &PacketMaps, (base, offset): (R, i16), none: Label) {
    asm.load(Size::B4, R::R1, base, offset);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
    asm.alu_imm(Alu::Sub, R::R1, 1);
    asm.store(Size::B4, R::R10, STACK_KEY, R::R1);
    look_up_record(asm, maps, none);
}

/// Emits R2 = the place of the packet's hash in the cache; R1 is lost.
fn cached_at(asm: &mut Asm, maps: &PacketMaps) {
    asm.load(Size::B4, R::R1, CTX, skb::HASH);
    asm.alu_imm(Alu::And, R::R1, cache::ENTRIES as i32 - 1);
    asm.alu_imm(Alu::Lsh, R::R1, 2);
    asm.map_value(R::R2, maps.cache, 0);
    asm.alu(Alu::Add, R::R2, R::R1);
}

/// Emits the search for a packet's record in the cache, or a jump to `unknown` where it is not of the socket in [`TP`]. Its address
/// goes to [`REC`], and its index to the stack at [`STACK_KEY`].
pub fn find_cached(asm: &mut Asm, maps: &PacketMaps, unknown: Label) {
    cached_at(asm, maps);
    look_up_numbered(asm, maps, (R::R2, 0), unknown);
    asm.load(Size::B8, R::R1, REC, flow::SOCKET as i16);
    asm.jump_if(R::R1, Cond::Ne, TP, unknown);
}

/// Emits the entry of the record with the index in [`STACK_KEY`] into the cache; R1-R2 are lost.
pub fn put_into_cache(asm: &mut Asm, maps: &PacketMaps) {
    cached_at(asm, maps);
    asm.load(Size::B4, R::R1, R::R10, STACK_KEY);
    asm.alu_imm(Alu::Add, R::R1, 1);
    asm.store(Size::B4, R::R2, 0, R::R1);
}

/// Emits [`REC`] = the record whose index is in [`STACK_KEY`], or a jump to `none`.
pub fn look_up_record(asm: &mut Asm, maps: &PacketMaps, none: Label) {
    look_up(asm, maps.common.flows, none);
    asm.mov(REC, R::R0);
}

/// Emits R0 = the value of the key in [`STACK_KEY`], or a jump to `none`.
fn look_up(asm: &mut Asm, map: i32, none: Label) {
    asm.map(R::R1, map);
    key_address(asm);
    asm.call(Helper::MapLookupElem);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, none);
}

fn key_address(asm: &mut Asm) {
    asm.mov(R::R2, R::R10);
    asm.alu_imm(Alu::Add, R::R2, i32::from(STACK_KEY));
}

/// Emits [`REC`] = a free record with no flow in it, whose index is left in [`STACK_KEY`]; jumps to `full` where there is none,
/// which is counted.
pub fn take_record(asm: &mut Asm, maps: &PacketMaps, full: Label) {
    let (taken, none) = (asm.label(), asm.label());
    asm.store_imm(Size::B8, R::R10, STACK_KEY, 0);
    asm.map(R::R1, maps.common.free);
    key_address(asm);
    asm.call(Helper::MapPopElem);
    asm.jump_if_imm(R::R0, Cond::Ne, 0, none);
    look_up_record(asm, maps, full);
    asm.jump(taken);
    asm.bind(none);
    asm.map_value(R::R1, maps.common.ctl, 0);
    asm.mov_imm(R::R2, 1);
    asm.fetch_add(R::R1, ctl::TABLE_FULL as i16, R::R2);
    asm.jump(full);
    asm.bind(taken);
    // All fields but those that a program sets when it starts.
    let words = (0..rec::STAGE_REGS).chain(rec::NOISE..rec::HISTORY).chain(flow::LAST_NS..flow::PRIMS);
    for off in words.step_by(8) {
        asm.store_imm(Size::B8, REC, off as i16, 0);
    }
    asm.store_imm(Size::B4, REC, rec::MODE as i16, mode::NO_PROGRAM as i32);
    asm.store_imm(Size::B8, REC, flow::DECIDE_AT as i16, -1);
}

/// Emits the return of the record whose index is in [`STACK_KEY`].
pub fn give_record(asm: &mut Asm, maps: &PacketMaps) {
    asm.map(R::R1, maps.common.free);
    key_address(asm);
    asm.mov_imm(R::R3, 0);
    asm.call(Helper::MapPushElem);
}

/// Emits what priority and path in force look like on packets into the record; R1-R4 are lost.
pub fn write_output(asm: &mut Asm, maps: &PacketMaps, output: &Output) {
    let entry = |asm: &mut Asm, field: u32, limit: i32, table: u32, bytes: u32| {
        asm.load(Size::B4, R::R1, REC, field as i16);
        asm.alu_imm(Alu::And, R::R1, limit);
        asm.alu_imm(Alu::Lsh, R::R1, bytes.trailing_zeros() as i32);
        asm.map_value(R::R2, maps.common.ctl, table);
        asm.alu(Alu::Add, R::R2, R::R1);
    };
    let copy = |asm: &mut Asm, from: u32, to: u32| {
        asm.load(Size::B4, R::R1, R::R2, from as i16);
        asm.store(Size::B4, REC, to as i16, R::R1);
    };
    entry(asm, flow::PRIORITY, MAX_PRIORITY as i32, page::PRIORITIES, marking::BYTES);
    copy(asm, marking::SKB_PRIORITY, flow::SKB_PRIORITY);
    copy(asm, marking::DSCP, flow::DSCP);
    asm.load(Size::B4, R::R3, R::R2, marking::MARK as i16);
    entry(asm, flow::PATH, MAX_PATHS as i32 - 1, page::PATHS, route::BYTES);
    copy(asm, route::IFINDEX, flow::IFINDEX);
    asm.load(Size::B4, R::R1, R::R2, route::MARK as i16);
    asm.alu(Alu::Or, R::R3, R::R1);
    asm.store(Size::B4, REC, flow::MARK as i16, R::R3);
    if output.flow_label {
        let own = asm.label();
        asm.load(Size::B4, R::R1, R::R2, route::LABEL as i16);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, own);
        asm.load(Size::B4, R::R3, REC, flow::HASH as i16);
        asm.alu(Alu::Add, R::R1, R::R3);
        asm.alu_imm(Alu::And, R::R1, 0xf_ffff);
        asm.alu_imm(Alu::Or, R::R1, 1);
        asm.bind(own);
        asm.store(Size::B4, REC, flow::LABEL as i16, R::R1);
    }
    let (never, done) = (asm.label(), asm.label());
    asm.load(Size::B8, R::R1, REC, rec::DECIDE_AT as i16);
    asm.jump_if_imm(R::R1, Cond::Sle, 0, never);
    asm.jump(done);
    asm.bind(never);
    asm.mov_imm(R::R1, -1);
    asm.bind(done);
    asm.store(Size::B8, REC, flow::DECIDE_AT as i16, R::R1);
}

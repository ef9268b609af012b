//! Assembles `(policy slot)` and `(history ...)` as BPF instructions, equivalent to [`ccplane_infer::Slot::decide`].
//!
//! A slot's decision is a subprogram of its own, which programs call with the flow's record. A decision reads the
//! control word once, and changes the record only after it has found the image's uid as it was when it began. The agent
//! clears the uid before it writes to a buffer, so a decision that was overtaken there is dropped: the flow keeps its
//! program, rate and window, and its row says that no snapshot decided. Like the kernel's own sequence counters without
//! barriers, that needs a processor that keeps loads in order (x86 does); on others the time that passes before a
//! buffer is used again ([`crate::slots`]) does the work.

use ccplane_infer::image::{self, PENALTY_UP, PIN, map};
use ccplane_infer::{BUFFERS, Level, Shape};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Label, R, Size};
use ccplane_nn_codegen::bpf::{Places, infer};
use ccplane_program::ir::{MAX_POLICY_INPUTS, MAX_POLICY_SLOTS, Program};

use crate::layout::{policy, rec};

/// The slots that programs are compiled against: the map that holds them, and their shapes.
#[derive(Clone, Copy)]
pub struct Slots {
    /// The map's descriptor.
    pub map: i32,
    /// The shapes of the slots; `None` where a slot is not defined.
    pub shapes: [Option<Shape>; MAX_POLICY_SLOTS],
}

impl Slots {
    /// The state in which no slot is defined.
    pub const NONE: Slots = Slots { map: 0, shapes: [None; MAX_POLICY_SLOTS] };
}

/// Result of [`decide`]'s subprogram in R0: the native algorithm controls the flow from now on.
pub const NATIVE: i32 = 0;
/// Result of [`decide`]'s subprogram in all other cases.
const DECIDED: i32 = 1;

/// Registers of the image and of the flow's record in the subprogram.
const IMAGE: R = R::R6;
const REC: R = R::R7;
/// Register of the buffer's number, and later of the defects of the decision.
const BUFFER: R = R::R8;
const BAD: R = R::R8;
const SATURATED: i32 = 1;
const CLIPPED: i32 = 2;
const COLLAPSED: i32 = 4;

/// Offsets in the subprogram's stack.
const STACK_UID: i16 = -8;
const STACK_BUFFER: i16 = -16;

/// The factor of [`ccplane_infer::spread`].
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

fn field(asm: &mut Asm, to: R, offset: u32) {
    asm.load(Size::B4, to, REC, offset as i16);
}

fn set_field(asm: &mut Asm, offset: u32, from: R) {
    asm.store(Size::B4, REC, offset as i16, from);
}

fn of_image(asm: &mut Asm, size: Size, to: R, offset: usize) {
    asm.load(size, to, IMAGE, offset as i16);
}

/// Emits `value = bound` unless `value cond bound`.
fn clamp(asm: &mut Asm, value: R, cond: Cond, bound: R) {
    let within = asm.label();
    asm.jump_if(value, cond, bound, within);
    asm.mov(value, bound);
    asm.bind(within);
}

/// Emits IMAGE = the image in buffer `buffer`, which is below [`BUFFERS`]; R1 is lost.
fn point_at(asm: &mut Asm, map: i32, slot: u8, buffer: R) {
    asm.mov(R::R1, buffer);
    asm.alu_imm(Alu::Lsh, R::R1, policy::IMAGE_SHIFT as i32);
    asm.map_value(IMAGE, map, policy::image(slot, 0));
    asm.alu(Alu::Add, IMAGE, R::R1);
}

/// Emits `to` = the buffer at `shift` of the control word in R2; jumps to `none` if there is none.
fn part(asm: &mut Asm, to: R, shift: i32, none: Label) {
    asm.mov(to, R::R2);
    asm.alu_imm(Alu::Rsh, to, shift);
    asm.alu_imm(Alu::And, to, 0xff);
    asm.alu_imm(Alu::Sub, to, 1);
    asm.jump_if_imm(to, Cond::Gt, BUFFERS as i32 - 1, none);
}

/// Emits `to` = the flow's key, spread; `scratch` is lost.
fn spread_key(asm: &mut Asm, to: R, scratch: R) {
    asm.load(Size::B8, to, REC, rec::ID as i16);
    asm.alu_imm(Alu::Add, to, 1);
    asm.mov_imm(scratch, SPREAD as i64);
    asm.alu(Alu::Mul, to, scratch);
}

/// Emits the subprogram that decides in `slot` for the record in R1; R0 becomes [`NATIVE`] or not.
pub fn decide(asm: &mut Asm, slots: &Slots, slot: u8) {
    let Some(shape) = slots.shapes.get(usize::from(slot)).copied().flatten() else {
        asm.mov_imm(R::R0, NATIVE.into());
        return asm.exit();
    };
    let (native, overtaken) = (asm.label(), asm.label());
    asm.mov(REC, R::R1);
    choose(asm, slots.map, slot, native);
    // A buffer that has a part, or that a flow is pinned to, holds an image; if it holds none, the image was taken
    // away.
    of_image(asm, Size::B4, R::R1, image::UID);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, overtaken);
    of_image(asm, Size::B8, R::R2, image::SHAPE);
    asm.mov_imm(R::R3, shape.code() as i64);
    asm.jump_if(R::R2, Cond::Ne, R::R3, native);
    asm.store(Size::B8, R::R10, STACK_UID, R::R1);
    asm.store(Size::B8, R::R10, STACK_BUFFER, BUFFER);
    let places = Places {
        image: IMAGE,
        memory: REC,
        inputs: rec::HISTORY as i16,
        scratch: rec::SCRATCH as i16,
        tables: (slots.map, policy::TABLES),
    };
    infer(asm, &shape, &places);
    saturate(asm);
    noise(asm);
    apply(asm);
    let not_clipped = asm.label();
    asm.load(Size::B4, R::R1, REC, places.clipped());
    of_image(asm, Size::B4, R::R2, image::CLIP_LIMIT);
    asm.jump_if(R::R1, Cond::Le, R::R2, not_clipped);
    asm.alu_imm(Alu::Or, BAD, CLIPPED);
    of_image(asm, Size::B4, R::R1, image::MAP);
    asm.jump_if_imm(R::R1, Cond::Ne, map::NONE as i32, not_clipped);
    asm.mov_imm(R::R0, 0);
    asm.bind(not_clipped);

    of_image(asm, Size::B4, R::R5, image::TRIP_LIMIT);
    asm.load(Size::B8, R::R4, R::R10, STACK_UID);
    of_image(asm, Size::B4, R::R1, image::UID);
    asm.jump_if(R::R1, Cond::Ne, R::R4, overtaken);
    // R0 is the action, R3 the new rate or window, R9 its address, R4 the uid.
    asm.store(Size::B8, R::R9, 0, R::R3);
    asm.store(Size::B8, REC, rec::ACTION as i16, R::R0);
    set_field(asm, rec::SNAPSHOT, R::R4);
    set_field(asm, rec::DEPLOYMENT, R::R4);
    asm.load(Size::B8, R::R1, R::R10, STACK_BUFFER);
    set_field(asm, rec::BUFFER, R::R1);
    count(asm, rec::DECISIONS);
    watch(asm);
    asm.mov_imm(R::R0, DECIDED.into());
    asm.exit();
    // A row that paired these inputs with the action before would be a false sample.
    asm.bind(overtaken);
    forget(asm, REC);
    asm.mov_imm(R::R0, DECIDED.into());
    asm.exit();
    asm.bind(native);
    asm.mov_imm(R::R0, NATIVE.into());
    asm.exit();
}

/// Emits BUFFER = the buffer that the flow decides by, IMAGE = its image; jumps to `native` if there is none.
fn choose(asm: &mut Asm, map: i32, slot: u8, native: Label) {
    /// Register of the buffer that the slot gives the flow.
    const CHOICE: R = R::R3;
    let (active, chosen, unpinned, fallen, found) =
        (asm.label(), asm.label(), asm.label(), asm.label(), asm.label());
    asm.map_value(R::R1, map, policy::slot(slot));
    asm.load(Size::B8, R::R2, R::R1, policy::CONTROL as i16);
    part(asm, CHOICE, 8, active);
    spread_key(asm, R::R5, R::R0);
    asm.alu_imm(Alu::Rsh, R::R5, 48);
    asm.mov(R::R4, R::R2);
    asm.alu_imm(Alu::Rsh, R::R4, 32);
    asm.alu_imm(Alu::And, R::R4, 0xffff);
    asm.jump_if(R::R5, Cond::Lt, R::R4, chosen);
    asm.bind(active);
    part(asm, CHOICE, 0, native);
    asm.bind(chosen);

    asm.mov(BUFFER, CHOICE);
    field(asm, R::R4, rec::DEPLOYMENT);
    asm.jump_if_imm(R::R4, Cond::Eq, 0, unpinned);
    field(asm, R::R5, rec::BUFFER);
    asm.alu_imm(Alu::And, R::R5, BUFFERS as i32 - 1);
    point_at(asm, map, slot, R::R5);
    of_image(asm, Size::B4, R::R0, image::UID);
    asm.jump_if(R::R0, Cond::Ne, R::R4, unpinned);
    of_image(asm, Size::B4, R::R0, image::FLAGS);
    asm.alu_imm(Alu::And, R::R0, PIN as i32);
    asm.jump_if_imm(R::R0, Cond::Eq, 0, unpinned);
    asm.mov(BUFFER, R::R5);
    asm.bind(unpinned);
    field(asm, R::R4, rec::LEVEL);
    asm.jump_if_imm(R::R4, Cond::Ne, Level::Chosen as i32, fallen);
    let ready = asm.label();
    asm.jump(found);

    // The slot's own choice, not the pinned one: a push lets a flow come back up.
    let (still, give_up) = (asm.label(), asm.label());
    asm.bind(fallen);
    asm.mov(BUFFER, CHOICE);
    point_at(asm, map, slot, CHOICE);
    of_image(asm, Size::B4, R::R0, image::UID);
    field(asm, R::R5, rec::LEVEL_UID);
    asm.jump_if(R::R0, Cond::Eq, R::R5, still);
    asm.store_imm(Size::B4, REC, rec::LEVEL as i16, Level::Chosen as i32);
    asm.store_imm(Size::B4, REC, rec::PENALTY as i16, 0);
    asm.jump(ready);
    asm.bind(still);
    asm.jump_if_imm(R::R4, Cond::Ne, Level::LastGood as i32, give_up);
    // A canary's flow goes back to the active snapshot, any other one to the last good.
    let last_good = asm.label();
    for (shift, none) in [(0, last_good), (16, give_up)] {
        part(asm, BUFFER, shift, none);
        point_at(asm, map, slot, BUFFER);
        of_image(asm, Size::B4, R::R0, image::UID);
        asm.jump_if(R::R0, Cond::Ne, R::R5, ready);
        if shift == 0 {
            asm.bind(last_good);
        }
    }
    asm.bind(give_up);
    asm.store_imm(Size::B4, REC, rec::LEVEL as i16, Level::Native as i32);
    asm.jump(native);

    asm.bind(found);
    point_at(asm, map, slot, BUFFER);
    asm.bind(ready);
}

/// Emits the flow's noise, added to the action in R0 and bounded, if the snapshot asks for it. R1-R4 are lost.
fn noise(asm: &mut Asm) {
    /// The mean of four 16-bit numbers, times 4.
    const MEAN: i32 = 131_070;
    const STATE: R = R::R2;
    let (none, seeded) = (asm.label(), asm.label());
    of_image(asm, Size::B8, R::R1, image::NOISE_MULT);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, none);
    asm.load(Size::B8, STATE, REC, rec::NOISE as i16);
    asm.jump_if_imm(STATE, Cond::Ne, 0, seeded);
    spread_key(asm, STATE, R::R3);
    asm.alu_imm(Alu::Or, STATE, 1);
    asm.bind(seeded);
    for (shift, by) in [(Alu::Lsh, 13), (Alu::Rsh, 7), (Alu::Lsh, 17)] {
        asm.mov(R::R3, STATE);
        asm.alu_imm(shift, R::R3, by);
        asm.alu(Alu::Xor, STATE, R::R3);
    }
    asm.store(Size::B8, REC, rec::NOISE as i16, STATE);
    asm.mov(R::R3, STATE);
    asm.alu_imm(Alu::Rsh, R::R3, 48);
    for shift in [0, 16, 32] {
        asm.mov(R::R4, STATE);
        asm.alu_imm(Alu::Rsh, R::R4, shift);
        asm.alu_imm(Alu::And, R::R4, 0xffff);
        asm.alu(Alu::Add, R::R3, R::R4);
    }
    asm.alu_imm(Alu::Sub, R::R3, MEAN);
    asm.alu(Alu::Mul, R::R3, R::R1);
    asm.alu_imm(Alu::Arsh, R::R3, 16);
    asm.alu(Alu::Add, R::R0, R::R3);
    bound(asm, |_| {});
    asm.bind(none);
}

/// Emits the bound on the network's action in R0; BAD says whether that changed it. R1 is lost.
fn saturate(asm: &mut Asm) {
    asm.mov_imm(BAD, 0);
    bound(asm, |asm| asm.alu_imm(Alu::Or, BAD, SATURATED));
}

/// Emits the bound on the action in R0, with `changed` run where that changes it. R1 is lost.
fn bound(asm: &mut Asm, changed: impl Fn(&mut Asm)) {
    let (not_above, not_below) = (asm.label(), asm.label());
    of_image(asm, Size::B4, R::R1, image::ACTION_BOUND_Q16);
    asm.sext32(R::R1);
    for (cond, within) in [(Cond::Sle, not_above), (Cond::Sge, not_below)] {
        asm.jump_if(R::R0, cond, R::R1, within);
        asm.mov(R::R0, R::R1);
        changed(asm);
        asm.bind(within);
        asm.neg(R::R1);
    }
}

/// Emits the action map: R9 = the address of what the action in R0 changes, R3 = its new value. R1, R2, R4, R5 are
/// lost.
fn apply(asm: &mut Asm) {
    /// Registers of the address, the old value, its bounds, and the change, Q20.
    const KNOB: R = R::R9;
    const OLD: R = R::R2;
    const NEW: R = R::R3;
    const MIN: R = R::R4;
    const MAX: R = R::R5;
    const CHANGE: R = R::R1;
    let (rate, cwnd, mapped, down, bounded, positive, done) =
        (asm.label(), asm.label(), asm.label(), asm.label(), asm.label(), asm.label(), asm.label());
    of_image(asm, Size::B4, R::R1, image::MAP);
    asm.mov(KNOB, REC);
    asm.jump_if_imm(R::R1, Cond::Eq, map::RATE as i32, rate);
    asm.jump_if_imm(R::R1, Cond::Eq, map::CWND as i32, cwnd);
    // With no map, R9 points at a word that nobody reads.
    asm.alu_imm(Alu::Add, KNOB, rec::SCRATCH as i32);
    asm.mov_imm(NEW, 0);
    asm.jump(done);
    asm.bind(cwnd);
    asm.alu_imm(Alu::Add, KNOB, rec::CWND as i32);
    asm.jump(mapped);
    asm.bind(rate);
    asm.alu_imm(Alu::Add, KNOB, rec::RATE as i32);
    asm.bind(mapped);
    asm.load(Size::B8, OLD, KNOB, 0);
    of_image(asm, Size::B8, MIN, image::KNOB_MIN);
    of_image(asm, Size::B8, MAX, image::KNOB_MAX);
    clamp(asm, OLD, Cond::Sge, MIN);
    clamp(asm, OLD, Cond::Sle, MAX);
    asm.mov(CHANGE, R::R0);
    asm.jump_if_imm(CHANGE, Cond::Sge, 0, positive);
    asm.neg(CHANGE);
    asm.bind(positive);
    of_image(asm, Size::B8, NEW, image::STEP_Q20);
    asm.alu(Alu::Mul, CHANGE, NEW);
    asm.alu_imm(Alu::Rsh, CHANGE, 16);
    asm.mov(NEW, OLD);
    asm.jump_if_imm(R::R0, Cond::Slt, 0, down);
    asm.alu(Alu::Mul, NEW, CHANGE);
    asm.alu_imm(Alu::Rsh, NEW, 20);
    asm.alu(Alu::Add, NEW, OLD);
    asm.jump(bounded);
    asm.bind(down);
    asm.alu_imm(Alu::Lsh, NEW, 20);
    asm.alu_imm(Alu::Add, CHANGE, 1 << 20);
    asm.alu(Alu::Div, NEW, CHANGE);
    asm.bind(bounded);
    clamp(asm, NEW, Cond::Sge, MIN);
    clamp(asm, NEW, Cond::Sle, MAX);
    asm.jump_if(NEW, Cond::Ne, MIN, done);
    asm.alu_imm(Alu::Or, BAD, COLLAPSED);
    asm.bind(done);
}

/// Emits the increment of a count; R1 is lost.
fn count(asm: &mut Asm, offset: u32) {
    field(asm, R::R1, offset);
    asm.alu_imm(Alu::Add, R::R1, 1);
    set_field(asm, offset, R::R1);
}

/// Emits the monitor. R4 is the deployment, R5 its limit; R1 and R2 are lost.
fn watch(asm: &mut Asm) {
    const PENALTY: R = R::R2;
    let (good, fits, watched, first, done) =
        (asm.label(), asm.label(), asm.label(), asm.label(), asm.label());
    field(asm, PENALTY, rec::PENALTY);
    asm.jump_if_imm(BAD, Cond::Eq, 0, good);
    for (bit, offset) in [(SATURATED, rec::SATURATED), (CLIPPED, rec::CLIPPED), (COLLAPSED, rec::COLLAPSED)] {
        let not = asm.label();
        asm.mov(R::R1, BAD);
        asm.alu_imm(Alu::And, R::R1, bit);
        asm.jump_if_imm(R::R1, Cond::Eq, 0, not);
        count(asm, offset);
        asm.bind(not);
    }
    asm.alu_imm(Alu::Add, PENALTY, PENALTY_UP as i32);
    asm.mov(R::R1, PENALTY);
    asm.alu_imm(Alu::Rsh, R::R1, 32);
    asm.jump_if_imm(R::R1, Cond::Eq, 0, fits);
    asm.mov_imm(PENALTY, u32::MAX.into());
    asm.bind(fits);
    asm.jump(watched);
    asm.bind(good);
    asm.jump_if_imm(PENALTY, Cond::Eq, 0, watched);
    asm.alu_imm(Alu::Sub, PENALTY, 1);
    asm.bind(watched);
    set_field(asm, rec::PENALTY, PENALTY);
    asm.jump_if_imm(R::R5, Cond::Eq, 0, done);
    asm.jump_if(PENALTY, Cond::Lt, R::R5, done);

    asm.store_imm(Size::B4, REC, rec::PENALTY as i16, 0);
    count(asm, rec::TRIPS);
    field(asm, R::R1, rec::LEVEL);
    asm.jump_if_imm(R::R1, Cond::Eq, Level::Chosen as i32, first);
    asm.store_imm(Size::B4, REC, rec::LEVEL as i16, Level::Native as i32);
    asm.jump(done);
    asm.bind(first);
    asm.store_imm(Size::B4, REC, rec::LEVEL as i16, Level::LastGood as i32);
    set_field(asm, rec::LEVEL_UID, R::R4);
    asm.bind(done);
}

/// Emits the append of a history's registers to its cells in `record`, which drops the oldest interval. R1 and R2 are
/// lost.
pub fn append(asm: &mut Asm, program: &Program, history: usize, record: R) {
    let Some(decl) = program.histories().get(history) else { return };
    let cells = program.history_cells(history);
    let cell = |n: usize| (rec::HISTORY as usize + 4 * n) as i16;
    let (interval, kept) = (decl.regs.len(), cells.end - decl.regs.len());
    let mut n = cells.start;
    while n < kept {
        // Two cells move at once, where both places allow it.
        let two = n.is_multiple_of(2) && interval.is_multiple_of(2) && n + 1 < kept;
        let size = if two { Size::B8 } else { Size::B4 };
        asm.load(size, R::R1, record, cell(n + interval));
        asm.store(size, record, cell(n), R::R1);
        n += if two { 2 } else { 1 };
    }
    for (n, reg) in (kept..cells.end).zip(&decl.regs) {
        asm.load(Size::B8, R::R1, record, (rec::REGS + 8 * u32::from(*reg)) as i16);
        for (cond, bound) in [(Cond::Sle, i32::MAX), (Cond::Sge, i32::MIN)] {
            let within = asm.label();
            asm.jump_if_imm(R::R1, cond, bound, within);
            asm.mov_imm(R::R1, bound.into());
            asm.bind(within);
        }
        asm.store(Size::B4, record, cell(n), R::R1);
    }
}

/// Emits the reset of the last action in `record`.
pub fn forget(asm: &mut Asm, record: R) {
    asm.store_imm(Size::B8, record, rec::ACTION as i16, 0);
    asm.store_imm(Size::B4, record, rec::SNAPSHOT as i16, 0);
}

/// Emits the reset of what starts anew with a program in `record`.
pub fn start(asm: &mut Asm, program: &Program, record: R) {
    forget(asm, record);
    let asks = !program.policy_slots().is_empty();
    asm.store_imm(Size::B4, record, rec::ASKS as i16, asks.into());
    let cells = program.policy_inputs().next_multiple_of(2).min(MAX_POLICY_INPUTS);
    for n in (0..cells).step_by(2) {
        asm.store_imm(Size::B8, record, (rec::HISTORY as usize + 4 * n) as i16, 0);
    }
}

//! The choice of a predictor and what feedback changes, as BPF instructions, equivalent to the reference's integer Exp3 and Exp4.
//!
//! A reader takes no lock. Each update writes its thresholds to another place and then raises their version. So a
//! reader that finds the version little changed has read the thresholds of one update. Updates exclude each other by a
//! spin lock: none is lost.

use ccplane_bandit::integer::{EXP2_Q32, FLOOR, GAMMA_Q32, ONE_Q32, RATE_Q64};
use ccplane_nn_codegen::asm::{Alu, Asm, Cond, Helper, Label, R, Size};

use crate::frame::XDP_PASS;
use crate::layout::{VERSIONS, block, services};

/// Attempts of a reader that is overtaken.
const ATTEMPTS: usize = 4;

/// Register of a processor's block.
pub const BLOCK: R = R::R7;

/// Emits the copy of one version's thresholds from the service at `service` to the block. Jumps to `overtaken` if there is none.
///
/// R1-R4 are lost.
pub fn thresholds(asm: &mut Asm, predictors: usize, service: R, overtaken: Label) {
    let done = asm.label();
    for _ in 0..ATTEMPTS {
        asm.load(Size::B8, R::R1, service, services::VERSION);
        version(asm, R::R2, R::R1, service);
        for n in 0..predictors as i16 {
            asm.load(Size::B8, R::R3, R::R2, services::THRESHOLDS + 8 * n);
            asm.store(Size::B8, BLOCK, block::THRESHOLDS + 8 * n, R::R3);
        }
        asm.load(Size::B8, R::R4, service, services::VERSION);
        asm.alu(Alu::Sub, R::R4, R::R1);
        // The one after these is being written where they were.
        asm.jump_if_imm(R::R4, Cond::Lt, VERSIONS as i32 - 1, done);
    }
    asm.jump(overtaken);
    asm.bind(done);
}

/// Emits `to` = the service at `service`, moved by the offset of version `of`.
fn version(asm: &mut Asm, to: R, of: R, service: R) {
    asm.mov(to, of);
    asm.alu_imm(Alu::And, to, VERSIONS as i32 - 1);
    asm.alu_imm(Alu::Lsh, to, services::VERSION_SHIFT);
    asm.alu(Alu::Add, to, service);
}

/// Emits the draw by the random number in R0: R0 becomes the predictor, R1 its probability. R2 and R3 are lost.
pub fn draw(asm: &mut Asm, predictors: usize) {
    let found = asm.label();
    asm.mov(R::R2, R::R0);
    asm.mov_imm(R::R3, 0);
    for n in 0..predictors as i16 {
        asm.mov_imm(R::R0, n.into());
        asm.load(Size::B8, R::R1, BLOCK, block::THRESHOLDS + 8 * n);
        if n + 1 < predictors as i16 {
            asm.jump_if(R::R2, Cond::Lt, R::R1, found);
            asm.mov(R::R3, R::R1);
        }
    }
    asm.bind(found);
    asm.alu(Alu::Sub, R::R1, R::R3);
}

/// Emits the sums over the predictors that gave the class in R0: R1 becomes their probability, R2 a bit for each. R3-R5 are lost.
pub fn agreement(asm: &mut Asm, predictors: usize) {
    asm.mov_imm(R::R1, 0);
    asm.mov_imm(R::R2, 0);
    asm.mov_imm(R::R3, 0);
    for n in 0..predictors as i16 {
        let other = asm.label();
        asm.load(Size::B8, R::R4, BLOCK, block::THRESHOLDS + 8 * n);
        asm.load(Size::B1, R::R5, BLOCK, block::CLASSES + n);
        asm.jump_if(R::R5, Cond::Ne, R::R0, other);
        asm.alu(Alu::Add, R::R1, R::R4);
        asm.alu(Alu::Sub, R::R1, R::R3);
        asm.alu_imm(Alu::Or, R::R2, 1 << n);
        asm.bind(other);
        asm.mov(R::R3, R::R4);
    }
}

/// Offset on the stack of numbers that an update keeps, one a predictor.
const KEPT: i16 = -256;

fn kept(n: usize) -> i16 {
    KEPT + 8 * n as i16
}

/// Emits `to` = what a right class at the probability in `probability` costs each predictor that gave another one.
pub fn step(asm: &mut Asm, predictors: usize, to: R, probability: R) {
    let (arms, likely) = (predictors as u64, asm.label());
    // A probability below that of exploration alone, which no token has, counts as that one.
    asm.jump_if_imm(probability, Cond::Ge, (GAMMA_Q32 / arms) as i32, likely);
    asm.mov_imm(probability, (GAMMA_Q32 / arms) as i64);
    asm.bind(likely);
    asm.mov_imm(to, (RATE_Q64 / arms) as i64);
    asm.alu(Alu::Div, to, probability);
}

/// Emits the update of the service at `service` by a right class under the lock that R8 points at: R1 has a bit for each predictor
/// that gave the class, R2 is what the others lose, R3 the token's epoch.
///
/// R0 becomes 0 if that epoch has passed, and else 1. R1-R6 are lost.
pub fn update(asm: &mut Asm, predictors: usize, map: i32, service: R) {
    /// Registers of the least deficit, of one deficit, and of the sum of the weights.
    const LEAST: R = R::R3;
    const DEFICIT: R = R::R4;
    const SUM: R = R::R6;
    asm.store(Size::B8, R::R10, kept(0), R::R1);
    asm.store(Size::B8, R::R10, kept(1), R::R2);
    asm.mov(SUM, R::R3);
    asm.mov(R::R1, R::R8);
    asm.call(Helper::SpinLock);
    let (current, done) = (asm.label(), asm.label());
    // Under the lock: who has changed what is accepted, and has then held the lock, knows that no update of before is to come.
    asm.map_value(R::R3, map, 0);
    asm.load(Size::B8, R::R3, R::R3, services::ACCEPTED);
    asm.jump_if(R::R3, Cond::Eq, SUM, current);
    asm.mov(R::R1, R::R8);
    asm.call(Helper::SpinUnlock);
    asm.mov_imm(R::R0, 0);
    asm.jump(done);
    asm.bind(current);
    asm.load(Size::B8, R::R1, R::R10, kept(0));
    asm.load(Size::B8, R::R2, R::R10, kept(1));
    asm.mov_imm(LEAST, -1);
    for n in 0..predictors {
        let (agreed, more) = (asm.label(), asm.label());
        asm.load(Size::B8, DEFICIT, service, services::DEFICITS + 8 * n as i16);
        asm.jump_if_imm(R::R1, Cond::Set, 1 << n, agreed);
        asm.alu(Alu::Add, DEFICIT, R::R2);
        asm.bind(agreed);
        asm.store(Size::B8, R::R10, kept(n), DEFICIT);
        asm.jump_if(DEFICIT, Cond::Ge, LEAST, more);
        asm.mov(LEAST, DEFICIT);
        asm.bind(more);
    }
    asm.mov_imm(SUM, 0);
    for n in 0..predictors {
        let above = asm.label();
        asm.load(Size::B8, DEFICIT, R::R10, kept(n));
        asm.alu(Alu::Sub, DEFICIT, LEAST);
        asm.mov_imm(R::R5, FLOOR as i64);
        asm.jump_if(DEFICIT, Cond::Le, R::R5, above);
        asm.mov(DEFICIT, R::R5);
        asm.bind(above);
        asm.store(Size::B8, service, services::DEFICITS + 8 * n as i16, DEFICIT);
        weight(asm, DEFICIT);
        asm.store(Size::B8, R::R10, kept(n), R::R2);
        asm.alu(Alu::Add, SUM, R::R2);
    }
    refresh(asm, predictors, service, SUM);
    asm.mov(R::R1, R::R8);
    asm.call(Helper::SpinUnlock);
    asm.mov_imm(R::R0, 1);
    asm.bind(done);
}

/// Emits a program that takes the lock of each service and gives it back: once it has run, every update that began before has ended.
pub fn barrier(asm: &mut Asm, services: usize, locks: i32) {
    const KEY: i16 = -8;
    let end = asm.label();
    for service in 0..services {
        asm.store_imm(Size::B4, R::R10, KEY, service as i32);
        asm.map(R::R1, locks);
        asm.mov(R::R2, R::R10);
        asm.alu_imm(Alu::Add, R::R2, KEY.into());
        asm.call(Helper::MapLookupElem);
        asm.jump_if_imm(R::R0, Cond::Eq, 0, end);
        asm.mov(R::R6, R::R0);
        asm.mov(R::R1, R::R6);
        asm.call(Helper::SpinLock);
        asm.mov(R::R1, R::R6);
        asm.call(Helper::SpinUnlock);
    }
    asm.bind(end);
    asm.mov_imm(R::R0, XDP_PASS);
    asm.exit();
}

/// Emits R2 = the weight of the deficit in `deficit`, which is lost, as R0 and R1 are.
fn weight(asm: &mut Asm, deficit: R) {
    asm.mov(R::R1, deficit);
    asm.zext32(R::R1);
    let mut powers = EXP2_Q32.into_iter().rev();
    asm.mov_imm(R::R2, powers.next().unwrap_or_default() as i64);
    for power in powers {
        asm.alu(Alu::Mul, R::R2, R::R1);
        asm.alu_imm(Alu::Rsh, R::R2, 32);
        asm.mov_imm(R::R0, power as i64);
        asm.alu(Alu::Sub, R::R0, R::R2);
        asm.mov(R::R2, R::R0);
    }
    asm.alu_imm(Alu::Rsh, deficit, 32);
    asm.alu(Alu::Rsh, R::R2, deficit);
}

/// Emits the thresholds that follow from the kept weights and their sum as the next version. R0-R5 are lost.
fn refresh(asm: &mut Asm, predictors: usize, service: R, sum: R) {
    const CUMULATIVE: R = R::R5;
    asm.load(Size::B8, R::R1, service, services::VERSION);
    asm.alu_imm(Alu::Add, R::R1, 1);
    version(asm, R::R2, R::R1, service);
    asm.mov_imm(R::R3, (ONE_Q32 - GAMMA_Q32) as i64);
    asm.mov_imm(CUMULATIVE, 0);
    for n in 0..predictors {
        if n + 1 < predictors {
            asm.load(Size::B8, R::R4, R::R10, kept(n));
            asm.alu(Alu::Mul, R::R4, R::R3);
            asm.alu(Alu::Div, R::R4, sum);
            asm.alu_imm(Alu::Add, R::R4, (GAMMA_Q32 / predictors as u64) as i32);
            asm.alu(Alu::Add, CUMULATIVE, R::R4);
        } else {
            asm.mov_imm(CUMULATIVE, ONE_Q32 as i64);
        }
        asm.store(Size::B8, R::R2, services::THRESHOLDS + 8 * n as i16, CUMULATIVE);
    }
    // Ordered after the thresholds.
    asm.xchg(Size::B8, service, services::VERSION, R::R1);
}

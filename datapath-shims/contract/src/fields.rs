//! Checks and applies field updates, the same way in every shim.

use crate::command::Field;
use crate::error::DatapathError;
use ccplane_program::ir::{MAX_CWND_BYTES, MAX_RATE_BYTES_PER_S, Program, RegId, RegKind, Type};
use ccplane_program::vm;

/// The control register, a number, that programs keep the segment size in, bytes. The agent sets it when a flow starts.
pub const MSS_REGISTER: &str = "mss";

/// Returns the [`MSS_REGISTER`] of a program that has one.
pub fn mss_register(program: &Program) -> Option<RegId> {
    let register = program.reg(MSS_REGISTER)?;
    let decl = program.regs().get(usize::from(register))?;
    (decl.kind == RegKind::Control && decl.ty == Type::Num).then_some(register)
}

/// Whether `fields` may be set from outside on a flow that runs `program` (`None`: no program).
///
/// # Errors
/// `BadField` with the first that is not a control register, `Cwnd` or `Rate`.
pub fn check_fields(program: Option<&Program>, fields: &[(Field, i64)]) -> Result<(), DatapathError> {
    let settable = |field| match field {
        Field::Cwnd | Field::Rate => true,
        Field::Reg(r) => program
            .and_then(|p| p.regs().get(usize::from(r)))
            .is_some_and(|decl| decl.kind == RegKind::Control),
    };
    match fields.iter().find(|(field, _)| !settable(*field)) {
        Some((field, _)) => Err(DatapathError::BadField(*field)),
        None => Ok(()),
    }
}

/// Sets `fields` in order. The rules are those for a program's own writes. A window that is not positive, or a
/// negative rate, is no decision, and both are clamped to what a program can set; a boolean register becomes 0
/// or 1. Fields that [`check_fields`] would refuse are left alone.
pub fn apply_fields(flow: &mut vm::ProgramState, program: &Program, fields: &[(Field, i64)]) {
    for (field, value) in fields.iter().copied() {
        match field {
            Field::Cwnd if value > 0 => flow.cwnd_bytes = value.min(MAX_CWND_BYTES),
            Field::Rate if value >= 0 => flow.rate_bytes_per_s = value.min(MAX_RATE_BYTES_PER_S),
            Field::Cwnd | Field::Rate => {}
            Field::Reg(r) => {
                let (Some(decl), Some(reg)) =
                    (program.regs().get(usize::from(r)), flow.regs.get_mut(usize::from(r)))
                else {
                    continue;
                };
                if decl.kind == RegKind::Control {
                    *reg = if decl.ty == Type::Bool { i64::from(value != 0) } else { value };
                }
            }
        }
    }
}

//! Fields of updates on the wire.

use ccplane_contract::Field;
use ccplane_program::ir::MAX_REGS;

use crate::bytes::Reader;
use crate::list::Item;
use crate::{DecodeError, EncodeError, Out};

#[inline]
pub(super) fn read_field(r: &mut Reader<'_>) -> Result<Field, DecodeError> {
    match (r.u8("field")?, r.u8("register")?) {
        (0, reg) if usize::from(reg) < MAX_REGS => Ok(Field::Reg(reg)),
        (0, reg) => {
            let (found, limit) = (u64::from(reg), (MAX_REGS - 1) as u64);
            Err(DecodeError::TooLarge { field: "register", found, limit })
        }
        (1, 0) => Ok(Field::Cwnd),
        (2, 0) => Ok(Field::Rate),
        (code, _) => Err(DecodeError::Unknown { field: "field", found: u64::from(code) }),
    }
}

#[inline]
fn field_bytes(field: Field) -> Result<[u8; 2], EncodeError> {
    match field {
        Field::Reg(reg) if usize::from(reg) >= MAX_REGS => {
            let (found, limit) = (u64::from(reg), (MAX_REGS - 1) as u64);
            Err(EncodeError::TooLarge { field: "register", found, limit })
        }
        Field::Reg(reg) => Ok([0, reg]),
        Field::Cwnd => Ok([1, 0]),
        Field::Rate => Ok([2, 0]),
    }
}

#[inline]
pub(super) fn write_field(field: Field, out: &mut impl Out) -> Result<(), EncodeError> {
    out.put(&field_bytes(field)?)
}

impl<'a> Item<'a> for (Field, i64) {
    const WHAT: &'static str = "field";

    #[inline]
    fn read(r: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok((read_field(r)?, r.i64("value")?))
    }

    #[inline]
    fn write(&self, out: &mut impl Out) -> Result<(), EncodeError> {
        let [code, reg] = field_bytes(self.0)?;
        let [v0, v1, v2, v3, v4, v5, v6, v7] = self.1.to_le_bytes();
        out.put(&[code, reg, v0, v1, v2, v3, v4, v5, v6, v7])
    }
}

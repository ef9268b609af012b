//! Reads the kernel's BTF: where the fields of its structures are, and the ids of its types and functions.

use std::collections::HashMap;

/// Reasons why BTF could not give what was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The BTF file cannot be read.
    #[error("{path}: {source}")]
    Read { path: String, source: std::io::Error },
    /// The blob is not BTF or is cut short; with the offset of the first bad byte.
    #[error("malformed BTF at byte {0}")]
    Malformed(usize),
    /// The running kernel has no such type or function.
    #[error("this kernel has no {kind} `{name}`")]
    NoType {
        /// The kind of type: "struct", "function" and so on.
        kind: &'static str,
        name: String,
    },
    /// The structure has no such field.
    #[error("this kernel's struct {owner} has no field `{field}`")]
    NoField {
        owner: String,
        /// The dotted path of the field.
        field: String,
    },
}

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
/// Longest chain of typedefs and modifiers that is followed.
const MAX_CHAIN: usize = 32;

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// A parsed BTF blob.
pub struct Btf {
    data: Vec<u8>,
    strings: usize,
    /// The offset of each type id's record; id 0 is void.
    types: Vec<usize>,
    structs: HashMap<Vec<u8>, u32>,
    funcs: HashMap<Vec<u8>, u32>,
    typedefs: HashMap<Vec<u8>, u32>,
}

/// A field found by path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Offset from the start of the outermost structure, bytes.
    pub offset: u32,
    /// Size in bytes; 1 for a bit field of at most one byte.
    pub bytes: u32,
    /// Lowest bit within the byte at `offset` and width, for a bit field.
    pub bits: Option<(u32, u32)>,
}

struct TypeRec {
    kind: u32,
    vlen: usize,
    bitfields: bool,
    /// The size or the referenced type.
    arg: u32,
    /// The offset of the record's tail.
    tail: usize,
}

impl Btf {
    /// The running kernel's BTF.
    ///
    /// # Errors
    /// `Read` when the kernel was built without it.
    pub fn kernel() -> Result<Btf, BtfError> {
        let path = "/sys/kernel/btf/vmlinux";
        let data = std::fs::read(path).map_err(|source| BtfError::Read { path: path.into(), source })?;
        Btf::parse(data)
    }

    /// Parses a blob of BTF.
    ///
    /// # Errors
    /// `Malformed`, with the first byte that makes no sense.
    pub fn parse(data: Vec<u8>) -> Result<Btf, BtfError> {
        let (structs, funcs, typedefs) = Default::default();
        let mut btf = Btf { data, strings: 0, types: vec![0], structs, funcs, typedefs };
        if btf.data.len() < HEADER_BYTES || btf.data[0..2] != MAGIC.to_ne_bytes() {
            return Err(BtfError::Malformed(0));
        }
        let header = btf.u32(4)? as usize;
        let place = |off: u32, len: u32, at: usize| {
            let start = header.checked_add(off as usize).ok_or(BtfError::Malformed(at))?;
            let end = start.checked_add(len as usize).ok_or(BtfError::Malformed(at))?;
            if end > btf.data.len() { Err(BtfError::Malformed(at)) } else { Ok((start, end)) }
        };
        let (mut at, end) = place(btf.u32(8)?, btf.u32(12)?, 8)?;
        let (strings, _) = place(btf.u32(16)?, btf.u32(20)?, 16)?;
        btf.strings = strings;
        while at < end {
            let rec = btf.record(at)?;
            let tail_bytes = match rec.kind {
                KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
                KIND_ARRAY => 12,
                KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * rec.vlen,
                KIND_ENUM | KIND_FUNC_PROTO => 8 * rec.vlen,
                _ => 0,
            };
            let next = rec.tail + tail_bytes;
            if next > end {
                return Err(BtfError::Malformed(at));
            }
            let id = btf.types.len() as u32;
            let name = btf.name(btf.u32(at)?)?.to_vec();
            match rec.kind {
                KIND_STRUCT if !name.is_empty() => drop(btf.structs.entry(name).or_insert(id)),
                KIND_FUNC => drop(btf.funcs.entry(name).or_insert(id)),
                KIND_TYPEDEF => drop(btf.typedefs.entry(name).or_insert(id)),
                _ => {}
            }
            btf.types.push(at);
            at = next;
        }
        Ok(btf)
    }

    fn u32(&self, at: usize) -> Result<u32, BtfError> {
        let b = self.data.get(at..at + 4).ok_or(BtfError::Malformed(at))?;
        Ok(u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn name(&self, offset: u32) -> Result<&[u8], BtfError> {
        let at = self.strings.saturating_add(offset as usize);
        let rest = self.data.get(at..).ok_or(BtfError::Malformed(at))?;
        let end = rest.iter().position(|b| *b == 0).ok_or(BtfError::Malformed(at))?;
        Ok(&rest[..end])
    }

    fn record(&self, at: usize) -> Result<TypeRec, BtfError> {
        let info = self.u32(at + 4)?;
        Ok(TypeRec {
            kind: info >> 24 & 0x1f,
            vlen: (info & 0xffff) as usize,
            bitfields: info >> 31 != 0,
            arg: self.u32(at + 8)?,
            tail: at + 12,
        })
    }

    fn ty(&self, id: u32) -> Result<TypeRec, BtfError> {
        let at = self.types.get(id as usize).filter(|_| id != 0).ok_or(BtfError::Malformed(id as usize))?;
        self.record(*at)
    }

    /// Follows typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Result<(u32, TypeRec), BtfError> {
        for _ in 0..MAX_CHAIN {
            let rec = self.ty(id)?;
            match rec.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => id = rec.arg,
                _ => return Ok((id, rec)),
            }
        }
        Err(BtfError::Malformed(id as usize))
    }

    fn size(&self, id: u32, depth: usize) -> Result<u32, BtfError> {
        let (_, rec) = self.resolve(id)?;
        match rec.kind {
            KIND_PTR => Ok(8),
            KIND_ARRAY if depth < MAX_CHAIN => {
                Ok(self.size(self.u32(rec.tail)?, depth + 1)?.saturating_mul(self.u32(rec.tail + 8)?))
            }
            _ => Ok(rec.arg),
        }
    }

    /// The id of `struct name`.
    ///
    /// # Errors
    /// `NoType`.
    pub fn struct_id(&self, name: &str) -> Result<u32, BtfError> {
        let id = self.structs.get(name.as_bytes()).copied();
        id.ok_or_else(|| BtfError::NoType { kind: "struct", name: name.into() })
    }

    /// The size of `struct name`, bytes.
    ///
    /// # Errors
    /// `NoType`.
    pub fn struct_bytes(&self, name: &str) -> Result<u32, BtfError> {
        Ok(self.ty(self.struct_id(name)?)?.arg)
    }

    /// The id of function `name`.
    ///
    /// # Errors
    /// `NoType`.
    pub fn func_id(&self, name: &str) -> Result<u32, BtfError> {
        let id = self.funcs.get(name.as_bytes()).copied();
        id.ok_or_else(|| BtfError::NoType { kind: "function", name: name.into() })
    }

    /// The id of the tracepoint `name`, which a program attaches to.
    ///
    /// # Errors
    /// `NoType`.
    pub fn tracepoint_id(&self, name: &str) -> Result<u32, BtfError> {
        let id = self.typedefs.get(format!("btf_trace_{name}").as_bytes()).copied();
        id.ok_or_else(|| BtfError::NoType { kind: "tracepoint", name: name.into() })
    }

    /// The position of a member in `struct owner`, and how many arguments the function that it points to takes.
    ///
    /// # Errors
    /// `NoField` when there is no such member or it is no function pointer.
    pub fn func_member(&self, owner: &str, field: &str) -> Result<(u32, usize), BtfError> {
        let missing = || BtfError::NoField { owner: owner.into(), field: field.into() };
        let rec = self.ty(self.struct_id(owner)?)?;
        for m in 0..rec.vlen {
            let at = rec.tail + 12 * m;
            if self.name(self.u32(at)?)? == field.as_bytes() {
                let (_, ptr) = self.resolve(self.u32(at + 4)?)?;
                let (_, proto) = self.resolve(ptr.arg)?;
                return if proto.kind == KIND_FUNC_PROTO {
                    Ok((m as u32, proto.vlen))
                } else {
                    Err(missing())
                };
            }
        }
        Err(missing())
    }

    /// The field at a dotted path in `struct owner`; anonymous members are looked through.
    ///
    /// # Errors
    /// `NoType` or `NoField`.
    pub fn field(&self, owner: &str, path: &str) -> Result<Field, BtfError> {
        let missing = || BtfError::NoField { owner: owner.into(), field: path.into() };
        let mut id = self.struct_id(owner)?;
        let mut found = Field { offset: 0, bytes: 0, bits: None };
        for part in path.split('.') {
            let (bit, ty, width) = self.member(id, part.as_bytes(), 0)?.ok_or_else(missing)?;
            found.offset += bit / 8;
            if width != 0 {
                found.bits = Some((bit % 8, width));
                found.bytes = 1;
            } else {
                found.bytes = self.size(ty, 0)?;
            }
            id = self.resolve(ty)?.0;
        }
        Ok(found)
    }

    /// Bit offset, type and bit-field width (0 for none) of a member, anonymous members included.
    fn member(&self, id: u32, name: &[u8], depth: usize) -> Result<Option<(u32, u32, u32)>, BtfError> {
        let rec = self.ty(id)?;
        if !matches!(rec.kind, KIND_STRUCT | KIND_UNION) || depth > MAX_CHAIN {
            return Ok(None);
        }
        for m in 0..rec.vlen {
            let at = rec.tail + 12 * m;
            let (ty, raw) = (self.u32(at + 4)?, self.u32(at + 8)?);
            let (bit, width) = if rec.bitfields { (raw & 0xff_ffff, raw >> 24) } else { (raw, 0) };
            let member_name = self.name(self.u32(at)?)?;
            if member_name == name {
                return Ok(Some((bit, ty, width)));
            }
            if member_name.is_empty() {
                let (inner, _) = self.resolve(ty)?;
                if let Some((b, t, w)) = self.member(inner, name, depth + 1)? {
                    return Ok(Some((bit + b, t, w)));
                }
            }
        }
        Ok(None)
    }
}

/// A BTF blob that holds one integer type: a struct_ops map must name some BTF of its own.
pub fn minimal_blob() -> Vec<u8> {
    blob_of_integers(&[4])
}

/// The types of keys and values in [`storage_blob`].
pub const STORAGE_TYPES: [u32; 2] = [1, 2];

/// A BTF blob for a map of socket storage, whose values are eight bytes.
pub fn storage_blob() -> Vec<u8> {
    blob_of_integers(&[4, 8])
}

/// A BTF blob that holds an integer type of each of these sizes in bytes, numbered from 1.
fn blob_of_integers(sizes: &[u32]) -> Vec<u8> {
    let types: Vec<u32> = sizes.iter().flat_map(|bytes| [1, KIND_INT << 24, *bytes, 8 * bytes]).collect();
    let type_bytes = 4 * types.len() as u32;
    let strings = b"\0int\0";
    let mut blob = Vec::new();
    blob.extend(MAGIC.to_ne_bytes());
    blob.extend([1, 0]);
    for word in [HEADER_BYTES as u32, 0, type_bytes, type_bytes, strings.len() as u32] {
        blob.extend(word.to_ne_bytes());
    }
    for word in types {
        blob.extend(word.to_ne_bytes());
    }
    blob.extend(strings);
    blob
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn minimal_blob_parses() {
        let btf = Btf::parse(minimal_blob()).expect("well formed");
        assert!(matches!(btf.struct_id("x"), Err(BtfError::NoType { .. })));
    }

    #[test]
    fn running_kernel_has_what_tcp_needs() {
        let Ok(btf) = Btf::kernel() else {
            ccplane_testing::skipped("running_kernel_has_what_tcp_needs", "no /sys/kernel/btf/vmlinux");
            return;
        };
        let cwnd = btf.field("tcp_sock", "snd_cwnd").expect("snd_cwnd");
        assert_eq!((cwnd.bytes, cwnd.bits), (4, None));
        let state = btf.field("tcp_sock", "inet_conn.icsk_ca_state").expect("icsk_ca_state");
        assert!(state.bits.is_some_and(|(_, width)| width <= 8));
        assert_eq!(btf.field("tcp_sock", "inet_conn.icsk_ca_priv").expect("priv").bytes, 104);
    }

    proptest! {
        #[test]
        fn parser_never_panics(mut blob in proptest::collection::vec(any::<u8>(), 0..400), keep_magic: bool) {
            if keep_magic && blob.len() > 2 {
                blob[..2].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            if let Ok(btf) = Btf::parse(blob) {
                for name in btf.structs.keys().cloned().collect::<Vec<_>>() {
                    let _ = btf.field(&String::from_utf8_lossy(&name), "a.b");
                }
            }
        }

        #[test]
        fn mutated_blob_never_panics(at in 0usize..61, value: u8) {
            let mut blob = minimal_blob();
            if at < blob.len() {
                blob[at] = value;
            }
            let _ = Btf::parse(blob);
        }
    }
}

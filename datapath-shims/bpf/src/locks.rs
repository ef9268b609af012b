//! The type information (BTF) that tells the kernel that a map's values are spin locks.

// Type ids in the blob, in the order of its types: `int`, `struct bpf_spin_lock`, `struct ccplane_lock`.
/// The type of a key.
pub const KEY_TYPE: u32 = 1;
const LOCK_TYPE: u32 = 2;
/// The type of a value, which holds a lock and nothing else.
pub const VALUE_TYPE: u32 = 3;
/// Size of a value, bytes: the lock alone.
pub const VALUE_BYTES: u32 = 4;

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: u32 = 24;
const KIND_INT: u32 = 1 << 24;
/// A structure with one field.
const KIND_STRUCT: u32 = 4 << 24 | 1;
const INT_BITS: u32 = 32;

/// Names in the blob, each after a zero byte.
const STRINGS: &[u8] = b"\0int\0bpf_spin_lock\0val\0ccplane_lock\0lock\0";
const INT: u32 = 1;
const BPF_SPIN_LOCK: u32 = 5;
const VAL: u32 = 19;
const CCPLANE_LOCK: u32 = 23;
const LOCK: u32 = 36;

/// Makes the blob.
pub fn btf() -> Vec<u8> {
    let types: [u32; 16] = [
        // Name, kind, size, and then: for `int` its bits, for a structure its field's name, type and offset.
        INT,
        KIND_INT,
        4,
        INT_BITS, //
        BPF_SPIN_LOCK,
        KIND_STRUCT,
        4,
        VAL,
        KEY_TYPE,
        0, //
        CCPLANE_LOCK,
        KIND_STRUCT,
        VALUE_BYTES,
        LOCK,
        LOCK_TYPE,
        0,
    ];
    let types_bytes = size_of_val(&types) as u32;
    let mut blob = Vec::new();
    blob.extend(MAGIC.to_ne_bytes());
    blob.extend([1, 0]);
    for word in [HEADER_BYTES, 0, types_bytes, types_bytes, STRINGS.len() as u32] {
        blob.extend(word.to_ne_bytes());
    }
    types.into_iter().for_each(|word| blob.extend(word.to_ne_bytes()));
    blob.extend(STRINGS);
    blob
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_where_the_types_say() {
        for (at, name) in [
            (INT, &b"int"[..]),
            (BPF_SPIN_LOCK, b"bpf_spin_lock"),
            (VAL, b"val"),
            (CCPLANE_LOCK, b"ccplane_lock"),
            (LOCK, b"lock"),
        ] {
            let found = STRINGS[at as usize..].split(|byte| *byte == 0).next();
            assert_eq!(found, Some(name));
        }
    }
}

//! A small BPF assembler: instructions, labels, out-of-line blocks, subprograms.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

/// One BPF instruction, as the kernel takes it (`struct bpf_insn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Insn {
    /// Operation.
    pub code: u8,
    /// Destination (low four bits) and source register.
    pub regs: u8,
    /// Offset of a memory access or jump.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

/// A BPF register.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum R {
    R0 = 0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Access size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
}

impl Size {
    fn bits(self) -> u8 {
        match self {
            Size::B4 => 0x00,
            Size::B2 => 0x08,
            Size::B1 => 0x10,
            Size::B8 => 0x18,
        }
    }
    /// The size with this many bytes.
    pub fn of(bytes: u32) -> Option<Size> {
        Some(match bytes {
            1 => Size::B1,
            2 => Size::B2,
            4 => Size::B4,
            8 => Size::B8,
            _ => return None,
        })
    }
}

/// 64-bit arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Alu {
    /// `dst + src`.
    Add = 0x00,
    /// `dst - src`.
    Sub = 0x10,
    /// `dst * src`.
    Mul = 0x20,
    /// Unsigned; x / 0 = 0.
    Div = 0x30,
    /// `dst | src`.
    Or = 0x40,
    /// `dst & src`.
    And = 0x50,
    /// `dst << src`.
    Lsh = 0x60,
    /// `dst >> src`, zeros come in.
    Rsh = 0x70,
    /// `dst ^ src`.
    Xor = 0xa0,
    /// `src`.
    Mov = 0xb0,
    /// `dst >> src`, the sign comes in.
    Arsh = 0xc0,
}

/// A 64-bit comparison that a jump takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cond {
    /// Equal.
    Eq = 0x10,
    /// Unsigned.
    Gt = 0x20,
    /// Unsigned.
    Ge = 0x30,
    /// Some bit in common.
    Set = 0x40,
    /// Not equal.
    Ne = 0x50,
    /// Signed.
    Sgt = 0x60,
    /// Signed.
    Sge = 0x70,
    /// Unsigned.
    Lt = 0xa0,
    /// Unsigned.
    Le = 0xb0,
    /// Signed.
    Slt = 0xc0,
    /// Signed.
    Sle = 0xd0,
}

impl Cond {
    /// The condition that holds exactly when this one does not.
    ///
    /// [`Cond::Set`] has no opposite among the jumps and is returned unchanged; callers never negate it.
    pub fn opposite(self) -> Cond {
        match self {
            Cond::Eq => Cond::Ne,
            Cond::Ne => Cond::Eq,
            Cond::Gt => Cond::Le,
            Cond::Le => Cond::Gt,
            Cond::Ge => Cond::Lt,
            Cond::Lt => Cond::Ge,
            Cond::Sgt => Cond::Sle,
            Cond::Sle => Cond::Sgt,
            Cond::Sge => Cond::Slt,
            Cond::Slt => Cond::Sge,
            Cond::Set => Cond::Set,
        }
    }
}

/// The kernel's helper functions that datapaths call (include/uapi/linux/bpf.h).
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Helper {
    MapLookupElem = 1,
    TailCall = 12,
    SetSockOpt = 49,
    MapPushElem = 87,
    MapPopElem = 88,
    RingbufReserve = 131,
    RingbufSubmit = 132,
    SkcToTcpSock = 137,
}

/// A place in the program, perhaps not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Why a program could not be assembled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AsmError {
    /// A jump spans more than 16 bits of instructions.
    #[error("a jump of {0} instructions does not fit BPF's 16 bits")]
    JumpTooFar(isize),
    /// A label was used and never bound.
    #[error("label {0} was never bound")]
    Unbound(usize),
}

/// Assembles one program.
#[derive(Default)]
pub struct Asm {
    insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    calls: Vec<(usize, Label)>,
}

const CLASS_ALU64: u8 = 0x07;
const CLASS_ALU32: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_LDX: u8 = 0x01;
const CLASS_STX: u8 = 0x03;
const CLASS_ST: u8 = 0x02;
const MODE_MEM: u8 = 0x60;
const MODE_ATOMIC: u8 = 0xc0;
const SRC_X: u8 = 0x08;
const LD_IMM64: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const ATOMIC_ADD: i32 = 0x00;
const ATOMIC_FETCH: i32 = 0x01;
const ATOMIC_XCHG: i32 = 0xe1;
const ATOMIC_CMPXCHG: i32 = 0xf1;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_KFUNC: u8 = 2;

impl Asm {
    /// Whether there is no instruction yet.
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }
    /// How many instructions there are so far.
    pub fn len(&self) -> usize {
        self.insns.len()
    }

    /// A label to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }
    /// Binds a label to this place.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.insns.len());
    }

    fn push(&mut self, code: u8, dst: R, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, regs: dst as u8 | src << 4, off, imm });
    }

    /// `dst op= src`.
    pub fn alu(&mut self, op: Alu, dst: R, src: R) {
        self.push(op as u8 | SRC_X | CLASS_ALU64, dst, src as u8, 0, 0);
    }
    /// `dst op= imm`.
    pub fn alu_imm(&mut self, op: Alu, dst: R, imm: i32) {
        self.push(op as u8 | CLASS_ALU64, dst, 0, 0, imm);
    }
    /// `dst = (u32) (dst op src)`, of the lower halves.
    pub fn alu32(&mut self, op: Alu, dst: R, src: R) {
        self.push(op as u8 | SRC_X | CLASS_ALU32, dst, src as u8, 0, 0);
    }
    /// `dst = src`.
    pub fn mov(&mut self, dst: R, src: R) {
        if dst != src {
            self.alu(Alu::Mov, dst, src);
        }
    }
    /// `dst = imm`, in the shortest form.
    pub fn mov_imm(&mut self, dst: R, imm: i64) {
        match i32::try_from(imm) {
            Ok(v) => self.alu_imm(Alu::Mov, dst, v),
            Err(_) => self.ld_imm64(dst, 0, imm as u64),
        }
    }
    /// `dst = -dst`.
    pub fn neg(&mut self, dst: R) {
        self.push(0x80 | CLASS_ALU64, dst, 0, 0, 0);
    }
    /// `dst = (u32) dst`.
    pub fn zext32(&mut self, dst: R) {
        // A 32-bit move clears the upper half.
        self.alu32(Alu::Mov, dst, dst);
    }
    /// `dst = (s32) dst`.
    pub fn sext32(&mut self, dst: R) {
        self.alu_imm(Alu::Lsh, dst, 32);
        self.alu_imm(Alu::Arsh, dst, 32);
    }
    /// Network to host order, 16 bits.
    pub fn be16(&mut self, dst: R) {
        self.push(0xdc, dst, 0, 0, 16);
    }

    fn ld_imm64(&mut self, dst: R, pseudo: u8, value: u64) {
        self.push(LD_IMM64, dst, pseudo, 0, value as u32 as i32);
        self.insns.push(Insn { code: 0, regs: 0, off: 0, imm: (value >> 32) as u32 as i32 });
    }
    /// `dst = map`, for a helper call.
    pub fn map(&mut self, dst: R, fd: i32) {
        self.ld_imm64(dst, PSEUDO_MAP_FD, u64::from(fd as u32));
    }
    /// `dst = &value[0] + offset` of an array map.
    pub fn map_value(&mut self, dst: R, fd: i32, offset: u32) {
        self.ld_imm64(dst, PSEUDO_MAP_VALUE, u64::from(fd as u32) | u64::from(offset) << 32);
    }

    /// `dst = *(size *)(src + off)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: R, src: R, off: i16) {
        self.push(MODE_MEM | size.bits() | CLASS_LDX, dst, src as u8, off, 0);
    }
    /// `*(size *)(dst + off) = src`.
    pub fn store(&mut self, size: Size, dst: R, off: i16, src: R) {
        self.push(MODE_MEM | size.bits() | CLASS_STX, dst, src as u8, off, 0);
    }
    /// `*(size *)(dst + off) = imm`, sign-extended.
    pub fn store_imm(&mut self, size: Size, dst: R, off: i16, imm: i32) {
        self.push(MODE_MEM | size.bits() | CLASS_ST, dst, 0, off, imm);
    }
    /// `old = *(u64 *)(dst + off); *(u64 *)(dst + off) += src; src = old`, atomically.
    pub fn fetch_add(&mut self, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | Size::B8.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_ADD | ATOMIC_FETCH);
    }
    /// Swaps `src` with `*(size *)(dst + off)` (4 or 8 bytes), atomically: a store that everything before it precedes.
    pub fn xchg(&mut self, size: Size, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | size.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_XCHG);
    }
    /// If `*(u32 *)(dst + off) == R0`, sets it to `src`; R0 becomes the old value. Atomic.
    pub fn cmpxchg32(&mut self, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | Size::B4.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_CMPXCHG);
    }

    /// Jumps to `to`.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(CLASS_JMP, R::R0, 0, 0, 0);
    }
    /// Jumps to `to` if `a cond b`.
    pub fn jump_if(&mut self, a: R, cond: Cond, b: R, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(cond as u8 | SRC_X | CLASS_JMP, a, b as u8, 0, 0);
    }
    /// Jumps to `to` if `a cond imm` (sign-extended).
    pub fn jump_if_imm(&mut self, a: R, cond: Cond, imm: i32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(cond as u8 | CLASS_JMP, a, 0, 0, imm);
    }
    /// Jumps to `to` if `a cond b`, of the lower halves.
    pub fn jump32_if(&mut self, a: R, cond: Cond, b: R, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(cond as u8 | SRC_X | CLASS_JMP32, a, b as u8, 0, 0);
    }
    /// Calls the subprogram at `to`, which has a stack of its own: arguments in R1-R5, result in R0, R1-R5 lost.
    /// Subprograms follow the main program, which ends at the first of them.
    pub fn call_sub(&mut self, to: Label) {
        self.calls.push((self.insns.len(), to));
        self.push(CALL, R::R0, PSEUDO_CALL, 0, 0);
    }
    /// Calls a helper: arguments in R1-R5, result in R0, R1-R5 lost.
    pub fn call(&mut self, helper: Helper) {
        self.push(CALL, R::R0, 0, 0, helper as i32);
    }
    /// Calls a kernel function by its BTF id.
    pub fn call_kfunc(&mut self, btf_id: u32) {
        self.push(CALL, R::R0, PSEUDO_KFUNC, 0, btf_id as i32);
    }
    /// Returns R0.
    pub fn exit(&mut self) {
        self.push(EXIT, R::R0, 0, 0, 0);
    }
    /// Returns 0.
    pub fn exit0(&mut self) {
        self.mov_imm(R::R0, 0);
        self.exit();
    }

    /// Drops instructions that nothing reaches, which the verifier refuses, and resolves the jumps.
    ///
    /// # Errors
    /// A label that was never bound, or a jump that BPF cannot express.
    pub fn finish(self) -> Result<Assembled, AsmError> {
        let mut targets = vec![None; self.insns.len()];
        for (at, label) in self.jumps.iter().chain(&self.calls) {
            targets[*at] = Some(self.labels[label.0].ok_or(AsmError::Unbound(label.0))?);
        }
        let live = self.reachable(&targets);
        // Where each instruction moves; one past the end too, for labels there.
        let mut moved = Vec::with_capacity(live.len() + 1);
        let mut next = 0;
        for alive in &live {
            moved.push(next);
            next += usize::from(*alive);
        }
        moved.push(next);
        let mut insns = Vec::with_capacity(next);
        for (at, insn) in self.insns.iter().enumerate().filter(|(at, _)| live[*at]) {
            let mut insn = *insn;
            if let Some(to) = targets[at] {
                let off = moved[to] as isize - moved[at] as isize - 1;
                if insn.code == CALL {
                    insn.imm = i32::try_from(off).map_err(|_| AsmError::JumpTooFar(off))?;
                } else {
                    insn.off = i16::try_from(off).map_err(|_| AsmError::JumpTooFar(off))?;
                }
            }
            insns.push(insn);
        }
        Ok(Assembled { insns, moved })
    }

    fn reachable(&self, targets: &[Option<usize>]) -> Vec<bool> {
        let mut live = vec![false; self.insns.len()];
        let mut todo = vec![0];
        while let Some(at) = todo.pop() {
            if at >= live.len() || std::mem::replace(&mut live[at], true) {
                continue;
            }
            todo.extend(targets[at]);
            match self.insns[at].code {
                EXIT | CLASS_JMP => {}
                LD_IMM64 => {
                    live[at + 1] = true;
                    todo.push(at + 2);
                }
                _ => todo.push(at + 1),
            }
        }
        live
    }
}

/// A finished program.
pub struct Assembled {
    /// What the kernel loads.
    pub insns: Vec<Insn>,
    /// For each instruction as it was emitted: where it is now (or what follows it, if it was dropped).
    pub moved: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_code_goes_and_jumps_follow() {
        let mut asm = Asm::default();
        let end = asm.label();
        asm.jump_if_imm(R::R1, Cond::Eq, 0, end);
        asm.exit0();
        asm.mov_imm(R::R0, i64::MAX);
        asm.exit();
        asm.bind(end);
        asm.exit0();
        let done = asm.finish().unwrap();
        assert_eq!(done.insns.len(), 5);
        assert_eq!(done.insns[0].off, 2);
        assert_eq!(done.moved, [0, 1, 2, 3, 3, 3, 3, 4, 5]);
    }

    #[test]
    fn calls_reach_subprograms_that_nothing_else_does() {
        let mut asm = Asm::default();
        let sub = asm.label();
        asm.call_sub(sub);
        asm.exit();
        asm.mov_imm(R::R0, 1);
        asm.bind(sub);
        asm.exit0();
        let done = asm.finish().unwrap();
        assert_eq!(done.insns.len(), 4);
        assert_eq!((done.insns[0].imm, done.insns[0].regs >> 4), (1, PSEUDO_CALL));
    }

    #[test]
    fn unbound_label_is_refused() {
        let mut asm = Asm::default();
        let nowhere = asm.label();
        asm.jump(nowhere);
        assert!(matches!(asm.finish(), Err(AsmError::Unbound(0))));
    }
}

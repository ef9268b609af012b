//! A small BPF assembler: instructions, labels, out-of-line blocks, subprograms.

/// One BPF instruction, as the kernel takes it (`struct bpf_insn`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Insn {
    /// The operation code.
    pub code: u8,
    /// Destination (low four bits) and source register.
    pub regs: u8,
    /// Offset of a memory access or jump.
    pub off: i16,
    /// The immediate operand.
    pub imm: i32,
}

/// A BPF register, R0 to R10.
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

/// The size of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    B1,
    B2,
    B4,
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
    /// The access size of this many bytes.
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

/// A 64-bit arithmetic operation on `dst` and `src`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Alu {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    /// Unsigned; x / 0 = 0.
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    /// `dst >> src`, zeros come in.
    Rsh = 0x70,
    Xor = 0xa0,
    Mov = 0xb0,
    /// `dst >> src`, the sign comes in.
    Arsh = 0xc0,
}

/// A 64-bit comparison that a jump takes; those without an S are unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cond {
    Eq = 0x10,
    Gt = 0x20,
    Ge = 0x30,
    /// The operands have some bit in common.
    Set = 0x40,
    Ne = 0x50,
    Sgt = 0x60,
    Sge = 0x70,
    Lt = 0xa0,
    Le = 0xb0,
    Slt = 0xc0,
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
    MapUpdateElem = 2,
    MapDeleteElem = 3,
    KtimeGetNs = 5,
    GetPrandomU32 = 7,
    GetSmpProcessorId = 8,
    SkbStoreBytes = 9,
    TailCall = 12,
    GetCurrentComm = 16,
    Redirect = 23,
    SetSockOpt = 49,
    RedirectMap = 51,
    SockOpsCbFlagsSet = 59,
    XdpAdjustTail = 65,
    SkbLoadBytesRelative = 68,
    MapPushElem = 87,
    MapPopElem = 88,
    SpinLock = 93,
    SpinUnlock = 94,
    SkStorageGet = 107,
    ProbeReadKernel = 113,
    RingbufReserve = 131,
    RingbufSubmit = 132,
    SkcToTcpSock = 137,
    RedirectNeigh = 152,
}

/// A position in the program, which may not be known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Reasons why a program cannot be assembled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AsmError {
    /// A jump spans more than 16 bits of instructions.
    #[error("a jump of {0} instructions does not fit BPF's 16 bits")]
    JumpTooFar(isize),
    /// A label was used and never bound.
    #[error("label {0} was never bound")]
    Unbound(usize),
}

/// Assembles one program from instructions, labels and out-of-line blocks.
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
const ATOMIC_OR: i32 = 0x40;
const ATOMIC_AND: i32 = 0x50;
const ATOMIC_FETCH: i32 = 0x01;
const ATOMIC_XCHG: i32 = 0xe1;
const ATOMIC_CMPXCHG: i32 = 0xf1;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const PSEUDO_CALL: u8 = 1;
const PSEUDO_KFUNC: u8 = 2;

impl Asm {
    /// Whether the program has no instruction yet.
    pub fn is_empty(&self) -> bool {
        self.insns.is_empty()
    }
    /// The number of instructions so far.
    pub fn len(&self) -> usize {
        self.insns.len()
    }

    /// Makes a label, to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }
    /// Binds a label to the current position.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.insns.len());
    }

    fn push(&mut self, code: u8, dst: R, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, regs: dst as u8 | src << 4, off, imm });
    }

    /// Emits `dst op= src`.
    pub fn alu(&mut self, op: Alu, dst: R, src: R) {
        self.push(op as u8 | SRC_X | CLASS_ALU64, dst, src as u8, 0, 0);
    }
    /// Emits `dst op= imm`.
    pub fn alu_imm(&mut self, op: Alu, dst: R, imm: i32) {
        self.push(op as u8 | CLASS_ALU64, dst, 0, 0, imm);
    }
    /// Emits `dst = (u32) (dst op src)` on the lower halves.
    pub fn alu32(&mut self, op: Alu, dst: R, src: R) {
        self.push(op as u8 | SRC_X | CLASS_ALU32, dst, src as u8, 0, 0);
    }
    /// Emits `dst = src`.
    pub fn mov(&mut self, dst: R, src: R) {
        if dst != src {
            self.alu(Alu::Mov, dst, src);
        }
    }
    /// Emits `dst = imm` in its shortest form.
    pub fn mov_imm(&mut self, dst: R, imm: i64) {
        match i32::try_from(imm) {
            Ok(v) => self.alu_imm(Alu::Mov, dst, v),
            Err(_) => self.ld_imm64(dst, 0, imm as u64),
        }
    }
    /// Emits `dst = -dst`.
    pub fn neg(&mut self, dst: R) {
        self.push(0x80 | CLASS_ALU64, dst, 0, 0, 0);
    }
    /// Emits `dst = (u32) dst`.
    pub fn zext32(&mut self, dst: R) {
        // A 32-bit move clears the upper half.
        self.alu32(Alu::Mov, dst, dst);
    }
    /// Emits `dst = (s32) dst`.
    pub fn sext32(&mut self, dst: R) {
        self.alu_imm(Alu::Lsh, dst, 32);
        self.alu_imm(Alu::Arsh, dst, 32);
    }
    /// Converts 16 bits from network to host order.
    pub fn be16(&mut self, dst: R) {
        self.push(0xdc, dst, 0, 0, 16);
    }

    /// Converts 32 bits from network to host order, or back.
    pub fn be32(&mut self, dst: R) {
        self.push(0xdc, dst, 0, 0, 32);
    }

    fn ld_imm64(&mut self, dst: R, pseudo: u8, value: u64) {
        self.push(LD_IMM64, dst, pseudo, 0, value as u32 as i32);
        self.insns.push(Insn { code: 0, regs: 0, off: 0, imm: (value >> 32) as u32 as i32 });
    }
    /// Emits `dst = map`, for a helper call.
    pub fn map(&mut self, dst: R, fd: i32) {
        self.ld_imm64(dst, PSEUDO_MAP_FD, u64::from(fd as u32));
    }
    /// Emits `dst = &value[0] + offset` of an array map.
    pub fn map_value(&mut self, dst: R, fd: i32, offset: u32) {
        self.ld_imm64(dst, PSEUDO_MAP_VALUE, u64::from(fd as u32) | u64::from(offset) << 32);
    }

    /// Emits `dst = *(size *)(src + off)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: R, src: R, off: i16) {
        self.push(MODE_MEM | size.bits() | CLASS_LDX, dst, src as u8, off, 0);
    }
    /// Emits `*(size *)(dst + off) = src`.
    pub fn store(&mut self, size: Size, dst: R, off: i16, src: R) {
        self.push(MODE_MEM | size.bits() | CLASS_STX, dst, src as u8, off, 0);
    }
    /// Emits `*(size *)(dst + off) = imm`, sign-extended.
    pub fn store_imm(&mut self, size: Size, dst: R, off: i16, imm: i32) {
        self.push(MODE_MEM | size.bits() | CLASS_ST, dst, 0, off, imm);
    }
    /// Atomically adds `src` to `*(u64 *)(dst + off)`; `src` becomes the old value.
    pub fn fetch_add(&mut self, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | Size::B8.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_ADD | ATOMIC_FETCH);
    }
    /// Atomically sets the bits of `src` in `*(u64 *)(dst + off)`.
    pub fn atomic_or(&mut self, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | Size::B8.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_OR);
    }
    /// Atomically keeps only the bits of `src` in `*(u64 *)(dst + off)`; `src` becomes the old value.
    pub fn fetch_and(&mut self, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | Size::B8.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_AND | ATOMIC_FETCH);
    }
    /// Atomically swaps `src` with `*(size *)(dst + off)` (4 or 8 bytes), which also orders everything before it.
    pub fn xchg(&mut self, size: Size, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | size.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_XCHG);
    }
    /// Atomically sets `*(u32 *)(dst + off)` to `src` if it equals R0; R0 becomes the old value.
    pub fn cmpxchg32(&mut self, dst: R, off: i16, src: R) {
        self.push(MODE_ATOMIC | Size::B4.bits() | CLASS_STX, dst, src as u8, off, ATOMIC_CMPXCHG);
    }

    /// Emits a jump to `to`.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(CLASS_JMP, R::R0, 0, 0, 0);
    }
    /// Emits a jump to `to` if `a cond b`.
    pub fn jump_if(&mut self, a: R, cond: Cond, b: R, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(cond as u8 | SRC_X | CLASS_JMP, a, b as u8, 0, 0);
    }
    /// Emits a jump to `to` if `a cond imm` (sign-extended).
    pub fn jump_if_imm(&mut self, a: R, cond: Cond, imm: i32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(cond as u8 | CLASS_JMP, a, 0, 0, imm);
    }
    /// Emits a jump to `to` if `a cond b` holds for the lower halves.
    pub fn jump32_if(&mut self, a: R, cond: Cond, b: R, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.push(cond as u8 | SRC_X | CLASS_JMP32, a, b as u8, 0, 0);
    }
    /// Calls the subprogram at `to`, which has a stack of its own: arguments in R1-R5, result in R0; R1-R5 are lost.
    /// Subprograms follow the main program, which ends at the first of them.
    pub fn call_sub(&mut self, to: Label) {
        self.calls.push((self.insns.len(), to));
        self.push(CALL, R::R0, PSEUDO_CALL, 0, 0);
    }
    /// Calls a helper: arguments in R1-R5, result in R0; R1-R5 are lost.
    pub fn call(&mut self, helper: Helper) {
        self.push(CALL, R::R0, 0, 0, helper as i32);
    }
    /// Calls a kernel function by its BTF id.
    pub fn call_kfunc(&mut self, btf_id: u32) {
        self.push(CALL, R::R0, PSEUDO_KFUNC, 0, btf_id as i32);
    }
    /// Emits a return of R0.
    pub fn exit(&mut self) {
        self.push(EXIT, R::R0, 0, 0, 0);
    }
    /// Emits a return of `value`.
    pub fn exit_with(&mut self, value: i64) {
        self.mov_imm(R::R0, value);
        self.exit();
    }
    /// Emits a return of 0.
    pub fn exit0(&mut self) {
        self.exit_with(0);
    }

    /// Ends the program at `out` with a return of 0, and gives its instructions.
    ///
    /// # Errors
    /// A label that was never bound, or a jump that BPF cannot express.
    pub fn finish_at(mut self, out: Label) -> Result<Vec<Insn>, AsmError> {
        self.bind(out);
        self.exit0();
        self.finish().map(|done| done.insns)
    }

    /// Drops unreachable instructions, which the verifier refuses, and resolves the jumps.
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

/// A finished program, ready to load.
pub struct Assembled {
    pub insns: Vec<Insn>,
    /// The new index of each emitted instruction (or of the next kept one, if it was dropped).
    pub moved: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_code_is_dropped_and_jumps_keep_their_targets() {
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

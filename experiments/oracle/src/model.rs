//! libccp's arithmetic, applied to our IR: unsigned, and given up midway on overflow, underflow and division by
//! zero. Tells when a program leaves the domain in which it and our VM must agree.

use ccplane_program::ir::{Dst, INFINITY, Inst, MAX_REGS, MAX_TMPS, Op, Prim, Program, RegKind, Src};
use ccplane_program::stock::STOCK_INFINITY;
use ccplane_program::vm::{EWMA_DENOM, Prims, wrapped_max};

/// libccp's error codes (ccp_error.h).
pub const ADD_OVERFLOW: i32 = -91;
/// libccp's code for a division by zero.
pub const DIV_BY_ZERO: i32 = -92;
/// libccp's code for a multiplication that overflows.
pub const MUL_OVERFLOW: i32 = -93;
/// libccp's code for a subtraction that underflows.
pub const SUB_UNDERFLOW: i32 = -94;

/// One flow's registers as libccp has them.
pub struct Model {
    regs: [u64; MAX_REGS],
    tmps: [u64; MAX_TMPS],
    micros_zero_us: u64,
    micros_us: u64,
    cwnd: u64,
    rate: u64,
    report: bool,
    fallthrough: bool,
    /// No operation had an operand or result that our numbers and libccp's show differently.
    pub in_domain: bool,
}

/// The result and the side effects of one invocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invocation {
    /// 0, or the code with which libccp gives up.
    pub code: i32,
    /// The window register afterwards.
    pub cwnd: u64,
    /// The rate register afterwards.
    pub rate: u64,
    /// The report registers, if it reported.
    pub report: Option<Vec<u64>>,
}

/// The value that libccp shows where we have [`INFINITY`].
const THEIR_INFINITY: u64 = STOCK_INFINITY as u64;

fn unsigned(value: i64) -> u64 {
    if value == INFINITY { THEIR_INFINITY } else { value as u64 }
}

impl Model {
    /// A flow that starts `program` at `now_us`.
    pub fn new(program: &Program, now_us: u64) -> Model {
        let mut regs = [0; MAX_REGS];
        for (reg, decl) in regs.iter_mut().zip(program.regs()) {
            *reg = unsigned(decl.init);
        }
        Model {
            regs,
            tmps: [0; MAX_TMPS],
            micros_zero_us: now_us,
            micros_us: 0,
            cwnd: 0,
            rate: 0,
            report: false,
            fallthrough: false,
            in_domain: true,
        }
    }

    /// Sets a register as an update does.
    pub fn set(&mut self, reg: u8, value: u64) {
        self.regs[usize::from(reg)] = value;
    }

    /// Runs the program on one ACK.
    pub fn invoke(&mut self, program: &Program, prims: &Prims, cwnd: u32, rate: u64) -> Invocation {
        self.cwnd = u64::from(cwnd);
        self.rate = rate;
        self.report = false;
        self.fallthrough = false;
        self.micros_us = unsigned(prims.get(Prim::AckNow)).wrapping_sub(self.micros_zero_us);
        let code = self.clauses(program, prims).err().unwrap_or(0);
        let mut report = None;
        if self.report && code == 0 {
            report = Some(self.regs[..program.report_len()].to_vec());
            for (reg, decl) in self.regs.iter_mut().zip(program.regs()) {
                if decl.volatile && decl.kind != RegKind::Local {
                    *reg = unsigned(decl.init);
                }
            }
        }
        Invocation { code, cwnd: self.cwnd, rate: self.rate, report }
    }

    fn clauses(&mut self, program: &Program, prims: &Prims) -> Result<(), i32> {
        for clause in program.clauses() {
            for inst in &program.insts()[clause.guard_range()] {
                self.step(inst, prims)?;
            }
            if self.read(clause.guard, prims) == 0 {
                continue;
            }
            for inst in &program.insts()[clause.body_range()] {
                self.step(inst, prims)?;
            }
            if !self.fallthrough {
                break;
            }
        }
        Ok(())
    }

    fn step(&mut self, inst: &Inst, prims: &Prims) -> Result<(), i32> {
        let (a, b) = (self.read(inst.a, prims), self.read(inst.b, prims));
        if !matches!(inst.op, Op::Bind | Op::If | Op::NotIf) {
            // Ours is larger than any number, theirs is not.
            self.in_domain &= (a != THEIR_INFINITY || b <= a) && (b != THEIR_INFINITY || a <= b);
        }
        let value = match inst.op {
            Op::Bind => b,
            Op::Add => {
                self.watch(&[a, b], u128::from(a) + u128::from(b));
                a.checked_add(b).ok_or(ADD_OVERFLOW)?
            }
            Op::Sub => {
                self.watch(&[a, b], u128::from(a.wrapping_sub(b)));
                a.checked_sub(b).ok_or(SUB_UNDERFLOW)?
            }
            Op::Mul => {
                self.watch(&[a, b], u128::from(a) * u128::from(b));
                let product = a.wrapping_mul(b);
                // Misses most overflows, as libccp does.
                if product < a && b > 0 {
                    return Err(MUL_OVERFLOW);
                }
                product
            }
            Op::Div => {
                self.in_domain &= b != 0;
                self.watch(&[a, b], 0);
                a.checked_div(b).ok_or(DIV_BY_ZERO)?
            }
            Op::Eq => u64::from(a == b),
            Op::Lt => u64::from(a < b),
            Op::Gt => u64::from(a > b),
            Op::Le => u64::from(a <= b),
            Op::Ge => u64::from(a >= b),
            Op::Min => a.min(b),
            Op::Max => a.max(b),
            Op::MaxWrap => {
                self.watch(&[a, b], 0);
                wrapped_max(a as i64, b as i64) as u64
            }
            Op::And => a & b,
            Op::Or => a | b,
            Op::Ewma => self.ewma(a, self.read_dst(inst.dst), b),
            Op::If if a != 0 => b,
            Op::NotIf if a == 0 => b,
            _ => return Ok(()),
        };
        self.write(inst.dst, value, prims);
        Ok(())
    }

    fn ewma(&mut self, a: u64, old: u64, b: u64) -> u64 {
        if old == 0 {
            return b;
        }
        let denom = EWMA_DENOM as u64;
        let sum = u128::from(a) * u128::from(old) + u128::from(denom.wrapping_sub(a)) * u128::from(b);
        self.watch(&[a, old, b, denom.wrapping_sub(a)], sum);
        a.wrapping_mul(old).wrapping_add(denom.wrapping_sub(a).wrapping_mul(b)) / denom
    }

    /// Notes operands or a result that our numbers do not hold, or that theirs takes for infinity.
    fn watch(&mut self, operands: &[u64], result: u128) {
        let same = |v: u128| v < INFINITY as u128 && v != u128::from(THEIR_INFINITY);
        self.in_domain &= operands.iter().all(|v| same(u128::from(*v))) && same(result);
    }

    fn read(&self, src: Src, prims: &Prims) -> u64 {
        match src {
            Src::Imm(v) => unsigned(v),
            Src::Bool(v) => u64::from(v),
            Src::Reg(r) => self.regs[usize::from(r)],
            Src::Tmp(t) => self.tmps[usize::from(t)],
            Src::Prim(p) => unsigned(prims.get(p)),
            Src::Cwnd => self.cwnd,
            Src::Rate => self.rate,
            Src::Micros => self.micros_us,
            Src::PolicyAction | Src::PolicySnapshot | Src::Priority | Src::Path | Src::DecideAt => 0,
        }
    }

    fn read_dst(&self, dst: Dst) -> u64 {
        match dst {
            Dst::Reg(r) => self.regs[usize::from(r)],
            Dst::Cwnd => self.cwnd,
            Dst::Rate => self.rate,
            Dst::Micros => self.micros_us,
            Dst::Tmp(_) | Dst::ShouldReport | Dst::ShouldContinue => 0,
            Dst::Priority | Dst::Path | Dst::DecideAt => 0,
        }
    }

    fn write(&mut self, dst: Dst, value: u64, prims: &Prims) {
        match dst {
            Dst::Reg(r) => self.regs[usize::from(r)] = value,
            Dst::Tmp(t) => self.tmps[usize::from(t)] = value,
            Dst::Cwnd => self.cwnd = value,
            Dst::Rate => self.rate = value,
            Dst::Micros => {
                let now_us = unsigned(prims.get(Prim::AckNow));
                // Beyond the clock's own range the two wrap and saturate at different places.
                self.in_domain &= value <= now_us;
                self.micros_us = value;
                self.micros_zero_us = now_us.wrapping_sub(value);
            }
            Dst::ShouldReport => self.report = value != 0,
            Dst::ShouldContinue => self.fallthrough = value != 0,
            // Of other hooks than ACKs, which stock programs do not have.
            Dst::Priority | Dst::Path | Dst::DecideAt => {}
        }
    }
}

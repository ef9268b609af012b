//! Every operation at its boundaries, with its operands as constants, registers and primitives, and with its
//! destination among its operands.

use super::case::{Case, CaseError, Expectation, Observable};
use crate::suite::executor::{Script, ScriptStep};
use ccplane_program::ir::{Clause, Dst, Inst, Op, Prim, Program, RegDecl, RegKind, Src, Type};
use ccplane_program::vm::Prims;

const MIN: i64 = i64::MIN;
const MAX: i64 = i64::MAX;
const P31: i64 = 1 << 31;
const P32: i64 = 1 << 32;
const M32: i64 = P32 - 1;
/// The largest number whose square is below 2^63.
const ROOT: i64 = 3_037_000_499;

/// Operation, first and second operand, result, faults.
type Row = (Op, i64, i64, i64, u32);

const ROWS: [Row; 78] = [
    (Op::Add, MAX, 1, MAX, 1),
    (Op::Add, MAX, 0, MAX, 0),
    (Op::Add, MIN, -1, MIN, 1),
    (Op::Add, MAX, MIN, -1, 0),
    (Op::Add, MIN, MIN, MIN, 1),
    (Op::Add, P32, P32, 2 * P32, 0),
    (Op::Add, M32, 1, P32, 0),
    (Op::Sub, MIN, 1, MIN, 1),
    (Op::Sub, MAX, -1, MAX, 1),
    (Op::Sub, 0, MIN, MAX, 1),
    (Op::Sub, -1, MIN, MAX, 0),
    (Op::Sub, 0, 1, -1, 0),
    (Op::Sub, MIN, MIN, 0, 0),
    (Op::Mul, ROOT, ROOT, 9_223_372_030_926_249_001, 0),
    (Op::Mul, ROOT + 1, ROOT + 1, MAX, 1),
    (Op::Mul, -ROOT - 1, ROOT + 1, MIN, 1),
    (Op::Mul, -ROOT - 1, -ROOT - 1, MAX, 1),
    (Op::Mul, MIN, -1, MAX, 1),
    (Op::Mul, -1, MIN, MAX, 1),
    (Op::Mul, MIN, 1, MIN, 0),
    (Op::Mul, MIN, 2, MIN, 1),
    (Op::Mul, MIN, 0, 0, 0),
    (Op::Mul, MAX, 2, MAX, 1),
    (Op::Mul, MAX, -1, -MAX, 0),
    (Op::Mul, P32, P31, MAX, 1),
    (Op::Mul, -P32, P31, MIN, 0),
    (Op::Mul, P32, -P31, MIN, 0),
    (Op::Mul, -P32, P31 + 1, MIN, 1),
    (Op::Mul, M32, M32, MAX, 1),
    (Op::Mul, P31, P31, 1 << 62, 0),
    (Op::Div, 1, 0, 0, 1),
    (Op::Div, 0, 0, 0, 1),
    (Op::Div, MIN, 0, 0, 1),
    (Op::Div, MIN, -1, MAX, 1),
    (Op::Div, MIN, 1, MIN, 0),
    (Op::Div, -7, 2, -3, 0),
    (Op::Div, 7, -2, -3, 0),
    (Op::Div, -7, -2, 3, 0),
    (Op::Div, -1, 2, 0, 0),
    (Op::Div, MAX, -1, -MAX, 0),
    (Op::Div, MIN, MIN, 1, 0),
    (Op::Div, MAX, MIN, 0, 0),
    (Op::Div, MIN, 10, -922_337_203_685_477_580, 0),
    (Op::Eq, P32, 0, 0, 0),
    (Op::Eq, MIN, MIN, 1, 0),
    (Op::Lt, MIN, MAX, 1, 0),
    (Op::Lt, -1, 0, 1, 0),
    (Op::Lt, 0, -1, 0, 0),
    (Op::Lt, 5, 5, 0, 0),
    (Op::Gt, 0, -1, 1, 0),
    (Op::Gt, P31, P32, 0, 0),
    (Op::Gt, 5, 5, 0, 0),
    (Op::Le, MIN, MIN, 1, 0),
    (Op::Le, 0, -1, 0, 0),
    (Op::Ge, -1, MIN, 1, 0),
    (Op::Ge, -1, 0, 0, 0),
    (Op::Min, -1, 1, -1, 0),
    (Op::Min, MAX, MIN, MIN, 0),
    (Op::Max, -1, 1, 1, 0),
    (Op::Max, MIN, MAX, MAX, 0),
    // As libccp computes it.
    (Op::MaxWrap, 0, 7, 7, 0),
    (Op::MaxWrap, 7, 0, 7, 0),
    (Op::MaxWrap, 0, -5, -5, 0),
    (Op::MaxWrap, P32 + 7, 0, P32 + 7, 0),
    (Op::MaxWrap, 5, 6, 6, 0),
    (Op::MaxWrap, 6, 5, 6, 0),
    (Op::MaxWrap, 5, 5, 5, 0),
    (Op::MaxWrap, M32, 1, 1, 0),
    (Op::MaxWrap, 1, M32, 1, 0),
    (Op::MaxWrap, -1, 1, 1, 0),
    (Op::MaxWrap, P32 + 5, 3, 5, 0),
    (Op::MaxWrap, P32, 7, 7, 0),
    (Op::MaxWrap, P31 + 1, 1, 1, 0),
    (Op::MaxWrap, 1, P31 + 1, 1, 0),
    (Op::Bind, 0, MIN, MIN, 0),
    (Op::Bind, 0, P32, P32, 0),
    (Op::Bind, 0, MAX, MAX, 0),
    (Op::Bind, 0, -1, -1, 0),
];

/// Weight, new value, old value, result, faults.
type EwmaRow = (i64, i64, i64, i64, u32);

const EWMA_ROWS: [EwmaRow; 13] = [
    (5, 100, 0, 100, 0),
    (MAX, MIN, 0, MIN, 0),
    (9, 100, 200, 190, 0),
    (10, 100, 7, 7, 0),
    (0, 100, 7, 100, 0),
    (11, 10, 100, 109, 0),
    (5, -1, -2, -1, 0),
    (9, -5, -5, -5, 0),
    (5, 0, MAX, MAX / 10, 1),
    // Kept, weight and sum stay in range; fresh does not.
    (0, MAX, 1, MAX / 10, 1),
    // (MAX + MIN) / 10.
    (MAX, 3, 2, 0, 2),
    // 10 - MIN and MIN * 1.
    (MIN, 0, 1, -922_337_203_685_477_580, 1),
    // MIN * 2, 10 - MIN, MAX * -2 and the sum of the two.
    (MIN, -2, 2, -922_337_203_685_477_580, 4),
];

/// Operation, first and second operand, result: truth values.
const BOOL_ROWS: [(Op, i64, i64, i64); 8] = [
    (Op::And, 0, 0, 0),
    (Op::And, 0, 1, 0),
    (Op::And, 1, 0, 0),
    (Op::And, 1, 1, 1),
    (Op::Or, 0, 0, 0),
    (Op::Or, 0, 1, 1),
    (Op::Or, 1, 0, 1),
    (Op::Or, 1, 1, 1),
];

/// Operation, condition, new value, old value, result.
const IF_ROWS: [(Op, i64, i64, i64, i64); 6] = [
    (Op::If, 1, 42, 7, 42),
    (Op::If, 0, 42, 7, 7),
    (Op::If, 1, MIN, 7, MIN),
    (Op::NotIf, 1, 42, 7, 7),
    (Op::NotIf, 0, 42, 7, 42),
    (Op::NotIf, 0, 0, -1, 0),
];

pub(super) fn cases() -> Result<Vec<Case>, CaseError> {
    use Type::{Bool, Num};
    let numbers = ROWS.into_iter().map(|(op, a, b, value, faults)| {
        let is_truth = matches!(op, Op::Eq | Op::Lt | Op::Gt | Op::Le | Op::Ge);
        let result = if is_truth { Bool } else { Num };
        Form { op, a: (Num, a), b: (Num, b), old: 0, result, value, faults }
    });
    let averages = EWMA_ROWS.into_iter().map(|(a, b, old, value, faults)| Form {
        op: Op::Ewma,
        a: (Num, a),
        b: (Num, b),
        old,
        result: Num,
        value,
        faults,
    });
    let truths = BOOL_ROWS.into_iter().map(|(op, a, b, value)| Form {
        op,
        a: (Bool, a),
        b: (Bool, b),
        old: 0,
        result: Bool,
        value,
        faults: 0,
    });
    let choices = IF_ROWS.into_iter().map(|(op, a, b, old, value)| Form {
        op,
        a: (Bool, a),
        b: (Num, b),
        old,
        result: Num,
        value,
        faults: 0,
    });
    numbers.chain(averages).chain(truths).chain(choices).map(|form| form.case()).collect()
}

/// One operation on one pair of operands.
struct Form {
    op: Op,
    a: (Type, i64),
    b: (Type, i64),
    old: i64,
    result: Type,
    value: i64,
    faults: u32,
}

/// Control registers of the program: the operands.
const NAMES: [&str; 2] = ["a", "b"];

impl Form {
    /// One program that computes the form in every way, each into a report register of its own.
    fn case(&self) -> Result<Case, CaseError> {
        let name = format!("{:?}({}, {}) over {}", self.op, self.a.1, self.b.1, self.old);
        let ways = self.ways();
        let control = ways.len() as u8;
        let mut regs: Vec<RegDecl> = ways
            .iter()
            .map(|(way, _)| reg(&format!("Report.{way}"), RegKind::Report, self.result, self.old))
            .collect();
        for (name, (ty, _)) in NAMES.iter().zip([self.a, self.b]) {
            regs.push(reg(name, RegKind::Control, ty, 0));
        }
        let insts: Vec<Inst> = ways.iter().flat_map(|(_, insts)| insts.iter().copied()).collect();
        let body_insts = insts.len() as u16;
        let clause = Clause { start: 0, guard_insts: 0, body_insts, guard: Src::Bool(true) };
        let program = Program::new(regs, insts, vec![clause], Vec::new())
            .map_err(|e| CaseError { name: name.clone(), reason: e.to_string() })?;

        let mut prims = Prims::default();
        prims.set(Prim::AckBytesAcked, self.a.1).set(Prim::FlowBytesPending, self.b.1);
        prims.set(Prim::FlowWasTimeout, self.a.1);
        let fields = [(control, self.a.1), (control + 1, self.b.1)];
        let steps = vec![
            ScriptStep::Update(fields.map(|(r, value)| (crate::command::Field::Reg(r), value)).to_vec()),
            ScriptStep::Invoke(prims),
        ];
        let expect = |what, value| Expectation { invocation: 0, what, value };
        let mut expectations: Vec<Expectation> = ways
            .iter()
            .map(|(way, _)| expect(Observable::Reg(format!("Report.{way}")), self.value))
            .collect();
        let faults = i64::from(self.faults) * ways.len() as i64;
        expectations.push(expect(Observable::Faults, faults));
        let script = Script::new(vec![program], 14_480, steps);
        Ok(Case { name, script, expectations })
    }

    /// The instructions of each way, which leave the result in the report register of the way's place.
    fn ways(&self) -> Vec<(&'static str, Vec<Inst>)> {
        let inst = |dst, a, b| Inst { op: self.op, dst, a, b };
        let constant = |(ty, value)| match ty {
            Type::Num => Src::Imm(value),
            Type::Bool => Src::Bool(value != 0),
        };
        let in_place = !self.op.reads_dst();
        let control: u8 = if in_place { 6 } else { 4 };
        let (a, b) = (Src::Reg(control), Src::Reg(control + 1));
        let prim = |(ty, _), number, or| if ty == Type::Num { Src::Prim(number) } else { or };
        let prim_a = prim(self.a, Prim::AckBytesAcked, Src::Prim(Prim::FlowWasTimeout));
        let prim_b = prim(self.b, Prim::FlowBytesPending, b);
        let copy = |n, from| Inst { op: Op::Bind, dst: Dst::Reg(n), a: Src::Imm(0), b: from };
        let mut ways = vec![
            ("constants", vec![inst(Dst::Reg(0), constant(self.a), constant(self.b))]),
            ("registers", vec![inst(Dst::Reg(1), a, b)]),
            ("mixed", vec![inst(Dst::Reg(2), a, constant(self.b))]),
            ("prims", vec![inst(Dst::Reg(3), prim_a, prim_b)]),
        ];
        if in_place && self.result == self.a.0 && self.result == self.b.0 {
            ways.push(("over_a", vec![copy(4, a), inst(Dst::Reg(4), Src::Reg(4), b)]));
            ways.push(("over_b", vec![copy(5, b), inst(Dst::Reg(5), a, Src::Reg(5))]));
        } else if in_place {
            // A comparison's result is of another type than its operands: through temporaries instead.
            let through = |n| {
                let copy = |t, from| Inst { op: Op::Bind, dst: Dst::Tmp(t), a: Src::Imm(0), b: from };
                let over = inst(Dst::Tmp(n), Src::Tmp(0), Src::Tmp(1));
                let out = Inst { op: Op::Bind, dst: Dst::Reg(4 + n), a: Src::Imm(0), b: Src::Tmp(n) };
                vec![copy(0, a), copy(1, b), over, out]
            };
            ways.push(("over_a", through(0)));
            ways.push(("over_b", through(1)));
        }
        ways
    }
}

fn reg(name: &str, kind: RegKind, ty: Type, init: i64) -> RegDecl {
    RegDecl { name: name.to_owned(), kind, ty, volatile: false, init }
}

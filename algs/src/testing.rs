//! Drives an algorithm's program with synthetic ACKs, on the reference VM and, if stock CCP can run it, on its rules
//! at once.

use ccplane_alg::{Algorithm, Control, FlowInfo, FoldAlgorithm, configure};
use ccplane_program::compile;
use ccplane_program::ir::{Dst, INFINITY, Inst, MAX_REGS, MAX_TMPS, Op, Prim, Program, RegKind, Src, Type};
use ccplane_program::stock::{STOCK_INFINITY, lower};
use ccplane_program::vm::{Prims, ProgramState};
use proptest::prelude::*;
use std::sync::Arc;

/// Segment size of the tests, bytes.
pub(crate) const MSS: i64 = 1448;

/// The names of what a program reports, as reports have them.
pub(crate) fn reported(program: &Program) -> Vec<String> {
    let registers = &program.regs()[..program.report_len()];
    registers.iter().map(|r| r.name.trim_start_matches("Report.").to_owned()).collect()
}

/// The window that the only request so far sets, which is removed.
pub(crate) fn window_set(control: &mut Control) -> i64 {
    let fields: Vec<_> = control.requests().map(|request| request.fields.to_vec()).collect();
    control.clear();
    let [fields] = &fields[..] else { panic!("{fields:?}") };
    fields.iter().find(|(name, _)| *name == "Cwnd").unwrap().1
}

/// One ACK; what is left out is 0.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ack {
    pub bytes: i64,
    pub lost: i64,
    pub ecn: i64,
    pub timeout: bool,
    /// Microseconds; 0 where there is no sample.
    pub rtt_us: i64,
    pub in_flight: i64,
}

/// A flow under one algorithm's first program.
pub(crate) struct Bench {
    pub program: Program,
    pub flow: ProgramState,
    /// The same flow on stock CCP, where that can run the program.
    stock: Option<Stock>,
    pub now_us: i64,
    /// Time of each report, and its values.
    pub reports: Vec<(i64, Vec<i64>)>,
}

impl Bench {
    /// A flow that starts at one second with a window of `cwnd_bytes`.
    pub fn new(algorithm: &dyn Algorithm, mss_bytes: u32, cwnd_bytes: i64) -> Bench {
        let source = algorithm.programs().remove(0);
        let program = compile(source.source).unwrap_or_else(|d| panic!("{}: {d:#?}", source.name));
        let mut control = Control::default();
        let _flow = algorithm.flow(&FlowInfo::example(mss_bytes, cwnd_bytes as u64), &mut control);
        let now_us = 1_000_000;
        let mut flow = ProgramState::new(&program, cwnd_bytes, now_us);
        let mut stock = lower(&program).is_ok().then(|| Stock::new(&program, cwnd_bytes));
        for request in control.requests() {
            assert_eq!(request.program, Some(source.name));
            for (name, value) in request.fields {
                let reg = usize::from(program.reg(name).unwrap());
                assert_eq!(program.regs()[reg].kind, RegKind::Control, "{name}");
                flow.regs[reg] = *value;
                if let Some(stock) = &mut stock {
                    stock.regs[reg] = *value as u64;
                }
            }
        }
        Bench { program, flow, stock, now_us, reports: Vec::new() }
    }

    /// A flow of a declared algorithm with these parameters, which must be within their ranges.
    pub fn configured(
        algorithm: FoldAlgorithm,
        values: &[(&'static str, i64)],
        mss_bytes: u32,
        cwnd_bytes: i64,
    ) -> Bench {
        let algorithm: Arc<dyn Algorithm> = Arc::new(algorithm);
        let configured = configure(&algorithm, values.iter().copied()).unwrap();
        Bench::new(&*configured, mss_bytes, cwnd_bytes)
    }

    /// One ACK, `after_us` later. Fails if stock CCP would abort on it or compute anything else.
    pub fn ack(&mut self, after_us: i64, ack: Ack) {
        self.ack_with(after_us, ack, |_| {});
    }

    /// A hundred ACKs of a flow that sends four segments a round trip, less than its window.
    pub fn unused_window(&mut self, rtt_us: i64) {
        for _ in 0..100 {
            self.ack(rtt_us / 4, Ack { bytes: 2 * MSS, rtt_us, in_flight: 4 * MSS, ..Ack::default() });
        }
    }

    /// Like [`Bench::ack`], with what else the datapath measured.
    pub fn ack_with(&mut self, after_us: i64, ack: Ack, more: impl FnOnce(&mut Prims)) {
        self.now_us += after_us;
        let mut prims = Prims::default();
        prims
            .set(Prim::AckBytesAcked, ack.bytes)
            .set(Prim::AckPacketsAcked, ack.bytes / MSS)
            .set(Prim::AckLostPktsSample, ack.lost)
            .set(Prim::AckEcnPackets, ack.ecn)
            .set(Prim::AckNow, self.now_us)
            .set(Prim::FlowRttSampleUs, ack.rtt_us)
            .set(Prim::FlowBytesInFlight, ack.in_flight)
            .set(Prim::FlowWasTimeout, i64::from(ack.timeout));
        more(&mut prims);
        let mut values = [0; MAX_REGS];
        let outcome = self.flow.invoke(&self.program, &prims, &mut values);
        assert_eq!(self.flow.faults, 0, "{ack:?}");
        if let Some(stock) = &mut self.stock {
            let reports =
                stock.invoke(&self.program, &prims).unwrap_or_else(|abort| panic!("{abort} on {ack:?}"));
            assert_eq!(outcome.report, reports, "{ack:?}");
            stock.assert_equals(&self.program, &self.flow, ack);
        }
        if outcome.report {
            self.reports.push((self.now_us, values[..self.program.report_len()].to_vec()));
        }
    }

    /// One full window acknowledged segment by segment over `rtt_us`, the flow limited by its window.
    pub fn round(&mut self, rtt_us: i64) {
        let segments = (self.cwnd() / MSS).max(1);
        for _ in 0..segments {
            let in_flight = self.cwnd() - MSS;
            self.ack(rtt_us / segments, Ack { bytes: MSS, rtt_us, in_flight, ..Ack::default() });
        }
    }

    pub fn cwnd(&self) -> i64 {
        self.flow.cwnd_bytes
    }

    pub fn rate(&self) -> i64 {
        self.flow.rate_bytes_per_s
    }

    pub fn reg(&self, name: &str) -> i64 {
        self.flow.regs[usize::from(self.program.reg(name).unwrap())]
    }

    pub fn set(&mut self, name: &str, value: i64) {
        let reg = usize::from(self.program.reg(name).unwrap());
        self.flow.regs[reg] = value;
        if let Some(stock) = &mut self.stock {
            stock.regs[reg] = value as u64;
        }
    }

    pub fn set_cwnd(&mut self, bytes: i64) {
        self.flow.cwnd_bytes = bytes;
        if let Some(stock) = &mut self.stock {
            stock.cwnd = bytes as u64;
        }
    }
}

/// Asserts that a program keeps within what portus compiles and libccp runs.
pub(crate) fn assert_stock_limits(program: &Program) {
    let stock = lower(program).unwrap_or_else(|refusal| panic!("{refusal}"));
    eprintln!("{} stock instructions", stock.num_instructions());
    for inst in program.insts() {
        assert!(!matches!(inst.op, Op::Le | Op::Ge), "portus has no {inst:?}");
        // portus binds a conditional to registers only, not to Cwnd or a local.
        let bound = match inst.dst {
            Dst::Reg(r) => program.regs()[usize::from(r)].kind != RegKind::Local,
            _ => false,
        };
        assert!(!inst.op.reads_dst() || bound, "portus cannot write {inst:?}");
    }
}

/// libccp's number for ours.
fn stock_number(value: i64) -> u64 {
    if value == INFINITY { STOCK_INFINITY.into() } else { value as u64 }
}

/// libccp 1.2.0's arithmetic (machine.c): unsigned, and an overflow, an underflow or a division by zero aborts.
struct Stock {
    regs: [u64; MAX_REGS],
    cwnd: u64,
    rate: u64,
}

impl Stock {
    fn new(program: &Program, cwnd_bytes: i64) -> Stock {
        let mut regs = [0; MAX_REGS];
        for (reg, decl) in regs.iter_mut().zip(program.regs()) {
            *reg = stock_number(decl.init);
        }
        Stock { regs, cwnd: cwnd_bytes as u64, rate: 0 }
    }

    fn assert_equals(&self, program: &Program, flow: &ProgramState, after: Ack) {
        assert_eq!(flow.cwnd_bytes as u64, self.cwnd, "{after:?}");
        assert_eq!(flow.rate_bytes_per_s as u64, self.rate, "{after:?}");
        for (n, decl) in program.regs().iter().enumerate() {
            let same = match decl.ty {
                Type::Bool => (flow.regs[n] != 0) == (self.regs[n] != 0),
                Type::Num => stock_number(flow.regs[n]) == self.regs[n],
            };
            let (ours, theirs) = (flow.regs[n], self.regs[n]);
            assert!(same, "{}: {ours} here, {theirs} on stock CCP; {after:?}", decl.name);
        }
    }

    /// Whether it reports, or the instruction that aborts.
    fn invoke(&mut self, program: &Program, prims: &Prims) -> Result<bool, String> {
        let (mut report, mut go_on) = (false, false);
        let mut tmps = [0; MAX_TMPS];
        for clause in program.clauses() {
            for range in [clause.guard_range(), clause.body_range()] {
                if range.start == clause.body_range().start && self.read(clause.guard, &tmps, prims) == 0 {
                    break;
                }
                for inst in &program.insts()[range] {
                    let Some(value) = self.step(inst, &tmps, prims)? else { continue };
                    match inst.dst {
                        Dst::Reg(r) => self.regs[usize::from(r)] = value,
                        Dst::Tmp(t) => tmps[usize::from(t)] = value,
                        Dst::Cwnd => self.cwnd = value,
                        // It hands the datapath 32 bits.
                        Dst::Rate if value > u64::from(u32::MAX) => {
                            return Err(format!("rate {value} is cut"));
                        }
                        Dst::Rate => self.rate = value,
                        Dst::ShouldReport => report = value != 0,
                        Dst::ShouldContinue => go_on = value != 0,
                        Dst::Micros | Dst::Priority | Dst::Path | Dst::DecideAt => {
                            panic!("no program here writes {inst:?}")
                        }
                    }
                }
            }
            if self.read(clause.guard, &tmps, prims) != 0 && !go_on {
                break;
            }
        }
        assert!(!report || program.regs().iter().all(|r| !r.volatile), "volatile registers are not modelled");
        Ok(report)
    }

    fn step(&self, inst: &Inst, tmps: &[u64; MAX_TMPS], prims: &Prims) -> Result<Option<u64>, String> {
        let (a, b) = (self.read(inst.a, tmps, prims), self.read(inst.b, tmps, prims));
        let value = match inst.op {
            Op::Bind => Some(b),
            Op::Add | Op::Or => a.checked_add(b),
            Op::Mul | Op::And => a.checked_mul(b),
            Op::Sub => a.checked_sub(b),
            Op::Div => a.checked_div(b),
            Op::Eq => Some(u64::from(a == b)),
            Op::Lt => Some(u64::from(a < b)),
            Op::Gt => Some(u64::from(a > b)),
            Op::Min => Some(a.min(b)),
            Op::Max => Some(a.max(b)),
            Op::If if a == 0 => return Ok(None),
            Op::NotIf if a != 0 => return Ok(None),
            Op::If | Op::NotIf => Some(b),
            _ => panic!("no program here uses {inst:?}"),
        };
        // Ours is signed, so what passes 2^63 is as good as an overflow.
        match value.filter(|v| i64::try_from(*v).is_ok()) {
            Some(v) => Ok(Some(v)),
            None => Err(format!("{inst:?} of {a} and {b} aborts")),
        }
    }

    fn read(&self, src: Src, tmps: &[u64; MAX_TMPS], prims: &Prims) -> u64 {
        match src {
            Src::Imm(v) => stock_number(v),
            Src::Bool(v) => u64::from(v),
            Src::Reg(r) => self.regs[usize::from(r)],
            Src::Tmp(t) => tmps[usize::from(t)],
            Src::Prim(p) => stock_number(prims.get(p)),
            Src::Cwnd => self.cwnd,
            Src::Rate => self.rate,
            Src::Micros
            | Src::PolicyAction
            | Src::PolicySnapshot
            | Src::Priority
            | Src::Path
            | Src::DecideAt => {
                panic!("no program here reads {src:?}")
            }
        }
    }
}

/// The largest values that a stream of ACKs draws.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extremes {
    /// The longest time between two ACKs, microseconds.
    pub silence_us: i64,
    pub rtt_us: i64,
    /// The largest delivery rate, bytes per second, which is drawn as often as any smaller one.
    pub rate: i64,
}

impl Extremes {
    pub(crate) const USUAL: Extremes = Extremes { silence_us: 20_000_000, rtt_us: 10_000_000, rate: 1 << 40 };
}

prop_compose! {
    /// Any ACK: microseconds since the one before, what it says, and the delivery rate, bytes a second.
    pub(crate) fn rated_acks(extremes: Extremes)(
        bytes in prop_oneof![Just(0), Just(MSS), 0..1i64 << 30],
        lost in prop_oneof![8 => Just(0), 1 => 1..100i64],
        ecn in prop_oneof![9 => Just(0), 1 => 1..10i64],
        timeout in prop::bool::weighted(0.02),
        rtt_us in prop_oneof![Just(0), 1..extremes.rtt_us],
        in_flight in 0..1i64 << 31,
        after_us in prop_oneof![0..2_000i64, 0..extremes.silence_us],
        rate in prop_oneof![Just(0), 0..1i64 << 40, Just(extremes.rate)],
    ) -> (i64, Ack, i64) {
        (after_us, Ack { bytes, lost, ecn, timeout, rtt_us, in_flight }, rate)
    }
}

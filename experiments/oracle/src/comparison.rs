//! Runs one program on libccp, on the model of its arithmetic and on our VM at once, over random ACKs and updates.

use crate::generate::ack;
use crate::libccp::Libccp;
use crate::model::Model;
use crate::rng::Rng;
use ccplane_program::disasm::disassemble;
use ccplane_program::ir::{MAX_REGS, Program, RegId, RegKind};
use ccplane_program::stock::{StockReg, reported};
use ccplane_program::vm::ProgramState;

/// ACKs of one program.
const ACKS: usize = 40;
/// Window that a flow starts with, bytes.
pub const CWND: u32 = 14_480;

/// Counts of the programs and ACKs that were compared.
#[derive(Default, Debug)]
pub struct Tally {
    pub programs: u64,
    pub refused: u64,
    pub acks: u64,
    /// ACKs on which our VM was compared, too: no value had left the range that both represent alike.
    pub in_domain: u64,
    /// ACKs on which libccp gave up.
    pub aborts: u64,
    pub reports: u64,
}

impl Tally {
    /// Asserts that enough was compared: a test that compares little proves little.
    ///
    /// # Panics
    /// Too few ACKs or reports were compared.
    pub fn assert_enough(&self) {
        assert!(self.in_domain * 3 > self.acks && self.reports * 10 > self.in_domain, "{self:?}");
    }
}

/// Compares all three from the flow's start on, where `theirs` has the program already.
///
/// `update_reg` names a control register as libccp does; `values` bounds the values that updates set it to.
///
/// # Panics
/// They disagree; the message has `context` and the program.
pub fn compare(
    program: &Program,
    theirs: &mut Libccp,
    update_reg: impl Fn(RegId) -> StockReg,
    values: impl Fn(RegId) -> usize,
    rng: &mut Rng,
    tally: &mut Tally,
    context: &str,
) {
    let listing = || format!("{context}\n{}", disassemble(program));
    let mut now_us = 1 + rng.below(1000) as u64;
    let (mut cwnd, mut rate) = (CWND, 0u64);
    let mut ours = ProgramState::new(program, i64::from(cwnd), now_us as i64);
    let mut model = Model::new(program, now_us);
    let controls: Vec<u8> = (0..program.regs().len() as u8)
        .filter(|r| program.regs()[usize::from(*r)].kind == RegKind::Control)
        .collect();
    for n in 0..ACKS {
        if !controls.is_empty() && rng.one_in(10) {
            let r = *rng.pick(&controls);
            let value = rng.below(values(r)) as u64;
            theirs.update(&[(update_reg(r), value)]);
            model.set(r, value);
            ours.regs[usize::from(r)] = value as i64;
        }
        let prims = ack(rng, now_us);
        let got = theirs.invoke(&prims, cwnd, rate);
        let want = model.invoke(program, &prims, cwnd, rate);
        let context = || format!("ACK {n}: {prims:?}\n{got:?}\n{want:?}\n{}", listing());
        tally.acks += 1;

        // The model is libccp, aborts and wrong products included.
        assert_eq!((got.code, &got.report), (want.code, &want.report), "{}", context());
        if got.code == 0 {
            assert_eq!(got.cwnd, (want.cwnd > 0).then_some(want.cwnd as u32), "{}", context());
            assert_eq!(got.rate, (want.rate != 0).then_some(want.rate as u32), "{}", context());
        } else {
            tally.aborts += 1;
            assert!(!model.in_domain, "{}", context());
        }

        // Our VM is the model for as long as no value left the range that both show alike.
        let mut report = [0; MAX_REGS];
        let outcome = ours.invoke(program, &prims, &mut report);
        if model.in_domain {
            tally.in_domain += 1;
            assert_eq!(outcome.report, got.report.is_some(), "{}", context());
            if let Some(theirs) = &got.report {
                tally.reports += 1;
                let theirs: Vec<i64> = theirs.iter().map(|v| reported(*v)).collect();
                assert_eq!(report[..program.report_len()], theirs, "{}", context());
            }
            let cut = |v: u64| if v == u64::from(u32::MAX) { i64::MAX } else { v as i64 };
            let want_cwnd = if want.cwnd == 0 { i64::from(cwnd) } else { cut(want.cwnd).min(1 << 40) };
            assert_eq!(ours.cwnd_bytes, want_cwnd, "{}", context());
            assert_eq!(ours.rate_bytes_per_s, cut(want.rate).min(1 << 40), "{}", context());
            assert_eq!(ours.faults, 0, "{}", context());
        }
        // libccp's setters take 32 bits, and leave the rate alone when it is 0.
        let cut = want.cwnd >= u64::from(u32::MAX)
            || want.rate >= u64::from(u32::MAX)
            || (want.rate == 0 && rate != 0);
        model.in_domain &= !(cut && got.code == 0);
        cwnd = got.cwnd.unwrap_or(cwnd);
        rate = got.rate.map_or(rate, u64::from);
        now_us += rng.below(3000) as u64;
    }
}

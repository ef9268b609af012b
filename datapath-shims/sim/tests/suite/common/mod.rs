//! Helpers of the simulated datapath's tests.

use ccplane_contract::{Datapath, Event, Field, FlowId, ProgramUid};
use ccplane_netsim::trace::Trace;
use ccplane_netsim::{Acks, Capacity, LinkConfig, QueueLimit};
use ccplane_program::ir::{Clause, Dst, Inst, Op, Prim, Program, RegDecl, RegKind, Src, Type};
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source, Wake};

pub const MS: u64 = 1000;
pub const S: u64 = 1_000_000;
pub const MSS: u64 = 1448;

/// 10 ms one way; with the way back of [`flow`], 20 ms.
pub fn link(capacity: Capacity, queue_packets: u32) -> LinkConfig {
    LinkConfig::new(capacity, 10_000_000, QueueLimit::Packets(queue_packets))
}

/// At 12 Mb/s a full segment takes 1 ms.
pub fn rate(mbit: u64, queue_packets: u32) -> LinkConfig {
    link(Capacity::Rate { bit_per_s: mbit * 1_000_000 }, queue_packets)
}

pub fn trace(text: &str, queue_packets: u32) -> LinkConfig {
    link(Capacity::Trace { trace: Trace::parse(text).unwrap(), repeat: true }, queue_packets)
}

/// Over link 0 and 10 ms back; each segment acknowledged at once, so that times are easy to work out.
pub fn flow(source: Source) -> FlowConfig {
    let mut config = FlowConfig::new(source, 10 * MS);
    config.path.acks = Acks::EACH;
    config
}

pub fn sim(link: LinkConfig) -> SimDatapath {
    SimDatapath::new(SimConfig::new(vec![link], 1)).unwrap()
}

pub fn inst(op: Op, dst: Dst, a: Src, b: Src) -> Inst {
    Inst { op, dst, a, b }
}

pub fn reg(name: &str, kind: RegKind, volatile: bool, init: i64) -> RegDecl {
    RegDecl { name: name.into(), kind, ty: Type::Num, volatile, init }
}

pub const CWND: u8 = 2;
pub const RATE: u8 = 3;

/// `Cwnd := cwnd`, `Rate := rate` on each ACK; reports bytes acknowledged and packets lost every 100 ms.
pub fn constant() -> Program {
    let regs = vec![
        reg("Report.delivered", RegKind::Report, true, 0),
        reg("Report.lost", RegKind::Report, true, 0),
        reg("cwnd", RegKind::Control, false, 10 * MSS as i64),
        reg("rate", RegKind::Control, false, 0),
    ];
    let body = vec![
        inst(Op::Add, Dst::Reg(0), Src::Reg(0), Src::Prim(Prim::AckBytesAcked)),
        inst(Op::Add, Dst::Reg(1), Src::Reg(1), Src::Prim(Prim::AckLostPktsSample)),
        inst(Op::Bind, Dst::Cwnd, Src::Imm(0), Src::Reg(CWND)),
        inst(Op::Bind, Dst::Rate, Src::Imm(0), Src::Reg(RATE)),
        inst(Op::Bind, Dst::ShouldContinue, Src::Imm(0), Src::Bool(true)),
        inst(Op::Gt, Dst::Tmp(0), Src::Micros, Src::Imm(100_000)),
        inst(Op::Bind, Dst::ShouldReport, Src::Imm(0), Src::Bool(true)),
        inst(Op::Bind, Dst::Micros, Src::Imm(0), Src::Imm(0)),
    ];
    let clauses = vec![
        Clause { start: 0, guard_insts: 0, body_insts: 5, guard: Src::Bool(true) },
        Clause { start: 5, guard_insts: 1, body_insts: 2, guard: Src::Tmp(0) },
    ];
    Program::new(regs, body, clauses, vec![]).unwrap()
}

/// Runs with an agent that gives every flow [`constant`] with this window and rate; its reports.
pub fn run_constant(
    sim: &mut SimDatapath,
    until_us: u64,
    packets: u64,
    rate: i64,
) -> Vec<(FlowId, Vec<i64>)> {
    let mut reports = Vec::new();
    sim.install(ProgramUid(1), &constant()).unwrap();
    let fields = [(Field::Reg(CWND), (packets * MSS) as i64), (Field::Reg(RATE), rate)];
    sim.run(until_us, 100 * MS, &mut |_, wake, datapath| match wake {
        Wake::Event(Event::Created { flow, .. }) => {
            datapath.set_program(flow, ProgramUid(1), &fields).unwrap()
        }
        Wake::Event(Event::Report { flow, values, .. }) => reports.push((flow, values.into_vec())),
        Wake::Event(_) => {}
        Wake::Tick => datapath.heartbeat(),
    });
    reports
}

//! The programs that ship with ccplane, on the real libccp: every ACK of long streams leaves the registers,
//! window, rate and reports that the reference VM has, and none is aborted.
#![allow(clippy::unwrap_used)]

use ccplane_alg::{Algorithm, Control, FlowInfo, Report};
use ccplane_algs::{CUBIC, CcpReno, RENO};
use ccplane_oracle::cases;
use ccplane_oracle::libccp::Libccp;
use ccplane_oracle::path::{Path, PathConfig};
use ccplane_oracle::portus::{Verdict, compile as portus};
use ccplane_program::ir::{INFINITY, MAX_REGS, Prim, Program, RegId, Type};
use ccplane_program::stock::{ENTRY_BYTES, STOCK_INFINITY, Stock, StockReg, lower, reported};
use ccplane_program::vm;

const UID: u32 = 7;
const MSS: u64 = 1448;
const START_US: u64 = 1000;

fn paths() -> Vec<(&'static str, PathConfig)> {
    let wan = PathConfig {
        mss_bytes: MSS,
        rate_bytes_per_s: 2_500_000,
        rtt_us: 40_000,
        queue_us: 40_000,
        mark_us: 0,
        loss_one_in: 0,
        aggregate_us: 0,
        phases: true,
    };
    vec![
        ("wan", wan.clone()),
        ("bulk", PathConfig { phases: false, ..wan.clone() }),
        ("lossy", PathConfig { loss_one_in: 200, ..wan.clone() }),
        ("marked", PathConfig { mark_us: 5_000, ..wan.clone() }),
        // A window of some 4 MB, ACKs that cover many segments, jumbo frames.
        (
            "fat",
            PathConfig {
                mss_bytes: 8948,
                rate_bytes_per_s: 125_000_000,
                rtt_us: 30_000,
                aggregate_us: 200,
                ..wan.clone()
            },
        ),
        // Windows of a few segments: a modem, and a data centre.
        ("thin", PathConfig { rate_bytes_per_s: 7_000, rtt_us: 300_000, queue_us: 900_000, ..wan.clone() }),
        ("near", PathConfig { rate_bytes_per_s: 1_250_000_000, rtt_us: 30, queue_us: 50, ..wan }),
    ]
}

/// A program as bytes.
struct Compiled<'a> {
    who: &'static str,
    expressions: u32,
    instructions: u32,
    bytes: &'a [u8],
}

/// An algorithm that steers one flow on the reference VM.
struct RunningAlgorithm {
    program: Program,
    stock: Stock,
    flow: Box<dyn ccplane_alg::Flow>,
    control: Control,
    start: Vec<(&'static str, i64)>,
}

impl RunningAlgorithm {
    fn new(algorithm: &dyn Algorithm, mss_bytes: u64) -> RunningAlgorithm {
        let source = algorithm.programs().remove(0);
        let program = ccplane_program::compile(source.source).unwrap();
        let stock = lower(&program).unwrap();
        let info = FlowInfo::example(mss_bytes as u32, 10 * mss_bytes);
        let mut control = Control::default();
        let flow = algorithm.flow(&info, &mut control);
        let last = control.requests().last().unwrap();
        assert!(last.program.is_some());
        let start = last.fields.to_vec();
        control.clear();
        RunningAlgorithm { program, stock, flow, control, start }
    }

    /// Fields as libccp names them.
    fn stock_fields(&self, fields: &[(&'static str, i64)]) -> Vec<(StockReg, u64)> {
        let reg = |name| match name {
            "Cwnd" => StockReg::CWND,
            "Rate" => StockReg::RATE,
            name => self.stock.update_reg(self.program.reg(name).unwrap()).unwrap(),
        };
        fields.iter().map(|(name, value)| (reg(*name), *value as u64)).collect()
    }

    fn apply(&self, ours: &mut vm::ProgramState, fields: &[(&'static str, i64)]) {
        for (name, value) in fields {
            match *name {
                "Cwnd" => ours.cwnd_bytes = *value,
                "Rate" => ours.rate_bytes_per_s = *value,
                name => ours.regs[usize::from(self.program.reg(name).unwrap())] = *value,
            }
        }
    }

    /// Returns the fields that the algorithm sets in answer to a report.
    fn on_report(&mut self, now_us: u64, values: &[i64]) -> Vec<(&'static str, i64)> {
        let names: Vec<String> = self.program.regs()[..values.len()]
            .iter()
            .map(|r| r.name.trim_start_matches("Report.").to_owned())
            .collect();
        let report = Report { program: "any", names: &names, values, truth: None };
        self.flow.on_report(now_us, &report, &mut self.control);
        assert!(self.control.requests().all(|request| request.program.is_none()));
        let fields = self.control.requests().flat_map(|request| request.fields.to_vec()).collect();
        self.control.clear();
        fields
    }
}

#[derive(Default, Debug)]
struct Tally {
    acks: u64,
    reports: u64,
    losses: u64,
    timeouts: u64,
    window_packets: (u64, u64),
}

/// Whether libccp's register holds our value. portus makes true + true = 2 of a kept `||`.
fn same(program: &Program, reg: RegId, ours: i64, theirs: u64) -> bool {
    if program.regs()[usize::from(reg)].ty == Type::Bool {
        return (ours != 0) == (theirs != 0);
    }
    theirs == if ours == INFINITY { u64::from(STOCK_INFINITY) } else { ours as u64 }
}

/// Runs one flow on both.
fn run(
    mut running: RunningAlgorithm,
    compiled: &Compiled<'_>,
    config: &PathConfig,
    seed: u64,
    acks: u64,
) -> Tally {
    let mut theirs = Libccp::new();
    let (expressions, instructions) = (compiled.expressions, compiled.instructions);
    assert_eq!(theirs.install_raw(UID, expressions, instructions, compiled.bytes), 0);
    assert!(theirs.change_program(UID, &running.stock_fields(&running.start)) >= 0);

    let mut cwnd = 10 * config.mss_bytes;
    let mut ours = vm::ProgramState::new(&running.program, cwnd as i64, START_US as i64);
    running.apply(&mut ours, &running.start);
    let mut path = Path::new(config.clone(), seed, START_US);
    let mut tally = Tally { window_packets: (u64::MAX, 0), ..Tally::default() };
    let (mut report, mut rate) = ([0; MAX_REGS], 0);
    // libccp counts Micros from the first ACK after the program's change.
    let mut started = false;
    for n in 0..acks {
        let prims = path.next_ack(cwnd);
        let now_us = prims.get(Prim::AckNow);
        if !std::mem::replace(&mut started, true) {
            ours.micros_zero_us = now_us;
        }
        let got = theirs.invoke(&prims, cwnd as u32, rate);
        let outcome = ours.invoke(&running.program, &prims, &mut report);
        let context =
            || format!("{} bytes, seed {seed}, ACK {n}: {prims:?}\n{got:?}\n{ours:?}", compiled.who);
        assert_eq!(got.code, 0, "libccp aborted: {}", context());
        assert_eq!(ours.faults, 0, "{}", context());
        for reg in 0..running.program.regs().len() as RegId {
            let decl = &running.program.regs()[usize::from(reg)];
            let theirs = theirs.register(running.stock.reg(reg).unwrap()).unwrap();
            let is_same = same(&running.program, reg, ours.regs[usize::from(reg)], theirs);
            assert!(is_same, "{}: {theirs}; {}", decl.name, context());
        }
        assert_eq!(got.cwnd.map(i64::from), Some(ours.cwnd_bytes), "{}", context());
        assert_eq!(got.rate.map_or(0, i64::from), ours.rate_bytes_per_s, "{}", context());
        assert_eq!(outcome.report, got.report.is_some(), "{}", context());
        cwnd = ours.cwnd_bytes as u64;
        rate = ours.rate_bytes_per_s as u64;
        if let Some(reported_values) = &got.report {
            let values = report[..running.program.report_len()].to_vec();
            assert_eq!(
                values,
                reported_values.iter().map(|v| reported(*v)).collect::<Vec<_>>(),
                "{}",
                context()
            );
            tally.reports += 1;
            let fields = running.on_report(now_us as u64, &values);
            if !fields.is_empty() {
                assert!(theirs.update(&running.stock_fields(&fields)) >= 0);
                running.apply(&mut ours, &fields);
            }
        }
        let packets = cwnd / config.mss_bytes;
        tally.window_packets = (tally.window_packets.0.min(packets), tally.window_packets.1.max(packets));
    }
    tally.acks = acks;
    (tally.losses, tally.timeouts) = path.mishaps();
    tally
}

/// Runs an algorithm over all paths, as we and as portus compile it.
fn run_everywhere(algorithm: &dyn Algorithm) {
    let source = algorithm.programs().remove(0).source;
    let Verdict::Bytes(portus) = portus(source) else { panic!("portus refuses {source}") };
    let acks = cases(40_000);
    let mut total = Tally::default();
    for (seed, (name, config)) in paths().into_iter().enumerate() {
        for who in ["our", "portus's"] {
            let running = RunningAlgorithm::new(algorithm, config.mss_bytes);
            let stock = running.stock.clone();
            let bytes = if who == "our" { stock.bytes() } else { &portus[..] };
            let expressions = stock.num_expressions();
            let instructions = (bytes.len() / ENTRY_BYTES) as u32 - expressions;
            let compiled = Compiled { who, expressions, instructions, bytes };
            let tally = run(running, &compiled, &config, seed as u64, acks);
            println!("{} over {name}, {who} bytes: {tally:?}", algorithm.name());
            let (least, most) = tally.window_packets;
            assert!(tally.reports > 10 && most >= 3 * least.max(1), "{name}: {tally:?}");
            total.losses += tally.losses;
            total.timeouts += tally.timeouts;
        }
    }
    // A stream on which nothing happens proves nothing.
    assert!(total.losses > acks / 100 && total.timeouts > 10, "{total:?}");
}

#[test]
fn reno_does_on_libccp_what_it_does_here() {
    run_everywhere(&RENO);
}

#[test]
fn cubic_does_on_libccp_what_it_does_here() {
    run_everywhere(&CUBIC);
}

#[test]
fn ccp_reno_does_on_libccp_what_it_does_here() {
    run_everywhere(&CcpReno::default());
}

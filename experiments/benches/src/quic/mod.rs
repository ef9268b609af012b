//! `tput.quic`, `pace.quic` and `ack.quic.reno`: QUIC flows over loopback, one thread at each end. `quic.connections` and
//! `quic.memory`: many connections of one endpoint.

mod ack;
mod crowd;
pub mod flow;
mod listeners;
mod memory;
mod metered;
mod network;
mod slow;
mod stock;

use std::time::Duration;

use ccplane_alg::Algorithm;
use ccplane_algs::RENO;

pub use self::ack::run as ack;
#[cfg(feature = "dpdk")]
pub use self::ack::{ASK, EMPTY, REMEMBER};
pub use self::crowd::run as connections;
use self::flow::{BenchFlow, CongestionControl, QuinnControl};
pub use self::memory::run as memory;
use crate::error::BenchError;
use crate::figure::{Figure, Pair, percentile};
use crate::proof::{self, Proof};

const PAIRS: usize = 7;
/// Runs of each rate.
const PACED_RUNS: usize = 3;
const RUN: Duration = Duration::from_millis(1500);
/// Left out at a run's beginning: slow start.
const WARM: Duration = Duration::from_millis(700);
const PACED_RUN: Duration = Duration::from_secs(2);
/// Rates of `pace.quic`, Mb/s.
const RATES_MBIT: [u64; 4] = [10, 100, 500, 1000];
/// Added to Reno: each 10 ms Aurora's snapshot is asked, and what it says is not heeded, so that the figure is what asking
/// costs. Each time from the same rate: at the smallest one the monitor would take the flow from its program.
const ASKING: &str =
    "(when (> Micros 10000) (:= Micros 0) (history 10 Report.rtt_us Report.acked Report.lost)
    (:= Rate 125000000) (policy 0) (:= Rate 0) (fallthrough))";

/// The contenders of `tput.quic` in each round.
#[derive(Clone, Copy)]
enum Contender<'a> {
    /// quinn under its own driver.
    Stock(QuinnControl),
    /// Whatever steers, under our driver.
    Ours(CongestionControl<'a>),
}

impl Contender<'_> {
    /// Goodput, Gb/s, and the proof of the control.
    fn run(self) -> Result<(f64, Proof), BenchError> {
        match self {
            Contender::Stock(control) => stock::goodput_gbit(control, WARM, RUN),
            Contender::Ours(steering) => {
                let run = BenchFlow { steering, time: RUN }.run()?;
                Ok((run.goodput_gbit(), run.proof))
            }
        }
    }
}

/// Goodput of stock quinn over loopback, Gb/s, and the proof that its peer acknowledged it.
#[cfg(feature = "dpdk")]
pub fn stock_gbit(control: QuinnControl) -> Result<(f64, Proof), BenchError> {
    Contender::Stock(control).run()
}

const STOCK_CUBIC: (usize, &str) = (0, "stock quinn with its Cubic");
const STOCK_NEWRENO: (usize, &str) = (1, "stock quinn with its NewReno");
const DRIVER_NEWRENO: (usize, &str) = (3, "quinn's NewReno under our driver");
/// The rows of `tput.quic`: the name, the index of the goodput, and the baseline with its index.
const ROWS: [(&str, usize, (usize, &str)); 6] = [
    ("tput.quic.reno", 4, STOCK_CUBIC),
    ("tput.quic.snapshot", 5, STOCK_CUBIC),
    ("tput.quic.native", 6, STOCK_CUBIC),
    // What the driver does: the same controller under both.
    ("tput.quic.driver.cubic", 2, STOCK_CUBIC),
    ("tput.quic.driver.newreno", 3, STOCK_NEWRENO),
    // What the program does: the same driver under both.
    ("tput.quic.program", 4, DRIVER_NEWRENO),
];

/// `tput.quic`: goodput of a flow under our driver and program, stock quinn, and quinn's controllers under our driver.
pub fn tput() -> Result<Vec<Figure>, BenchError> {
    let reno = RENO.programs()[0].source;
    let asking = with_clause(reno, ASKING);
    let contenders = [
        Contender::Stock(QuinnControl::Cubic),
        Contender::Stock(QuinnControl::NewReno),
        Contender::Ours(CongestionControl::Quinn(QuinnControl::Cubic)),
        Contender::Ours(CongestionControl::Quinn(QuinnControl::NewReno)),
        Contender::Ours(CongestionControl::Program { source: reno, set: &[] }),
        Contender::Ours(CongestionControl::Program { source: &asking, set: &[] }),
        Contender::Ours(CongestionControl::Native),
    ];
    let mut rounds = Vec::new();
    // One round to warm up.
    for round in 0..=PAIRS {
        let mut runs: Vec<Option<(f64, Proof)>> = vec![None; contenders.len()];
        for n in 0..contenders.len() {
            // The order alternates.
            let n = (n + round) % contenders.len();
            runs[n] = Some(contenders[n].run()?);
        }
        if round > 0 {
            rounds.push(runs.into_iter().flatten().collect::<Vec<_>>());
        }
    }
    ROWS.iter()
        .map(|(name, of, (against, baseline))| {
            let pairs: Vec<Pair> = rounds.iter().map(|runs| (runs[*of].0, runs[*against].0)).collect();
            let proofs = rounds.iter().flat_map(|runs| [&runs[*of].1, &runs[*against].1]);
            Ok(Figure::paired(*name, "Gb/s", *baseline, &pairs, &proof::all(proofs)?))
        })
        .collect()
}

/// `pace.quic`: the rate at which a flow leaves, against the one that its program decided; and its bursts.
pub fn pace() -> Result<Vec<Figure>, BenchError> {
    RATES_MBIT.iter().map(|mbit| paced(&format!("pace.quic.{mbit}"), *mbit, &mut |flow| flow.run())).collect()
}

/// Runs of one decided rate.
pub fn paced(
    name: &str,
    mbit: u64,
    run: &mut dyn FnMut(&BenchFlow<'_>) -> Result<flow::Run, BenchError>,
) -> Result<Figure, BenchError> {
    let flow =
        BenchFlow { steering: CongestionControl::Rate { bytes_per_s: mbit * 125_000 }, time: PACED_RUN };
    let (mut pairs, mut bursts, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..PACED_RUNS {
        let run = run(&flow)?;
        bursts.extend(run.bursts.iter().map(|datagrams| f64::from(*datagrams)));
        pairs.push((run.sent_mbit(), mbit as f64));
        proofs.push(run.proof);
    }
    let (p50, p99) = (percentile(&bursts, 0.5), percentile(&bursts, 0.99));
    let figure = Figure::paired(name, "Mb/s", "the decided rate", &pairs, &proof::all(&proofs)?);
    Ok(figure.with_note(format!("bursts: p50 {p50}, p99 {p99} datagrams")))
}

/// The program with another clause before its own.
fn with_clause(source: &str, clause: &str) -> String {
    let at = source.find("(when").unwrap_or(source.len());
    format!("{}{clause}\n{}", &source[..at], &source[at..])
}

fn missing(error: impl std::fmt::Display) -> BenchError {
    BenchError::Missing(error.to_string())
}

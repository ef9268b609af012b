//! `tput.quic`, `pace.quic` and `ack.quic.reno`: QUIC flows over loopback, one thread at each end. `quic.connections` and
//! `quic.memory`: many connections of one endpoint.

mod ack;
mod crowd;
pub mod flow;
mod heard;
mod memory;
mod metered;
mod network;
mod stock;

use std::time::Duration;

use ccplane_alg::Algorithm;
use ccplane_algs::Reno;

pub use self::ack::run as ack;
#[cfg(feature = "dpdk")]
pub use self::ack::{ASK, EMPTY, REMEMBER};
pub use self::crowd::run as connections;
use self::flow::{Flow, Steering};
pub use self::memory::run as memory;
use crate::error::BenchError;
use crate::figure::{Figure, percentile};

const PAIRS: usize = 7;
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

/// `tput.quic`: goodput of a flow, against one of stock quinn with its Cubic.
pub fn tput() -> Result<Vec<Figure>, BenchError> {
    let reno = Reno::default().programs()[0].source;
    let asking = with_clause(reno, ASKING);
    let runs = [
        ("tput.quic.reno", Steering::Program { source: reno, set: &[] }),
        ("tput.quic.snapshot", Steering::Program { source: &asking, set: &[] }),
        ("tput.quic.native", Steering::Native),
    ];
    let mut figures = Vec::new();
    for (name, steering) in runs {
        let flow = Flow { steering, time: RUN };
        let mut pairs = Vec::new();
        // One run of each to warm up.
        for n in 0..=PAIRS {
            // Who goes first alternates.
            let (ours, stock);
            if n % 2 == 0 {
                ours = flow.run()?.goodput_gbit();
                stock = stock::goodput_gbit(WARM, RUN)?;
            } else {
                stock = stock::goodput_gbit(WARM, RUN)?;
                ours = flow.run()?.goodput_gbit();
            }
            if n > 0 {
                pairs.push((ours, stock));
            }
        }
        figures.push(Figure::paired(name, "Gb/s", "stock quinn with its Cubic", &pairs));
    }
    Ok(figures)
}

/// `pace.quic`: the rate at which a flow leaves, against the one that its program decided; and its bursts.
pub fn pace() -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    for mbit in RATES_MBIT {
        let flow = Flow { steering: Steering::Rate { bytes_per_s: mbit * 125_000 }, time: PACED_RUN };
        let run = flow.run()?;
        let bursts: Vec<f64> = run.bursts.iter().map(|datagrams| f64::from(*datagrams)).collect();
        let note =
            format!("bursts: p50 {}, p99 {} datagrams", percentile(&bursts, 0.5), percentile(&bursts, 0.99));
        let pair = (run.sent_mbit(), mbit as f64);
        figures.push(
            Figure::paired(format!("pace.quic.{mbit}"), "Mb/s", "the decided rate", &[pair]).noted(note),
        );
    }
    Ok(figures)
}

/// The program with another clause before its own.
fn with_clause(source: &str, clause: &str) -> String {
    let at = source.find("(when").unwrap_or(source.len());
    format!("{}{clause}\n{}", &source[..at], &source[at..])
}

fn missing(error: impl std::fmt::Display) -> BenchError {
    BenchError::Missing(error.to_string())
}

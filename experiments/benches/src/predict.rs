//! `predict`: a prediction server by each of its datapaths, at the end of one virtual cable with native XDP at both ends, against
//! blocking sockets.
//!
//! The client asks over an AF_XDP socket that it polls, on the first core: one system call of a round trip is its own. A server that
//! has a thread runs it on the second core. A DPDK port (feature `dpdk`) has such a cable, and such a client, of its own. In the rows
//! `socket-client` the client polls an ordinary socket; in those of regret, which time nothing, it waits in one.

mod client;
mod lab;
#[cfg(feature = "dpdk")]
mod port;
mod regret;

use std::sync::Arc;
use std::time::Duration;

use ccplane_predict::data::Images;
use ccplane_predict::load::{Load, LoadOutcome, Pace};
use ccplane_predict::train::{Origin, train};
use ccplane_predict::{Choice, Portfolio};
use ccplane_snapshot::{Admission, Trust};

use crate::error::BenchError;
use crate::figure::{Figure, Pair, in_turn};
use crate::proof::{self, Proof};
use lab::{Contender, Lab};

/// Measurements of each datapath, each beside one of the baseline.
const ROUNDS: usize = 7;
const ONE_OUTSTANDING: Duration = Duration::from_millis(250);
const OPEN_LOOP: Duration = Duration::from_millis(250);
/// Requests a second of an open loop: more than any of these servers answers.
const FLOOD: f64 = 2e6;
/// The seed of the predictors.
const SEED: u64 = 1;
const BASELINE: &str = "blocking sockets";
/// The client of all rows but `socket-client` and regret.
const CLIENT: &str = "the client polls an XDP socket";

/// The images that are asked about, and the predictors that answer.
pub(crate) struct Asked {
    pub(crate) portfolio: Arc<Portfolio>,
    pub(crate) images: Images,
}

impl Asked {
    /// Trains the ten predictors on the digits that come with the server.
    fn new() -> Result<Asked, BenchError> {
        let split = Images::digits().map_err(missing)?.split();
        let origin = Origin {
            data: "digits".into(),
            seed: SEED,
            command: "ccplane bench predict".into(),
            created_by: concat!("ccplane ", env!("CARGO_PKG_VERSION")).into(),
        };
        let admit = |snapshot| Trust::Any.admit(snapshot, &Admission::default()).map_err(missing);
        let trained = train(&split, &origin, |_| {}).map_err(missing)?;
        let networks: Result<Vec<_>, BenchError> =
            trained.into_iter().map(|t| Ok((t.name, admit(t.snapshot)?))).collect();
        let portfolio = Arc::new(Portfolio::new(networks?).map_err(missing)?);
        Ok(Asked { portfolio, images: split.test })
    }
}

/// One measurement of a datapath.
struct MeasuredLoads {
    /// The outcome with one outstanding request.
    one: LoadOutcome,
    /// The outcome of an open loop of more requests than are answered.
    open: LoadOutcome,
    /// Replies of the same loop to each second of processor time.
    per_core: f64,
    /// The outcome of an open loop of half of the requests that the other one had answered.
    half: LoadOutcome,
    proof: Proof,
}

/// Measures all figures of `predict`.
pub fn run() -> Result<Vec<Figure>, BenchError> {
    let asked = Asked::new()?;
    let lab = Lab::new(&asked)?;
    let mut figures = Vec::new();
    for (slot, choice) in Choice::DEFAULT.into_iter().enumerate() {
        for contender in lab.contenders() {
            figures.extend(against_sockets(&lab, contender, slot as u8, choice)?);
        }
        figures.push(by_socket(&lab, slot as u8, choice)?);
        figures.push(against_echo(&lab, slot as u8, choice)?);
        figures.push(regret::figure(&asked, &lab, slot as u8, choice)?);
    }
    Ok(figures)
}

fn name(choice: Choice) -> &'static str {
    match choice {
        Choice::Exp3 => "exp3",
        Choice::Exp4 => "exp4",
    }
}

fn measure(lab: &Lab, contender: Contender, slot: u8) -> Result<MeasuredLoads, BenchError> {
    let load = |pace, time| Load { slot, pace, time, feedback: false, spins: true };
    let server = lab.serve(contender)?;
    // Of this time nothing is kept, and weights move.
    let warm = Load { feedback: true, ..load(Pace::OneOutstanding, ONE_OUTSTANDING / 10) };
    lab.ask(contender, &warm)?;
    let one = lab.ask(contender, &load(Pace::OneOutstanding, ONE_OUTSTANDING))?;
    let (open, per_core) = lab.ask_per_core(contender, &load(Pace::OpenLoop(FLOOD), OPEN_LOOP))?;
    let half = lab.ask(contender, &load(Pace::OpenLoop(open.per_second() / 2.0), OPEN_LOOP))?;
    let answered = one.answered + open.answered + half.answered;
    let proof = Proof::counted("replies", answered)?.and(&server.proof(answered)?);
    Ok(MeasuredLoads { one, open, per_core, half, proof })
}

/// Rows of one datapath, each beside the same of blocking sockets.
fn against_sockets(
    lab: &Lab,
    contender: Contender,
    slot: u8,
    choice: Choice,
) -> Result<Vec<Figure>, BenchError> {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let (ours, sockets) =
            in_turn(round, || measure(lab, contender, slot), || measure(lab, Contender::Blocking, slot))?;
        rounds.push((ours, sockets));
    }
    let proof = proof::all(rounds.iter().flat_map(|(ours, sockets)| [&ours.proof, &sockets.proof]))?;
    let row = format!("predict.{}.{}", contender.name(), name(choice));
    let figure = |what: &str, unit, of: &dyn Fn(&MeasuredLoads) -> f64| {
        let pairs: Vec<Pair> = rounds.iter().map(|(ours, sockets)| (of(ours), of(sockets))).collect();
        Figure::paired(format!("{row}{what}"), unit, BASELINE, &pairs, &proof)
    };
    let us = |outcome: &LoadOutcome, share| outcome.latency_ns(share).unwrap_or(0) as f64 / 1e3;
    let one = "one outstanding request";
    let per_core = "the same for each second of processor time, the client's included";
    let half = "an open loop of half as many requests as each answers in `.open`";
    let rows = [
        (figure("", "requests/s", &|m| m.one.per_second()), one),
        (figure(".p50", "us", &|m| us(&m.one, 0.5)), one),
        (figure(".p99", "us", &|m| us(&m.one, 0.99)), one),
        (figure(".open", "requests/s", &|m| m.open.per_second()), contender.cores()),
        (figure(".core", "requests/s", &|m| m.per_core), per_core),
        (figure(".half.p50", "us", &|m| us(&m.half, 0.5)), half),
        (figure(".half.p99", "us", &|m| us(&m.half, 0.99)), half),
    ];
    Ok(rows.into_iter().map(|(figure, note)| figure.with_note(format!("{note}; {CLIENT}"))).collect())
}

/// The server in XDP against blocking sockets, both asked over an ordinary socket, as most clients would.
fn by_socket(lab: &Lab, slot: u8, choice: Choice) -> Result<Figure, BenchError> {
    let load = Load { slot, pace: Pace::OneOutstanding, time: ONE_OUTSTANDING, feedback: false, spins: true };
    let ask = |contender| {
        let server = lab.serve(contender)?;
        let warm = Load { feedback: true, time: ONE_OUTSTANDING / 10, ..load };
        lab.ask_by_socket(contender, &warm)?;
        let outcome = lab.ask_by_socket(contender, &load)?;
        let proof = Proof::counted("replies", outcome.answered)?.and(&server.proof(outcome.answered)?);
        Ok::<_, BenchError>((outcome.per_second(), proof))
    };
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (ours, sockets) = in_turn(round, || ask(Contender::Xdp), || ask(Contender::Blocking))?;
        pairs.push((ours.0, sockets.0));
        proofs.push(ours.1.and(&sockets.1));
    }
    let row = format!("predict.xdp.{}.socket-client", name(choice));
    let note = "one outstanding request; the client of both polls an ordinary socket";
    Ok(Figure::paired(row, "requests/s", BASELINE, &pairs, &proof::all(&proofs)?).with_note(note))
}

/// The server in XDP against what it cannot be faster than: an echo in XDP, and the networks' own time.
fn against_echo(lab: &Lab, slot: u8, choice: Choice) -> Result<Figure, BenchError> {
    let load = Load { slot, pace: Pace::OneOutstanding, time: ONE_OUTSTANDING, feedback: false, spins: true };
    let (mut pairs, mut proofs) = (Vec::new(), Vec::new());
    let mut network_us = 0.0;
    for round in 0..ROUNDS {
        let ours = || {
            let server = lab.serve(Contender::Xdp)?;
            lab.ask(Contender::Xdp, &Load { time: ONE_OUTSTANDING / 10, ..load })?;
            let outcome = lab.ask(Contender::Xdp, &load)?;
            let proof = server.proof(outcome.answered)?;
            Ok::<_, BenchError>((outcome, proof))
        };
        let echo = || {
            let _server = lab.serve(Contender::Echo)?;
            lab.ask(Contender::Echo, &Load { time: ONE_OUTSTANDING / 10, ..load })?;
            lab.ask(Contender::Echo, &load)
        };
        let ((ours, proof), echo) = in_turn(round, ours, echo)?;
        network_us = lab.network_ns(choice)? / 1e3;
        let us = |outcome: &LoadOutcome| outcome.latency_ns(0.5).unwrap_or(0) as f64 / 1e3;
        pairs.push((us(&ours), us(&echo) + network_us));
        proofs.push(proof.and(&Proof::counted("echoes", echo.answered)?));
    }
    let row = format!("predict.xdp.{}.bound", name(choice));
    let baseline = "an echo in XDP, and the networks' own time in the kernel";
    let note = format!("p50; the networks take {network_us:.2} us; {CLIENT}");
    Ok(Figure::paired(row, "us", baseline, &pairs, &proof::all(&proofs)?).with_note(note))
}

pub(crate) fn missing(error: impl std::fmt::Display) -> BenchError {
    BenchError::Missing(error.to_string())
}

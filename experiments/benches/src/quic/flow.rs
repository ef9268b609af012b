//! One flow of ours over loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, Control, FlowInfo};
use ccplane_algs::{Aurora, RENO};
use ccplane_contract::{Datapath, Event as Happened, Field, Part, ProgramUid};
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_program::ir::Program;
use ccplane_quantize::snapshot::{DeployOptions, Snapshot};
use ccplane_quic::quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use ccplane_quic::quinn_proto::{ClientConfig, ConnectionStats, PathStats, ServerConfig};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{self as quic, Config, Dir, Endpoint, Event, Read, StreamEvent, UdpWire, Wire};

use super::listeners::{ListenerFactory, Times};
use super::metered::Metered;
use super::{WARM, missing};
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::proof::{self, Proof, Witness};

const PROTOCOL: &[u8] = b"ccplane-bench";
/// The sender's buffer, bytes; stock quinn gets the same.
pub const SEND_WINDOW_BYTES: u64 = 8 << 20;
/// The receiver's window, bytes; stock quinn gets the same.
pub const RECEIVE_WINDOW_BYTES: u32 = 64 << 20;
/// The data that is written repeatedly.
pub const CHUNK: &[u8] = &[7; 1 << 16];
/// The time that a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(1);
/// The time between two polls of the flow.
const POLL_EVERY: Duration = Duration::from_millis(10);
const UID: ProgramUid = ProgramUid(1);

/// The flow's congestion control.
#[derive(Clone, Copy)]
pub enum CongestionControl<'a> {
    /// A program with Reno's registers, and values that are set beside Reno's; slot 0 holds Aurora's snapshot.
    Program { source: &'a str, set: &'a [(&'a str, i64)] },
    /// A program that holds a rate.
    Rate { bytes_per_s: u64 },
    /// The engine's own Reno.
    Native,
    /// A controller of quinn's, with none of ours behind it.
    Quinn(QuinnControl),
}

/// Controllers that come with quinn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuinnControl {
    NewReno,
    Cubic,
}

impl QuinnControl {
    /// The factory of controllers, with quinn's defaults.
    pub fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            QuinnControl::NewReno => Arc::new(NewRenoConfig::default()),
            QuinnControl::Cubic => Arc::new(CubicConfig::default()),
        }
    }
}

/// A flow to run, and for how long.
pub struct BenchFlow<'a> {
    pub steering: CongestionControl<'a>,
    /// The time for which it is measured.
    pub time: Duration,
}

/// The measurements of a run.
pub struct Run {
    received_bytes: u64,
    sent_bytes: u64,
    seconds: f64,
    /// Lengths of bursts, datagrams.
    pub bursts: Vec<u32>,
    /// The sender's path statistics since the flow began.
    #[cfg_attr(not(feature = "dpdk"), expect(dead_code, reason = "only DPDK's figures tell of it"))]
    pub path: PathStats,
    /// The proof that the flow was steered as intended.
    pub proof: Proof,
}

impl Run {
    /// The receiving application's throughput, Gb/s.
    pub fn goodput_gbit(&self) -> f64 {
        self.received_bytes as f64 * 8e-9 / self.seconds
    }

    /// UDP payloads that left, Mb/s.
    pub fn sent_mbit(&self) -> f64 {
        self.sent_bytes as f64 * 8e-6 / self.seconds
    }
}

/// The state that the threads of a run share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// A socket on loopback.
pub fn socket() -> Result<UdpWire, BenchError> {
    context("bind", UdpWire::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))))
}

fn config() -> Config {
    Config {
        send_window_bytes: SEND_WINDOW_BYTES,
        stream_window_bytes: RECEIVE_WINDOW_BYTES,
        receive_window_bytes: RECEIVE_WINDOW_BYTES,
        ..Config::default()
    }
}

impl BenchFlow<'_> {
    /// Runs the flow over loopback.
    ///
    /// # Errors
    /// No socket can be opened, or no connection made.
    pub fn run(&self) -> Result<Run, BenchError> {
        let listening = socket()?;
        let to = listening.local_addr();
        self.over(socket()?, listening, to)
    }

    /// Runs it from a wire to another, which is at `to`.
    ///
    /// # Errors
    /// No connection can be made.
    pub fn over(
        &self,
        from: impl Wire + Send,
        listening: impl Wire + Send,
        to: SocketAddr,
    ) -> Result<Run, BenchError> {
        self.run_with_listeners(&[], from, listening, to).map(|(run, _)| run)
    }

    /// The same, while controllers under `others`, if any, hear what the flow's own hears; and what each takes for its ACKs,
    /// the flow's own first. Then quinn paces.
    ///
    /// # Errors
    /// No connection; one of them was not steered as it was to be throughout.
    pub fn run_with_listeners(
        &self,
        others: &[CongestionControl<'_>],
        from: impl Wire + Send,
        listening: impl Wire + Send,
        to: SocketAddr,
    ) -> Result<(Run, Times), BenchError> {
        let identity = Identity::self_signed(&["localhost"]).map_err(missing)?;
        let trust = Trust::Pinned(identity.fingerprint());
        let server = tls::server(identity, PROTOCOL).map_err(missing)?;
        let client = tls::client(trust, PROTOCOL).map_err(missing)?;
        let (shared, times) = (Shared::default(), Times::default());
        let run = thread::scope(|scope| {
            let sink = scope.spawn(|| {
                let _core = OneCore::nth(1);
                receive(listening, server, &shared)
            });
            let source = scope.spawn(|| {
                let _core = OneCore::nth(0);
                let (control, agents) = self.control(others, &times)?;
                send(from, client, to, control, agents, &shared)
            });
            let measured = measure(&shared, self.time, &|| sink.is_finished() || source.is_finished());
            shared.stop.store(true, Relaxed);
            sink.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            let Sent { bursts, path, proof } = source.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            let (received_bytes, sent_bytes, seconds) = measured?;
            Ok::<_, BenchError>(Run { received_bytes, sent_bytes, seconds, bursts, path, proof })
        })?;
        Ok((run, times))
    }

    /// Creates the congestion control, and the agents of all programs that listen.
    fn control(
        &self,
        others: &[CongestionControl<'_>],
        times: &Times,
    ) -> Result<(quic::Control, Vec<Agent>), BenchError> {
        if let CongestionControl::Quinn(control) = self.steering {
            return Ok((quic::Control::Quinn(control.factory()), Vec::new()));
        }
        let (mut engines, mut agents) = (Vec::new(), Vec::new());
        for steering in std::iter::once(&self.steering).chain(others) {
            let (engine, handle) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
            engines.push(engine);
            agents.push(Agent::new(*steering, handle)?);
        }
        let control = match (&*engines, others) {
            ([engine], []) => engine.clone().into(),
            _ => quic::Control::Quinn(Arc::new(ListenerFactory { engines, times: Arc::clone(times) })),
        };
        Ok((control, agents))
    }
}

/// A sender's measurements.
struct Sent {
    bursts: Vec<u32>,
    path: PathStats,
    proof: Proof,
}

/// Writes until it is told to stop.
fn send(
    wire: impl Wire,
    tls: ClientConfig,
    to: SocketAddr,
    control: quic::Control,
    mut agents: Vec<Agent>,
    shared: &Shared,
) -> Result<Sent, BenchError> {
    let wire = Metered::new(wire, &shared.sent_bytes);
    let mut endpoint = Endpoint::new(wire, control, config());
    let id = endpoint.connect(tls, to, "localhost").map_err(missing)?;
    let mut stream = None;
    while !shared.stop.load(Relaxed) {
        context("turn", endpoint.turn(TURN))?;
        agents.iter_mut().try_for_each(Agent::turn)?;
        while let Some((_, event)) = endpoint.poll() {
            match event {
                Event::Connected => stream = endpoint.connection(id).and_then(|mut c| c.open(Dir::Uni)),
                Event::Closed(reason) => return Err(missing(reason)),
                Event::Stream(_) => {}
            }
        }
        let (Some(stream), Some(mut connection)) = (stream, endpoint.connection(id)) else { continue };
        while connection.write_bytes(stream, &mut CHUNK.into()).map_err(missing)? == CHUNK.len() {}
    }
    let received_bytes = shared.received_bytes.load(Relaxed);
    let stats = endpoint.connection(id).map(|connection| connection.stats()).unwrap_or_default();
    let mut proof = acknowledged(&stats)?;
    for agent in &mut agents {
        proof = proof.and(&agent.prove(received_bytes)?);
    }
    endpoint.close(0, "done");
    context("turn", endpoint.turn(Duration::ZERO))?;
    Ok(Sent { bursts: endpoint.wire().bursts().to_vec(), path: stats.path, proof })
}

/// Proves that the peer acknowledged packets of a connection.
pub fn acknowledged(stats: &ConnectionStats) -> Result<Proof, BenchError> {
    let acks = Proof::counted("ACK frames", stats.frame_rx.acks)?;
    Ok(acks.and(&Proof::counted("packets sent", stats.path.sent_packets)?))
}

/// Receives and drops all data of all streams.
fn receive(wire: impl Wire, tls: ServerConfig, shared: &Shared) -> Result<(), BenchError> {
    let (engine, _datapath) = engine(EngineConfig::new("quic"), Arc::new(|| {}));
    let mut endpoint = Endpoint::new(wire, engine, config());
    endpoint.serve(Some(tls));
    while !shared.stop.load(Relaxed) {
        context("turn", endpoint.turn(TURN))?;
        while let Some((id, event)) = endpoint.poll() {
            let Some(mut connection) = endpoint.connection(id) else { continue };
            let stream = match event {
                Event::Stream(StreamEvent::Opened { dir }) => connection.accept(dir),
                Event::Stream(StreamEvent::Readable { id }) => Some(id),
                _ => None,
            };
            let Some(stream) = stream else { continue };
            while let Ok(Read::Data(data)) = connection.read(stream, usize::MAX) {
                shared.received_bytes.fetch_add(data.len() as u64, Relaxed);
            }
        }
    }
    Ok(())
}

/// Measures the bytes received and sent in `time` after the warm-up, and the actual duration, seconds.
fn measure(shared: &Shared, time: Duration, ended: &dyn Fn() -> bool) -> Result<(u64, u64, f64), BenchError> {
    let start = Instant::now();
    while shared.received_bytes.load(Relaxed) == 0 {
        if ended() || start.elapsed() > PATIENCE {
            return Err(missing("no QUIC flow comes to be over loopback"));
        }
        thread::sleep(TURN);
    }
    thread::sleep(WARM);
    let counts = || (shared.received_bytes.load(Relaxed), shared.sent_bytes.load(Relaxed));
    let (from, before) = (Instant::now(), counts());
    thread::sleep(time);
    let (seconds, after) = (from.elapsed().as_secs_f64(), counts());
    Ok((after.0 - before.0, after.1 - before.1, seconds))
}

/// An agent that sets the program on the flow, sends heartbeats, and polls whether the flow runs it.
struct Agent {
    handle: Handle,
    fields: Option<Vec<(Field, i64)>>,
    events: Vec<Happened>,
    witness: Witness,
    /// Whether the program counts acknowledged bytes, and reports them.
    counts: bool,
    polled_at: Instant,
}

impl Agent {
    fn new(steering: CongestionControl<'_>, mut handle: Handle) -> Result<Agent, BenchError> {
        let agent = |handle, fields, steering, counts| Agent {
            handle,
            fields,
            events: Vec::new(),
            witness: Witness::new(steering),
            counts,
            polled_at: Instant::now(),
        };
        let (program, fields) = match steering {
            // quinn's own has no flow of ours, and no agent.
            CongestionControl::Native | CongestionControl::Quinn(_) => {
                return Ok(agent(handle, None, proof::SteeredBy::Native, true));
            }
            CongestionControl::Program { source, set } => {
                let program = compile(source)?;
                let mut fields = reno_fields(&program);
                for (name, value) in set {
                    let reg = program.reg(name).ok_or_else(|| missing(format!("no register {name}")))?;
                    fields.push((Field::Reg(reg), *value));
                }
                (program, fields)
            }
            CongestionControl::Rate { bytes_per_s } => {
                let source = format!(
                    "(def (Report (acked 0)))
                    (when true (:= Report.acked (+ Report.acked Ack.bytes_acked))
                        (:= Rate {bytes_per_s}) (:= Cwnd {SEND_WINDOW_BYTES}) (fallthrough))
                    (when (> Micros 10000) (:= Micros 0) (report))"
                );
                (compile(&source)?, Vec::new())
            }
        };
        let snapshot = aurora()?;
        handle.define_slot(0, snapshot.shape())?;
        handle.push(0, &snapshot.image(&DeployOptions::ONLY), Part::Active)?;
        handle.install(UID, &program)?;
        Ok(agent(handle, Some(fields), proved_by(&program), counts(&program)))
    }

    /// Proves that its flow, of which `moved_bytes` have arrived, was steered as intended.
    fn prove(&mut self, moved_bytes: u64) -> Result<Proof, BenchError> {
        self.turn()?;
        self.poll();
        let proof = if self.counts {
            self.witness.prove_whole(1, moved_bytes)
        } else {
            self.witness.prove_steered(1)
        };
        Ok(proof?)
    }

    fn poll(&mut self) {
        self.polled_at = Instant::now();
        self.witness.observe(&self.handle.flows());
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        self.handle.heartbeat();
        self.events.clear();
        self.handle.poll(256, &mut self.events);
        for event in &self.events {
            self.witness.hear(event);
            if let (Happened::Created { flow, .. }, Some(fields)) = (event, &self.fields) {
                self.handle.set_program(*flow, UID, fields)?;
            }
        }
        if self.polled_at.elapsed() >= POLL_EVERY {
            self.poll();
        }
        Ok(())
    }
}

/// Returns whether a program counts acknowledged bytes, and reports them.
fn counts(program: &Program) -> bool {
    program.reg("Report.acked").is_some()
}

/// The evidence that a program ran: decisions if it asks a policy (a history alone decides nothing), otherwise its byte count.
fn proved_by(program: &Program) -> proof::SteeredBy {
    match (program.policy_slots().is_empty(), counts(program)) {
        (false, _) => proof::SteeredBy::Policy(Some(UID)),
        (true, true) => proof::SteeredBy::Program(Some(UID)),
        (true, false) => proof::SteeredBy::Empty(UID),
    }
}

/// Parses the snapshot that ships with Aurora.
pub fn aurora() -> Result<Snapshot, BenchError> {
    let policies = Aurora::default().policies();
    let shipped = policies.first().ok_or_else(|| missing("Aurora has no policy"))?;
    Snapshot::built_in(shipped.snapshot).map_err(missing)
}

/// Compiles a fold program.
pub fn compile(source: &str) -> Result<Program, BenchError> {
    ccplane_program::compile(source)
        .map_err(|found| BenchError::Program(found.iter().map(|d| d.to_string()).collect()))
}

/// The fields that Reno sets on a new flow.
pub fn reno_fields(program: &Program) -> Vec<(Field, i64)> {
    let info = FlowInfo::example(1200, 12_000);
    let mut control = Control::default();
    RENO.flow(&info, &mut control);
    let named = control.requests().flat_map(|request| request.fields);
    named.filter_map(|(name, value)| program.reg(name).map(|reg| (Field::Reg(reg), *value))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::quic::ack::{ASK, EMPTY, REMEMBER};

    #[test]
    fn only_a_program_that_asks_is_proved_by_decisions() {
        let by = |source: &str| proved_by(&compile(source).unwrap());
        assert_eq!(by(ASK), proof::SteeredBy::Policy(Some(UID)));
        assert_eq!([by(REMEMBER), by(EMPTY)], [proof::SteeredBy::Empty(UID); 2]);
        assert_eq!(by(RENO.programs()[0].source), proof::SteeredBy::Program(Some(UID)));
    }
}

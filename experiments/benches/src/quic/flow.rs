//! One flow of ours over loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use ccplane_alg::{Algorithm, Control, FlowInfo};
use ccplane_algs::{Aurora, Reno};
use ccplane_contract::{Datapath, Event as Happened, Field, Part, ProgramUid};
use ccplane_engine::{EngineConfig, Handle, engine};
use ccplane_program::ir::Program;
use ccplane_quantize::snapshot::{DeployOptions, Snapshot};
use ccplane_quic::quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use ccplane_quic::quinn_proto::{ClientConfig, ConnectionStats, PathStats, ServerConfig};
use ccplane_quic::tls::{self, Identity, Trust};
use ccplane_quic::{self as quic, Config, Dir, Endpoint, Event, Read, StreamEvent, UdpWire, Wire};

use super::heard::{Hearers, Times};
use super::metered::Metered;
use super::{WARM, missing};
use crate::cores::OneCore;
use crate::error::{BenchError, context};
use crate::proof::{self, Proof, Witness};

const PROTOCOL: &[u8] = b"ccplane-bench";
/// What may wait to be sent or acknowledged; the same at stock quinn.
pub const SEND_WINDOW_BYTES: u64 = 8 << 20;
/// What a receiver has room for; the same at stock quinn.
pub const RECEIVE_WINDOW_BYTES: u32 = 64 << 20;
/// What is written, again and again.
pub const CHUNK: &[u8] = &[7; 1 << 16];
/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
const TURN: Duration = Duration::from_millis(1);
/// Between two looks at who steers the flow.
const LOOK: Duration = Duration::from_millis(10);
const UID: ProgramUid = ProgramUid(1);

/// Who steers the flow.
#[derive(Clone, Copy)]
pub enum Steering<'a> {
    /// A program on Reno's registers, and what is set of them beside what Reno sets; slot 0 holds Aurora's snapshot.
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
    /// What makes them, as quinn sets them up.
    pub fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            QuinnControl::NewReno => Arc::new(NewRenoConfig::default()),
            QuinnControl::Cubic => Arc::new(CubicConfig::default()),
        }
    }
}

/// A flow to run.
pub struct Flow<'a> {
    pub steering: Steering<'a>,
    /// How long it is measured.
    pub time: Duration,
}

/// What was measured.
pub struct Run {
    received_bytes: u64,
    sent_bytes: u64,
    seconds: f64,
    /// Lengths of bursts, datagrams.
    pub bursts: Vec<u32>,
    /// What the sender counted of the path, from the flow's beginning.
    #[cfg_attr(not(feature = "dpdk"), expect(dead_code, reason = "only DPDK's figures tell of it"))]
    pub path: PathStats,
    /// That what was to steer the flow did.
    pub proof: Proof,
}

impl Run {
    /// What the application received, Gb/s.
    pub fn goodput_gbit(&self) -> f64 {
        self.received_bytes as f64 * 8e-9 / self.seconds
    }

    /// UDP payloads that left, Mb/s.
    pub fn sent_mbit(&self) -> f64 {
        self.sent_bytes as f64 * 8e-6 / self.seconds
    }
}

/// What the threads of a run share.
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

impl Flow<'_> {
    /// Runs it over loopback.
    ///
    /// # Errors
    /// No socket, no connection.
    pub fn run(&self) -> Result<Run, BenchError> {
        let listening = socket()?;
        let to = listening.local_addr();
        self.over(socket()?, listening, to)
    }

    /// Runs it from a wire to another, which is at `to`.
    ///
    /// # Errors
    /// No connection.
    pub fn over(
        &self,
        from: impl Wire + Send,
        listening: impl Wire + Send,
        to: SocketAddr,
    ) -> Result<Run, BenchError> {
        self.heard_by(&[], from, listening, to).map(|(run, _)| run)
    }

    /// The same, while controllers under `others`, if any, hear what the flow's own hears; and what each takes for its ACKs,
    /// the flow's own first. Then quinn paces.
    ///
    /// # Errors
    /// No connection; one of them was not steered as it was to be throughout.
    pub fn heard_by(
        &self,
        others: &[Steering<'_>],
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

    /// Who controls congestion, and the agents of all who hear.
    fn control(
        &self,
        others: &[Steering<'_>],
        times: &Times,
    ) -> Result<(quic::Control, Vec<Agent>), BenchError> {
        if let Steering::Quinn(control) = self.steering {
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
            _ => quic::Control::Quinn(Arc::new(Hearers { engines, times: Arc::clone(times) })),
        };
        Ok((control, agents))
    }
}

/// What a sender tells.
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
    let mut proof = heard_of(&stats)?;
    for agent in &mut agents {
        proof = proof.and(&agent.prove(received_bytes)?);
    }
    endpoint.close(0, "done");
    context("turn", endpoint.turn(Duration::ZERO))?;
    Ok(Sent { bursts: endpoint.wire().bursts().to_vec(), path: stats.path, proof })
}

/// That the peer acknowledged what a connection sent.
pub fn heard_of(stats: &ConnectionStats) -> Result<Proof, BenchError> {
    let acks = Proof::counted("ACK frames", stats.frame_rx.acks)?;
    Ok(acks.and(&Proof::counted("packets sent", stats.path.sent_packets)?))
}

/// Takes what comes on any stream.
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

/// What is received and sent in `time`, once the flow has warmed up; and how long that was, seconds.
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

/// Sets the program on the flow, lives, and looks whether the flow runs it.
struct Agent {
    handle: Handle,
    fields: Option<Vec<(Field, i64)>>,
    events: Vec<Happened>,
    witness: Witness,
    /// Whether the program counts what is acknowledged, and reports it.
    counts: bool,
    looked: Instant,
}

impl Agent {
    fn new(steering: Steering<'_>, mut handle: Handle) -> Result<Agent, BenchError> {
        let agent = |handle, fields, steering, counts| Agent {
            handle,
            fields,
            events: Vec::new(),
            witness: Witness::new(steering),
            counts,
            looked: Instant::now(),
        };
        let (program, fields) = match steering {
            // quinn's own has no flow of ours, and no agent.
            Steering::Native | Steering::Quinn(_) => {
                return Ok(agent(handle, None, proof::Steering::Native, true));
            }
            Steering::Program { source, set } => {
                let program = compile(source)?;
                let mut fields = reno_fields(&program);
                for (name, value) in set {
                    let reg = program.reg(name).ok_or_else(|| missing(format!("no register {name}")))?;
                    fields.push((Field::Reg(reg), *value));
                }
                (program, fields)
            }
            Steering::Rate { bytes_per_s } => {
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

    /// That its flow, of which `moved_bytes` have arrived, was steered as it is to be.
    fn prove(&mut self, moved_bytes: u64) -> Result<Proof, BenchError> {
        self.turn()?;
        self.look();
        let proof = if self.counts {
            self.witness.prove_whole(1, moved_bytes)
        } else {
            self.witness.prove_steered(1)
        };
        Ok(proof?)
    }

    fn look(&mut self) {
        self.looked = Instant::now();
        self.witness.look(&self.handle.flows());
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
        if self.looked.elapsed() >= LOOK {
            self.look();
        }
        Ok(())
    }
}

/// Whether a program counts what is acknowledged, and reports it.
fn counts(program: &Program) -> bool {
    program.reg("Report.acked").is_some()
}

/// What shows that a program ran: decisions where it asks, a history alone decides nothing; else what it counts.
fn proved_by(program: &Program) -> proof::Steering {
    match (program.policy_slots().is_empty(), counts(program)) {
        (false, _) => proof::Steering::Policy(Some(UID)),
        (true, true) => proof::Steering::Program(Some(UID)),
        (true, false) => proof::Steering::Empty(UID),
    }
}

/// Aurora's shipped snapshot.
pub fn aurora() -> Result<Snapshot, BenchError> {
    let policies = Aurora::default().policies();
    let shipped = policies.first().ok_or_else(|| missing("Aurora has no policy"))?;
    Snapshot::built_in(shipped.snapshot).map_err(missing)
}

pub fn compile(source: &str) -> Result<Program, BenchError> {
    ccplane_program::compile(source)
        .map_err(|found| BenchError::Program(found.iter().map(|d| d.to_string()).collect()))
}

/// What Reno sets on a new flow.
pub fn reno_fields(program: &Program) -> Vec<(Field, i64)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let info = FlowInfo {
        mss_bytes: 1200,
        init_cwnd_bytes: 12_000,
        local: address,
        remote: address,
        cgroup: None,
        min_rtt_us: None,
    };
    let mut control = Control::default();
    Reno::default().flow(&info, &mut control);
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
        assert_eq!(by(ASK), proof::Steering::Policy(Some(UID)));
        assert_eq!([by(REMEMBER), by(EMPTY)], [proof::Steering::Empty(UID); 2]);
        assert_eq!(by(Reno::default().programs()[0].source), proof::Steering::Program(Some(UID)));
    }
}

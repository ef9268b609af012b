//! One flow's packets through a datapath of [`Hook::Send`]: when its program runs, and what of its decisions is in force.
//!
//! The other part of the suite runs programs on given primitives. This one gives a datapath packets, and holds what each of them
//! gets against a reference that goes by these rules:
//!
//! 1. The program runs on the flow's first packet and on the first one of a flowlet. Where its last `DecideAt` is above
//!    0, it runs on each packet before which the flow has sent that much.
//! 2. A priority that is served later is in force from the packet on which it was decided. One that is served earlier, and another path,
//!    is so only if nothing of the flow is in flight or a flowlet begins: so no packet overtakes another one of its flow.
//! 3. A path that the flow does not have is no decision: the one before stays in force.

use super::conformance::Conformance;
use super::draws::{below, chance};
use super::executor::ExecutorError;
use super::random;
use ccplane_program::ir::{Hook, MAX_PRIORITY, MAX_REGS, Prim, Program};
use ccplane_program::vm::{NoPolicies, ProgramState, SendPrims};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// The pause that begins a flowlet in streams that are drawn, microseconds.
const FLOWLET_US: u64 = 500;
/// Most packets of such a stream.
const MAX_PACKETS: u32 = 60;

/// A packet with data on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutPacket {
    pub at_us: u64,
    /// The length of its payload, which is above 0.
    pub bytes: u64,
    /// Payload that waits behind it.
    pub waiting_bytes: u64,
    /// Payload of the flow that is in flight before it.
    pub in_flight_bytes: u64,
}

/// A flow's packets, and what its datapath knows of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketStream {
    /// A longer pause begins a flowlet, microseconds.
    pub flowlet_us: u64,
    /// The number of paths that the flow has.
    pub paths: u8,
    /// The path that it begins on.
    pub start_path: u8,
    /// The primitives that no packet changes.
    pub known: SendPrims,
    /// The packets, in order of time.
    pub packets: Vec<OutPacket>,
}

/// The treatment of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketTreatment {
    pub priority: u8,
    pub path: u8,
    /// Whether the program ran on it.
    pub decided: bool,
}

/// The part of a datapath that decides about packets.
pub trait PacketExecutor {
    /// Carries a flow that starts with this program; one [`PacketTreatment`] for each packet.
    ///
    /// # Errors
    /// It cannot.
    fn carry(
        &mut self,
        program: &Program,
        stream: &PacketStream,
    ) -> Result<Vec<PacketTreatment>, ExecutorError>;
}

/// The ways in which a datapath differs from the reference.
#[derive(Debug, thiserror::Error)]
pub enum PacketDivergence {
    #[error("could not run: {0}")]
    NotRun(ExecutorError),
    #[error("{found} packets of {expected}")]
    Length { expected: usize, found: usize },
    #[error("packet {packet}: expected {expected:?}, found {found:?}; stream: {stream:?}")]
    Effect { packet: usize, expected: PacketTreatment, found: PacketTreatment, stream: Box<PacketStream> },
}

/// Returns the decision that the reference makes for each packet.
pub fn reference(program: &Program, stream: &PacketStream) -> Vec<PacketTreatment> {
    let mut vm: Option<ProgramState> = None;
    let mut in_force = PacketTreatment { priority: 0, path: stream.start_path, decided: false };
    let (mut sent, mut last_us) = (0_u64, None::<u64>);
    let start_us = stream.packets.first().map_or(0, |packet| packet.at_us);
    let packet_gets = |packet: &OutPacket| {
        let pause_us = last_us.map(|last_us| packet.at_us - last_us);
        let is_flowlet = pause_us.is_none_or(|pause_us| pause_us > stream.flowlet_us);
        let wanted = |vm: &ProgramState| vm.decide_at_bytes > 0 && integer(sent) >= vm.decide_at_bytes;
        in_force.decided = vm.as_ref().is_none_or(wanted) || is_flowlet;
        if in_force.decided {
            let vm = vm.get_or_insert_with(|| {
                let mut first = ProgramState::new(program, 0, integer(packet.at_us));
                first.path = stream.start_path.into();
                first
            });
            let mut prims = stream.known;
            prims
                .set(Prim::Now, integer(packet.at_us))
                .set(Prim::PacketBytes, integer(packet.bytes))
                .set(Prim::FlowBytesSent, integer(sent))
                .set(Prim::FlowBytesWaiting, integer(packet.waiting_bytes))
                .set(Prim::FlowAgeUs, integer(packet.at_us - start_us))
                .set(Prim::FlowGapUs, integer(pause_us.unwrap_or(0)));
            vm.invoke_with(program, &prims, &mut NoPolicies, &mut [0; MAX_REGS]);
            let is_fresh = packet.in_flight_bytes == 0 || is_flowlet;
            if is_fresh || vm.priority > in_force.priority.into() {
                in_force.priority = vm.priority.clamp(0, MAX_PRIORITY) as u8;
            }
            if is_fresh && vm.path < stream.paths.into() {
                in_force.path = vm.path.max(0) as u8;
            }
        }
        sent += packet.bytes;
        last_us = Some(packet.at_us);
        in_force
    };
    stream.packets.iter().map(packet_gets).collect()
}

fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Carries a stream and holds it against the reference.
///
/// # Errors
/// The first packet that gets something else.
pub fn check_packets(
    executor: &mut dyn PacketExecutor,
    program: &Program,
    stream: &PacketStream,
) -> Result<(), PacketDivergence> {
    let all = executor.carry(program, stream).map_err(PacketDivergence::NotRun)?;
    let expected = reference(program, stream);
    if all.len() != expected.len() {
        return Err(PacketDivergence::Length { expected: expected.len(), found: all.len() });
    }
    let mut pairs = expected.into_iter().zip(all).enumerate();
    match pairs.find(|(_, (expected, found))| expected != found) {
        None => Ok(()),
        Some((packet, (expected, found))) => {
            Err(PacketDivergence::Effect { packet, expected, found, stream: Box::new(stream.clone()) })
        }
    }
}

/// Carries so many streams, drawn from `seed`, under programs drawn from it.
pub fn conform_packets(
    executor: &mut dyn PacketExecutor,
    streams: u32,
    seed: u64,
) -> Conformance<PacketDivergence> {
    let mut result = Conformance::default();
    let shape = random::Shape { hook: Hook::Send, ..random::Shape::default() };
    for n in 0..streams {
        let seed = seed.wrapping_add(n.into());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let outcome = match random::program(&mut rng, &shape) {
            Ok(program) => check_packets(executor, &program, &draw(&mut rng)),
            Err(e) => Err(PacketDivergence::NotRun(e.into())),
        };
        result.note(format!("packets/{seed}"), outcome);
    }
    result
}

/// Draws packets of a flow: bursts, pauses around the length that begins a flowlet, and windows that are empty at times.
fn draw(rng: &mut impl RngCore) -> PacketStream {
    let paths = 1 + below(rng, 8) as u8;
    let mut at_us = u64::from(below(rng, 1_000_000));
    let packets = (0..1 + below(rng, MAX_PACKETS)).map(|n| {
        at_us += match below(rng, 4) {
            _ if n == 0 => 0,
            0 => FLOWLET_US + 1 + u64::from(below(rng, 10_000)),
            _ => u64::from(below(rng, FLOWLET_US as u32)),
        };
        let in_flight_bytes = if n == 0 || chance(rng, 30) { 0 } else { 1 + u64::from(below(rng, 1 << 20)) };
        OutPacket {
            at_us,
            bytes: 1 + u64::from(below(rng, 65_000)),
            waiting_bytes: u64::from(below(rng, 1 << 20)),
            in_flight_bytes,
        }
    });
    let packets = packets.collect();
    PacketStream {
        flowlet_us: FLOWLET_US,
        paths,
        start_path: below(rng, paths.into()) as u8,
        known: random::send_prims(rng, Hook::Send),
        packets,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(packets: &[(u64, u64, u64)]) -> PacketStream {
        let packet = |(at_us, bytes, in_flight_bytes): &(u64, u64, u64)| OutPacket {
            at_us: *at_us,
            bytes: *bytes,
            waiting_bytes: 0,
            in_flight_bytes: *in_flight_bytes,
        };
        PacketStream {
            flowlet_us: 100,
            paths: 3,
            start_path: 2,
            known: SendPrims::default(),
            packets: packets.iter().map(packet).collect(),
        }
    }

    fn gets(source: &str, packets: &[(u64, u64, u64)]) -> Vec<(u8, u8, bool)> {
        let program = ccplane_program::compile(source).unwrap();
        let all = reference(&program, &stream(packets));
        all.iter().map(|steered| (steered.priority, steered.path, steered.decided)).collect()
    }

    #[test]
    fn a_program_that_names_no_count_runs_where_flowlets_begin() {
        let seen = gets(
            "(hook send) (def (n 0)) (when true (:= n (+ n 1)) (:= Priority n))",
            &[(0, 10, 0), (50, 10, 10), (150, 10, 10), (251, 10, 0), (600, 10, 9)],
        );
        assert_eq!(seen, [(1, 2, true), (1, 2, false), (1, 2, false), (2, 2, true), (3, 2, true)]);
    }

    #[test]
    fn one_that_names_a_count_runs_from_there_on() {
        let seen = gets(
            "(hook send) (def) (when true (:= Priority 1) (:= DecideAt 25))",
            &[(0, 10, 0), (1, 10, 10), (2, 10, 10), (3, 10, 10), (4, 10, 10)],
        );
        let decided: Vec<bool> = seen.iter().map(|steered| steered.2).collect();
        assert_eq!(decided, [true, false, false, true, true]);
    }

    #[test]
    fn within_a_flowlet_a_flow_may_only_fall_and_stays_on_its_path() {
        let source = "(hook send) (def (n 0))
            (when true (:= n (- 1 n)) (:= Priority (* n 5)) (:= Path n) (:= DecideAt 1))";
        let seen =
            gets(source, &[(0, 10, 0), (1, 10, 10), (2, 10, 10), (3, 10, 0), (4, 10, 10), (200, 10, 9)]);
        let expected = [(5, 1, true), (5, 1, true), (5, 1, true), (0, 0, true), (5, 0, true), (0, 0, true)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_path_that_is_not_there_is_none() {
        let source = "(hook send) (def (n 0)) (when true (:= n (+ n 2)) (:= Path n))";
        let seen = gets(source, &[(0, 1, 0), (200, 1, 0), (400, 1, 0)]);
        assert_eq!(seen.iter().map(|steered| steered.1).collect::<Vec<_>>(), [2, 2, 2]);
    }
}

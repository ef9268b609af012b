//! Fuzz targets: whatever comes from the socket of portus, the agent goes on, and nothing is asked of a datapath that it
//! would refuse.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-bridge --test suite fuzz::no_datagram_of_portus_asks_a_datapath_for_what_it_refuses` runs
//! one guided by coverage.

use crate::common::{PROGRAM, World, control, stock};
use ccplane_contract::{DatapathError, FlowId};
use ccplane_core::HostReason;
use ccplane_testing::fuzz::Fuzz;
use ccplane_wire::v1::{Bytecode, ChangeProg, Field, Install, ToDatapath, Update};

/// Takes a datagram in a world with a flow that is steered.
fn takes(bytes: &[u8]) -> (usize, u64, u64) {
    let mut world = World::new();
    world.arrive();
    world.install(1, PROGRAM);
    world.start(1, "192.0.2.7:443");
    world.turn();
    world.change(1, 1, &[]);
    world.bridge.datagram(&mut world.core, bytes);
    // What portus set is not known here: its reports are not looked at.
    world.set.clear();
    world.turn();
    assert_eq!(world.core.counters().refused_commands, 0, "the datapath was asked for what it refuses");
    let counters = world.bridge.counters();
    (world.fake.changes.len(), counters.malformed, counters.refused_installs)
}

#[test]
fn no_datagram_of_portus_asks_a_datapath_for_what_it_refuses() {
    bolero::check!().for_each(|bytes: &[u8]| {
        takes(bytes);
    });
}

#[test]
fn no_drawn_datagram_of_portus_asks_a_datapath_for_what_it_refuses() {
    let (program, fields) = (stock(PROGRAM), [(control(0), 1), (Field::Cwnd, 2), (Field::Rate, 3)]);
    let code = Bytecode::try_from(&program).unwrap();
    let messages = [
        ToDatapath::Install(Install { sid: 0, program_uid: 2, code }),
        ToDatapath::ChangeProg(ChangeProg { sid: 1, program_uid: 1, fields: (&fields).into() }),
        ToDatapath::Update(Update { sid: 1, fields: (&fields).into() }),
    ];
    let encoded = messages.map(|message| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes).unwrap();
        bytes
    });
    let fuzz = Fuzz::new("bridge", env!("CARGO_MANIFEST_DIR")).seeds([encoded.concat()]).seeds(encoded);
    fuzz.run(|bytes| {
        let (calls, malformed, refused) = takes(bytes);
        (calls as u64) << 32 | malformed << 16 | refused
    });
}

/// Has flows, reports, mishaps and messages come in this order. Returns what came of them.
fn play<'s>(steps: impl IntoIterator<Item = &'s (u8, u8, u16)>) -> u64 {
    let mut world = World::new();
    let mut seq = 0;
    for (what, which, value) in steps {
        let (flow, value) = (u64::from(*which % 12), u64::from(*value));
        // Portus names flows and programs that there are, that there were, and that there never were.
        let (sid, number) = (u32::from(*which % 16), 1 + u32::from(*which / 16 % 4));
        match what % 10 {
            0 => {
                world.arrive();
            }
            1 => {
                let reason = HostReason::Silent { algorithm: "portus", for_ms: value };
                world.bridge.leave(&mut world.core, reason);
                world.open.clear();
            }
            2 if !world.fake.flows.contains_key(&FlowId(flow)) => {
                world.start(flow, "192.0.2.7:443");
            }
            3 => world.fake.end(FlowId(flow)),
            4 | 5 => {
                seq += 1;
                world.fake.report(FlowId(flow), seq, &[value as i64, 1]);
            }
            6 => {
                world.install(number, PROGRAM);
            }
            7 => {
                world.change(sid, number, &[(control(*which % 3), value)]);
            }
            8 => {
                world.update(sid, &[(Field::Cwnd, value)]);
            }
            _ => {
                let refused = DatapathError::Refused { at: None, reason: "as the fuzzer says".to_owned() };
                world.fake.refused = (value % 2 == 0).then_some(refused);
            }
        }
        world.turn();
    }
    let counters = world.bridge.counters();
    let few = |n: u64| n.min(3);
    few(world.fake.changes.len() as u64 / 4)
        + 4 * few(counters.refused_installs)
        + 16 * few(world.fake.flows.len() as u64)
        + 64 * few(world.open.len() as u64)
}

#[test]
fn no_order_of_events_panics_the_bridge() {
    bolero::check!().with_type::<Vec<(u8, u8, u16)>>().for_each(|steps| {
        play(steps);
    });
}

/// Bytes of a step, and steps of an input, at most.
const STEP_BYTES: usize = 4;
const MAX_STEPS: usize = 48;

#[test]
fn no_drawn_order_of_events_panics_the_bridge() {
    let steered =
        [[0, 0, 0, 0], [2, 1, 0, 0], [6, 0, 0, 0], [7, 1, 7, 0], [4, 1, 9, 0], [8, 1, 9, 9], [3, 1, 0, 0]];
    let refused =
        [[0, 0, 0, 0], [9, 0, 0, 0], [6, 0, 0, 0], [9, 0, 1, 0], [2, 2, 0, 0], [1, 0, 5, 0], [0, 0, 0, 0]];
    let target = Fuzz::new("bridge-sequences", env!("CARGO_MANIFEST_DIR"));
    target.seeds([steered.concat(), refused.concat()]).max_bytes(STEP_BYTES * MAX_STEPS).part(2_000).run(
        |bytes| {
            let steps = bytes.as_chunks::<STEP_BYTES>().0.iter();
            let steps: Vec<_> =
                steps.map(|[what, which, a, b]| (*what, *which, u16::from_le_bytes([*a, *b]))).collect();
            play(&steps)
        },
    );
}

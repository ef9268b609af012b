//! What a flow and the agent share, under loom: every way in which two threads may run, and every value that its orderings let
//! a load see.

use crate::desk::Shared;
use crate::helm::Helm;
use crate::program::{Installed, Loaded};
use crate::sequence::SequenceCell;
use crate::steering::Ready;
use ccplane_contract::{Field, FlowId, FlowInfo, Mode, ProgramUid};
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;

const MSS_BYTES: u32 = 1000;
/// Switches between threads that nothing asked for, in one run, where there are too many runs to try all.
const PREEMPTIONS: usize = 3;

fn info() -> FlowInfo {
    let end = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
    FlowInfo {
        mss_bytes: MSS_BYTES,
        init_cwnd_bytes: 10_000,
        local: end,
        remote: end,
        cgroup: None,
        min_rtt_us: None,
    }
}

/// What a flow does at the start of an ACK.
fn on_ack(shared: &Shared, helm: &mut Helm<Loaded>) {
    if shared.has_news() {
        shared.take(helm, false, 1);
    }
}

/// The agent and a flow at one desk: the flow ends up with all that was staged, in its order, whenever its ACKs come.
fn desk(stage: fn(&Shared, &Arc<Installed>), check: fn(&Helm<Loaded>)) {
    let program = ccplane_program::compile("(def (x 0)) (when true (:= x 1))").unwrap();
    let installed = Arc::new(Installed::new(ProgramUid(1), &program));
    loom::model(move || {
        let shared = Arc::new(Shared::new(FlowId(1), info(), 0));
        let (agents, installed) = (Arc::clone(&shared), Arc::clone(&installed));
        let agent = thread::spawn(move || stage(&agents, &installed));
        let mut helm = Helm::new(10, MSS_BYTES);
        (0..2).for_each(|_| on_ack(&shared, &mut helm));
        agent.join().unwrap();
        // What it was in the midst of comes with the next ACK, and nothing after that.
        on_ack(&shared, &mut helm);
        assert!(!shared.has_news());
        check(&helm);
    });
}

fn set(shared: &Shared, installed: &Arc<Installed>, cwnd: i64) {
    let loaded = installed.load();
    drop(shared.stage(|desk| desk.set(Arc::clone(installed), loaded, &[(Field::Cwnd, cwnd)])));
}

fn cwnd(shared: &Shared, bytes: i64) {
    shared.stage(|desk| desk.staged.stage_fields(&[(Field::Cwnd, bytes)]));
}

#[test]
fn what_is_staged_reaches_the_flow() {
    desk(
        |shared, installed| {
            set(shared, installed, 20_000);
            cwnd(shared, 30_000);
        },
        |helm| {
            assert_eq!(helm.mode(), Mode::Program);
            assert_eq!(helm.steering().running().map(Ready::uid), Some(ProgramUid(1)));
            assert_eq!(helm.wanted_bytes(), 30_000);
        },
    );
}

#[test]
fn what_is_released_is_forgotten_whatever_was_staged_before() {
    desk(
        |shared, installed| {
            set(shared, installed, 20_000);
            drop(shared.stage(|desk| desk.release()));
        },
        |helm| {
            assert_eq!(helm.mode(), Mode::NativeNoProgram);
            assert!(helm.steering().running().is_none());
        },
    );
}

/// The agent looks at the desk while the flow is at an ACK of its own: neither keeps the other's from being done.
#[test]
fn a_look_at_the_desk_loses_nothing() {
    desk(
        |shared, installed| {
            set(shared, installed, 20_000);
            assert!(shared.lock().uses(ProgramUid(1)));
            drop(shared.lock().sweep());
        },
        |helm| assert_eq!(helm.wanted_bytes(), 20_000),
    );
}

#[test]
fn no_reader_sees_half_of_what_was_written() {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(|| {
        let cell = Arc::new(SequenceCell::new([0, 0]));
        let writers = Arc::clone(&cell);
        let writing = thread::spawn(move || {
            for n in 1..=2 {
                writers.write([n, n]);
            }
        });
        let [first, second] = cell.read();
        assert_eq!(first, second);
        writing.join().unwrap();
        assert_eq!(cell.read(), [2, 2]);
    });
}

//! A loom model of the state that a flow shares with the agent: all interleavings of two threads, and every value
//! that the orderings allow a load to see.

use crate::controller::FlowController;
use crate::mailbox::SharedFlow;
use crate::program::{Installed, Loaded};
use crate::runner::Runnable;
use crate::sequence::SequenceCell;
use ccplane_contract::{Field, FlowId, FlowInfo, Mode, ProgramUid};
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;

const MSS_BYTES: u32 = 1000;
/// Most preemptions in one run of a model that has too many runs to try all.
const PREEMPTIONS: usize = 3;

fn info() -> FlowInfo {
    FlowInfo::example(MSS_BYTES, 10_000)
}

/// Takes the updates, as a flow does at the start of an ACK.
fn on_ack(shared: &SharedFlow, controller: &mut FlowController<Loaded>) {
    if shared.has_updates() {
        shared.take(controller, false, 1);
    }
}

/// Runs the agent and a flow on one mailbox: the flow ends with all staged changes, in order, whenever its ACKs come.
fn mailbox(stage: fn(&SharedFlow, &Arc<Installed>), check: fn(&FlowController<Loaded>)) {
    let program = ccplane_program::compile("(def (x 0)) (when true (:= x 1))").unwrap();
    let installed = Arc::new(Installed::new(ProgramUid(1), &Arc::new(program)));
    loom::model(move || {
        let shared = Arc::new(SharedFlow::new(FlowId(1), info(), 0));
        let (agents, installed) = (Arc::clone(&shared), Arc::clone(&installed));
        let agent = thread::spawn(move || stage(&agents, &installed));
        let mut controller = FlowController::new(10, MSS_BYTES);
        (0..2).for_each(|_| on_ack(&shared, &mut controller));
        agent.join().unwrap();
        // What it was in the midst of comes with the next ACK, and nothing after that.
        on_ack(&shared, &mut controller);
        assert!(!shared.has_updates());
        check(&controller);
    });
}

fn set(shared: &SharedFlow, installed: &Arc<Installed>, cwnd: i64) {
    let loaded = installed.load();
    drop(shared.stage(|mailbox| mailbox.set(Arc::clone(installed), loaded, &[(Field::Cwnd, cwnd)])));
}

fn cwnd(shared: &SharedFlow, bytes: i64) {
    shared.stage(|mailbox| mailbox.staged.stage_fields(&[(Field::Cwnd, bytes)]));
}

#[test]
fn what_is_staged_reaches_the_flow() {
    mailbox(
        |shared, installed| {
            set(shared, installed, 20_000);
            cwnd(shared, 30_000);
        },
        |controller| {
            assert_eq!(controller.mode(), Mode::Program);
            assert_eq!(controller.runner().running().map(Runnable::uid), Some(ProgramUid(1)));
            assert_eq!(controller.wanted_bytes(), 30_000);
        },
    );
}

#[test]
fn what_is_released_is_forgotten_whatever_was_staged_before() {
    mailbox(
        |shared, installed| {
            set(shared, installed, 20_000);
            drop(shared.stage(|mailbox| mailbox.release()));
        },
        |controller| {
            assert_eq!(controller.mode(), Mode::NativeNoProgram);
            assert!(controller.runner().running().is_none());
        },
    );
}

/// The agent reads the mailbox during an ACK of the flow; neither makes the other lose an update.
#[test]
fn reading_the_mailbox_loses_no_update() {
    mailbox(
        |shared, installed| {
            set(shared, installed, 20_000);
            assert!(shared.lock().uses(ProgramUid(1)));
            drop(shared.lock().take_discarded());
        },
        |controller| assert_eq!(controller.wanted_bytes(), 20_000),
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

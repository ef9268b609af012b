//! The same inputs give the same outputs, and no input breaks the core.

use crate::common::{Fake, Told, core_with, info};
use ccplane_contract::{Datapath, DatapathError, Event, FlowId, ProgramUid};
use ccplane_core::{Core, DatapathId, NATIVE, Rules};
use proptest::prelude::*;
use std::fmt::Write;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Attach(u32),
    Detach(u32),
    Created(u32, u64),
    Closed(u32, u64),
    Report(u32, u64, u32, u32, Vec<i64>),
    Dropped(u32),
    Rules(u8),
    Act(u32, Option<DatapathError>),
    Tick,
    Shutdown,
}

fn steps() -> impl Strategy<Value = Step> {
    let (dp, flow) = (0..3u32, 0..6u64);
    let error = prop_oneof![
        3 => Just(None),
        1 => Just(Some(DatapathError::ProgramsFull { limit: 9 })),
        1 => Just(Some(DatapathError::NoFlow(FlowId(1)))),
    ];
    prop_oneof![
        2 => dp.clone().prop_map(Step::Attach),
        1 => dp.clone().prop_map(Step::Detach),
        6 => (dp.clone(), flow.clone()).prop_map(|(d, f)| Step::Created(d, f)),
        2 => (dp.clone(), flow.clone()).prop_map(|(d, f)| Step::Closed(d, f)),
        8 => (dp.clone(), flow, 9..15u32, any::<u32>(), prop::collection::vec(0..6i64, 0..4))
            .prop_map(|(d, f, uid, seq, values)| Step::Report(d, f, uid, seq, values)),
        1 => dp.clone().prop_map(Step::Dropped),
        1 => (0..4u8).prop_map(Step::Rules),
        8 => (dp, error).prop_map(|(d, e)| Step::Act(d, e)),
        1 => Just(Step::Tick),
        1 => Just(Step::Shutdown),
    ]
}

fn told(name: &'static str) -> Told {
    let mut told = Told::new(name);
    told.on_report = Arc::new(|report, control| match report.get("acked") {
        Some(1) => control.set_program("other", &[("mss", 5)]),
        Some(2) => control.update(&[("Cwnd", 5000)]),
        Some(3) => control.update(&[("nothing", 5000)]),
        Some(4) => panic!("told to"),
        _ => {}
    });
    told
}

/// Everything that comes out of a run.
fn run(steps: &[Step]) -> String {
    let mut core = core_with(vec![told("a"), told("b")]);
    let mut out = String::new();
    for (n, step) in steps.iter().enumerate() {
        apply(&mut core, step, n as u64 * 30_000, &mut out);
        check(&core);
    }
    for flow in core.flows() {
        let report: Vec<_> = flow.report().collect();
        let program = flow.program().map(|p| p.uid());
        let state = (flow.native(), flow.last_error(), flow.counters(), program, report);
        writeln!(out, "{:?} {:?} {} {state:?}", flow.datapath(), flow.flow(), flow.algorithm()).unwrap();
    }
    writeln!(out, "{:?} {:?}", core.counters(), core.next_tick_us()).unwrap();
    out
}

fn apply(core: &mut Core, step: &Step, now_us: u64, out: &mut String) {
    match step {
        Step::Attach(d) => {
            let result = core.attach(DatapathId(*d), Fake::default().capabilities(), now_us);
            writeln!(out, "{result:?}").unwrap();
        }
        Step::Detach(d) => core.detach(DatapathId(*d)),
        Step::Created(d, f) => {
            core.event(DatapathId(*d), Event::Created { flow: FlowId(*f), info: info(443) }, now_us);
        }
        Step::Closed(d, f) => core.event(DatapathId(*d), Event::Closed { flow: FlowId(*f) }, now_us),
        Step::Report(d, f, uid, seq, values) => {
            let (flow, program) = (FlowId(*f), ProgramUid(*uid));
            let report =
                Event::Report { flow, program, seq: *seq, at_us: now_us, values: values.as_slice().into() };
            core.event(DatapathId(*d), report, now_us);
        }
        Step::Dropped(d) => {
            core.event(DatapathId(*d), Event::Dropped { count: 1 }, now_us);
            if core.take_missed(DatapathId(*d)) {
                core.reconcile(
                    DatapathId(*d),
                    Fake { listed: [(1, info(1))].into(), ..Fake::default() }.flows(),
                    now_us,
                );
            }
        }
        Step::Rules(n) => {
            let result = core.set_rules(Rules::all(["a", "b", NATIVE, "none"][usize::from(*n)]));
            writeln!(out, "{result:?}").unwrap();
        }
        Step::Act(d, error) => {
            if let Some(action) = core.next_action(DatapathId(*d)) {
                writeln!(out, "{action:?}").unwrap();
                core.result(action.id, error.clone().map_or(Ok(()), Err));
            }
        }
        Step::Tick => core.tick(now_us),
        Step::Shutdown => core.shutdown(),
    }
}

/// Checks the invariants that hold at all times.
fn check(core: &Core) {
    let counters = core.counters();
    assert_eq!(counters.flows_created, counters.flows_closed + core.flows().count() as u64);
    for flow in core.flows() {
        assert!(core.datapaths().any(|(id, _)| id == flow.datapath()));
        assert_eq!(flow.program().is_some(), flow.native().is_none());
        assert!(flow.program().is_none_or(|p| p.algorithm() == flow.algorithm()));
    }
}

proptest! {
    #[test]
    fn same_inputs_same_outputs(steps in prop::collection::vec(steps(), 1..120)) {
        std::panic::set_hook(Box::new(|info| {
            if info.payload().downcast_ref::<&str>() != Some(&"told to") {
                eprintln!("{info}");
            }
        }));
        prop_assert_eq!(run(&steps), run(&steps));
    }
}

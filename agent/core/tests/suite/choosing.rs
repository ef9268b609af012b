//! Flows whose algorithm chooses among others.

use crate::common::{DP, Fake, Told, created, report};
use ccplane_alg::{
    Algorithm, Choice, Chooser, Control, Flow, FlowInfo, Handover, PathSample, ProgramSource, Switch,
};
use ccplane_contract::{Datapath, DatapathError, FlowId, FlowStats, Mode, TransportStats};
use ccplane_core::{Catalog, CatalogError, Config, Core, NativeReason, Rules, drive};
use std::sync::{Arc, Mutex};

/// A script logs every call of its choosers and holds their next answer.
#[derive(Default)]
struct Script {
    log: Vec<String>,
    next: Option<&'static str>,
    panics: bool,
    /// The next switch hands nothing over.
    afresh: bool,
}

struct Choosing {
    arms: Vec<Arc<dyn Algorithm>>,
    script: Arc<Mutex<Script>>,
}

struct ToldChooser(Arc<Mutex<Script>>);

impl Chooser for ToldChooser {
    fn first(&mut self, available: &[&'static str]) -> &'static str {
        self.0.lock().unwrap().log.push(format!("first of {available:?}"));
        available[0]
    }
    fn on_sample(&mut self, sample: &PathSample) -> Option<Switch> {
        let mut script = self.0.lock().unwrap();
        script.log.push(format!("{} acked at {}", sample.transport.bytes_acked, sample.at_us));
        let panics = script.panics;
        let (arm, afresh) = (script.next.take(), script.afresh);
        drop(script);
        assert!(!panics, "told to");
        let from = Handover { at_us: 0, rate_bytes_per_s: 1_000_000, srtt_us: 50_000, min_rtt_us: 40_000 };
        arm.map(|arm| Switch { arm, from: (!afresh).then_some(from) })
    }
    fn on_close(&mut self) {
        self.0.lock().unwrap().log.push("close".to_owned());
    }
    fn choice(&self) -> Choice {
        Choice { why: "told to".to_owned(), evidence: Vec::new() }
    }
}

impl Algorithm for Choosing {
    fn name(&self) -> &'static str {
        "choosing"
    }
    fn programs(&self) -> Vec<ProgramSource> {
        Vec::new()
    }
    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.arms[0].flow(info, control)
    }
    fn arms(&self) -> Vec<Arc<dyn Algorithm>> {
        self.arms.clone()
    }
    fn chooser(&self, _: &FlowInfo) -> Option<Box<dyn Chooser>> {
        Some(Box::new(ToldChooser(self.script.clone())))
    }
}

fn told(name: &'static str) -> Arc<dyn Algorithm> {
    Arc::new(Told::new(name))
}

fn keeping() -> Told {
    Told { kept: || vec![("Cwnd", 123_000)], ..Told::new("a") }
}

fn core(first: Told) -> (Core, Arc<Mutex<Script>>) {
    let script = Arc::<Mutex<Script>>::default();
    let choosing = Choosing { arms: vec![Arc::new(first), told("b")], script: script.clone() };
    let catalog = Catalog::new(vec![Arc::new(choosing)], 10).unwrap();
    (Core::new(catalog, Rules::all("choosing"), Config::default()).unwrap(), script)
}

fn stats(acked: u64) -> FlowStats {
    let mut fake = Fake::default();
    fake.listed.insert(1, crate::common::info(443));
    let listed = fake.flows().remove(0);
    FlowStats {
        mode: Mode::Program,
        transport: TransportStats {
            srtt_us: 50_000,
            min_rtt_us: 40_000,
            bytes_acked: acked,
            ..listed.transport
        },
        sampled_at_us: acked,
        ..listed
    }
}

/// A flow with its first arm, and the calls for that.
fn started() -> (Core, Fake, Arc<Mutex<Script>>) {
    started_with(keeping())
}

fn started_with(first: Told) -> (Core, Fake, Arc<Mutex<Script>>) {
    let (mut core, script) = core(first);
    let mut fake = Fake::default();
    core.attach(DP, fake.capabilities(), 0).unwrap();
    fake.events.push(created(1));
    drive(&mut core, DP, &mut fake, 0);
    (core, fake, script)
}

#[test]
fn arms_are_installed_and_the_first_one_runs() {
    let (core, mut fake, script) = started();
    let calls = fake.take_calls();
    assert_eq!(calls[..4], ["install 10", "install 11", "install 12", "install 13"]);
    assert!(calls[4].starts_with("set 1 10 "), "{calls:?}");
    assert_eq!(script.lock().unwrap().log, ["first of [\"a\", \"b\"]"]);
    let view = core.flow(DP, FlowId(1)).unwrap();
    assert_eq!((view.algorithm(), view.arm()), ("choosing", Some("a")));
    assert_eq!(view.choice().unwrap().why, "told to");
}

/// The other arm's program is set with the window that carries the rate; reports of the one before are stale from then on.
#[test]
fn a_switch_sets_the_other_arms_program_from_the_flows_own_window() {
    let (mut core, mut fake, script) = started();
    fake.take_calls();
    script.lock().unwrap().next = Some("b");
    assert!(core.wants_sample(DP, 200_000));
    core.sample(DP, &[stats(7)], 200_000);
    assert!(!core.wants_sample(DP, 250_000));
    drive(&mut core, DP, &mut fake, 250_000);
    let calls = fake.take_calls();
    let window = 50_000;
    assert!(calls[0].starts_with("set 1 12 "), "{calls:?}");
    assert_eq!(calls[1], format!("update 1 [(Cwnd, {window})]"));
    core.event(DP, report(1, 10, 1, 5), 300_000);
    core.event(DP, report(1, 12, 2, 6), 300_000);
    let view = core.flow(DP, FlowId(1)).unwrap();
    assert_eq!((view.arm(), view.counters().switches), (Some("b"), 1));
    assert_eq!((view.counters().stale_reports, view.counters().reports), (1, 1));
}

/// After a moment with another arm, not after a minute, whatever the chooser says of the time.
#[test]
fn an_arm_that_has_the_flow_again_soon_goes_on_with_what_it_kept() {
    for (away_us, kept) in [(1_000_000, true), (60_000_000, false)] {
        let (mut core, mut fake, script) = started();
        for (arm, at_us) in [("b", 1_000_000), ("a", 1_000_000 + away_us)] {
            fake.take_calls();
            script.lock().unwrap().next = Some(arm);
            core.sample(DP, &[stats(at_us)], at_us);
            drive(&mut core, DP, &mut fake, at_us);
        }
        let calls = fake.take_calls();
        let own = "update 1 [(Cwnd, 123000)]".to_owned();
        assert!(calls[0].starts_with("set 1 10 "), "{calls:?}");
        assert_eq!(calls.last() == Some(&own), kept, "{away_us} us: {calls:?}");
    }
}

/// The flow runs the other arm all the same, and nothing more of the one that is left is called.
#[test]
fn an_arm_that_panics_when_asked_what_it_keeps_ends_without_it() {
    let first = Told { kept: || panic!("told to"), on_close: || panic!("at the end"), ..Told::new("a") };
    let (mut core, mut fake, script) = started_with(first);
    fake.take_calls();
    script.lock().unwrap().next = Some("b");
    core.sample(DP, &[stats(7)], 200_000);
    drive(&mut core, DP, &mut fake, 250_000);
    let calls = fake.take_calls();
    assert!(calls.len() == 2 && calls[0].starts_with("set 1 12 "), "{calls:?}");
    assert_eq!(core.flow(DP, FlowId(1)).unwrap().arm(), Some("b"));
    assert_eq!(core.counters().panics, 1);
}

/// Without a hand-over the arm starts as on a new flow: nothing but its program is set.
#[test]
fn an_arm_may_start_as_on_a_new_flow() {
    let (mut core, mut fake, script) = started();
    fake.take_calls();
    *script.lock().unwrap() = Script { next: Some("b"), afresh: true, ..Script::default() };
    core.sample(DP, &[stats(7)], 200_000);
    drive(&mut core, DP, &mut fake, 250_000);
    let calls = fake.take_calls();
    assert!(calls.len() == 1 && calls[0].starts_with("set 1 12 "), "{calls:?}");
}

/// An arm that the datapath refuses is not among those to choose from; where none is left, the flow is native.
#[test]
fn refused_arms_are_chosen_around() {
    let (mut core, script) = core(keeping());
    let mut fake =
        Fake { refuse_install: Some((11, DatapathError::ProgramsFull { limit: 1 })), ..Fake::default() };
    core.attach(DP, fake.capabilities(), 0).unwrap();
    // Taken in before the refusal is known, and after.
    core.event(DP, created(1), 0);
    drive(&mut core, DP, &mut fake, 0);
    core.event(DP, created(2), 0);
    for flow in [1, 2] {
        assert_eq!(core.flow(DP, FlowId(flow)).unwrap().arm(), Some("b"), "{flow}");
    }
    let first = ["first of [\"a\", \"b\"]", "first of [\"b\"]", "first of [\"b\"]"];
    assert_eq!(script.lock().unwrap().log, first);
}

#[test]
fn a_chooser_that_panics_or_names_no_arm_costs_its_flow_only() {
    for panics in [false, true] {
        let (mut core, mut fake, script) = started();
        core.event(DP, created(2), 0);
        script.lock().unwrap().next = Some("c");
        script.lock().unwrap().panics = panics;
        core.sample(DP, &[stats(7)], 200_000);
        drive(&mut core, DP, &mut fake, 200_000);
        let view = core.flow(DP, FlowId(1)).unwrap();
        let native = view.native().unwrap();
        assert_eq!(matches!(native, NativeReason::Panicked(_)), panics, "{native:?}");
        assert!(fake.take_calls().contains(&"release 1".to_owned()));
        assert_eq!(core.flow(DP, FlowId(2)).unwrap().arm(), Some("a"));
        // A chooser whose state may be anything is not called again.
        assert_eq!(script.lock().unwrap().log.contains(&"close".to_owned()), !panics);
    }
}

#[test]
fn choosers_see_the_end_and_nothing_is_sampled_without_them() {
    let (mut core, _fake, script) = started();
    core.event(DP, ccplane_contract::Event::Closed { flow: FlowId(1) }, 1000);
    assert_eq!(script.lock().unwrap().log.last().unwrap(), "close");
    assert!(!core.wants_sample(DP, 10_000_000));
}

#[test]
fn an_arm_has_no_arms() {
    let inner: Arc<dyn Algorithm> = Arc::new(Choosing { arms: vec![told("a")], script: Arc::default() });
    struct Outer(Arc<dyn Algorithm>);
    impl Algorithm for Outer {
        fn name(&self) -> &'static str {
            "outer"
        }
        fn programs(&self) -> Vec<ProgramSource> {
            Vec::new()
        }
        fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
            self.0.flow(info, control)
        }
        fn arms(&self) -> Vec<Arc<dyn Algorithm>> {
            vec![self.0.clone()]
        }
    }
    let error = Catalog::new(vec![Arc::new(Outer(inner))], 10).err().unwrap();
    assert_eq!(error, CatalogError::NestedArms { algorithm: "outer", arm: "choosing" });
}

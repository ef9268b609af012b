//! The core's answers to events, commands and refusals.

use crate::common::{DP, Fake, Told, core_with, created, info, report};
use ccplane_alg::{Algorithm, Control, ProgramSource};
use ccplane_contract::{
    Datapath, DatapathError, Event, Field, FlowId, ON_ACKS, ON_PACKETS as ON_PACKETS_HOOKS, ProgramUid,
};
use ccplane_core::{
    AttachError, Catalog, CatalogError, CommandError, Config, Core, DatapathId, InstallState,
    MAX_COMMANDS_PER_CALL, MAX_FIELDS, NATIVE, NativeReason, Rule, Rules, RulesError, drive,
};
use std::sync::Arc;

/// Attaches the datapath, hands it `events` and turns the loop once.
fn turn(core: &mut Core, fake: &mut Fake, events: Vec<Event>) -> Vec<String> {
    if core.datapaths().next().is_none() {
        core.attach(DP, fake.capabilities(), 0).unwrap();
    }
    fake.events = events;
    drive(core, DP, fake, 0);
    fake.take_calls()
}

fn native(core: &Core, flow: u64) -> String {
    core.flow(DP, FlowId(flow)).unwrap().native().unwrap().to_string()
}

#[test]
fn programs_are_installed_before_flows_run_them() {
    let (mut core, mut fake) = (core_with(vec![Told::new("a"), Told::new("b")]), Fake::default());
    assert_eq!(
        turn(&mut core, &mut fake, vec![created(5)]),
        ["install 10", "install 11", "set 5 10 [(Reg(2), 1400)]"],
        "only the algorithm that the rules name"
    );
    assert!(core.installs().all(|i| *i.state == InstallState::Installed));
    core.set_rules(Rules::all("b")).unwrap();
    assert_eq!(
        turn(&mut core, &mut fake, vec![created(6)]),
        ["install 12", "install 13", "set 6 12 [(Reg(2), 1400)]"]
    );
    let flows: Vec<_> =
        core.flows().map(|f| (f.flow().0, f.algorithm(), f.program().unwrap().name())).collect();
    assert_eq!(flows, [(5, "a", "main"), (6, "b", "main")]);
}

#[test]
fn rules_choose_and_native_releases() {
    let (mut core, mut fake) = (core_with(vec![Told::new("a")]), Fake::default());
    let mut rule = Rule::any("a");
    rule.remote_port = Some(80..=80);
    core.set_rules(Rules { rules: vec![rule], default: NATIVE.to_owned() }).unwrap();
    let web = Event::Created { flow: FlowId(2), info: info(80) };
    let calls = turn(&mut core, &mut fake, vec![created(1), web]);
    assert_eq!(calls[2..], ["release 1", "set 2 10 [(Reg(2), 1400)]"]);
    assert_eq!(
        (core.flow(DP, FlowId(1)).unwrap().algorithm(), native(&core, 1).as_str()),
        (NATIVE, "a rule says native")
    );
    let unknown = core.set_rules(Rules::all("c")).unwrap_err();
    assert_eq!(unknown, RulesError::UnknownAlgorithm { rule: None, name: "c".to_owned(), known: vec!["a"] });
    assert_eq!(core.rules().default, NATIVE, "nothing is changed");
}

#[test]
fn a_rule_counts_where_its_algorithm_decides() {
    const ON_PACKETS: &str = "(hook send) (def) (when true (:= Priority 3))";
    let packets = |name| Told {
        programs: vec![ProgramSource { name: "main", source: ON_PACKETS }],
        on_flow: Arc::new(|_, control| control.set_program("main", &[])),
        ..Told::new(name)
    };
    let run = |hooks, default: &str| {
        let mut core = core_with(vec![Told::new("acks"), packets("packets")]);
        let rules = ["packets", "acks"].map(|name| {
            let mut rule = Rule::any(name);
            rule.remote_port = Some(80..=80);
            rule
        });
        core.set_rules(Rules { rules: rules.to_vec(), default: default.to_owned() }).unwrap();
        let mut fake = Fake { hooks: Some(hooks), ..Fake::default() };
        let web = Event::Created { flow: FlowId(2), info: info(80) };
        turn(&mut core, &mut fake, vec![created(1), web])
    };
    let [acks, native] = [["install 10", "install 11"], ["release 1", "set 2 10 [(Reg(2), 1400)]"]];
    assert_eq!(run(ON_ACKS, "packets"), [acks, native].concat(), "no rule for packets matches an ACK's flow");
    assert_eq!(run(ON_PACKETS_HOOKS, "acks"), ["install 12", "release 1", "set 2 12 []"]);
    assert_eq!(run(ON_PACKETS_HOOKS, "packets"), ["install 12", "set 1 12 []", "set 2 12 []"]);
}

#[test]
fn reports_reach_the_algorithm_and_the_view() {
    let mut told = Told::new("a");
    told.on_report = Arc::new(|report, control| {
        if report.get("acked") == Some(7) {
            control.update(&[("armed", 1), ("Cwnd", 20_000)]);
        }
    });
    let log = told.log.clone();
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    let calls = turn(&mut core, &mut fake, vec![created(5), report(5, 10, 1, 3), report(5, 10, 2, 7)]);
    assert_eq!(calls[3..], ["update 5 [(Reg(3), 1), (Cwnd, 20000)]"]);
    assert_eq!(
        *log.lock().unwrap(),
        [r#"1000 main ["acked", "seen"]=[3, 0]"#, r#"2000 main ["acked", "seen"]=[7, 0]"#]
    );
    let flow = core.flow(DP, FlowId(5)).unwrap();
    assert_eq!(flow.report().collect::<Vec<_>>(), [("acked", 7), ("seen", 0)]);
    assert_eq!((flow.reported_at_us(), flow.counters().reports), (Some(2000), 2));
    turn(&mut core, &mut fake, vec![Event::Closed { flow: FlowId(5) }]);
    assert_eq!((core.flows().count(), log.lock().unwrap().last().unwrap().as_str()), (0, "close"));
}

#[test]
fn an_algorithms_counters_outlive_its_flows() {
    let mut told = Told::new("a");
    told.on_report = Arc::new(|_, control| control.update(&[("armed", 1)]));
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    turn(&mut core, &mut fake, vec![created(5), created(6), report(5, 10, 1, 3), report(6, 10, 1, 3)]);
    let before = core.algorithms();
    assert_eq!((before["a"].flows_created, before["a"].flows_closed), (2, 0));
    let flows = before["a"].flows;
    assert_eq!((flows.reports, flows.program_changes, flows.updates), (2, 2, 2));
    turn(&mut core, &mut fake, vec![Event::Closed { flow: FlowId(5) }]);
    let after = core.algorithms();
    assert_eq!((after["a"].flows_closed, after["a"].flows), (1, flows));
}

#[test]
fn gaps_late_stale_and_malformed_reports_are_counted() {
    let mut told = Told::new("a");
    told.on_report = Arc::new(|report, control| {
        if report.get("acked") == Some(1) {
            control.set_program("other", &[]);
        }
    });
    let log = told.log.clone();
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    let short =
        Event::Report { flow: FlowId(5), program: ProgramUid(11), seq: 12, at_us: 0, values: vec![1].into() };
    let events = vec![
        created(5),
        report(5, 10, u32::MAX, 0), // an adopted flow may start anywhere
        report(5, 10, 3, 1),        // 0, 1, 2 are lost; changes the program
        report(5, 10, 4, 0),        // stale
        report(5, 11, 10, 0),       // 5 to 9 are lost
        report(5, 11, 10, 0),       // twice
        report(5, 11, 9, 0),        // late
        report(5, 11, 11, 0),
        short,
        report(6, 10, 1, 0), // of no flow
    ];
    let calls = turn(&mut core, &mut fake, events);
    assert_eq!(calls[3..], ["set 5 11 []"]);
    let counted = core.flow(DP, FlowId(5)).unwrap().counters();
    assert_eq!((counted.reports, counted.lost_reports), (4, 8));
    assert_eq!((counted.late_reports, counted.stale_reports, counted.malformed_reports), (2, 1, 1));
    let log = log.lock().unwrap();
    let told: Vec<_> = log.iter().filter(|line| line.ends_with("lost")).collect();
    assert_eq!(told, ["3 lost", "5 lost"]);
    assert_eq!((core.counters().stray_reports, log.len() - told.len()), (1, 4));
}

#[test]
fn bad_names_and_values_are_typed_errors_and_change_nothing() {
    type Act = fn(&mut Control);
    let unknown = |field| CommandError::UnknownField { program: "main".into(), field };
    let report_field = |field| CommandError::ReportField { program: "main".into(), field };
    let range =
        |field, value, min, max| CommandError::OutOfRange { program: "main".into(), field, value, min, max };
    let cases: [(Act, CommandError); 8] = [
        (|c| c.update(&[("mss", 1), ("msss", 1)]), unknown("msss")),
        (|c| c.update(&[("scratch", 1)]), unknown("scratch")),
        (|c| c.update(&[("acked", 1)]), report_field("acked")),
        (|c| c.update(&[("Report.seen", 1)]), report_field("Report.seen")),
        (|c| c.update(&[("Cwnd", 0)]), range("Cwnd", 0, 1, 1 << 40)),
        (|c| c.update(&[("armed", 2)]), range("armed", 2, 0, 1)),
        (|c| c.set_program("nope", &[]), CommandError::UnknownProgram { program: "nope" }),
        (
            |c| c.update(&[("mss", 1); MAX_FIELDS + 1]),
            CommandError::TooManyFields { found: MAX_FIELDS + 1, limit: MAX_FIELDS },
        ),
    ];
    for (act, expected) in cases {
        let mut told = Told::new("a");
        told.on_report = Arc::new(move |_, control| act(control));
        let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
        let calls = turn(&mut core, &mut fake, vec![created(5), report(5, 10, 1, 0)]);
        let flow = core.flow(DP, FlowId(5)).unwrap();
        assert_eq!((flow.last_error(), flow.counters().refused_commands), (Some(&expected), 1));
        assert_eq!((calls.len(), flow.program().unwrap().name()), (3, "main"), "{calls:?}");
    }
}

#[test]
fn commands_beyond_the_limit_of_a_call_are_refused() {
    let mut told = Told::new("a");
    told.on_report = Arc::new(|_, control| (0..99).for_each(|n| control.update(&[("mss", n)])));
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    let calls = turn(&mut core, &mut fake, vec![created(5), report(5, 10, 1, 0)]);
    assert_eq!(calls.len(), 3 + MAX_COMMANDS_PER_CALL);
    let flow = core.flow(DP, FlowId(5)).unwrap();
    let expected = CommandError::TooManyCommands { found: 99, limit: MAX_COMMANDS_PER_CALL };
    assert_eq!(flow.last_error(), Some(&expected));
}

#[test]
fn an_algorithm_without_a_program_leaves_the_flow_native() {
    let mut told = Told::new("a");
    told.on_flow = Arc::new(|_, control| {
        control.update(&[("mss", 1)]);
        control.set_program("main", &[("typo", 1)]);
    });
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    assert_eq!(turn(&mut core, &mut fake, vec![created(5)])[2..], ["release 5"]);
    let flow = core.flow(DP, FlowId(5)).unwrap();
    assert_eq!(flow.native(), Some(&NativeReason::NoProgram));
    assert_eq!(
        flow.last_error(),
        Some(&CommandError::UnknownField { program: "main".into(), field: "typo" })
    );
    assert_eq!(flow.counters().refused_commands, 2);
}

#[test]
fn a_refused_install_leaves_its_algorithms_flows_native() {
    let (mut core, mut fake) = (core_with(vec![Told::new("a"), Told::new("b")]), Fake::default());
    fake.refuse_install =
        Some((11, DatapathError::Refused { at: Some(3), reason: "too complex".to_owned() }));
    // The flow exists before the refusal is known, and its program is not set any more.
    assert_eq!(turn(&mut core, &mut fake, vec![created(5)]), ["install 10", "install 11", "release 5"]);
    let reason =
        "the datapath refused program `other`: refused by the datapath at instruction 3: too complex";
    assert_eq!(native(&core, 5), reason);
    assert_eq!(turn(&mut core, &mut fake, vec![created(6), report(5, 10, 1, 0)]), ["release 6"]);
    assert_eq!(native(&core, 6), reason);
    let refused = core.installs().filter(|i| matches!(i.state, InstallState::Refused(_)));
    assert_eq!(refused.map(|i| i.program.uid().0).collect::<Vec<_>>(), [11]);
    core.set_rules(Rules::all("b")).unwrap();
    let calls = turn(&mut core, &mut fake, vec![created(7)]);
    assert_eq!(calls[2..], ["set 7 12 [(Reg(2), 1400)]"]);
    assert_eq!((core.counters().refused_commands, core.counters().stray_reports), (1, 1));
}

/// A datapath without a native algorithm: whose algorithm cannot run, runs Reno, and that is told once.
#[test]
fn flows_without_a_native_algorithm_fall_back_to_reno() {
    let (mut core, mut fake) = (core_with(vec![Told::new("odd"), Told::new("reno")]), Fake::default());
    fake.is_stock = true;
    fake.refuse_install =
        Some((11, DatapathError::Refused { at: Some(3), reason: "too complex".to_owned() }));
    let calls = turn(&mut core, &mut fake, vec![created(5)]);
    assert_eq!(calls[..4], ["install 10", "install 11", "install 12", "install 13"]);
    assert_eq!(calls[4..], ["set 5 12 [(Reg(2), 1400)]"], "not released");
    assert_eq!(turn(&mut core, &mut fake, vec![created(6)]), ["set 6 12 [(Reg(2), 1400)]"]);
    for flow in [5, 6] {
        let view = core.flow(DP, FlowId(flow)).unwrap();
        assert_eq!((view.algorithm(), view.native()), ("reno", None));
        let (algorithm, reason) = view.instead_of().unwrap();
        assert!(algorithm == "odd" && reason.to_string().contains("too complex"), "{algorithm}: {reason}");
    }
    let [told] = &core.take_fallbacks()[..] else { panic!("once") };
    assert_eq!((told.kind, told.algorithm, told.instead), ("fake", "odd", Some("reno")));
    turn(&mut core, &mut fake, vec![report(5, 12, 1, 0), Event::Closed { flow: FlowId(5) }]);
    assert_eq!(core.counters().reports, 1);
    assert_eq!(core.algorithms()["odd"].flows_closed, 1, "counted as the rules' algorithm");

    // Reno itself is refused: nothing is left to run, and that is told, too.
    fake.refuse_set = Some(DatapathError::ProgramsFull { limit: 0 });
    assert_eq!(turn(&mut core, &mut fake, vec![created(7)])[1..], ["release 7"]);
    core.set_rules(Rules::all(NATIVE)).unwrap();
    assert_eq!(turn(&mut core, &mut fake, vec![created(8)]), ["release 8"]);
    let told: Vec<_> = core.take_fallbacks().iter().map(|f| (f.algorithm, f.instead)).collect();
    assert_eq!(told, [(NATIVE, None)]);
}

/// The name that a flow's owner asks for is a condition of rules.
#[test]
fn a_requested_name_is_a_condition() {
    let (mut core, mut fake) = (core_with(vec![Told::new("a"), Told::new("b")]), Fake::default());
    let rules = vec![Rule { requested: Some("mine".to_owned()), ..Rule::any("b") }];
    core.set_rules(Rules { rules, default: "a".to_owned() }).unwrap();
    fake.requests = [(6, "mine"), (7, "other")].into();
    turn(&mut core, &mut fake, vec![created(5), created(6), created(7), created(8)]);
    let chosen = [5, 6, 7, 8].map(|flow| core.flow(DP, FlowId(flow)).unwrap().algorithm());
    assert_eq!(chosen, ["a", "b", "a", "a"]);
}

#[test]
fn refusals_of_single_flows_stay_with_them() {
    let mut told = Told::new("a");
    told.on_report = Arc::new(|_, control| control.update(&[("Rate", 9)]));
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    fake.refuse_update = Some(DatapathError::BadField(Field::Rate));
    turn(&mut core, &mut fake, vec![created(5), report(5, 10, 1, 0)]);
    let flow = core.flow(DP, FlowId(5)).unwrap();
    assert_eq!(flow.last_error(), Some(&CommandError::Datapath(DatapathError::BadField(Field::Rate))));
    assert!(flow.native().is_none());

    fake.refuse_set = Some(DatapathError::NoFlow(FlowId(6)));
    turn(&mut core, &mut fake, vec![created(6)]);
    assert!(core.flow(DP, FlowId(6)).unwrap().native().is_none(), "its end is on its way");
    fake.refuse_set = Some(DatapathError::NoProgram(ProgramUid(10)));
    let calls = turn(&mut core, &mut fake, vec![created(7)]);
    assert_eq!(calls, ["set 7 10 [(Reg(2), 1400)]", "release 7"]);
    assert_eq!(
        native(&core, 7),
        "the datapath did not set the program: program ProgramUid(10) is not installed"
    );
}

#[test]
fn a_panic_releases_its_flow_and_nothing_else() {
    let mut told = Told::new("a");
    told.on_flow = Arc::new(|info, control| {
        control.set_program("main", &[]);
        assert_ne!(info.remote.port(), 80, "no web");
    });
    told.on_report = Arc::new(|report, control| {
        control.update(&[("mss", 1)]);
        assert_ne!(report.get("acked"), Some(13), "unlucky");
    });
    told.on_close = || panic!("at the end");
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    let web = Event::Created { flow: FlowId(4), info: info(80) };
    let calls = turn(&mut core, &mut fake, vec![web, created(5), created(6)]);
    assert_eq!(calls[2..], ["release 4", "set 5 10 []", "set 6 10 []"]);
    assert!(native(&core, 4).contains("no web"), "{}", native(&core, 4));
    let calls =
        turn(&mut core, &mut fake, vec![report(5, 10, 1, 13), report(5, 10, 2, 1), report(6, 10, 1, 1)]);
    assert_eq!(calls, ["release 5", "update 6 [(Reg(2), 1)]"]);
    assert!(native(&core, 5).contains("unlucky"), "{}", native(&core, 5));
    turn(&mut core, &mut fake, vec![Event::Closed { flow: FlowId(5) }, Event::Closed { flow: FlowId(6) }]);
    assert_eq!(core.counters().panics, 3, "creation, report, and the end of flow 6");
    let [told] = &core.take_fallbacks()[..] else { panic!("once") };
    assert_eq!((told.kind, told.algorithm, told.instead), ("fake", "a", Some(NATIVE)));
    assert!(told.reason.to_string().contains("no web"), "{}", told.reason);
}

#[test]
fn a_full_table_leaves_further_flows_native() {
    let catalog = Catalog::new(vec![Arc::new(Told::new("a"))], 10).unwrap();
    let config = Config { max_flows: 2, ..Config::default() };
    let (mut core, mut fake) = (Core::new(catalog, Rules::all("a"), config).unwrap(), Fake::default());
    let calls = turn(&mut core, &mut fake, vec![created(1), created(2), created(2), created(3)]);
    assert_eq!(calls[4..], ["release 3"], "and flow 2 was known");
    assert_eq!((core.flows().count(), core.counters().flows_refused), (2, 1));
    let calls = turn(&mut core, &mut fake, vec![Event::Closed { flow: FlowId(1) }, created(4)]);
    assert_eq!(calls, ["set 4 10 [(Reg(2), 1400)]"]);
}

#[test]
fn dropped_events_are_made_good_from_the_list() {
    let (mut core, mut fake) = (core_with(vec![Told::new("a")]), Fake::default());
    fake.listed = [(2, info(443)), (3, info(443))].into();
    let calls = turn(&mut core, &mut fake, vec![created(1), created(2), Event::Dropped { count: 7 }]);
    assert_eq!(calls[2..], ["set 2 10 [(Reg(2), 1400)]", "set 3 10 [(Reg(2), 1400)]"]);
    assert_eq!(core.flows().map(|f| f.flow().0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(core.counters().dropped_events, 7);
}

#[test]
fn heartbeats_come_in_time_and_once() {
    let mut core = core_with(vec![Told::new("a")]);
    let mut fake = Fake::default();
    core.attach(DP, fake.capabilities(), 5).unwrap();
    core.attach(DatapathId(2), fake.capabilities(), 7).unwrap();
    assert_eq!(core.next_tick_us(), Some(5));
    for (now_us, beats) in [(4, 0), (5, 1), (100_004, 1), (100_005, 2), (1_000_000, 3), (1_000_001, 3)] {
        drive(&mut core, DP, &mut fake, now_us);
        assert_eq!(fake.heartbeats, beats, "at {now_us}");
    }
    assert_eq!(core.next_tick_us(), Some(1_000_000 + 100_000), "the other one beat at the same tick");
    // A datapath that is not served meanwhile gets one, not all that it missed.
    let mut other = Fake::default();
    drive(&mut core, DatapathId(2), &mut other, 1_000_002);
    assert_eq!(other.heartbeats, 1);
}

#[test]
fn shutdown_hands_every_flow_over() {
    let (mut core, mut fake) = (core_with(vec![Told::new("a")]), Fake::default());
    turn(&mut core, &mut fake, vec![created(1), created(2)]);
    core.shutdown();
    assert!(!core.is_idle());
    assert_eq!(turn(&mut core, &mut fake, vec![created(3)]), ["release 1", "release 2", "release 3"]);
    assert!(core.is_idle());
    assert_eq!((native(&core, 1).as_str(), core.next_tick_us()), ("the agent stops", None));
    assert_eq!(core.attach(DatapathId(9), fake.capabilities(), 0), Err(AttachError::Stopping));
}

#[test]
fn detach_forgets_the_datapath_and_late_results() {
    let told = Told::new("a");
    let log = told.log.clone();
    let (mut core, mut fake) = (core_with(vec![told]), Fake::default());
    turn(&mut core, &mut fake, vec![created(1)]);
    assert_eq!(core.attach(DP, fake.capabilities(), 0), Err(AttachError::Attached(DP)));
    core.event(DP, created(2), 0);
    let owed = core.next_action(DP).unwrap();
    core.detach(DP);
    assert_eq!((core.flows().count(), core.installs().count(), log.lock().unwrap().len()), (0, 0, 2));
    // The result of an action from before does not pass for one from after.
    core.attach(DP, fake.capabilities(), 0).unwrap();
    core.next_action(DP).unwrap();
    core.result(owed.id, Err(DatapathError::NoProgram(ProgramUid(10))));
    assert_eq!(core.counters().refused_commands, 0);
}

#[test]
fn catalogs_refuse_what_cannot_work() {
    let refusal = |told: Vec<Told>| {
        let algorithms = told.into_iter().map(|t| Arc::new(t) as Arc<dyn Algorithm>).collect();
        Catalog::new(algorithms, 1).err().unwrap()
    };
    let broken = || {
        let mut told = Told::new("a");
        told.programs[1].source = "(def (Report (x 0)))\n(when true (:= y z))";
        told
    };
    let CatalogError::Compile { algorithm: "a", program: "other", diagnostics } = refusal(vec![broken()])
    else {
        panic!("{}", refusal(vec![broken()]))
    };
    assert_eq!(diagnostics[0].line, 2);
    let mut twice = Told::new("a");
    twice.programs.push(ProgramSource { name: "main", source: crate::common::PROGRAM });
    assert_eq!(refusal(vec![twice]), CatalogError::ProgramNameTaken { algorithm: "a", program: "main" });
    assert_eq!(refusal(vec![Told::new("a"), Told::new("a")]), CatalogError::NameTaken { name: "a" });
    assert_eq!(refusal(vec![Told::new(NATIVE)]), CatalogError::NameTaken { name: NATIVE });
}

//! The real libccp in this process, a real `ccplane agent` in another, a unix datagram socket between them.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use common::{Home, LibccpFlow, MSS, Shim, wait_for, wait_until_steered};
use libccp::LibccpError;

/// A flow's whole life under an algorithm whose agent decides: every window is an update of the agent's.
#[test]
fn the_agent_steers_a_libccp_flow_from_create_to_close() {
    let Some(home) = Home::new("the_agent_steers_a_libccp_flow", "ccp-reno") else { return };
    let _agent = home.agent();
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let mut flow = LibccpFlow::start(&shim, 1);
    wait_until_steered(&shim, std::slice::from_mut(&mut flow));
    assert_eq!((shim.installs.get(), shim.changes.get()), (1, 1));
    assert_eq!(flow.cwnd(), 10 * MSS);

    flow.ack_until("the agent's updates open the window", |f| f.cwnd() >= 100 * MSS);
    let set = shim.windows.borrow().clone();
    assert!(set.len() > 3 && set.contains(&flow.cwnd()), "{set:?}");
    let [listed] = &home.flows()[..] else { panic!("{:?}", home.flows()) };
    assert_eq!(listed["datapath"], "ccp-v1");
    assert_eq!((&listed["algorithm"], &listed["mode"]), (&"ccp-reno".into(), &"program".into()));
    assert_eq!((&listed["local"], &listed["remote"]), (&"10.0.0.1:4001".into(), &"10.0.0.2:443".into()));
    assert!(listed["reports"].as_u64().unwrap() >= set.len() as u64, "{listed}");

    // A loss is reported at once, and answered by half of the window. That is the one which the agent has by then: it may still have
    // to read reports from before the loss, which open its window further.
    let answered = shim.windows.borrow().len();
    flow.invoke(Prims::default().set(Prim::AckLostPktsSample, 1).set(Prim::FlowRttSampleUs, 20_000)).unwrap();
    flow.ack_until("the agent answers a loss", |_| {
        shim.windows.borrow()[answered - 1..].windows(2).any(|two| two[1] <= two[0] / 2 + MSS)
    });

    drop(flow);
    wait_for("its end is noticed", || home.flows().is_empty().then_some(()));
}

/// The default algorithms decide in the datapath, from the window that it has.
#[test]
fn fold_programs_start_from_the_flows_own_window() {
    for algorithm in ["reno", "cubic"] {
        let Some(home) = Home::new("fold_programs_start_from_the_flows_own_window", algorithm) else {
            return;
        };
        let _agent = home.agent();
        let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
        let mut flow = LibccpFlow::start(&shim, 1);
        wait_until_steered(&shim, std::slice::from_mut(&mut flow));
        assert_eq!(flow.cwnd(), 10 * MSS, "{algorithm}");
        // Slow start: ten segments acknowledged make twenty. Nothing is lost: no ACK may shrink the window.
        for segments in 11..=20 {
            let prims = &mut Prims::default();
            prims.set(Prim::AckBytesAcked, MSS as i64).set(Prim::FlowRttSampleUs, 20_000);
            flow.invoke(prims.set(Prim::FlowBytesInFlight, flow.cwnd() as i64)).unwrap();
            assert_eq!(flow.cwnd(), segments * MSS, "{algorithm}");
        }
        assert_eq!(*shim.windows.borrow(), [0; 0], "{algorithm}: no update of the agent's");
        flow.ack_until("reports reach the agent", |_| home.flows()[0]["reports"].as_u64().unwrap() > 3);
        assert_eq!(home.flows()[0]["algorithm"], algorithm);
    }
}

/// Whatever the agent dies of, the next one finds the flow by its reports.
#[test]
fn after_kill_9_the_next_agent_steers_the_flow_again() {
    for algorithm in ["cubic", "ccp-reno"] {
        let Some(home) = Home::new("after_kill_9_the_next_agent_steers_the_flow_again", algorithm) else {
            return;
        };
        let agent = home.agent();
        let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
        let mut flow = LibccpFlow::start(&shim, 1);
        wait_until_steered(&shim, std::slice::from_mut(&mut flow));
        flow.ack_until("the window opens", |f| f.cwnd() >= 20 * MSS);
        drop(agent);
        // Its program goes on without an agent.
        for _ in 0..1000 {
            flow.ack().unwrap();
        }
        assert!(flow.cwnd() >= 2 * MSS, "{algorithm}: {}", flow.cwnd());
        shim.pump();
        let (changes, windows) = (shim.changes.get(), shim.windows.borrow().len());
        let before = flow.cwnd();

        let _next = home.agent();
        flow.ack_until("the flow's program is set again", |f| {
            assert!(f.cwnd() >= before.min(10 * MSS), "{algorithm}: {} after {before}", f.cwnd());
            shim.changes.get() > changes
        });
        assert_eq!(
            shim.installs.get(),
            1,
            "the datapath holds the program, under a name that both agents know"
        );
        if algorithm == "ccp-reno" {
            flow.ack_until("the agent sets windows", |_| shim.windows.borrow().len() > windows + 3);
        }
        flow.ack_until("it reports", |_| home.flows()[0]["reports"].as_u64().unwrap() > 3);
        let listed = &home.flows()[0];
        assert_eq!((&listed["algorithm"], &listed["mode"]), (&algorithm.into(), &"program".into()));
    }
}

/// Each of twelve agents needs another program, which would fill libccp's table, and steers the flows that run, also one without ACKs.
#[test]
fn twelve_restarts_leave_room_for_programs_and_lose_no_flow() {
    const RESTARTS: usize = 12;
    const RUNNING: u16 = 4;
    /// ACKs of each flow between two looks at the agent's list.
    const ACKS: usize = 20;
    let Some(home) = Home::new("twelve_restarts_leave_room_for_programs_and_lose_no_flow", "reno") else {
        return;
    };
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let first = home.agent();
    let mut running: Vec<LibccpFlow<'_>> = (1..=RUNNING).map(|n| LibccpFlow::start(&shim, n)).collect();
    let mut idle = LibccpFlow::start(&shim, RUNNING + 1);
    wait_until_steered(&shim, &mut running);
    idle.ack_until("the flow that will be idle is steered", |_| shim.changes.get() > usize::from(RUNNING));
    drop(first);
    for restart in 0..RESTARTS {
        let algorithm = ["cubic", "vegas", "copa", "ccp-reno", "constant", "reno"][restart % 6];
        home.configure_with(algorithm, "");
        let _agent = home.agent();
        let reporting = || {
            let flows = home.flows();
            let reports =
                |f: &serde_json::Value| f["reports"].as_u64().unwrap() > 0 && f["mode"] == "program";
            flows.iter().filter(|f| f["algorithm"] == algorithm && reports(f)).count()
        };
        // The first that the agent hears of is a new flow, so that it knows nothing of what the table holds.
        let mut fresh = LibccpFlow::start(&shim, 1000 + restart as u16);
        wait_for("the agent has heard of it", || {
            shim.pump();
            (!home.flows().is_empty()).then_some(())
        });
        let steered = usize::from(RUNNING) + 1;
        wait_for("each running flow runs the new agent's program", || {
            for _ in 0..ACKS {
                shim.pump();
                running.iter_mut().chain([&mut fresh]).for_each(ack_or_wait);
            }
            (reporting() == steered).then_some(())
        });
        wait_for("the idle flow runs it, too", || {
            shim.pump();
            ack_or_wait(&mut idle);
            (reporting() == steered + 1).then_some(())
        });
    }
    assert!(shim.clears.get() > RESTARTS, "libccp's table was cleared each time: {}", shim.clears.get());
}

/// One ACK of a flow, whose program may be missing while the agent writes the table, and must not be another flow's.
fn ack_or_wait(flow: &mut LibccpFlow<'_>) {
    match flow.ack() {
        Ok(_) | Err(LibccpError::LibccpProgIsNull) => {}
        Err(other) => panic!("libccp: {other}"),
    }
}

/// Somebody else fills the table, or clears it: the agent notices that a flow does not report its program, and mends it.
#[test]
fn a_table_without_the_flows_program_is_noticed() {
    let Some(home) = Home::new("a_table_without_the_flows_program_is_noticed", "reno") else { return };
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let _agent = home.agent();
    let mut flow = LibccpFlow::start(&shim, 1);
    flow.ack_until("the flow reports", |_| {
        home.flows().first().is_some_and(|f| f["reports"].as_u64().unwrap() > 3)
    });
    shim.install_elsewhere(1, "(def (Report (stranger 0))) (when true (report))");
    shim.change_elsewhere(1, 1);
    let (clears, changes) = (shim.clears.get(), shim.changes.get());
    flow.ack_until("the agent writes the table anew", |_| {
        shim.clears.get() > clears && shim.changes.get() > changes
    });
    let before = home.flows()[0]["reports"].as_u64().unwrap();
    flow.ack_until("the flow reports again", |_| home.flows()[0]["reports"].as_u64().unwrap() > before + 3);
    assert!(home.log().contains("does not hold a program"), "{}", home.log());
}

/// The algorithms whose programs stock CCP cannot run: their flows run Reno's, and the log says so once.
#[test]
fn what_stock_ccp_cannot_run_falls_back_to_reno() {
    for algorithm in ["bbr", "aurora"] {
        let Some(home) = Home::new("what_stock_ccp_cannot_run_falls_back_to_reno", algorithm) else { return };
        let _agent = home.agent();
        let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
        let mut flows = [LibccpFlow::start(&shim, 1), LibccpFlow::start(&shim, 2)];
        wait_until_steered(&shim, &mut flows);
        let [flow, _] = &mut flows;
        flow.ack_until("the window opens", |f| f.cwnd() >= 20 * MSS);
        flow.ack_until("it reports", |_| home.flows().iter().any(|f| f["reports"].as_u64().unwrap() > 3));
        for listed in home.flows() {
            assert_eq!((&listed["algorithm"], &listed["mode"]), (&"reno".into(), &"program".into()));
            assert_eq!(listed["instead_of"]["algorithm"], algorithm, "{listed}");
        }
        let log = home.log();
        let told: Vec<&str> = log.lines().filter(|l| l.contains("run reno instead")).collect();
        assert!(told.len() == 1 && told[0].contains(algorithm), "{log}");
        assert!(algorithm == "aurora" || told[0].contains("this program: "), "{log}");
        assert!(!log.contains("cannot run stock CCP datapaths cannot run"), "{log}");
    }
}

/// The name that CREATE carries is a condition of rules.
#[test]
fn a_flow_gets_the_algorithm_that_its_owner_asks_for() {
    let Some(home) = Home::new("a_flow_gets_the_algorithm_that_its_owner_asks_for", "reno") else { return };
    home.configure_with("reno", "[[rule]]\nrequested = \"my-vegas\"\nalgorithm = \"vegas\"\n");
    let _agent = home.agent();
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let _flows = [
        LibccpFlow::start_as(&shim, 1, "my-vegas"),
        LibccpFlow::start_as(&shim, 2, "other"),
        LibccpFlow::start(&shim, 3),
    ];
    wait_for("the agent knows all", || (home.flows().len() == 3).then_some(()));
    let chosen: Vec<_> = home.flows().iter().map(|f| f["algorithm"].as_str().unwrap().to_owned()).collect();
    assert_eq!(chosen, ["vegas", "reno", "reno"]);
}

/// Flows of one aggregate share its window by their weights.
#[test]
fn an_aggregate_shares_its_window_among_libccp_flows() {
    let Some(home) = Home::new("an_aggregate_shares_its_window_among_libccp_flows", "reno") else { return };
    let rule = |weight: u64| {
        format!(
            "[[rule]]\nrequested = \"w{weight}\"\nalgorithm = \"aggregate\"\nparameters = {{ weight = {weight} }}\n"
        )
    };
    home.configure_with("reno", &[1, 3].map(rule).concat());
    let _agent = home.agent();
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let mut flows = [LibccpFlow::start_as(&shim, 1, "w1"), LibccpFlow::start_as(&shim, 2, "w3")];
    wait_until_steered(&shim, &mut flows);
    // Each has its share of the window that the group has at the flow's own report.
    let mut last = (0, 0);
    wait_for("shares by weight", || {
        shim.pump();
        for flow in &mut flows {
            flow.ack().unwrap();
        }
        last = (flows[0].cwnd(), flows[1].cwnd());
        (last.0 >= 20 * MSS && last.1.abs_diff(3 * last.0) <= last.1 / 5).then_some(())
    });
    println!("windows: {last:?}");
    for listed in home.flows() {
        assert_eq!((&listed["algorithm"], &listed["mode"]), (&"aggregate".into(), &"program".into()));
    }
}

/// A datapath that measures nothing has no figures, until a report brings some.
#[test]
fn figures_are_absent_until_a_report_brings_them() {
    let Some(home) = Home::new("figures_are_absent_until_a_report_brings_them", "reno") else { return };
    let _agent = home.agent();
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let mut flow = LibccpFlow::start(&shim, 1);
    wait_for("the agent knows it", || (home.flows().len() == 1).then_some(()));
    let listed = &home.flows()[0];
    for figure in ["snd_cwnd", "srtt_us", "min_rtt_us", "delivered", "lost", "bytes_acked", "pacing_rate"] {
        assert!(listed[figure].is_null() && listed.get(figure).is_some(), "{figure}: {listed}");
    }
    assert_eq!((&listed["mss_bytes"], &listed["reports"]), (&MSS.into(), &0.into()));
    let table = String::from_utf8(home.run(&["flows"]).stdout).unwrap();
    assert!(table.contains("rtt:- minrtt:- mss:1448 cwnd:- "), "{table}");
    flow.ack_until("it reports", |_| home.flows()[0]["reports"].as_u64().unwrap() > 3);
    let listed = &home.flows()[0];
    let rtt_us = listed["srtt_us"].as_u64().unwrap();
    assert!((20_000..60_000).contains(&rtt_us) && listed["snd_cwnd"].as_u64().unwrap() >= 10, "{listed}");
    assert!(listed["delivered"].is_null(), "{listed}");
}

/// The datapath restarts: libccp has forgotten everything, and says so.
#[test]
fn a_restarted_datapath_gets_its_program_again() {
    let Some(home) = Home::new("a_restarted_datapath_gets_its_program_again", "reno") else { return };
    let _agent = home.agent();
    for _ in 0..3 {
        let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
        let mut flow = LibccpFlow::start(&shim, 1);
        wait_until_steered(&shim, std::slice::from_mut(&mut flow));
        assert_eq!((shim.installs.get(), shim.changes.get()), (1, 1));
        // As if killed: its flow is never closed.
        std::mem::forget(flow);
        std::fs::remove_file(home.path("libccp")).unwrap();
    }
    wait_for("one flow is left", || (home.flows().len() <= 1).then_some(()));
}

/// Many flows at once, opened and closed in turns, keep apart.
#[test]
fn many_flows_share_one_program() {
    let Some(home) = Home::new("many_flows_share_one_program", "cubic") else { return };
    let _agent = home.agent();
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    for round in 0..3 {
        let mut flows: Vec<LibccpFlow<'_>> = (0..20).map(|n| LibccpFlow::start(&shim, n)).collect();
        if round == 0 {
            // The agent has answered all before we read the first: more than the socket holds (10, often).
            wait_for("the agent knows all", || (home.flows().len() == 20).then_some(()));
        }
        wait_until_steered(&shim, &mut flows);
        assert_eq!(shim.installs.get(), 1, "round {round}");
        assert_eq!(home.flows().len(), 20, "round {round}");
        for (n, flow) in flows.iter_mut().enumerate() {
            for _ in 0..=n {
                let prims = &mut Prims::default();
                prims.set(Prim::AckBytesAcked, MSS as i64).set(Prim::FlowRttSampleUs, 20_000);
                flow.invoke(prims.set(Prim::FlowBytesInFlight, flow.cwnd() as i64)).unwrap();
            }
            assert_eq!(flow.cwnd(), (11 + n as u64) * MSS);
        }
        drop(flows);
        wait_for("all are closed", || home.flows().is_empty().then_some(()));
    }
}

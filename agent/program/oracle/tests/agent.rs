//! The real libccp in this process, a real `ccplane agent` in another, a unix datagram socket between them.
#![allow(clippy::unwrap_used)]

mod common;

use ccplane_program::ir::Prim;
use ccplane_program::vm::Prims;
use common::{Flow, Home, MSS, Shim, wait_for, wait_until_steered};

/// A flow's whole life under an algorithm whose agent decides: every window is an update of the agent's.
#[test]
fn the_agent_steers_a_libccp_flow_from_create_to_close() {
    let Some(home) = Home::new("the_agent_steers_a_libccp_flow", "ccp-reno") else { return };
    let _agent = home.agent();
    let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
    let mut flow = Flow::start(&shim, 1);
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

    // A loss is reported at once, and answered by half of the window.
    let before = flow.cwnd();
    flow.invoke(Prims::default().set(Prim::AckLostPktsSample, 1).set(Prim::FlowRttSampleUs, 20_000)).unwrap();
    flow.ack_until("the agent answers a loss", |f| f.cwnd() <= before / 2 + MSS);

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
        let mut flow = Flow::start(&shim, 1);
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
        let mut flow = Flow::start(&shim, 1);
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

/// The datapath restarts: libccp has forgotten everything, and says so.
#[test]
fn a_restarted_datapath_gets_its_program_again() {
    let Some(home) = Home::new("a_restarted_datapath_gets_its_program_again", "reno") else { return };
    let _agent = home.agent();
    for _ in 0..3 {
        let shim = Shim::new(&home.path("libccp"), &home.path("ccp.sock"));
        let mut flow = Flow::start(&shim, 1);
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
        let mut flows: Vec<Flow<'_>> = (0..20).map(|n| Flow::start(&shim, n)).collect();
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

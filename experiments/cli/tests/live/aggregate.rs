//! Flows under one aggregate controller, on an emulated link: of the kernel, of QUIC with the agent's core in the same
//! process, and of both under one agent.

use crate::common::lab::{LINK_MBIT, LONG, Lab, SAMPLE_EVERY, acked};
use crate::common::wait_for;
use ccplane_channel::{Clock, ServeOptions, spawn};
use ccplane_contract::Datapath;
use ccplane_core::{Catalog, Config, Core, DatapathId, Rule, Rules, drive};
use ccplane_engine::{Engine, EngineConfig, Handle, Waker, engine};
use ccplane_runner::quic::{QuicPlan, udp_wires};
use ccplane_runner::traffic::BulkFlow;
use ccplane_testing::{wait_until, within_tries};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Flows' weights, and the receiver's ports, by which rules tell the flows apart.
const WEIGHTS: [(u16, u64); 3] = [(7001, 1), (7002, 2), (7003, 3)];
/// The time for which it is measured whether the group fills the link.
const FILLS: Duration = Duration::from_secs(1);
/// The time for which shares are measured: a multiple of Reno's period on this link.
const WINDOW: Duration = Duration::from_secs(4);
/// A machine that holds everything up for a while spoils one window, and what is wrong with shares spoils each.
const TRIES: u32 = 4;
/// The tolerance of a share, percent of the weight's part.
const WITHIN_PERCENT: u64 = 15;
/// The share of the link's capacity that flows must fill, headers included.
const FILLED_PERCENT: u64 = 85;

/// The rules as an agent's configuration writes them.
fn configured() -> String {
    let rule = |(port, weight): (u16, u64)| {
        format!("{{ algorithm = \"aggregate\", remote_port = {port}, parameters = {{ weight = {weight} }} }}")
    };
    format!("rule = [{}]\n", WEIGHTS.map(rule).join(", "))
}

fn receiver(lab: &Lab, port: u16) -> SocketAddr {
    SocketAddr::new(lab.link.receiver_addresses().v4.into(), port)
}

fn tcp(lab: &Lab, port: u16) -> BulkFlow {
    lab.flow_to(&lab.name, port)
}

fn quic(lab: &Lab, engine: &Engine, port: u16) -> BulkFlow {
    let wires = udp_wires(lab.link.sender_ns(), lab.link.receiver_ns(), receiver(lab, port)).unwrap();
    let plan = QuicPlan { duration: LONG, sample_every: SAMPLE_EVERY, epoch: Instant::now() };
    BulkFlow::start_quic(wires, engine, plan).unwrap()
}

/// Asserts that each flow gets its weight's part of the link in [`WINDOW`].
fn assert_shares(flows: &[BulkFlow], weights: &[(u16, u64)], when: &str) {
    wait_until("the flows fill the link", || Shares::measured(flows, weights, FILLS).fill_the_link());
    within_tries(&format!("shares of {when}"), TRIES, |_| {
        let shares = Shares::measured(flows, weights, WINDOW);
        if shares.are_right() { Ok(()) } else { Err(shares) }
    });
}

/// The flows' shares of the link in a window.
struct Shares {
    /// Of the link, percent.
    filled_percent: u64,
    /// Each flow's part of all bytes, and its weight's part.
    permille: Vec<(u64, u64)>,
}

impl Shares {
    fn measured(flows: &[BulkFlow], weights: &[(u16, u64)], window: Duration) -> Shares {
        let got: Vec<u64> = thread::scope(|scope| {
            let each: Vec<_> = flows.iter().map(|flow| scope.spawn(move || acked(flow, window))).collect();
            each.into_iter().map(|flow| flow.join().unwrap()).collect()
        });
        let possible = u64::from(LINK_MBIT) * window.as_micros() as u64 / 8;
        let (sum, total) = (got.iter().sum::<u64>(), weights.iter().map(|(_, weight)| weight).sum::<u64>());
        let permille =
            |(got, (_, weight)): (&u64, &(u16, u64))| (got * 1000 / sum.max(1), weight * 1000 / total);
        let permille: Vec<(u64, u64)> = got.iter().zip(weights).map(permille).collect();
        let filled_percent = sum * 100 / possible;
        Shares { filled_percent, permille }
    }

    fn fill_the_link(&self) -> bool {
        self.filled_percent >= FILLED_PERCENT
    }

    fn are_right(&self) -> bool {
        let near = |(is, should): &(u64, u64)| is.abs_diff(*should) * 100 <= should * WITHIN_PERCENT;
        self.fill_the_link() && self.permille.iter().all(near)
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shares { filled_percent, permille } = self;
        write!(f, "{permille:?} permille each and due, {filled_percent} % of the link")
    }
}

/// All three, then the two that are left.
fn assert_aggregate(mut flows: Vec<BulkFlow>) {
    assert_shares(&flows, &WEIGHTS, "three flows");
    drop(flows.pop());
    assert_shares(&flows, &WEIGHTS[..2], "two flows, after the third has ended");
}

#[test]
fn tcp_flows_share_by_weight() {
    let Some(lab) = Lab::with("agg_tcp", "native", &configured()) else { return };
    let _agent = lab.home.agent();
    assert_aggregate(WEIGHTS.map(|(port, _)| tcp(&lab, port)).into());
}

/// An agent's core on a thread of this process, until it is dropped.
struct CoreThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CoreThread {
    fn start(mut handle: Handle, woken: Receiver<()>) -> CoreThread {
        let rule = |(port, weight): (u16, u64)| Rule {
            remote_port: Some(port..=port),
            parameters: vec![("weight".to_owned(), weight as i64)],
            ..Rule::any("aggregate")
        };
        let rules = Rules { rules: WEIGHTS.map(rule).into(), default: "aggregate".to_owned() };
        let catalog = Catalog::new(ccplane_algs::all(), 1).unwrap();
        let mut core = Core::new(catalog, rules, Config::default()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            let (id, start) = (DatapathId(0), Instant::now());
            core.attach(id, handle.capabilities(), 0).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                let now_us = start.elapsed().as_micros() as u64;
                while drive(&mut core, id, &mut handle, now_us).events > 0 {}
                let due = core.next_tick_us().map_or(1000, |at| at.saturating_sub(now_us));
                // Called, or something is due: both are looked at.
                let _ = woken.recv_timeout(Duration::from_micros(due));
            }
        };
        CoreThread { stop, thread: Some(thread::spawn(run)) }
    }
}

impl Drop for CoreThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.take().unwrap().join().is_ok() || thread::panicking());
    }
}

#[test]
fn quic_connections_share_by_weight_under_a_core_in_their_process() {
    let Some(lab) = Lab::with("agg_quic", "native", "") else { return };
    let (wake, woken) = sync_channel(1);
    // Full: it has been called already.
    let wake: Waker = Arc::new(move || {
        let _ = wake.try_send(());
    });
    let (engine, handle) = engine(EngineConfig::new("quic"), wake);
    let _steering = CoreThread::start(handle, woken);
    assert_aggregate(WEIGHTS.map(|(port, _)| quic(&lab, &engine, port)).into());
}

/// The group belongs to the agent: flows of any of its datapaths are in it.
#[test]
fn tcp_flows_and_quic_connections_share_one_aggregate() {
    let Some(lab) = Lab::with("agg_both", "native", &configured()) else { return };
    let _agent = lab.home.agent();
    let options = ServeOptions { clock: Clock::Own, ..ServeOptions::new("aggregate").unwrap() };
    let waker = options.waker.clone();
    let (engine, handle) = engine(EngineConfig::new("quic"), Arc::new(move || waker.wake()));
    let clock = engine.clone();
    let now_us = move || clock.now_us(Instant::now());
    let link = spawn(&lab.home.path("ccp.sock"), Box::new(handle), now_us, options).unwrap();
    wait_for("the agent serves QUIC", || link.is_connected().then_some(()));
    let [first, second, third] = WEIGHTS.map(|(port, _)| port);
    assert_aggregate(vec![tcp(&lab, first), quic(&lab, &engine, second), tcp(&lab, third)]);
}

//! The effects of a plan's keys on simulated flows; each expected figure follows from the link.

use std::path::Path;

use ccplane_netsim::trace::Trace;
use ccplane_results::{FlowResult, RunFigures};
use ccplane_runner::experiment;
use ccplane_runner::plan::{Known, Overrides, Plan};

/// One run of 12 Mb/s and 20 ms for 10 s with these keys of the link, and tables behind it.
fn run(algorithm: &str, link: &str, tables: &str) -> RunFigures {
    let text = format!(
        "title = \"t\"\nduration_s = 10\nsample_ms = 100\n[simulator]\nemulated = true\n[[link]]\nrate_mbit = 12\ndelay_ms = 10\n{link}\n\
         [[algorithm]]\nalgorithm = \"{algorithm}\"\ndatapath = \"sim\"\n{tables}\n"
    );
    let algorithms = ccplane_algs::all();
    let traces = |name: &str| match name {
        // Eight opportunities each 100 ms.
        "lumps" => Trace::parse(&"100\n".repeat(8)).map_err(|e| e.to_string()),
        _ => Err(format!("no trace is called `{name}`")),
    };
    let known = Known { algorithms: &algorithms, kernel: None, traces: &traces, cellular: None };
    let plan = Plan::parse(Path::new("p.toml"), &text, &known, Overrides::default()).unwrap();
    let once =
        || experiment::simulate(&plan, &plan.scenarios[0], &plan.contenders[0], 1, &algorithms).unwrap();
    let measured = once();
    assert_eq!(measured, once(), "the same seed, the same run");
    measured
}

fn own(measured: &RunFigures) -> Vec<&FlowResult> {
    measured.flows.iter().filter(|f| f.background.is_none()).collect()
}

fn mbit(measured: &RunFigures) -> f64 {
    own(measured).iter().map(|f| f.throughput_bps).sum::<u64>() as f64 / 1e6
}

#[test]
fn a_plain_link_is_filled() {
    assert!((11.0..11.6).contains(&mbit(&run("cubic", "", ""))));
}

/// Its arms change after some seconds by what the path's flows have achieved.
#[test]
fn portfolio_knows_nothing_of_an_earlier_run() {
    assert!(mbit(&run("portfolio", "", "")) > 6.0);
}

#[test]
fn a_policer_caps_the_rate_and_counts_what_it_drops() {
    let measured = run("bbr", "policer_mbit = 6\npolicer_bytes = 15000", "");
    assert!((4.5..5.9).contains(&mbit(&measured)), "{}", mbit(&measured));
    assert!(measured.link.unwrap().dropped_pkts > 50);
}

#[test]
fn bursts_lose_their_share() {
    let measured = run("copa", "burst_loss = 0.02\nburst_packets = 5", "");
    let link = measured.link.as_ref().unwrap();
    let share = link.lost_pkts as f64 / (link.lost_pkts + link.departed_pkts) as f64;
    assert!((0.012..0.03).contains(&share), "{share}");
    let gone = link.lost_pkts + link.dropped_pkts;
    assert!(
        gone.abs_diff(own(&measured)[0].lost_pkts) < 5,
        "those of the last round trip are not noticed yet"
    );
}

#[test]
fn copies_and_reordering_pass_a_flow_by() {
    let measured = run("copa", "reorder = 0.01\nreorder_ms = 3\nduplicate = 0.01", "");
    assert!(mbit(&measured) > 8.0, "{}", mbit(&measured));
    // One packet of a hundred comes three packets late, which looks like a loss.
    assert!(own(&measured)[0].lost_pkts > 20, "{}", own(&measured)[0].lost_pkts);
}

/// A flow that sets ECT learns of the queue without losing anything, and keeps it short; another flow has to lose packets.
#[test]
fn queues_mark_flows_that_set_ect_and_these_slow_down() {
    let codel = "queue = \"codel\"\nqueue_packets = 500\nqueue_ecn = true";
    let marked = run("reno", codel, "[traffic]\necn = true");
    let (link, lost) = (marked.link.unwrap(), own(&marked)[0].lost_pkts);
    assert!(link.marked_pkts > 2 && link.dropped_pkts == 0 && lost == 0, "{link:?}, {lost} lost");
    // A flow that goes on would have 500 ms of queue.
    assert!(link.queue_delay_us.p50 < 20_000 && mbit(&marked) > 9.0, "{link:?}, {} Mb/s", mbit(&marked));
    let dropping = "queue = \"codel\"\nqueue_packets = 500";
    for (queue, traffic) in [(codel, ""), (dropping, "[traffic]\necn = true")] {
        let unmarked = run("reno", queue, traffic);
        let link = unmarked.link.unwrap();
        assert!(link.marked_pkts == 0 && link.dropped_pkts > 2, "{link:?}");
    }
    let pie = "queue = \"pie\"\nqueue_packets = 500\nqueue_ecn = true";
    let link = run("cubic", pie, "[traffic]\necn = true").link.unwrap();
    assert!(link.marked_pkts > 0 && link.queue_delay_us.p50 < 100_000, "{link:?}");
}

#[test]
fn lost_and_thinned_acknowledgements_are_covered_by_later_ones() {
    let lossy = run("cubic", "return_loss = 0.5", "");
    assert!(mbit(&lossy) > 10.5, "{}", mbit(&lossy));
    // One opportunity each 120 ms lets 26 acknowledgements of 56 bytes through; there are 60 of them meanwhile.
    let back = "queue_packets = 300\nreturn_rate_mbit = 0.1";
    let thin = run("cubic", &format!("{back}\nreturn_queue = \"drophead\"\nreturn_queue_packets = 10"), "");
    assert!(mbit(&thin) > 8.0, "{}", mbit(&thin));
    let (thin, thick) = (own(&thin)[0].rtt_us.mean, own(&run("cubic", back, ""))[0].rtt_us.mean);
    assert!(thin * 3 < thick * 2, "those that are left waited for fewer: {thin} {thick}");
}

#[test]
fn lumps_of_acknowledgements_come_together() {
    let lumpy = run("cubic", "return_trace = \"lumps\"\nqueue_bdp = 10", "");
    assert!(own(&lumpy)[0].rtt_us.mean > 60_000, "{}", own(&lumpy)[0].rtt_us.mean);
}

#[test]
fn flows_start_late_and_far_away() {
    let traffic = "[traffic]\nflows = 3\nstart_s = 2\nstagger_s = 1\nextra_delay_ms = [0, 140]";
    let measured = run("reno", "", traffic);
    let of: Vec<(u64, u64)> = own(&measured).iter().map(|f| (f.start_ms, f.min_rtt_us / 20_000)).collect();
    assert_eq!(of, [(2000, 1), (3000, 8), (4000, 1)]);
}

/// Of two flows, the second has a way that jitters, or acknowledgements that come each 60 ms.
#[test]
fn flows_have_ways_of_their_own() {
    // The queue is the same for both.
    let longer_ms = |keys: &str| {
        let measured = run("reno", "queue_bdp = 4", &format!("[traffic]\nflows = 2\n{keys}"));
        let rtts_us: Vec<f64> = own(&measured).iter().map(|f| f.rtt_us.p50 as f64).collect();
        (rtts_us[1] - rtts_us[0]) / 1000.0
    };
    let (plain, gathered) = (longer_ms(""), longer_ms("aggregate_acks_ms = [0, 60]"));
    assert!(plain.abs() < 5.0 && gathered > 15.0, "{plain} {gathered}");
    let share = |keys: &str| {
        let measured = run("vegas", "queue_bdp = 4", &format!("[traffic]\nflows = 2\n{keys}"));
        let bps: Vec<u64> = own(&measured).iter().map(|f| f.throughput_bps).collect();
        bps[1] as f64 / bps[0] as f64
    };
    // Vegas takes jitter for a queue of its own.
    let jittered = share("extra_jitter_ms = [0, 20]");
    assert!(share("") > 0.5 && jittered < share("") / 2.0, "{jittered}");
}

#[test]
fn receivers_that_lie_hide_losses_from_their_sender() {
    let lost = |keys: &str| {
        let measured = run("reno", "loss = 0.02", &format!("[traffic]\n{keys}"));
        own(&measured)[0].lost_pkts
    };
    assert!(lost("ack_every = 16") > 20 && lost("conceal_losses = true") * 10 < lost(""));
}

#[test]
fn what_becomes_of_short_flows_and_datagrams_beside_is_told() {
    let beside = "[[background]]\nkind = \"short-flows\"\nalgorithm = \"cubic\"\nload = 0.2\n\
                  [[background]]\nkind = \"udp\"\nrate_mbit = 1.2";
    let measured = run("reno", "queue_bdp = 4", beside);
    let short = measured.background_completions.unwrap();
    assert!(short.flows.len() > 1 && short.distribution == "web-search", "{short:?}");
    assert!(short.flows.iter().all(|f| f.fct_us > 0 && f.start_us + f.fct_us <= 10_000_000));
    assert_eq!(measured.completions, None);
    // A hundred a second.
    let datagrams = measured.datagrams[0];
    assert!((990..=1001).contains(&datagrams.sent) && datagrams.delivered > 500, "{datagrams:?}");
}

#[test]
fn short_flows_beside_take_their_load() {
    let short = "[[background]]\nkind = \"short-flows\"\nalgorithm = \"cubic\"\nload = 0.5";
    let measured = run("vegas", "queue_bdp = 4", short);
    assert_eq!(measured.flows.len(), 1);
    assert!((3.0..10.8).contains(&mbit(&measured)), "{}", mbit(&measured));
    let link = measured.link.unwrap();
    assert!(link.utilisation_ppm > 800_000, "{}", link.utilisation_ppm);
}

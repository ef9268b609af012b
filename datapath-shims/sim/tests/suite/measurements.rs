//! Tests that hold the primitives of programs against what the network did.

use crate::common::*;
use ccplane_contract::{Datapath, Event, Field, FlowId, Mode, ProgramUid};
use ccplane_netsim::LinkConfig;
use ccplane_program::compile;
use ccplane_sim::{FlowConfig, SimConfig, SimDatapath, Source, Wake};
use proptest::prelude::*;

const SUMS: &str = "(def (Report
      (bytes 0) (packets 0) (lost 0) (timeouts 0) (acks 0) (rtt_min +infinity) (rtt_max 0)
      (delivery 0) (sending 0) (in_flight 0) (in_flight_bytes 0) (pending 0)) (cwnd 14480))
    (when Flow.was_timeout (:= Report.timeouts (+ Report.timeouts 1)) (fallthrough))
    (when (< Flow.rtt_sample_us 1000000000) (:= Report.rtt_max (max Report.rtt_max Flow.rtt_sample_us)) (fallthrough))
    (when true
      (:= Report.bytes (+ Report.bytes Ack.bytes_acked))
      (:= Report.packets (+ Report.packets (+ Ack.packets_acked Ack.packets_misordered)))
      (:= Report.lost (+ Report.lost Ack.lost_pkts_sample))
      (:= Report.acks (+ Report.acks 1))
      (:= Report.rtt_min (min Report.rtt_min Flow.rtt_sample_us))
      (:= Report.delivery Flow.rate_incoming)
      (:= Report.sending Flow.rate_outgoing)
      (:= Report.in_flight Flow.packets_in_flight)
      (:= Report.in_flight_bytes Flow.bytes_in_flight)
      (:= Report.pending Flow.bytes_pending)
      (:= Cwnd cwnd)
      (report))";

struct Seen {
    sim: SimDatapath,
    flow: FlowId,
    /// By name, from the last report.
    last: Vec<(String, i64)>,
}

impl Seen {
    fn get(&self, name: &str) -> i64 {
        self.last.iter().find(|(n, _)| n == &format!("Report.{name}")).unwrap().1
    }
}

fn run(link: LinkConfig, seed: u64, source: Source, packets: u64, until_us: u64) -> Seen {
    let mut sim = SimDatapath::new(SimConfig::new(vec![link], seed)).unwrap();
    let program = compile(SUMS).unwrap();
    let cwnd = Field::Reg(program.reg("cwnd").unwrap());
    sim.install(ProgramUid(1), &program).unwrap();
    let flow = sim.add_flow(&flow(source)).unwrap();
    let mut last = Vec::new();
    sim.run(until_us, 100 * MS, &mut |_, wake, datapath| match wake {
        Wake::Event(Event::Created { flow, .. }) => {
            datapath.set_program(flow, ProgramUid(1), &[(cwnd, (packets * MSS) as i64)]).unwrap();
        }
        Wake::Event(Event::Report { values, .. }) => last = values.into_vec(),
        Wake::Event(_) => {}
        Wake::Tick => datapath.heartbeat(),
    });
    let names = program.regs().iter().map(|r| r.name.clone());
    Seen { sim, flow, last: names.zip(last).collect() }
}

#[test]
fn measurements_on_a_full_link_are_those_worked_out_by_hand() {
    let seen = run(rate(12, 100), 1, Source::Bulk, 40, 5 * S);
    // The first ACK opens the window for 31 more; the link, idle at the time, takes 31 ms for them.
    assert_eq!((seen.get("rtt_min"), seen.get("rtt_max")), (21_000, 51_000));
    // A segment a millisecond, sent and delivered.
    assert_eq!((seen.get("delivery"), seen.get("sending")), (1_448_000, 1_448_000));
    // The ACK's own packet is out, its successor not yet in.
    assert_eq!((seen.get("in_flight"), seen.get("in_flight_bytes")), (39, 39 * MSS as i64));
    assert_eq!(seen.get("acks"), seen.get("packets"));
    assert_eq!((seen.get("lost"), seen.get("timeouts")), (0, 0));
    assert!(seen.get("pending") > 1 << 22);
}

#[test]
fn a_sending_rate_above_the_link_shows() {
    // All ten at once, then one for each ACK, from a window that stays.
    let seen = run(rate(12, 100), 1, Source::Bytes(10 * MSS), 10, S);
    assert_eq!(seen.get("packets"), 10);
    // 10 segments delivered between 0 and 30 ms.
    assert_eq!(seen.get("delivery"), (10 * MSS * 1000 / 30) as i64);
    assert_eq!(seen.get("pending"), 0);
}

/// A window halved by a loss is full; the retransmission goes out all the same, alone.
#[test]
fn the_first_retransmission_waits_for_nothing() {
    const HALVE: &str = "(def (Report (lost 0)) (halved false))
        (when true (:= Report.lost Ack.lost_pkts_sample) (:= Cwnd (!if halved 28960)) (report) (fallthrough))
        (when (> Ack.lost_pkts_sample 0) (:= halved true) (:= Cwnd 14480))";
    // Fast enough that three later deliveries come before an eighth of the RTT has passed.
    let mut sim = sim(LinkConfig { loss_ppm: 2_000, ..rate(24, 100) });
    sim.install(ProgramUid(1), &compile(HALVE).unwrap()).unwrap();
    sim.add_flow(&FlowConfig::new(Source::Bulk, 10 * MS)).unwrap();
    let (mut events, mut before) = (Vec::new(), 0);
    while sim.step_to_event(10 * S) {
        sim.poll(1, &mut events);
        match events.pop() {
            Some(Event::Created { flow, .. }) => sim.set_program(flow, ProgramUid(1), &[]).unwrap(),
            Some(Event::Report { values, .. }) if values[0] > 0 => {
                assert_eq!(sim.network().sent(), before + 1);
                return;
            }
            _ => {}
        }
        before = sim.network().sent();
    }
    panic!("nothing was lost");
}

#[test]
fn a_blackout_shows_as_timeouts() {
    let text: String = (1..=1000).chain([3000]).map(|ms| format!("{ms}\n")).collect();
    let seen = run(trace(&text, 5), 1, Source::Bulk, 20, 4 * S);
    let stats = seen.sim.stats(seen.flow).unwrap();
    // The timer ran out about three times in two seconds; the program learned of it once, when ACKs came back.
    assert_eq!(seen.get("timeouts"), 1);
    assert_eq!(seen.get("lost") as u64, stats.transport.lost);
    assert_eq!(seen.get("packets") as u64, stats.transport.delivered);
}

#[test]
fn flows_past_the_limit_run_natively_and_unannounced() {
    let mut sim =
        SimDatapath::new(SimConfig { max_flows: 2, ..SimConfig::new(vec![rate(12, 50)], 1) }).unwrap();
    let flows: Vec<FlowId> =
        (0..3).map(|_| sim.add_flow(&FlowConfig::new(Source::Bulk, 10 * MS)).unwrap()).collect();
    sim.step_until(S);
    let mut events = Vec::new();
    sim.poll(10, &mut events);
    assert_eq!((events.len(), sim.flows().len()), (2, 2));
    assert!(sim.update(flows[2], &[]).is_err());
    let third = sim.stats(flows[2]).unwrap();
    assert!(third.transport.delivered > 100 && third.mode == Mode::NativeNoProgram);
    // A place that falls free goes to the next flow that starts.
    sim.close(flows[0]).unwrap();
    let next = sim.add_flow(&FlowConfig { start_us: S, ..FlowConfig::new(Source::Bulk, 10 * MS) }).unwrap();
    sim.step_until(2 * S);
    assert!(sim.flows().iter().any(|f| f.flow == next));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the link does: everything arrives, is counted once, and nothing is sent without need.
    #[test]
    fn every_byte_of_a_transfer_arrives_and_is_counted_once(
        seed: u64, loss_ppm in prop::sample::select(vec![0u32, 1_000, 30_000, 200_000]), queue in 2u32..60,
        packets in 1u64..120, segments in 1u64..1500,
    ) {
        let bytes = segments * MSS - seed % MSS;
        let link = LinkConfig { loss_ppm, ..rate(12, queue) };
        let seen = run(link, seed, Source::Bytes(bytes), packets, 1000 * S);
        let stats = seen.sim.stats(seen.flow).unwrap();
        prop_assert_eq!((stats.transport.bytes_acked, stats.transport.delivered), (bytes, segments));
        prop_assert_eq!(stats.transport.unacked, 0);
        prop_assert_eq!(seen.get("bytes") as u64, bytes);
        prop_assert_eq!(seen.get("packets") as u64, segments);
        prop_assert_eq!(seen.get("lost") as u64, stats.transport.lost);
        prop_assert_eq!(seen.get("in_flight"), 0);
        let network = seen.sim.network();
        let link = network.link_stats(0).unwrap();
        let receiver = network.receiver_stats(0).unwrap();
        prop_assert_eq!(network.sent(), segments + stats.transport.lost);
        // A timeout may give up what is only late; nothing else does.
        prop_assert_eq!(stats.transport.lost, link.lost + link.dropped + receiver.duplicates);
        if stats.transport.lost == 0 || seen.get("timeouts") == 0 {
            prop_assert_eq!(receiver.duplicates, 0);
        }
    }
}

//! The path in virtual time: goldens, a plain model of mahimahi's loop, and what must hold whatever happens.

use std::collections::VecDeque;
use std::fmt::Write;

use ccplane_netsim::trace::Trace;
use proptest::prelude::*;

use super::*;
use crate::config::{LinkConfig, PathConfig};
use crate::impair::{BurstLoss, Impairments, Jitter, Outages, Policer, Reorder};
use crate::log::{Header, LogWriter};
use crate::queue::Queue;
use crate::stats::DirectionStats;

const MS: u64 = 1_000_000;

fn traced(text: &str) -> PathConfig {
    let trace = Trace::parse(text).unwrap();
    PathConfig::new(Shape::Trace { trace, repeat: true, source: "t.up".into() }, 0)
}

fn written(config: &PathConfig, arrivals: &[(u64, u32)], end_ns: u64) -> String {
    let header = Header {
        link: "Uplink",
        trace: config.shape.to_string(),
        log: "up.log".into(),
        command_line: "ccplane mm-link t.up t.down",
        queue: config.queue.to_string(),
        init_timestamp_ms: 1_700_000_000_000,
        base_timestamp_ms: 0,
        shell_prefix: "[link] ",
    };
    let mut log = LogWriter::new(Vec::new(), &header).unwrap();
    let mut path = Path::new(config, 0);
    for (at_ns, size) in arrivals {
        path.send(*at_ns, (), *size, &mut |event| log.event(&event));
        path.advance(*at_ns, &mut |event| log.event(&event));
    }
    path.advance(end_ns, &mut |event| log.event(&event));
    String::from_utf8(log.finish().unwrap()).unwrap()
}

#[test]
fn the_log_has_the_lines_of_mahimahi() {
    let config = PathConfig { delay_us: 1_500, queue: Queue::packets(1), ..traced("2\n5\n") };
    let arrivals = [(0, 1504), (0, 100), (100_000, 1504), (4 * MS, 800)];
    let expected = "\
# mahimahi mm-link (Uplink) [t.up] > up.log
# command line: ccplane mm-link t.up t.down
# queue: droptail [packets=1]
# init timestamp: 1700000000000
# base timestamp: 0
# mahimahi config: [link] 
1 + 1504
1 + 100
1 d 1 100
1 + 1504
1 d 1 1504
2 # 1504
2 - 1504 1
5 # 1504
5 + 800
7 # 1504
7 - 800 2
10 # 1504
";
    assert_eq!(written(&config, &arrivals, 11 * MS), expected);
}

#[test]
fn packets_span_opportunities_and_the_one_in_transit_frees_its_place() {
    // 1000 of the second packet's bytes go with the first's opportunity; a third fits into the queue then.
    let config = PathConfig { queue: Queue::DropTail { packets: None, bytes: Some(1504) }, ..traced("1\n") };
    let lines = written(&config, &[(0, 504), (0, 1000), (0, 10), (MS, 1400), (MS, 1400)], 3 * MS);
    let events: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "0 + 504",
        "0 + 1000",
        "0 + 10",
        "0 d 1 10",
        "1 # 1504",
        "1 - 504 1",
        "1 - 1000 1",
        "1 + 1400",
        "1 + 1400",
        "1 d 1 1400",
        "2 # 1504",
        "2 - 1400 1",
        "3 # 1504",
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_drophead_queue_drops_the_oldest_in_one_line() {
    let config = PathConfig { queue: Queue::DropHead { packets: None, bytes: Some(2000) }, ..traced("1\n") };
    let lines = written(&config, &[(0, 900), (0, 800), (0, 1500), (MS, 300)], 2 * MS);
    let events: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
    let expected = [
        "0 + 900",
        "0 + 800",
        "0 + 1500",
        "0 d 2 1700",
        "1 # 1504",
        "1 - 1500 1",
        "1 + 300",
        "2 # 1504",
        "2 - 300 1",
    ];
    assert_eq!(events, expected);
}

#[test]
fn next_is_when_something_can_move() {
    let config = PathConfig { delay_us: 3_000, ..traced("2\n") };
    let mut path = Path::new(&config, 0);
    assert_eq!(path.next_ns(), None);
    path.send(MS, 'a', 1504, &mut |_| {});
    assert_eq!(path.next_ns(), Some(4 * MS));
    path.advance(4 * MS, &mut |_| {});
    assert_eq!(path.next_ns(), Some(6 * MS));
    let mut left = Vec::new();
    path.set_shape(5 * MS, &Shape::Unlimited, &mut |event| left.push(event));
    let packet = Packet { handle: 'a', size: 1504, priority: 7, arrived_ns: 4 * MS };
    assert_eq!(left, [Event::Departure { at_ns: 5 * MS, packet }]);
    assert_eq!((path.next_ns(), path.queued_bytes()), (None, 0));
}

#[test]
fn a_trace_that_is_over_delivers_no_more() {
    let trace = Trace::parse("1\n2\n").unwrap();
    let config = PathConfig::new(Shape::Trace { trace, repeat: false, source: String::new() }, 0);
    let mut path = Path::new(&config, 0);
    for n in 0..3 {
        path.send(0, n, 1504, &mut |_| {});
    }
    let mut stats = DirectionStats::default();
    path.advance(60_000 * MS, &mut |event| stats.count(&event));
    assert_eq!((stats.delivered_packets, path.queued_packets(), path.next_ns()), (2, 1, None));
}

#[test]
fn a_certain_loss_loses_all_and_none_loses_none() {
    for (probability, lost) in [(0.0, 0), (1.0, 500)] {
        let config =
            PathConfig { loss: Loss { probability, seed: 3 }, ..PathConfig::new(Shape::Unlimited, 0) };
        let mut path = Path::new(&config, 0);
        let mut stats = DirectionStats::default();
        for n in 0..500 {
            path.send(n, (), 100, &mut |event| stats.count(&event));
            path.advance(n, &mut |event| stats.count(&event));
        }
        assert_eq!((stats.lost_packets, stats.delivered_packets), (lost, 500 - lost));
    }
}

/// mahimahi's loop in its own terms: whole milliseconds, strings of lines, no delay and no loss.
fn model(opportunities_ms: &[u64], limits: (u64, u64), arrivals: &[(u64, u64)], end_ms: u64) -> String {
    let (mut lines, mut queue, mut transit) = (String::new(), VecDeque::new(), None::<(u64, u64, u64)>);
    let (mut next, mut base) = (0, 0);
    let mut rationalize = |now: u64, queue: &mut VecDeque<(u64, u64)>, lines: &mut String| {
        while base + opportunities_ms[next] <= now {
            let at = base + opportunities_ms[next];
            writeln!(lines, "{at} # 1504").unwrap();
            next = (next + 1) % opportunities_ms.len();
            if next == 0 {
                base += opportunities_ms[opportunities_ms.len() - 1];
            }
            let mut budget = 1504;
            while budget > 0 {
                if transit.is_none() {
                    transit = queue.pop_front().map(|(arrived, size)| (arrived, size, size));
                }
                let Some((arrived, size, left)) = &mut transit else { break };
                let sent = budget.min(*left);
                budget -= sent;
                *left -= sent;
                if *left == 0 {
                    writeln!(lines, "{at} - {size} {}", at - *arrived).unwrap();
                    transit = None;
                }
            }
        }
    };
    for (at, size) in arrivals {
        rationalize(*at, &mut queue, &mut lines);
        writeln!(lines, "{at} + {size}").unwrap();
        let bytes: u64 = queue.iter().map(|(_, size)| size).sum();
        if (queue.len() as u64) < limits.0 && bytes + size <= limits.1 {
            queue.push_back((*at, *size));
        } else {
            writeln!(lines, "{at} d 1 {size}").unwrap();
        }
    }
    rationalize(end_ms, &mut queue, &mut lines);
    lines
}

/// A random operation on a path.
#[derive(Clone, Debug)]
enum Operation {
    Send { size: u32 },
    Pass { us: u64 },
    Shape(Shape),
    Delay { us: u64 },
}

fn shape() -> impl Strategy<Value = Shape> {
    let trace = prop::collection::vec(0u32..30, 1..8).prop_map(|mut ms| {
        ms.sort_unstable();
        ms.push(ms.last().unwrap() + 1);
        let text: String = ms.iter().map(|ms| format!("{ms}\n")).collect();
        Shape::Trace { trace: Trace::parse(&text).unwrap(), repeat: true, source: String::new() }
    });
    prop_oneof![Just(Shape::Unlimited), (1u32..200).prop_map(Shape::mbit), trace]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (1u32..=1504).prop_map(|size| Operation::Send { size }),
        4 => (0u64..5_000).prop_map(|us| Operation::Pass { us }),
        1 => shape().prop_map(Operation::Shape),
        1 => (0u64..20_000).prop_map(|us| Operation::Delay { us }),
    ]
}

fn queue() -> impl Strategy<Value = Queue> {
    let limits = (1u32..20, 1504u64..20_000);
    prop_oneof![
        Just(Queue::Infinite),
        (limits, 0..5, 1u64..20_000, 1u64..200_000, any::<u64>()).prop_map(
            |((packets, bytes), kind, a_us, b_us, seed)| {
                let (packets, bytes) = (Some(packets), Some(bytes));
                match kind {
                    0 => Queue::DropTail { packets, bytes },
                    1 => Queue::DropHead { packets, bytes },
                    4 => Queue::Priority { packets, bytes },
                    2 => Queue::CoDel { packets, bytes, target_us: a_us, interval_us: b_us },
                    _ => Queue::Pie { packets, bytes, qdelay_ref_us: a_us, max_burst_us: b_us, seed },
                }
            }
        ),
    ]
}

fn impairments() -> impl Strategy<Value = Impairments> {
    let share = || prop_oneof![2 => Just(0.0), 1 => 0.0..=1.0f64];
    let burst = prop::option::of((share(), 0.01..=1.0f64, share()));
    let outages = prop::option::of((1u64..5_000, 0u64..5_000));
    let policer = prop::option::of((100_000u64..50_000_000, 1504u64..20_000));
    let jitter = prop::option::of((0u64..10_000, any::<bool>()));
    let reorder = prop::option::of((share(), 0u64..10_000));
    (burst, outages, policer, share(), jitter, reorder, any::<u64>()).prop_map(
        |(burst, outages, policer, duplicate, jitter, reorder, seed)| Impairments {
            burst_loss: burst.map(|(to_bad, to_good, loss_bad)| BurstLoss {
                to_bad,
                to_good,
                loss_good: 0.0,
                loss_bad,
            }),
            outages: outages.map(|(mean_on_us, mean_off_us)| Outages { mean_on_us, mean_off_us }),
            policer: policer.map(|(bit_per_s, burst_bytes)| Policer { bit_per_s, burst_bytes }),
            duplicate,
            jitter: jitter.map(|(max_us, reorder)| Jitter { max_us, reorder }),
            reorder: reorder.map(|(probability, hold_us)| Reorder { probability, hold_us }),
            seed,
        },
    )
}

proptest! {
    #[test]
    fn agrees_with_mahimahis_loop(
        mut ms in prop::collection::vec(0u64..12, 1..10),
        mut arrivals in prop::collection::vec((0u64..60, 1u64..=1504), 0..60),
        packets in 1u32..8, bytes in 1504u64..9_000,
    ) {
        ms.sort_unstable();
        ms.push(ms.last().unwrap() + 1);
        arrivals.sort_by_key(|(at, _)| *at);
        let text: String = ms.iter().map(|ms| format!("{ms}\n")).collect();
        let queue = Queue::DropTail { packets: Some(packets), bytes: Some(bytes) };
        let config = PathConfig { queue, ..traced(&text) };
        let in_ns: Vec<(u64, u32)> = arrivals.iter().map(|(at, size)| (at * MS, *size as u32)).collect();
        let lines = written(&config, &in_ns, 80 * MS);
        let ours: String = lines.lines().skip(6).map(|line| format!("{line}\n")).collect();
        prop_assert_eq!(ours, model(&ms, (packets.into(), bytes), &arrivals, 80));
    }

    #[test]
    fn packets_are_conserved_and_in_order(
        first in shape(), queue in queue(), probability in 0.0..0.5f64, seed: u64, impairments in impairments(),
        operations in prop::collection::vec(operation(), 1..200),
    ) {
        let loss = Loss { probability, seed };
        let config = PathConfig { queue, loss, impairments, ..PathConfig::new(first, 2_000) };
        prop_assert_eq!(LinkConfig { up: config.clone(), ..LinkConfig::symmetric(Shape::Unlimited, 0) }.check(), Ok(()));
        let mut path = Path::new(&config, 0);
        let (mut stats, mut now_ns, mut sent, mut last_ns) = (DirectionStats::default(), 0, 0u64, 0);
        let mut ended = vec![];
        let mut departed = vec![];
        for operation in operations {
            let mut times = vec![];
            let mut sink = |event: Event<u64>| {
                stats.count(&event);
                match event {
                    Event::Loss { packet, .. } | Event::Policed { packet, .. } => ended.push(packet.handle),
                    Event::Drop { packet, at_ns } => { ended.push(packet.handle); times.push(at_ns) }
                    Event::Departure { packet, at_ns } => {
                        assert!(packet.arrived_ns <= at_ns);
                        departed.push(packet.handle);
                        times.push(at_ns);
                    }
                    Event::Arrival { at_ns, .. } | Event::Opportunity { at_ns } => times.push(at_ns),
                }
            };
            match operation {
                Operation::Send { size } => {
                    for _ in 0..1 + u64::from(path.duplicates()) {
                        path.send(now_ns, sent, size, &mut sink);
                        sent += 1;
                    }
                }
                Operation::Pass { us } => { now_ns += us * 1000; path.advance(now_ns, &mut sink); }
                Operation::Shape(shape) => path.set_shape(now_ns, &shape, &mut sink),
                Operation::Delay { us } => path.set_delay_us(us),
            }
            prop_assert!(times.iter().all(|at_ns| *at_ns <= now_ns));
            times.insert(0, last_ns);
            prop_assert!(times.is_sorted());
            last_ns = times[times.len() - 1];
            stats.observe(&path);
            prop_assert_eq!(sent, stats.lost_packets + stats.policed_packets + stats.delayed_packets + stats.arrived_packets);
            let past_queue = stats.delivered_packets + stats.dropped_packets;
            prop_assert_eq!(stats.arrived_packets, past_queue + stats.queued_packets);
            let limits = config.queue.limits();
            prop_assert!(limits.packets.is_none_or(|packets| stats.queued_packets <= u64::from(packets) + 1));
            prop_assert!(limits.bytes.is_none_or(|bytes| stats.queued_bytes <= bytes + 1504));
        }
        prop_assert!(departed.is_sorted() || !config.impairments.keeps_order());
        // Then everything drains.
        now_ns += 60_000 * 1000;
        path.set_shape(now_ns, &Shape::Unlimited, &mut |event| match event {
            Event::Departure { packet, .. } => departed.push(packet.handle),
            Event::Drop { packet, .. } => ended.push(packet.handle),
            _ => {}
        });
        prop_assert!(departed.is_sorted() || !config.impairments.keeps_order());
        ended.extend(&departed);
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..sent).collect::<Vec<u64>>());
        prop_assert_eq!(path.next_ns(), None);
    }

    #[test]
    fn late_calls_change_nothing(
        shape in shape(), queue in queue(),
        mut arrivals in prop::collection::vec((0u64..40_000, 1u32..=1504), 0..80), wakes in prop::collection::vec(0u64..60_000, 0..80),
    ) {
        arrivals.sort_by_key(|(us, _)| *us);
        let config = PathConfig { queue, ..PathConfig::new(shape, 5_000) };
        let run = |wakes_us: &[u64]| {
            let (mut path, mut events) = (Path::new(&config, 0), vec![]);
            let mut calls: Vec<(u64, Option<u32>)> = arrivals.iter().map(|(us, size)| (*us, Some(*size))).collect();
            calls.extend(wakes_us.iter().map(|us| (*us, None)));
            calls.sort_by_key(|(us, _)| *us);
            for (us, size) in calls {
                match size {
                    Some(size) => path.send(us * 1000, (), size, &mut |event| events.push(event)),
                    None => path.advance(us * 1000, &mut |event| events.push(event)),
                }
            }
            path.advance(100_000_000, &mut |event| events.push(event));
            events
        };
        prop_assert_eq!(run(&wakes), run(&[]));
    }

    #[test]
    fn a_backlog_uses_every_byte(rate_mbit in 1u32..500, sizes in prop::collection::vec(1u32..=1504, 50..200)) {
        let mut path = Path::new(&PathConfig::new(Shape::mbit(rate_mbit), 0), 0);
        let mut stats = DirectionStats::default();
        sizes.iter().for_each(|size| path.send(0, (), *size, &mut |_| {}));
        path.advance(0, &mut |event| stats.count(&event));
        while path.queued_packets() > 0 {
            prop_assert_eq!(stats.arrived_bytes, stats.capacity_bytes() + path.queued_bytes());
            path.advance(path.next_ns().unwrap(), &mut |event| stats.count(&event));
        }
    }
}

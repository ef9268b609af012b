//! The recordings that come with ccplane: what one end sent, the other end received.

use ccplane_netsim::workload::recorded::{Recording, Unit};
use ccplane_netsim::workload::{HostArrival, HostArrivals, PPM, Playback, Split};
use std::collections::BTreeMap;

const RECORDINGS: [(&str, &str, u16); 4] = [
    ("http", include_str!("../../../../experiments/traces/recordings/http.jsonl"), 8080),
    ("postgres", include_str!("../../../../experiments/traces/recordings/postgres.jsonl"), 5432),
    ("rsync", include_str!("../../../../experiments/traces/recordings/rsync.jsonl"), 8730),
    ("shuffle", include_str!("../../../../experiments/traces/recordings/shuffle.jsonl"), 9001),
];

#[test]
fn both_ends_of_real_programs_agree() {
    for (name, text, port) in RECORDINGS {
        let recording = Recording::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((recording.open, recording.missed), (0, 0), "{name}");
        let sum = |of: fn(&ccplane_netsim::workload::recorded::RecordedFlow) -> u64| {
            recording.flows.iter().map(of).sum::<u64>()
        };
        let (sent, received) = (sum(|flow| flow.sent), sum(|flow| flow.received));
        assert!(sent == received && sent > 100_000, "{name}: {sent} sent, {received} received");
        let bursts: u64 = recording.flows.iter().flat_map(|flow| &flow.bursts).map(|burst| burst.1).sum();
        assert_eq!(bursts, sent, "{name}: bursts hold all that was written");
        // Every connection is there twice and counts once.
        for unit in [Unit::Connection, Unit::Burst] {
            let transfers = recording.transfers(unit);
            assert_eq!(transfers.iter().map(|t| t.bytes).sum::<u64>(), sent, "{name}");
            assert!(transfers.iter().any(|t| t.service_port == port), "{name}");
        }
        let sizes = recording.sizes(name, Unit::Connection).unwrap();
        assert!(sizes.quantile(u32::MAX / 2) <= sizes.quantile(u32::MAX), "{name}");
    }
}

const HOSTS: usize = 16;
const CAPACITY_BIT_PER_S: u64 = 10_000_000_000;

fn play(text: &str, load_ppm: u32, seed: u64) -> HostArrivals {
    let playback = Playback::new(&Recording::parse(text).unwrap()).unwrap();
    HostArrivals::played(&playback, load_ppm, CAPACITY_BIT_PER_S, HOSTS, (Split::Test, seed)).unwrap()
}

/// The sizes of each pair of two ends and a port, in order, as the recording has them.
fn recorded_sizes(text: &str) -> Vec<Vec<u64>> {
    let mut pairs: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for t in Recording::parse(text).unwrap().transfers(Unit::Connection) {
        // By who opened, as a host may have connections to itself.
        pairs.entry((t.from, t.to, t.by_opener, t.service_port)).or_default().push(t.bytes);
    }
    pairs.into_values().collect()
}

#[test]
fn played_recordings_keep_the_order_and_the_repetitions_of_each_pair() {
    for (name, text, _) in RECORDINGS {
        let recorded = recorded_sizes(text);
        let mut arrivals = play(text, 500_000, 3);
        let past = arrivals.past(2);
        let mut pairs: BTreeMap<(usize, usize, u16), Vec<u64>> = BTreeMap::new();
        let took = 40 * HOSTS * recorded.iter().map(Vec::len).sum::<usize>();
        for flow in past.iter().copied().chain(arrivals.take(took)) {
            assert!(flow.from != flow.to && flow.from < HOSTS && flow.to < HOSTS, "{name}: {flow:?}");
            pairs.entry((flow.from, flow.to, flow.application)).or_default().push(flow.bytes);
        }
        // Each host is each end once.
        assert_eq!(pairs.len(), HOSTS * recorded.len(), "{name}");
        for ((_, _, application), sizes) in &pairs {
            let goes_on = |of: &Vec<u64>| {
                let follows = |from: usize| {
                    let mut expected = of.iter().cycle().skip(from);
                    sizes.iter().all(|bytes| expected.next() == Some(bytes))
                };
                (0..of.len()).any(follows)
            };
            assert!(recorded.iter().any(goes_on), "{name}, pair {application}: {sizes:?}");
        }
    }
}

#[test]
fn played_recordings_load_every_host_as_much_as_they_are_asked() {
    for (name, text, _) in RECORDINGS {
        let mut sent = [0_u64; HOSTS];
        let mut last_us = 0;
        // Whole rounds, so that a rare large transfer counts as often as it is there.
        let all = Recording::parse(text).unwrap().transfers(Unit::Connection).len() * HOSTS * 100;
        for flow in play(text, PPM / 2, 1).take(all) {
            sent[flow.from] += flow.bytes;
            last_us = flow.start_us;
        }
        let load = sent.iter().sum::<u64>() as f64 * 8e6
            / last_us as f64
            / (HOSTS as u64 * CAPACITY_BIT_PER_S) as f64;
        assert!((load - 0.5).abs() < 0.05, "{name}: {load}");
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(*most < 2 * least, "{name}: {sent:?}");
    }
}

#[test]
fn a_playback_repeats_itself_and_knows_its_limits() {
    let (_, text, _) = RECORDINGS[3];
    let first = |seed| play(text, 500_000, seed).take(100).collect::<Vec<HostArrival>>();
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
    let recording = Recording::parse(text).unwrap();
    let playback = Playback::new(&recording).unwrap();
    let small = playback.at_most(1000);
    assert!(small.mean_bytes() <= 1000 && small.mean_bytes() < playback.mean_bytes());
    let of = |hosts| HostArrivals::played(&playback, PPM, CAPACITY_BIT_PER_S, hosts, (Split::Test, 1));
    assert_eq!(of(1).unwrap_err().to_string(), "hosts is 1, allowed are 2..=256");
    // More ends than hosts: still nobody sends to itself.
    assert!(of(2).unwrap().take(1000).all(|flow| flow.from != flow.to));
    let empty = Recording { flows: Vec::new(), ..recording };
    let refused = Playback::new(&empty).unwrap_err().to_string();
    assert!(refused.starts_with("transfers of a recording is 0"), "{refused}");
}

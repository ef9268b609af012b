//! The recordings that come with ccplane: what one end sent, the other end received.

use ccplane_netsim::workload::recorded::{Recording, Unit};

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

//! Fuzz targets: no text panics the parsers of traces and recordings, and what they read holds together.

use ccplane_netsim::trace::Trace;
use ccplane_netsim::workload::recorded::{Recording, Unit};
use ccplane_testing::fuzz::{Fuzz, JSON, shape};

#[test]
fn a_trace_of_any_text_is_refused_or_has_sorted_opportunities() {
    let tokens =
        ["\n", "0", "4294967295", "4294967296", "99999999999999999999", " ", "\r\n", "-1", "1.5", "#"];
    let target = Fuzz::new("trace", env!("CARGO_MANIFEST_DIR")).seeds(["1\n2\n2\n40\n", "0\n1000\n"]);
    target.tokens(tokens).max_bytes(256).run(|bytes| match Trace::parse(&String::from_utf8_lossy(bytes)) {
        Ok(trace) => {
            let opportunities = trace.opportunities_ms();
            assert!(
                opportunities.is_sorted() && trace.period_ms() == u64::from(*opportunities.last().unwrap())
            );
            assert!(trace.period_ms() > 0);
            let first = trace.next_at_or_after(0, true).unwrap();
            assert!(trace.next_at_or_after(first + 1, true).unwrap() >= first);
            opportunities.len().min(8) as u64
        }
        Err(error) => shape(&error),
    });
}

/// A recording that is read is written as it was, and its transfers carry no more than its flows do.
#[test]
fn a_recording_that_is_read_is_written_as_the_same() {
    const FLOW: &str = r#"{"start_us":3,"end_us":900,"app":"curl","opened":true,"host":0,"peer":1,"port":40000,"peer_port":80,"sent":90,"received":5000,"bursts":[[100,40],[700,50]]}"#;
    const TWIN: &str = r#"{"start_us":4,"end_us":901,"app":"http","opened":false,"host":1,"peer":0,"port":80,"peer_port":40000,"sent":5000,"received":90,"bursts":[]}"#;
    let head = r#"{"ccplane_recording":1,"burst_gap_us":10000,"command":"x"}"#;
    let one = format!("{head}\n{FLOW}\n{{\"flows\":1,\"open\":0,\"missed\":0}}\n");
    let two = format!("{head}\n{FLOW}\n{TWIN}\n{{\"flows\":2,\"open\":1,\"missed\":2}}\n");
    let tokens = ["\n", "0", "65535", "18446744073709551616", FLOW, TWIN, "\"bursts\":[]", "\"flows\":"];
    let target = Fuzz::new("recording", env!("CARGO_MANIFEST_DIR")).seeds([one.as_str(), two.as_str()]);
    let target = target.tokens(tokens).tokens(JSON.iter().copied()).max_bytes(1024);
    target.run(|bytes| match Recording::parse(&String::from_utf8_lossy(bytes)) {
        Ok(recording) => {
            assert_eq!(Recording::parse(&recording.to_text()), Ok(recording.clone()));
            let of_flows: u64 = recording.flows.iter().map(|flow| flow.sent + flow.received).sum();
            let of_transfers = recording.transfers(Unit::Connection).iter().map(|t| t.bytes).sum::<u64>();
            assert!(of_transfers <= of_flows);
            assert!(recording.transfers(Unit::Burst).is_sorted_by_key(|t| t.start_us));
            recording.flows.len().min(4) as u64 + 8 * u64::from(of_transfers < of_flows)
        }
        Err(error) => shape(&error),
    });
}

//! Fuzz target: no text panics the parser of traces, and what it reads has opportunities in order.
#![allow(clippy::unwrap_used)]

use ccplane_netsim::trace::Trace;
use ccplane_testing::fuzz::{Fuzz, shape};

#[test]
fn traces_counted() {
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

//! The report of a plan's runs. With `CCPLANE_DRAW=DIR` the drawn pages are kept there.
#![allow(clippy::unwrap_used, missing_docs)]

mod fixture;

use ccplane_report::experiment;

#[test]
fn draws() {
    let dir = std::env::var_os("CCPLANE_DRAW").unwrap();
    let results = fixture::results();
    let t = std::time::Instant::now();
    let files = experiment::write(&results, dir.as_ref(), "fidelity").unwrap();
    eprintln!("{} charts in {:?}", files.charts.len(), t.elapsed());
}

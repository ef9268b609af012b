//! The page's structure, escaping and bounds. With `CCPLANE_DRAW=DIR` the drawn pages are kept there.
#![allow(clippy::unwrap_used, missing_docs)]

mod fixture;
#[path = "../support/mod.rs"]
mod support;

use ccplane_report::{
    Capacity, Datapath, Flow, JsonLines, Phase, Record, Report, ReportError, Sample, Totals, html, read_json,
    write_to,
};
use proptest::prelude::*;
use support::{assert_sound, count, element_tree};

/// Keeps a page for a look at it.
fn draw(name: &str, report: &Report) -> String {
    if let Some(dir) = std::env::var_os("CCPLANE_DRAW") {
        write_to(report, dir.as_ref(), name).unwrap();
    }
    html(report, "report.json")
}

#[test]
fn a_policy_that_learned_is_shown_with_its_pushes() {
    let page = draw("learned", &fixture::learned());
    assert_sound(&page);
    let without = draw("demo", &fixture::demo());
    let more = |what: &str| count(&page, what) - count(&without, what);
    assert_eq!(more("class=\"line\""), 4 * 2, "each flow in two panels");
    assert_eq!(more("class=\"phase\""), 3 * 2, "the change, the rollback and the push in both panels");
    assert_eq!(more("class=\"point\""), 2, "what ended a trial is marked");
    assert_eq!(more("class=\"outline\""), 2 * 2, "two trials in both panels");
    assert!(page.contains("rolled-back 55ee66ff55ee: worse"));
    assert!(page.contains("promoted 33cc44dd33cc: no worse"));
    assert_eq!(count(&page, "title=\"33cc44dd33cc44dd"), 2, "both decisions about it name the whole hash");
    assert!(page.contains("after the last push, 16–24 s"));
    assert!(page.contains("Aurora, as it is") && page.contains("stability"));
    // Of the flows that could run each looks as it does beside all.
    let mut few = fixture::learned();
    if let Some(learned) = &mut few.learned {
        learned.flows.remove(1);
    }
    let few = draw("few-learned", &few);
    for (name, colour) in [("Aurora, learning", 1), ("CUBIC, kernel", 0), ("BBR, kernel", 2)] {
        let row = format!("background:var(--s{colour})\"></i>{name}");
        assert!(page.contains(&row) && few.contains(&row), "{row}");
    }
    let mut empty = fixture::learned();
    if let Some(learned) = &mut empty.learned {
        learned.decisions.clear();
    }
    let page = draw("nothing-learned", &empty);
    assert!(page.contains("Nothing: no policy had converged") && page.contains("after the change, 12–24 s"));
}

#[test]
fn golden_structure() {
    let page = draw("demo", &fixture::demo());
    assert_sound(&page);
    let tree = element_tree(&page);
    let number_of = |name: &str| tree.iter().filter(|t| *t == name).count();
    assert_eq!(number_of("h1"), 1);
    assert_eq!(number_of("figure"), 4, "two algorithms over time, two phases scattered");
    assert_eq!(number_of("table"), 2);
    assert_eq!(count(&page, "class=\"line\""), 6 * 3, "each flow in each of three panels");
    assert_eq!(count(&page, "class=\"area\""), 2 * 3);
    assert_eq!(count(&page, "class=\"point\""), 6 * 2);
    assert_eq!(count(&page, "aria-pressed=\"true\""), 6);
    assert_eq!(count(&page, "class=\"card\""), 2);
    assert_eq!(count(&page, "<th scope=\"row\">"), 6 + 6 * 2);
    assert!(page.contains("ccplane demo --seconds 24"));
    // Colours and dashes tell datapaths apart, the same way in both columns.
    for (style, dash) in [("var(--s0)", "none"), ("var(--s1)", "7 4"), ("var(--s2)", "1.5 4.5")] {
        let stroke = format!("stroke=\"{style}\" stroke-dasharray=\"{dash}\"");
        assert_eq!(count(&page, &stroke), 2 * 3 + 2, "{stroke}");
    }
}

#[test]
fn a_line_is_where_its_samples_are() {
    let mut report = fixture::demo();
    report.link.capacity.clear();
    report.phases.clear();
    report.flows.truncate(1);
    report.flows[0].samples = vec![
        Sample { t_ms: 500, throughput_bps: 5_000_000, ..Sample::default() },
        Sample { t_ms: 1000, throughput_bps: 10_000_000, ..Sample::default() },
    ];
    let page = html(&report, "r.json");
    assert!(
        page.contains("d=\"M5000 500L10000 0\""),
        "halfway up in the middle, then the upper right corner"
    );
    assert!(page.contains("[{\"flow\":0,\"t_ms\":[500,1000],\"values\":[[5000000,10000000],[0,0],[0,0]]}]"));
}

#[test]
fn text_is_escaped_everywhere() {
    const HOSTILE: &str = "</script></style><img src=x onerror=alert(1)>\"'&";
    let mut report = fixture::demo();
    let text = || HOSTILE.to_owned();
    (report.title, report.summary) = (text(), text());
    report.run =
        ccplane_report::Run { command: text(), kernel: text(), git_commit: text(), started_at: text() };
    report.link.description = text();
    report.phases[0].label = text();
    report.notes = vec![text()];
    report.flows[0].name = text();
    report.flows[0].algorithm = text();
    let page = html(&report, HOSTILE);
    element_tree(&page);
    assert!(!page.contains("<img"));
    assert!(!page.contains("\"'&\""));
    assert!(count(&page, "&lt;img src=x onerror=alert(1)&gt;") >= 10);
}

#[test]
fn empty_reports_are_pages_too() {
    let nothing = draw("empty", &Report { title: "Nothing".into(), ..Report::default() });
    assert_sound(&nothing);
    assert!(nothing.contains("No flow ran."));

    for (name, samples) in [("none", 0), ("one", 1), ("two", 2)] {
        let mut report = fixture::demo();
        report.flows.truncate(2);
        for flow in &mut report.flows {
            flow.samples.truncate(samples);
        }
        let page = draw(name, &report);
        assert_sound(&page);
        assert_eq!(page.contains("No samples were taken."), samples == 0);
        assert_eq!(count(&page, "h0\""), if samples == 1 { 6 } else { 0 }, "one sample is a dot");
    }
}

#[test]
fn files_hold_the_same_data() {
    let dir = tempfile::tempdir().unwrap();
    let report = fixture::demo();
    let files = write_to(&report, &dir.path().join("made"), "demo").unwrap();
    assert_eq!(read_json(&files.json).unwrap(), report);
    assert_eq!(std::fs::read_to_string(&files.html).unwrap(), html(&report, "demo.json"));
    let lines = std::fs::read_to_string(&files.jsonl).unwrap();
    let records: Vec<Record> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(records.len(), 1 + report.flows.iter().map(|f| f.samples.len() + 1).sum::<usize>());
    assert_eq!(records[0], Record::Run(report.run.clone()));
    assert_eq!(
        records[1],
        Record::Sample { flow: "reno kernel native".into(), sample: report.flows[0].samples[0] }
    );
}

#[test]
fn refusals_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.json");
    assert!(matches!(read_json(&path), Err(ReportError::Io { path: p, .. }) if p == path));
    std::fs::write(&path, "{\n\"title\": 3}").unwrap();
    let said = read_json(&path).unwrap_err().to_string();
    assert!(said.contains("bad.json") && said.contains("line 2"), "{said}");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(write_to(&Report::default(), &file, "x"), Err(ReportError::Io { .. })));
}

#[test]
fn a_sink_that_fails_is_reported() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(JsonLines::new(Full).report(&fixture::demo()), Err(ReportError::Sink(_))));
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let datapath =
        prop_oneof![Just(Datapath::KernelNative), Just(Datapath::CcplaneEbpf), Just(Datapath::Sim)];
    let samples = proptest::collection::vec(any::<[u64; 8]>(), 0..12);
    ("[a-z]{0,2}", datapath, samples).prop_map(|(algorithm, datapath, samples)| Flow {
        name: algorithm.clone(),
        algorithm,
        datapath,
        samples: samples
            .into_iter()
            .map(|v| Sample {
                t_ms: v[0] >> (v[7] % 64),
                throughput_bps: v[1],
                srtt_us: v[2],
                cwnd_pkts: v[3],
                pacing_bps: v[4],
                acked_bytes: v[5],
                lost_pkts: v[6],
                retransmitted_pkts: v[7],
            })
            .collect(),
        totals: Totals::default(),
    })
}

proptest! {
    #[test]
    fn any_numbers_make_a_sound_page(
        flows in proptest::collection::vec(any_flow(), 0..9),
        capacity in proptest::collection::vec(any::<(u64, u64)>(), 0..5),
        phases in proptest::collection::vec(any::<(u64, u64)>(), 0..4),
        base_rtt_us in any::<Option<u64>>(),
        mtu_bytes in any::<u64>(),
    ) {
        let mut report = Report { flows, ..Report::default() };
        report.link.base_rtt_us = base_rtt_us;
        report.link.mtu_bytes = mtu_bytes;
        report.link.capacity =
            capacity.into_iter().map(|(t_ms, capacity_bps)| Capacity { t_ms, capacity_bps }).collect();
        report.phases =
            phases.into_iter().map(|(t0_ms, t1_ms)| Phase { label: "p".into(), t0_ms, t1_ms }).collect();
        assert_sound(&html(&report, "r.json"));
    }
}

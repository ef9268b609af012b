//! The report of a plan's runs. With `CCPLANE_DRAW=DIR` a whole plan's report is kept there for a look at it.
#![allow(clippy::unwrap_used, missing_docs)]

mod fixture;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use ccplane_report::experiment::{self, Files};
use ccplane_results::{
    Comparison, Completion, Completions, Contender, Cpu, Datapath, FlowResult, LinkUse, Metric, Percentiles,
    Results, Run, RunFigures, RunOutcome, Scenario, Series, StateChange,
};
use fixture::{REPEATS, changing, results, whole_plan};
use proptest::prelude::*;
use support::{assert_sound, count, element_tree};

/// Writes the report, and reads the page.
fn report(results: &Results, dir: &Path) -> (Files, String) {
    let files = experiment::write(results, dir, "r").unwrap();
    let page = fs::read_to_string(&files.html).unwrap();
    assert_sound(&page);
    (files, page)
}

fn page_of(results: &Results) -> String {
    let page = experiment::html(results, "r");
    assert_sound(&page);
    page
}

/// The cells of a CSV file, row by row.
fn rows(path: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).unwrap();
    let (mut rows, mut row, mut cell, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\r' if !quoted => {}
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            c => cell.push(c),
        }
    }
    assert!(row.is_empty() && cell.is_empty() && !quoted, "ends with a whole row");
    assert!(rows.iter().all(|r: &Vec<String>| r.len() == rows[0].len()), "each row has every column");
    rows
}

fn column<'a>(rows: &'a [Vec<String>], name: &str) -> Vec<&'a str> {
    let at = rows[0].iter().position(|c| c == name).unwrap();
    rows[1..].iter().map(|r| r[at].as_str()).collect()
}

#[test]
fn a_look_at_a_whole_plan() {
    match std::env::var_os("CCPLANE_DRAW") {
        Some(dir) => drop(experiment::write(&whole_plan(), dir.as_ref(), "fidelity").unwrap()),
        None => assert!(whole_plan().runs.len() > 300),
    }
}

#[test]
fn reports_keep_their_golden_structure() {
    let results = results(|s| s.name.starts_with("fixed") || s.name.starts_with("three"));
    let dir = tempfile::tempdir().unwrap();
    let (files, page) = report(&results, dir.path());
    let tree = element_tree(&page);
    let number_of = |name: &str| tree.iter().filter(|t| *t == name).count();
    assert_eq!(number_of("h1"), 1);
    // Per scenario: scatter, RTTs, five columns, windows; with several flows five charts of flows.
    assert_eq!(number_of("figure"), 2 * 8 + 5);
    assert_eq!(files.charts.len(), 2 * (2 * 8 + 5));
    assert_eq!(count(&page, "class=\"outline\""), 2 * 5, "an ellipse for each contender");
    assert_eq!(count(&page, "class=\"faint\""), (46 - 10) * 3, "of 46 runs ten stand out");
    assert_eq!(count(&page, "class=\"badge met\"") + count(&page, "class=\"badge met weak\""), 4);
    assert_eq!(count(&page, "class=\"badge missed\""), 1);
    for said in
        ["46 of 50 planned", "CCP, SIGCOMM’18", "Student’s t", "\\toprule", "sysctls", "ccplane run fidelity"]
    {
        assert!(page.to_lowercase().contains(&said.to_lowercase()), "{said}");
    }
}

/// Keeps a report where `CCPLANE_DRAW` says.
fn keep_for_a_look(results: &Results, name: &str) {
    if let Some(dir) = std::env::var_os("CCPLANE_DRAW") {
        experiment::write(results, dir.as_ref(), name).unwrap();
    }
}

#[test]
fn a_link_that_changes_has_a_table_of_its_phases() {
    let results = changing();
    keep_for_a_look(&results, "adapt");
    let page = page_of(&results);
    let table = page.split("aria-label=\"Between the link’s changes\"").nth(1).unwrap();
    let table = table.split("</table>").next().unwrap();
    assert!(
        table.contains("at first<small>0–10 s") && table.contains("48 Mb/s, 40 ms<small>10–30 s"),
        "{table}"
    );
    assert_eq!(count(table, "43.0"), 5, "a reward for each contender");
    assert_eq!(count(table, "never"), 3);
    assert!(
        table.contains("4.00<span class=\"unit\">, 4 of 4")
            && table.contains("6.00<span class=\"unit\">, 1 of 5"),
        "{table}"
    );
    assert_eq!(count(table, ", learning<"), 1);
    // The change in each panel of each contender and in the windows' one; no one base RTT among the distributions.
    let steady = page_of(&fixture::results(|s| s.name.starts_with("fixed")));
    assert_eq!(count(&page, "class=\"phase\"") - count(&steady, "class=\"phase\""), 5 * 3 + 1 - 1);
    assert!(!steady.contains("Between the link’s changes"));
    // Nobody gets a limit met by not getting there either.
    let verdicts = experiment::comparisons(&results);
    assert_eq!(
        verdicts.iter().map(|v| (v.met, v.never_reached)).collect::<Vec<_>>(),
        [(Some(true), false), (Some(false), true),]
    );
    assert!(page.contains("never reached"));
}

#[test]
fn charts_are_files_and_the_page_links_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let (files, page) = report(&results(|s| s.name.starts_with("short")), dir.path());
    assert_eq!(files.charts.len(), 2 * 3, "a distribution for each class of sizes");
    for path in &files.charts {
        let link = format!("href=\"{}\"", path.strip_prefix(dir.path()).unwrap().display());
        assert_eq!(count(&page, &link), 1, "{link}");
        let bytes = fs::read(path).unwrap();
        if path.extension().unwrap() == "png" {
            assert!(
                bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 10_000,
                "a picture with something on it"
            );
        } else {
            let text = String::from_utf8(bytes).unwrap();
            assert!(text.starts_with("<svg ") && count(&text, "<text ") > 10);
            element_tree(
                &text
                    .replace("/>", "></path>")
                    .replace("<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"></path>", ""),
            );
        }
    }
    // A second report of the same name leaves no charts of the first.
    let (again, _) = report(&results(|_| false), dir.path());
    assert!(again.charts.is_empty());
    assert!(files.charts.iter().all(|c| !c.exists()));
}

#[test]
fn failures_are_never_hidden() {
    let results = results(|s| s.name.starts_with("fixed") || s.name.starts_with("short"));
    let page = page_of(&results);
    assert_eq!(count(&page, "Connection timed out"), 3, "two attempts of one, one of another");
    assert_eq!(count(&page, "<b>no</b>"), 2, "not mended");
    assert!(page.contains("46 of 50 planned, 3 attempts failed"));
    assert!(page.contains("4 of 50 planned runs are missing"));

    let mut stray = results.clone();
    stray.header.contenders.truncate(4);
    assert!(page_of(&stray).contains("runs in the file are of no scenario or contender"));
}

#[test]
fn one_run_and_none_are_reports_too() {
    let mut results = results(|s| s.name.starts_with("fixed"));
    results.runs.truncate(2);
    let page = page_of(&results);
    assert!(page.contains("2 of 25 planned"));
    assert!(page.contains("met, unsure"), "one pair proves little");
    assert_eq!(count(&page, "class=\"outline\""), 0, "no ellipse of one run");

    // The same run five times: no variance.
    let first = results.runs[0].clone();
    results.runs = (0..REPEATS).map(|repeat| Run { repeat, ..first.clone() }).collect();
    assert_eq!(count(&page_of(&results), "class=\"outline\""), 1);

    results.runs.clear();
    let page = page_of(&results);
    assert!(page.contains("No run has ended well.") && page.contains("0 of 25 planned"));
    assert_eq!(count(&page, "class=\"badge none\""), 5);
    results.header.scenarios.clear();
    page_of(&results);
}

#[test]
fn a_sweep_is_lines_over_its_parameter() {
    let results = results(|s| s.name.starts_with("sweep"));
    let page = page_of(&results);
    assert!(page.contains("Over link.rate_mbit and link.rtt_ms"));
    // Throughput and its deviation, utilisation, mean and p95 RTT and queue, loss, CPU, soft interrupts; at two RTTs.
    assert_eq!(count(&page, "class=\"band\""), 10 * 2 * 5);
    assert_eq!(count(&page, "<details class=\"point\">"), 10);
    // 6 to 96 doubles each time: equal distances on a logarithmic axis.
    assert!(
        page.contains("style=\"left:25.00%\">12</span>") && page.contains("style=\"left:75.00%\">48</span>")
    );
}

#[test]
fn a_file_cut_short_is_reported_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let all = results(|s| s.name.starts_with("cellular"));
    ccplane_results::create(&path, &all.header).unwrap();
    all.runs.iter().take(7).for_each(|run| ccplane_results::append(&path, run.clone()).unwrap());
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    assert!(page_of(&ccplane_results::read(&path).unwrap()).contains("6 of 25 planned"));
}

#[test]
fn figures_are_written_as_csv() {
    let results =
        results(|s| ["three flows", "short flows", "sweep 6 Mb/s, 20 ms"].contains(&s.name.as_str()));
    let dir = tempfile::tempdir().unwrap();
    let (files, _) = report(&results, dir.path());

    let runs = rows(&files.csv);
    let flows = |run: &Run| match &run.outcome {
        RunOutcome::Ok(m) => m.flows.len().max(1),
        RunOutcome::Failed { .. } => 1,
    };
    assert_eq!(runs.len(), 1 + results.runs.iter().map(flows).sum::<usize>());
    assert_eq!(column(&runs, "error").iter().filter(|e| !e.is_empty()).count(), 1);
    assert_eq!(column(&runs, "status").iter().filter(|s| **s == "failed").count(), 1);
    assert_eq!(column(&runs, "contender")[0], "reno, kernel", "a name with a comma");
    assert_eq!(column(&runs, "link.rate_mbit").iter().filter(|v| **v == "6").count(), 22);
    assert_eq!(column(&runs, "run_jain_ppm")[0].len(), 6, "all but fair: 99xxxx");

    let RunOutcome::Ok(first) = &results.runs[0].outcome else { panic!("the first run is good") };
    let series = rows(files.series_csv.as_deref().unwrap());
    assert_eq!(column(&series, "cwnd_pkts")[3], first.flows[0].series.cwnd_pkts[3].to_string());
    let fct = rows(files.fct_csv.as_deref().unwrap());
    assert_eq!(fct.len(), 1 + 25 * 400);
}

#[test]
fn text_is_escaped_everywhere() {
    const HOSTILE: &str = "</script></style><img src=x onerror=alert(1)>\"'&\u{0}";
    let mut results = results(|s| s.name.starts_with("fixed") || s.name.starts_with("sweep 6"));
    let text = || HOSTILE.to_owned();
    let header = &mut results.header;
    (header.plan.name, header.plan.title, header.plan.about, header.plan.source) =
        (text(), text(), text(), text());
    (header.host.kernel, header.host.command, header.host.git_commit) = (text(), text(), text());
    header.plan.comparisons[0].paper = Some(text());
    header.plan.digest = "é".repeat(20);
    for scenario in &mut header.scenarios {
        (scenario.link.description, scenario.traffic) = (text(), text());
        scenario.parameters.insert(text(), scenario.name.clone());
    }
    header.contenders[1].name = text();
    for run in &mut results.runs {
        if run.contender == "reno, ours" {
            run.contender = text();
        }
        match &mut run.outcome {
            RunOutcome::Failed { error } => *error = text(),
            RunOutcome::Ok(m) => m.notes.push(text()),
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let files = experiment::write(&results, dir.path(), "a \"b\"<c>").unwrap();
    let page = fs::read_to_string(&files.html).unwrap();
    element_tree(&page);
    assert!(!page.contains("<img") && !page.contains("href=\"a \"b"));
    for svg in files.charts.iter().filter(|c| c.extension().unwrap() == "svg") {
        assert!(!fs::read_to_string(svg).unwrap().contains("<img"));
    }
}

/// 5,000 runs of 34 s with samples each 100 ms, of one link each and seven algorithms.
#[test]
fn a_large_report_is_small_and_a_scenario_is_drawn_on_demand() {
    const LINKS: usize = 750;
    let few = results(|s| s.name.starts_with("fixed"));
    let RunOutcome::Ok(measured) = &few.runs[0].outcome else { panic!("the first run is good") };
    let mut measured = measured.clone();
    for flow in &mut measured.flows {
        let series = &mut flow.series;
        for column in [
            &mut series.t_ms,
            &mut series.throughput_bps,
            &mut series.srtt_us,
            &mut series.cwnd_pkts,
            &mut series.pacing_bps,
        ] {
            *column = (0..340).map(|n| n * 100).collect();
        }
    }
    let mut results = Results { runs: Vec::new(), ..few.clone() };
    results.header.plan.repeats = 1;
    results.header.plan.comparisons.clear();
    let (scenario, contender) = (few.header.scenarios[0].clone(), few.header.contenders[0].clone());
    let name = |n: usize| format!("link {n}");
    results.header.scenarios = (0..LINKS)
        .map(|n| Scenario { name: name(n), parameters: BTreeMap::new(), ..scenario.clone() })
        .collect();
    results.header.contenders =
        (0..7).map(|n| Contender { name: format!("algorithm {n}"), ..contender.clone() }).collect();
    for link in 0..LINKS {
        results.runs.extend((0..7).map(|n| Run {
            scenario: name(link),
            contender: format!("algorithm {n}"),
            outcome: RunOutcome::Ok(measured.clone()),
            ..few.runs[0].clone()
        }));
    }
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let files = experiment::write(&results, dir.path(), "large").unwrap();
    let took = begun.elapsed();
    let bytes: u64 = fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!(took.as_secs() < 30 && bytes < 20_000_000, "{took:?}, {bytes} bytes");
    assert!(files.charts.is_empty() && files.series_csv.is_none());
    let page = fs::read_to_string(&files.html).unwrap();
    assert_sound(&page);
    assert!(page.contains("link 749") && page.contains("--plots"));

    let drawn = experiment::write_scenario(&results, "link 7", dir.path(), "large").unwrap().unwrap();
    assert!(drawn.html.ends_with("large-link-7.html") && !drawn.charts.is_empty());
    assert!(!fs::read_to_string(&drawn.html).unwrap().contains("link 8"));
    assert!(experiment::write_scenario(&results, "link", dir.path(), "large").unwrap().is_none());
}

#[test]
fn refusals_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let said = experiment::write(&results(|_| false), &file, "r").unwrap_err().to_string();
    assert!(said.contains("file: "), "{said}");
}

fn any_measured() -> impl Strategy<Value = RunFigures> {
    let number = || prop_oneof![Just(0), Just(1), 0u64..100_000, any::<u64>()];
    let numbers = move || proptest::collection::vec(number(), 8);
    let samples = proptest::collection::vec(proptest::collection::vec(number(), 5), 0..6);
    let flow = (numbers(), samples).prop_map(|(n, samples)| {
        let column = |i: usize| samples.iter().map(|s| s[i]).collect::<Vec<_>>();
        FlowResult {
            name: "f".into(),
            background: (n[7] == 1).then(|| "reno".into()),
            start_ms: n[0],
            end_ms: n[1],
            acked_bytes: n[2],
            throughput_bps: n[3],
            rtt_us: Percentiles { mean: n[4], p50: n[5], p95: n[6], p99: n[6] },
            // Columns of different lengths are drawn as far as all go.
            series: Series {
                t_ms: column(0),
                throughput_bps: column(1),
                srtt_us: column(2),
                cwnd_pkts: column(3).split_off(samples.len().min(1)),
                pacing_bps: column(4),
            },
            states: samples
                .iter()
                .map(|s| StateChange { t_ms: s[0], state: (s[1] % 3).to_string() })
                .collect(),
            ..FlowResult::default()
        }
    });
    let completions = proptest::collection::vec(numbers(), 0..5).prop_map(|rows| Completions {
        flows: rows.iter().map(|n| Completion { start_us: n[0], bytes: n[1], fct_us: n[2] }).collect(),
        unfinished: rows.len() as u64,
        ..Completions::default()
    });
    let flows = proptest::collection::vec(flow, 0..3);
    (flows, proptest::option::of(completions), numbers(), any::<bool>()).prop_map(
        |(flows, completions, n, all)| RunFigures {
            flows,
            completions,
            link: all.then(|| LinkUse {
                utilisation_ppm: n[0],
                departed_pkts: n[1],
                dropped_pkts: n[2],
                lost_pkts: n[3],
                ..LinkUse::default()
            }),
            cpu: all.then(|| Cpu { user_ms: n[4], system_ms: n[5], softirq_ms: n[6], idle_ms: n[7] }),
            ..RunFigures::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_numbers_make_a_sound_report(
        measured in proptest::collection::vec(any_measured(), 0..7),
        times in any::<[u64; 4]>(),
        capacity_bps in any::<u64>(),
        base_rtt_us in any::<Option<u64>>(),
    ) {
        let mut results = results(|s| s.name.starts_with("fixed"));
        let plan = &mut results.header.plan;
        (plan.duration_ms, plan.warmup_ms, plan.sample_ms, plan.repeats) =
            (times[0] >> (times[3] % 64), times[1] >> (times[3] % 60), times[2] >> (times[3] % 50), 3);
        let link = &mut results.header.scenarios[0].link;
        link.base_rtt_us = base_rtt_us;
        link.capacity[0].capacity_bps = capacity_bps;
        let blank = results.runs[0].clone();
        results.runs = measured
            .into_iter()
            .enumerate()
            .map(|(i, m)| Run {
                contender: results.header.contenders[i % 2].name.clone(),
                repeat: i as u32 / 2,
                outcome: RunOutcome::Ok(Box::new(m)),
                ..blank.clone()
            })
            .collect();
        page_of(&results);
        // The same among few contenders on two links: at a glance, too.
        results.header.contenders.truncate(3);
        let twin = Scenario { name: "twin".into(), ..results.header.scenarios[0].clone() };
        results.header.scenarios.push(twin);
        let page = page_of(&results);
        prop_assert_eq!(page.contains("class=\"glance\""), !experiment::at_a_glance(&results).is_empty());
    }
}

/// Three algorithms on three datapaths each, with the runs of one contender.
fn crowd() -> Results {
    let mut results = results(|s| s.name.starts_with("fixed"));
    let first = results.header.contenders[0].clone();
    let runs: Vec<Run> = results.runs.iter().filter(|r| r.contender == first.name).cloned().collect();
    (results.header.contenders, results.runs) = (Vec::new(), Vec::new());
    results.header.plan.comparisons.clear();
    for algorithm in ["reno", "cubic", "bbr"] {
        for datapath in [Datapath::Ebpf, Datapath::Quic, Datapath::Sim] {
            let name = format!("{algorithm} {}", datapath.name());
            let algorithm = algorithm.to_owned();
            results.header.contenders.push(Contender {
                name: name.clone(),
                algorithm: algorithm.clone(),
                datapath,
                ..first.clone()
            });
            results.runs.extend(runs.iter().cloned().map(|run| Run { contender: name.clone(), ..run }));
            if datapath != Datapath::Ebpf {
                results.header.plan.comparisons.push(Comparison {
                    metric: Metric::ThroughputBps,
                    together: false,
                    of: name,
                    against: format!("{algorithm} ebpf"),
                    constant: None,
                    scenario: None,
                    within_ppm: Some(100_000),
                    at_most_ppm: None,
                    at_least_ppm: None,
                    paper: None,
                });
            }
        }
    }
    results
}

#[test]
fn a_crowd_is_shown_by_algorithm() {
    let results = crowd();
    keep_for_a_look(&results, "crowd");
    let page = page_of(&results);
    let figures = element_tree(&page).iter().filter(|t| *t == "figure").count();
    assert_eq!(figures, 1 + 3, "a scatter, and an algorithm each");
    let matrix = page.split("aria-label=\"Comparisons across datapaths\"").nth(1).unwrap();
    let matrix = matrix.split("</table>").next().unwrap();
    assert_eq!(count(matrix, "badge met"), 3 * 2, "{matrix}");
    assert_eq!(count(matrix, "1.00×"), 3 * 2);
    assert!(matrix.contains("Throughput against ebpf, within 10 %"), "{matrix}");
    assert_eq!(count(&page, "✓ met"), 3 * 2, "each with its interval, too");
}

/// Three contenders on two links; the third one tells what it does.
fn few() -> Results {
    let mut results = results(|s| s.name.starts_with("fixed") || s.name.starts_with("cellular"));
    let names = ["reno, kernel", "cubic, kernel", "vegas"];
    results.header.contenders.retain(|c| names.contains(&c.name.as_str()));
    results.runs.retain(|r| names.contains(&r.contender.as_str()));
    results.header.plan.comparisons.clear();
    let state = |t_ms, state: &str| StateChange { t_ms, state: state.into() };
    for run in results.runs.iter_mut().filter(|r| r.contender == "vegas") {
        let RunOutcome::Ok(measured) = &mut run.outcome else { continue };
        measured.flows[0].states =
            vec![state(0, "calm <&>"), state(10_000, "tests"), state(10_500, "calm <&>")];
    }
    results
}

/// A run's throughput squared over its RTT, and its throughput: their means over runs.
fn power(results: &Results, scenario: &str, contender: &str) -> f64 {
    let of = |run: &Run| match &run.outcome {
        RunOutcome::Ok(m) => Some((m.flows[0].throughput_bps as f64).powi(2) / m.flows[0].rtt_us.mean as f64),
        RunOutcome::Failed { .. } => None,
    };
    let all: Vec<f64> = results
        .runs
        .iter()
        .filter(|r| r.scenario == scenario && r.contender == contender)
        .filter_map(of)
        .collect();
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
fn few_links_of_few_contenders_are_shown_at_a_glance() {
    let results = few();
    let dir = tempfile::tempdir().unwrap();
    let (files, page) = report(&results, dir.path());
    keep_for_a_look(&results, "few");
    let links = experiment::at_a_glance(&results);
    assert_eq!(links.len(), 2);
    for link in &links {
        assert_eq!(link.contenders.len(), 3);
        let powers: Vec<f64> = link.contenders.iter().map(|c| power(&results, &link.link, &c.name)).collect();
        let most = powers.iter().copied().fold(0.0, f64::max);
        for (contender, power) in link.contenders.iter().zip(&powers) {
            // Five repeats differ a little from the one that stands for them.
            let clear = (power / most - 0.9).abs() > 0.04;
            assert!(!clear || contender.best == (*power > 0.9 * most), "{}: {powers:?}", link.link);
        }
        assert_eq!(link.decided, "vegas: calm <&> 2 times, 29.5 s; tests 0.5 s.");
        assert!(link.contenders.iter().all(|c| c.fair_share.is_none() && c.waiting_us > 0.0));
        assert!(page.contains(&format!("<dt>{}</dt>", link.link)), "{}", link.link);
    }
    assert_eq!(count(&page, "class=\"glance\""), 2, "the picture, and the sentences");
    assert_eq!(count(&page, "calm &lt;&amp;&gt; 2 times"), 2);
    let svg =
        fs::read_to_string(files.charts.iter().find(|c| c.ends_with("at-a-glance.svg")).unwrap()).unwrap();
    for text in
        ["what the link can carry", "what vegas does", "calm &lt;&amp;&gt;", "best:", "less is better"]
    {
        assert!(svg.contains(text), "{text}");
    }
    // Three lines over time for throughput and for waiting, on each link; and the legend's three.
    let lines = |colour: &str| count(&svg, &format!("stroke=\"{colour}\""));
    assert_eq!([lines("#0067a5"), lines("#cf4f00"), lines("#008060")], [5, 5, 5]);
    assert!(files.charts.iter().any(|c| c.ends_with("at-a-glance.png")));

    let one = page_of(&fixture::results(|s| s.name.starts_with("fixed")));
    assert!(!one.contains("class=\"glance\""), "one link needs no overview");
}

#[test]
fn beside_others_the_fairest_is_best() {
    let mut results = few();
    // The first takes as much as the other, the second twice that, the third a quarter.
    for run in results.runs.iter_mut().filter(|r| r.scenario.starts_with("fixed")) {
        let RunOutcome::Ok(measured) = &mut run.outcome else { continue };
        let mut other = measured.flows[0].clone();
        other.background = Some("cubic".into());
        let scale: fn(u64) -> u64 = match run.contender.as_str() {
            "reno, kernel" => |bps| bps,
            "cubic, kernel" => |bps| bps / 2,
            _ => |bps| bps * 4,
        };
        other.series.throughput_bps.iter_mut().for_each(|bps| *bps = scale(*bps));
        measured.flows.push(other);
    }
    let link = &experiment::at_a_glance(&results)[0];
    let shares: Vec<f64> = link.contenders.iter().map(|c| c.fair_share.unwrap()).collect();
    for (share, wanted) in shares.iter().zip([1.0, 4.0 / 3.0, 0.4]) {
        assert!((share - wanted).abs() < 0.01, "{shares:?}");
    }
    assert_eq!(link.contenders.iter().map(|c| c.best).collect::<Vec<_>>(), [true, false, false]);
    let said = link.sentence();
    assert!(said.starts_with("reno, kernel shares best. reno, kernel: 100.0"), "{said}");
}

//! `ccplane host learn`: groups, predictions and the best coalescing, from measurements.

use crate::cli::{FeaturesName, HostLearnArgs};
use crate::commands::output::{print, print_json, shown, table};
use ccplane_agent::failure::Failure;
use ccplane_host::{
    CpuSet, CpuSetError, CsvColumns, Features, Frame, LearnConfig, Learned, Page, learned_section,
};

/// Counters and weights that are shown.
const SHOWN: usize = 5;

pub(super) fn learn(args: &HostLearnArgs) -> Result<(), Failure> {
    let nodes = args.nodes.iter().map(|list| Ok(list.parse::<CpuSet>()?.iter().collect()));
    let nodes: Result<Vec<Vec<u32>>, CpuSetError> = nodes.collect();
    let columns = CsvColumns {
        inputs: args.input.clone(),
        throughput: args.throughput.clone(),
        efficiency: args.efficiency.clone(),
        nodes: nodes.map_err(Failure::input)?,
    };
    let frame = Frame::read(&args.file, &columns).map_err(Failure::input)?;
    let features = match args.features {
        FeaturesName::Settings => Features::Settings,
        FeaturesName::Counters => Features::Counters,
    };
    let config = LearnConfig { seed: args.seed, groups: args.groups, features, ..LearnConfig::default() };
    let learned = ccplane_host::learn(&frame, &config).map_err(Failure::input)?;
    if let Some(path) = &args.report {
        let page = Page::new("What was learned of a host", &learned.origin);
        std::fs::write(path, page.with_section(learned_section(&learned)).html())?;
    }
    if args.json {
        return print_json(&learned);
    }
    print(&text(&learned))
}

fn text(learned: &Learned) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let [train, validation, test] = learned.divided;
    let from = match learned.features {
        Features::Settings => "",
        Features::Counters => "; predicted from counters, too",
    };
    let mut out = format!(
        "# {}: {train} settings to learn from, {validation} to choose by, {test} held out{from}\n",
        shown(&learned.origin)
    );
    let errors = [("throughput", &learned.throughput), ("efficiency", &learned.efficiency)];
    let rows: Vec<Vec<String>> = errors
        .iter()
        .map(|(name, e)| vec![(*name).to_owned(), percent(e.mean), percent(e.p95), percent(e.of_median)])
        .collect();
    out += &table(&["held-out error", "mean", "95th percentile", "of the median"], &rows);
    out.push('\n');
    let typical = |group: &ccplane_host::SettingGroup| {
        let word = |(name, value, share): &(String, String, f64)| {
            format!("{}={} ({})", shown(name), shown(value), percent(*share))
        };
        group.typical.iter().map(word).collect::<Vec<_>>().join(" ")
    };
    let rows: Vec<Vec<String>> = learned
        .groups
        .groups
        .iter()
        .map(|g| {
            vec![
                g.settings.to_string(),
                format!("{:.3e}", g.mean_throughput),
                format!("{:.3e}", g.mean_efficiency),
                typical(g),
            ]
        })
        .collect();
    out += &table(&["group of", "throughput", "efficiency", "typical"], &rows);
    out.push('\n');
    let telling = learned.groups.telling.iter().take(SHOWN);
    let rows: Vec<Vec<String>> = telling.map(|t| vec![shown(&t.counter), percent(t.share)]).collect();
    out += &table(&["told apart by", "variance between groups"], &rows);
    for component in &learned.groups.components {
        let weights = component.weights.iter().take(SHOWN);
        let words: Vec<String> =
            weights.map(|(name, weight)| format!("{} {weight:+.2}", shown(name))).collect();
        out += &format!("{} of all variance: {}\n", percent(component.share), words.join(", "));
    }
    if !learned.coalescing.is_empty() {
        let under = |best: &ccplane_host::Coalescing| {
            let word = |(name, value): &(String, String)| format!("{}={}", shown(name), shown(value));
            best.under.iter().map(word).collect::<Vec<_>>().join(" ")
        };
        let rows: Vec<Vec<String>> =
            learned.coalescing.iter().map(|c| vec![shown(&c.usecs), shown(&c.frames), under(c)]).collect();
        out.push('\n');
        out += &table(&["best microseconds", "frames", "under"], &rows);
    }
    out
}

//! Plays hours of changing links with the portfolio, with each of its arms and with others that it is held against:
//! `hour [training|validation] [HOURS] [SEGMENTS] [SECONDS] [ARM,ARM,...]`.

use ccplane_alg::Algorithm;
use ccplane_algs::Portfolio;
use ccplane_league::{HourConfig, PlayedHour, Set, Traces};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |n: usize, default: u64| args.get(n).map_or(Ok(default), |text| text.parse());
    let set = match args.first().map_or("training", String::as_str) {
        "training" => Set::Training,
        "validation" => Set::Validation,
        other => return Err(format!("there are training and validation, not {other}").into()),
    };
    let (hours, segments, seconds) = (number(1, 1)?, number(2, 12)?, number(3, 300)?);
    let cores = std::thread::available_parallelism()?.get();
    let (mut whole, mut below) = (Vec::new(), 0);
    for hour in 0..u32::try_from(hours)? {
        let segments = u32::try_from(segments)?;
        let config = HourConfig { segments, segment_ms: seconds * 1000, ..HourConfig::new(set, hour) };
        // Each hour is another destination.
        let portfolio: Arc<dyn Algorithm> = Arc::new(match args.get(4) {
            None => Portfolio::default(),
            Some(names) => Portfolio::among(named(names)?)?,
        });
        let played = PlayedHour::play(&config, &portfolio, &Traces::default(), cores)?;
        println!("hour {hour}");
        for segment in &played.segments {
            let single: Vec<String> =
                segment.single.iter().map(|c| format!("{} {:.2}", c.algorithm, segment.reward(c))).collect();
            let known: Vec<String> = segment
                .known
                .iter()
                .flat_map(|s| s.evidence.iter().map(|e| format!("{}:{:.2}/{}", e.arm, e.worth, e.intervals)))
                .collect();
            let arm = segment.known.first().map_or("-", |s| s.arm);
            println!(
                "  {:<28} {:.2} of the best, {:.2} of cubic; {}; ends with {arm}, knows {}",
                segment.tested.link,
                segment.of_best(),
                segment.of_cubic().min(99.0),
                single.join(", "),
                known.join(" ")
            );
            below += usize::from(segment.of_cubic() < 0.9);
        }
        let (of_single, best) = played.of_best_single();
        println!("  {of_single:.3} of the best single algorithm, {best}");
        whole.extend(played.segments);
    }
    let count = whole.len().max(1) as f64;
    let mean: f64 = whole.iter().map(|s| s.of_best()).sum::<f64>() / count;
    let good = whole.iter().filter(|s| s.of_best() >= 0.9).count() as f64;
    let all = PlayedHour { segments: whole };
    let (of_single, single) = all.of_best_single();
    println!(
        "{of_single:.3} of the best single algorithm ({single}) over all; {mean:.3} of each segment's best one on average, at least 0.9 in {:.0} % of segments; {below} below 0.9 of cubic",
        100.0 * good / count
    );
    Ok(())
}

fn named(names: &str) -> Result<Vec<Arc<dyn Algorithm>>, String> {
    let all = ccplane_algs::all();
    let one = |name: &str| all.iter().find(|a| a.name() == name).cloned().ok_or_else(|| format!("no {name}"));
    names.split(',').map(one).collect()
}

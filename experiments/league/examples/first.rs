//! The first arm of an unknown path is chosen by what is known when a flow starts: by Exp4, whose experts each know one
//! arm or read the handshake's round trip. It is compared in hindsight with the best single arm and the best arm for
//! each round trip. Training links only: `first [LINKS_OF_EACH_FAMILY]`.

use ccplane_bandit::Exp4;
use ccplane_league::{Cell, Family, FamilyLink, Fixture, HELD_AGAINST, LeagueError, Set, Traces, play};
use ccplane_learn::Rng;
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use std::collections::BTreeMap;

/// The first link; no training and no hour plays it.
const FIRST_LINK: u32 = 4000;
const GAMMA: f64 = 0.1;
/// Orders in which paths are met.
const ORDERS: u64 = 100;
/// Classes of round trips, octaves of milliseconds.
const CLASSES: usize = 10;

/// A path: the class of its round trip, and each arm's score over the best one's.
struct PathScores {
    class: usize,
    rewards: Vec<f64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let of_each: u32 = std::env::args().nth(1).map_or(Ok(8), |text| text.parse())?;
    let names = HELD_AGAINST;
    let mut links = Vec::new();
    for family in Family::ALL.iter().copied().filter(|family| *family != Family::Recorded) {
        for number in 0..of_each {
            links.push(FamilyLink::new(family, Set::Training, FIRST_LINK + number)?);
        }
    }
    let fixture = |link: &FamilyLink, name: &&str| Fixture { link: *link, algorithm: (*name).to_owned() };
    let fixtures: Vec<Fixture> =
        links.iter().flat_map(|link| names.iter().map(move |name| fixture(link, name))).collect();
    let cores = std::thread::available_parallelism()?.get();
    let cells = play(&fixtures, &ccplane_algs::all(), &Traces::default(), cores, &|_| true)?;
    let met: Vec<PathScores> = links
        .iter()
        .zip(cells.chunks(names.len()))
        .map(|(link, cells)| meet(*link, cells))
        .collect::<Result<_, _>>()?;

    let count = met.len() as f64;
    let mean = |arm: usize| met.iter().map(|met| met.rewards[arm]).sum::<f64>() / count;
    for (arm, name) in names.iter().enumerate() {
        println!("{name}: {:.3} of each path's best arm", mean(arm));
    }
    let best = (0..names.len()).map(mean).fold(0.0, f64::max);
    println!("best single arm in hindsight: {best:.3}");
    println!("best arm for each round trip in hindsight: {:.3}", best_by_class(&met, names.len()) / count);
    let runs: Vec<f64> = (0..ORDERS).map(|seed| exp4(&met, names.len(), seed)).collect::<Result<_, _>>()?;
    let all: f64 = runs.iter().sum::<f64>() / (runs.len() as f64 * count);
    println!("exp4, {} paths in {ORDERS} orders: {all:.3}", met.len());
    Ok(())
}

fn meet(link: FamilyLink, cells: &[Cell]) -> Result<PathScores, LeagueError> {
    let plan = link.plan(&["reno"], "sim", &ccplane_algs::all(), &Traces::default())?;
    let rtt_ms = plan.scenarios.first().map_or(0, |scenario| 2 * scenario.link.delay_us / 1000);
    let best = cells.iter().map(Cell::score).fold(f64::MIN_POSITIVE, f64::max);
    let class = (rtt_ms.max(1).ilog2() as usize).min(CLASSES - 1);
    Ok(PathScores { class, rewards: cells.iter().map(|cell| cell.score() / best).collect() })
}

/// The sum of rewards of the best arm of each class.
fn best_by_class(met: &[PathScores], arms: usize) -> f64 {
    let mut sums: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for met in met {
        let sum = sums.entry(met.class).or_insert_with(|| vec![0.0; arms]);
        sum.iter_mut().zip(&met.rewards).for_each(|(sum, reward)| *sum += reward);
    }
    sums.values().map(|of| of.iter().copied().fold(0.0, f64::max)).sum()
}

/// Meets the paths in a random order; returns the sum of rewards. An expert advises one arm on all paths, or one arm on those of a class.
fn exp4(met: &[PathScores], arms: usize, seed: u64) -> Result<f64, ccplane_bandit::BanditError> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..met.len()).collect();
    Rng::new(seed, &[]).shuffle(&mut order);
    let experts = arms * (CLASSES + 1);
    let mut exp4 = Exp4::new(arms, experts, GAMMA)?;
    let mut sum = 0.0;
    for met in order.into_iter().filter_map(|path| met.get(path)) {
        let advice: Vec<Vec<f64>> = (0..experts)
            .map(|expert| {
                let (class, arm) = (expert / arms, expert % arms);
                let one = |n: usize| if n == arm { 1.0 } else { 0.0 };
                let none = 1.0 / arms as f64;
                (0..arms)
                    .map(|n| if class == met.class || class == CLASSES { one(n) } else { none })
                    .collect()
            })
            .collect();
        let drawn = exp4.draw(&advice, &mut random)?;
        let reward = met.rewards.get(drawn.draw.arm).copied().unwrap_or(0.0);
        exp4.observe(&drawn, reward)?;
        sum += reward;
    }
    Ok(sum)
}

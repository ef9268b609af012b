//! Step by step the library does what the papers' formulas say.

use ccplane_bandit::{Exp3, Exp3Config, Exp3Ix, Exp4, Forgetting, Ucb, UcbConfig};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

const ROUNDS: usize = 2000;
/// Relative; the two add in different orders.
const EXACT: f64 = 1e-9;

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

fn uniform(random: &mut ChaCha8Rng) -> f64 {
    f64::from(random.next_u32()) / f64::from(u32::MAX)
}

#[track_caller]
fn same(ours: &[f64], theirs: &[f64]) {
    assert_eq!(ours.len(), theirs.len());
    let close = ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() <= EXACT * a.abs().max(*b));
    assert!(close, "{ours:?}\n{theirs:?}");
    assert!((ours.iter().sum::<f64>() - 1.0).abs() < EXACT);
}

/// Rewards come up to ten rounds late, in another order than their draws.
fn late<D>(waiting: &mut Vec<D>, drawn: D, random: &mut ChaCha8Rng) -> Option<D> {
    waiting.push(drawn);
    (waiting.len() > 10).then(|| waiting.swap_remove(random.next_u32() as usize % waiting.len()))
}

#[test]
fn exp3_and_exp3s_are_the_papers() {
    for (seed, share) in [(1, 0.0), (2, 1e-3), (3, 0.05)] {
        let config = Exp3Config { gamma: 0.07, share, discount: 1.0 };
        let mut ours = Exp3::new(5, config).unwrap();
        let mut theirs = crate::textbook::Exp3 { gamma: 0.07, alpha: share, w: vec![1.0; 5] };
        let (mut chance, mut waiting) = (random(seed), Vec::new());
        for _ in 0..ROUNDS {
            same(&ours.probabilities(), &theirs.p());
            let drawn = ours.draw(&mut chance);
            assert!((drawn.probability - theirs.p()[drawn.arm]).abs() < EXACT);
            let Some(drawn) = late(&mut waiting, drawn, &mut chance) else { continue };
            let reward = uniform(&mut chance) * (drawn.arm + 1) as f64 / 5.0;
            ours.observe(drawn, reward).unwrap();
            theirs.feed(drawn.arm, drawn.probability, reward);
        }
    }
}

#[test]
fn exp3ix_is_the_papers() {
    let mut ours = Exp3Ix::new(4, 0.05).unwrap();
    let mut theirs = crate::textbook::Exp3Ix { eta: 0.05, arms: 4, fed: Vec::new() };
    let (mut chance, mut waiting) = (random(4), Vec::new());
    for _ in 0..ROUNDS {
        same(&ours.probabilities(), &theirs.p());
        let drawn = ours.draw(&mut chance);
        let Some(drawn) = late(&mut waiting, drawn, &mut chance) else { continue };
        let reward = uniform(&mut chance) * (drawn.arm + 1) as f64 / 4.0;
        ours.observe(drawn, reward).unwrap();
        theirs.fed.push((drawn.arm, drawn.probability, 1.0 - reward));
    }
}

#[test]
fn exp4_is_the_papers() {
    let (arms, experts) = (4, 6);
    let mut ours = Exp4::new(arms, experts, 0.1).unwrap();
    let mut theirs = crate::textbook::Exp4 { gamma: 0.1, w: vec![1.0; experts] };
    let (mut chance, mut waiting) = (random(5), Vec::new());
    for _ in 0..ROUNDS {
        let advice: Vec<Vec<f64>> = (0..experts)
            .map(|_| {
                let of: Vec<f64> = (0..arms).map(|_| uniform(&mut chance) + 1e-3).collect();
                let sum: f64 = of.iter().sum();
                of.into_iter().map(|p| p / sum).collect()
            })
            .collect();
        same(&ours.probabilities(&advice).unwrap(), &theirs.p(&advice));
        let drawn = ours.draw(&advice, &mut chance).unwrap();
        let Some((drawn, advice)) = late(&mut waiting, (drawn, advice), &mut chance) else { continue };
        let reward = uniform(&mut chance) * (drawn.draw.arm + 1) as f64 / arms as f64;
        ours.observe(&drawn, reward).unwrap();
        theirs.feed(&advice, drawn.draw.arm, drawn.draw.probability, reward);
    }
}

#[test]
fn ucb_is_the_papers_with_a_discount_a_window_or_neither() {
    let forms = [
        (Forgetting::Discount(0.98), 0.98, usize::MAX),
        (Forgetting::Discount(1.0), 1.0, usize::MAX),
        (Forgetting::Window(100), 1.0, 100),
    ];
    for (seed, (forgetting, discount, window)) in (6u64..).zip(forms) {
        let config = UcbConfig { forgetting, exploration: 0.6, spread: 0.3 };
        let mut ours = Ucb::new(4, config).unwrap();
        // UCB1 without forgetting has the discounted form's padding here.
        let b = if discount == 1.0 && window == usize::MAX { 0.6 } else { 0.3 };
        let mut theirs = crate::textbook::Ucb { discount, window, b, xi: 0.6, arms: 4, history: Vec::new() };
        let mut chance = random(seed);
        for round in 0..600 {
            let arm = ours.choose();
            assert_eq!(arm, theirs.choose(), "round {round}");
            // Ties would hang on the order of additions.
            let reward = (uniform(&mut chance) + arm as f64) / 4.0;
            ours.observe(arm, reward).unwrap();
            theirs.history.push((arm, reward));
        }
    }
}

#[test]
fn one_arm_is_always_drawn_and_nothing_breaks() {
    let mut exp3 = Exp3::new(1, Exp3Config::for_rounds(1, 10)).unwrap();
    let mut ix = Exp3Ix::new(1, Exp3Ix::rate_for(1, 10)).unwrap();
    let mut chance = random(9);
    for _ in 0..10 {
        let (a, b) = (exp3.draw(&mut chance), ix.draw(&mut chance));
        assert_eq!((a.arm, a.probability, b.arm, b.probability), (0, 1.0, 0, 1.0));
        exp3.observe(a, 1.0).unwrap();
        ix.observe(b, 0.0).unwrap();
    }
}

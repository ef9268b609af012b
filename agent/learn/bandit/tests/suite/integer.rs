//! The integer bandit against Auer's formulas in floats, and against the best arm on sequences fixed beforehand.

use ccplane_bandit::integer::{self, FLOOR, GAMMA_Q32, MAX_ARMS, ONE_Q32, Weights};
use ccplane_bandit::{Advised, Draw, Exp3, Exp3Config, Exp4};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// Largest difference of a probability from the formula's.
const TOLERANCE: f64 = 2e-6;
const GAMMA: f64 = 0.1;
/// Seeds from which every sequence is played.
const SEEDS: u64 = 8;

fn share(q32: u64) -> f64 {
    q32 as f64 / ONE_Q32 as f64
}

#[test]
fn powers_of_two_are_exact_enough_and_never_rise() {
    let mut before = u64::MAX;
    for step in 0..=160_000_u64 {
        let deficit = FLOOR / 160_000 * step;
        let power = integer::exp2(deficit);
        let exact = (-share(deficit)).exp2() * ONE_Q32 as f64;
        assert!((power as f64 - exact).abs() <= 1.0 + 6e-7 * exact, "{deficit}: {power} for {exact}");
        assert!(power <= before && power > 0);
        before = power;
    }
    assert_eq!(integer::exp2(0), ONE_Q32);
    assert_eq!(integer::exp2(FLOOR), 1);
}

#[test]
fn the_rate_and_gamma_are_those_of_the_formula() {
    assert!((share(GAMMA_Q32) - GAMMA).abs() < 1e-9);
    let rate = integer::RATE_Q64 as f64 / 2f64.powi(64);
    assert!((rate - GAMMA * std::f64::consts::LOG2_E).abs() < 1e-15);
}

/// A round: which arms answer as the drawn one does is decided by the arms' answers; which answer is right follows.
#[derive(Clone, Debug)]
struct Round {
    random: u32,
    answers: [u8; MAX_ARMS],
    truth: u8,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let round = (any::<u32>(), prop::array::uniform16(0..4_u8), 0..4_u8);
    prop::collection::vec(round.prop_map(|(random, answers, truth)| Round { random, answers, truth }), 1..300)
}

fn agreeing(answers: &[u8], arm: usize) -> u16 {
    answers.iter().enumerate().filter(|(_, a)| **a == answers[arm]).fold(0, |set, (n, _)| set | 1 << n)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exp3_is_that_of_the_formula(arms in 1..=MAX_ARMS, rounds in rounds()) {
        let mut ours = Weights::new(arms).unwrap();
        let mut theirs = Exp3::new(arms, Exp3Config { gamma: GAMMA, share: 0.0, discount: 1.0 }).unwrap();
        for round in rounds {
            let arm = ours.draw(round.random);
            let probability = ours.probability(arm);
            prop_assert_eq!(probability, ours.probability_of(1 << arm));
            for (n, p) in theirs.probabilities().into_iter().enumerate() {
                prop_assert!((share(ours.probability(n)) - p).abs() < TOLERANCE, "{} {}", n, p);
            }
            let reward = round.answers[arm] == round.truth;
            // The estimate is made with the probability that the arm was really drawn with.
            theirs.observe(Draw { arm, probability: share(probability) }, f64::from(u8::from(reward))).unwrap();
            if reward {
                ours.reward(1 << arm, probability);
            }
            if ours.deficits().contains(&FLOOR) {
                break;
            }
        }
    }

    #[test]
    fn exp4_is_that_of_the_formula(arms in 1..=MAX_ARMS, rounds in rounds()) {
        let mut ours = Weights::new(arms).unwrap();
        let mut theirs = Exp4::new(arms, arms, GAMMA).unwrap();
        for round in rounds {
            let answers = &round.answers[..arms];
            let advice: Vec<Vec<f64>> = (0..arms)
                .map(|expert| {
                    let set = agreeing(answers, expert);
                    let each = 1.0 / f64::from(set.count_ones());
                    (0..arms).map(|arm| if set >> arm & 1 == 1 { each } else { 0.0 }).collect()
                })
                .collect();
            let arm = ours.draw(round.random);
            let set = agreeing(answers, arm);
            let probability = ours.probability_of(set);
            let of_arms = theirs.probabilities(&advice).unwrap();
            let of_answer: f64 = (0..arms).filter(|n| set >> n & 1 == 1).map(|n| of_arms[n]).sum();
            prop_assert!((share(probability) - of_answer).abs() < TOLERANCE * f64::from(set.count_ones()));
            let reward = answers[arm] == round.truth;
            // The formula draws one of the agreeing arms: each has an even part of the answer's probability.
            let drawn = Draw { arm, probability: share(probability) / f64::from(set.count_ones()) };
            let advised = Advised { draw: drawn, advice: advice.iter().map(|a| a[arm]).collect() };
            theirs.observe(&advised, f64::from(u8::from(reward))).unwrap();
            if reward {
                ours.reward(set, probability);
            }
            if ours.deficits().contains(&FLOOR) {
                break;
            }
        }
    }

    #[test]
    fn thresholds_are_a_distribution_whatever_the_state(
        arms in 1..=MAX_ARMS,
        deficits in prop::array::uniform16(0..=FLOOR),
        best in 0..MAX_ARMS,
        steps in prop::collection::vec((any::<u16>(), 0..=2 * ONE_Q32), 0..50),
    ) {
        let mut deficits = deficits;
        deficits.iter_mut().skip(arms).for_each(|d| *d = 0);
        deficits[best % arms] = 0;
        let mut weights = Weights::from_deficits(arms, deficits).unwrap();
        for (set, probability) in std::iter::once((0, ONE_Q32)).chain(steps) {
            weights.reward(set, probability);
            prop_assert_eq!((0..arms).map(|arm| weights.probability(arm)).sum::<u64>(), ONE_Q32);
            for arm in 0..arms {
                prop_assert!(weights.probability(arm) >= GAMMA_Q32 / arms as u64);
                let first = if arm == 0 { 0 } else { weights.thresholds()[arm - 1] };
                prop_assert_eq!(weights.draw(first as u32), arm);
                prop_assert_eq!(weights.draw((weights.thresholds()[arm] - 1) as u32), arm);
            }
            prop_assert_eq!(Weights::from_deficits(arms, padded(weights.deficits())), Some(weights));
        }
    }
}

fn padded(deficits: &[u64]) -> [u64; MAX_ARMS] {
    std::array::from_fn(|n| deficits.get(n).copied().unwrap_or(0))
}

#[test]
fn what_is_no_state_is_refused() {
    assert_eq!(Weights::new(0), None);
    assert_eq!(Weights::new(MAX_ARMS + 1), None);
    let state = |first, second, rest| Weights::from_deficits(2, padded(&[first, second, rest]));
    assert!(state(0, FLOOR, 0).is_some());
    assert_eq!(state(1, 1, 0), None, "no arm is the heaviest");
    assert_eq!(state(0, FLOOR + 1, 0), None, "beyond the floor");
    assert_eq!(state(0, 1, 1), None, "a deficit of an arm that is not there");
}

/// The mean share of rounds that are won, over seeds, where feedback comes so many rounds late.
fn won(rounds: usize, late: usize, wins: impl Fn(usize, usize, u32) -> bool) -> f64 {
    let mut sum = 0;
    for seed in 0..SEEDS {
        let (mut weights, mut chance) = (Weights::new(10).unwrap(), ChaCha8Rng::seed_from_u64(seed));
        let mut waiting = std::collections::VecDeque::new();
        for round in 0..rounds {
            let arm = weights.draw(chance.next_u32());
            let is_won = wins(round, arm, chance.next_u32());
            sum += u64::from(is_won);
            waiting.push_back((arm, weights.probability(arm), is_won));
            if waiting.len() > late
                && let Some((arm, probability, true)) = waiting.pop_front()
            {
                weights.reward(1 << arm, probability);
            }
        }
    }
    sum as f64 / (SEEDS as usize * rounds) as f64
}

/// Whether 32 random bits fall below a probability.
fn falls(random: u32, below: f64) -> bool {
    f64::from(random) < below * ONE_Q32 as f64
}

#[test]
fn regret_is_within_the_bound_of_exp3() {
    // Auer et al., theorem 3.1: at most (e - 1) gamma G + K ln K / gamma.
    let means = [0.5, 0.6, 0.4, 0.95, 0.3, 0.7, 0.2, 0.8, 0.5, 0.1];
    let rounds = 40_000;
    let best = 0.95;
    let bound = (std::f64::consts::E - 1.0) * GAMMA * best + 10.0 * 10f64.ln() / GAMMA / rounds as f64;
    let at_once = won(rounds, 0, |_, arm, random| falls(random, means[arm]));
    assert!(best - at_once < bound, "{at_once}");
    // Exploration alone costs gamma times the distance of the mean arm from the best.
    let explored = GAMMA * (best - means.iter().sum::<f64>() / 10.0);
    assert!(best - at_once < explored + 0.02, "{at_once}: learned more slowly than it should");
}

#[test]
fn feedback_that_is_a_hundred_thousand_rounds_late_neither_biases_nor_is_lost() {
    let means = [0.5, 0.6, 0.4, 0.95, 0.3, 0.7, 0.2, 0.8, 0.5, 0.1];
    let (rounds, late) = (300_000, 100_000);
    let share_won = won(rounds, late, |_, arm, random| falls(random, means[arm]));
    // For as long as nothing is known, arms are drawn evenly: a third of the rounds.
    let even = means.iter().sum::<f64>() / 10.0;
    let informed = 0.95 - GAMMA * (0.95 - even);
    let expected = (even + 2.0 * informed) / 3.0;
    assert!((share_won - expected).abs() < 0.02, "{share_won} where {expected} is expected");
}

#[test]
fn an_arm_that_was_the_worst_for_long_catches_up() {
    // Arm 9 is the worst for 200,000 rounds, then the best: the floor bounds how long that takes.
    let half = 200_000;
    let wins = |round: usize, arm: usize, random| {
        let is_late = round >= half;
        falls(random, if (arm == 9) == is_late { 0.9 } else { 0.3 })
    };
    let share_won = won(2 * half, 0, wins);
    // In the second half, the best arm is there but for exploration and for the time to climb 32 bits.
    assert!(share_won > 0.8, "{share_won}");
}

//! Regret on adversarial and stochastic sequences, against the papers' bounds and against playing without forgetting.

use ccplane_bandit::{Advised, Draw, Exp3, Exp3Config, Exp3Ix, Exp4, Forgetting, Ucb, UcbConfig};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::collections::VecDeque;

const ROUNDS: usize = 20_000;
const ARMS: usize = 5;
const SEEDS: u64 = 8;

fn uniform(random: &mut ChaCha8Rng) -> f64 {
    f64::from(random.next_u32()) / f64::from(u32::MAX)
}

/// Rewards of every arm in every round, fixed before the first draw.
type Sequence = Vec<[f64; ARMS]>;

/// Arm 2 is the best by 0.2, all are Bernoulli.
fn stochastic(seed: u64) -> Sequence {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let means = [0.3, 0.4, 0.6, 0.4, 0.2];
    (0..ROUNDS).map(|_| means.map(|mean| f64::from(uniform(&mut chance) < mean))).collect()
}

/// Arm 0 pays for the first third, then arm 4 pays more often: who settles early loses.
fn adversarial() -> Sequence {
    let row = |t: usize| {
        let mut row = [0.0; ARMS];
        row[1] = f64::from(u8::from(t.is_multiple_of(2)));
        row[0] = f64::from(u8::from(t < ROUNDS / 3));
        row[4] = f64::from(u8::from(t >= ROUNDS / 3 && !t.is_multiple_of(10)));
        row
    };
    (0..ROUNDS).map(row).collect()
}

/// Each tenth has another best arm, by 0.5; all are Bernoulli.
fn rotating(seed: u64) -> Sequence {
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    let row = |t: usize| {
        std::array::from_fn(|arm| {
            let mean = if arm == t * 10 / ROUNDS % ARMS { 0.9 } else { 0.4 };
            f64::from(u8::from(uniform(&mut chance) < mean))
        })
    };
    (0..ROUNDS).map(row).collect()
}

fn best(of: &Sequence) -> f64 {
    (0..ARMS).map(|arm| of.iter().map(|row| row[arm]).sum()).fold(0.0, f64::max)
}

/// The best arm of each tenth.
fn best_switching(of: &Sequence) -> f64 {
    of.chunks(ROUNDS / 10).map(|part| best(&part.to_vec())).sum()
}

/// The mean gain over seeds; rewards come so many rounds late.
fn gain<B: Clone>(
    of: &Sequence,
    start: &B,
    late: usize,
    draw: impl Fn(&B, &mut ChaCha8Rng) -> Draw,
    observe: impl Fn(&mut B, Draw, f64),
) -> f64 {
    let mut sum = 0.0;
    for seed in 0..SEEDS {
        let (mut bandit, mut chance) = (start.clone(), ChaCha8Rng::seed_from_u64(seed));
        let mut waiting = VecDeque::new();
        for row in of {
            let drawn = draw(&bandit, &mut chance);
            sum += row[drawn.arm];
            waiting.push_back((drawn, row[drawn.arm]));
            if waiting.len() > late
                && let Some((drawn, reward)) = waiting.pop_front()
            {
                observe(&mut bandit, drawn, reward);
            }
        }
    }
    sum / SEEDS as f64
}

fn exp3(of: &Sequence, config: Exp3Config, late: usize) -> f64 {
    let start = Exp3::new(ARMS, config).unwrap();
    gain(of, &start, late, |b, chance| b.draw(chance), |b, drawn, reward| b.observe(drawn, reward).unwrap())
}

fn ucb(of: &Sequence, forgetting: Forgetting) -> f64 {
    let start = Ucb::new(ARMS, UcbConfig { forgetting, exploration: 0.6, spread: 0.5 }).unwrap();
    let draw = |b: &Ucb, _: &mut ChaCha8Rng| Draw { arm: b.choose(), probability: 1.0 };
    gain(of, &start, 0, draw, |b, drawn, reward| b.observe(drawn.arm, reward).unwrap())
}

/// Corollary 3.2: at most 2.63 sqrt(g K ln K) on average, whatever the rewards.
#[test]
fn exp3_keeps_its_bound() {
    let config = Exp3Config::for_rounds(ARMS, ROUNDS as u64);
    for of in [stochastic(1), adversarial()] {
        let k = ARMS as f64;
        let bound = 2.63 * (ROUNDS as f64 * k * k.ln()).sqrt();
        let regret = best(&of) - exp3(&of, config, 0);
        assert!(regret <= bound, "{regret} > {bound}");
        // A uniform draw would not keep it.
        let mean: f64 = of.iter().flatten().sum::<f64>() / k;
        assert!(best(&of) - mean > bound);
    }
}

/// Delays cost at most their length a few times over (Joulani et al., theorem 3, in order of magnitude).
#[test]
fn rewards_that_come_late_cost_little() {
    let config = Exp3Config::for_rounds(ARMS, ROUNDS as u64);
    let of = stochastic(2);
    let (now, late) = (exp3(&of, config, 0), exp3(&of, config, 200));
    assert!(now - late < 800.0, "{now} {late}");
}

/// Theorem 1 holds for each run, not only on average.
#[test]
fn exp3ix_keeps_its_bound_in_every_run() {
    for of in [stochastic(3), adversarial()] {
        let start = Exp3Ix::new(ARMS, Exp3Ix::rate_for(ARMS, ROUNDS as u64)).unwrap();
        let (k, t, delta) = (ARMS as f64, ROUNDS as f64, 0.01f64);
        let root = (2.0 * k * t * k.ln()).sqrt();
        let bound = 2.0 * root + ((2.0 * k * t / k.ln()).sqrt() + 1.0) * (2.0 / delta).ln();
        for seed in 0..SEEDS {
            let (mut bandit, mut chance) = (start.clone(), ChaCha8Rng::seed_from_u64(seed));
            let mut sum = 0.0;
            for row in &of {
                let drawn = bandit.draw(&mut chance);
                sum += row[drawn.arm];
                bandit.observe(drawn, row[drawn.arm]).unwrap();
            }
            let regret = best(&of) - sum;
            assert!(regret <= bound, "{regret} > {bound}");
        }
    }
}

/// A share (section 8) or a discount finds the new best arm after a change, and plain Exp3 is late.
#[test]
fn shares_and_discounts_follow_a_change() {
    let of = adversarial();
    let gamma = 0.05;
    let plain = exp3(&of, Exp3Config { gamma, share: 0.0, discount: 1.0 }, 0);
    let sharing = exp3(&of, Exp3Config { gamma, share: 1.0 / ROUNDS as f64, discount: 1.0 }, 0);
    let forgetting = exp3(&of, Exp3Config { gamma, share: 0.0, discount: 0.999 }, 0);
    let switching = best_switching(&of);
    // Corollary 8.3's bound for ten parts.
    let k = ARMS as f64;
    let bound = 2.63 * (k * ROUNDS as f64 * (10.0 * (k * ROUNDS as f64).ln() + std::f64::consts::E)).sqrt();
    assert!(switching - sharing <= bound, "{switching} {sharing} {bound}");
    assert!(sharing > plain + 500.0 && forgetting > plain + 500.0, "{plain} {sharing} {forgetting}");
}

/// The new best arm is found with a discount of 1 - 1/(4 sqrt(T/P)), for P changes. So it is with a window of some 2
/// sqrt(T ln T/P).
#[test]
fn ucb_that_forgets_follows_changes() {
    let of = rotating(5);
    let t = ROUNDS as f64;
    let discounted = ucb(&of, Forgetting::Discount(1.0 - 1.0 / (4.0 * (t / 10.0).sqrt())));
    let windowed = ucb(&of, Forgetting::Window((2.0 * (t * t.ln() / 10.0).sqrt()) as usize));
    let switching = best_switching(&of);
    assert!(
        discounted > 0.85 * switching && windowed > 0.85 * switching,
        "{discounted} {windowed} {switching}"
    );
    // Where nothing changes, UCB1's regret is logarithmic: a fiftieth of all rounds here.
    let steady = stochastic(4);
    assert!(best(&steady) - ucb(&steady, Forgetting::Discount(1.0)) < t / 50.0);
}

/// After a long time in which arm 2 was the best, counts its draws in the last tenth of all rounds.
#[test]
fn ucb_that_forgets_leaves_an_arm_that_has_become_bad_and_ucb1_does_not() {
    let stays = |forgetting| {
        let mut bandit = Ucb::new(ARMS, UcbConfig { forgetting, exploration: 0.6, spread: 0.5 }).unwrap();
        let mut chance = ChaCha8Rng::seed_from_u64(1);
        let mut stays = 0;
        for t in 0..ROUNDS {
            let arm = bandit.choose();
            stays += usize::from(arm == 2 && t >= ROUNDS * 9 / 10);
            let mean = match arm {
                2 if t < ROUNDS * 8 / 10 => 0.9,
                0 => 0.5,
                _ => 0.2,
            };
            bandit.observe(arm, f64::from(u8::from(uniform(&mut chance) < mean))).unwrap();
        }
        stays * 1000 / ROUNDS
    };
    assert!(stays(Forgetting::Discount(1.0)) > 90);
    assert!(stays(Forgetting::Discount(0.995)) < 30);
    assert!(stays(Forgetting::Window(1000)) < 30);
}

/// Two experts look at a feature that says which arm is good; the others do not. Theorem 7.1's bound is kept, and the draws gain
/// what no single arm does.
#[test]
fn exp4_finds_the_experts_who_see_the_path() {
    let (experts, gamma) = (6usize, 0.05);
    let mut exp4 = Exp4::new(ARMS, experts, gamma).unwrap();
    let mut chance = ChaCha8Rng::seed_from_u64(7);
    let (mut gained, mut of_best_expert) = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let feature = chance.next_u32() as usize % ARMS;
        let sure = |arm: usize| {
            let mut of = vec![0.0; ARMS];
            of[arm] = 1.0;
            of
        };
        let advice: Vec<Vec<f64>> = (0..experts)
            .map(|expert| if expert == 3 { sure(feature) } else { sure((expert * 2) % ARMS) })
            .collect();
        let drawn: Advised = exp4.draw(&advice, &mut chance).unwrap();
        let pays = |arm: usize| if arm == feature { 0.9 } else { 0.3 };
        gained += pays(drawn.draw.arm);
        of_best_expert += 0.9;
        exp4.observe(&drawn, pays(drawn.draw.arm)).unwrap();
    }
    let bound =
        (std::f64::consts::E - 1.0) * gamma * of_best_expert + ARMS as f64 * (experts as f64).ln() / gamma;
    assert!(of_best_expert - gained <= bound, "{gained} of {of_best_expert}");
    assert!(exp4.trust()[3] > 0.99, "{:?}", exp4.trust());
}

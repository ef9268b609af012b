//! Tests that invalid input is refused and changes nothing.

use ccplane_bandit::{
    BanditError, Draw, Exp3, Exp3Config, Exp3Ix, Exp4, Forgetting, MAX_ARMS, Ucb, UcbConfig,
};
use proptest::prelude::*;

const CONFIG: Exp3Config = Exp3Config { gamma: 0.1, share: 0.0, discount: 1.0 };
const UCB: UcbConfig = UcbConfig { forgetting: Forgetting::Window(10), exploration: 0.5, spread: 1.0 };

#[test]
fn numbers_outside_their_ranges_are_refused_by_name() {
    for count in [0, MAX_ARMS + 1] {
        assert_eq!(Exp3::new(count, CONFIG).unwrap_err(), BanditError::Arms { found: count });
        assert_eq!(Ucb::new(count, UCB).unwrap_err(), BanditError::Arms { found: count });
    }
    assert!(
        Exp3::new(2, Exp3Config { gamma: 0.0, ..CONFIG }).unwrap_err().to_string().starts_with("gamma is 0")
    );
    assert!(Exp3::new(2, Exp3Config { gamma: f64::NAN, ..CONFIG }).is_err());
    assert!(
        Exp3::new(2, Exp3Config { discount: 1.5, ..CONFIG }).unwrap_err().to_string().starts_with("discount")
    );
    assert!(Exp3Ix::new(2, 2.0).unwrap_err().to_string().starts_with("eta is 2"));
    assert_eq!(Exp4::new(2, 0, 0.1).unwrap_err(), BanditError::Experts { found: 0 });
    assert!(Ucb::new(2, UcbConfig { forgetting: Forgetting::Window(0), ..UCB }).is_err());
    assert_eq!(
        Ucb::new(3, UCB).unwrap().with_priors(&[0.5], 1.0).unwrap_err(),
        BanditError::Length { found: 1, expected: 3 }
    );
}

#[test]
fn a_refused_reward_or_advice_changes_nothing() {
    let mut exp3 = Exp3::new(2, CONFIG).unwrap();
    let before = exp3.clone();
    let draw = |arm, probability| Draw { arm, probability };
    assert_eq!(exp3.observe(draw(2, 0.5), 1.0).unwrap_err(), BanditError::NoArm { found: 2, arms: 2 });
    assert_eq!(exp3.observe(draw(0, 0.0), 1.0).unwrap_err(), BanditError::Probability { found: 0.0 });
    assert_eq!(exp3.observe(draw(0, 0.5), 1.5).unwrap_err(), BanditError::Reward { found: 1.5 });
    assert!(exp3.observe(draw(0, 0.5), f64::NAN).is_err());
    assert_eq!(exp3, before);
    let exp4 = Exp4::new(2, 2, 0.1).unwrap();
    let advice = [vec![0.5, 0.5], vec![0.9, 0.9]];
    assert_eq!(exp4.probabilities(&advice).unwrap_err(), BanditError::Advice { expert: 1 });
    assert_eq!(exp4.probabilities(&advice[..1]).unwrap_err(), BanditError::Length { found: 1, expected: 2 });
}

#[test]
fn priors_are_drawn_first_and_worn_off() {
    let config = UcbConfig { forgetting: Forgetting::Discount(0.9), exploration: 0.0, spread: 0.0 };
    let mut ucb = Ucb::new(3, config).unwrap().with_priors(&[0.2, 0.9, 0.5], 1.0).unwrap();
    assert_eq!(ucb.choose(), 1);
    (0..5).for_each(|_| ucb.observe(1, 0.1).unwrap());
    assert_eq!(ucb.choose(), 2);
    assert!(ucb.estimates()[1].mean().unwrap() < 0.3);
}

proptest! {
    /// However long and extreme the rewards, probabilities stay a distribution with gamma's floor.
    #[test]
    fn distributions_stay_distributions(
        arms in 1..20usize,
        rounds in prop::collection::vec((0..20usize, 1e-6..1.0f64, 0.0..=1.0f64), 0..500),
        share in prop_oneof![Just(0.0), 0.0..1.0f64],
        discount in prop_oneof![Just(1.0), 0.5..1.0f64],
    ) {
        let mut exp3 = Exp3::new(arms, Exp3Config { gamma: 0.1, share, discount }).unwrap();
        let mut ix = Exp3Ix::new(arms, 0.3).unwrap();
        for (arm, probability, reward) in rounds {
            let drawn = Draw { arm: arm % arms, probability };
            exp3.observe(drawn, reward).unwrap();
            ix.observe(drawn, reward).unwrap();
            let (of_exp3, of_ix) = (exp3.probabilities(), ix.probabilities());
            prop_assert!((of_exp3.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!((of_ix.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(of_exp3.iter().all(|p| *p >= 0.1 / arms as f64 - 1e-12), "{of_exp3:?}");
        }
    }
}

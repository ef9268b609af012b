//! Random loss, alone, in bursts, and in outages.

use rand_chacha::ChaCha8Rng;

use super::random::{Chance, Stream, exponential_ns};
use super::{BurstLoss, Impairments, Loss, Outages};

const NS_PER_US: f64 = 1e3;

/// The processes that lose packets.
#[derive(Debug)]
pub(crate) struct Losses {
    independent: (Chance, ChaCha8Rng),
    bursts: Option<Bursts>,
    outages: Option<Switch>,
}

impl Losses {
    pub(crate) fn new(loss: Loss, impairments: &Impairments, now_ns: u64) -> Losses {
        let seed = impairments.seed;
        Losses {
            independent: independent(loss),
            bursts: impairments.burst_loss.map(|burst| Bursts::new(burst, Stream::BurstLoss.of(seed))),
            outages: impairments
                .outages
                .map(|outages| Switch::new(outages, Stream::Outages.of(seed), now_ns)),
        }
    }

    /// Changes the independent loss and begins its sequence anew.
    pub(crate) fn set_independent(&mut self, loss: Loss) {
        self.independent = independent(loss);
    }

    /// Whether the packet that enters at `now_ns` is lost. Each process sees every packet, so that none shifts another's sequence.
    pub(crate) fn strike(&mut self, now_ns: u64) -> bool {
        let (chance, random) = &mut self.independent;
        let alone = chance.strikes(random);
        let burst = self.bursts.as_mut().is_some_and(Bursts::strike);
        let off = self.outages.as_mut().is_some_and(|switch| switch.is_off(now_ns));
        alone || burst || off
    }
}

fn independent(loss: Loss) -> (Chance, ChaCha8Rng) {
    (Chance::of(loss.probability), Stream::Loss.of(loss.seed))
}

/// Gilbert's and Elliott's two states.
#[derive(Debug)]
struct Bursts {
    /// Good, bad: the chances to leave the state and to lose a packet in it.
    states: [(Chance, Chance); 2],
    bad: bool,
    random: ChaCha8Rng,
}

impl Bursts {
    fn new(burst: BurstLoss, random: ChaCha8Rng) -> Bursts {
        let good = (Chance::of(burst.to_bad), Chance::of(burst.loss_good));
        let bad = (Chance::of(burst.to_good), Chance::of(burst.loss_bad));
        Bursts { states: [good, bad], bad: false, random }
    }

    fn strike(&mut self) -> bool {
        let [good, bad] = self.states;
        let (leave, lose) = if self.bad { bad } else { good };
        let lost = lose.strikes(&mut self.random);
        self.bad ^= leave.strikes(&mut self.random);
        lost
    }
}

/// On and off in turn.
#[derive(Debug)]
struct Switch {
    outages: Outages,
    off: bool,
    until_ns: u64,
    random: ChaCha8Rng,
}

impl Switch {
    fn new(outages: Outages, random: ChaCha8Rng, now_ns: u64) -> Switch {
        // Off until now: the first look turns it on.
        Switch { outages, off: true, until_ns: now_ns, random }
    }

    fn is_off(&mut self, now_ns: u64) -> bool {
        let Outages { mean_on_us, mean_off_us } = self.outages;
        if mean_on_us == 0 || mean_off_us == 0 {
            return mean_on_us == 0;
        }
        while self.until_ns <= now_ns {
            self.off = !self.off;
            let mean_us = if self.off { mean_off_us } else { mean_on_us };
            let lasts_ns = exponential_ns(&mut self.random, mean_us as f64 * NS_PER_US);
            // At least a microsecond, which bounds the work after a long pause.
            self.until_ns = self.until_ns.saturating_add(lasts_ns.max(NS_PER_US as u64));
        }
        self.off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(loss: Loss, impairments: Impairments, count: u64, every_ns: u64) -> Vec<u64> {
        let mut losses = Losses::new(loss, &impairments, 0);
        (0..count).filter(|n| losses.strike(n * every_ns)).collect()
    }

    #[test]
    fn none_loses_none_and_certainty_loses_all() {
        assert_eq!(lost(Loss::default(), Impairments::default(), 1000, 1), [0; 0]);
        assert_eq!(lost(Loss { probability: 1.0, seed: 3 }, Impairments::default(), 1000, 1).len(), 1000);
    }

    #[test]
    fn bursts_have_their_mean_length_and_share() {
        let burst_loss = Some(BurstLoss { to_bad: 0.01, to_good: 0.25, loss_good: 0.0, loss_bad: 1.0 });
        let lost =
            lost(Loss::default(), Impairments { burst_loss, seed: 5, ..Default::default() }, 200_000, 1);
        // 0.01 / 0.26 of all packets, in bursts of four.
        assert!((7_200..8_200).contains(&lost.len()), "{}", lost.len());
        let bursts = 1 + lost.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        let mean = lost.len() as f64 / bursts as f64;
        assert!((3.7..4.3).contains(&mean), "{mean}");
    }

    #[test]
    fn a_switch_is_off_for_its_share() {
        let outages = Some(Outages { mean_on_us: 30_000, mean_off_us: 10_000 });
        let impairments = Impairments { outages, seed: 2, ..Default::default() };
        let lost = lost(Loss::default(), impairments, 200_000, 100_000);
        assert!((45_000..55_000).contains(&lost.len()), "a quarter of 20 s: {}", lost.len());
        assert!(lost[0] > 0, "it begins on");
        // An outage lasts 10 ms, 100 packets.
        let switches = 1 + lost.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        let mean = lost.len() / switches;
        assert!((85..115).contains(&mean), "{mean}");
    }

    #[test]
    fn a_link_with_a_mean_of_zero_is_never_on_or_never_off() {
        let count = |mean_on_us, mean_off_us| {
            let outages = Some(Outages { mean_on_us, mean_off_us });
            lost(Loss::default(), Impairments { outages, ..Default::default() }, 100, 1_000_000).len()
        };
        assert_eq!((count(0, 1_000), count(1_000, 0)), (100, 0));
    }

    #[test]
    fn processes_do_not_shift_each_other() {
        let loss = Loss { probability: 0.1, seed: 9 };
        let alone = lost(loss, Impairments::default(), 1000, 1_000);
        let outages = Some(Outages { mean_on_us: 100, mean_off_us: 100 });
        let both = lost(loss, Impairments { outages, seed: 9, ..Default::default() }, 1000, 1_000);
        assert!(alone.iter().all(|n| both.contains(n)) && both.len() > alone.len());
    }
}

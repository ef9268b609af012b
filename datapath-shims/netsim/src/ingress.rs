//! Impairments of packets before a link's queue: copies, burst losses, a policer, jitter, reordering.
//!
//! In the emulator's order: a packet may be copied; each copy may be lost, alone or in a burst; the policer may drop it; what is left
//! travels on, jittered or held back. Each process draws from a stream of its own.

use crate::config::{BurstLoss, Ingress, PPM, Policer};
use crate::workload::Random;

/// Streams of the seed for these processes, past those of cross traffic.
const INGRESS_STREAM: u64 = 1 << 35;
/// Streams of one process: one for each link.
const STREAMS_OF_PROCESS: u64 = 1 << 8;
const BITS_NS_PER_BYTE: u64 = 8 * 1_000_000_000;

/// The processes of one link.
pub(crate) struct Processes {
    duplicate: Chance,
    bursts: Option<Bursts>,
    bucket: Option<TokenBucket>,
    jitter: Option<(u64, Random)>,
    hold: Option<(Chance, u64)>,
}

/// The way of a packet to the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IngressOutcome {
    /// Lost in a burst.
    Lost,
    /// Dropped by the policer.
    Policed,
    /// The packet continues at once.
    Straight,
    /// The packet continues after this many nanoseconds, behind those before it.
    Behind(u64),
    /// The packet continues after this many nanoseconds; others may overtake it.
    Held(u64),
}

impl Processes {
    pub(crate) fn new(config: &Ingress, seed: u64, index: usize) -> Processes {
        let stream =
            |process: u64| Random::new(seed, INGRESS_STREAM + process * STREAMS_OF_PROCESS + index as u64);
        let hold = config.reorder.map(|r| (Chance::new(r.ppm, stream(2)), r.hold_ns));
        Processes {
            duplicate: Chance::new(config.duplicate_ppm, stream(0)),
            bursts: config.burst_loss.map(|burst| Bursts::new(burst, stream(1))),
            bucket: config.policer.map(TokenBucket::new),
            jitter: (config.jitter_ns > 0).then(|| (config.jitter_ns, stream(3))),
            hold,
        }
    }

    /// Whether the next packet comes twice.
    pub(crate) fn copies(&mut self) -> bool {
        self.duplicate.strikes()
    }

    /// Returns the way of a packet of `bytes` that was not lost on its own.
    pub(crate) fn way(&mut self, now_ns: u64, bytes: u64) -> IngressOutcome {
        if self.bursts.as_mut().is_some_and(Bursts::strike) {
            return IngressOutcome::Lost;
        }
        if self.bucket.as_mut().is_some_and(|bucket| !bucket.passes(now_ns, bytes)) {
            return IngressOutcome::Policed;
        }
        let further_ns = self.jitter.as_mut().map(|(max_ns, random)| random.up_to(*max_ns));
        if let Some((chance, hold_ns)) = &mut self.hold
            && chance.strikes()
        {
            return IngressOutcome::Held(further_ns.unwrap_or(0) + *hold_ns);
        }
        further_ns.map_or(IngressOutcome::Straight, IngressOutcome::Behind)
    }
}

struct Chance {
    /// The probability in 2^-32.
    threshold: u64,
    random: Random,
}

impl Chance {
    fn new(ppm: u32, random: Random) -> Chance {
        Chance { threshold: threshold(ppm), random }
    }

    fn strikes(&mut self) -> bool {
        strikes(self.threshold, &mut self.random)
    }
}

/// A probability in 2^-32.
pub(crate) fn threshold(ppm: u32) -> u64 {
    (u64::from(ppm) << 32) / u64::from(PPM)
}

/// Draws, unless the outcome is certain to be no.
fn strikes(threshold: u64, random: &mut Random) -> bool {
    threshold > 0 && u64::from(random.share()) < threshold
}

/// Gilbert's and Elliott's two states; it begins good.
struct Bursts {
    /// Good, bad: the chances to leave the state and to lose a packet in it, of 2^32.
    states: [(u64, u64); 2],
    bad: bool,
    random: Random,
}

impl Bursts {
    fn new(burst: BurstLoss, random: Random) -> Bursts {
        let BurstLoss { to_bad_ppm, to_good_ppm, loss_good_ppm, loss_bad_ppm } = burst;
        let good = (threshold(to_bad_ppm), threshold(loss_good_ppm));
        let bad = (threshold(to_good_ppm), threshold(loss_bad_ppm));
        Bursts { states: [good, bad], bad: false, random }
    }

    fn strike(&mut self) -> bool {
        let (leave, lose) = self.states[usize::from(self.bad)];
        let lost = strikes(lose, &mut self.random);
        self.bad ^= strikes(leave, &mut self.random);
        lost
    }
}

/// A bucket of tokens in units of a bit times a nanosecond, so that no rounding adds up; it begins full.
struct TokenBucket {
    bit_per_s: u64,
    size: u64,
    tokens: u64,
    filled_ns: u64,
}

impl TokenBucket {
    fn new(policer: Policer) -> TokenBucket {
        // At most 2^30 bytes * 8 * 10^9: below 2^63.
        let size = policer.burst_bytes * BITS_NS_PER_BYTE;
        TokenBucket { bit_per_s: policer.bit_per_s, size, tokens: size, filled_ns: 0 }
    }

    fn passes(&mut self, now_ns: u64, bytes: u64) -> bool {
        let gained = (now_ns - self.filled_ns).saturating_mul(self.bit_per_s);
        self.filled_ns = now_ns;
        self.tokens = self.tokens.saturating_add(gained).min(self.size);
        let cost = bytes * BITS_NS_PER_BYTE;
        let passes = cost <= self.tokens;
        self.tokens -= if passes { cost } else { 0 };
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Reorder;
    use proptest::prelude::*;

    fn ways(config: Ingress, count: u64, every_ns: u64) -> Vec<IngressOutcome> {
        let mut processes = Processes::new(&config, 7, 0);
        (0..count).map(|n| processes.way(n * every_ns, 1500)).collect()
    }

    #[test]
    fn bursts_have_their_share_and_mean_length() {
        let burst =
            BurstLoss { to_bad_ppm: 10_000, to_good_ppm: 250_000, loss_good_ppm: 0, loss_bad_ppm: PPM };
        let ways = ways(Ingress { burst_loss: Some(burst), ..Ingress::default() }, 200_000, 1);
        let lost: Vec<usize> = (0..ways.len()).filter(|n| ways[*n] == IngressOutcome::Lost).collect();
        // 0.01 / 0.26 of all packets, in bursts of four.
        assert!((7_200..8_200).contains(&lost.len()), "{}", lost.len());
        let bursts = 1 + lost.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        let mean = lost.len() as f64 / bursts as f64;
        assert!((3.7..4.3).contains(&mean), "{mean}");
    }

    #[test]
    fn shares_and_delays_are_those_that_were_asked_for() {
        let reorder = Some(Reorder { ppm: 20_000, hold_ns: 5_000_000 });
        let config = Ingress { reorder, jitter_ns: 1_000_000, duplicate_ppm: 30_000, ..Ingress::default() };
        let ways = ways(config, 100_000, 1);
        let held = ways.iter().filter(|w| matches!(w, IngressOutcome::Held(5_000_000..=6_000_000))).count();
        assert!((1_850..2_150).contains(&held), "{held}");
        let behind: Vec<u64> = ways
            .iter()
            .filter_map(|w| if let IngressOutcome::Behind(ns) = w { Some(*ns) } else { None })
            .collect();
        assert_eq!(behind.len() + held, 100_000);
        let mean = behind.iter().sum::<u64>() / behind.len() as u64;
        assert!((490_000..510_000).contains(&mean) && behind.iter().all(|ns| *ns <= 1_000_000), "{mean}");
        let mut processes = Processes::new(&config, 7, 0);
        let twice = (0..100_000).filter(|_| processes.copies()).count();
        assert!((2_850..3_150).contains(&twice), "{twice}");
    }

    #[test]
    fn a_burst_passes_the_policer_and_then_its_rate() {
        // 8 Mb/s: a byte a microsecond.
        let mut bucket = TokenBucket::new(Policer { bit_per_s: 8_000_000, burst_bytes: 3_000 });
        assert_eq!([0, 0, 0].map(|at_ns| bucket.passes(at_ns, 1_500)), [true, true, false]);
        assert_eq!([1_499_999, 1_500_000].map(|at_ns| bucket.passes(at_ns, 1_500)), [false, true]);
        assert_eq!([60_000_000; 3].map(|at_ns| bucket.passes(at_ns, 1_500)), [true, true, false]);
    }

    proptest! {
        #[test]
        fn a_policer_never_passes_more_than_burst_and_rate(
            bit_per_s in 1_000u64..1_000_000_000, burst_bytes in 1_514u64..100_000,
            packets in prop::collection::vec((0u64..1_000_000, 1u64..=1_504), 1..200),
        ) {
            let mut bucket = TokenBucket::new(Policer { bit_per_s, burst_bytes });
            let (mut now_ns, mut bits_ns) = (0u64, 0u128);
            for (after_ns, bytes) in packets {
                now_ns += after_ns;
                if bucket.passes(now_ns, bytes) {
                    bits_ns += u128::from(bytes * BITS_NS_PER_BYTE);
                }
                let most = u128::from(burst_bytes * BITS_NS_PER_BYTE) + u128::from(bit_per_s) * u128::from(now_ns);
                prop_assert!(bits_ns <= most);
            }
        }
    }
}

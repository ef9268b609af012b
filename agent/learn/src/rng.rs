//! Random numbers by counter: what a stream gives depends on its name and on how many were drawn, on nothing else.

use crate::math;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers (SplitMix64: Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rng {
    key: u64,
    drawn: u64,
}

impl Rng {
    /// The stream of that name under `seed`.
    pub fn new(seed: u64, name: &[u64]) -> Rng {
        let mut key = mix(seed.wrapping_add(GOLDEN));
        for word in name {
            key = mix(key.wrapping_mul(GOLDEN) ^ mix(word.wrapping_add(GOLDEN)));
        }
        Rng { key, drawn: 0 }
    }

    /// Returns the key and the count of numbers drawn, which are the whole state.
    pub fn state(&self) -> (u64, u64) {
        (self.key, self.drawn)
    }

    /// The stream in that [state](Rng::state).
    pub fn from_state((key, drawn): (u64, u64)) -> Rng {
        Rng { key, drawn }
    }

    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        mix(self.key.wrapping_add(self.drawn.wrapping_mul(GOLDEN)))
    }

    /// A number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// A whole number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        // Lemire's product; its bias is n / 2^64.
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// A number of the standard normal distribution (Marsaglia's polar method).
    pub fn normal(&mut self) -> f64 {
        loop {
            let (x, y) = (self.uniform() * 2.0 - 1.0, self.uniform() * 2.0 - 1.0);
            let s = x * x + y * y;
            if s < 1.0 && s > 0.0 {
                return x * (-2.0 * math::ln(s) / s).sqrt();
            }
        }
    }

    /// Puts the elements into a random order.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for n in (1..slice.len()).rev() {
            slice.swap(n, self.below(n + 1));
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_resume() {
        let mut a = Rng::new(1, &[2, 3]);
        let mut b = Rng::new(1, &[3, 2]);
        assert_ne!(a.bits(), b.bits());
        a.normal();
        let mut again = Rng::from_state(a.state());
        assert_eq!(a.bits(), again.bits());
    }

    #[test]
    fn normal_has_the_moments_of_one() {
        let mut rng = Rng::new(7, &[]);
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let moment = |k: i32| draws.iter().map(|x| x.powi(k)).sum::<f64>() / f64::from(n);
        assert!(moment(1).abs() < 0.01, "{}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
        assert!((moment(4) - 3.0).abs() < 0.1, "{}", moment(4));
    }

    #[test]
    fn orders_are_fair() {
        let mut rng = Rng::new(3, &[]);
        let mut first = [0_u32; 5];
        for _ in 0..50_000 {
            let mut order = [0, 1, 2, 3, 4];
            rng.shuffle(&mut order);
            first[order[0]] += 1;
        }
        assert!(first.iter().all(|n| (9_500..10_500).contains(n)), "{first:?}");
        assert_eq!(rng.below(0), 0);
    }
}

//! Landmarks: the preferences that a policy is trained on before it meets any other.

use super::Preference;

/// Steps of a weight from 0 to 1.
const STEPS: u8 = 10;
/// Landmarks: all weights that are multiples of a tenth and at least a tenth (Ma et al., EuroSys 2022, section 6.1).
pub const LANDMARKS: usize = 36;
/// The first of them: those on which training begins.
pub const PIVOTS: usize = 3;

/// All landmarks in the order of their transfer: first the pivots, each nearly all throughput, latency or loss. Then, as
/// in a breadth-first search from them, those a tenth away from an earlier one: each is learned by a policy that already
/// knows a neighbour.
pub fn landmarks() -> [Preference; LANDMARKS] {
    let most = STEPS - 2;
    let mut order = vec![[most, 1, 1], [1, most, 1], [1, 1, most]];
    let mut next = 0;
    while let Some(at) = order.get(next).copied() {
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let mut near = at;
            near[from] -= 1;
            near[to] += 1;
            if near[from] >= 1 && !order.contains(&near) {
                order.push(near);
            }
        }
        next += 1;
    }
    let weight = |tenths: u8| f32::from(tenths) / f32::from(STEPS);
    std::array::from_fn(|n| {
        let [throughput, latency, loss] = order.get(n).copied().unwrap_or_default().map(weight);
        Preference { throughput, latency, loss }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_an_earlier_neighbour() {
        let all = landmarks();
        for (n, landmark) in all.iter().enumerate() {
            assert!((landmark.weights().iter().sum::<f32>() - 1.0).abs() < 1e-6);
            assert!(landmark.weights().iter().all(|w| *w > 0.09), "{landmark:?}");
            assert!(all[..n].iter().all(|other| other.distance(landmark) > 0.19));
            let near = all[..n].iter().any(|other| other.distance(landmark) < 0.21);
            assert!(n < PIVOTS || near, "{landmark:?}");
        }
    }
}

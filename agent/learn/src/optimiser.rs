//! Optimisers by gradient: SGD, Adam, RMSProp, AdaGrad, Nadam. The same bits on every machine.

/// Decay of a gradient's mean.
const BETA_1: f32 = 0.9;
/// Decay of a squared gradient's mean: of Adam and Nadam, and of RMSProp.
const BETA_2: f32 = 0.999;
const RHO: f32 = 0.9;
/// The addend that keeps denominators from 0.
const EPSILON: f32 = 1e-7;

/// A rule by which parameters follow their gradient.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Optimiser {
    /// Stochastic gradient descent, without momentum.
    Sgd,
    /// Adam (Kingma and Ba, ICLR 2015, algorithm 1).
    Adam,
    /// RMSProp (Tieleman and Hinton 2012, lecture 6.5).
    RmsProp,
    /// AdaGrad (Duchi, Hazan and Singer, JMLR 12, 2011, with diagonal matrices).
    AdaGrad,
    /// Adam with Nesterov's momentum (Dozat, ICLR workshop 2016, with a constant decay).
    Nadam,
}

impl Optimiser {
    /// All optimisers, in the order in which they are named here.
    pub const ALL: [Optimiser; 5] =
        [Optimiser::Sgd, Optimiser::Adam, Optimiser::RmsProp, Optimiser::AdaGrad, Optimiser::Nadam];

    /// The optimiser's name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Optimiser::Sgd => "sgd",
            Optimiser::Adam => "adam",
            Optimiser::RmsProp => "rmsprop",
            Optimiser::AdaGrad => "adagrad",
            Optimiser::Nadam => "nadam",
        }
    }

    /// The usual learning rate: that of Keras, and 0.01 for AdaGrad, as in its first releases.
    pub const fn usual_rate(self) -> f32 {
        match self {
            Optimiser::Sgd | Optimiser::AdaGrad => 0.01,
            Optimiser::Adam | Optimiser::RmsProp | Optimiser::Nadam => 0.001,
        }
    }
}

/// An optimiser on its way, with what it remembers of each parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct Steps {
    optimiser: Optimiser,
    rate: f32,
    first: Vec<f32>,
    second: Vec<f32>,
    /// The powers of both decays so far.
    power_1: f64,
    power_2: f64,
}

impl Steps {
    /// Starts for so many parameters.
    pub fn new(optimiser: Optimiser, rate: f32, parameters: usize) -> Steps {
        let zero = vec![0.0; parameters];
        Steps { optimiser, rate, first: zero.clone(), second: zero, power_1: 1.0, power_2: 1.0 }
    }

    /// Takes one step down the gradient, which has a number for each parameter.
    pub fn step(&mut self, parameters: &mut [f32], gradient: &[f32]) {
        self.power_1 *= f64::from(BETA_1);
        self.power_2 *= f64::from(BETA_2);
        let Steps { optimiser, rate, .. } = *self;
        let unbiased = |power: f64| (1.0 / (1.0 - power)) as f32;
        let (now, next) = (unbiased(self.power_1), unbiased(self.power_1 * f64::from(BETA_1)));
        let squares = unbiased(self.power_2);
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((parameter, g), (first, second)) in parameters.iter_mut().zip(gradient).zip(moments) {
            let down = match optimiser {
                Optimiser::Sgd => *g,
                Optimiser::AdaGrad => {
                    *second += g * g;
                    g / (second.sqrt() + EPSILON)
                }
                Optimiser::RmsProp => {
                    *second = RHO * *second + (1.0 - RHO) * g * g;
                    g / (second.sqrt() + EPSILON)
                }
                Optimiser::Adam | Optimiser::Nadam => {
                    *first = BETA_1 * *first + (1.0 - BETA_1) * g;
                    *second = BETA_2 * *second + (1.0 - BETA_2) * g * g;
                    let mean = match optimiser {
                        Optimiser::Nadam => BETA_1 * *first * next + (1.0 - BETA_1) * g * now,
                        _ => *first * now,
                    };
                    mean / ((*second * squares).sqrt() + EPSILON)
                }
            };
            *parameter -= rate * down;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The papers' sums over all gradients so far, in their own form: nothing is kept between steps.
    fn direction(optimiser: Optimiser, g: &[f64]) -> f64 {
        let (t, last) = (g.len(), g[g.len() - 1]);
        let mean = |decay: f64, of: &dyn Fn(f64) -> f64| -> f64 {
            g.iter().enumerate().map(|(n, g)| (1.0 - decay) * decay.powi((t - 1 - n) as i32) * of(*g)).sum()
        };
        let power = |beta: f64, n: usize| 1.0 - beta.powi(n as i32);
        let square = |g: f64| g * g;
        let adam = |numerator: f64| numerator / ((mean(0.999, &square) / power(0.999, t)).sqrt() + 1e-7);
        match optimiser {
            Optimiser::Sgd => last,
            Optimiser::AdaGrad => last / (g.iter().map(|g| g * g).sum::<f64>().sqrt() + 1e-7),
            Optimiser::RmsProp => last / (mean(0.9, &square).sqrt() + 1e-7),
            Optimiser::Adam => adam(mean(0.9, &|g| g) / power(0.9, t)),
            Optimiser::Nadam => {
                adam(0.9 * mean(0.9, &|g| g) / power(0.9, t + 1) + 0.1 * last / power(0.9, t))
            }
        }
    }

    #[test]
    fn steps_are_those_of_the_papers() {
        let gradients = [0.3, -0.7, 1e-4, 2.0, 0.0, -0.05, 0.9, 0.9, -3.0, 0.2];
        for optimiser in Optimiser::ALL {
            let mut steps = Steps::new(optimiser, 0.1, 2);
            let (mut ours, mut theirs) = ([1.0_f32, 5.0], [1.0_f64, 5.0]);
            for n in 1..=gradients.len() {
                let so_far: Vec<f64> = gradients[..n].to_vec();
                // The second parameter's gradient has the other sign and another size.
                let other: Vec<f64> = so_far.iter().map(|g| -10.0 * g).collect();
                let g = so_far[n - 1] as f32;
                steps.step(&mut ours, &[g, -10.0 * g]);
                theirs[0] -= 0.1 * direction(optimiser, &so_far);
                theirs[1] -= 0.1 * direction(optimiser, &other);
                for (ours, theirs) in ours.iter().zip(theirs) {
                    assert!(
                        (f64::from(*ours) - theirs).abs() < 1e-4,
                        "{optimiser:?} step {n}: {ours}, {theirs}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_optimiser_comes_to_the_bottom_of_a_bowl() {
        for optimiser in Optimiser::ALL {
            let (mut at, mut steps) = ([3.0, -2.0], Steps::new(optimiser, 0.05, 2));
            for _ in 0..20_000 {
                let gradient = [at[0] - 1.0, 4.0 * (at[1] - 0.5)];
                steps.step(&mut at, &gradient);
            }
            assert!((at[0] - 1.0).abs() < 0.06 && (at[1] - 0.5).abs() < 0.06, "{optimiser:?}: {at:?}");
        }
    }
}

//! The papers' algorithms once more, written from their formulas in their own form: products of weights where the library adds
//! logarithms, and sums over the whole history where it keeps running ones. Nothing of the library is used.

/// Auer et al. 2002, figure 1, and figure 2 with a share: weights as they stand.
pub struct Exp3 {
    pub gamma: f64,
    pub alpha: f64,
    pub w: Vec<f64>,
}

impl Exp3 {
    pub fn p(&self) -> Vec<f64> {
        let (sum, k) = (self.w.iter().sum::<f64>(), self.w.len() as f64);
        self.w.iter().map(|w| (1.0 - self.gamma) * w / sum + self.gamma / k).collect()
    }

    /// `p`: the arm's probability when it was drawn.
    pub fn feed(&mut self, arm: usize, p: f64, x: f64) {
        let (sum, k) = (self.w.iter().sum::<f64>(), self.w.len() as f64);
        for i in 0..self.w.len() {
            let x_hat = if i == arm { x / p } else { 0.0 };
            self.w[i] =
                self.w[i] * (self.gamma * x_hat / k).exp() + std::f64::consts::E * self.alpha / k * sum;
        }
    }
}

/// Neu 2015, algorithm 1, from all losses so far.
pub struct Exp3Ix {
    pub eta: f64,
    pub arms: usize,
    pub fed: Vec<(usize, f64, f64)>,
}

impl Exp3Ix {
    pub fn p(&self) -> Vec<f64> {
        let gamma = self.eta / 2.0;
        let total = |i: usize| {
            self.fed.iter().filter(|f| f.0 == i).map(|(_, p, loss)| loss / (p + gamma)).sum::<f64>()
        };
        let w: Vec<f64> = (0..self.arms).map(|i| (-self.eta * total(i)).exp()).collect();
        let sum: f64 = w.iter().sum();
        w.into_iter().map(|w| w / sum).collect()
    }
}

/// Auer et al. 2002, figure 4.
pub struct Exp4 {
    pub gamma: f64,
    pub w: Vec<f64>,
}

impl Exp4 {
    pub fn p(&self, xi: &[Vec<f64>]) -> Vec<f64> {
        let (sum, k) = (self.w.iter().sum::<f64>(), xi[0].len());
        let of = |j: usize| (0..self.w.len()).map(|i| self.w[i] * xi[i][j] / sum).sum::<f64>();
        (0..k).map(|j| (1.0 - self.gamma) * of(j) + self.gamma / k as f64).collect()
    }

    pub fn feed(&mut self, xi: &[Vec<f64>], arm: usize, p: f64, x: f64) {
        let k = xi[0].len();
        for (w, xi) in self.w.iter_mut().zip(xi) {
            let y_hat: f64 = (0..k).map(|j| xi[j] * if j == arm { x / p } else { 0.0 }).sum();
            *w *= (self.gamma * y_hat / k as f64).exp();
        }
    }
}

/// Garivier and Moulines 2011, equations of sections 3.1 (`discount`) and 3.2 (`window`), from the whole history.
pub struct Ucb {
    pub discount: f64,
    pub window: usize,
    pub b: f64,
    pub xi: f64,
    pub arms: usize,
    pub history: Vec<(usize, f64)>,
}

impl Ucb {
    pub fn choose(&self) -> usize {
        let t = self.history.len();
        let from = t.saturating_sub(self.window);
        let weight = |s: usize| self.discount.powi((t - 1 - s) as i32);
        let mut best = (0, f64::NEG_INFINITY);
        let n_all: f64 = (from..t).map(weight).sum();
        for i in 0..self.arms {
            let own = || (from..t).filter(|s| self.history[*s].0 == i);
            let n: f64 = own().map(weight).sum();
            let sum: f64 = own().map(|s| weight(s) * self.history[s].1).sum();
            let twice = if self.discount < 1.0 { 2.0 } else { 1.0 };
            let bound = if own().next().is_none() {
                f64::INFINITY
            } else {
                sum / n + twice * self.b * (self.xi * n_all.max(1.0).ln() / n).sqrt()
            };
            if bound > best.1 {
                best = (i, bound);
            }
        }
        best.0
    }
}

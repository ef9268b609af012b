//! Fits a tree of linear models: splits where two lines err least, best first.

use crate::Student;
use crate::collect::Sample;
use crate::inputs::Input;
use crate::student::Node;

const ONE_Q16: f64 = 65536.0;
/// Added to the diagonal, per sample: keeps weights of inputs that hardly vary small.
const RIDGE: f64 = 1e-4;
/// Places where a node may be split, less one.
const BINS: usize = 16;
/// Samples of a leaf, at least.
const LEAST_SAMPLES: f64 = 100.0;
/// An input is taken only if it lowers the error by this share.
const LEAST_GAIN: f64 = 0.002;

/// Sums by which lines are fitted: of products of (1, x...) with themselves and with y.
#[derive(Clone)]
struct Sums {
    width: usize,
    n: f64,
    xx: Vec<f64>,
    xy: Vec<f64>,
    yy: f64,
}

impl Sums {
    fn new(inputs: usize) -> Sums {
        let width = inputs + 1;
        Sums { width, n: 0.0, xx: vec![0.0; width * width], xy: vec![0.0; width], yy: 0.0 }
    }

    /// `x` begins with the 1.
    fn add(&mut self, x: &[f64], y: f64) {
        self.n += 1.0;
        self.yy += y * y;
        for (row, a) in x.iter().enumerate() {
            self.xy[row] += a * y;
            for (to, b) in self.xx[row * self.width..].iter_mut().zip(x) {
                *to += a * b;
            }
        }
    }

    fn join(&mut self, other: &Sums) {
        self.n += other.n;
        self.yy += other.yy;
        self.xx.iter_mut().zip(&other.xx).for_each(|(to, from)| *to += from);
        self.xy.iter_mut().zip(&other.xy).for_each(|(to, from)| *to += from);
    }

    fn without(&self, other: &Sums) -> Sums {
        let mut rest = self.clone();
        rest.n -= other.n;
        rest.yy -= other.yy;
        rest.xx.iter_mut().zip(&other.xx).for_each(|(to, from)| *to -= from);
        rest.xy.iter_mut().zip(&other.xy).for_each(|(to, from)| *to -= from);
        rest
    }

    /// The same of these columns only.
    fn of(&self, columns: &[usize]) -> Sums {
        let mut part = Sums::new(columns.len().saturating_sub(1));
        (part.n, part.yy) = (self.n, self.yy);
        for (row, a) in columns.iter().enumerate() {
            part.xy[row] = self.xy[*a];
            for (column, b) in columns.iter().enumerate() {
                part.xx[row * part.width + column] = self.xx[a * self.width + b];
            }
        }
        part
    }

    /// The line of least squares: bias, then weights; and the sum of its squared errors.
    fn line(&self) -> (Vec<f64>, f64) {
        let w = self.width;
        let mut a = self.xx.clone();
        let mut b = self.xy.clone();
        for i in 0..w {
            a[i * w + i] += RIDGE * self.n.max(1.0) * if i == 0 { 1e-3 } else { 1.0 };
        }
        // Gauss: the matrix is symmetric and, with the ridge, positive definite, so no pivots are needed.
        for i in 0..w {
            for row in i + 1..w {
                let factor = a[row * w + i] / a[i * w + i];
                for column in i..w {
                    a[row * w + column] -= factor * a[i * w + column];
                }
                b[row] -= factor * b[i];
            }
        }
        let mut line = vec![0.0; w];
        for i in (0..w).rev() {
            let known: f64 = (i + 1..w).map(|column| a[i * w + column] * line[column]).sum();
            line[i] = (b[i] - known) / a[i * w + i];
        }
        let dot = |row: usize| (0..w).map(|c| self.xx[row * w + c] * line[c]).sum::<f64>();
        let errors = self.yy - 2.0 * (0..w).map(|i| line[i] * self.xy[i]).sum::<f64>()
            + (0..w).map(|i| line[i] * dot(i)).sum::<f64>();
        (line, errors.max(0.0))
    }
}

/// (1, values) of some candidates.
fn row(sample: &Sample, chosen: &[usize], out: &mut Vec<f64>) {
    out.clear();
    out.push(1.0);
    out.extend(chosen.iter().map(|c| sample.values[*c] as f64 / ONE_Q16));
}

/// The candidates that help a line most, one after the other, at most `count`.
fn choose(samples: &[Sample], candidates: usize, count: usize) -> Vec<usize> {
    let all: Vec<usize> = (0..candidates).collect();
    let mut sums = Sums::new(candidates);
    let mut x = Vec::new();
    for sample in samples {
        row(sample, &all, &mut x);
        sums.add(&x, sample.action_q16 as f64 / ONE_Q16);
    }
    let mut chosen: Vec<usize> = Vec::new();
    let mut error = sums.of(&[0]).line().1;
    while chosen.len() < count {
        let with = |candidate: usize| {
            let columns: Vec<usize> =
                [0].into_iter().chain(chosen.iter().map(|c| c + 1)).chain([candidate + 1]).collect();
            sums.of(&columns).line().1
        };
        let left = all.iter().copied().filter(|c| !chosen.contains(c));
        let best = left.map(|c| (c, with(c))).min_by(|a, b| a.1.total_cmp(&b.1));
        match best {
            Some((candidate, less)) if less < error * (1.0 - LEAST_GAIN) => {
                chosen.push(candidate);
                error = less;
            }
            _ => break,
        }
    }
    if chosen.is_empty() { vec![0] } else { chosen }
}

/// A leaf that could be split.
struct Growing {
    /// Its place in the tree.
    node: usize,
    samples: Vec<usize>,
    sums: Sums,
    best: Option<Split>,
}

#[derive(Clone, Copy)]
struct Split {
    /// The amount by which the squared errors fall.
    gain: f64,
    input: usize,
    threshold: i64,
}

/// A tree of at most `leaves` leaves over at most `inputs` of the candidates.
pub(crate) fn fit(
    samples: &[Sample],
    candidates: &[Input],
    inputs: usize,
    leaves: usize,
    bound_q16: i64,
) -> Student {
    let chosen = choose(samples, candidates.len(), inputs);
    let mut nodes = vec![leaf(&Sums::new(chosen.len()))];
    let mut growing = vec![grow(samples, &chosen, 0, (0..samples.len()).collect())];
    nodes[0] = leaf(&growing[0].sums);
    while growing.len() < leaves {
        let gain = |g: &Growing| g.best.map_or(0.0, |split| split.gain);
        let Some(at) = (0..growing.len()).max_by(|a, b| gain(&growing[*a]).total_cmp(&gain(&growing[*b])))
        else {
            break;
        };
        let Some(split) = growing[at].best.filter(|split| split.gain > 0.0) else { break };
        let parent = growing.swap_remove(at);
        let column = chosen[split.input];
        let (left, right): (Vec<usize>, Vec<usize>) =
            parent.samples.iter().partition(|s| samples[**s].values[column] < split.threshold);
        let places = (nodes.len(), nodes.len() + 1);
        nodes[parent.node] =
            Node::Split { input: split.input, threshold: split.threshold, left: places.0, right: places.1 };
        for (node, part) in [(places.0, left), (places.1, right)] {
            let grown = grow(samples, &chosen, node, part);
            nodes.push(leaf(&grown.sums));
            growing.push(grown);
        }
    }
    Student { inputs: chosen.iter().map(|c| candidates[*c]).collect(), nodes, bound_q16 }
}

fn leaf(sums: &Sums) -> Node {
    let (line, _) = sums.line();
    // Weights are Q16 per Q16; the bias is an action in Q16 times 2^16.
    let weights = line[1..].iter().map(|w| (w * ONE_Q16).round() as i64).collect();
    Node::Leaf { bias: (line[0] * ONE_Q16 * ONE_Q16).round() as i64, weights }
}

fn grow(samples: &[Sample], chosen: &[usize], node: usize, own: Vec<usize>) -> Growing {
    let mut sums = Sums::new(chosen.len());
    let mut x = Vec::new();
    for s in &own {
        row(&samples[*s], chosen, &mut x);
        sums.add(&x, samples[*s].action_q16 as f64 / ONE_Q16);
    }
    let error = sums.line().1;
    let splits = (0..chosen.len()).filter_map(|input| best_of(samples, chosen, &own, &sums, error, input));
    let best = splits.max_by(|a, b| a.gain.total_cmp(&b.gain));
    Growing { node, samples: own, sums, best }
}

/// The best threshold on one input.
fn best_of(
    samples: &[Sample],
    chosen: &[usize],
    own: &[usize],
    all: &Sums,
    error: f64,
    input: usize,
) -> Option<Split> {
    let column = chosen[input];
    let mut values: Vec<i64> = own.iter().map(|s| samples[*s].values[column]).collect();
    values.sort_unstable();
    let quantile = |bin: usize| values.get(values.len() * bin / BINS).copied();
    let mut thresholds: Vec<i64> = (1..BINS).filter_map(quantile).collect();
    thresholds.dedup();
    let mut bins = vec![Sums::new(chosen.len()); thresholds.len() + 1];
    let mut x = Vec::new();
    for s in own {
        let sample = &samples[*s];
        let bin = thresholds.partition_point(|t| *t <= sample.values[column]);
        row(sample, chosen, &mut x);
        bins[bin].add(&x, sample.action_q16 as f64 / ONE_Q16);
    }
    let mut left = Sums::new(chosen.len());
    let mut best: Option<Split> = None;
    for (bin, threshold) in bins.iter().zip(&thresholds) {
        left.join(bin);
        let right = all.without(&left);
        if left.n < LEAST_SAMPLES || right.n < LEAST_SAMPLES {
            continue;
        }
        let gain = error - left.line().1 - right.line().1;
        if best.is_none_or(|b| gain > b.gain) {
            best = Some(Split { gain, input, threshold: *threshold });
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_learn::Rng;

    fn samples(of: impl Fn(f64, f64) -> f64) -> Vec<Sample> {
        let mut rng = Rng::new(3, &[]);
        let sample = |_| {
            let (a, b) = (rng.uniform() * 2.0 - 1.0, rng.uniform() * 2.0 - 1.0);
            let q16 = |x: f64| (x * ONE_Q16).round() as i64;
            Sample { values: vec![q16(rng.uniform()), q16(a), q16(b)], action_q16: q16(of(a, b)) }
        };
        (0..4000).map(sample).collect()
    }

    fn worst(student: &Student, samples: &[Sample], candidates: &[Input]) -> f64 {
        let error = |s: &Sample| {
            let value = |input| s.values[candidates.iter().position(|c| *c == input).unwrap()];
            (student.action_q16(value) - s.action_q16).abs() as f64 / ONE_Q16
        };
        samples.iter().map(error).fold(0.0, f64::max)
    }

    #[test]
    fn lines_and_their_bends_are_found_and_noise_is_left_out() {
        let candidates = [Input::Now(0), Input::Now(1), Input::Now(2)];
        let straight = samples(|a, b| 2.0 * a - b + 0.25);
        let one = fit(&straight, &candidates, 8, 1, 8 << 16);
        assert_eq!(one.inputs, [Input::Now(1), Input::Now(2)]);
        assert!(worst(&one, &straight, &candidates) < 0.01);
        let bent = samples(|a, b| if a < 0.0 { 3.0 * a } else { b });
        assert!(worst(&fit(&bent, &candidates, 8, 1, 8 << 16), &bent, &candidates) > 0.5);
        let tree = fit(&bent, &candidates, 8, 8, 8 << 16);
        let mut errors: Vec<f64> = bent
            .iter()
            .map(|s| {
                let value = |input| s.values[candidates.iter().position(|c| *c == input).unwrap()];
                (tree.action_q16(value) - s.action_q16).abs() as f64 / ONE_Q16
            })
            .collect();
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() * 9 / 10] < 0.1, "{:?}", errors[errors.len() * 9 / 10]);
        assert!(tree.leaves() <= 8 && tree.nodes.len() == 2 * tree.leaves() - 1);
    }
}

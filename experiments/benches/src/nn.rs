//! `nn.simd.aurora`: one inference of a network of Aurora's size in user space, against plain loops.

use std::hint::black_box;
use std::time::Instant;

use ccplane_infer::{Inference, Model, Prepared, Shape, tables};
use ccplane_quantize::snapshot::{
    Action, ActionMap, DeployOptions, Feature, PolicySpec, Snapshot, SpecError,
};
use ccplane_quantize::{Activation, Dense, Mlp, Options, Width, quantize};

use crate::error::BenchError;
use crate::figure::{Figure, Pair};
use crate::proof::{Proof, Unproven};

/// Aurora's network (ICML'19): 10 intervals of three features.
const WIDTHS: [usize; 4] = [30, 32, 16, 1];
const STATES: usize = 64;
/// Inferences between two reads of the clock: shorter than a scheduler's slice.
pub(crate) const BATCH: usize = 4096;
const ROUNDS: usize = 99;

/// The number of contenders in each round.
const RUNS: usize = 4;

/// Measures `nn.simd.aurora`: Aurora's network in user space.
pub fn simd() -> Result<Vec<Figure>, BenchError> {
    let networks = Networks::new()?;
    let mut times: [Vec<f64>; RUNS] = Default::default();
    // The first round warms up.
    for round in 0..=ROUNDS {
        let run = [
            time(&networks.states, |cells| networks.w8.infer(cells).action_q16),
            time(&networks.states, |cells| networks.w16.infer(cells).action_q16),
            time(&networks.states, |cells| networks.plain.infer(cells)),
            time(&networks.states, |cells| networks.float.infer(cells)),
        ];
        if round > 0 {
            times.iter_mut().zip(run).for_each(|(all, one)| all.push(one));
        }
    }
    let [w8, w16, plain, float] = times;
    let pairs = |a: &[f64], b: &[f64]| a.iter().copied().zip(b.iter().copied()).collect::<Vec<Pair>>();
    let (same, proof) = ("the same bits as the oracle on every state", &networks.agreed);
    Ok(vec![
        Figure::paired("nn.simd.aurora", "ns", "a plain int8 loop", &pairs(&w8, &plain), proof)
            .with_note(same),
        Figure::paired(
            "nn.simd.aurora.float",
            "ns",
            "a float32 loop, tanh as a fraction",
            &pairs(&w8, &float),
            proof,
        ),
        Figure::paired(
            "nn.simd.aurora.w16",
            "ns",
            "a float32 loop, tanh as a fraction",
            &pairs(&w16, &float),
            proof,
        )
        .with_note(same),
    ])
}

/// Nanoseconds of one inference.
pub fn time(states: &[Vec<i32>], mut infer: impl FnMut(&[i32]) -> i64) -> f64 {
    let start = Instant::now();
    for n in 0..BATCH {
        black_box(infer(black_box(&states[n % STATES])));
    }
    start.elapsed().as_nanos() as f64 / BATCH as f64
}

/// The same network, four times.
pub struct Networks {
    pub states: Vec<Vec<i32>>,
    w8: Box<Prepared>,
    w16: Box<Prepared>,
    pub plain: Plain,
    pub float: Float,
    /// The snapshots' images, with their shapes.
    pub images: [(Shape, Vec<u64>); 2],
    /// The proof that both networks compute the same as the oracle.
    agreed: Proof,
}

impl Networks {
    /// Quantises and compiles networks of both widths, and checks them against the oracle.
    pub fn new() -> Result<Networks, BenchError> {
        let spec = spec(WIDTHS[0]).map_err(|e| BenchError::Missing(e.to_string()))?;
        let mlp = mlp()?;
        let mut random = Random(1);
        let states: Vec<Vec<i32>> = (0..STATES)
            .map(|_| spec.inputs().iter().map(|_| (random.signed() * 1000.0) as i32).collect())
            .collect();
        let snapshot = |bits| {
            let options = Options { bits, ..Options::default() };
            quantize(&mlp, &spec, &states, &options).map_err(|e| BenchError::Missing(e.to_string()))
        };
        let (w8, w16) = (snapshot(Width::W8)?, snapshot(Width::W16)?);
        let ((fast8, agreed8), (fast16, agreed16)) = (prepare(&w8, &states)?, prepare(&w16, &states)?);
        Ok(Networks {
            plain: Plain::new(&w8),
            float: Float::new(&mlp),
            w8: fast8,
            w16: fast16,
            images: [&w8, &w16].map(|s| (*s.shape(), s.image(&DeployOptions::ONLY))),
            agreed: agreed8.and(&agreed16),
            states,
        })
    }
}

fn prepare(snapshot: &Snapshot, states: &[Vec<i32>]) -> Result<(Box<Prepared>, Proof), BenchError> {
    let image = snapshot.image(&DeployOptions::ONLY);
    let missing = |what: &str| BenchError::Missing(what.to_owned());
    let prepared = Prepared::new(snapshot.shape(), &image).map_err(|e| missing(&e.to_string()))?;
    let oracle = Model::new(snapshot.shape(), &image).ok_or_else(|| missing("an image of its own shape"))?;
    let agreed = agreed(states, |cells| prepared.infer(cells), &oracle)?;
    Ok((Box::new(prepared), agreed))
}

/// Proves that a network computes the same as the oracle on all states.
pub fn agreed(
    states: &[Vec<i32>],
    infer: impl Fn(&[i32]) -> Inference,
    oracle: &Model<'_>,
) -> Result<Proof, Unproven> {
    let same = states.iter().filter(|cells| infer(cells) == oracle.infer(cells)).count();
    Proof::exactly("states with the oracle's bits", same as u64, states.len() as u64)
}

/// A policy of so many inputs.
pub(crate) fn spec(inputs: usize) -> Result<PolicySpec, SpecError> {
    let feature = |n| Feature { name: format!("x[{n}]"), lo: -1000, hi: 1000 };
    let action = Action {
        map: ActionMap::Rate,
        bound_q16: 2 << 16,
        step_q20: 26_214,
        knob_min: 1_000,
        knob_max: 1 << 40,
    };
    PolicySpec::new("aurora", (0..inputs).map(feature).collect(), action)
}

fn mlp() -> Result<Mlp, BenchError> {
    let mut random = Random(2);
    let layers = WIDTHS.windows(2).enumerate().map(|(n, pair)| {
        let limit = (6.0 / (pair[0] + pair[1]) as f32).sqrt();
        Dense {
            inputs: pair[0],
            outputs: pair[1],
            weights: (0..pair[0] * pair[1]).map(|_| limit * random.signed()).collect(),
            bias: (0..pair[1]).map(|_| 0.1 * random.signed()).collect(),
            activation: (n + 2 < WIDTHS.len()).then_some(Activation::Tanh),
        }
    });
    Mlp::new(layers.collect()).map_err(|e| BenchError::Missing(e.to_string()))
}

/// A generator good enough for weights (Marsaglia's xorshift64).
struct Random(u64);

impl Random {
    /// Draws a number uniform in [-1, 1).
    fn signed(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

/// int8 as one would write it: a dot product a neuron, a table of 256 entries.
pub struct Plain {
    layers: Vec<(Vec<i8>, Vec<i32>)>,
    tanh: [i8; 256],
}

impl Plain {
    fn new(snapshot: &Snapshot) -> Plain {
        let layers = snapshot.network().layers().iter().map(|layer| {
            let largest = layer.weights.iter().map(|w| w.unsigned_abs()).max().unwrap_or(1).max(1);
            let narrow = |w: &i16| (i32::from(*w) * 127 / i32::from(largest)) as i8;
            (layer.weights.iter().map(narrow).collect(), layer.biases.clone())
        });
        let table = |n: usize| tables::W8[2 * tables::STRIDE_W8 + n * tables::STRIDE_W8 / 256];
        Plain { layers: layers.collect(), tanh: std::array::from_fn(table) }
    }

    /// Computes the network's output on these inputs.
    pub fn infer(&self, cells: &[i32]) -> i64 {
        let (mut x, mut y) = ([0i8; 32], [0i8; 32]);
        for (x, cell) in x.iter_mut().zip(cells) {
            *x = (cell.clamp(&-1000, &1000) * 127 / 1000) as i8;
        }
        let (mut inputs, mut last) = (WIDTHS[0], 0);
        for (weights, biases) in &self.layers {
            for ((row, bias), y) in weights.chunks_exact(inputs).zip(biases).zip(&mut y) {
                last = bias + row.iter().zip(&x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum::<i32>();
                *y = self.tanh[((last >> 10) + 128).clamp(0, 255) as usize];
            }
            (x, inputs) = (y, biases.len());
        }
        i64::from(last)
    }
}

/// float32, all outputs of a layer at once, so that the compiler can use vectors.
pub struct Float {
    layers: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Float {
    fn new(mlp: &Mlp) -> Float {
        let columns = |layer: &Dense| {
            let weight = |at: usize| layer.weights[at % layer.outputs * layer.inputs + at / layer.outputs];
            ((0..layer.weights.len()).map(weight).collect(), layer.bias.clone())
        };
        Float { layers: mlp.layers().iter().map(columns).collect() }
    }

    /// Computes the network's output on these inputs.
    pub fn infer(&self, cells: &[i32]) -> i64 {
        let mut x = [0f32; 32];
        for (x, cell) in x.iter_mut().zip(cells) {
            *x = (*cell as f32).clamp(-1000.0, 1000.0) * 1e-3;
        }
        let (mut inputs, mut last) = (WIDTHS[0], 0.0);
        for (weights, biases) in &self.layers {
            let mut sums = [0f32; 32];
            let sums = &mut sums[..biases.len()];
            sums.copy_from_slice(biases);
            for (x, column) in x[..inputs].iter().zip(weights.chunks_exact(biases.len())) {
                sums.iter_mut().zip(column).for_each(|(sum, w)| *sum += x * w);
            }
            last = sums[0];
            x.iter_mut().zip(sums.iter()).for_each(|(x, sum)| *x = tanh(*sum));
            inputs = biases.len();
        }
        (last * 65536.0) as i64
    }
}

/// Lambert's continued fraction, to 0.001 up to 4.97, where it is cut off: far cheaper than the library's.
fn tanh(x: f32) -> f32 {
    let x = x.clamp(-4.97, 4.97);
    let s = x * x;
    x * (135_135.0 + s * (17_325.0 + s * (378.0 + s)))
        / (135_135.0 + s * (62_370.0 + s * (3_150.0 + 28.0 * s)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_computes_something_else_is_no_baseline() {
        let networks = Networks::new().unwrap();
        let [(shape, image), _] = &networks.images;
        let oracle = Model::new(shape, image).unwrap();
        let states = &networks.states;
        assert!(agreed(states, |cells| oracle.infer(cells), &oracle).is_ok());
        let wrong = agreed(states, |_| oracle.infer(&states[0]), &oracle).unwrap_err();
        assert!(matches!(wrong, Unproven::Count { wanted, counted, .. } if counted < wanted), "{wrong}");
    }

    #[test]
    fn the_float_loop_is_the_network() {
        let (mlp, states) = (mlp().unwrap(), Networks::new().unwrap().states);
        let float = Float::new(&mlp);
        for cells in &states {
            let input: Vec<f32> = cells.iter().map(|cell| *cell as f32 / 1000.0).collect();
            let expected = f64::from(mlp.forward(&input, &mut Default::default()));
            assert!((float.infer(cells) as f64 / 65536.0 - expected).abs() < 0.01);
        }
    }
}

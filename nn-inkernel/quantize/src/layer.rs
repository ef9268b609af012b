//! Conversion of layers to integers: scales, weights, biases.

use crate::QuantizeError;
use crate::mlp::{Activation, Dense, Mlp};
use ccplane_infer::{Bits, tables};
use ccplane_snapshot::{Layer, PolicySpec};

/// States of each kind that scales and biases are fitted to, at most; of more states, every n-th is taken.
const FIT: usize = 4096;
/// Largest exponent of a table: tanh tables reach `2^7`, relu tables `2^7` times the layer's full scale.
const MAX_EXPONENT: u32 = 7;
/// Share of the output's lane that is used; the rest is left for the bias's correction.
const OUTPUT_HEADROOM: f64 = 0.98;
/// Bits of the output's factor: its rounding is far below an action's.
const OUT_MULT_BITS: i32 = 31;
const MAX_OUT_SHIFT: i32 = 63;
/// A neuron's bias stays as it is if fewer than this share of states lie on its slope.
const MIN_SLOPE: f64 = 1e-3;

/// An integer network, not yet proved.
pub(crate) struct Built {
    pub layers: Vec<Layer>,
    pub out_mult: i64,
    pub out_shift: u32,
    /// Largest sum of each layer on visited states.
    pub sums: Vec<u32>,
}

/// The states on their way through the layers, as floats and as integers.
struct Activations {
    exact: Vec<Vec<f32>>,
    rounded: Vec<Vec<i64>>,
    /// The first states, up to this number, were visited by the policy.
    visited: usize,
    /// The number that a full-scale integer stands for.
    scale: f64,
}

/// A neuron's weights, bias and scale as integers.
struct Neuron {
    weights: Vec<i16>,
    bias: i32,
    /// The number that the end of its lane stands for.
    full_scale: f64,
}

pub(crate) fn build(
    bits: Bits,
    mlp: &Mlp,
    spec: &PolicySpec,
    visited: &[&[i32]],
    off: &[Vec<i32>],
) -> Result<Built, QuantizeError> {
    let mut flow = Activations::new(bits, spec, visited, off);
    let mut built = Built { layers: Vec::new(), out_mult: 1, out_shift: 0, sums: Vec::new() };
    for (n, dense) in mlp.layers().iter().enumerate() {
        let exact = flow.sums(dense);
        let (mut neurons, tables, scale) = match dense.activation {
            Some(Activation::Tanh) => tanh(bits, n + 1, dense, flow.scale)?,
            Some(Activation::Relu) => relu(bits, n + 1, dense, flow.scale, &exact)?,
            None => {
                let neurons = outputs(bits, n + 1, dense, flow.scale)?;
                let full_scale = neurons.first().map_or(1.0, |neuron| neuron.full_scale);
                (built.out_mult, built.out_shift) = factor(bits, full_scale);
                (neurons, Vec::new(), 1.0)
            }
        };
        for (output, neuron) in neurons.iter_mut().enumerate() {
            flow.correct(bits, neuron, &exact, output, dense.activation);
        }
        built.sums.push(flow.advance(bits, dense.activation, exact, &neurons, &tables, scale));
        built.layers.push(Layer {
            biases: neurons.iter().map(|n| n.bias).collect(),
            weights: neurons.into_iter().flat_map(|n| n.weights).collect(),
            tables,
        });
    }
    Ok(built)
}

/// Returns the largest sum of row `output` if inputs are at most `scale`.
fn reach(dense: &Dense, output: usize, scale: f64) -> f64 {
    let weights: f64 = dense.row(output).iter().map(|w| f64::from(w.abs())).sum();
    weights * scale + f64::from(dense.bias[output].abs())
}

/// Quantises a neuron whose lane ends at `full_scale`; `None` if its sum could leave the lane.
fn neuron(bits: Bits, dense: &Dense, output: usize, scale: f64, full_scale: f64) -> Option<Neuron> {
    let unit = bits.lane_offset() as f64 / full_scale;
    let per_weight = unit * scale / bits.max_activation() as f64;
    let mut weights = Vec::with_capacity(dense.inputs);
    for weight in dense.row(output) {
        let rounded = (f64::from(*weight) * per_weight).round();
        if rounded.abs() > f64::from(i16::MAX) {
            return None;
        }
        weights.push(rounded as i16);
    }
    let bias = (f64::from(dense.bias[output]) * unit).round();
    let free = bias_limit(bits, &weights);
    // A float that is not a number would have been refused with the network.
    (bias.abs() <= free as f64).then_some(Neuron { weights, bias: bias as i32, full_scale })
}

/// The largest bias that leaves the sum in its lane; below 0 if none does.
fn bias_limit(bits: Bits, weights: &[i16]) -> i64 {
    let weights: i64 = weights.iter().map(|w| i64::from(w.unsigned_abs())).sum();
    bits.lane_offset() - 1 - weights * bits.max_activation()
}

type Hidden = (Vec<Neuron>, Vec<u8>, f64);

/// Puts each neuron on the finest table whose proof succeeds.
fn tanh(bits: Bits, layer: usize, dense: &Dense, scale: f64) -> Result<Hidden, QuantizeError> {
    let (mut neurons, mut tables) = (Vec::new(), Vec::new());
    for output in 0..dense.outputs {
        let fit = (0..=MAX_EXPONENT)
            .find_map(|e| Some((e, neuron(bits, dense, output, scale, f64::from(1u32 << e))?)));
        let Some((e, neuron)) = fit else {
            let limit = f64::from(1u32 << MAX_EXPONENT);
            let reach = reach(dense, output, scale);
            return Err(QuantizeError::Reach { layer, neuron: output + 1, reach, limit });
        };
        neurons.push(neuron);
        tables.push(e as u8);
    }
    Ok((neurons, tables, 1.0))
}

/// Quantises a relu layer, whose full scale is the largest activation on any state; beyond it activations saturate.
fn relu(
    bits: Bits,
    layer: usize,
    dense: &Dense,
    scale: f64,
    sums: &[Vec<f32>],
) -> Result<Hidden, QuantizeError> {
    let largest = sums.iter().flatten().fold(0.0f64, |max, sum| max.max(f64::from(*sum)));
    let ratio = f64::from(1u32 << MAX_EXPONENT);
    // No neuron may need more than the coarsest table.
    let needed = (0..dense.outputs).map(|n| reach(dense, n, scale) * 1.01 / ratio).fold(0.0, f64::max);
    let full = largest.max(needed).max(f64::from(f32::MIN_POSITIVE));
    let (mut neurons, mut tables) = (Vec::new(), Vec::new());
    for output in 0..dense.outputs {
        let fit = (0..=MAX_EXPONENT)
            .find_map(|d| Some((d, neuron(bits, dense, output, scale, full * f64::from(1u32 << d))?)));
        let Some((d, neuron)) = fit else {
            let reach = reach(dense, output, scale);
            return Err(QuantizeError::Reach { layer, neuron: output + 1, reach, limit: full * ratio });
        };
        neurons.push(neuron);
        tables.push(ccplane_infer::tables::RELU as u8 + d as u8);
    }
    Ok((neurons, tables, full))
}

/// Quantises the outputs, which have no tables and one scale: a lane ends just beyond the largest possible sum.
fn outputs(bits: Bits, layer: usize, dense: &Dense, scale: f64) -> Result<Vec<Neuron>, QuantizeError> {
    let reaches = (0..dense.outputs).map(|output| (output, reach(dense, output, scale)));
    let farthest = |a: (usize, f64), b: (usize, f64)| if b.1 > a.1 { b } else { a };
    let (output, reach) = reaches.reduce(farthest).unwrap_or_default();
    let limit = max_output_scale(bits);
    let mut full_scale = (reach / OUTPUT_HEADROOM).max(min_output_scale(bits));
    while full_scale <= limit {
        let all = (0..dense.outputs).map(|output| neuron(bits, dense, output, scale, full_scale));
        if let Some(neurons) = all.collect() {
            return Ok(neurons);
        }
        full_scale *= 1.01;
    }
    Err(QuantizeError::Reach { layer, neuron: output + 1, reach, limit })
}

/// The smallest full scale of the output: one unit of a sum is at least `2^(OUT_MULT_BITS - 1 - MAX_OUT_SHIFT)` in Q16.
fn min_output_scale(bits: Bits) -> f64 {
    bits.lane_offset() as f64 / 65536.0 * 2f64.powi(OUT_MULT_BITS - 1 - MAX_OUT_SHIFT)
}

/// The largest full scale of the output: one unit of a sum is below `2^OUT_MULT_BITS` in Q16.
fn max_output_scale(bits: Bits) -> f64 {
    bits.lane_offset() as f64 / 65536.0 * 2f64.powi(OUT_MULT_BITS - 1)
}

/// Factor and shift from the output's sum to an action in Q16.
fn factor(bits: Bits, full_scale: f64) -> (i64, u32) {
    let unit = full_scale / bits.lane_offset() as f64 * 65536.0;
    // unit = m * 2^exponent with m in [1, 2).
    let exponent = unit.log2().floor() as i32;
    let shift = (OUT_MULT_BITS - 1 - exponent).clamp(0, MAX_OUT_SHIFT);
    ((unit * 2f64.powi(shift)).round() as i64, shift as u32)
}

impl Activations {
    fn new(bits: Bits, spec: &PolicySpec, visited: &[&[i32]], off: &[Vec<i32>]) -> Activations {
        let some = |len: usize| len.div_ceil(FIT).max(1);
        let mut states: Vec<&[i32]> = visited.iter().step_by(some(visited.len())).copied().collect();
        let count = states.len();
        states.extend(off.iter().step_by(some(off.len())).map(Vec::as_slice));
        let max = bits.max_activation() as f32;
        let exact: Vec<Vec<f32>> = states
            .iter()
            .map(|cells| {
                let mut input = vec![0.0; spec.inputs().len()];
                spec.normalise(cells, &mut input);
                input
            })
            .collect();
        let rounded = exact.iter().map(|x| x.iter().map(|x| (x * max).round() as i64).collect()).collect();
        Activations { exact, rounded, visited: count, scale: 1.0 }
    }

    /// The float sums of a layer for every state.
    fn sums(&self, dense: &Dense) -> Vec<Vec<f32>> {
        let of = |x: &Vec<f32>| (0..dense.outputs).map(|n| dense.sum(n, x)).collect();
        self.exact.iter().map(of).collect()
    }

    /// Moves a bias so that the neuron's mean error on visited states is zero, each state weighted by the activation's
    /// slope there.
    fn correct(
        &self,
        bits: Bits,
        neuron: &mut Neuron,
        exact: &[Vec<f32>],
        output: usize,
        activation: Option<Activation>,
    ) {
        let unit = neuron.full_scale / bits.lane_offset() as f64;
        let (mut error, mut weight) = (0.0, 0.0);
        for (x, sums) in self.rounded.iter().zip(exact).take(self.visited) {
            let expected = f64::from(sums[output]);
            let slope = match activation {
                Some(Activation::Tanh) => 1.0 - expected.tanh().powi(2),
                Some(Activation::Relu) => f64::from(u8::from(expected > 0.0)),
                None => 1.0,
            };
            error += slope * (expected - neuron.sum(x) as f64 * unit);
            weight += slope;
        }
        if weight <= MIN_SLOPE * self.visited as f64 {
            return;
        }
        let limit = bias_limit(bits, &neuron.weights);
        let corrected = i64::from(neuron.bias) + (error / weight / unit).round() as i64;
        neuron.bias = corrected.clamp(-limit, limit) as i32;
    }

    /// Takes every state through a layer; returns the largest sum on visited ones.
    fn advance(
        &mut self,
        bits: Bits,
        activation: Option<Activation>,
        mut exact: Vec<Vec<f32>>,
        neurons: &[Neuron],
        tables: &[u8],
        scale: f64,
    ) -> u32 {
        let mut largest = 0;
        for (n, x) in self.rounded.iter_mut().enumerate() {
            let sums: Vec<i64> = neurons.iter().map(|neuron| neuron.sum(x)).collect();
            if n < self.visited {
                largest = sums.iter().fold(largest, |max, sum| max.max(sum.unsigned_abs() as u32));
            }
            let lane = |sum: i64| (sum + bits.lane_offset()) as u64;
            let base = |table: &u8| usize::from(*table) * tables::stride(bits);
            *x = sums.iter().zip(tables).map(|(s, t)| tables::activation(bits, base(t), lane(*s))).collect();
        }
        if let Some(f) = activation {
            exact.iter_mut().flatten().for_each(|sum| *sum = f.apply(*sum));
        }
        (self.exact, self.scale) = (exact, scale);
        largest
    }
}

impl Neuron {
    fn sum(&self, x: &[i64]) -> i64 {
        i64::from(self.bias) + self.weights.iter().zip(x).map(|(w, x)| i64::from(*w) * x).sum::<i64>()
    }
}

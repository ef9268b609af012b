//! A multi-layer perceptron as lanes: forward, backward, one row or many.
//!
//! Numbers stand in lanes of [`LANES`], padded with zeros. A row of activations is `ceil(width / LANES)` lanes. A layer's
//! weights stand in blocks of [`LANES`] outputs; a block has one lane for each input and then its biases. Every sum is
//! over one index in ascending order, so a row's result is the same bits alone and in any batch, on any machine.

use super::vector::wide;
use crate::math;
use ccplane_quantize::{Activation, Dense, Mlp};

/// Numbers side by side.
pub(super) const LANES: usize = 8;
/// The numbers that stand side by side.
pub(super) type Lane = [f32; LANES];

const ZERO: Lane = [0.0; LANES];
/// Rows of a tile where there are many.
const TILE_ROWS: usize = 4;
/// Blocks of outputs of a tile.
const TILE_BLOCKS: usize = 2;
/// The same where there is one row.
const LONE_BLOCKS: usize = 4;

/// Lanes for so many numbers.
const fn lanes(numbers: usize) -> usize {
    numbers.div_ceil(LANES)
}

/// The places of one layer's numbers.
#[derive(Clone, Copy, Debug)]
struct Layer {
    inputs: usize,
    outputs: usize,
    activation: Option<Activation>,
    /// First lane of its parameters.
    at: usize,
    /// First lane of its weights transposed.
    back_at: usize,
}

impl Layer {
    fn parameters(&self) -> std::ops::Range<usize> {
        self.at..self.at + lanes(self.outputs) * (self.inputs + 1)
    }
    fn transposed(&self) -> std::ops::Range<usize> {
        self.back_at..self.back_at + lanes(self.inputs) * (self.outputs + 1)
    }
}

/// A network and its transpose.
#[derive(Clone, Debug)]
pub(super) struct Network {
    layers: Vec<Layer>,
    pub parameters: Vec<Lane>,
    /// All layers' weights with inputs and outputs exchanged, which the way back needs; no biases.
    back: Vec<Lane>,
    /// 0 where there is no weight; empty if all are there.
    mask: Vec<Lane>,
}

/// Room for a batch of rows.
#[derive(Clone, Default, Debug)]
pub(super) struct BatchBuffers {
    rows: usize,
    /// The input of each layer, and the output of the last one.
    pub activations: Vec<Vec<Lane>>,
    /// The loss's derivatives by each layer's sums.
    pub deltas: Vec<Vec<Lane>>,
}

impl BatchBuffers {
    /// Room for `rows` rows; what stands there stays.
    fn fit(&mut self, network: &Network, rows: usize) {
        let padded = rows.next_multiple_of(TILE_ROWS);
        if self.activations.is_empty() {
            self.activations = vec![Vec::new(); network.layers.len() + 1];
            self.deltas = vec![Vec::new(); network.layers.len()];
        }
        self.activations[0].resize(padded * lanes(network.inputs()), ZERO);
        for (n, layer) in network.layers.iter().enumerate() {
            self.activations[n + 1].resize(padded * lanes(layer.outputs), ZERO);
            self.deltas[n].resize(padded * lanes(layer.outputs), ZERO);
        }
        self.rows = padded;
    }
}

impl Network {
    pub fn new(mlp: &Mlp, connects: impl Fn(usize, usize) -> bool) -> Network {
        let mut network =
            Network { layers: Vec::new(), parameters: Vec::new(), back: Vec::new(), mask: Vec::new() };
        let (mut at, mut back_at) = (0, 0);
        for Dense { inputs, outputs, activation, .. } in mlp.layers() {
            let layer = Layer { inputs: *inputs, outputs: *outputs, activation: *activation, at, back_at };
            (at, back_at) = (layer.parameters().end, layer.transposed().end);
            network.layers.push(layer);
        }
        network.parameters = vec![ZERO; at];
        network.back = vec![ZERO; back_at];
        let numbers: Vec<f32> =
            mlp.layers().iter().flat_map(|l| l.weights.iter().chain(&l.bias)).copied().collect();
        network.parameters = network.to_lanes(&numbers);
        network.transpose();
        let first = network.layers[0];
        if !(0..first.outputs).all(|o| (0..first.inputs).all(|i| connects(o, i))) {
            let mut numbers = vec![1.0; numbers.len()];
            for (n, number) in numbers.iter_mut().take(first.inputs * first.outputs).enumerate() {
                *number = f32::from(connects(n / first.inputs, n % first.inputs));
            }
            network.mask = network.to_lanes(&numbers);
        }
        network
    }

    pub fn inputs(&self) -> usize {
        self.layers[0].inputs
    }

    /// Lanes of an input row.
    pub fn input_lanes(&self) -> usize {
        lanes(self.inputs())
    }

    /// Returns the layers with their present parameters.
    pub fn dense(&self) -> Vec<Dense> {
        let numbers = self.to_numbers(&self.parameters);
        let mut rest = numbers.as_slice();
        let mut take = |n: usize| {
            let (taken, left) = rest.split_at(n);
            rest = left;
            taken.to_vec()
        };
        let dense = |layer: &Layer| {
            let (inputs, outputs) = (layer.inputs, layer.outputs);
            let weights = take(inputs * outputs);
            Dense { inputs, outputs, weights, bias: take(outputs), activation: layer.activation }
        };
        self.layers.iter().map(dense).collect()
    }

    /// Returns the place of number `n` of each layer (weights row by row, then biases): layer's lane, position in it.
    fn place(layer: &Layer, n: usize) -> (usize, usize) {
        let (output, input) = match n.checked_sub(layer.inputs * layer.outputs) {
            Some(output) => (output, layer.inputs),
            None => (n / layer.inputs, n % layer.inputs),
        };
        (layer.at + output / LANES * (layer.inputs + 1) + input, output % LANES)
    }

    /// Packs parameters in the order of [`Moments`](crate::Moments) into lanes.
    pub fn to_lanes(&self, numbers: &[f32]) -> Vec<Lane> {
        let mut all = vec![ZERO; self.layers.last().map_or(0, |l| l.parameters().end)];
        let mut numbers = numbers.iter();
        for layer in &self.layers {
            for (n, number) in numbers.by_ref().take((layer.inputs + 1) * layer.outputs).enumerate() {
                let (lane, position) = Network::place(layer, n);
                all[lane][position] = *number;
            }
        }
        all
    }

    /// Unpacks lanes to the parameters in a policy's order.
    pub fn to_numbers(&self, all: &[Lane]) -> Vec<f32> {
        let of = |layer: &Layer| {
            let layer = *layer;
            (0..(layer.inputs + 1) * layer.outputs).map(move |n| {
                let (lane, position) = Network::place(&layer, n);
                all[lane][position]
            })
        };
        self.layers.iter().flat_map(of).collect()
    }

    /// Prepares [`Network::backward`]; call it when the parameters have changed.
    #[inline(always)]
    pub fn transpose(&mut self) {
        // The first layer's is not needed.
        for layer in self.layers.iter().skip(1) {
            let weights = &self.parameters[layer.parameters()];
            let back = &mut self.back[layer.transposed()];
            for (block, back) in back.chunks_exact_mut(layer.outputs + 1).enumerate() {
                let inputs = LANES.min(layer.inputs - block * LANES);
                for (output, lane) in back.iter_mut().take(layer.outputs).enumerate() {
                    let from = &weights[output / LANES * (layer.inputs + 1) + block * LANES..][..inputs];
                    for (to, from) in lane.iter_mut().zip(from) {
                        *to = from[output % LANES];
                    }
                }
            }
        }
    }

    /// Makes room for `rows` input rows and gives the lanes that they go to.
    pub fn inputs_of<'a>(&self, room: &'a mut BatchBuffers, rows: usize) -> &'a mut [Lane] {
        room.fit(self, rows);
        &mut room.activations[0]
    }

    /// Runs the network on the rows in `room`.
    #[inline(always)]
    pub fn forward(&self, room: &mut BatchBuffers) {
        let rows = room.rows;
        for (n, layer) in self.layers.iter().enumerate() {
            let (before, after) = room.activations.split_at_mut(n + 1);
            let (x, y) = (&before[n], &mut after[0]);
            let weights = &self.parameters[layer.parameters()];
            product::<TILE_ROWS, TILE_BLOCKS>(rows, layer.inputs, x, weights, y);
            activate(layer.activation, y);
        }
    }

    /// Output `row` of the last forward run.
    #[inline(always)]
    pub fn output(&self, room: &BatchBuffers, row: usize) -> f32 {
        room.activations[self.layers.len()][row][0]
    }

    /// The derivatives by the outputs, to be set before [`Network::backward`]: the first number of each lane.
    pub fn output_deltas<'a>(&self, room: &'a mut BatchBuffers) -> &'a mut [Lane] {
        &mut room.deltas[self.layers.len() - 1]
    }

    /// Goes from the output's derivatives in `room` to those by all parameters.
    #[inline(always)]
    pub fn backward(&self, room: &mut BatchBuffers, gradient: &mut [Lane]) {
        for (n, layer) in self.layers.iter().enumerate().rev() {
            let (before, after) = room.deltas.split_at_mut(n);
            let (x, delta) = (&room.activations[n], &after[0]);
            outer(layer, x, delta, &mut gradient[layer.parameters()]);
            let (Some(to), Some(below)) = (before.last_mut(), n.checked_sub(1).map(|n| self.layers[n]))
            else {
                break;
            };
            product::<TILE_ROWS, TILE_BLOCKS>(
                room.rows,
                layer.outputs,
                delta,
                &self.back[layer.transposed()],
                to,
            );
            derive(below.activation, x, to);
        }
        for (lane, mask) in gradient.iter_mut().zip(&self.mask) {
            for n in 0..LANES {
                lane[n] *= mask[n];
            }
        }
    }

    /// Runs the network on one row, which stands in `room` as its first.
    pub fn lone(&self, room: &mut BatchBuffers) -> f32 {
        wide(
            #[inline(always)]
            || {
                for (n, layer) in self.layers.iter().enumerate() {
                    let (before, after) = room.activations.split_at_mut(n + 1);
                    let x = &before[n][..lanes(layer.inputs)];
                    let y = &mut after[0][..lanes(layer.outputs)];
                    product::<1, LONE_BLOCKS>(1, layer.inputs, x, &self.parameters[layer.parameters()], y);
                    activate(layer.activation, y);
                }
                self.output(room, 0)
            },
        )
    }
}

/// `y = b + x W` for each of `rows` rows; `depth` numbers in each row of `x`, blocks of `depth + 1` lanes in `weights`.
#[inline(always)]
fn product<const ROWS: usize, const BLOCKS: usize>(
    rows: usize,
    depth: usize,
    x: &[Lane],
    weights: &[Lane],
    y: &mut [Lane],
) {
    let (x_lanes, y_lanes) = (lanes(depth), weights.len() / (depth + 1));
    let whole = y_lanes / BLOCKS * BLOCKS;
    for row in (0..rows).step_by(ROWS) {
        let x = &x[row * x_lanes..(row + ROWS) * x_lanes];
        let y = &mut y[row * y_lanes..(row + ROWS) * y_lanes];
        for block in (0..whole).step_by(BLOCKS) {
            tile::<ROWS, BLOCKS>(depth, x, weights, y, block);
        }
        for block in whole..y_lanes {
            tile::<ROWS, 1>(depth, x, weights, y, block);
        }
    }
}

/// [`product`] for the blocks from `block` on: all of its sums stay in registers.
#[inline(always)]
fn tile<const ROWS: usize, const BLOCKS: usize>(
    depth: usize,
    x: &[Lane],
    weights: &[Lane],
    y: &mut [Lane],
    block: usize,
) {
    let columns: [&[Lane]; BLOCKS] =
        std::array::from_fn(|b| &weights[(block + b) * (depth + 1)..][..depth + 1]);
    let x_lanes = x.len() / ROWS;
    let rows: [&[f32]; ROWS] = std::array::from_fn(|r| &x.as_flattened()[r * x_lanes * LANES..][..depth]);
    let mut sums: [[Lane; BLOCKS]; ROWS] = [std::array::from_fn(|b| columns[b][depth]); ROWS];
    for k in 0..depth {
        for r in 0..ROWS {
            for b in 0..BLOCKS {
                for n in 0..LANES {
                    sums[r][b][n] += rows[r][k] * columns[b][k][n];
                }
            }
        }
    }
    let y_lanes = y.len() / ROWS;
    for r in 0..ROWS {
        y[r * y_lanes + block..][..BLOCKS].copy_from_slice(&sums[r]);
    }
}

/// The derivatives by a layer's parameters: the sum over rows of input times delta.
#[inline(always)]
fn outer(layer: &Layer, x: &[Lane], delta: &[Lane], gradient: &mut [Lane]) {
    let (x_lanes, y_lanes) = (lanes(layer.inputs), lanes(layer.outputs));
    for (block, gradient) in gradient.chunks_exact_mut(layer.inputs + 1).enumerate() {
        let deltas = || delta[block..].iter().step_by(y_lanes);
        for (at, to) in gradient[..layer.inputs].chunks_mut(LANES).enumerate() {
            let mut sums = [ZERO; LANES];
            for (x, delta) in x[at..].iter().step_by(x_lanes).zip(deltas()) {
                for i in 0..LANES {
                    for n in 0..LANES {
                        sums[i][n] += x[i] * delta[n];
                    }
                }
            }
            to.copy_from_slice(&sums[..to.len()]);
        }
        let mut sum = ZERO;
        for delta in deltas() {
            for n in 0..LANES {
                sum[n] += delta[n];
            }
        }
        gradient[layer.inputs] = sum;
    }
}

#[inline(always)]
fn activate(activation: Option<Activation>, y: &mut [Lane]) {
    match activation {
        None => {}
        Some(Activation::Tanh) => {
            for y in y.as_flattened_mut() {
                *y = math::tanh(*y);
            }
        }
        Some(Activation::Relu) => {
            for y in y.as_flattened_mut() {
                *y = if *y > 0.0 { *y } else { 0.0 };
            }
        }
    }
}

/// Multiplies by the activation's derivative, which follows from its value `y`.
#[inline(always)]
fn derive(activation: Option<Activation>, y: &[Lane], delta: &mut [Lane]) {
    let pairs = delta.as_flattened_mut().iter_mut().zip(y.as_flattened());
    match activation {
        None => {}
        Some(Activation::Tanh) => pairs.for_each(|(d, y)| *d *= 1.0 - y * y),
        Some(Activation::Relu) => pairs.for_each(|(d, y)| *d = if *y > 0.0 { *d } else { 0.0 }),
    }
}

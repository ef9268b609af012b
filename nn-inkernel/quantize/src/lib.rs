//! Quantisation: from a float network to a snapshot, with a report of the error.
//!
//! Each neuron gets the finest scale at which its sum provably stays in its lane; biases are then corrected so that
//! no neuron is off on average where the policy has been. The two networks are compared on visited states and off the
//! policy's path, and a network that is not true enough is refused. See `nn-inkernel/ARITHMETIC.md`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod layer;
mod measure;
mod mlp;
mod states;

pub use ccplane_snapshot as snapshot;

pub use mlp::{Activation, Dense, Mlp, MlpError, Scratch};

use ccplane_infer::{Bits, Shape, ShapeError};
use ccplane_snapshot::{
    Fidelity, Guards, Network, NetworkError, Parts, PolicySpec, Provenance, Snapshot, SnapshotError,
};

/// Visited states that are used, at most; of more, every n-th is taken.
pub const MAX_VISITED: usize = 1 << 15;

/// The width of the integers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Width {
    /// 8 bits if that is within the budget, else 16.
    #[default]
    Auto,
    /// 8 bits for activations; weights have 16 either way.
    W8,
    /// 16 bits for activations.
    W16,
}

/// Options of the quantisation.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    pub bits: Width,
    /// Largest mean error allowed on visited states, in shares of the action's range (`2 * bound`).
    pub budget_visited: f64,
    /// Largest mean error allowed off the policy's path, in the same shares.
    pub budget_off: f64,
    /// The seed of the states off the path.
    pub seed: u64,
    /// Limits at which a datapath's monitor steps in; [`Guards::for_inputs`] unless given.
    pub guards: Option<Guards>,
    /// The origin of the network.
    pub provenance: Provenance,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            bits: Width::Auto,
            budget_visited: 0.01,
            budget_off: 0.02,
            seed: 1,
            guards: None,
            provenance: Provenance::default(),
        }
    }
}

/// Reasons why a network cannot be quantised. Layers and neurons count from 1.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum QuantizeError {
    /// Network and spec have different numbers of inputs.
    #[error("the network has {found} inputs, the policy's spec {expected}")]
    Inputs {
        /// The network's inputs.
        found: usize,
        /// The spec's inputs.
        expected: usize,
    },
    /// No visited states are given to compare on.
    #[error("no visited states: the networks are compared on states that the policy visits")]
    NoStates,
    /// A state has too few or too many cells.
    #[error("visited state {state} has {found} cells, the policy has {expected} inputs")]
    State {
        /// The state's index, from 0.
        state: usize,
        found: usize,
        expected: usize,
    },
    /// No datapath holds a network of this shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A sum can grow beyond every scale.
    #[error("neuron {neuron} of layer {layer}: its sum can reach {reach}, at most {limit} can be held")]
    Reach {
        layer: usize,
        /// The neuron's number within its layer.
        neuron: usize,
        /// The largest magnitude that the sum can reach.
        reach: f64,
        limit: f64,
    },
    /// The integer network's error exceeds the budget.
    #[error(
        "not true enough with {} bits: mean error {:.4} on visited states (budget {budget_visited}), \
         {:.4} off them (budget {budget_off}), in shares of the action's range",
        *bits as u8, fidelity.visited_mean_error, fidelity.off_mean_error
    )]
    OverBudget {
        /// The width of its integers.
        bits: Bits,
        fidelity: Fidelity,
        /// Largest mean error allowed on visited states.
        budget_visited: f64,
        /// Largest mean error allowed off the policy's path.
        budget_off: f64,
    },
    /// The integer network does not run.
    #[error("the integer network's image is of another shape: it cannot be compared with the float network")]
    Unmeasured,
    /// The integer network is not valid.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The parts do not make a snapshot.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

/// Makes a snapshot of `mlp`, deterministically. `visited` are states that the policy visits, as history cells.
///
/// The integer scales are fitted to these states, and the error is measured there. A classifier's error on a state is 1 if the
/// integer network gives another class, else 0.
///
/// # Errors
/// [`QuantizeError`]; with [`Width::Auto`] that of 16 bits.
pub fn quantize(
    mlp: &Mlp,
    spec: &PolicySpec,
    visited: &[Vec<i32>],
    options: &Options,
) -> Result<Snapshot, QuantizeError> {
    let (found, expected) = (mlp.layers()[0].inputs, spec.inputs().len());
    if found != expected {
        return Err(QuantizeError::Inputs { found, expected });
    }
    if visited.is_empty() {
        return Err(QuantizeError::NoStates);
    }
    if let Some((state, cells)) = visited.iter().enumerate().find(|(_, cells)| cells.len() != expected) {
        return Err(QuantizeError::State { state, found: cells.len(), expected });
    }
    let step = visited.len().div_ceil(MAX_VISITED);
    let visited: Vec<&[i32]> = visited.iter().step_by(step).map(Vec::as_slice).collect();
    let off = states::off_path(spec, &visited, options.seed);
    let job = Job { mlp, spec, visited, off, options };
    match options.bits {
        Width::W8 => job.run(Bits::W8),
        Width::W16 => job.run(Bits::W16),
        Width::Auto => job.run(Bits::W8).or_else(|_| job.run(Bits::W16)),
    }
}

/// One network and the states that it is measured on.
struct Job<'a> {
    mlp: &'a Mlp,
    spec: &'a PolicySpec,
    visited: Vec<&'a [i32]>,
    off: Vec<Vec<i32>>,
    options: &'a Options,
}

impl Job<'_> {
    fn run(&self, bits: Bits) -> Result<Snapshot, QuantizeError> {
        let widths = self.mlp.widths();
        match widths.last() {
            Some(2..) => Shape::classifier(bits, &widths)?,
            _ => Shape::new(bits, &widths)?,
        };
        let built = layer::build(bits, self.mlp, self.spec, &self.visited, &self.off)?;
        let network = Network::new(bits, &widths, built.layers, built.out_mult, built.out_shift)?;
        let guards = self.options.guards.unwrap_or_else(|| Guards::for_inputs(widths[0]));
        let mut parts = Parts {
            spec: self.spec.clone(),
            network,
            guards,
            calibration: measure::calibration(&self.visited, built.sums),
            fidelity: Fidelity::default(),
            provenance: self.options.provenance.clone(),
        };
        let snapshot = Snapshot::new(parts.clone())?;
        let measured = measure::fidelity(self.mlp, &snapshot, &self.visited, &self.off);
        parts.fidelity = measured.ok_or(QuantizeError::Unmeasured)?;
        let fidelity = parts.fidelity;
        let (budget_visited, budget_off) = (self.options.budget_visited, self.options.budget_off);
        // Written so that a budget that is not a number refuses.
        if fidelity.visited_mean_error <= budget_visited && fidelity.off_mean_error <= budget_off {
            Ok(Snapshot::new(parts)?)
        } else {
            Err(QuantizeError::OverBudget { bits, fidelity, budget_visited, budget_off })
        }
    }
}

//! The student: a tree of linear models, in integers.

use crate::inputs::Input;
use serde::Serialize;

/// The divisor of a leaf's sum.
pub const ONE: i64 = 1 << 16;

/// A node of the tree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Node {
    Split {
        /// Place of the input that decides.
        input: usize,
        threshold: i64,
        /// Place of the left half's node.
        left: usize,
        /// Place of the right half's.
        right: usize,
    },
    /// `(bias + sum of weight * input) / 2^16` is the action, Q16.
    Leaf {
        bias: i64,
        /// One for each input, Q16.
        weights: Vec<i64>,
    },
}

/// A policy as a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Student {
    pub inputs: Vec<Input>,
    /// The first is the root; the others come after the node that names them.
    pub nodes: Vec<Node>,
    /// Largest action either way, Q16.
    pub bound_q16: i64,
}

impl Student {
    /// Returns the student's action, bounded, Q16.
    pub fn action_q16(&self, value: impl Fn(Input) -> i64) -> i64 {
        let mut at = 0;
        loop {
            match self.nodes.get(at) {
                Some(Node::Split { input, threshold, left, right }) => {
                    let below = self.inputs.get(*input).is_some_and(|i| value(*i) < *threshold);
                    at = if below { *left } else { *right };
                }
                Some(Node::Leaf { bias, weights }) => {
                    let terms = self.inputs.iter().zip(weights).map(|(input, weight)| weight * value(*input));
                    let sum = bias + terms.sum::<i64>();
                    return (sum / ONE).clamp(-self.bound_q16, self.bound_q16);
                }
                None => return 0,
            }
        }
    }

    /// Returns the number of leaves.
    pub fn leaves(&self) -> usize {
        self.nodes.iter().filter(|node| matches!(node, Node::Leaf { .. })).count()
    }
}

//! Layers as they come, one after the other.

use ccplane_quantize::{Activation, Dense, Mlp, MlpError};

/// A network under construction.
#[derive(Default)]
pub(crate) struct Chain {
    layers: Vec<Dense>,
    /// Numbers of an observation, where a reshaping before the first layer says how many.
    observed: Option<usize>,
}

/// The reason why a step cannot follow those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Misplaced(pub(crate) &'static str);

impl Chain {
    /// Appends a linear layer, its weights row by row: all inputs of output 0 first.
    pub(crate) fn dense(
        &mut self,
        inputs: usize,
        outputs: usize,
        weights: Vec<f32>,
        bias: Option<Vec<f32>>,
    ) -> Result<(), Misplaced> {
        if self.observed.take().is_some_and(|numbers| numbers != inputs) {
            return Err(Misplaced("it takes rows of another length than a reshaping before it makes"));
        }
        let bias = bias.unwrap_or_else(|| vec![0.0; outputs]);
        self.layers.push(Dense { inputs, outputs, weights, bias, activation: None });
        Ok(())
    }

    /// Takes rows of so many numbers as they are.
    pub(crate) fn rows(&mut self, numbers: usize) -> Result<(), Misplaced> {
        let before = self.layers.last().map(|last| last.outputs).or(self.observed);
        if before.is_some_and(|before| before != numbers) {
            return Err(Misplaced("it makes rows of another length"));
        }
        if self.layers.is_empty() {
            self.observed = Some(numbers);
        }
        Ok(())
    }

    /// Adds to the last layer's biases.
    pub(crate) fn add(&mut self, numbers: &[f32]) -> Result<(), Misplaced> {
        let last = self.linear()?;
        if numbers.len() != last.outputs && numbers.len() != 1 {
            return Err(Misplaced("it adds another count of numbers than the layer before it has outputs"));
        }
        for (bias, number) in last.bias.iter_mut().zip(numbers.iter().cycle()) {
            *bias += number;
        }
        Ok(())
    }

    /// Sets the last layer's activation.
    pub(crate) fn activate(&mut self, activation: Activation) -> Result<(), Misplaced> {
        self.linear()?.activation = Some(activation);
        Ok(())
    }

    /// Makes the network of these layers.
    pub(crate) fn network(self) -> Result<Mlp, MlpError> {
        Mlp::new(self.layers)
    }

    fn linear(&mut self) -> Result<&mut Dense, Misplaced> {
        let last = self.layers.last_mut().filter(|last| last.activation.is_none());
        last.ok_or(Misplaced("no dense layer stands before it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reshapings_of_an_observation_make_the_same_rows() {
        let reshaped = |first, second| {
            let mut chain = Chain::default();
            chain.rows(first).and_then(|()| chain.rows(second))
        };
        assert_eq!(reshaped(6, 6), Ok(()));
        assert_eq!(reshaped(3, 6), Err(Misplaced("it makes rows of another length")));
    }
}

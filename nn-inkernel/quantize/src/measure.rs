//! Comparison of an integer network with its float network.

use crate::mlp::{Mlp, Scratch};
use ccplane_infer::Model;
use ccplane_snapshot::{Calibration, DeployOptions, Fidelity, Snapshot};

/// Runs both networks on every state; `None` if the integer network does not run.
pub(crate) fn fidelity(
    mlp: &Mlp,
    snapshot: &Snapshot,
    visited: &[&[i32]],
    off: &[Vec<i32>],
) -> Option<Fidelity> {
    let image = snapshot.image(&DeployOptions::ONLY);
    let model = Model::new(snapshot.shape(), &image)?;
    let mut comparison = Comparison {
        mlp,
        snapshot,
        model,
        scratch: Scratch::default(),
        input: vec![0.0; snapshot.spec().inputs().len()],
        actions: (i64::MAX, i64::MIN),
    };
    let (visited_mean_error, visited_max_error) = comparison.errors(visited.iter().copied());
    let (off_mean_error, off_max_error) = comparison.errors(off.iter().map(Vec::as_slice));
    Some(Fidelity {
        visited_mean_error,
        visited_max_error,
        visited_samples: visited.len() as u32,
        off_mean_error,
        off_max_error,
        off_samples: off.len() as u32,
        min_action_q16: comparison.actions.0,
        max_action_q16: comparison.actions.1,
    })
}

struct Comparison<'a> {
    mlp: &'a Mlp,
    snapshot: &'a Snapshot,
    model: Model<'a>,
    scratch: Scratch,
    input: Vec<f32>,
    actions: (i64, i64),
}

impl Comparison<'_> {
    /// Measures the mean and largest error.
    fn errors<'s>(&mut self, states: impl ExactSizeIterator<Item = &'s [i32]>) -> (f64, f64) {
        let count = states.len().max(1) as f64;
        let (mut total, mut max) = (0.0, 0.0f64);
        for cells in states {
            let error = self.error(cells);
            total += error;
            max = max.max(error);
        }
        // The sum is rounded.
        ((total / count).min(max), max)
    }

    fn error(&mut self, cells: &[i32]) -> f64 {
        let action = self.snapshot.spec().action();
        self.snapshot.spec().normalise(cells, &mut self.input);
        if self.snapshot.shape().outputs() > 1 {
            return self.other_class(cells);
        }
        let expected = f64::from(self.mlp.forward(&self.input, &mut self.scratch));
        let expected = expected.clamp(-action.bound(), action.bound());
        let bound = i64::from(action.bound_q16);
        let got = self.model.infer(cells).action_q16.clamp(-bound, bound);
        self.actions = (self.actions.0.min(got), self.actions.1.max(got));
        (got as f64 / 65536.0 - expected).abs() / (2.0 * action.bound())
    }

    /// 1 if a classifier's two networks give different classes of the input, which is normalised already.
    fn other_class(&mut self, cells: &[i32]) -> f64 {
        let expected = self.mlp.classify(&self.input, &mut self.scratch);
        let class = self.model.classify(cells).class;
        let class_q16 = i64::from(class) << 16;
        self.actions = (self.actions.0.min(class_q16), self.actions.1.max(class_q16));
        f64::from(u8::from(usize::from(class) != expected))
    }
}

/// The ranges that inputs and sums reach on visited states.
pub(crate) fn calibration(visited: &[&[i32]], sums: Vec<u32>) -> Calibration {
    let width = visited.first().map_or(0, |state| state.len());
    let inputs = (0..width)
        .map(|n| {
            let cells = || visited.iter().filter_map(|state| state.get(n).copied());
            (cells().min().unwrap_or(0), cells().max().unwrap_or(0))
        })
        .collect();
    Calibration { inputs, sums }
}

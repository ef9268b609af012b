//! A predictor of sizes that keeps what it is told of flows that have ended.

use crate::thresholds::SizedFlow;
use ccplane_algs::{Predictor, SIZE_INPUTS, SizeDecision};
use std::sync::{Arc, Mutex, PoisonError};

/// Keeps the flows that end, and predicts by another predictor, if there is one.
#[derive(Default)]
pub struct Recorder {
    predictor: Option<Arc<dyn Predictor>>,
    flows: Mutex<Vec<SizedFlow>>,
}

impl Recorder {
    /// Predicts by this one.
    pub fn of(predictor: Arc<dyn Predictor>) -> Recorder {
        Recorder { predictor: Some(predictor), flows: Mutex::default() }
    }

    /// Takes the flows so far, in the order of their ends.
    pub fn take(&self) -> Vec<SizedFlow> {
        std::mem::take(&mut self.flows.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Predictor for Recorder {
    fn predict(&self, inputs: &[i32; SIZE_INPUTS]) -> Option<i32> {
        self.predictor.as_ref()?.predict(inputs)
    }

    fn ended(&self, decisions: &[SizeDecision], size_bytes: u64) {
        let flow = SizedFlow { size_bytes, decisions: decisions.to_vec() };
        self.flows.lock().unwrap_or_else(PoisonError::into_inner).push(flow);
    }
}

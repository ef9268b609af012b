//! Placement `fold`: Aurora's policy distilled into its program, for datapaths without networks.
//!
//! `aurora_fold.fold` comes from `ccplane distill`, whose command and figures head the file.

use std::sync::Arc;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, ProgramSource, Report};

use super::fields_of;
use crate::Aurora;

const NAME: &str = "aurora-fold";

// State

/// The agent's side of a flow. There is nothing to decide, and nobody learns.
struct DistilledFlow;

// Behaviour

impl Flow for DistilledFlow {
    fn on_report(&mut self, _now_us: u64, _report: &Report<'_>, _control: &mut Control) {}
}

// Factory

/// Makes flows that decide by Aurora's distilled policy.
#[derive(Clone)]
pub struct Distilled {
    aurora: Arc<dyn Algorithm>,
}

impl Default for Distilled {
    fn default() -> Self {
        Distilled { aurora: Arc::new(Aurora::default()) }
    }
}

impl Algorithm for Distilled {
    fn name(&self) -> &'static str {
        NAME
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: NAME, source: include_str!("aurora_fold.fold") }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program(NAME, &fields_of(&*self.aurora, info));
        Box::new(DistilledFlow)
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.aurora.parameters()
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Distilled { aurora: self.aurora.configured(values)? }))
    }
}

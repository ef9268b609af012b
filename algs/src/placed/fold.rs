//! Placement `fold`: Aurora's policy distilled into its program, for datapaths without networks.
//!
//! `aurora_fold.fold` comes from `ccplane distill`, whose command and figures head the file.

use std::sync::Arc;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter};

use super::{Unattended, fields_of};
use crate::aurora::Aurora;

const NAME: &str = "aurora-fold";

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
    ccplane_alg::one_program!(NAME, "aurora_fold.fold");

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program(NAME, &fields_of(&*self.aurora, info));
        Box::new(Unattended)
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.aurora.parameters()
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        Some(Arc::new(Distilled { aurora: self.aurora.configured(values)? }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_snapshot::Snapshot;

    #[test]
    fn it_is_distilled_from_the_snapshot_that_ships() {
        let shipped = Aurora::default().policies().remove(0);
        let hash = Snapshot::built_in(shipped.snapshot).unwrap().hash();
        let source = Distilled::default().programs().remove(0).source;
        assert!(source.contains(&format!("# Of snapshot {hash}.\n")), "distil it anew, from {hash}");
    }
}

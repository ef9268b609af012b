//! Aurora with a slot of its own that is never improved: the baseline for a learning Aurora that runs at the same time.

use std::sync::{Arc, LazyLock};

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Parameter, PolicySource, ProgramSource};

use super::{Unattended, fields_of};
use crate::aurora::Aurora;
use crate::policy_program::PolicyProgram;

const NAME: &str = "aurora-still";
/// The slot that it asks.
const SLOT: u8 = 2;

// Factory

/// Makes flows that keep the policy that Aurora comes with.
#[derive(Clone)]
pub struct Still {
    aurora: Arc<dyn Algorithm>,
    program: &'static str,
}

impl Still {
    /// `None` while Aurora comes without a policy.
    pub fn aurora() -> Option<Still> {
        static PROGRAM: LazyLock<Option<String>> = LazyLock::new(|| program(&Aurora::default()));
        let aurora = Aurora::default();
        let program = PROGRAM.as_deref().filter(|_| !aurora.policies().is_empty())?;
        Some(Still { aurora: Arc::new(aurora), program })
    }
}

/// Its program, asking the other slot.
fn program(aurora: &Aurora) -> Option<String> {
    PolicyProgram::of(aurora.programs().first()?.source)?.asking(&format!("(policy {SLOT})"))
}

impl Algorithm for Still {
    fn name(&self) -> &'static str {
        NAME
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![ProgramSource { name: NAME, source: self.program }]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        control.set_program(NAME, &fields_of(&*self.aurora, info));
        Box::new(Unattended)
    }

    fn policies(&self) -> Vec<PolicySource> {
        // Without the float policy there is nothing that learning could go on from.
        let own = |source: PolicySource| PolicySource { slot: SLOT, policy: Arc::new([]), ..source };
        self.aurora.policies().into_iter().map(own).collect()
    }

    fn parameters(&self) -> &'static [Parameter] {
        self.aurora.parameters()
    }

    fn configured(&self, values: &[(&'static str, i64)]) -> Option<Arc<dyn Algorithm>> {
        let aurora = self.aurora.configured(values)?;
        Some(Arc::new(Still { aurora, program: self.program }))
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_slot_is_another() {
        let own = ccplane_program::compile(&program(&Aurora::default()).unwrap()).unwrap();
        let theirs = ccplane_program::compile(Aurora::default().programs()[0].source).unwrap();
        assert_eq!((own.policy_slots(), theirs.policy_slots()), (vec![SLOT], vec![0]));
        assert_eq!(own.insts().len(), theirs.insts().len());
        assert_eq!(own.histories(), theirs.histories());
    }
}

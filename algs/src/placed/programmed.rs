//! An algorithm under another program than the one that ships: a text that someone tries, or a policy that was distilled anew.

use std::sync::Arc;

use ccplane_alg::{Algorithm, Control, Flow, FlowInfo, Handover, PolicySource, ProgramSource};
use ccplane_program::ir::Program;

use super::{LABEL_SIGN, fields_of};

/// A flow's segment and first window, bytes, to see which registers an algorithm sets.
const EXAMPLE: (u32, u64) = (1448, 14_480);

/// Reasons to refuse an algorithm a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnfitProgram {
    /// The algorithm has no program, or several.
    #[error("`{algorithm}` has {found} programs: only an algorithm with one can run another")]
    NotOne { algorithm: &'static str, found: usize },
    /// The program lacks a register that the agent sets when a flow starts.
    #[error("`{algorithm}` sets `{register}` when a flow starts, and the program declares no such register")]
    NoRegister { algorithm: &'static str, register: &'static str },
}

// Factory

/// Makes flows of an algorithm that run another program than the one that ships.
#[derive(Clone)]
pub struct WithProgram {
    algorithm: Arc<dyn Algorithm>,
    name: &'static str,
    program: ProgramSource,
}

impl WithProgram {
    /// `program` is `source` compiled. The name, which ends in `label`, and the text stay in memory until the process ends.
    ///
    /// # Errors
    /// The program does not fit the algorithm: [`UnfitProgram`] says why.
    pub fn new(
        algorithm: Arc<dyn Algorithm>,
        label: &str,
        source: &str,
        program: &Program,
    ) -> Result<WithProgram, UnfitProgram> {
        let of = algorithm.name();
        let shipped = algorithm.programs();
        let [own] = &shipped[..] else {
            return Err(UnfitProgram::NotOne { algorithm: of, found: shipped.len() });
        };
        let (mss_bytes, window_bytes) = EXAMPLE;
        let fields = fields_of(&*algorithm, &FlowInfo::example(mss_bytes, window_bytes));
        let known = |name: &str| ["Cwnd", "Rate"].contains(&name) || program.reg(name).is_some();
        if let Some((register, _)) = fields.iter().find(|(name, _)| !known(name)) {
            return Err(UnfitProgram::NoRegister { algorithm: of, register });
        }
        let program = ProgramSource { source: source.to_owned().leak(), ..*own };
        Ok(WithProgram { name: format!("{of}{LABEL_SIGN}{label}").leak(), algorithm, program })
    }
}

impl Algorithm for WithProgram {
    fn name(&self) -> &'static str {
        self.name
    }

    fn programs(&self) -> Vec<ProgramSource> {
        vec![self.program]
    }

    fn flow(&self, info: &FlowInfo, control: &mut Control) -> Box<dyn Flow> {
        self.algorithm.flow(info, control)
    }

    fn resume(&self, info: &FlowInfo, from: &Handover, control: &mut Control) -> Box<dyn Flow> {
        self.algorithm.resume(info, from, control)
    }

    fn policies(&self) -> Vec<PolicySource> {
        self.algorithm.policies()
    }
}

// Tests

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cubic::CUBIC;
    use crate::reno::RENO;
    use ccplane_program::compile;

    fn with(algorithm: Arc<dyn Algorithm>, source: &str) -> Result<WithProgram, UnfitProgram> {
        WithProgram::new(algorithm, "mine", source, &compile(source).unwrap())
    }

    #[test]
    fn a_flow_runs_the_other_text_with_the_algorithms_own_registers() {
        let mine = format!("# Mine.\n{}", RENO.source);
        let variant = with(Arc::new(RENO), &mine).unwrap();
        assert_eq!((variant.name(), variant.programs()[0].source), ("reno@mine", &*mine));
        let info = FlowInfo::example(1448, 14_480);
        assert_eq!(fields_of(&variant, &info), fields_of(&RENO, &info));
        assert_eq!(variant.programs()[0].name, RENO.programs()[0].name);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let lacks = with(Arc::new(CUBIC), "(def (Report.acked 0)) (when true (report))").err().unwrap();
        assert!(matches!(lacks, UnfitProgram::NoRegister { algorithm: "cubic", .. }), "{lacks}");
        let none = with(Arc::new(crate::Portfolio::default()), RENO.source).err().unwrap();
        assert!(matches!(none, UnfitProgram::NotOne { algorithm: "portfolio", .. }), "{none}");
    }
}

//! Named cases: a program, a stream, and what must come out, worked out by hand.
//!
//! Every case is held against the reference VM as well, register by register.

mod arithmetic;
mod case;
mod policies;
mod programs;

pub use case::{Case, CaseError, Expectation, Observable};

/// Builds every named case of the suite.
///
/// # Errors
/// None, as the tests of this crate show; a caller need not trust that.
pub fn all() -> Result<Vec<Case>, CaseError> {
    let mut cases = arithmetic::cases()?;
    cases.extend(programs::cases()?);
    cases.extend(policies::cases()?);
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{Divergence, Executor, ExecutorError, Observation, Reference, Script};
    use std::collections::HashSet;

    #[test]
    fn the_reference_passes_every_case() {
        let cases = all().unwrap();
        let names: HashSet<&str> = cases.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names.len(), cases.len(), "names are unique");
        for case in &cases {
            assert!(!case.expectations.is_empty(), "{}", case.name);
            if let Err(why) = case.check(&mut Reference) {
                panic!("{}: {why}", case.name);
            }
        }
    }

    /// An executor with one defect, given as a change of what the reference saw.
    struct Broken(fn(&mut Observation));

    impl Executor for Broken {
        fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
            let mut seen = Reference.execute(script)?;
            seen.iter_mut().for_each(self.0);
            Ok(seen)
        }
        fn policies(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_defect_of_any_kind_is_found() {
        let defects: [fn(&mut Observation); 9] = [
            |o| o.faults = 0,
            |o| o.cwnd_bytes = o.cwnd_bytes.min(i64::from(u32::MAX)),
            |o| o.rate_bytes_per_s &= i64::from(u32::MAX),
            |o| o.regs.iter_mut().for_each(|r| *r = i64::from(*r as i32)),
            |o| o.report = None,
            |o| o.policy.iter_mut().for_each(|p| p.action_q16 = 0),
            |o| o.policy.iter_mut().for_each(|p| p.flow.buffer = 0),
            |o| o.policy.iter_mut().for_each(|p| p.histories.reverse()),
            |o| o.policy.iter_mut().for_each(|p| p.native = false),
        ];
        let cases = all().unwrap();
        for (n, defect) in defects.into_iter().enumerate() {
            let found = cases.iter().filter(|c| c.check(&mut Broken(defect)).is_err()).count();
            assert!(found > 0, "defect {n}");
        }
    }

    #[test]
    fn an_executor_that_skips_invocations_is_found() {
        struct Short;
        impl Executor for Short {
            fn execute(&mut self, script: &Script) -> Result<Vec<Observation>, ExecutorError> {
                let mut seen = Reference.execute(script)?;
                seen.pop();
                Ok(seen)
            }
        }
        let cases = all().unwrap();
        assert!(cases.iter().all(|c| matches!(c.check(&mut Short), Err(Divergence::Length { .. }))));
    }
}

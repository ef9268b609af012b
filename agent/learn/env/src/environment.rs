//! Links as something to learn in.

use crate::decider::Learning;
use crate::error::EnvError;
use crate::family::Family;
use crate::flow::Prepared;
use crate::measure::NoObserver;
use crate::scenario::Scenario;
use crate::world::run;
use ccplane_alg::{Algorithm, configure};
use ccplane_learn::{Actor, Environment, Preference, PreferenceError};
use ccplane_snapshot::PolicySpec;
use std::sync::Arc;

/// Parameters by which an algorithm takes a preference, percents.
const PREFERENCE: [&str; 3] = ["w_thr_pct", "w_lat_pct", "w_loss_pct"];

/// Links of a family, under an algorithm that asks a policy. One agent a flow.
#[derive(Clone)]
pub struct Links {
    family: Family,
    /// The scenarios to choose from, where they are given rather than drawn.
    given: Option<Arc<[Scenario]>>,
    spec: PolicySpec,
    /// The learning one, and its rival where there is one.
    algorithms: Vec<Prepared>,
}

impl Links {
    /// `algorithm` learns, on links of `family`, also beside flows of `rival`; `spec` is its policy's.
    ///
    /// # Errors
    /// Programs that do not compile, ask no policy, or one of other inputs; a family's ranges.
    pub fn new(
        algorithm: Arc<dyn Algorithm>,
        rival: Option<Arc<dyn Algorithm>>,
        family: Family,
        spec: PolicySpec,
    ) -> Result<Links, EnvError> {
        family.check()?;
        let name = algorithm.name();
        let learner = Prepared::new(algorithm)?;
        if learner.slot().is_none() {
            return Err(EnvError::NoPolicy { algorithm: name });
        }
        let (found, expected) = (spec.inputs().len(), learner.policy_inputs());
        if found != expected {
            return Err(EnvError::Inputs { found, expected });
        }
        let algorithms =
            [Ok(learner)].into_iter().chain(rival.map(Prepared::new)).collect::<Result<_, _>>()?;
        Ok(Links { family, given: None, spec, algorithms })
    }

    /// The same on these scenarios, one of which each seed names, rather than on the family's. Their flows' algorithms are the learning one
    /// and, from 1 on, `rivals`.
    ///
    /// # Errors
    /// A rival's programs; no scenarios, or one that names another algorithm or is outside the simulator's limits.
    pub fn on(self, scenarios: Vec<Scenario>, rivals: Vec<Arc<dyn Algorithm>>) -> Result<Links, EnvError> {
        let learner = self.algorithms.into_iter().next().map(Ok);
        let algorithms: Vec<Prepared> =
            learner.into_iter().chain(rivals.into_iter().map(Prepared::new)).collect::<Result<_, _>>()?;
        let named = scenarios.iter().flat_map(|scenario| &scenario.flows).map(|flow| flow.algorithm);
        let (found, known) = (named.max().ok_or(EnvError::NoFlows)?, algorithms.len());
        if found >= known {
            return Err(EnvError::Algorithm { found, known });
        }
        scenarios.iter().try_for_each(Scenario::check)?;
        Ok(Links { given: Some(scenarios.into()), algorithms, ..self })
    }

    /// Sets the preference of the learning algorithm's flows in the episodes that follow.
    ///
    /// # Errors
    /// It has no parameters for that.
    pub fn prefer(&mut self, preference: Preference) -> Result<(), EnvError> {
        let algorithm = self.algorithms[0].algorithm();
        let percents = preference.weights().map(|w| ((w * 100.0).round() as i64).clamp(1, 100));
        let configured = configure(algorithm, PREFERENCE.into_iter().zip(percents))
            .map_err(|source| EnvError::Preference { algorithm: algorithm.name(), source })?;
        self.algorithms[0] = self.algorithms[0].configured(configured);
        Ok(())
    }

    /// Returns the meaning of its policy's inputs and action.
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// Returns the most flows that learn in one episode.
    pub fn most_learners(&self) -> usize {
        let learners = |scenario: &Scenario| scenario.flows.iter().filter(|flow| flow.algorithm == 0).count();
        match &self.given {
            Some(scenarios) => scenarios.iter().map(learners).max().unwrap_or(0),
            None => self.family.most_learners(),
        }
    }

    /// Draws, or chooses, the scenario of an episode.
    pub(crate) fn draw(&self, seed: u64, max_steps: usize) -> Scenario {
        match &self.given {
            Some(scenarios) => scenarios[(seed % scenarios.len() as u64) as usize].clone(),
            None => self.family.draw(seed, max_steps, self.algorithms.len() > 1),
        }
    }

    /// Returns the algorithms of its flows, the learning one first.
    pub fn algorithms(&self) -> &[Prepared] {
        &self.algorithms
    }
}

impl Environment for Links {
    fn observation_len(&self) -> usize {
        self.spec.inputs().len()
    }

    fn prefer(&mut self, preference: Preference) -> Result<(), PreferenceError> {
        Links::prefer(self, preference).map_err(|error| PreferenceError::Refused(error.into()))
    }

    fn episode(&mut self, seed: u64, max_steps: usize, actor: &mut dyn Actor) {
        let scenario = self.draw(seed, max_steps);
        let mut learning = Learning::new(&self.spec, actor);
        // Nothing is refused here: given scenarios were checked, and a family's ranges are within the simulator's.
        let _ = run(&scenario, &self.algorithms, seed, max_steps, &mut learning, &mut NoObserver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn who_takes_no_preference_says_so() {
        let even = Preference::new(1.0, 1.0, 1.0).unwrap();
        let (mut aurora, mut mocc) =
            (Recipe::aurora().unwrap().links().unwrap(), Recipe::mocc().unwrap().links().unwrap());
        mocc.prefer(even).unwrap();
        assert!(matches!(aurora.prefer(even), Err(EnvError::Preference { algorithm: "aurora", .. })));
        let refused = Environment::prefer(&mut aurora, even);
        assert!(matches!(refused, Err(PreferenceError::Refused(_))), "{refused:?}");
    }
}

//! A digest of everything that a training's bits follow from.

use super::{ENVIRONMENTS, Recipe, RecipeError};
use ccplane_learn::evaluate;
use sha2::{Digest, Sha256};

/// Decisions of an episode that is played to know the environments by.
const STEPS: usize = 50;

impl Recipe {
    /// A digest of what is learned in: links, inputs, programs; and, as no description has these, of what simulator and
    /// reward make of them for the policy that learning begins with.
    ///
    /// # Errors
    /// As [`Recipe::environments`] and [`Recipe::initial`].
    pub fn digest(&self) -> Result<String, RecipeError> {
        let (mut environments, initial) = (self.environments()?, self.initial()?);
        let (goals, seed) = (&self.train.goals, self.train.seed);
        let rewards = evaluate(&initial, &mut environments, goals, seed, ENVIRONMENTS, STEPS, 1)?;
        let algorithms = [Some(&self.algorithm), self.rival.as_ref()];
        let programs = algorithms.map(|one| one.map(|algorithm| (algorithm.name(), algorithm.programs())));
        // The shortest text that a number follows from again is its own.
        let text = format!("{:?} {:?} {programs:?} {rewards:?}", self.family, self.spec);
        Ok(Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::{Family, RealLinks};
    use ccplane_algs::{Aurora, AuroraConfig};
    use std::sync::Arc;

    #[test]
    fn whatever_changes_what_is_learned_changes_it() {
        let recipe = Recipe::aurora().unwrap();
        let own = recipe.digest().unwrap();
        assert_eq!(own, Recipe::aurora().unwrap().digest().unwrap());
        let links = RealLinks { lossy: 0.36, ..RealLinks::default() };
        let others = [
            Recipe { family: Family::Real(links), ..recipe.clone() },
            Recipe { rival: None, ..recipe.clone() },
            // The same name and program under another reward.
            Recipe { algorithm: Arc::new(Aurora { config: AuroraConfig::published() }), ..recipe.clone() },
            Recipe { spec: crate::spec::aurora(crate::spec::Steps::PUBLISHED).unwrap(), ..recipe },
        ];
        for other in others {
            assert_ne!(own, other.digest().unwrap());
        }
    }
}

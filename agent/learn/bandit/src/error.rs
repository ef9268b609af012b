//! The reason why a bandit refuses a number.

use crate::{MAX_ARMS, MAX_EXPERTS};

/// The reason why a bandit refuses a number; nothing is changed then.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum BanditError {
    /// The number of arms is outside its range.
    #[error("{found} arms, 1 to {MAX_ARMS} are allowed")]
    Arms { found: usize },
    /// The number of experts is outside its range.
    #[error("{found} experts, 1 to {MAX_EXPERTS} are allowed")]
    Experts { found: usize },
    /// A parameter is outside its range.
    #[error("{name} is {found}, {min} to {max} are allowed")]
    Parameter { name: &'static str, found: f64, min: f64, max: f64 },
    /// A reward is not within 0 to 1.
    #[error("a reward is {found}, 0 to 1 are allowed")]
    Reward { found: f64 },
    /// No arm has this number.
    #[error("arm {found} of {arms} does not exist")]
    NoArm {
        /// The arm, from 0.
        found: usize,
        arms: usize,
    },
    /// A probability is not above 0 and at most 1.
    #[error("a draw's probability is {found}, above 0 and at most 1 are allowed")]
    Probability { found: f64 },
    /// An expert's advice is no distribution over the arms.
    #[error("the advice of expert {expert} is no distribution over the arms")]
    Advice {
        /// The expert, from 0.
        expert: usize,
    },
    /// A list has a wrong length.
    #[error("{found} entries, {expected} are needed")]
    Length { found: usize, expected: usize },
}

pub(crate) fn within(name: &'static str, found: f64, min: f64, max: f64) -> Result<f64, BanditError> {
    if (min..=max).contains(&found) {
        Ok(found)
    } else {
        Err(BanditError::Parameter { name, found, min, max })
    }
}

pub(crate) fn arms(found: usize) -> Result<usize, BanditError> {
    if (1..=MAX_ARMS).contains(&found) { Ok(found) } else { Err(BanditError::Arms { found }) }
}

pub(crate) fn reward(found: f64) -> Result<f64, BanditError> {
    if (0.0..=1.0).contains(&found) { Ok(found) } else { Err(BanditError::Reward { found }) }
}

pub(crate) fn arm(found: usize, arms: usize) -> Result<usize, BanditError> {
    if found < arms { Ok(found) } else { Err(BanditError::NoArm { found, arms }) }
}

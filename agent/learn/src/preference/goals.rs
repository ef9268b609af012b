//! Which preference each episode of a training has.

use super::{LANDMARKS, PIVOTS, Preference, landmarks};
use crate::Rng;
use serde::{Deserialize, Serialize};

/// Updates that a landmark is the new one for, in the second phase.
pub const TRANSFER_UPDATES: u64 = 4;

/// What a training is for.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Goals {
    /// The environment's own reward.
    #[default]
    Own,
    /// This preference alone.
    One(Preference),
    /// Any preference: MOCC's two phases. For the first `bootstrap` of the training the pivots in turn; then the landmarks
    /// in the order of transfer, [`TRANSFER_UPDATES`] each, over and over: every other episode has the landmark, and
    /// those between one of the others that were learned so far.
    Landmarks {
        /// Share of the first phase, 0 to 1.
        bootstrap: f32,
    },
    /// A new preference without forgetting the old ones: every other episode has the new one, those between one of the
    /// old, drawn anew. So an update's loss is the average of the new objective's and a replayed one's (Ma et al.,
    /// EuroSys 2022, section 4.3).
    Adapt {
        /// The new one.
        new: Preference,
        /// The old ones; without any, all episodes have the new one.
        old: Vec<Preference>,
    },
}

impl Goals {
    /// The preference of episode `episode` of update `update`, at `progress` (0 to 1) of the training.
    pub fn training(&self, progress: f32, update: u64, episode: usize, rng: &mut Rng) -> Option<Preference> {
        match self {
            Goals::Own => None,
            Goals::One(preference) => Some(*preference),
            Goals::Landmarks { bootstrap } if progress < *bootstrap => Some(landmarks()[episode % PIVOTS]),
            Goals::Landmarks { .. } => {
                let turn = update / TRANSFER_UPDATES;
                let focus = (turn % LANDMARKS as u64) as usize;
                let known = if turn < LANDMARKS as u64 { focus.max(PIVOTS) } else { LANDMARKS };
                Some(landmarks()[if episode.is_multiple_of(2) { focus } else { rng.below(known) }])
            }
            Goals::Adapt { new, old } => match old.get(rng.below(old.len())) {
                Some(replayed) if episode % 2 == 1 => Some(*replayed),
                _ => Some(*new),
            },
        }
    }

    /// The preference of episode `episode` of an evaluation.
    pub fn evaluation(&self, episode: usize) -> Option<Preference> {
        match self {
            Goals::Own => None,
            Goals::One(preference) => Some(*preference),
            Goals::Landmarks { .. } => Some(landmarks()[episode % LANDMARKS]),
            Goals::Adapt { new, .. } => Some(*new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_phases() {
        let goals = Goals::Landmarks { bootstrap: 0.5 };
        let mut rng = Rng::new(1, &[]);
        let all = landmarks();
        for episode in 0..12 {
            assert_eq!(goals.training(0.1, 99, episode, &mut rng), Some(all[episode % 3]));
        }
        // The landmark's own episodes, and none that comes later.
        let update = 10 * TRANSFER_UPDATES;
        for episode in 0..200 {
            let goal = goals.training(0.6, update, episode, &mut rng).unwrap();
            let at = all.iter().position(|landmark| *landmark == goal).unwrap();
            assert!(if episode % 2 == 0 { at == 10 } else { at < 10 });
        }
    }

    #[test]
    fn half_of_an_adaptation_is_replay() {
        let (new, old) = (Preference::new(1.0, 1.0, 1.0).unwrap(), landmarks()[..2].to_vec());
        let mut rng = Rng::new(1, &[]);
        let goals = Goals::Adapt { new, old: old.clone() };
        let count = |wanted: Preference, rng: &mut Rng| {
            (0..1000).filter(|n| goals.training(0.0, 0, *n, rng) == Some(wanted)).count()
        };
        assert_eq!(count(new, &mut rng), 500);
        assert!((150..350).contains(&count(old[1], &mut rng)));
        let alone = Goals::Adapt { new, old: Vec::new() };
        assert!((0..10).all(|n| alone.training(0.0, 0, n, &mut rng) == Some(new)));
    }
}

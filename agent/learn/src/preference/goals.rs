//! The choice of each training episode's preference.

use super::{LANDMARKS, PIVOTS, Preference, landmarks};
use crate::rng::Rng;
use serde::{Deserialize, Serialize};

/// Updates that a landmark is the new one for, in the second phase.
pub const TRANSFER_UPDATES: u64 = 4;

/// The preferences that a training is for.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Goals {
    /// The environment's own reward.
    #[default]
    Own,
    One(Preference),
    /// Any preference: MOCC's two phases (Ma et al., EuroSys 2022, section 4.3). For the first `bootstrap` of the training
    /// the pivots in turn. Then a traversal of the other landmarks in the order of transfer, [`TRANSFER_UPDATES`] each:
    /// every other episode has the landmark, and those between one that came before it. It goes round and round, from the
    /// second time on between all landmarks.
    Landmarks {
        /// Share of the first phase, 0 to 1.
        bootstrap: f32,
    },
    /// A new preference without forgetting the old ones: every other episode has the new one, those between one of the
    /// old, drawn anew. So an update's loss is the average of the new objective's and a replayed one's (Ma et al.,
    /// EuroSys 2022, section 4.3).
    Adapt {
        new: Preference,
        /// The old ones; without any, all episodes have the new one.
        old: Vec<Preference>,
    },
}

impl Goals {
    /// True in the second phase, which begins at the first update with this: at `progress` (0 to 1) of the training.
    pub fn traverses(&self, progress: f32) -> bool {
        matches!(self, Goals::Landmarks { bootstrap } if progress >= *bootstrap)
    }

    /// The preference of episode `episode` of an update, `traversed` updates after the second phase's first one; `None`
    /// before it.
    pub fn training(&self, traversed: Option<u64>, episode: usize, rng: &mut Rng) -> Option<Preference> {
        match self {
            Goals::Own => None,
            Goals::One(preference) => Some(*preference),
            Goals::Landmarks { .. } => {
                let Some(updates) = traversed else { return Some(landmarks()[episode % PIVOTS]) };
                let turn = PIVOTS as u64 + updates / TRANSFER_UPDATES;
                let focus = (turn % LANDMARKS as u64) as usize;
                let known = if turn < LANDMARKS as u64 { focus } else { LANDMARKS };
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
    fn pivots_come_before_the_traversal_of_all_landmarks() {
        let goals = Goals::Landmarks { bootstrap: 0.3 };
        assert!(!goals.traverses(0.29) && goals.traverses(0.3) && !Goals::Own.traverses(1.0));
        let mut rng = Rng::new(1, &[]);
        let all = landmarks();
        let mut at = |traversed: Option<u64>, episode: usize| {
            let goal = goals.training(traversed, episode, &mut rng).unwrap();
            all.iter().position(|landmark| *landmark == goal).unwrap()
        };
        assert!((0..12).all(|episode| at(None, episode) == episode % PIVOTS));
        // The first round: each landmark after the pivots on its own episodes, between those that came before it only.
        let first_round = (LANDMARKS - PIVOTS) as u64 * TRANSFER_UPDATES;
        for update in 0..first_round {
            let focus = PIVOTS + (update / TRANSFER_UPDATES) as usize;
            for episode in 0..20 {
                let at = at(Some(update), episode);
                assert!(if episode % 2 == 0 { at == focus } else { at < focus }, "update {update}: {at}");
            }
        }
        // From the second on, the pivots too have their turn, between all landmarks.
        let seen: std::collections::HashSet<usize> =
            (0..1000).map(|n| at(Some(first_round), 2 * n + 1)).collect();
        assert_eq!((at(Some(first_round), 0), seen.len()), (0, LANDMARKS));
    }

    #[test]
    fn half_of_an_adaptation_is_replay() {
        let (new, old) = (Preference::new(1.0, 1.0, 1.0).unwrap(), landmarks()[..2].to_vec());
        let mut rng = Rng::new(1, &[]);
        let goals = Goals::Adapt { new, old: old.clone() };
        let count = |wanted: Preference, rng: &mut Rng| {
            (0..1000).filter(|n| goals.training(None, *n, rng) == Some(wanted)).count()
        };
        assert_eq!(count(new, &mut rng), 500);
        assert!((150..350).contains(&count(old[1], &mut rng)));
        let alone = Goals::Adapt { new, old: Vec::new() };
        assert!((0..10).all(|n| alone.training(None, n, &mut rng) == Some(new)));
    }
}

//! Old rows, kept so that what was learned from them is not forgotten.

use crate::batch::Batch;
use crate::rng::Rng;

/// The latest rows of each of a bounded number of objectives.
#[derive(Clone, Debug)]
pub struct Replay {
    objectives: Vec<(u64, Batch)>,
    max_objectives: usize,
    max_rows: usize,
}

impl Replay {
    /// Keeps at most `max_rows` rows of each of at most `max_objectives` objectives.
    pub fn new(max_objectives: usize, max_rows: usize) -> Replay {
        Replay { objectives: Vec::new(), max_objectives, max_rows }
    }

    /// Objectives of which there are rows.
    pub fn objectives(&self) -> usize {
        self.objectives.len()
    }

    /// Keeps the last of `batch`'s rows as `objective`'s. Where there are too many objectives, the one that was heard of
    /// longest ago is forgotten.
    pub fn keep(&mut self, objective: u64, batch: &Batch) {
        if batch.is_empty() || self.max_objectives == 0 || self.max_rows == 0 {
            return;
        }
        let kept = match self.objectives.iter().position(|(id, _)| *id == objective) {
            Some(at) => {
                let (_, mut kept) = self.objectives.remove(at);
                kept.append(batch);
                kept
            }
            None => batch.clone(),
        };
        if self.objectives.len() == self.max_objectives {
            self.objectives.remove(0);
        }
        let start = kept.len().saturating_sub(self.max_rows);
        self.objectives.push((objective, kept.rows(start..kept.len())));
    }

    /// `batch`, which is `objective`'s, and as many rows of one other objective, drawn anew: the loss over both is the
    /// average of the two objectives'. Each part's advantages are normalised by themselves. Just `batch`, normalised,
    /// where there is no other.
    pub fn join(&self, objective: u64, batch: &Batch, rng: &mut Rng) -> Batch {
        let mut joined = batch.clone();
        joined.normalise_advantages();
        let others: Vec<&Batch> =
            self.objectives.iter().filter(|(id, _)| *id != objective).map(|(_, batch)| batch).collect();
        if let Some(other) = others.get(rng.below(others.len())) {
            let rows: Vec<usize> = (0..batch.len()).map(|_| rng.below(other.len())).collect();
            let mut replayed = other.select(&rows);
            replayed.normalise_advantages();
            joined.append(&replayed);
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(reward: f32, rows: usize) -> Batch {
        let column = vec![reward; rows];
        Batch {
            observation_len: 1,
            observations: column.clone(),
            actions: column.clone(),
            log_probs: column.clone(),
            rewards: column.clone(),
            values: column.clone(),
            advantages: (0..rows).map(|n| n as f32).collect(),
            returns: column,
            trajectories: 1,
        }
    }

    #[test]
    fn half_of_a_joined_batch_is_of_other_objectives() {
        let mut replay = Replay::new(2, 100);
        let mut rng = Rng::new(1, &[]);
        let new = batch(1.0, 40);
        let alone = replay.join(1, &new, &mut rng);
        assert_eq!((alone.len(), &alone.rewards), (40, &new.rewards));
        replay.keep(1, &new);
        assert_eq!(replay.join(1, &new, &mut rng), alone);
        replay.keep(2, &batch(2.0, 60));
        replay.keep(2, &batch(3.0, 60));
        let joined = replay.join(1, &new, &mut rng);
        assert_eq!(joined.len(), 80);
        joined.check(1).unwrap();
        assert!(joined.rewards[..40].iter().all(|r| *r == 1.0));
        // Of 120 rows the last 100 are kept: 40 of the first batch, 60 of the second.
        assert!(joined.rewards[40..].contains(&2.0) && joined.rewards[40..].contains(&3.0));
        let (mean, std) = crate::batch::moments(&joined.advantages[40..]);
        assert!(mean.abs() < 1e-5 && (std - 1.0).abs() < 1e-4, "{mean} {std}");
    }

    #[test]
    fn only_the_latest_objectives_and_rows_are_kept() {
        let mut replay = Replay::new(2, 10);
        for objective in 0..5 {
            replay.keep(objective, &batch(objective as f32, 30));
        }
        assert_eq!(replay.objectives(), 2);
        let kept: Vec<(u64, usize)> = replay.objectives.iter().map(|(id, rows)| (*id, rows.len())).collect();
        assert_eq!(kept, [(3, 10), (4, 10)]);
    }
}

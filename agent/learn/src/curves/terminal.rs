//! The progress of a training on one line of a terminal.

use crate::policy::Policy;
use crate::train::{Evaluation, Observer, Update};
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Cells of the bar.
const CELLS: usize = 24;

/// Writes a line to standard error, over the one before where that is a terminal. Elsewhere it says only what
/// evaluations found.
pub struct ProgressLine {
    terminal: bool,
    began: Instant,
    /// Steps when the first update was heard of, so that a resumed training's speed is its own.
    steps_before: Option<u64>,
    evaluated: Option<f32>,
}

impl Default for ProgressLine {
    fn default() -> ProgressLine {
        ProgressLine {
            terminal: std::io::stderr().is_terminal(),
            began: Instant::now(),
            steps_before: None,
            evaluated: None,
        }
    }
}

impl ProgressLine {
    /// Ends the line that the progress was drawn on.
    pub fn finish(&self) {
        if self.terminal {
            eprintln!();
        }
    }
}

fn line(update: &Update, steps_per_s: f64, evaluated: Option<f32>) -> String {
    let share = (update.steps as f64 / update.total_steps.max(1) as f64).min(1.0);
    let full = (share * CELLS as f64) as usize;
    let left_s = update.total_steps.saturating_sub(update.steps) as f64 / steps_per_s.max(1.0);
    let evaluated = evaluated.map_or_else(String::new, |reward| format!("  eval {reward:.3}"));
    format!(
        "[{}{}] {:3.0} %  {} steps  {:.0}/s  at most {}:{:02} left  reward {:.3}{evaluated}  kl {:.4}",
        "=".repeat(full),
        " ".repeat(CELLS - full),
        share * 100.0,
        update.steps,
        steps_per_s,
        left_s as u64 / 60,
        left_s as u64 % 60,
        update.mean_reward,
        update.stats.approx_kl,
    )
}

impl Observer for ProgressLine {
    fn updated(&mut self, update: &Update) -> std::io::Result<()> {
        // The first update's steps were made before it was heard of: they do not count.
        let before = *self.steps_before.get_or_insert_with(|| {
            self.began = Instant::now();
            update.steps
        });
        if self.terminal {
            let speed = (update.steps - before) as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
            // To the line's start, the line, and nothing after it.
            write!(std::io::stderr(), "\r{}\x1b[K", line(update, speed, self.evaluated))?;
        }
        Ok(())
    }

    fn evaluated(&mut self, evaluation: &Evaluation, _policy: &Policy) -> std::io::Result<()> {
        self.evaluated = Some(evaluation.mean_reward);
        if !self.terminal {
            let Evaluation { update, steps, mean_reward, .. } = evaluation;
            writeln!(std::io::stderr(), "update {update}, {steps} steps: mean reward {mean_reward:.4}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::UpdateStats;

    #[test]
    fn a_line_names_an_updates_progress_and_statistics() {
        let stats = UpdateStats { approx_kl: 0.0123, ..UpdateStats::default() };
        let update = Update {
            update: 3,
            steps: 500_000,
            total_steps: 2_000_000,
            episodes: 20,
            mean_reward: -0.25,
            learning_rate: 1e-3,
            std: 1.0,
            stats,
        };
        assert_eq!(
            line(&update, 20_000.0, Some(0.5)),
            "[======                  ]  25 %  500000 steps  20000/s  at most 1:15 left  reward -0.250  eval 0.500  kl 0.0123"
        );
    }
}

//! The progress of a training: a bar on a terminal, a line for each evaluation elsewhere.

use ccplane_learn::{Evaluation, Observer, Policy, Update};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, Write};
use std::time::Instant;

/// The most drawings in a second.
const DRAWINGS_PER_S: u8 = 5;
const BAR: &str = "{bar:24} {percent:>3} %  {wide_msg}";

/// An observer with a bar on standard error. Where that is no terminal, it says only what evaluations found.
pub(super) struct Shown {
    bar: ProgressBar,
    began: Instant,
    /// Steps when the first update was heard of, so that a resumed training's speed is its own.
    steps_before: Option<u64>,
    evaluated: Option<f32>,
}

impl Shown {
    pub(super) fn new() -> Shown {
        Shown::on(ProgressDrawTarget::stderr_with_hz(DRAWINGS_PER_S))
    }

    fn on(target: ProgressDrawTarget) -> Shown {
        let bar = ProgressBar::with_draw_target(None, target);
        let style = ProgressStyle::with_template(BAR).map(|style| style.progress_chars("█░"));
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Shown { bar, began: Instant::now(), steps_before: None, evaluated: None }
    }

    fn draw(&self, update: &Update, steps_per_s: f64) {
        self.bar.set_message(message(update, steps_per_s, self.evaluated));
        self.bar.update(|state| {
            state.set_len(update.total_steps);
            state.set_pos(update.steps);
        });
    }
}

impl Drop for Shown {
    /// Leaves the bar as it is, and the terminal's next line to others.
    fn drop(&mut self) {
        if self.steps_before.is_some() {
            self.bar.abandon();
        }
    }
}

fn message(update: &Update, steps_per_s: f64, evaluated: Option<f32>) -> String {
    let left_s = (update.total_steps.saturating_sub(update.steps) as f64 / steps_per_s.max(1.0)) as u64;
    let evaluated = evaluated.map_or_else(String::new, |reward| format!("  eval {reward:.3}"));
    format!(
        "{} steps  {steps_per_s:.0}/s  at most {}:{:02} left  reward {:.3}{evaluated}  kl {:.4}",
        update.steps,
        left_s / 60,
        left_s % 60,
        update.mean_reward,
        update.stats.approx_kl,
    )
}

impl Observer for Shown {
    fn updated(&mut self, update: &Update) -> io::Result<()> {
        // The first update's steps were made before it was heard of: they do not count.
        let before = *self.steps_before.get_or_insert_with(|| {
            self.began = Instant::now();
            update.steps
        });
        let steps_per_s = (update.steps - before) as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
        self.draw(update, steps_per_s);
        Ok(())
    }

    fn evaluated(&mut self, evaluation: &Evaluation, _policy: &Policy) -> io::Result<()> {
        self.evaluated = Some(evaluation.mean_reward);
        if self.bar.is_hidden() {
            let Evaluation { update, steps, mean_reward, .. } = evaluation;
            writeln!(io::stderr(), "update {update}, {steps} steps: mean reward {mean_reward:.4}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ccplane_learn::UpdateStats;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_bar_shows_an_updates_progress_and_statistics_and_stays() {
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
        let terminal = InMemoryTerm::new(4, 160);
        let mut shown = Shown::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        (shown.evaluated, shown.steps_before) = (Some(0.5), Some(0));
        shown.draw(&update, 20_000.0);
        drop(shown);
        assert_eq!(
            terminal.contents(),
            "██████░░░░░░░░░░░░░░░░░░  25 %  500000 steps  20000/s  at most 1:15 left  reward -0.250  eval 0.500  kl 0.0123"
        );
    }
}

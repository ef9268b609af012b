//! Training curves as JSON Lines, and a line of progress on the terminal.

mod terminal;

pub use terminal::ProgressLine;

use crate::policy::Policy;
use crate::train::{Evaluation, Observer, Update};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

/// The longest line that is read when a training goes on, bytes: an evaluation has a number for each of its episodes.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// Returns the numbers of an update with their names on the curves.
fn scalars(update: &Update) -> [(&'static str, f32); 11] {
    let stats = &update.stats;
    [
        ("mean_reward", update.mean_reward),
        ("learning_rate", update.learning_rate),
        ("std", update.std),
        ("policy_loss", stats.policy_loss),
        ("value_loss", stats.value_loss),
        ("entropy", stats.entropy),
        ("approx_kl", stats.approx_kl),
        ("clip_fraction", stats.clip_fraction),
        ("explained_variance", stats.explained_variance),
        ("grad_norm", stats.grad_norm),
        ("epochs", stats.epochs as f32),
    ]
}

/// Curves as JSON Lines: `{"kind":"update", ...}` for each update, `{"kind":"evaluation", ...}` for each evaluation.
/// A number that is not finite is null.
pub struct JsonLines {
    to: BufWriter<File>,
    began: Instant,
}

impl JsonLines {
    /// A file at `path`, in the place of one that is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(path: &Path) -> std::io::Result<JsonLines> {
        JsonLines::resume(path, 0)
    }

    /// Goes on in the file at `path`, `steps` decisions into the training: what is there of later ones goes, as they will
    /// be learned from again.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn resume(path: &Path, steps: u64) -> std::io::Result<JsonLines> {
        let file = File::options().create(true).read(true).append(true).open(path)?;
        let mut lines = BufReader::new(&file);
        let (mut kept, mut line) = (0, Vec::new());
        loop {
            let read = lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
            if read == 0 || step(&line).is_none_or(|step| step > steps) {
                break;
            }
            kept += line.len() as u64;
            line.clear();
        }
        file.set_len(kept)?;
        Ok(JsonLines { to: BufWriter::new(file), began: Instant::now() })
    }

    fn line(&mut self, value: &Value) -> std::io::Result<()> {
        writeln!(self.to, "{value}")?;
        self.to.flush()
    }
}

/// The step of a whole line.
fn step(line: &[u8]) -> Option<u64> {
    let value: Value = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    value.get("step")?.as_u64()
}

impl Observer for JsonLines {
    fn updated(&mut self, update: &Update) -> std::io::Result<()> {
        let mut line = json!({
            "kind": "update", "update": update.update, "step": update.steps, "episodes": update.episodes,
            "seconds": self.began.elapsed().as_secs_f64(),
        });
        for (name, value) in scalars(update) {
            line[name] = json!(value);
        }
        self.line(&line)
    }

    fn evaluated(&mut self, evaluation: &Evaluation, _policy: &Policy) -> std::io::Result<()> {
        let Evaluation { update, steps, mean_reward, rewards } = evaluation;
        self.line(&json!({
            "kind": "evaluation", "update": update, "step": steps, "mean_reward": mean_reward, "rewards": rewards,
            "seconds": self.began.elapsed().as_secs_f64(),
        }))
    }
}

/// All of them are called in turn; any of them may stop the training.
impl Observer for Vec<Box<dyn Observer>> {
    fn updated(&mut self, update: &Update) -> std::io::Result<()> {
        self.iter_mut().try_for_each(|observer| observer.updated(update))
    }

    fn evaluated(&mut self, evaluation: &Evaluation, policy: &Policy) -> std::io::Result<()> {
        self.iter_mut().try_for_each(|observer| observer.evaluated(evaluation, policy))
    }

    fn checkpoint(&mut self, checkpoint: &crate::Checkpoint) -> std::io::Result<()> {
        self.iter_mut().try_for_each(|observer| observer.checkpoint(checkpoint))
    }

    fn stopped(&mut self) -> bool {
        self.iter_mut().any(|observer| observer.stopped())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_ends_what_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("curves.jsonl");
        let first = "{\"step\":1}\n";
        let endless = "x".repeat(MAX_LINE_BYTES as usize);
        std::fs::write(&path, format!("{first}{{\"step\":2,\"x\":\"{endless}\"}}\n")).unwrap();
        drop(JsonLines::resume(&path, u64::MAX).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
    }
}

//! Training curves as JSON Lines.

use crate::policy::Policy;
use crate::train::{Evaluation, Observer, Update};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

/// The longest line that is read when a training goes on, bytes: an evaluation has a number for each of its episodes.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The version of lines. Lines without one are of the first.
const SCHEMA: u64 = 1;

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

/// Curves as JSON Lines: `{"kind":"update", ...}` for each update, `{"kind":"evaluation", ...}` for each evaluation, with the format's
/// version as `schema`.
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
        Ok(JsonLines::at_end(File::create(path)?))
    }

    /// Goes on in the file at `path`, `steps` decisions into the training: what is there of later ones goes, as they will
    /// be learned from again.
    ///
    /// # Errors
    /// The file cannot be read or written, or one of its lines has another version.
    pub fn resume(path: &Path, steps: u64) -> std::io::Result<JsonLines> {
        let file = File::options().create(true).read(true).append(true).open(path)?;
        let mut lines = BufReader::new(&file);
        let (mut kept, mut line) = (0, Vec::new());
        loop {
            let read = lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
            if read == 0 || step(&line)?.is_none_or(|step| step > steps) {
                break;
            }
            kept += line.len() as u64;
            line.clear();
        }
        file.set_len(kept)?;
        Ok(JsonLines::at_end(file))
    }

    fn at_end(file: File) -> JsonLines {
        JsonLines { to: BufWriter::new(file), began: Instant::now() }
    }

    fn line(&mut self, mut value: Value) -> std::io::Result<()> {
        value["schema"] = json!(SCHEMA);
        writeln!(self.to, "{value}")?;
        self.to.flush()
    }
}

/// The step of a line; `None` where it is torn.
///
/// # Errors
/// The line is of another version.
fn step(line: &[u8]) -> std::io::Result<Option<u64>> {
    let whole = line.strip_suffix(b"\n").and_then(|line| serde_json::from_slice::<Value>(line).ok());
    let Some(value) = whole else { return Ok(None) };
    match value.get("schema") {
        Some(found) if found.as_u64() != Some(SCHEMA) => {
            let why = format!("a curve of version {found}, this program goes on with version {SCHEMA}");
            Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why))
        }
        _ => Ok(value.get("step").and_then(Value::as_u64)),
    }
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
        self.line(line)
    }

    fn evaluated(&mut self, evaluation: &Evaluation, _policy: &Policy) -> std::io::Result<()> {
        let Evaluation { update, steps, mean_reward, rewards } = evaluation;
        self.line(json!({
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

    #[test]
    fn curves_of_another_version_are_left_as_they_are_and_those_without_one_go_on() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("curves.jsonl");
        let other = "{\"schema\":1,\"step\":1}\n{\"schema\":2,\"step\":2}\n";
        std::fs::write(&path, other).unwrap();
        let refused = JsonLines::resume(&path, u64::MAX).err().unwrap().to_string();
        assert_eq!(refused, "a curve of version 2, this program goes on with version 1");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), other);
        let first = "{\"step\":1}\n{\"schema\":1,\"step\":2}\n";
        std::fs::write(&path, first).unwrap();
        let mut lines = JsonLines::resume(&path, u64::MAX).unwrap();
        lines.line(json!({ "step": 3 })).unwrap();
        let expected = format!("{first}{{\"schema\":1,\"step\":3}}\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        drop(JsonLines::create(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    }
}

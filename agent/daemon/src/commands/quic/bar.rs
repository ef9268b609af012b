//! A transfer's progress: a bar redrawn in place on a terminal, nothing elsewhere.

use super::{mbit_per_s, size};
use ccplane_quic::files::Progress;
use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// Columns of the bar itself.
const BAR: usize = 24;
/// Between two drawings.
const DRAW_EVERY: Duration = Duration::from_millis(200);
/// The rate shown is that of about so long.
const RATE_OVER: Duration = Duration::from_secs(1);

/// On standard error: standard output is for results.
pub(super) struct Bar {
    name: String,
    shown: bool,
    next_draw: Instant,
    /// When the rate was taken last, and what was done then.
    since: (Instant, u64),
    mbit_per_s: Option<f64>,
}

impl Bar {
    pub(super) fn new(name: &str) -> Bar {
        let now = Instant::now();
        let shown = stderr().is_terminal();
        Bar { name: crate::commands::shown(name), shown, next_draw: now, since: (now, 0), mbit_per_s: None }
    }

    /// Draws, if it is time to.
    pub(super) fn draw(&mut self, progress: Progress) {
        let now = Instant::now();
        if !self.shown || now < self.next_draw {
            return;
        }
        self.next_draw = now + DRAW_EVERY;
        let (at, done) = self.since;
        if self.mbit_per_s.is_none() || now - at >= RATE_OVER {
            self.mbit_per_s = Some(mbit_per_s(progress.done_bytes.saturating_sub(done), now - at));
            self.since = (now, progress.done_bytes);
        }
        let line = line(&self.name, progress, self.mbit_per_s.unwrap_or(0.0));
        let columns = terminal_size::terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let cut: String = line.chars().take(columns.saturating_sub(1)).collect();
        // Whoever closed standard error wants to see nothing.
        let _ = write!(stderr(), "\r{cut}\x1b[K");
        let _ = stderr().flush();
    }

    /// Leaves the terminal as it was.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(stderr(), "\r\x1b[K");
            let _ = stderr().flush();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

fn line(name: &str, progress: Progress, mbit_per_s: f64) -> String {
    let Progress { done_bytes, total_bytes } = progress;
    let Some(total_bytes) = total_bytes else { return format!("{name}: waits for the server") };
    let share = if total_bytes == 0 { 1.0 } else { done_bytes as f64 / total_bytes as f64 };
    let full = ((share * BAR as f64) as usize).min(BAR);
    let left_s = (total_bytes - done_bytes.min(total_bytes)) as f64 * 8e-6 / mbit_per_s;
    let left = if left_s.is_finite() && left_s < 86_400.0 {
        format!("  {}:{:02} left", left_s as u64 / 60, left_s as u64 % 60)
    } else {
        String::new()
    };
    format!(
        "{}{} {:3.0} %  {} of {}  {mbit_per_s:.1} Mb/s{left}  {name}",
        "█".repeat(full),
        "░".repeat(BAR - full),
        share * 100.0,
        size(done_bytes),
        size(total_bytes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_far_it_is() {
        let progress = |done_bytes, total_bytes| Progress { done_bytes, total_bytes };
        assert_eq!(line("f", progress(0, None), 0.0), "f: waits for the server");
        let half = line("f", progress(50_000_000, Some(100_000_000)), 80.0);
        assert!(half.ends_with(" 50 %  50.0 MB of 100 MB  80.0 Mb/s  0:05 left  f"), "{half}");
        assert!(line("f", progress(0, Some(0)), 0.0).contains("100 %"));
    }
}

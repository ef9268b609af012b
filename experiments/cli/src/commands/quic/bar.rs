//! The progress of a transfer: a bar on a terminal, nothing elsewhere.

use super::size;
use ccplane_quic::files::Progress;
use indicatif::style::TemplateError;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use std::fmt::Write;

/// The most drawings in a second.
const DRAWINGS_PER_S: u8 = 5;
const WAITING: &str = "{msg}: waits for the server";
const RUNNING: &str = "{bar:24} {percent:>3} %  {done} of {total}  {rate}  {eta} left  {msg}";

/// A bar on standard error, since standard output is for results; it is hidden where that is no terminal.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(name: &str) -> Bar {
        Bar::on(ProgressDrawTarget::stderr_with_hz(DRAWINGS_PER_S), name)
    }

    fn on(target: ProgressDrawTarget, name: &str) -> Bar {
        let bar =
            ProgressBar::with_draw_target(None, target).with_message(crate::commands::output::shown(name));
        bar.set_style(style(WAITING).unwrap_or_else(|_| ProgressStyle::default_bar()));
        Bar(bar)
    }

    /// Shows the progress, if it is time to draw.
    pub(super) fn draw(&mut self, progress: Progress) {
        if let (None, Some(total)) = (self.0.length(), progress.total_bytes) {
            self.0.set_length(total);
            self.0.set_style(style(RUNNING).unwrap_or_else(|_| ProgressStyle::default_bar()));
        }
        self.0.set_position(progress.done_bytes);
    }

    /// Leaves the terminal as it was.
    pub(super) fn end(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.end();
    }
}

fn style(template: &str) -> Result<ProgressStyle, TemplateError> {
    let style = ProgressStyle::with_template(template)?.progress_chars("█░");
    // Writing to a string does not fail.
    Ok(style
        .with_key("done", |state: &ProgressState, text: &mut dyn Write| {
            let _ = text.write_str(&size(state.pos()));
        })
        .with_key("total", |state: &ProgressState, text: &mut dyn Write| {
            let _ = text.write_str(&size(state.len().unwrap_or(0)));
        })
        .with_key("rate", |state: &ProgressState, text: &mut dyn Write| {
            let _ = write!(text, "{:.1} Mb/s", state.per_sec() * 8e-6);
        }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    #[test]
    fn a_transfer_waits_and_then_shows_its_share() {
        let terminal = InMemoryTerm::new(4, 120);
        let mut bar = Bar::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())), "f");
        bar.0.tick();
        assert_eq!(terminal.contents(), "f: waits for the server");
        bar.draw(Progress { done_bytes: 50_000_000, total_bytes: Some(100_000_000) });
        bar.0.force_draw();
        let text = terminal.contents();
        assert!(text.starts_with("████████████░░░░░░░░░░░░  50 %  50.0 MB of 100 MB  "), "{text}");
        assert!(text.ends_with(" left  f"), "{text}");
        bar.end();
        assert_eq!(terminal.contents(), "");
    }
}

//! The terminal page, redrawn after each sample and each key.

mod draw;
#[cfg(test)]
mod tests;
mod ui;

pub use draw::draw;
pub use ui::{Panel, Ui};

use crate::model::Model;
use crate::source::{Sample, Source, SourceError, Target};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

/// Samples that wait to be drawn.
const MAX_WAITING_SAMPLES: usize = 4;
/// The time for which the page waits for a key before it looks for a sample.
const KEY_WAIT: Duration = Duration::from_millis(50);

/// Reasons why there is no page, or no further one.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    #[error(
        "standard output is no terminal: `ccplane flows --json` and `ccplane snapshot list --json` are for programs"
    )]
    NoTerminal,
    #[error("the terminal: {0}")]
    Io(#[from] io::Error),
}

/// Shows the page until its user leaves or `stop` is set. The terminal is as before afterwards.
///
/// # Errors
/// Standard output is no terminal, or it cannot be written to.
pub fn run(target: Target, stop: &AtomicBool) -> Result<(), TopError> {
    if !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    let (to, samples) = sync_channel(MAX_WAITING_SAMPLES);
    // A page that does not keep up, or is gone, misses samples.
    let _source = Source::start(target, move |sample| drop(to.try_send(sample)))?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, &samples, stop);
    let restored = ratatui::try_restore();
    Ok(shown.and(restored)?)
}

fn show(
    terminal: &mut DefaultTerminal,
    samples: &Receiver<Result<Sample, SourceError>>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let (mut model, mut ui, mut changed) = (Model::default(), Ui::default(), true);
    while !stop.load(Relaxed) {
        loop {
            match samples.try_recv() {
                Ok(_) if ui.paused => {}
                Ok(Ok(sample)) => model.take(sample),
                Ok(Err(error)) => model.fail(error.to_string()),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
            changed = true;
        }
        if std::mem::take(&mut changed) {
            ui.keep_within(&model);
            terminal.draw(|frame| draw(frame, &model, &ui))?;
        }
        // A signal interrupts the wait.
        let waiting = match event::poll(KEY_WAIT) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => false,
            waiting => waiting?,
        };
        if !waiting {
            continue;
        }
        changed = true;
        if let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && ui.press(key, &model).is_break()
        {
            break;
        }
    }
    Ok(())
}

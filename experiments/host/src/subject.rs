//! Hosts that can be measured and tuned: the one at hand, or a model of one.

use ccplane_runner::Error as FlowError;

use crate::journal::JournalError;
use crate::sample::Sample;
use crate::space::{Cell, Space};

/// A host whose settings can be varied and measured.
pub trait Subject {
    /// Returns what can be varied.
    fn space(&self) -> &Space;

    /// Brings the host into a cell's settings and measures it; `repeat` tells measurements of one cell apart.
    ///
    /// # Errors
    /// The host refuses, or nothing can be measured.
    fn measure(&mut self, cell: &Cell, repeat: u32) -> Result<Sample, Fault>;

    /// Brings the host into a cell's settings without measuring.
    ///
    /// # Errors
    /// The host refuses.
    fn settle(&mut self, cell: &Cell) -> Result<(), Fault>;

    /// Takes every change back.
    ///
    /// # Errors
    /// A setting that does not come back.
    fn restore(&mut self) -> Result<(), Fault>;
}

/// Reasons why a cell is not measured.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The host refuses a setting; those that were changed before it were taken back.
    #[error("{setting} is refused: {why}")]
    Refused { setting: String, why: String },
    /// The interface is gone or its link is down: nothing more can be measured.
    #[error("{interface}: {why}")]
    Lost { interface: String, why: String },
    /// The journal of changes cannot be kept, so that nothing is changed.
    #[error(transparent)]
    Journal(Box<JournalError>),
    /// Settings did not come back.
    #[error("not taken back: {0}; `ccplane host undo` tries again")]
    NotRestored(String),
    /// The flows broke.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// A counter of the kernel's cannot be read.
    #[error("{path}: {source}")]
    Counter { path: &'static str, source: std::io::Error },
}

impl Fault {
    /// Whether other cells would fail, too.
    pub fn is_final(&self) -> bool {
        match self {
            Fault::Lost { .. } | Fault::Journal(_) | Fault::NotRestored(_) | Fault::Counter { .. } => true,
            Fault::Refused { .. } | Fault::Flow(_) => false,
        }
    }
}

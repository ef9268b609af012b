//! Flags of `ccplane host`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Show and change what decides how this host works on its packets: interrupts, queues, coalescing, buffers.
///
/// Nothing is changed without `--apply`. The old value of each change is on the disk before the change is made, so that
/// `ccplane host undo` takes all of them back, whatever became of the process that made them. Settings do not outlive a
/// reboot.
#[derive(Args, Debug)]
pub(crate) struct HostArgs {
    #[command(subcommand)]
    pub(crate) command: HostCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum HostCommand {
    Show(HostShowArgs),
    Set(HostSetArgs),
    Undo(HostUndoArgs),
}

/// Show processors, interfaces, interrupts and settings, and why a setting cannot be changed here.
#[derive(Args, Debug)]
pub(crate) struct HostShowArgs {
    /// One interface, with its interrupts, alone.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// Also write a picture of the host, as SVG, to FILE.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where changes are recorded.
#[derive(Args, Debug)]
pub(crate) struct JournalArgs {
    /// The folder with the record of changes.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/ccplane")]
    pub(crate) journal: PathBuf,

    /// One JSON object on one line.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change settings, all or none; without `--apply`, print the commands that would change them.
///
/// A change that the system refuses, or that comes out in another way than asked, takes back those before it.
#[derive(Args, Debug)]
pub(crate) struct HostSetArgs {
    /// Settings as `ccplane host show` names them, with the values they are to have.
    #[arg(value_name = "SETTING=VALUE", required = true)]
    pub(crate) changes: Vec<String>,

    /// Make the changes.
    #[arg(long)]
    pub(crate) apply: bool,

    #[command(flatten)]
    pub(crate) journal: JournalArgs,
}

/// Take back every change, the newest first.
///
/// A setting that somebody else has changed since stays as it is, unless `--force` is given.
#[derive(Args, Debug)]
pub(crate) struct HostUndoArgs {
    /// Bring the old values back even where somebody else has changed a setting since.
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) journal: JournalArgs,
}

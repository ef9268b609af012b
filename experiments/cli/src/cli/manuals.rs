//! Flags of `ccplane manuals`.

use clap::Args;
use std::path::PathBuf;

/// Write the man pages, and the completions of bash, zsh and fish, as packages install them.
///
/// Pages and completions are made from the same definitions as `--help`: man1/ccplane.1 with a page for each subcommand,
/// man8/ccplaned.8, and bash/, zsh/ and fish/ with a file for each of the two programs.
#[derive(Args, Debug)]
pub(crate) struct ManualsArgs {
    /// The folder to write them to; made if it is not there.
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

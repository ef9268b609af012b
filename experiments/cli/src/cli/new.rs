//! Flags of `ccplane new`.

use clap::Args;
use std::path::PathBuf;

/// Start an algorithm of your own: a crate with its fold program, a test and a plan, which builds and runs at once.
///
/// The crate is written to the folder NAME, which must not exist. Its program is the whole `ccplane` command with the new
/// algorithm beside the built-in ones; at first the algorithm is AIMD. See CONTRIBUTING.md in ccplane's checkout.
#[derive(Args, Debug)]
pub(crate) struct NewArgs {
    /// The name of the algorithm and of its crate: lower-case letters, digits, `-` and `_`.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The checkout of ccplane that the crate depends on; unless given, the one that this program was built from.
    #[arg(long, value_name = "PATH")]
    pub(crate) ccplane: Option<PathBuf>,
}

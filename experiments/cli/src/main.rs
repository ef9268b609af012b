//! `ccplane`: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ccplane::run(Vec::new())
}

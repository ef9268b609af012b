//! A command fails with a message and an exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// A command that failed.
#[derive(Debug)]
pub enum Failure {
    /// Something went wrong at run time: exit code 1.
    Runtime(Box<dyn Error>),
    /// The input is at fault (configuration, program, trace, argument) and nothing was changed: exit code 2.
    Input(Box<dyn Error>),
    /// Whoever read the output has left, as `head` does: nothing is wrong, and there is no more to do.
    ReaderLeft,
}

impl Failure {
    /// Wraps an error that happened at run time.
    pub fn runtime(error: impl Error + 'static) -> Failure {
        Failure::Runtime(Box::new(error))
    }

    /// The input is at fault.
    pub fn input(error: impl Error + 'static) -> Failure {
        Failure::Input(Box::new(error))
    }

    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Runtime(_) => ExitCode::from(1),
            Failure::Input(_) => ExitCode::from(2),
            Failure::ReaderLeft => ExitCode::SUCCESS,
        }
    }

    /// The error and its causes, those left out that an outer one repeats; empty if nothing is wrong.
    pub fn message(&self) -> String {
        let (Failure::Runtime(error) | Failure::Input(error)) = self else { return String::new() };
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                let _ = write!(text, ": {cause_text}");
            }
            source = cause.source();
        }
        text
    }
}

/// The exit code of a command that came to `result`; a failure is said on standard error in `program`'s name.
pub fn exit(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        if !matches!(failure, Failure::ReaderLeft) {
            // `eprintln!` would panic where standard error is a file on a full disk, and change the exit code.
            let _ = writeln!(io::stderr(), "{program}: {}", failure.message());
        }
        failure.exit_code()
    })
}

impl From<ccplane_files::document::DocumentError> for Failure {
    fn from(error: ccplane_files::document::DocumentError) -> Failure {
        Failure::input(error)
    }
}

/// Errors that are failures at run time.
macro_rules! at_run_time {
    ($($error:ty,)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::runtime(error)
            }
        })*
    };
}

at_run_time! {
    crate::rundir::RunDirError,
    ccplane_files::SocketError,
    crate::control::ClientError,
    std::io::Error,
}

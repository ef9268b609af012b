//! The C half with its sanitizers, or a loud skip.

use std::sync::LazyLock;

use ccplane_module::user::{Build, Compiled, Interpreter, UserError};

/// Starts the C half with its sanitizers; `None` and a loud skip where no compiler has them.
pub fn sanitized(check: &str) -> Option<Interpreter> {
    // Compiled once, which takes longer than most tests.
    static COMPILED: LazyLock<Result<Compiled, UserError>> =
        LazyLock::new(|| Compiled::new(Build::Sanitized));
    match &*COMPILED {
        Ok(compiled) => Some(compiled.start().unwrap()),
        Err(UserError::NoCompiler { said }) if compilers_work() => panic!("{said}"),
        Err(UserError::NoCompiler { said }) => {
            ccplane_testing::skipped(check, said);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether a compiler with sanitizers is here, so that a source that it refuses is a defect.
fn compilers_work() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    ["gcc", "clang", "cc"].iter().any(|compiler| {
        let made = std::process::Command::new(compiler)
            .args(["-fsanitize=address,undefined", "-o"])
            .arg(dir.path().join("empty"))
            .arg(&source)
            .output();
        made.is_ok_and(|made| made.status.success())
    })
}

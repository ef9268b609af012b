//! `ccplane new`: a crate with one algorithm, made from the one in `algs/examples/aimd`.

use super::output::print;
use crate::cli::NewArgs;
use ccplane_agent::failure::Failure;
use ccplane_alg::Algorithm;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the example, which the new crate's name replaces.
const EXAMPLE: &str = "aimd";
/// The name of the example's type, in camel case.
const EXAMPLE_TYPE: &str = "Aimd";
/// The way from the example to the checkout's root, in its manifest.
const EXAMPLE_TO_ROOT: &str = "../../../";

/// The files of the example: where each goes, and its text.
const FILES: [(&str, &str); 4] = [
    ("Cargo.toml", include_str!("../../../../algs/examples/aimd/Cargo.toml")),
    ("src/main.rs", include_str!("../../../../algs/examples/aimd/src/main.rs")),
    ("src/aimd.fold", include_str!("../../../../algs/examples/aimd/src/aimd.fold")),
    ("plan.toml", include_str!("../../../../algs/examples/aimd/plan.toml")),
];
const IGNORED: &str = "/target\n/results\n";

/// Letters of a name at most, as on crates.io.
const MAX_NAME_BYTES: usize = 64;
/// Names that Cargo or the language keeps for itself; names in capitals are refused anyway.
const RESERVED: [&str; 60] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "build",
    "const",
    "continue",
    "core",
    "crate",
    "deps",
    "do",
    "dyn",
    "else",
    "enum",
    "examples",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "incremental",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "override",
    "priv",
    "proc-macro",
    "proc_macro",
    "pub",
    "ref",
    "return",
    "self",
    "static",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "typeof",
    "unsafe",
    "unsized",
    "use",
    "virtual",
    "where",
    "yield",
];
/// Packages of this repository begin so.
const OWN_PREFIX: &str = "ccplane";

/// Reasons why no crate was written: exit code 2 where the arguments are at fault.
#[derive(Debug, thiserror::Error)]
enum NewError {
    #[error(
        "{name:?} is no name of a crate: 1 to {MAX_NAME_BYTES} lower-case letters, digits, `-` and `_`, a letter first"
    )]
    NotAName { name: String },
    #[error("{name:?} is a name that Rust, Cargo or ccplane itself uses: take another")]
    Reserved { name: String },
    #[error("there is an algorithm {name:?} already: take another name")]
    Taken { name: String },
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("{} is no checkout of ccplane (it has no {missing}): say where one is with --ccplane", path.display())]
    NoCheckout { path: PathBuf, missing: &'static str },
    #[error("{}: a path with quotes, backslashes or control characters cannot be written into Cargo.toml", path.display())]
    OddPath { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl NewError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> NewError {
        let path = path.to_owned();
        |source| NewError::Io { path, source }
    }
}

impl From<NewError> for Failure {
    fn from(error: NewError) -> Failure {
        match error {
            NewError::Io { .. } => Failure::runtime(error),
            _ => Failure::input(error),
        }
    }
}

/// Writes the new crate into the current directory, and prints how to go on.
pub(crate) fn new(args: &NewArgs, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), Failure> {
    check_name(&args.name, algorithms)?;
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = checkout(args.ccplane.as_deref().unwrap_or(&built_from))?;
    let folder = Path::new(&args.name);
    write(folder, &args.name, &root)?;
    let name = &args.name;
    print(&format!(
        "{name}/src/{name}.fold decides on every ACK, {name}/src/main.rs hears its reports; both are AIMD for now.\n\
         \n  cd {name}\n\
         \x20 cargo test                    # losses, marks, timeouts and blackouts, on every executor\n\
         \x20 cargo run -- run plan.toml    # beside Reno and Cubic, simulated: results/plan.html\n\
         \x20 cargo run -- prog show src/{name}.fold\n"
    ))
}

fn check_name(name: &str, algorithms: &[Arc<dyn Algorithm>]) -> Result<(), NewError> {
    let letters =
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_');
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let name = name.to_owned();
    if !letters || !begins || name.len() > MAX_NAME_BYTES {
        return Err(NewError::NotAName { name });
    }
    if RESERVED.contains(&name.as_str()) || name.starts_with(OWN_PREFIX) {
        return Err(NewError::Reserved { name });
    }
    if algorithms.iter().any(|a| a.name() == name) {
        return Err(NewError::Taken { name });
    }
    Ok(())
}

/// The checkout's absolute path, if it is one and Cargo.toml can name it.
fn checkout(path: &Path) -> Result<String, NewError> {
    let missing = ["experiments/cli/Cargo.toml", "algs/api/Cargo.toml", "algs/kit/Cargo.toml", "Cargo.lock"];
    if let Some(missing) = missing.into_iter().find(|file| !path.join(file).is_file()) {
        return Err(NewError::NoCheckout { path: path.to_owned(), missing });
    }
    let path = path.canonicalize().map_err(NewError::io(path))?;
    match path.to_str() {
        Some(text) if !text.contains(|c: char| c == '"' || c == '\\' || c.is_control()) => {
            Ok(text.to_owned())
        }
        _ => Err(NewError::OddPath { path }),
    }
}

/// Writes all files, or leaves nothing.
fn write(folder: &Path, name: &str, root: &str) -> Result<(), NewError> {
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => NewError::Exists { path: folder.to_owned() },
        _ => NewError::io(folder)(error),
    })?;
    let written = write_files(folder, name, root);
    if written.is_err() {
        // The folder was made above, so that all in it is ours.
        let _ = fs::remove_dir_all(folder);
    }
    written
}

fn write_files(folder: &Path, name: &str, root: &str) -> Result<(), NewError> {
    let sources = folder.join("src");
    fs::create_dir(&sources).map_err(NewError::io(&sources))?;
    for (file, text) in FILES {
        let text = text.replace(EXAMPLE_TYPE, &type_name(name)).replace(EXAMPLE, name);
        let text = text.replace(EXAMPLE_TO_ROOT, &format!("{root}/"));
        let path = folder.join(file.replace(EXAMPLE, name));
        fs::write(&path, text).map_err(NewError::io(&path))?;
    }
    let ignored = folder.join(".gitignore");
    fs::write(&ignored, IGNORED).map_err(NewError::io(&ignored))?;
    // The same versions of what the checkout is built with, so that nothing has to be looked up.
    let lock = folder.join("Cargo.lock");
    let locked = Path::new(root).join("Cargo.lock");
    fs::read(&locked).and_then(|versions| fs::write(&lock, versions)).map_err(NewError::io(&lock))
}

/// The name in camel case, as types have it.
fn type_name(name: &str) -> String {
    let words = name.split(['-', '_']);
    let capitals = words.map(|word| {
        let (first, rest) = word.split_at(word.len().min(1));
        first.to_ascii_uppercase() + rest
    });
    capitals.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_named_in_camel_case() {
        assert_eq!(type_name("slow-start_2x"), "SlowStart2x");
        assert_eq!(type_name("a--b-"), "AB");
    }

    #[test]
    fn the_examples_own_name_gives_the_example() {
        for (_, text) in FILES {
            assert_eq!(text.replace(EXAMPLE_TYPE, &type_name(EXAMPLE)), text);
        }
    }

    #[test]
    fn reserved_names_are_sorted_and_within_the_letters() {
        assert!(RESERVED.is_sorted());
        for name in RESERVED {
            assert!(matches!(check_name(name, &[]), Err(NewError::Reserved { .. })), "{name}");
        }
    }
}

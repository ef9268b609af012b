//! Algorithms that are named with a file: `aurora@my.snapshot` decides by another network, `cubic@my.fold` runs another program.

use super::prog::{self, ProgramError};
use super::snapshot::{self, FileError};
use ccplane_alg::Algorithm;
use ccplane_algs::placed::{LABEL_SIGN, UnfitProgram, UnfitSnapshot, WithProgram, WithSnapshot, free_slots};
use ccplane_program::compile;
use ccplane_snapshot::{Admission, SnapshotError, Trust};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The extension of files that hold a program; others hold a snapshot.
const PROGRAM: &str = "fold";

/// Reasons why no algorithm can be made of a name and a file: exit code 2.
#[derive(Debug, thiserror::Error)]
pub(super) enum VariantError {
    #[error("`{named}`: no algorithm is called `{found}`; there are {}", .known.join(", "))]
    NoAlgorithm { named: String, found: String, known: Vec<&'static str> },
    #[error("`{named}`: an algorithm is called `{name}` already")]
    Twice { named: String, name: &'static str },
    #[error("at most {limit} snapshots can be tried at once")]
    NoSlot { limit: usize },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {source}", path.display())]
    NotTrusted { path: PathBuf, source: SnapshotError },
    #[error("{}: {source}", path.display())]
    UnfitProgram { path: PathBuf, source: UnfitProgram },
    #[error("{}: {source}", path.display())]
    UnfitSnapshot { path: PathBuf, source: UnfitSnapshot },
}

/// The algorithms of a command line, some of them named with files.
pub(super) struct Named {
    /// The names of all that were named, in order.
    pub(super) names: Vec<String>,
    /// All algorithms, with those that were made of files.
    pub(super) algorithms: Vec<Arc<dyn Algorithm>>,
    /// Each algorithm's name that was made of a file, and NAME@FILE as the user wrote it.
    written: Vec<(&'static str, String)>,
}

impl Named {
    /// Puts NAME@FILE into the commands of a text, where they have the name that was made of it.
    pub(super) fn as_written(&self, text: &str) -> String {
        self.written.iter().fold(text.to_owned(), |text, (name, written)| text.replace(name, written))
    }
}

/// Makes the algorithms that are named with a file.
pub(super) fn of_files(named: &[String], algorithms: &[Arc<dyn Algorithm>]) -> Result<Named, VariantError> {
    let mut all = algorithms.to_vec();
    let (mut names, mut written) = (Vec::new(), Vec::new());
    let mut slots = free_slots();
    for named in named {
        let Some((of, file)) = named.split_once(LABEL_SIGN) else {
            names.push(named.clone());
            continue;
        };
        let Some(algorithm) = algorithms.iter().find(|algorithm| algorithm.name() == of) else {
            let known = algorithms.iter().map(|a| a.name()).collect();
            return Err(VariantError::NoAlgorithm { named: named.clone(), found: of.to_owned(), known });
        };
        let path = Path::new(file);
        let made = match path.extension().is_some_and(|extension| extension == PROGRAM) {
            true => with_program(algorithm, path)?,
            false => with_snapshot(algorithm, path, &mut slots)?,
        };
        let name = made.name();
        if all.iter().any(|algorithm| algorithm.name() == name) {
            return Err(VariantError::Twice { named: named.clone(), name });
        }
        names.push(name.to_owned());
        written.push((name, named.clone()));
        all.push(made);
    }
    Ok(Named { names, algorithms: all, written })
}

fn with_program(algorithm: &Arc<dyn Algorithm>, path: &Path) -> Result<Arc<dyn Algorithm>, VariantError> {
    let compiled = prog::source(path, compile)?;
    let label = path.file_stem().unwrap_or_default().to_string_lossy();
    let made = WithProgram::new(Arc::clone(algorithm), &label, &compiled.text, &compiled.program);
    let made = made.map_err(|source| VariantError::UnfitProgram { path: path.to_owned(), source })?;
    Ok(Arc::new(made))
}

fn with_snapshot(
    algorithm: &Arc<dyn Algorithm>,
    path: &Path,
    slots: &mut Range<u8>,
) -> Result<Arc<dyn Algorithm>, VariantError> {
    let (_, snapshot) = snapshot::read_file(path)?;
    // Nothing but simulated and own flows will run it, at its user's word.
    let trusted = Trust::Any.admit(snapshot, &Admission::default());
    let trusted = trusted.map_err(|source| VariantError::NotTrusted { path: path.to_owned(), source })?;
    let slot = slots.next().ok_or_else(|| VariantError::NoSlot { limit: free_slots().len() })?;
    let made = WithSnapshot::new(Arc::clone(algorithm), &trusted, slot);
    let made = made.map_err(|source| VariantError::UnfitSnapshot { path: path.to_owned(), source })?;
    Ok(Arc::new(made))
}

//! The package's tests, which are Python's, with the module that was built beside this test.
#![allow(clippy::unwrap_used)]

use ccplane_testing::skipped;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The extension module, as Cargo names it.
const MODULE: &str = "libccplane_native.so";

/// The module that this test's own build made.
fn module() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let found = [deps.join(MODULE), deps.parent().unwrap().join(MODULE)];
    found.into_iter().find(|path| path.exists()).unwrap()
}

/// Puts the package together as an installed one is.
fn package(folder: &Path, sources: &Path) {
    let package = folder.join("ccplane");
    std::fs::create_dir(&package).unwrap();
    for file in std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path()) {
        if file.is_file() {
            std::fs::copy(&file, package.join(file.file_name().unwrap())).unwrap();
        }
    }
    std::fs::copy(module(), package.join("_native.abi3.so")).unwrap();
}

/// Runs these tests of the package by a Python that has what they need.
fn passes(python: &Path, tests: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    package(folder.path(), &root.join("python/ccplane"));
    let tests = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"])
        .args(tests)
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root)
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(tests.status.success(), "{}\n{}", said(&tests.stdout), said(&tests.stderr));
}

/// The Python of a virtual environment that was made whole, below `target`.
fn python(environment: &str) -> Option<PathBuf> {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(environment).join("venv");
    // Written when all packages are there.
    venv.join("requirements.txt").exists().then(|| venv.join("bin/python3"))
}

#[test]
fn the_package_passes_its_own_tests() {
    let Some(python) = python("python") else {
        return skipped("the Python package", "no target/python (.ci/python makes it)");
    };
    passes(&python, &[]);
}

/// Its Python has torch, which is too large for everybody who runs the tests.
#[test]
fn the_notebook_that_asks_torch_runs() {
    let Some(python) = python("trainers") else {
        return skipped("the notebook that asks torch", "no target/trainers (make trainers makes it)");
    };
    passes(&python, &["tests/training/test_asks_torch.py"]);
}

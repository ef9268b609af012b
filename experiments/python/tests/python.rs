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

#[test]
fn the_package_passes_its_own_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../target/python/venv/bin/python3");
    if !python.exists() {
        skipped("the Python package", "no target/python (.ci/python makes it)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    package(folder.path(), &root.join("python/ccplane"));
    let tests = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"])
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root)
        .output()
        .unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(tests.status.success(), "{}\n{}", said(&tests.stdout), said(&tests.stderr));
}

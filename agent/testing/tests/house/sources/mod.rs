//! The workspace's Rust sources, and what Cargo knows of its packages.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo's metadata of the workspace's own packages.
pub fn metadata() -> serde_json::Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(root);
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Calls `read` with the path, relative to the workspace, and the text of each source below `folder`. Hidden folders, `target`
/// and those in `left_out` are passed over.
pub fn each(folder: &str, left_out: &[&str], read: impl FnMut(PathBuf, &str)) {
    each_of(&["rs"], folder, left_out, read);
}

/// The same of files with these extensions.
pub fn each_of(extensions: &[&str], folder: &str, left_out: &[&str], mut read: impl FnMut(PathBuf, &str)) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let passed_over = |name: &str| name == "target" || name.starts_with('.') || left_out.contains(&name);
    let entries = walkdir::WalkDir::new(root.join(folder)).min_depth(1).into_iter();
    let entries = entries.filter_entry(|e| !e.file_name().to_str().is_some_and(passed_over));
    let is_one = |path: &Path| path.extension().is_some_and(|e| extensions.iter().any(|one| e == *one));
    for entry in entries.map(Result::unwrap).filter(|e| is_one(e.path())) {
        let path = entry.path().strip_prefix(&root).unwrap().to_owned();
        read(path, &std::fs::read_to_string(entry.path()).unwrap());
    }
}

//! `cargo test` builds and runs only what tests something. The keys `test` and `doctest` of a library or a program are true where its
//! sources have unit tests or examples, and nowhere else.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Words behind a fence that leave a block a test. With any other, such as `text` or `ignore`, rustdoc runs nothing.
const OF_EXAMPLES: [&str; 5] = ["rust", "no_run", "should_panic", "compile_fail", "edition2024"];
/// The datapath that others are copied from: unit tests may come to a copy.
const COPIED: &str = "ccplane-template-datapath";

/// A source file of a package, and what it has to test.
struct Source {
    path: PathBuf,
    unit_tests: bool,
    examples: bool,
}

fn has_unit_tests(source: &str) -> bool {
    source.lines().any(|line| line.trim_start().starts_with("#[test]"))
}

/// Whether rustdoc would run a block between these lines of Markdown.
fn has_examples<'a>(markdown: impl Iterator<Item = &'a str>) -> bool {
    let fences = markdown.filter_map(|line| line.trim_start().strip_prefix("```"));
    // Every other fence ends a block.
    let mut starts = fences.step_by(2);
    starts.any(|words| words.split([',', ' ']).all(|word| word.is_empty() || OF_EXAMPLES.contains(&word)))
}

/// Whether a source's comments, or a page that rustdoc reads with it, have examples.
fn is_documented(path: &Path, source: &str) -> bool {
    let comments = source.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))
    });
    let mut pages = source.lines().filter_map(|line| {
        let page = line.trim().strip_prefix("#[doc = include_str!(\"")?.strip_suffix("\")]")?;
        Some(std::fs::read_to_string(path.parent()?.join(page)).unwrap())
    });
    has_examples(comments) || pages.any(|page| has_examples(page.lines()))
}

fn path_of(value: &Value) -> &Path {
    Path::new(value.as_str().unwrap())
}

/// The targets of a package whose keys are not what its sources ask for.
fn wrong(root: &Path, package: &Value) -> Vec<String> {
    let folder = path_of(&package["manifest_path"]).parent().unwrap();
    let mut sources = Vec::new();
    let src = folder.strip_prefix(root).unwrap().join("src");
    crate::sources::each(src.to_str().unwrap(), &[], |path, source| {
        let path = root.join(path);
        let examples = is_documented(&path, source);
        sources.push(Source { path, unit_tests: has_unit_tests(source), examples });
    });
    let targets = package["targets"].as_array().unwrap();
    let is_program = |target: &&Value| target["kind"][0] == "bin";
    let programs: Vec<&Path> = targets.iter().filter(is_program).map(|t| path_of(&t["src_path"])).collect();
    let mut wrong = Vec::new();
    for target in targets {
        let of = match target["kind"][0].as_str().unwrap() {
            "bin" => vec![path_of(&target["src_path"])],
            "lib" | "cdylib" => {
                let all = sources.iter().map(|source| source.path.as_path());
                all.filter(|path| !programs.contains(path)).collect()
            }
            _ => continue,
        };
        let own: Vec<&Source> = sources.iter().filter(|s| of.contains(&s.path.as_path())).collect();
        let is_library = !is_program(&target);
        for (key, wanted) in [
            ("test", own.iter().any(|source| source.unit_tests)),
            ("doctest", is_library && own.iter().any(|source| source.examples)),
        ] {
            if target[key] != wanted {
                wrong.push(format!("{}: {key} of {} should be {wanted}", folder.display(), target["name"]));
            }
        }
    }
    wrong
}

#[test]
fn nothing_is_built_and_run_that_tests_nothing() {
    let metadata = crate::sources::metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let packages: Vec<&Value> = packages.filter(|package| package["name"] != COPIED).collect();
    let wrong: Vec<String> =
        packages.iter().flat_map(|package| wrong(path_of(&metadata["workspace_root"]), package)).collect();
    assert_eq!(wrong, [""; 0], "the keys of [lib] and [[bin]] in Cargo.toml");
    assert!(packages.len() > 40, "{} packages", packages.len());
}

#[test]
fn examples_are_told_from_other_blocks() {
    let examples = |page: &str| has_examples(page.lines());
    assert!(examples("```\nlet a = 1;\n```"));
    assert!(examples("words\n```text\n```\n```rust,no_run\n```"));
    assert!(!examples("```text\na = 1\n```\n```console\n```\n```ignore\n```"));
    assert!(!examples("no block"));
    assert!(is_documented(Path::new("a.rs"), "/// ```\n/// f();\n/// ```\nfn f() {}"));
    assert!(!is_documented(Path::new("a.rs"), "// ```\nfn f() {}"));
    assert!(has_unit_tests("mod tests {\n    #[test]\n    fn f() {}\n}"));
    assert!(!has_unit_tests("// A #[test] is elsewhere."));
}

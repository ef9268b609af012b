//! Files of algorithms keep one order of parts: state, behaviour, config, defaults, factory, tests.
//!
//! A comment of its name begins a part, or of several, as `// Config, defaults` does. What an algorithm implements stands in
//! its own part or in a later one.

use crate::sources;

/// The parts of an algorithm's file, in their order.
const PARTS: [&str; 6] = ["state", "behaviour", "config", "defaults", "factory", "tests"];
/// Words of lines that begin an item, each with the first part in which that item may stand.
const ITEMS: [(&str, &str, &str); 4] = [
    ("impl", " Flow for ", "behaviour"),
    ("impl", " Default for ", "defaults"),
    ("impl", MAKES_FLOWS, "factory"),
    ("mod", " tests ", "tests"),
];
/// The words of a file that makes flows by code of its own.
const MAKES_FLOWS: &str = " Algorithm for ";
/// The words of a file that declares an algorithm, which needs none of the parts but tests.
const DECLARES: &str = ": FoldAlgorithm = ";

/// The place of a part among all.
fn place(name: &str) -> Option<usize> {
    PARTS.iter().position(|part| name.eq_ignore_ascii_case(part))
}

/// The parts that a line begins; none where it is anything else.
fn begun(line: &str) -> Vec<usize> {
    let heading = line.strip_prefix("// ").and_then(|text| text.split(':').next());
    heading.and_then(|heading| heading.split(", ").map(place).collect()).unwrap_or_default()
}

/// The first part in which the item that a line begins may stand.
fn earliest(line: &str) -> Option<usize> {
    let of = |(first, words, _): &&(&str, &str, &str)| line.starts_with(first) && line.contains(words);
    ITEMS.iter().find(of).and_then(|(.., part)| place(part))
}

/// Returns what is out of order in a file, and what is missing in one that has to have `all` parts.
fn faults(text: &str, all: bool) -> Vec<String> {
    let (mut faults, mut parts) = (Vec::new(), Vec::<usize>::new());
    for (at, line) in text.lines().enumerate() {
        for part in begun(line) {
            if parts.last().is_some_and(|last| *last >= part) {
                faults.push(format!("{}: `{}` comes too late", at + 1, PARTS[part]));
            }
            parts.push(part);
        }
        if let Some(earliest) = earliest(line).filter(|earliest| parts.last() < Some(earliest)) {
            faults.push(format!("{}: `{line}` stands before `{}`", at + 1, PARTS[earliest]));
        }
    }
    let missing = PARTS.iter().enumerate().filter(|(part, _)| all && !parts.contains(part));
    faults.extend(missing.map(|(_, name)| format!("there is no `{name}`")));
    faults
}

/// Wrappers of algorithms, in folders, have the parts that they need; others have all.
#[test]
fn files_of_algorithms_keep_the_order_of_their_parts() {
    let (mut found, mut whole) = (Vec::new(), 0);
    sources::each("algs/src", &[], |path, text| {
        let makes_flows = text.lines().any(|line| line.starts_with("impl") && line.contains(MAKES_FLOWS));
        if !makes_flows && !text.contains(DECLARES) {
            return;
        }
        let all = makes_flows && path.parent().is_some_and(|folder| folder.ends_with("algs/src"));
        whole += usize::from(all);
        found.extend(faults(text, all).into_iter().map(|fault| format!("{}:{fault}", path.display())));
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(whole >= 10, "{whole} files with all parts");
}

#[test]
fn what_is_out_of_order_is_found() {
    let whole = "// State\nstruct A;\n// Behaviour\nimpl Flow for A {}\n// Config, defaults: another's.\n\
                 // Factory\nimpl Algorithm for B {}\n// Tests\nmod tests {}\n";
    assert_eq!(faults(whole, true), Vec::<String>::new());
    assert_eq!(faults("impl Flow for A {}\n", false), ["1: `impl Flow for A {}` stands before `behaviour`"]);
    let early = faults(&whole.replace("// Factory\n", ""), true);
    assert_eq!(early, ["6: `impl Algorithm for B {}` stands before `factory`", "there is no `factory`"]);
    assert_eq!(faults("// Config\n// Behaviour\n", false), ["2: `behaviour` comes too late"]);
    assert_eq!(faults("// Tests\n// Tests\n", false), ["2: `tests` comes too late"]);
    assert_eq!(
        faults("// Config of others\nmod tests {}\n", false),
        ["2: `mod tests {}` stands before `tests`"]
    );
}

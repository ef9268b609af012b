//! Dependencies between crates point down: the floors of ARCHITECTURE.md, held against Cargo's metadata.

use std::collections::BTreeMap;

use serde_json::Value;

/// The file with the floors.
const ARCHITECTURE: &str = include_str!("../../../../ARCHITECTURE.md");
/// The heading above the table of floors.
const HEADING: &str = "## Floors";

/// Each crate's floor, 1 for the lowest, as the table's rows `| floor | name | crates |` say.
fn floors(text: &str) -> BTreeMap<String, usize> {
    let section =
        text.split(HEADING).nth(1).expect("ARCHITECTURE.md has floors").split("\n## ").next().unwrap();
    let mut floors = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let Some(floor) = cells.get(1).and_then(|cell| cell.parse().ok()) else { continue };
        for name in cells[3].split('`').skip(1).step_by(2) {
            assert_eq!(floors.insert(name.to_owned(), floor), None, "{name} is on two floors");
        }
    }
    floors
}

/// The workspace's crates and what each is built with; what only tests need is left out.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let metadata = crate::sources::metadata();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: Vec<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let of = |package: &Value| {
        let all = package["dependencies"].as_array().unwrap().iter();
        let built =
            all.filter(|dependency| dependency["kind"] != "dev").map(|dependency| text(&dependency["name"]));
        (text(&package["name"]), built.filter(|name| ours.contains(name)).collect())
    };
    packages.iter().map(of).collect()
}

/// Every dependency from a lower floor to a higher one.
fn upward(floors: &BTreeMap<String, usize>, dependencies: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let floor = |name: &String| *floors.get(name).unwrap_or_else(|| panic!("{name} is on no floor"));
    let arrows = dependencies.iter().flat_map(|(from, tos)| tos.iter().map(move |to| (from, to)));
    arrows.filter(|(from, to)| floor(to) > floor(from)).map(|(from, to)| format!("{from} -> {to}")).collect()
}

#[test]
fn no_crate_depends_on_one_above_it() {
    let (floors, dependencies) = (floors(ARCHITECTURE), dependencies());
    assert_eq!(upward(&floors, &dependencies), [""; 0]);
    let gone: Vec<&String> = floors.keys().filter(|name| !dependencies.contains_key(*name)).collect();
    assert_eq!(gone, [""; 0], "ARCHITECTURE.md names crates that there are not");
}

#[test]
fn an_upward_dependency_is_found() {
    let floors =
        floors("## Floors\n| 1 | ground | `a`, `b` |\n| 2 | first | `c` |\n\n## More\n| 3 | | `d` |");
    assert_eq!(floors.len(), 3);
    let depends = |from: &str, to: &str| BTreeMap::from([(from.to_owned(), vec![to.to_owned()])]);
    assert_eq!(upward(&floors, &depends("a", "b")), [""; 0]);
    assert_eq!(upward(&floors, &depends("c", "a")), [""; 0]);
    assert_eq!(upward(&floors, &depends("a", "c")), ["a -> c"]);
}

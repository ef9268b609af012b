//! Modules of a crate do not know each other in circles: two that need one type find it in a third.
//!
//! A top-level module and its children count as one, and tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use syn::UseTree;
use syn::visit::{self, Visit};

use crate::words::is_test;

/// The top-level modules of one crate, each with those that its paths lead to.
type Modules = BTreeMap<String, BTreeSet<String>>;

/// Reads the paths that lead out of a module.
struct Reader {
    /// The modules around the place that is read, from the crate's root on.
    within: Vec<String>,
    named: BTreeSet<String>,
}

impl Reader {
    fn path(&mut self, segments: &[String]) {
        let ups = segments.iter().take_while(|segment| *segment == "super").count();
        let is_absolute = segments.first().is_some_and(|segment| segment == "crate");
        let is_above = ups > 0 && ups >= self.within.len();
        if (is_absolute || is_above)
            && let Some(module) = segments.get(ups.max(1))
        {
            self.named.insert(module.clone());
        }
    }

    fn tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.path(&with(&name.ident)),
            UseTree::Rename(rename) => self.path(&with(&rename.ident)),
            UseTree::Glob(_) => self.path(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            self.within.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.within.pop();
        }
    }
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(&[], &item.tree);
        }
    }
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.path(&segments);
        visit::visit_path(self, path);
    }
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let tokens = item.tokens.to_string().replace("\\\"", "");
        // Without what is in quotes: a comment's link is no use of a module.
        let tokens: String = tokens.split('"').step_by(2).collect::<String>().replace(' ', "");
        for path in tokens.split("crate::").skip(1) {
            let name = path.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            self.named.insert(name.to_owned());
        }
        visit::visit_macro(self, item);
    }
}

/// The modules that a file of a crate is in, by its path below `src`; none for the root and for tests.
fn modules_of(file: &str) -> Vec<String> {
    let stem = file.strip_suffix(".rs").unwrap();
    let modules: Vec<String> = stem.split('/').map(str::to_owned).collect();
    let is_test = modules.iter().any(|module| module == "tests" || module.starts_with("tests_"));
    match modules.as_slice() {
        _ if is_test => Vec::new(),
        [root] if root == "lib" || root == "main" => Vec::new(),
        [within @ .., last] if last == "mod" => within.to_vec(),
        within => within.to_vec(),
    }
}

/// Adds what a file's paths lead to, where `file` is its path below `src`.
fn read(modules: &mut Modules, file: &str, source: &str) {
    let within = modules_of(file);
    let Some(top) = within.first().cloned() else { return };
    let mut reader = Reader { within, named: BTreeSet::new() };
    reader.visit_file(&syn::parse_file(source).unwrap());
    modules.entry(top).or_default().extend(reader.named);
}

/// The modules that are reached from one over a path or more.
fn reached<'a>(modules: &'a Modules, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in modules[module].iter().filter(|next| modules.contains_key(*next) && *next != module) {
            if reached.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    reached
}

/// The circles of modules, each with its modules in order.
fn circles(modules: &Modules) -> BTreeSet<String> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        modules.keys().map(|module| (module.as_str(), reached(modules, module))).collect();
    let mut circles = BTreeSet::new();
    for (module, there) in &reach {
        let both_ways = reach.iter().filter(|(other, back)| there.contains(*other) && back.contains(module));
        let circle: Vec<&str> = both_ways.map(|(other, _)| *other).collect();
        if !circle.is_empty() {
            circles.insert(circle.join(" <-> "));
        }
    }
    circles
}

#[test]
fn no_modules_know_each_other_in_circles() {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    crate::sources::each("", &[], |path, source| {
        if let Some((owner, file)) = path.to_str().unwrap().split_once("/src/") {
            read(crates.entry(owner.to_owned()).or_default(), file, source);
        }
    });
    let modules: usize = crates.values().map(BTreeMap::len).sum();
    assert!(modules > 300, "{modules} modules were found");
    let of = |(owner, modules): (&String, &Modules)| -> Vec<String> {
        circles(modules).iter().map(|circle| format!("{owner}: {circle}")).collect()
    };
    assert_eq!(crates.iter().flat_map(of).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_circle_is_found() {
    let known = |files: &[(&str, &str)]| {
        let mut modules = Modules::new();
        files.iter().for_each(|(file, source)| read(&mut modules, file, source));
        circles(&modules).into_iter().collect::<Vec<_>>()
    };
    let (lib, a) = (("lib.rs", "use crate::a::X;"), ("a.rs", "use crate::{b::Y, std as s};"));
    assert_eq!(known(&[lib, a, ("b.rs", "#[cfg(test)] use crate::a::X;")]), [""; 0]);
    assert_eq!(known(&[lib, a, ("b.rs", "#[cfg(test)] mod tests { use super::super::a::X; }")]), [""; 0]);
    assert_eq!(known(&[lib, a, ("b/mod.rs", "mod c; use c::Z;"), ("b/c.rs", "use super::Y;")]), [""; 0]);
    assert_eq!(known(&[lib, a, ("b/c.rs", "fn f() { super::super::a::f() }")]), ["a <-> b"]);
    assert_eq!(
        known(&[lib, a, ("b.rs", "fn f() { g!(crate::c::h) }"), ("c.rs", "use super::a;")]),
        ["a <-> b <-> c"]
    );
}

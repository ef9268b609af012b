//! Modules of a crate do not know each other in circles: two that need one type find it in a third.
//!
//! A top-level module and its children count as one, and tests are left out. A name that the crate's root re-exports leads to the
//! module that it comes from. The parts of the kernel module, in C, stand one upon the other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::UseTree;
use syn::visit::{self, Visit};

use crate::words::is_test;

/// The top-level modules of one crate, each with those that its paths lead to.
type Modules = BTreeMap<String, BTreeSet<String>>;

/// One crate as its sources name it.
#[derive(Default)]
struct CrateSources {
    /// The top-level modules, each with the names that its paths have at the crate's root.
    modules: Modules,
    /// The names that the root imports from its modules, each with the module.
    exports: BTreeMap<String, String>,
}

impl CrateSources {
    /// Adds a file, whose path below `src` is `file`.
    fn read(&mut self, file: &str, source: &str) {
        let parsed = syn::parse_file(source).unwrap();
        if file == "lib.rs" || file == "main.rs" {
            self.exports.extend(exports(&parsed));
        }
        let within = modules_of(file);
        let Some(top) = within.first().cloned() else { return };
        let mut reader = Reader { within, named: BTreeSet::new() };
        reader.visit_file(&parsed);
        self.modules.entry(top).or_default().extend(reader.named);
    }

    /// The modules with those that their paths lead to, also over the root's imports.
    fn resolved(&self) -> Modules {
        let module = |name: &String| match self.exports.get(name) {
            Some(module) if !self.modules.contains_key(name) => module.clone(),
            _ => name.clone(),
        };
        let of = |(top, named): (&String, &BTreeSet<String>)| -> (String, BTreeSet<String>) {
            (top.clone(), named.iter().map(module).collect())
        };
        self.modules.iter().map(of).collect()
    }
}

/// Returns the paths that a `use` imports, each with the name that it binds.
fn imports(before: &[String], tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
    match tree {
        UseTree::Path(path) => imports(&with(&path.ident), &path.tree),
        UseTree::Name(name) => vec![(with(&name.ident), name.ident.to_string())],
        UseTree::Rename(rename) => vec![(with(&rename.ident), rename.rename.to_string())],
        UseTree::Glob(_) => vec![(before.to_vec(), "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(|tree| imports(before, tree)).collect(),
    }
}

/// Returns the names that a crate's root imports, each with the first module of its path.
fn exports(root: &syn::File) -> BTreeMap<String, String> {
    let uses = root.items.iter().filter_map(|item| match item {
        syn::Item::Use(item) if !is_test(&item.attrs) => Some(imports(&[], &item.tree)),
        _ => None,
    });
    let module = |(path, name): (Vec<String>, String)| {
        let mut path = path.into_iter().skip_while(|segment| segment == "crate" || segment == "self");
        Some((name, path.next()?))
    };
    uses.flatten().filter_map(module).collect()
}

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
            imports(&[], &item.tree).iter().for_each(|(path, _)| self.path(path));
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

/// A part of the kernel module: a section of its `module.h`.
struct KernelPart<'a> {
    files: Vec<&'a str>,
    /// The functions and variables that others may use.
    names: Vec<&'a str>,
}

fn is_separator(c: char) -> bool {
    !c.is_alphanumeric() && c != '_'
}

/// The parts of the kernel module in the order of their sections, the lowest first.
fn kernel_parts(header: &str) -> Vec<KernelPart<'_>> {
    let mut parts: Vec<KernelPart<'_>> = Vec::new();
    for line in header.lines() {
        let comment = line.strip_prefix("/* ").and_then(|line| line.strip_suffix(" */")).unwrap_or_default();
        let files: Vec<&str> = comment.split(", ").collect();
        if files.iter().all(|file| file.ends_with(".c")) {
            parts.push(KernelPart { files, names: Vec::new() });
        } else if let Some(part) = parts.last_mut()
            && let Some((declaration, _)) = line.split_once(['(', ';'])
        {
            let name = declaration.rsplit(is_separator).next().unwrap_or_default();
            part.names.extend(name.starts_with("ccplane_").then_some(name));
        }
    }
    parts
}

/// Each name of a higher part that a file of the kernel module uses.
fn kernel_calls_upward(header: &str, source_of: impl Fn(&str) -> String) -> Vec<String> {
    let mut parts = kernel_parts(header);
    let (mut above, mut found) = (BTreeSet::<&str>::new(), Vec::new());
    while let Some(part) = parts.pop() {
        for file in part.files {
            let source = source_of(file);
            let code = source.split("/*").map(|text| text.split_once("*/").map_or(text, |(_, code)| code));
            let used: BTreeSet<&str> = code.flat_map(|code| code.split(is_separator)).collect();
            found.extend(
                above.iter().filter(|name| used.contains(*name)).map(|name| format!("{file}: {name}")),
            );
        }
        above.extend(part.names);
    }
    found
}

#[test]
fn no_modules_know_each_other_in_circles() {
    let mut crates: BTreeMap<String, CrateSources> = BTreeMap::new();
    crate::sources::each("", &[], |path, source| {
        if let Some((owner, file)) = path.to_str().unwrap().split_once("/src/") {
            crates.entry(owner.to_owned()).or_default().read(file, source);
        }
    });
    let modules: usize = crates.values().map(|sources| sources.modules.len()).sum();
    assert!(modules > 300, "{modules} modules were found");
    let of = |(owner, sources): (&String, &CrateSources)| -> Vec<String> {
        circles(&sources.resolved()).iter().map(|circle| format!("{owner}: {circle}")).collect()
    };
    assert_eq!(crates.iter().flat_map(of).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_circle_is_found() {
    let known = |files: &[(&str, &str)]| {
        let mut sources = CrateSources::default();
        files.iter().for_each(|(file, source)| sources.read(file, source));
        circles(&sources.resolved()).into_iter().collect::<Vec<_>>()
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
    let exporting = ("lib.rs", "mod a; mod b; pub use a::{X, Z as W}; #[cfg(test)] pub use a::V;");
    assert_eq!(known(&[exporting, a, ("b.rs", "use crate::{V, Z};")]), [""; 0]);
    assert_eq!(known(&[exporting, a, ("b.rs", "use crate::X;")]), ["a <-> b"]);
    assert_eq!(known(&[exporting, a, ("b.rs", "fn f() { super::W::new() }")]), ["a <-> b"]);
}

#[test]
fn parts_of_the_kernel_module_call_those_below_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../datapath-shims/module/kernel");
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
    let header = read("module.h");
    let names: usize = kernel_parts(&header).iter().map(|part| part.names.len()).sum();
    assert!(names > 50, "{names} names were found");
    assert_eq!(kernel_calls_upward(&header, read), [""; 0]);
}

#[test]
fn a_call_upward_in_the_kernel_module_is_found() {
    const HEADER: &str = "int f(void);\n/* low.c */\nint ccplane_low(int n);\n/* Reads; (and so on). */\n\n\
        /* high.c, roof.c */\nextern struct ops ccplane_high;\n";
    let found = |low: &str| {
        kernel_calls_upward(HEADER, |file: &str| match file {
            "low.c" => low.to_owned(),
            _ => "ccplane_low(1); ccplane_high.n;".to_owned(),
        })
    };
    assert_eq!(found("/* As ccplane_high. */ ccplane_low(2) + ccplane_higher"), [""; 0]);
    assert_eq!(found("f(&ccplane_high);"), ["low.c: ccplane_high"]);
}

//! `unsafe` stays in the files that ARCHITECTURE.md names; tests may have some of their own.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};

/// The file that names the files.
const ARCHITECTURE: &str = include_str!("../../../../ARCHITECTURE.md");
/// The rule that names them.
const RULE: &str = "8. `unsafe` is in ";

/// Whether a file has unsafe code.
#[derive(Default)]
struct Finder(bool);

impl<'ast> Visit<'ast> for Finder {
    fn visit_expr_unsafe(&mut self, _: &'ast syn::ExprUnsafe) {
        self.0 = true;
    }
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.0 |= item.unsafety.is_some();
        visit::visit_item_impl(self, item);
    }
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.0 |= signature.unsafety.is_some();
    }
}

/// The paths that the rule names, with their `{a,b}` written out.
fn named() -> Vec<String> {
    let rule =
        ARCHITECTURE.split(RULE).nth(1).expect("ARCHITECTURE.md has the rule").split("\n\n").next().unwrap();
    let spelled =
        |path: &str| match path.split_once('{').and_then(|(a, rest)| Some((a, rest.split_once('}')?))) {
            Some((before, (choices, after))) => {
                choices.split(',').map(|c| format!("{before}{c}{after}")).collect()
            }
            None => vec![path.to_owned()],
        };
    rule.split('`').skip(1).step_by(2).flat_map(spelled).collect()
}

#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let named = named();
    let (mut elsewhere, mut found) = (Vec::new(), BTreeSet::new());
    crate::sources::each("", &["tests", "examples"], |path, source| {
        let mut finder = Finder::default();
        finder.visit_file(&syn::parse_file(source).unwrap());
        match named.iter().find(|name| path.to_str().unwrap().starts_with(*name)) {
            _ if !finder.0 => {}
            Some(name) => _ = found.insert(name.clone()),
            None => elsewhere.push(path),
        }
    });
    assert!(elsewhere.is_empty(), "unsafe code that ARCHITECTURE.md does not name: {elsewhere:?}");
    let without: Vec<&String> = named.iter().filter(|name| !found.contains(*name)).collect();
    assert_eq!(without, [""; 0], "files that ARCHITECTURE.md names and that have no unsafe code");
}

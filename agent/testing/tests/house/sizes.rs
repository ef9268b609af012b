//! Files and functions stay short enough to be read at once, and so does README's first screen.

use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Lines of one source file, at most.
const MAX_FILE_LINES: usize = 800;
/// Lines of one function, at most.
const MAX_FUNCTION_LINES: usize = 92;
/// Lines of the datapath that people start from, at most.
const MAX_TEMPLATE_LINES: usize = 250;
/// Columns of a line of README.md, at most.
const MAX_COLUMNS: usize = 120;

const README: &str = include_str!("../../../../README.md");
const TEMPLATE: &str = include_str!("../../../../datapath-shims/template/src/lib.rs");

/// Words on a file that is too long.
fn long_file(path: &Path, source: &str) -> Option<String> {
    let lines = source.lines().count();
    (lines > MAX_FILE_LINES).then(|| format!("{} has {lines} lines", path.display()))
}

#[derive(Default)]
struct Measurer {
    file: PathBuf,
    functions: usize,
    too_long: Vec<String>,
}

impl Measurer {
    fn function(&mut self, name: &syn::Ident, block: &syn::Block) {
        let lines = block.span().end().line - name.span().start().line + 1;
        self.functions += 1;
        if lines > MAX_FUNCTION_LINES {
            self.too_long.push(format!("{}: {name} has {lines} lines", self.file.display()));
        }
    }
}

impl<'ast> Visit<'ast> for Measurer {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig.ident, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut measurer = Measurer::default();
    crate::sources::each("", &[], |path, source| {
        measurer.too_long.extend(long_file(&path, source));
        measurer.file = path;
        measurer.visit_file(&syn::parse_file(source).unwrap());
    });
    assert!(measurer.functions > 1000, "{} functions were found", measurer.functions);
    assert_eq!(measurer.too_long, [""; 0]);
}

#[test]
fn files_in_c_are_short() {
    let (mut files, mut too_long) = (0, Vec::new());
    crate::sources::each_of(&["c", "h"], "", &[], |path, source| {
        files += 1;
        too_long.extend(long_file(&path, source));
    });
    assert!(files > 10, "{files} files were found");
    assert_eq!(too_long, [""; 0]);
}

#[test]
fn the_template_is_short() {
    assert!(TEMPLATE.lines().count() <= MAX_TEMPLATE_LINES, "{} lines", TEMPLATE.lines().count());
}

#[test]
fn lines_of_readme_fit_a_terminal() {
    let wide = README.lines().filter(|line| line.chars().count() > MAX_COLUMNS);
    assert_eq!(wide.collect::<Vec<_>>(), [""; 0]);
}

//! Doc comments are plain sentences: none is a riddle, few are fragments, and what is public has one.
//!
//! Fields, variants and methods of traits that are implemented need none: their names and types say enough.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit, Meta, Visibility};

/// Words of a comment that is a fragment rather than a sentence, at most.
const FRAGMENT_WORDS: usize = 3;
/// Share of comments that may be fragments, in percent.
const MAX_FRAGMENTS_PERCENT: usize = 3;
/// Words of a comment's first sentence, at most.
const MAX_SENTENCE_WORDS: usize = 25;
/// Comments that open with one of these ask the reader to guess what they are about.
const RIDDLES: [&str; 8] = ["What", "Whose", "Which", "It", "Who", "Whom", "That", "This"];

/// A comment or an item that breaks a rule.
struct Offence {
    file: PathBuf,
    line: usize,
    rule: &'static str,
    text: String,
}

impl fmt::Display for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.file.display(), self.line, self.rule, self.text)
    }
}

#[derive(Default)]
struct Reader {
    file: PathBuf,
    comments: usize,
    fragments: Vec<Offence>,
    offences: Vec<Offence>,
    is_private: bool,
    /// Types of this file that other crates may name.
    public_types: HashSet<String>,
}

impl Reader {
    fn offence(&self, line: usize, rule: &'static str, text: &str) -> Offence {
        Offence { file: self.file.clone(), line, rule, text: text.to_owned() }
    }

    /// Checks the comment among `attributes`; says whether there is one.
    fn comment(&mut self, attributes: &[Attribute]) -> bool {
        let mut lines = attributes.iter().filter_map(doc).peekable();
        let Some((line, _)) = lines.peek().cloned() else { return false };
        let text: Vec<String> = lines.map(|(_, text)| text).collect();
        let paragraph: Vec<&str> = text.iter().map(|l| l.trim()).take_while(|l| !l.is_empty()).collect();
        let paragraph = paragraph.join(" ");
        self.comments += 1;
        let first = sentence(&paragraph);
        let words = first.split_whitespace().count();
        let all_words = paragraph.split_whitespace().count();
        let opening = paragraph.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        if all_words <= FRAGMENT_WORDS {
            self.fragments.push(self.offence(line, "fragment", &paragraph));
        }
        if RIDDLES.contains(&opening) {
            self.offences.push(self.offence(line, "opens as a riddle", first));
        }
        if words > MAX_SENTENCE_WORDS {
            self.offences.push(self.offence(line, "first sentence is too long", first));
        }
        true
    }

    fn item(&mut self, visibility: Option<&Visibility>, attributes: &[Attribute], name: &syn::Ident) {
        let documented = self.comment(attributes);
        if !documented && !self.is_private && matches!(visibility, Some(Visibility::Public(_))) {
            self.offences.push(self.offence(
                name.span().start().line,
                "is public without a comment",
                &name.to_string(),
            ));
        }
    }
}

/// The line number and text of a doc attribute.
fn doc(attribute: &Attribute) -> Option<(usize, String)> {
    let Meta::NameValue(meta) = &attribute.meta else { return None };
    if !meta.path.is_ident("doc") {
        return None;
    }
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &meta.value else { return None };
    Some((attribute.span().start().line, text.value()))
}

/// The paragraph's first sentence.
fn sentence(paragraph: &str) -> &str {
    let end = paragraph
        .match_indices(['.', ';', ':'])
        .find(|(at, _)| paragraph[at + 1..].starts_with(' ') || at + 1 == paragraph.len());
    end.map_or(paragraph, |(at, _)| &paragraph[..at])
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("cfg") && matches!(&a.meta, Meta::List(l) if l.tokens.to_string() == "test")
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        // A module in a file of its own has its comment there.
        if item.content.is_some() {
            self.item(Some(&item.vis), &item.attrs, &item.ident);
        } else {
            self.comment(&item.attrs);
        }
        let outer = self.is_private;
        self.is_private |= is_test(&item.attrs);
        visit::visit_item_mod(self, item);
        self.is_private = outer;
    }
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.item(Some(&item.vis), &item.attrs, &item.sig.ident);
        visit::visit_item_fn(self, item);
    }
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_item_struct(self, item);
    }
    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_item_enum(self, item);
    }
    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_item_trait(self, item);
    }
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_item_const(self, item);
    }
    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_item_static(self, item);
    }
    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_item_type(self, item);
    }
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.item(None, &item.attrs, &item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.item(Some(&item.vis), &item.attrs, &item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }
    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.item(Some(&item.vis), &item.attrs, &item.ident);
        visit::visit_impl_item_const(self, item);
    }
    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.comment(&field.attrs);
        visit::visit_field(self, field);
    }
    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.comment(&variant.attrs);
        visit::visit_variant(self, variant);
    }
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        self.comment(&item.attrs);
        let named = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
            _ => None,
        };
        let outer = self.is_private;
        self.is_private |= named.is_some_and(|name| !self.public_types.contains(&name));
        visit::visit_item_impl(self, item);
        self.is_private = outer;
    }
    fn visit_file(&mut self, file: &'ast syn::File) {
        self.comment(&file.attrs);
        let public = |item: &syn::Item| match item {
            syn::Item::Struct(item) if matches!(item.vis, Visibility::Public(_)) => {
                Some(item.ident.to_string())
            }
            syn::Item::Enum(item) if matches!(item.vis, Visibility::Public(_)) => {
                Some(item.ident.to_string())
            }
            _ => None,
        };
        self.public_types = file.items.iter().filter_map(public).collect();
        visit::visit_file(self, file);
    }
}

/// Reads the workspace's sources: all, or those below the folder that CCPLANE_WORDS names.
fn read() -> Reader {
    let mut reader = Reader::default();
    crate::sources::each(&std::env::var("CCPLANE_WORDS").unwrap_or_default(), &[], |path, source| {
        reader.is_private = path.components().any(|c| c.as_os_str() == "tests");
        reader.file = path;
        reader.visit_file(&syn::parse_file(source).unwrap());
    });
    reader
}

#[test]
fn doc_comments_are_plain_sentences() {
    let Reader { comments, fragments, mut offences, .. } = read();
    let percent = fragments.len() * 100 / comments.max(1);
    eprintln!(
        "{comments} comments, {} fragments ({percent} %), {} offences",
        fragments.len(),
        offences.len()
    );
    if percent >= MAX_FRAGMENTS_PERCENT {
        offences.extend(fragments);
    }
    for offence in &offences {
        eprintln!("{offence}");
    }
    assert!(offences.is_empty(), "{} comments break a rule", offences.len());
}

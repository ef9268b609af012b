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
/// Words of a sentence, at most. A colon and a semicolon end one, too.
const MAX_SENTENCE_WORDS: usize = 25;
/// Comments that open with one of these ask the reader to guess what they are about.
const RIDDLES: [&str; 13] =
    ["What", "Whose", "Which", "It", "Who", "Whom", "That", "This", "How", "Where", "Why", "As", "There"];

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
        let opening = paragraph.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        if paragraph.split_whitespace().count() <= FRAGMENT_WORDS {
            self.fragments.push(self.offence(line, "fragment", &paragraph));
        }
        if RIDDLES.contains(&opening) {
            self.offences.push(self.offence(line, "opens as a riddle", &paragraph));
        }
        for sentence in long_sentences(&text) {
            self.offences.push(self.offence(line, "has a sentence that is too long", &sentence));
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

/// The paragraphs of a comment's prose, each item of a list as one. Code, tables, headings and references are left out.
fn paragraphs(lines: &[String]) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut in_code = false;
    // An attribute of a block comment has many lines.
    for line in lines.iter().flat_map(|text| text.split('\n')).map(str::trim) {
        let is_fence = line.starts_with("```");
        in_code ^= is_fence;
        let reference = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let is_reference = reference.is_some_and(|(_, rest)| rest.starts_with(": "));
        if is_fence || in_code || is_reference || line.is_empty() || line.starts_with(['|', '#']) {
            paragraphs.push(String::new());
            continue;
        }
        let (marker, rest) = line.split_once(' ').unwrap_or((line, ""));
        let is_item = matches!(marker, "-" | "*" | "+")
            || marker.strip_suffix(['.', ')']).is_some_and(|number| number.parse::<u8>().is_ok());
        if is_item {
            paragraphs.push(String::new());
        }
        let paragraph = paragraphs.last_mut().unwrap();
        paragraph.push_str(if is_item { rest } else { line });
        paragraph.push(' ');
    }
    paragraphs
}

/// The sentences of a comment that have more words than allowed.
fn long_sentences(lines: &[String]) -> Vec<String> {
    let mut long = Vec::new();
    for paragraph in paragraphs(lines) {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        let sentences = words.split_inclusive(|word| word.ends_with(['.', '!', '?', ':', ';']));
        long.extend(sentences.filter(|words| words.len() > MAX_SENTENCE_WORDS).map(|words| words.join(" ")));
    }
    long
}

pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        let Meta::List(list) = &a.meta else { return false };
        let condition = list.tokens.to_string().replace(' ', "");
        // Model checks leave out what all other tests have.
        a.path().is_ident("cfg") && ["test", "all(test,not(loom))"].contains(&condition.as_str())
    })
}

/// Visits of items that have a visibility and a name.
macro_rules! named_items {
    ($ast:lifetime: $($visit:ident $item:ident,)*) => {
        $(fn $visit(&mut self, item: &$ast syn::$item) {
            self.item(Some(&item.vis), &item.attrs, &item.ident);
            visit::$visit(self, item);
        })*
    };
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
    named_items! {
        'ast:
        visit_item_struct ItemStruct,
        visit_item_enum ItemEnum,
        visit_item_trait ItemTrait,
        visit_item_const ItemConst,
        visit_item_static ItemStatic,
        visit_item_type ItemType,
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

#[test]
fn a_long_sentence_is_found_wherever_it_stands() {
    let long = ["word"; MAX_SENTENCE_WORDS + 1].join(" ");
    let found = |text: &str| long_sentences(&text.lines().map(str::to_owned).collect::<Vec<_>>()).len();
    assert_eq!(found(&format!("A first one.\nThen {long}.\n\n- One: {long}\n2. {long}")), 3);
    assert_eq!(found(&format!("Ends; {};\n{}", &long[5..], &long[5..])), 0);
    let left_out = format!("```text\n{long}\n```\n| {long} |\n# {long}\n[a]: {long}");
    assert_eq!(found(&left_out), 0);
}

//! Pages in Markdown: their headings, links and blocks of code.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// The folder of the book's own pages, from the checkout's root.
pub const FOLDER: &str = "experiments/book";
/// Its table of contents, which names every page by the place where that lies.
pub const SUMMARY: &str = "experiments/book/SUMMARY.md";

/// The checkout's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A block of code between fences.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    /// The first word after the fence, up to a comma; empty for drawings and output.
    pub language: String,
    /// The words after that comma.
    pub attributes: String,
    /// The comment on the line before it, which readers do not see.
    pub mark: Option<String>,
    pub text: String,
    /// The line of its fence.
    pub line: usize,
}

/// A link or a picture.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    pub target: String,
    pub line: usize,
}

/// One page, parsed.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Page {
    /// The page's place, from the root.
    pub path: PathBuf,
    pub anchors: BTreeSet<String>,
    pub links: Vec<Link>,
    pub blocks: Vec<Block>,
}

impl Page {
    /// Parses a page of this place.
    pub fn parse(path: &Path, text: &str) -> Page {
        let mut page = Page { path: path.to_owned(), ..Page::default() };
        let mut taken = BTreeMap::new();
        let (mut heading, mut block, mut mark) = (None::<String>, None::<Block>, None);
        let line = |at: &Range<usize>| text[..at.start].matches('\n').count() + 1;
        for (event, at) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    page.anchors.insert(anchor(&heading.take().unwrap_or_default(), &mut taken));
                }
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(Link { target: dest_url.into_string(), line: line(&at) });
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    let (language, attributes) = info.split_once(',').unwrap_or((&*info, ""));
                    let (language, attributes) = (language.to_owned(), attributes.to_owned());
                    let (mark, text, line) = (mark.take(), String::new(), line(&at));
                    block = Some(Block { language, attributes, mark, text, line });
                }
                Event::End(TagEnd::CodeBlock) => page.blocks.extend(block.take()),
                Event::Html(html) => mark = comment(&html).or(mark),
                Event::Start(Tag::HtmlBlock) | Event::End(TagEnd::HtmlBlock) => {}
                Event::Text(part) | Event::Code(part) => {
                    heading.iter_mut().for_each(|heading| heading.push_str(&part));
                    block.iter_mut().for_each(|block| block.text.push_str(&part));
                }
                Event::Start(_) => mark = None,
                _ => {}
            }
        }
        page
    }

    /// Reads and parses a page of the checkout.
    pub fn read(path: &Path) -> Page {
        let text = fs::read_to_string(root().join(path));
        Page::parse(path, &text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// The place that a link leads to, from the root, and the anchor there; `None` where that is not in the checkout.
    pub fn resolve<'a>(&self, link: &'a Link) -> Option<(PathBuf, &'a str)> {
        let (file, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
        // A chapter without a page has a link without a target.
        if file.contains(':') || link.target.is_empty() {
            return None;
        }
        if file.is_empty() {
            return Some((self.path.clone(), anchor));
        }
        let mut place = PathBuf::new();
        let folder = self.path.parent().unwrap_or(Path::new(""));
        for part in folder.join(file).components() {
            match part {
                Component::ParentDir => drop(place.pop()),
                part => place.push(part),
            }
        }
        Some((place, anchor))
    }
}

/// The content of a comment.
fn comment(html: &str) -> Option<String> {
    Some(html.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim().to_owned())
}

/// The name that a heading is linked by, as GitHub and mdBook give it: the second of two alike ends in `-1`.
fn anchor(heading: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    let name: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
    let count = taken.entry(name.clone()).or_insert(0);
    *count += 1;
    if *count == 1 { name } else { format!("{name}-{}", *count - 1) }
}

/// All pages of the book.
pub struct Book {
    pub summary: Page,
    pub pages: BTreeMap<PathBuf, Page>,
}

impl Book {
    pub fn read() -> Book {
        let summary = Page::read(Path::new(SUMMARY));
        let named = summary.links.iter().filter_map(|link| summary.resolve(link));
        let pages = named.map(|(place, _)| (place.clone(), Page::read(&place))).collect();
        Book { summary, pages }
    }

    /// The links of a page that lead nowhere, or to a page that is not in the book.
    pub fn broken(&self, page: &Page) -> Vec<String> {
        let fault = |link: &Link| {
            let (place, anchor) = page.resolve(link)?;
            let why = match self.pages.get(&place) {
                Some(to) if anchor.is_empty() || to.anchors.contains(anchor) => return None,
                Some(_) => "the page has no such heading",
                None if place == Path::new(SUMMARY) => return None,
                None if place.extension().is_some_and(|kind| kind == "md") => "not in the table of contents",
                None if !root().join(&place).is_file() => "no such file",
                None => return None,
            };
            Some(format!("{}:{}: {}: {why}", page.path.display(), link.line, link.target))
        };
        page.links.iter().filter_map(fault).collect()
    }
}

//! Scenes as SVG files. Text stays text, so that it can be edited and searched.

use std::fmt::Write;

use super::font::{Face, width_px};
use super::scene::{Anchor, Item, Scene};

/// Returns the text of an SVG file.
pub fn write(scene: &Scene) -> String {
    let Scene { width, height, title, items } = scene;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height:.0}\" viewBox=\"0 0 {width} {height:.0}\" \
         font-family=\"Roboto, 'Helvetica Neue', Arial, sans-serif\">\n<title>{}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        escaped(title)
    );
    draw(&mut out, items);
    out.push_str("</svg>\n");
    out
}

/// An element of a page, as wide as its place and always on white.
pub fn inline(scene: &Scene) -> String {
    let Scene { width, height, title, items } = scene;
    let mut out = format!(
        "<svg role=\"img\" viewBox=\"0 0 {width} {height:.0}\" font-family=\"Roboto, 'Helvetica Neue', Arial, sans-serif\">\
         <title>{}</title>\n",
        escaped(title)
    );
    draw(&mut out, items);
    // As HTML has it: an element that is empty is closed, too.
    out.push_str("</svg>\n");
    out.replace("/>", "></path>")
}

fn draw(out: &mut String, items: &[Item]) {
    for item in items {
        // Writing to a string does not fail.
        let _ = match item {
            Item::Path { .. } => path(out, item),
            Item::Text { .. } => text(out, item),
        };
    }
}

fn path(out: &mut String, item: &Item) -> std::fmt::Result {
    let Item::Path { points, closed, fill, stroke } = item else { return Ok(()) };
    out.push_str("<path d=\"");
    for (i, (x, y)) in points.iter().enumerate() {
        write!(out, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' })?;
    }
    if *closed {
        out.push('Z');
    } else if points.len() == 1 {
        out.push_str("h0");
    }
    match fill {
        Some((colour, opacity)) => write!(out, "\" fill=\"{colour}\" fill-opacity=\"{opacity}\"")?,
        None => out.push_str("\" fill=\"none\""),
    }
    if let Some(stroke) = stroke {
        write!(
            out,
            " stroke=\"{}\" stroke-width=\"{}\" stroke-opacity=\"{}\" stroke-linejoin=\"round\" stroke-linecap=\"round\"",
            stroke.colour, stroke.width, stroke.opacity
        )?;
        if !stroke.dashes.is_empty() {
            let dashes: Vec<String> = stroke.dashes.iter().map(f32::to_string).collect();
            write!(out, " stroke-dasharray=\"{}\"", dashes.join(" "))?;
        }
    }
    out.push_str("/>\n");
    Ok(())
}

fn text(out: &mut String, item: &Item) -> std::fmt::Result {
    let Item::Text { at, anchor, size, face, colour, text } = item else { return Ok(()) };
    let anchor = match anchor {
        Anchor::Start => "start",
        Anchor::Middle => "middle",
        Anchor::End => "end",
    };
    let weight = if *face == Face::Medium { " font-weight=\"500\"" } else { "" };
    // As wide as the scene takes it to be, whatever font the reader has.
    let width = width_px(text, *size, *face);
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\"{weight} fill=\"{colour}\" \
         textLength=\"{width:.1}\" lengthAdjust=\"spacingAndGlyphs\">{}</text>",
        at.0,
        at.1,
        escaped(text)
    )
}

/// Text between tags. Characters that XML does not allow are left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {}
            c => out.push(c),
        }
    }
    out
}

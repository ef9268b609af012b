//! The letters of pictures: two faces of Roboto with the characters that charts need, see `assets/font/README.md`.

use std::sync::LazyLock;

use ttf_parser::{GlyphId, OutlineBuilder};

static REGULAR: &[u8] = include_bytes!("../assets/font/Roboto-Regular.ttf");
static MEDIUM: &[u8] = include_bytes!("../assets/font/Roboto-Medium.ttf");

static REGULAR_FACE: LazyLock<Option<ttf_parser::Face<'static>>> =
    LazyLock::new(|| ttf_parser::Face::parse(REGULAR, 0).ok());
static MEDIUM_FACE: LazyLock<Option<ttf_parser::Face<'static>>> =
    LazyLock::new(|| ttf_parser::Face::parse(MEDIUM, 0).ok());

/// The weight of letters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Face {
    /// The weight of labels.
    Regular,
    /// The weight of headings.
    Medium,
}

impl Face {
    fn parsed(self) -> Option<&'static ttf_parser::Face<'static>> {
        match self {
            Self::Regular => REGULAR_FACE.as_ref(),
            Self::Medium => MEDIUM_FACE.as_ref(),
        }
    }
}

/// A character that the faces lack is drawn as the box that fonts have for that.
const MISSING: GlyphId = GlyphId(0);

/// Returns the width of `text`, pixels.
pub fn width_px(text: &str, size_px: f32, face: Face) -> f32 {
    let Some(face) = face.parsed() else { return 0.0 };
    let scale = size_px / f32::from(face.units_per_em());
    text.chars().map(|c| advance(face, c) * scale).sum()
}

/// Hands the outlines of `text` to `builder`, with `builder`'s origin and scale set for each letter by `place`: where its
/// base line starts, pixels from the text's start, and pixels per unit of the outline.
pub fn outlines<B: OutlineBuilder>(
    text: &str,
    size_px: f32,
    face: Face,
    builder: &mut B,
    mut place: impl FnMut(&mut B, f32, f32),
) {
    let Some(face) = face.parsed() else { return };
    let scale = size_px / f32::from(face.units_per_em());
    let mut x = 0.0;
    for c in text.chars() {
        place(builder, x, scale);
        face.outline_glyph(glyph(face, c), builder);
        x += advance(face, c) * scale;
    }
}

fn glyph(face: &ttf_parser::Face<'_>, c: char) -> GlyphId {
    face.glyph_index(c).unwrap_or(MISSING)
}

fn advance(face: &ttf_parser::Face<'_>, c: char) -> f32 {
    f32::from(face.glyph_hor_advance(glyph(face, c)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_that_reports_write_is_there() {
        let written = "0123456789 abcxyz ABCXYZ µ×±σ–—−≤≥≈%·“”’…\u{202f}";
        for face in [Face::Regular, Face::Medium] {
            let parsed = face.parsed().unwrap();
            for c in written.chars().filter(|c| !c.is_whitespace()) {
                assert!(parsed.glyph_index(c).is_some(), "{face:?} lacks {c:?} (U+{:04X})", c as u32);
            }
        }
    }

    #[test]
    fn width_grows_with_text_and_size() {
        let one = width_px("0", 10.0, Face::Regular);
        assert!(one > 4.0 && one < 7.0, "{one}");
        assert!((width_px("00", 20.0, Face::Regular) - 4.0 * one).abs() < 1e-3);
        assert!(width_px("漢", 10.0, Face::Regular) > 0.0);
    }
}

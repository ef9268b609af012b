//! Draws scenes as PNG files.

use tiny_skia::{
    Color, FillRule, LineCap, LineJoin, Paint, PathBuilder, Pixmap, Stroke as Pen, StrokeDash, Transform,
};
use ttf_parser::OutlineBuilder;

use super::font::{outlines, width_px};
use super::scene::{Anchor, Item, Scene, Stroke};

/// Dots per pixel of the scene.
const SCALE: f32 = 2.0;

/// Reasons why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// No memory, or no size.
    #[error("a picture of {width} by {height} pixels cannot be drawn")]
    Size { width: u32, height: u32 },
    /// The encoder failed.
    #[error("encoding a picture: {0}")]
    Encode(String),
}

/// Returns the bytes of a PNG file.
///
/// # Errors
/// The scene's size.
pub fn write(scene: &Scene) -> Result<Vec<u8>, PictureError> {
    let (width, height) = ((scene.width * SCALE).ceil() as u32, (scene.height * SCALE).ceil() as u32);
    let mut map = Pixmap::new(width, height).ok_or(PictureError::Size { width, height })?;
    map.fill(Color::WHITE);
    for item in &scene.items {
        match item {
            Item::Path { points, closed, fill, stroke } => {
                draw_path(&mut map, points, *closed, *fill, stroke.as_ref());
            }
            Item::Text { at, anchor, size, face, colour, text } => {
                let shift = match anchor {
                    Anchor::Start => 0.0,
                    Anchor::Middle => 0.5,
                    Anchor::End => 1.0,
                };
                let left = at.0 - shift * width_px(text, *size, *face);
                let mut letters = Letters { path: PathBuilder::new(), x: 0.0, y: at.1, scale: 1.0 };
                outlines(text, *size, *face, &mut letters, |l, x, scale| (l.x, l.scale) = (left + x, scale));
                if let Some(path) = letters.path.finish() {
                    map.fill_path(&path, &paint(colour, 1.0), FillRule::Winding, transform(), None);
                }
            }
        }
    }
    map.encode_png().map_err(|e| PictureError::Encode(e.to_string()))
}

fn draw_path(
    map: &mut Pixmap,
    points: &[(f32, f32)],
    closed: bool,
    fill: Option<(&'static str, f32)>,
    stroke: Option<&Stroke>,
) {
    let mut builder = PathBuilder::new();
    for (i, (x, y)) in points.iter().enumerate() {
        if i == 0 { builder.move_to(*x, *y) } else { builder.line_to(*x, *y) }
    }
    if let ([(x, y)], false) = (points, closed) {
        builder.line_to(x + 0.01, *y);
    }
    if closed {
        builder.close();
    }
    let Some(path) = builder.finish() else { return };
    if let Some((colour, opacity)) = fill {
        map.fill_path(&path, &paint(colour, opacity), FillRule::Winding, transform(), None);
    }
    if let Some(stroke) = stroke {
        let pen = Pen {
            width: stroke.width,
            line_cap: LineCap::Round,
            line_join: LineJoin::Round,
            dash: StrokeDash::new(stroke.dashes.clone(), 0.0),
            ..Pen::default()
        };
        map.stroke_path(&path, &paint(stroke.colour, stroke.opacity), &pen, transform(), None);
    }
}

fn transform() -> Transform {
    Transform::from_scale(SCALE, SCALE)
}

fn paint(colour: &str, opacity: f32) -> Paint<'static> {
    let part = |at: usize| colour.get(at..at + 2).and_then(|h| u8::from_str_radix(h, 16).ok()).unwrap_or(0);
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(part(1), part(3), part(5), (opacity.clamp(0.0, 1.0) * 255.0).round() as u8);
    paint
}

/// Letters' outlines, whose `y` rises, onto a picture, whose `y` falls.
struct Letters {
    path: PathBuilder,
    x: f32,
    y: f32,
    scale: f32,
}

impl Letters {
    fn at(&self, x: f32, y: f32) -> (f32, f32) {
        (self.x + x * self.scale, self.y - y * self.scale)
    }
}

impl OutlineBuilder for Letters {
    fn move_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        let (x, y) = self.at(x, y);
        self.path.line_to(x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        let ((x1, y1), (x, y)) = (self.at(x1, y1), self.at(x, y));
        self.path.quad_to(x1, y1, x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        let ((x1, y1), (x2, y2), (x, y)) = (self.at(x1, y1), self.at(x2, y2), self.at(x, y));
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}

//! The drawing library of both reports. A [`Figure`] is data in the reader's units; it becomes part of a page
//! ([`html`]), or a [`scene`] of fixed size, and that an SVG file ([`svg`]) or a picture ([`png`]).

pub mod axis;
mod figure;
mod font;
pub mod html;
mod path;
pub mod png;
pub mod scene;
pub mod style;
pub mod svg;

pub use axis::Axis;
pub use figure::{Entry, Figure, Mark, Panel, Readout, ReadoutSeries, Scale, Shape, Span, Weight};
pub use path::{MAX_POINTS, thinned};
pub use style::{Marker, Style};

//! The drawing library of reports. A [`Figure`] is data in the reader's units; it becomes part of a page
//! ([`html`]), or a [`scene`] of fixed size, and that an SVG file ([`svg`]) or a picture ([`png`]).

pub mod axis;
mod figure;
pub mod font;
pub mod html;
mod path;
pub mod png;
pub mod scene;
pub mod style;
pub mod svg;

pub use axis::Axis;
pub use figure::{Entry, Figure, Mark, Panel, Readout, ReadoutSeries, Scale, Shape, Weight};
pub use path::thinned;
pub use style::{Marker, Style};

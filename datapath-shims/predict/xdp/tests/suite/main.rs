//! The prediction server in XDP: made-up packets and real ones, beside the reference in user space.
#![allow(clippy::unwrap_used)]

mod differential;
mod live;
mod support;

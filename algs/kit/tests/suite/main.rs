//! Every algorithm that ships, on every executor but live flows; and the kit, which finds what is wrong.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod conform;
mod faulty;
mod module;
mod references;

//! The rules of the house, held by tests that read its sources.
#![allow(clippy::unwrap_used)]

mod circles;
mod glossary;
mod layers;
mod log_lines;
mod parts;
mod sizes;
mod sleeps;
mod sources;
mod targets;
mod unsafe_files;
mod words;

//! Fuzz targets: no text panics the compiler, and no program panics the VM or makes it stray from its text.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-program --test fuzz source` runs one guided by coverage.

mod common;

use common::{Choices, compiler_answers, program, vm_does_what_the_text_says};

#[test]
fn source() {
    bolero::check!().for_each(|bytes: &[u8]| compiler_answers(&String::from_utf8_lossy(bytes)));
}

/// Bytes choose a valid program, then edit its text.
#[test]
fn edited_source() {
    bolero::check!().for_each(|bytes: &[u8]| {
        let choices = &mut Choices(bytes);
        let mut text = program(choices).to_string();
        while !choices.0.is_empty() {
            let at = (choices.below(256) << 8 | choices.below(256)) % (text.len() + 1);
            if text.is_char_boundary(at) {
                text.insert(at, char::from(choices.byte()));
            }
        }
        compiler_answers(&text);
    });
}

#[test]
fn vm() {
    bolero::check!().for_each(|bytes: &[u8]| vm_does_what_the_text_says(&mut Choices(bytes), 4));
}

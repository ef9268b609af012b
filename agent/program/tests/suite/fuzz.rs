//! Fuzz targets: no text panics the compiler, and no program panics the VM or makes it stray from its text.
//!
//! `cargo test` runs each for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-program --test suite fuzz::no_text_panics_the_compiler` runs one guided by coverage.

use crate::common::{Choices, compiler_answers, program, vm_does_what_the_text_says};
use ccplane_program::stock;
use ccplane_testing::fuzz::{Fuzz, shape};

#[test]
fn no_text_panics_the_compiler() {
    bolero::check!().for_each(|bytes: &[u8]| compiler_answers(&String::from_utf8_lossy(bytes)));
}

/// Bytes choose a valid program, then edit its text.
#[test]
fn no_edited_program_panics_the_compiler() {
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
fn the_vm_does_what_any_program_says() {
    bolero::check!().for_each(|bytes: &[u8]| vm_does_what_the_text_says(&mut Choices(bytes), 4));
}

const TEXT: &str = "(def (Report (volatile acked 0)) (gain 3) (seen false))
(when (&& (> Ack.lost_pkts_sample 0) seen) (:= Cwnd (max (/ Cwnd 2) gain)))
(when true (:= Report.acked (+ Report.acked 1)) (:= seen (!if seen true)) (report))";
const TOKENS: &[&str] = &[
    "(",
    ")",
    "def",
    "when",
    "Report",
    "report",
    "fallthrough",
    "volatile",
    ":=",
    "+",
    "-",
    "*",
    "/",
    "<",
    "<=",
    "==",
    "&&",
    "||",
    "if",
    "!if",
    "ewma",
    "max",
    "min",
    "wrapped",
    "history",
    "policy",
    "Cwnd",
    "Rate",
    "Micros",
    "Ack.now",
    "Flow.rtt_sample_us",
    "Ack.bytes_acked",
    "true",
    "false",
    "+infinity",
    "9223372036854775807",
    "-1",
    "#",
    "\n",
    " ",
];

#[test]
fn no_drawn_text_panics_the_compiler() {
    let short =
        ["(def (a 0)) (when true (report))", "(def (Report (a 0)) (x 1)) (when (> x 0) (:= Report.a x))"];
    let seeds = [TEXT].into_iter().chain(short);
    let target = Fuzz::new("program-text", env!("CARGO_MANIFEST_DIR")).seeds(seeds).tokens(TOKENS);
    target.max_bytes(512).part(5_000).run(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        compiler_answers(&text);
        match ccplane_program::compile(&text) {
            Ok(program) => program.regs().len() as u64,
            Err(refusals) => shape(&refusals[0].problem) ^ refusals.len().min(4) as u64,
        }
    });
}

#[test]
fn bytecode_is_refused_or_lifted_to_a_program_that_can_be_shown() {
    let lowered = |text: &str| stock::lower(&ccplane_program::compile(text).unwrap()).unwrap();
    let simple = "(def (Report (volatile acked 0)) (gain 3)) (when true (:= Report.acked gain) (report))";
    let seeds = [lowered(simple)].map(|stock| [&[stock.num_expressions() as u8], stock.bytes()].concat());
    Fuzz::new("stock-lift", env!("CARGO_MANIFEST_DIR")).seeds(seeds).max_bytes(1024).run(|bytes| {
        let Some((expressions, bytes)) = bytes.split_first() else { return 0 };
        match stock::lift(usize::from(*expressions), bytes) {
            Ok(lifted) => {
                assert!(!ccplane_program::disasm::disassemble(&lifted.program).is_empty());
                lifted.program.regs().len() as u64
            }
            Err(stock::LiftError::Verify(error)) => shape(&error),
            Err(error) => shape(&error),
        }
    });
}

//! The example outside the workspace stays short, and its program compiles. The build checks build it.
#![allow(clippy::unwrap_used)]

use ccplane_program::{compile, stock};

#[test]
fn the_example_is_short_and_its_program_compiles() {
    let source = include_str!("../examples/aimd/src/main.rs");
    assert!(source.lines().count() < 60);
    let program = source.split_once("PROGRAM: &str = \"").unwrap().1.split_once("\";").unwrap().0;
    let program = compile(program).unwrap_or_else(|d| panic!("{d:#?}"));
    stock::lower(&program).unwrap();
}

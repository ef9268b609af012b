//! The example outside the workspace, which `ccplane new` copies, stays short, and its program compiles.

use ccplane_program::{compile, stock};

#[test]
fn the_example_is_short_and_its_program_compiles() {
    let source = include_str!("../../examples/aimd/src/main.rs");
    assert!(source.lines().count() < 60);
    let program = include_str!("../../examples/aimd/src/aimd.fold");
    let program = compile(program).unwrap_or_else(|d| panic!("{d:#?}"));
    stock::lower(&program).unwrap();
}

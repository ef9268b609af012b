//! Every algorithm that ships, on the kernel module's interpreter: the bits of the reference VM on every standard scenario.

use ccplane_kit::replay::check_on;
use ccplane_module::user::{Build, Interpreter, UserError};

#[test]
fn every_algorithm_has_the_same_bits_in_the_module() {
    let mut interpreter = match Interpreter::start(Build::Kernel) {
        Ok(interpreter) => interpreter,
        Err(UserError::NoCompiler { said }) => {
            return ccplane_testing::skipped("algorithms on the kernel module's interpreter", said);
        }
        Err(error) => panic!("{error}"),
    };
    for algorithm in ccplane_algs::all() {
        let bounds = crate::common::bounds(&*algorithm);
        check_on("the kernel module's interpreter", &mut interpreter, &algorithm, &bounds)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}

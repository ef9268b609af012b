//! The conformance kit's scenarios on the real libccp: every algorithm whose programs stock bytecode expresses, its
//! agent's side included, does there what it does on the reference VM.

use ccplane_kit::replay::check_on;
use ccplane_kit::{Bounds, Failure};
use ccplane_oracle::executor::StockExecutor;
use ccplane_program::{compile, stock};

#[test]
fn algorithms_within_stock_ccp_do_on_libccp_what_they_do_here() -> Result<(), Box<Failure>> {
    let mut compared = Vec::new();
    for algorithm in ccplane_algs::all() {
        let lowers = |source: &str| compile(source).is_ok_and(|program| stock::lower(&program).is_ok());
        // One that chooses runs its arms' programs.
        let arms = algorithm.arms();
        let programs = arms.iter().chain([&algorithm]).flat_map(|a| a.programs());
        if !programs.into_iter().all(|p| lowers(p.source)) {
            println!("{}: beyond stock CCP", algorithm.name());
            continue;
        }
        check_on("libccp", &mut StockExecutor, &algorithm, &Bounds::default())?;
        compared.push(algorithm.name());
    }
    println!("{compared:?}");
    for name in ["reno", "cubic", "ccp-reno"] {
        assert!(compared.contains(&name), "{name} is beyond stock CCP");
    }
    Ok(())
}

//! Holds [`Prepared`] against [`Model`] on random networks and inputs, extremes among them: `agree [MILLIONS]`.

#[path = "../tests/support/mod.rs"]
mod support;

use ccplane_infer::{Model, Prepared};
use std::process::ExitCode;

const PER_NETWORK: u64 = 5_000;

fn main() -> ExitCode {
    let millions: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10);
    let (networks, mut cells) = (millions * 1_000_000 / PER_NETWORK, Vec::new());
    for seed in 0..networks {
        let mut rng = support::rng(seed + (1 << 32));
        let shape = support::shape(&mut rng);
        let words = support::image(&mut rng, &shape);
        let (Some(model), Ok(fast)) = (Model::new(&shape, &words), Prepared::new(&shape, &words)) else {
            eprintln!("network {seed}: the image is refused");
            return ExitCode::FAILURE;
        };
        for _ in 0..PER_NETWORK {
            support::inputs(&mut rng, &shape, &words, &mut cells);
            let (got, expected) = (fast.infer(&cells), model.infer(&cells));
            if got != expected {
                eprintln!(
                    "network {seed}, {shape:?}, inputs {cells:?}: {got:?}, the oracle says {expected:?}"
                );
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} inputs of {networks} networks: the same bits", networks * PER_NETWORK);
    ExitCode::SUCCESS
}

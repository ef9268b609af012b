//! Holds [`Prepared`], by each kernel that runs here, against [`Model`] on random networks and inputs, extremes among them:
//! `agree [MILLIONS]`.

#[path = "../tests/support/mod.rs"]
mod support;

use ccplane_infer::{Kernel, Model, Prepared};
use std::process::ExitCode;

const PER_NETWORK: u64 = 5_000;

fn main() -> ExitCode {
    let millions: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10);
    let (networks, mut cells) = (millions * 1_000_000 / PER_NETWORK, Vec::new());
    for seed in 0..networks {
        let mut rng = support::rng(seed + (1 << 32));
        let shape = support::shape(&mut rng);
        let words = support::image(&mut rng, &shape);
        let prepared =
            Kernel::available().map(|kernel| Prepared::with(&shape, &words, kernel).map(|p| (kernel, p)));
        let (Some(model), Ok(prepared)) =
            (Model::new(&shape, &words), prepared.collect::<Result<Vec<_>, _>>())
        else {
            eprintln!("network {seed}: the image is refused");
            return ExitCode::FAILURE;
        };
        for _ in 0..PER_NETWORK {
            support::inputs(&mut rng, &shape, &words, &mut cells);
            let expected = model.infer(&cells);
            if let Some((kernel, got)) = prepared
                .iter()
                .map(|(kernel, prepared)| (kernel.name(), prepared.infer(&cells)))
                .find(|(_, got)| *got != expected)
            {
                eprintln!(
                    "{kernel}, network {seed}, {shape:?}, inputs {cells:?}: {got:?}, the oracle says {expected:?}"
                );
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} inputs of {networks} networks: the same bits", networks * PER_NETWORK);
    ExitCode::SUCCESS
}

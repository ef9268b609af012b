//! [`Prepared`] gives the bits that [`Model`] gives; no sum leaves its lane.

use ccplane_infer::{Kernel, Model, Prepared};

/// Number of random networks; the example `agree` runs more.
const NETWORKS: u64 = 400;
const INPUTS: usize = 500;

#[test]
fn prepared_networks_agree_with_the_oracle() {
    let here: Vec<&str> = Kernel::available().map(Kernel::name).collect();
    for missing in ["AVX2", "AVX-512"].iter().filter(|name| !here.contains(name)) {
        ccplane_testing::skipped(&format!("networks on {missing}"), "this processor has none");
    }
    let mut cells = Vec::new();
    for seed in 0..NETWORKS {
        let mut rng = crate::support::rng(seed);
        let shape = crate::support::shape(&mut rng);
        let words = crate::support::image(&mut rng, &shape);
        let model = Model::new(&shape, &words).unwrap();
        let kernels: Vec<_> = Kernel::available()
            .map(|kernel| (kernel.name(), Prepared::with(&shape, &words, kernel).unwrap()))
            .collect();
        for _ in 0..INPUTS {
            crate::support::inputs(&mut rng, &shape, &words, &mut cells);
            let expected = model.infer(&cells);
            for (kernel, prepared) in &kernels {
                let got = prepared.infer(&cells);
                assert_eq!(got, expected, "{kernel}: network {seed}, {shape:?}, inputs {cells:?}");
            }
        }
    }
}

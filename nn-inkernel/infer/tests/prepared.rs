//! [`Prepared`] gives the bits that [`Model`] gives; no sum leaves its lane.
#![allow(clippy::unwrap_used)]

mod support;

use ccplane_infer::{Model, Prepared};

/// Random networks and what each is run on; the example `agree` runs more.
const NETWORKS: u64 = 400;
const INPUTS: usize = 500;

#[test]
fn prepared_networks_agree_with_the_oracle() {
    #[cfg(target_arch = "x86_64")]
    let vectors = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let vectors = false;
    if !vectors {
        eprintln!("SKIPPED: this processor has no AVX2: networks on vectors were not compared");
    }
    let mut cells = Vec::new();
    for seed in 0..NETWORKS {
        let mut rng = support::rng(seed);
        let shape = support::shape(&mut rng);
        let words = support::image(&mut rng, &shape);
        let model = Model::new(&shape, &words).unwrap();
        let (fast, portable) =
            (Prepared::new(&shape, &words).unwrap(), Prepared::portable(&shape, &words).unwrap());
        for _ in 0..INPUTS {
            support::inputs(&mut rng, &shape, &words, &mut cells);
            let expected = model.infer(&cells);
            assert_eq!(fast.infer(&cells), expected, "network {seed}, {shape:?}, inputs {cells:?}");
            assert_eq!(portable.infer(&cells), expected, "network {seed}, {shape:?}, inputs {cells:?}");
        }
    }
}

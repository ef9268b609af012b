//! Fuzz target: whatever [`check`] accepts, every executor here runs, to the same bits, without a panic.
//!
//! `cargo test` runs it for a second, or for `BOLERO_RANDOM_TEST_TIME_MS`; with cargo-bolero,
//! `cargo bolero test -p ccplane-infer --test suite fuzz::a_mutated_image_that_is_accepted_runs_alike_on_every_executor` runs
//! it guided by coverage.

use ccplane_infer::image::{self, UID};
use ccplane_infer::{
    BUFFERS, Bits, Control, FlowPolicy, Kernel, Knobs, Model, Prepared, Shape, Slot, Verdict, check,
};
use ccplane_testing::fuzz::{Fuzz, shape};
use rand_core::RngCore;

/// A test case: which image, changes to it (a byte's offset and new value), and a seed for inputs and knobs.
type Case = (u8, Vec<(u16, u8)>, u64);

/// Valid images of all kinds of shapes.
fn images() -> Vec<(Shape, Vec<u64>)> {
    let widths: [&[usize]; 6] =
        [&[1, 1], &[3, 1], &[7, 5, 1], &[30, 32, 16, 1], &[64, 64, 1], &[9, 8, 7, 6, 1]];
    let both = widths.into_iter().flat_map(|w| [Bits::W8, Bits::W16].map(|bits| (bits, w)));
    let made = |(seed, (bits, widths)): (u64, (Bits, &[usize]))| {
        let shape = Shape::new(bits, widths).unwrap();
        let image = crate::support::image(&mut crate::support::rng(seed), &shape);
        (shape, image)
    };
    (0..).zip(both).map(made).collect()
}

/// Whether the words were still an image.
fn run(shape: &Shape, words: &[u64], seed: u64) -> bool {
    run_on(shape, words, seed, 8)
}

/// Runs as [`run`] does, on so many inputs.
fn run_on(shape: &Shape, words: &[u64], seed: u64, inputs: u32) -> bool {
    let prepared = Prepared::new(shape, words);
    assert_eq!(prepared.as_ref().err(), check(shape, words).err().as_ref());
    if prepared.is_err() {
        return false;
    }
    let kernels: Vec<_> = Kernel::available()
        .map(|kernel| (kernel.name(), Prepared::with(shape, words, kernel).unwrap()))
        .collect();
    let model = Model::new(shape, words).unwrap();
    let mut rng = crate::support::rng(seed);
    let (mut cells, mut flow) = (Vec::new(), FlowPolicy::default());
    let slot = Slot {
        shape,
        control: Control { active: Some(0), ..Control::EMPTY },
        images: [words, &[], &[], &[]] as [&[u64]; BUFFERS],
    };
    for _ in 0..inputs {
        crate::support::inputs(&mut rng, shape, words, &mut cells);
        let expected = model.infer(&cells);
        for (kernel, prepared) in &kernels {
            assert_eq!(prepared.infer(&cells), expected, "{kernel}: {shape:?} {cells:?}");
        }
        let mut knobs = Knobs { cwnd_bytes: rng.next_u64() as i64, rate_bytes_per_s: rng.next_u64() as i64 };
        let bound = i64::from(image::u32_at(words, image::ACTION_BOUND_Q16));
        match slot.decide(seed, &mut flow, &cells, &mut knobs) {
            Verdict::Decided { action_q16, uid } => {
                assert!(action_q16.abs() <= bound && uid == image::u32_at(words, UID), "{action_q16}");
            }
            Verdict::Native => assert!(flow.trips > 0, "{flow:?}"),
        }
    }
    true
}

#[test]
fn a_mutated_image_that_is_accepted_runs_alike_on_every_executor() {
    let images = images();
    assert!(images.iter().all(|(shape, words)| run(shape, words, 1)));
    let mut changed = images[0].1.clone();
    image::set_u32(&mut changed, UID, 0);
    assert!(!run(&images[0].0, &changed, 1));
    bolero::check!().with_type::<Case>().for_each(|(which, edits, seed)| {
        let (shape, words) = &images[usize::from(*which) % images.len()];
        let mut words = words.clone();
        for (at, to) in edits {
            let at = usize::from(*at) % (8 * words.len());
            let shift = 8 * (at % 8);
            words[at / 8] = words[at / 8] & !(0xff << shift) | u64::from(*to) << shift;
        }
        run(shape, &words, *seed);
    });
}

/// An image's shape, a seed, then changes to the image: a byte's offset in two bytes, and its new value.
#[test]
fn a_drawn_image_that_is_accepted_runs_alike_on_every_executor() {
    let images = images();
    let seeds = (0..images.len() as u8).map(|which| [which, 1]);
    let header = [UID, image::FLAGS, image::MAP, image::STEP_Q20, image::ACTION_BOUND_Q16, image::OUT_SHIFT];
    let tokens = header.map(|at| [at as u8, (at >> 8) as u8, 0xff]);
    let target = Fuzz::new("network-image", env!("CARGO_MANIFEST_DIR")).seeds(seeds).tokens(tokens);
    target.max_bytes(64).part(2_000).run(|bytes| {
        let (head, edits) = bytes.split_at(bytes.len().min(2));
        let which = usize::from(*head.first().unwrap_or(&0)) % images.len();
        let (of, words) = &images[which];
        let mut words = words.clone();
        for edit in edits.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % (8 * words.len());
            let shift = 8 * (at % 8);
            words[at / 8] = words[at / 8] & !(0xff << shift) | u64::from(edit[2]) << shift;
        }
        run_on(of, &words, (*head.get(1).unwrap_or(&0)).into(), 1);
        which as u64 ^ check(of, &words).map_or_else(|error| shape(&error), |()| 1)
    });
}

//! Generated C against the oracle, bit for bit, compiled without a warning and run without undefined behaviour.
#![allow(clippy::unwrap_used)]

mod support;

#[path = "../../infer/tests/support/mod.rs"]
mod networks;

use ccplane_infer::image::{self, PIN};
use ccplane_infer::{BUFFERS, Bits, Control, FlowPolicy, Knobs, Model, Shape, Slot};
use networks::{below, rng};
use rand_core::RngCore;
use support::{Process, compilers};

const IMAGES: usize = 40;
const ROWS: usize = 250;

fn shapes() -> Vec<Shape> {
    let all: [(Bits, &[usize]); 6] = [
        (Bits::W8, &[30, 32, 16, 1]),
        (Bits::W16, &[30, 32, 16, 1]),
        (Bits::W8, &[64, 64, 1]),
        (Bits::W16, &[7, 5, 4, 3, 1]),
        (Bits::W8, &[48, 50, 20, 1]),
        (Bits::W16, &[1, 1]),
    ];
    all.into_iter().map(|(bits, widths)| Shape::new(bits, widths).unwrap()).collect()
}

/// Runs `test` for each compiler.
fn for_each_compiler(test: impl Fn(&str, bool)) {
    let all = compilers();
    if all.is_empty() {
        ccplane_testing::skipped("generated C", "no gcc, no clang");
    }
    for (cc, sanitize) in all {
        if !sanitize {
            ccplane_testing::skipped(
                &format!("undefined behaviour in {cc}'s code"),
                "it cannot check for it here",
            );
        }
        test(cc, sanitize);
    }
}

#[test]
fn inference_gives_the_oracles_bits() {
    for_each_compiler(|cc, sanitize| {
        let mut rng = rng(1);
        for shape in shapes() {
            let mut process = Process::new(cc, sanitize, &shape);
            for _ in 0..IMAGES {
                let words = networks::image(&mut rng, &shape);
                let model = Model::new(&shape, &words).unwrap();
                let rows: Vec<Vec<i32>> = (0..ROWS)
                    .map(|_| {
                        let mut row = Vec::new();
                        networks::inputs(&mut rng, &shape, &words, &mut row);
                        row
                    })
                    .collect();
                process.set_image(0, &words);
                for (row, found) in rows.iter().zip(process.infer(&rows)) {
                    assert_eq!(found, model.infer(row), "{cc} {shape:?} {row:?}");
                }
            }
            process.end();
        }
    });
}

/// Draws a control word that gives parts to buffers, some of which do not exist.
fn control(rng: &mut impl RngCore) -> Control {
    let mut buffer =
        || (!rng.next_u32().is_multiple_of(4)).then_some((rng.next_u32() % BUFFERS as u32) as u8);
    let (active, canary, last_good) = (buffer(), buffer(), buffer());
    Control { active, canary, last_good, canary_share: rng.next_u32() as u16 }
}

#[test]
fn decisions_in_c_are_those_of_the_reference() {
    const STEPS: usize = 4000;
    let shape = Shape::new(Bits::W8, &[6, 5, 1]).unwrap();
    for_each_compiler(|cc, sanitize| {
        let mut rng = rng(2);
        let mut process = Process::new(cc, sanitize, &shape);
        let mut images: [Vec<u64>; BUFFERS] = Default::default();
        let (mut parts, mut flow, mut key) = (Control::EMPTY, FlowPolicy::default(), 0);
        let mut knobs = Knobs { cwnd_bytes: 0, rate_bytes_per_s: 0 };
        let mut reached = [0u32; 6];
        for _ in 0..STEPS {
            if below(&mut rng, 8) == 0 {
                let buffer = below(&mut rng, BUFFERS);
                images[buffer] = adversarial(&mut rng, &shape);
                process.set_image(buffer as u64, &images[buffer]);
            }
            if below(&mut rng, 4) == 0 {
                parts = control(&mut rng);
            }
            if below(&mut rng, 50) == 0 {
                (flow, key) = (FlowPolicy::default(), rng.next_u64());
                process.reset();
            }
            if below(&mut rng, 4) == 0 {
                knobs = Knobs {
                    cwnd_bytes: rng.next_u64() as i64 >> below(&mut rng, 64),
                    rate_bytes_per_s: rng.next_u64() as i64 >> below(&mut rng, 64),
                };
            }
            let inputs: Vec<i32> =
                (0..shape.inputs()).map(|_| rng.next_u32() as i32 >> below(&mut rng, 32)).collect();
            let slot =
                Slot { shape: &shape, control: parts, images: std::array::from_fn(|n| images[n].as_slice()) };
            let mut theirs = knobs;
            let found = process.decide(&shape, parts, key, &inputs, &mut theirs);
            let verdict = slot.decide(key, &mut flow, &inputs, &mut knobs);
            assert_eq!((found, theirs), ((verdict, flow), knobs), "{cc}");
            let seen =
                [flow.saturated, flow.clipped, flow.collapsed, flow.trips, flow.noise.0 as u32, flow.uid];
            reached.iter_mut().zip(seen).for_each(|(all, n)| *all |= n);
        }
        assert!(reached.iter().all(|n| *n != 0), "{reached:?}");
        process.end();
    });
}

/// Draws an image whose bounds and limits are often met.
fn adversarial(rng: &mut rand_chacha::ChaCha8Rng, shape: &Shape) -> Vec<u64> {
    let mut words = networks::image(rng, shape);
    image::set_u32(&mut words, image::CLIP_LIMIT, below(rng, shape.inputs() + 1) as u32);
    image::set_u32(&mut words, image::ACTION_BOUND_Q16, 1 << below(rng, 18));
    image::set_u32(&mut words, image::TRIP_LIMIT, below(rng, 40) as u32);
    image::set_u64(&mut words, image::KNOB_MIN, 1 << below(rng, 20));
    let noise = rng.next_u64() >> below(rng, 64);
    image::set_u64(&mut words, image::NOISE_MULT, if below(rng, 2) == 0 { 0 } else { noise });
    image::set_u32(&mut words, image::FLAGS, PIN * below(rng, 2) as u32);
    if below(rng, 8) == 0 {
        image::set_u32(&mut words, image::UID, 0);
    }
    if below(rng, 8) == 0 {
        words.clear();
    }
    words
}

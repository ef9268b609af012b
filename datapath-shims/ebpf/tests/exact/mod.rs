//! Every executor of snapshots on the same inputs, against the oracle: BPF run by the kernel, generated C, the SIMD and
//! the portable path.
#![allow(dead_code)]

#[path = "../../../../nn-inkernel/codegen/tests/support/mod.rs"]
mod c;
#[path = "../../../../nn-inkernel/infer/tests/support/mod.rs"]
mod networks;

use ccplane_ebpf::testrun::InferenceBench;
use ccplane_infer::{Bits, Inference, Kernel, Model, Prepared, Shape};
use rand_chacha::ChaCha8Rng;

/// Base-2 logarithm of the inputs for each image.
const ROWS_LOG2: u32 = 9;

fn shapes() -> Vec<Shape> {
    let all: [(Bits, &[usize]); 8] = [
        (Bits::W8, &[30, 32, 16, 1]),
        (Bits::W16, &[30, 32, 16, 1]),
        (Bits::W8, &[64, 64, 1]),
        (Bits::W16, &[64, 64, 1]),
        (Bits::W8, &[33, 64, 32, 1]),
        (Bits::W16, &[7, 5, 4, 3, 1]),
        (Bits::W8, &[1, 1]),
        (Bits::W16, &[13, 29, 1]),
    ];
    all.into_iter().map(|(bits, widths)| Shape::new(bits, widths).unwrap()).collect()
}

/// The executors of one shape that there are on this machine.
struct Executors {
    bpf: Option<InferenceBench>,
    c: Option<c::Process>,
}

impl Executors {
    fn new(shape: &Shape) -> Executors {
        let bpf = InferenceBench::new(shape, ROWS_LOG2);
        let bpf = bpf.inspect_err(|e| ccplane_testing::skipped("exact inference in BPF", e)).ok();
        let c = c::compilers().first().map(|(cc, _)| c::Process::new(cc, false, shape));
        if c.is_none() {
            ccplane_testing::skipped("exact inference in C", "no C compiler is here");
        }
        Executors { bpf, c }
    }

    /// The results of each executor on the rows, by name.
    fn infer(
        &mut self,
        shape: &Shape,
        image: &[u64],
        rows: &[Vec<i32>],
    ) -> Vec<(&'static str, Vec<Inference>)> {
        let mut all = Vec::new();
        if let Some(bpf) = &self.bpf {
            bpf.set_image(image);
            for (n, row) in rows.iter().enumerate() {
                let missing = std::iter::repeat_n(0, shape.inputs().saturating_sub(row.len()));
                bpf.set_inputs(n, &row.iter().copied().chain(missing).collect::<Vec<_>>());
            }
            all.push(("BPF", bpf.infer(rows.len()).unwrap()));
        }
        if let Some(c) = &mut self.c {
            c.set_image(0, image);
            all.push(("C", c.infer(rows)));
        }
        for kernel in Kernel::available() {
            let prepared = Prepared::with(shape, image, kernel).unwrap();
            all.push((kernel.name(), rows.iter().map(|row| prepared.infer(row)).collect()));
        }
        all
    }
}

/// Holds every executor against the oracle on about `inputs` inputs; returns how many each has run.
pub fn run(inputs: u64, seed: u64) -> Vec<(&'static str, u64)> {
    let shapes = shapes();
    let mut counts: Vec<(&'static str, u64)> = Vec::new();
    let mut rng: ChaCha8Rng = networks::rng(seed);
    for shape in &shapes {
        let mut executors = Executors::new(shape);
        for _ in 0..(inputs >> ROWS_LOG2).div_ceil(shapes.len() as u64) {
            let image = networks::image(&mut rng, shape);
            let rows: Vec<Vec<i32>> = (0..1 << ROWS_LOG2)
                .map(|_| {
                    let mut row = Vec::new();
                    networks::inputs(&mut rng, shape, &image, &mut row);
                    row
                })
                .collect();
            let model = Model::new(shape, &image).unwrap();
            let expected: Vec<Inference> = rows.iter().map(|row| model.infer(row)).collect();
            for (name, found) in executors.infer(shape, &image, &rows) {
                for ((row, expected), found) in rows.iter().zip(&expected).zip(&found) {
                    assert_eq!(found, expected, "{name}, {shape:?}, {row:?}");
                }
                match counts.iter_mut().find(|(n, _)| *n == name) {
                    Some((_, count)) => *count += found.len() as u64,
                    None => counts.push((name, found.len() as u64)),
                }
            }
        }
        if let Some(c) = executors.c {
            c.end();
        }
    }
    counts
}

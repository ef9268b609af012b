//! Settings as numbers that a perceptron takes.

use std::collections::BTreeSet;

use ccplane_learn::{MAX_INPUTS, math};

use super::frame::{Input, InputKind};

/// Values of one input above which the values are no inputs of their own.
const MAX_ONE_HOT: usize = 8;
/// The largest value up to which a number is taken as it is; beyond, its logarithm.
const LINEAR: f64 = 16.0;

/// One number that a network sees.
#[derive(Clone, PartialEq, Debug)]
enum Part {
    /// A number from the smallest (-1) to the largest (1) that was seen.
    Scaled { input: usize, is_log: bool, low: f64, high: f64 },
    /// Whether a number is 0, which often means that something is off.
    Zero { input: usize },
    /// Whether the value is this one.
    Is { input: usize, value: String },
    /// Whether the processor is on this node.
    On { input: usize, node: usize },
    /// Whether two processors are the same.
    Same { inputs: (usize, usize) },
    /// Whether two processors are on the same node.
    SameNode { inputs: (usize, usize) },
}

/// A way to write settings as numbers, fitted to the settings that are learned from.
#[derive(Clone, PartialEq, Debug)]
pub struct Encoder {
    parts: Vec<Part>,
    nodes: Vec<Vec<u32>>,
}

/// More numbers than a network takes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the settings make {found} inputs of a network, which takes 1 to {MAX_INPUTS}: learn from fewer of them"
)]
pub struct TooManyInputs {
    pub found: usize,
}

impl Encoder {
    /// Finds the numbers that tell the given settings apart.
    ///
    /// # Errors
    /// None do, or too many.
    pub fn fit<'r>(
        inputs: &[Input],
        rows: impl Iterator<Item = &'r [String]>,
        nodes: &[Vec<u32>],
    ) -> Result<Encoder, TooManyInputs> {
        let mut seen: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); inputs.len()];
        for row in rows {
            for (seen, value) in seen.iter_mut().zip(row) {
                seen.insert(value);
            }
        }
        let varied: Vec<usize> = (0..inputs.len()).filter(|n| seen[*n].len() > 1).collect();
        let processors: Vec<usize> =
            (0..inputs.len()).filter(|n| inputs[*n].kind == InputKind::Processor).collect();
        let mut parts = Vec::new();
        for &input in &varied {
            if inputs[input].kind == InputKind::Number {
                parts.extend(of_number(input, &seen[input]));
            }
            if inputs[input].kind == InputKind::Processor {
                parts.extend((1..nodes.len()).map(|node| Part::On { input, node }));
            }
        }
        for (n, &first) in processors.iter().enumerate() {
            for &second in &processors[n + 1..] {
                if varied.contains(&first) || varied.contains(&second) {
                    parts.push(Part::Same { inputs: (first, second) });
                    if nodes.len() > 1 {
                        parts.push(Part::SameNode { inputs: (first, second) });
                    }
                }
            }
        }
        for &input in &varied {
            // Of a number with few values each may be a case of its own, too.
            if seen[input].len() <= MAX_ONE_HOT {
                let is = |value: &&str| Part::Is { input, value: (*value).to_owned() };
                parts.extend(seen[input].iter().map(is));
            }
        }
        match parts.len() {
            1..=MAX_INPUTS => Ok(Encoder { parts, nodes: nodes.to_vec() }),
            found => Err(TooManyInputs { found }),
        }
    }

    /// Returns how many numbers a setting becomes.
    pub fn width(&self) -> usize {
        self.parts.len()
    }

    /// Appends a setting's numbers.
    pub fn encode<T: AsRef<str>>(&self, values: &[T], out: &mut Vec<f32>) {
        let value = |input: usize| values[input].as_ref();
        let node = |input: usize| {
            let cpu: Option<u32> = value(input).parse().ok();
            cpu.and_then(|cpu| self.nodes.iter().position(|cpus| cpus.contains(&cpu)))
        };
        let flag = |is: bool| if is { 1.0 } else { 0.0 };
        out.extend(self.parts.iter().map(|part| match part {
            Part::Scaled { input, is_log, low, high } => {
                let x = number(value(*input), *is_log);
                (2.0 * (x - low) / (high - low) - 1.0) as f32
            }
            Part::Zero { input } => flag(value(*input).parse::<f64>().is_ok_and(|x| x == 0.0)),
            Part::Is { input, value: wanted } => flag(value(*input) == wanted),
            Part::On { input, node: wanted } => flag(node(*input) == Some(*wanted)),
            Part::Same { inputs: (a, b) } => flag(value(*a) == value(*b)),
            Part::SameNode { inputs: (a, b) } => flag(node(*a).is_some() && node(*a) == node(*b)),
        }));
    }
}

fn number(text: &str, is_log: bool) -> f64 {
    let x = text.parse::<f64>().unwrap_or(0.0);
    if is_log { math::ln(1.0 + x.max(0.0)) } else { x }
}

fn of_number(input: usize, seen: &BTreeSet<&str>) -> Vec<Part> {
    let numbers: Vec<f64> = seen.iter().filter_map(|text| text.parse().ok()).collect();
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let is_log = low >= 0.0 && high > LINEAR;
    let of = |x: f64| if is_log { math::ln(1.0 + x) } else { x };
    let mut parts = vec![Part::Scaled { input, is_log, low: of(low), high: of(high) }];
    if low == 0.0 && is_log {
        parts.push(Part::Zero { input });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Vec<Input> {
        let input = |name: &str, kind| Input { name: name.to_owned(), kind };
        vec![
            input("application", InputKind::Processor),
            input("interrupt", InputKind::Processor),
            input("usecs", InputKind::Number),
            input("same", InputKind::Word),
        ]
    }

    fn rows() -> Vec<Vec<String>> {
        let row = |values: [&str; 4]| values.map(str::to_owned).to_vec();
        vec![row(["0", "0", "0", "x"]), row(["3", "0", "128", "x"]), row(["", "2", "8", "x"])]
    }

    #[test]
    fn settings_that_differ_become_numbers_that_differ() {
        let (rows, nodes) = (rows(), [vec![0, 1], vec![2, 3]]);
        let encoder = Encoder::fit(&inputs(), rows.iter().map(Vec::as_slice), &nodes).unwrap();
        let numbers = |row: &Vec<String>| {
            let mut out = Vec::new();
            encoder.encode(row, &mut out);
            assert_eq!(out.len(), encoder.width());
            assert!(out.iter().all(|x| (-1.0..=1.0).contains(x)), "{out:?}");
            out
        };
        let all: Vec<Vec<f32>> = rows.iter().map(numbers).collect();
        assert!(all[0] != all[1] && all[1] != all[2]);
        // On node 1; on node 1; usecs scaled, zero; same processor, same node.
        assert_eq!(all[0][..6], [0.0, 0.0, -1.0, 1.0, 1.0, 1.0]);
        assert_eq!(all[1][..6], [1.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn what_does_not_differ_or_is_too_much_is_refused() {
        let one = rows()[..1].to_vec();
        assert_eq!(
            Encoder::fit(&inputs()[3..], one.iter().map(|row| &row[3..]), &[]),
            Err(TooManyInputs { found: 0 })
        );
        let many: Vec<Input> =
            (0..30).map(|n| Input { name: n.to_string(), kind: InputKind::Number }).collect();
        let rows: Vec<Vec<String>> = (0..3).map(|n| vec![n.to_string(); 30]).collect();
        let refused = Encoder::fit(&many, rows.iter().map(Vec::as_slice), &[]);
        assert!(matches!(refused, Err(TooManyInputs { found }) if found > MAX_INPUTS));
    }
}

//! Figures: the result of a benchmark beside its baseline.

use serde::Serialize;

use crate::proof::{Proof, Unproven};

/// The version of a figure's JSON. 2: each has a baseline, a ratio with its spread, and a proof.
pub const FIGURE_VERSION: u32 = 2;

/// Two values measured one right after the other: the figure's and the baseline's.
pub type Pair = (f64, f64);

/// Many values of each, measured one right after the other.
pub type Block = (Vec<f64>, Vec<f64>);

/// Runs ours and theirs one right after the other, ours first in even rounds, so that the order alternates.
///
/// # Errors
/// One of them fails.
pub fn in_turn<A, B, E>(
    round: usize,
    ours: impl FnOnce() -> Result<A, E>,
    theirs: impl FnOnce() -> Result<B, E>,
) -> Result<(A, B), E> {
    if round.is_multiple_of(2) {
        let ours = ours()?;
        Ok((ours, theirs()?))
    } else {
        let theirs = theirs()?;
        Ok((ours()?, theirs))
    }
}

/// One figure: a value beside its baseline, from one run that alternated between the two.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// The format's version, [`FIGURE_VERSION`].
    pub version: u32,
    /// The name, such as `tput.ebpf.reno.8`.
    pub name: String,
    /// The median of all samples.
    pub value: f64,
    /// The unit, such as `ns`.
    pub unit: &'static str,
    /// The baseline's median, in the same unit.
    pub baseline: f64,
    /// The name of the baseline.
    pub baseline_name: String,
    /// The median of each pair's value / baseline. Absent only where baselines may be 0, and all are.
    pub ratio: Option<f64>,
    /// The quartiles of the pairs' ratios.
    pub ratio_spread: Option<[f64; 2]>,
    /// Pairs that the medians are over.
    pub samples: usize,
    /// The quartiles of the value.
    pub spread: [f64; 2],
    /// The counts that prove that the measured code ran.
    pub proof: Proof,
    /// A remark that a reader needs to understand the figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether 0 is a value like any other.
    #[serde(skip)]
    zero: bool,
}

impl Figure {
    /// A figure from pairs of (value, baseline), measured one right after the other.
    pub fn paired(
        name: impl Into<String>,
        unit: &'static str,
        baseline_name: impl Into<String>,
        pairs: &[Pair],
        proof: &Proof,
    ) -> Figure {
        let values: Vec<f64> = pairs.iter().map(|p| p.0).collect();
        let baselines: Vec<f64> = pairs.iter().map(|p| p.1).collect();
        let ratios: Vec<f64> = pairs.iter().filter(|p| p.1 > 0.0).map(|p| p.0 / p.1).collect();
        let of_ratios = |q| (!ratios.is_empty()).then(|| percentile(&ratios, q));
        Figure {
            version: FIGURE_VERSION,
            name: name.into(),
            value: percentile(&values, 0.5),
            unit,
            baseline: percentile(&baselines, 0.5),
            baseline_name: baseline_name.into(),
            ratio: of_ratios(0.5),
            ratio_spread: of_ratios(0.25).zip(of_ratios(0.75)).map(<[f64; 2]>::from),
            samples: pairs.len(),
            spread: [percentile(&values, 0.25), percentile(&values, 0.75)],
            proof: proof.clone(),
            note: None,
            zero: false,
        }
    }

    /// A figure from pairs of blocks of (values, baselines): of each block its quantile `q`.
    pub fn blocks(
        name: impl Into<String>,
        unit: &'static str,
        baseline_name: impl Into<String>,
        (blocks, q): (&[Block], f64),
        proof: &Proof,
    ) -> Figure {
        let pairs: Vec<Pair> = blocks.iter().map(|(a, b)| (percentile(a, q), percentile(b, q))).collect();
        Figure::paired(name, unit, baseline_name, &pairs, proof)
    }

    /// The figure under another name.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Figure {
        self.name = name.into();
        self
    }

    /// The figure with a remark.
    #[must_use]
    pub fn with_note(mut self, note: impl Into<String>) -> Figure {
        self.note = Some(note.into());
        self
    }

    /// A figure that may well be 0, or its baseline.
    #[must_use]
    pub fn or_zero(mut self) -> Figure {
        self.zero = true;
        self
    }

    /// Checks that the values are a figure: positive numbers from at least one sample.
    ///
    /// # Errors
    /// It stands on nothing, or value or baseline is no number above 0.
    pub fn check(&self) -> Result<(), Unproven> {
        let is_number = |n: f64| n.is_finite() && (n > 0.0 || (self.zero && n == 0.0));
        let sound = self.samples > 0 && is_number(self.value) && is_number(self.baseline);
        if sound && (self.ratio.is_some() || self.zero) {
            return Ok(());
        }
        let Figure { name, value, baseline, samples, .. } = self;
        Err(Unproven::NoFigure {
            figure: name.clone(),
            value: *value,
            baseline: *baseline,
            samples: *samples,
        })
    }
}

/// The value below which a share `q` of `values` lies, by the nearest rank; 0 for none.
pub fn percentile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn figure(pairs: &[Pair]) -> Figure {
        Figure::paired("x", "ns", "y", pairs, &Proof::counted("runs", 1).unwrap())
    }

    /// The ratio of the medians would be 20 / 20; that of the pairs is not.
    #[test]
    fn a_ratio_is_the_median_of_the_pairs_ratios() {
        let figure = figure(&[(10.0, 20.0), (20.0, 40.0), (30.0, 10.0)]);
        assert_eq!((figure.value, figure.baseline), (20.0, 20.0));
        assert_eq!((figure.ratio, figure.ratio_spread), (Some(0.5), Some([0.5, 3.0])));
        assert_eq!((figure.spread, figure.samples), ([10.0, 30.0], 3));
        assert!(figure.check().is_ok());
    }

    #[test]
    fn blocks_are_pairs_of_their_quantiles() {
        let proof = Proof::counted("runs", 1).unwrap();
        let blocks = [(vec![1.0, 2.0, 9.0], vec![4.0; 3]), (vec![3.0; 3], vec![1.0, 2.0, 3.0])];
        let figure = Figure::blocks("x", "us", "y", (&blocks, 0.5), &proof);
        assert_eq!((figure.ratio_spread, figure.samples), (Some([0.5, 1.5]), 2));
    }

    #[test]
    fn nothing_zero_and_nonsense_are_no_figures() {
        for pairs in [
            &[][..],
            &[(0.0, 1.0)],
            &[(1.0, 0.0)],
            &[(-1.0, 1.0)],
            &[(f64::NAN, 1.0)],
            &[(1.0, f64::INFINITY)],
        ] {
            let figure = figure(pairs);
            assert!(matches!(figure.check(), Err(Unproven::NoFigure { .. })), "{figure:?}");
        }
        let zero = figure(&[(0.0, 0.0)]).or_zero();
        assert_eq!((zero.check(), zero.ratio), (Ok(()), None));
        assert!(figure(&[]).or_zero().check().is_err(), "no sample is none");
    }

    #[test]
    fn json_is_versioned_and_says_what_ran() {
        let json = serde_json::to_value(figure(&[(1.0, 2.0)])).unwrap();
        assert_eq!(json["version"], FIGURE_VERSION);
        assert_eq!(json["proof"]["runs"], 1);
        assert_eq!(json["ratio"], 0.5);
        assert_eq!(json["ratio_spread"][1], 0.5);
    }
}

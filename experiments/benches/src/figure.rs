//! What a benchmark measured.

use serde::Serialize;

/// One figure: a value beside its baseline, from one run that alternated between the two.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// Such as `tput.ebpf.reno.8`.
    pub name: String,
    /// The median.
    pub value: f64,
    /// Such as `ns`.
    pub unit: &'static str,
    /// The baseline's median, in the same unit; absent when the figure stands alone.
    pub baseline: Option<f64>,
    /// What the baseline is.
    pub baseline_name: Option<String>,
    /// Median over the pairs of value / baseline.
    pub ratio: Option<f64>,
    /// How many values (or pairs) the medians are over.
    pub samples: usize,
    /// 10th and 90th percentile of the value.
    pub spread: [f64; 2],
    /// What the reader must know, such as why a baseline is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Figure {
    /// A figure without a baseline.
    pub fn alone(name: impl Into<String>, unit: &'static str, values: &[f64]) -> Figure {
        Figure {
            name: name.into(),
            value: percentile(values, 0.5),
            unit,
            baseline: None,
            baseline_name: None,
            ratio: None,
            samples: values.len(),
            spread: [percentile(values, 0.1), percentile(values, 0.9)],
            note: None,
        }
    }

    /// A figure from pairs of (value, baseline), measured one right after the other.
    pub fn paired(
        name: impl Into<String>,
        unit: &'static str,
        baseline_name: impl Into<String>,
        pairs: &[(f64, f64)],
    ) -> Figure {
        let values: Vec<f64> = pairs.iter().map(|p| p.0).collect();
        let baselines: Vec<f64> = pairs.iter().map(|p| p.1).collect();
        let ratios: Vec<f64> = pairs.iter().filter(|p| p.1 > 0.0).map(|p| p.0 / p.1).collect();
        Figure {
            baseline: Some(percentile(&baselines, 0.5)),
            baseline_name: Some(baseline_name.into()),
            ratio: (!ratios.is_empty()).then(|| percentile(&ratios, 0.5)),
            ..Figure::alone(name, unit, &values)
        }
    }

    /// The figure with a remark.
    pub fn noted(mut self, note: impl Into<String>) -> Figure {
        self.note = Some(note.into());
        self
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
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios_are_over_pairs() {
        let figure = Figure::paired("x", "ns", "y", &[(10.0, 20.0), (30.0, 30.0), (20.0, 10.0)]);
        assert_eq!((figure.value, figure.baseline, figure.ratio), (20.0, Some(20.0), Some(1.0)));
        assert_eq!(figure.spread, [10.0, 30.0]);
    }

    #[test]
    fn no_values_give_zero_and_no_ratio() {
        let figure = Figure::paired("x", "ns", "y", &[]);
        assert_eq!((figure.value, figure.ratio, figure.samples), (0.0, None, 0));
    }
}

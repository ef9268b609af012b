//! `[sweep]`: one document becomes several, each with one combination of the values, which keep their places in the file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::MAX_SCENARIOS;
use super::number::{Ppm, decimal};
use ccplane_files::document::Problem;

/// The tables whose values a sweep may set.
const SWEPT: [&str; 3] = ["link", "traffic", "background"];
const PPM: u64 = 1_000_000;
/// Largest number of a range.
const MAX_NUMBER: u64 = 1_000_000_000 * PPM;

/// Something wrong, and where in the text.
pub(super) type Refused = (Range<usize>, Problem);

/// One key of the sweep.
pub(super) struct Axis<'i> {
    /// The table's name: "link" of `link.delay_ms`.
    table: String,
    /// The key within the table: "delay_ms" of `link.delay_ms`.
    key: String,
    span: Range<usize>,
    values: Vec<Spanned<DeValue<'i>>>,
}

impl Axis<'_> {
    fn name(&self) -> String {
        format!("{}.{}", self.table, self.key)
    }
}

/// The document at one point of the sweep.
pub(super) struct Point<'i> {
    /// By the plan's key: "link.delay_ms".
    pub(super) parameters: BTreeMap<String, String>,
    pub(super) document: Spanned<DeTable<'i>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeSource {
    from: Ppm<0, MAX_NUMBER>,
    to: Ppm<0, MAX_NUMBER>,
    step: Ppm<1, MAX_NUMBER>,
}

/// The numbers of each `{ from, to, step }`, by its key: the text that [`axes`] reads their values from.
pub(super) type Ranges = BTreeMap<String, Vec<String>>;

/// Writes out the ranges.
///
/// # Errors
/// A table that is no range.
pub(super) fn ranges(document: &DeTable<'_>) -> Result<Ranges, Refused> {
    let Some(DeValue::Table(sweep)) = document.get("sweep").map(Spanned::get_ref) else {
        return Ok(Ranges::new());
    };
    let mut ranges = Ranges::new();
    for (key, value) in sweep.iter().filter(|(_, v)| matches!(v.get_ref(), DeValue::Table(_))) {
        let refuse = |message: String| (value.span(), Problem::new(field(key.get_ref()), message));
        let range = RangeSource::deserialize(value.clone().into_deserializer()).map_err(|e| {
            refuse(format!("{}; a range is {{ from = 10, to = 40, step = 10 }}", e.message()))
        })?;
        let (from, to, step) = (range.from.get(), range.to.get(), range.step.get());
        if from > to {
            return Err(refuse("`from` lies above `to`".to_owned()));
        }
        if (to - from) / step >= MAX_SCENARIOS as u64 {
            return Err(refuse(format!("the range has more than {MAX_SCENARIOS} values")));
        }
        let numbers = (from..=to).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        ranges.insert(key.get_ref().clone().into_owned(), numbers.map(|n| decimal(n, PPM)).collect());
    }
    Ok(ranges)
}

fn field(key: &str) -> String {
    format!("sweep.\"{key}\"")
}

/// Takes `[sweep]` out of the document.
///
/// # Errors
/// A key or value that cannot be swept.
pub(super) fn axes<'i>(document: &mut DeTable<'i>, ranges: &'i Ranges) -> Result<Vec<Axis<'i>>, Refused> {
    let Some(sweep) = document.remove("sweep") else { return Ok(Vec::new()) };
    let span = sweep.span();
    let DeValue::Table(sweep) = sweep.into_inner() else {
        return Err((span, Problem::new("sweep", "a table is needed: [sweep]")));
    };
    let axes = sweep.into_iter().map(|(key, value)| {
        let refuse = |span, message: String| Err((span, Problem::new(field(key.get_ref()), message)));
        let (table, name) = match key.get_ref().split_once('.') {
            Some((table, name)) if SWEPT.contains(&table) && name != "name" => (table, name),
            _ => {
                let expected = "swept can be \"link.KEY\", \"traffic.KEY\" and \"background.KEY\", in quotes";
                return refuse(key.span(), expected.to_owned());
            }
        };
        let span = value.span();
        let values: Vec<_> = match value.into_inner() {
            DeValue::Array(values) if !values.is_empty() => values.into_iter().collect(),
            DeValue::Table(_) => {
                let texts = ranges.get(key.get_ref().as_ref()).map(Vec::as_slice).unwrap_or_default();
                let parsed = texts.iter().filter_map(|text| DeValue::parse(text).ok());
                parsed.map(|value| Spanned::new(span.clone(), value.into_inner())).collect()
            }
            _ => return refuse(span, "values are needed: [10, 20] or { from, to, step }".to_owned()),
        };
        if let Some(nested) = values.iter().find(|v| text(v.get_ref()).is_none()) {
            return refuse(nested.span(), "numbers, texts or truth values are needed".to_owned());
        }
        Ok(Axis { table: table.to_owned(), key: name.to_owned(), span: key.span(), values })
    });
    axes.collect()
}

/// Every combination of the axes' values; the last key's change fastest.
///
/// # Errors
/// More than [`MAX_SCENARIOS`], or a table that is not there to be set.
pub(super) fn points<'i>(
    document: &Spanned<DeTable<'i>>,
    axes: &[Axis<'i>],
) -> Result<Vec<Point<'i>>, Refused> {
    let mut points = vec![Point { parameters: BTreeMap::new(), document: document.clone() }];
    for axis in axes {
        if points.len().saturating_mul(axis.values.len()) > MAX_SCENARIOS {
            let message = format!("the sweep has more than {MAX_SCENARIOS} combinations");
            return Err((axis.span.clone(), Problem::new(field(&axis.name()), message)));
        }
        let mut finer = Vec::with_capacity(points.len() * axis.values.len());
        for point in &points {
            for value in &axis.values {
                let mut document = point.document.clone();
                set(document.get_mut(), axis, value)?;
                let mut parameters = point.parameters.clone();
                parameters.insert(axis.name(), text(value.get_ref()).unwrap_or_default());
                finer.push(Point { parameters, document });
            }
        }
        points = finer;
    }
    Ok(points)
}

/// Sets the key in the table, or in each of its kind.
fn set<'i>(document: &mut DeTable<'i>, axis: &Axis<'i>, value: &Spanned<DeValue<'i>>) -> Result<(), Refused> {
    let spanned = |text: &str| Spanned::new(axis.span.clone(), Cow::Owned(text.to_owned()));
    let refuse = |message| Err((axis.span.clone(), Problem::new(field(&axis.name()), message)));
    if axis.table == "traffic" && !document.contains_key("traffic") {
        document.insert(spanned("traffic"), Spanned::new(axis.span.clone(), DeValue::Table(DeTable::new())));
    }
    let put = |table: &mut DeTable<'i>| {
        table.remove(axis.key.as_str());
        table.insert(spanned(&axis.key), value.clone());
    };
    match document.get_mut(axis.table.as_str()).map(Spanned::get_mut) {
        Some(DeValue::Table(table)) => put(table),
        Some(DeValue::Array(tables)) => {
            for table in tables.iter_mut() {
                if let DeValue::Table(table) = table.get_mut() {
                    put(table);
                }
            }
        }
        _ => return refuse(format!("there is no [[{}]] to set this in", axis.table)),
    }
    Ok(())
}

/// A scalar as the plan spells it.
fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        _ => None,
    }
}

//! Algorithms as rules configure them: one for each rule, sharing programs and policies.

use crate::catalog::{Catalog, Entry};
use crate::panics::catch;
use crate::rules::{Rules, RulesError};
use ccplane_alg::{Algorithm, configure};
use std::sync::Arc;

/// Each rule's algorithm; `None` where it is native. The default's is the catalog's own.
pub(crate) fn variants(
    catalog: &Catalog,
    rules: &Rules,
) -> Result<Vec<Option<Arc<dyn Algorithm>>>, RulesError> {
    let of = |(n, rule): (usize, &crate::Rule)| match catalog.entry(&rule.algorithm) {
        Some(entry) => variant(entry, n, &rule.parameters).map(Some),
        None => Ok(None),
    };
    rules.rules.iter().enumerate().map(of).collect()
}

fn variant(
    entry: &Entry,
    rule: usize,
    parameters: &[(String, i64)],
) -> Result<Arc<dyn Algorithm>, RulesError> {
    if parameters.is_empty() {
        return Ok(entry.algorithm.clone());
    }
    let wrong = |message| RulesError::Unconfigurable { rule, algorithm: entry.name, message };
    let values = parameters.iter().map(|(name, value)| (name.as_str(), *value));
    let algorithm = catch(|| configure(&entry.algorithm, values))
        .map_err(wrong)?
        .map_err(|error| RulesError::Parameters { rule, error })?;
    let same = catch(|| algorithm.programs() == entry.algorithm.programs()).map_err(wrong)?;
    if same { Ok(algorithm) } else { Err(wrong("its programs would be others".to_owned())) }
}

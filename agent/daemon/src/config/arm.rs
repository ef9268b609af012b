//! An arm of the portfolio: an algorithm by its name, or a table that names a snapshot too.

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// An arm as it is configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arm {
    pub algorithm: String,
    /// The file of the snapshot that the arm's flows ask; without one that which ships, and what is learned from it.
    pub snapshot: Option<PathBuf>,
}

/// The table's form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    algorithm: String,
    snapshot: PathBuf,
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Arm;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an algorithm's name, or { algorithm, snapshot }")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Arm, E> {
        Ok(Arm { algorithm: name.to_owned(), snapshot: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Arm, A::Error> {
        let Table { algorithm, snapshot } = Table::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Arm { algorithm, snapshot: Some(snapshot) })
    }
}

impl<'de> Deserialize<'de> for Arm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Arm, D::Error> {
        deserializer.deserialize_any(Either)
    }
}

impl Serialize for Arm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.snapshot {
            None => serializer.serialize_str(&self.algorithm),
            Some(snapshot) => {
                let (algorithm, snapshot) = (self.algorithm.clone(), snapshot.clone());
                Table { algorithm, snapshot }.serialize(serializer)
            }
        }
    }
}

//! Maps as lists of pairs: JSON takes only text for the keys of a map.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes a map, or what iterates like one, as a list of pairs.
///
/// # Errors
/// The serializer's.
pub fn serialize<'a, K, V, M, S>(map: &'a M, to: S) -> Result<S::Ok, S::Error>
where
    K: Serialize + 'a,
    V: Serialize + 'a,
    &'a M: IntoIterator<Item = (&'a K, &'a V)>,
    S: Serializer,
{
    to.collect_seq(map)
}

/// Reads a map from a list of pairs.
///
/// # Errors
/// The deserializer's.
pub fn deserialize<'de, K, V, M, D>(from: D) -> Result<M, D::Error>
where
    K: DeserializeOwned,
    V: DeserializeOwned,
    M: FromIterator<(K, V)> + IntoIterator<Item = (K, V)>,
    D: Deserializer<'de>,
{
    Ok(Vec::<(K, V)>::deserialize(from)?.into_iter().collect())
}

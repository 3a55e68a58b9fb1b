//! Maps whose size is bounded.

use std::collections::BTreeMap;

/// Before `key` enters a full map, drops the quarter of it that has been silent longest.
pub(crate) fn drop_silent<V>(
    map: &mut BTreeMap<String, V>,
    key: &str,
    most: usize,
    newest_ms: impl Fn(&V) -> i64,
) {
    if map.len() < most || map.contains_key(key) {
        return;
    }
    let mut times: Vec<i64> = map.values().map(&newest_ms).collect();
    let quarter = times.len() / 4;
    let (_, limit, _) = times.select_nth_unstable(quarter);
    let limit = *limit;
    map.retain(|_, value| newest_ms(value) > limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_drops_its_silent_quarter() {
        let mut map: BTreeMap<String, i64> = (0..100).map(|n| (format!("{n:03}"), n)).collect();
        drop_silent(&mut map, "000", 100, |at| *at);
        assert_eq!(map.len(), 100, "it is there already");
        drop_silent(&mut map, "new", 100, |at| *at);
        assert!(map.len() <= 75 && !map.contains_key("000") && map.contains_key("099"));
    }
}

//! `placed(node, pools, pool, at, milli)`: assigns GPUs that jobs hold without naming a node to
//! nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringViewArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, TimestampMicrosecondType};
use datafusion::common::Result;

use super::SweepAggregate;
use crate::table::timestamp_type;

pub(super) fn function() -> SweepAggregate {
    let text = DataType::Utf8View;
    let arguments = vec![text.clone(), text.clone(), text.clone(), timestamp_type(), DataType::Int64];
    let result = vec![
        Field::new("node", text, true),
        Field::new("at", timestamp_type(), true),
        Field::new("milli", DataType::Int64, true),
    ];
    SweepAggregate::new("placed", arguments, result, body)
}

fn body(columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    let [node, pools, pool] = [0, 1, 2].map(|at| columns[at].as_string_view());
    let at = columns[3].as_primitive::<TimestampMicrosecondType>();
    let milli = columns[4].as_primitive::<Int64Type>();
    let mut changes: BTreeMap<i64, Vec<Change<'_>>> = BTreeMap::new();
    for row in 0..at.len() {
        let milli = milli.is_valid(row).then(|| milli.value(row));
        let change = match text(node, row) {
            Some(name) => {
                let pools = text(pools, row).unwrap_or_default();
                Change::Node { name, idle: milli.map(|milli| Idle { milli, pools }) }
            }
            None => Change::Held { pool: text(pool, row), by: milli.unwrap_or_default() },
        };
        if at.is_valid(row) {
            changes.entry(at.value(row)).or_default().push(change);
        }
    }
    let placed = place(changes);
    let times: TimestampMicrosecondArray = placed.iter().map(|(_, at, _)| Some(*at)).collect();
    Ok(vec![
        Arc::new(StringViewArray::from_iter_values(placed.iter().map(|(node, ..)| node))),
        Arc::new(times.with_data_type(timestamp_type())),
        Arc::new(placed.iter().map(|(.., milli)| *milli).collect::<Int64Array>()),
    ])
}

fn text(column: &StringViewArray, row: usize) -> Option<&str> {
    column.is_valid(row).then(|| column.value(row))
}

/// Idle GPUs of a node, and the pools it serves, comma separated; empty if it serves all.
#[derive(Debug, Clone, Copy)]
struct Idle<'a> {
    milli: i64,
    pools: &'a str,
}

impl Idle<'_> {
    fn serves(&self, pool: Option<&str>) -> bool {
        pool.is_none_or(|pool| self.pools.is_empty() || self.pools.split(',').any(|own| own == pool))
    }
}

#[derive(Debug, Clone, Copy)]
enum Change<'a> {
    /// Idle GPUs from now on; `None` if the node is gone.
    Node { name: &'a str, idle: Option<Idle<'a>> },
    /// Change of what is held in the pool without a node.
    Held { pool: Option<&'a str>, by: i64 },
}

/// Node, time, and thousandths of a GPU that are taken of its idle ones from then on, at every
/// change.
///
/// Nodes give what is idle in order of their names, and pools take in order of theirs, jobs without
/// a pool last (docs/ledger.md, "Who holds what"). What no node has room for is not placed.
fn place<'a>(changes: BTreeMap<i64, Vec<Change<'a>>>) -> Vec<(&'a str, i64, i64)> {
    let mut nodes: BTreeMap<&str, Idle<'_>> = BTreeMap::new();
    // Those without a pool come last.
    let mut held: BTreeMap<(bool, Option<&str>), i64> = BTreeMap::new();
    let mut taken: HashMap<&str, i64> = HashMap::new();
    let mut placed = Vec::new();
    for (at, mut changed) in changes {
        // A node that is removed and registered at the same instant exists.
        changed.sort_by_key(|change| matches!(change, Change::Node { idle: Some(_), .. }));
        for change in changed {
            match change {
                Change::Node { name, idle: Some(idle) } => _ = nodes.insert(name, idle),
                Change::Node { name, idle: None } => _ = nodes.remove(name),
                Change::Held { pool, by } => *held.entry((pool.is_none(), pool)).or_default() += by,
            }
        }
        let now = take(&nodes, &held);
        let freed = taken.keys().filter(|node| !now.contains_key(*node)).map(|node| (*node, 0));
        let moved = now.iter().map(|(node, milli)| (*node, *milli));
        let mut differing: Vec<_> = moved
            .chain(freed)
            .filter(|(node, milli)| taken.get(node).copied().unwrap_or(0) != *milli)
            .collect();
        differing.sort_unstable();
        placed.extend(differing.into_iter().map(|(node, milli)| (node, at, milli)));
        taken = now;
    }
    placed
}

fn take<'a>(
    nodes: &BTreeMap<&'a str, Idle<'_>>,
    held: &BTreeMap<(bool, Option<&str>), i64>,
) -> HashMap<&'a str, i64> {
    let mut taken = HashMap::new();
    for ((_, pool), held) in held {
        let mut wanted = *held;
        for (name, idle) in nodes.iter().filter(|(_, idle)| idle.serves(*pool)) {
            if wanted <= 0 {
                break;
            }
            let before = taken.get(name).copied().unwrap_or(0);
            let part = wanted.min(idle.milli - before);
            if part > 0 {
                taken.insert(*name, before + part);
                wanted -= part;
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &'static str, milli: i64, pools: &'static str) -> Change<'static> {
        Change::Node { name, idle: Some(Idle { milli, pools }) }
    }

    fn held(pool: Option<&'static str>, by: i64) -> Change<'static> {
        Change::Held { pool, by }
    }

    #[test]
    fn nodes_give_by_name_and_pools_take_by_name() {
        let changes = [
            (0, vec![node("n2", 8000, ""), node("n1", 4000, "x"), node("n3", 8000, "y")]),
            (1, vec![held(Some("y"), 9000)]),
            (2, vec![held(Some("x"), 5000)]),
            (3, vec![held(None, 6000)]),
            // n2 is held by others: its placed GPUs move on, and 5 of them have no place.
            (4, vec![node("n2", 0, "")]),
            (5, vec![held(Some("y"), -9000), Change::Node { name: "n1", idle: None }]),
        ];
        let placed = place(BTreeMap::from(changes));
        let expected = [
            ("n2", 1, 8000),
            ("n3", 1, 1000),
            // x is before y: n1, then of n2.
            ("n1", 2, 4000),
            ("n3", 2, 2000),
            ("n3", 3, 8000),
            ("n2", 4, 0),
            ("n1", 5, 0),
            ("n3", 5, 6000),
        ];
        assert_eq!(placed, expected);
    }

    #[test]
    fn a_node_that_is_registered_again_exists() {
        let gone = Change::Node { name: "n", idle: None };
        let changes =
            [(0, vec![node("n", 8000, ""), held(None, 2000)]), (1, vec![node("n", 4000, ""), gone])];
        assert_eq!(place(BTreeMap::from(changes)), [("n", 0, 2000)]);
    }
}

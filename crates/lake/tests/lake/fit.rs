//! Free GPUs of pools, their fragmentation, and who is first in line, by day: at every moment they
//! are what their definitions over all history give, for random histories and every delivery.

use std::collections::BTreeSet;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use arrow::util::display::array_value_to_string;
use tidegate_lake::testing::equivalence::Delivery;

use crate::equivalence::{deliveries, seeds};
use crate::pending::{END_MS, History, START_MS, plan, view};

/// Times at which tables are compared. Events happen at whole minutes.
fn moments() -> impl Iterator<Item = i64> {
    (START_MS + 30_000..END_MS).step_by(30 * 60_000).map(|at_ms| at_ms * 1_000)
}

/// Values of these columns in the rows in force at a time, µs.
fn in_force(rows: &RecordBatch, at: i64, columns: &[&str]) -> BTreeSet<Vec<String>> {
    let time = |name| rows[name].as_primitive::<TimestampMicrosecondType>();
    let (from, to) = (time("from_time"), time("to_time"));
    let is_in_force = |row: &usize| from.value(*row) <= at && (to.is_null(*row) || to.value(*row) > at);
    let texts = |row| columns.iter().map(|name| array_value_to_string(&rows[*name], row).unwrap()).collect();
    (0..rows.num_rows()).filter(is_in_force).map(texts).collect()
}

/// Compares a table with `before`, its definition over all history. `is_comparable` picks rows of
/// the latter that the former must have, given the former's rows of that time. Returns how many
/// rows were compared.
async fn compare(
    name: &str,
    before: &str,
    columns: &[&str],
    is_comparable: impl Fn(&[String], &BTreeSet<Vec<String>>) -> bool,
) -> usize {
    let plan = plan(&[name, before]).await;
    let mut compared = 0;
    for seed in 0..seeds() {
        let events = History::events(seed);
        let before = view(&plan, &events, Delivery::OneShot, seed, before).await;
        for delivery in deliveries(seed) {
            let rows = view(&plan, &events, delivery, seed, name).await;
            for at in moments() {
                let found = in_force(&rows, at, columns);
                let mut expected = in_force(&before, at, columns);
                expected.retain(|row| is_comparable(row, &found));
                let found: BTreeSet<_> = found.into_iter().filter(|row| row[1] != "9").collect();
                assert_eq!(found, expected, "seed {seed}, {delivery:?}, {at}");
                compared += found.len();
            }
        }
    }
    compared
}

/// Whether the table has the pool of the row at that time. Pools that only waiting jobs name are
/// there on the days on which they name them, and no pool is while it has no node.
fn has_pool(row: &[String], found: &BTreeSet<Vec<String>>) -> bool {
    found.iter().any(|other| other[0] == row[0])
}

#[tokio::test(flavor = "multi_thread")]
async fn days_of_free_gpus_are_those_of_the_view_over_all_history() {
    let columns = [
        "node",
        "pool",
        "gpu_model",
        "state",
        "is_usable",
        "gpus_milli",
        "held_gpus_milli",
        "assumed_gpus_milli",
        "free_gpus_milli",
    ];
    let compared = compare("node_free", "free_spans", &columns, |_, _| true).await;
    assert!(compared > 1_000, "{compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn days_of_fit_are_those_of_the_view_over_all_history() {
    let columns = [
        "pool",
        "gpus",
        "nodes",
        "free_gpus_milli",
        "largest_free_gpus",
        "free_nodes",
        "usable_gpus_milli",
        "present_gpus_milli",
        "assumed_gpus_milli",
    ];
    // A row for more GPUs than any node has on that day has no nodes.
    let is_comparable = |row: &[String], found: &BTreeSet<Vec<String>>| {
        let largest = found.iter().filter(|other| other[0] == row[0]).map(|other| &other[1]).max();
        let must_be = ["a", "b", "c"].contains(&row[0].as_str()) && row[7] != "0";
        row[1] != "9" && (must_be && largest.is_none() || largest.is_some_and(|largest| row[1] <= *largest))
    };
    let compared = compare("pool_fit", "pool_fit_before", &columns, is_comparable).await;
    assert!(compared > 5_000, "{compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn days_of_fragmentation_are_those_of_the_view_over_all_history() {
    let columns = [
        "pool",
        "free_gpus_milli",
        "tasks",
        "unusable_gpus_milli_tasks",
        "unusable_gpus_milli",
        "jobs_of_unknown_shape",
    ];
    let compared = compare("fragmentation", "fragmentation_before", &columns, has_pool).await;
    assert!(compared > 800, "{compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn days_of_the_line_are_those_of_the_view_over_all_history() {
    let columns = ["pool", "job_id", "waited_from", "gpus_milli", "priority"];
    let compared = compare("first_in_line", "first_in_line_before", &columns, |_, _| true).await;
    assert!(compared > 500, "{compared}");
}

//! Streaming, backfill, restarts and disorder give the same bytes.

use tidegate_lake::pipeline::Plan;
use tidegate_lake::pipeline::{Pipeline, Shape};
use tidegate_lake::testing::equivalence::{Delivery, ViewSelection, tables_after};
use url::Url;

use crate::histories::{history, retried_without_a_pause, started_unnoticed};

/// Views that take long over histories of days, with all that read them. Each has test cases of its
/// own, with five deliveries too.
const SLOW: [&str; 16] = [
    "bottleneck_1m",
    "device_holds",
    "fragmentation",
    "gang_spread",
    "goodput_attempts",
    "gpu_spans",
    "growth_minutes",
    "job_energy",
    "ledger_stretches",
    "memory_growth",
    "pool_fit",
    "price_of",
    "quota_use",
    "step_parts",
    "step_waits_1m",
    "waits",
];

/// All pipelines but those, and but joined tables of single minutes: see `ledger.rs`.
pub async fn plan() -> Plan {
    let mut pipelines = tidegate_lake::pipeline::shipped();
    let mut left_out: Vec<String> = SLOW.iter().map(|name| (*name).to_owned()).collect();
    loop {
        let is_out = |p: &Pipeline| {
            matches!(p.shape, Shape::Joined { .. })
                || left_out.contains(&p.name)
                || p.sources.iter().any(|source| left_out.contains(source))
        };
        let out: Vec<String> = pipelines.extract_if(.., |p| is_out(p)).map(|p| p.name).collect();
        if out.is_empty() {
            break;
        }
        left_out.extend(out);
    }
    Plan::compile(pipelines).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_deliveries_give_the_same_bytes() {
    let plan = plan().await;
    for seed in 0..seeds() {
        let events = history(seed, 20);
        let mut first = None;
        for delivery in Delivery::ALL {
            let folder = tempfile::tempdir().unwrap();
            let root = Url::from_directory_path(folder.path()).unwrap();
            let tables = tables_after(&plan, &root, &events, delivery, seed, ViewSelection::All)
                .await
                .unwrap_or_else(|e| panic!("seed {seed}, {delivery:?}: {e:?}"));
            assert!(
                tables["gpu_holds"].num_rows() > 3 && tables["training_1m"].num_rows() > 3,
                "seed {seed}"
            );
            assert!(
                tables["jobs"].num_rows() == 20 && tables["usage_1h"].num_rows() > 20,
                "seed {seed}: tables are filled"
            );
            let Some(expected) = &first else {
                first = Some(tables);
                continue;
            };
            for (name, rows) in &tables {
                assert_eq!(
                    rows, &expected[name],
                    "seed {seed}, table {name}: {delivery:?} differs from one shot"
                );
            }
        }
    }
}

/// A scheduler starts a retry in the same millisecond in which the attempt before it ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_without_a_pause_stays_open() {
    let plan = plan().await;
    let events = retried_without_a_pause();
    let mut found = Vec::new();
    for delivery in [Delivery::OneShot, Delivery::WindowByWindow] {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        found.push(tables_after(&plan, &root, &events, delivery, 0, ViewSelection::All).await.unwrap());
    }
    for (name, rows) in &found[0] {
        assert_eq!(rows, &found[1][name], "table {name}");
    }
}

/// When a wait of days turns out to have ended, its rows go, also in windows long after its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_arrives_days_late_ends_the_wait() {
    let plan = plan().await;
    let events = started_unnoticed();
    let mut found = Vec::new();
    // With these seeds something is committed after the wait has lasted for days.
    for (delivery, seed) in [
        (Delivery::OneShot, 0),
        (Delivery::RandomCuts, 1),
        (Delivery::RandomCuts, 2),
        (Delivery::KilledAndResumed, 3),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        found.push(tables_after(&plan, &root, &events, delivery, seed, ViewSelection::All).await.unwrap());
    }
    for (name, rows) in &found[0] {
        for others in &found[1..] {
            assert_eq!(rows, &others[name], "table {name}");
        }
    }
}

/// Long form: TIDEGATE_SEEDS=200.
pub fn seeds() -> u64 {
    std::env::var("TIDEGATE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Deliveries in which a costly history is tried: all at once, and one of the others by its number.
/// Long form: all, with TIDEGATE_SEEDS.
pub fn deliveries(number: u64) -> Vec<Delivery> {
    match std::env::var_os("TIDEGATE_SEEDS") {
        Some(_) => Delivery::ALL.to_vec(),
        None => {
            let others = &Delivery::ALL[1..];
            vec![Delivery::ALL[0], others[number as usize % others.len()]]
        }
    }
}

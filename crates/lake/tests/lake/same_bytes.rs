//! Streaming, history, restarts and disorder give the same bytes.

use tidegate_lake::plan::Plan;
use tidegate_lake::ways::{Way, contents};
use url::Url;

use crate::histories::{history, retried_without_a_pause};

#[tokio::test(flavor = "multi_thread")]
async fn five_ways_give_the_same_bytes() {
    let plan = Plan::compile(tidegate_lake::shipped::shipped()).await.unwrap();
    for seed in 0..seeds() {
        let events = history(seed, 20);
        let mut first = None;
        for way in Way::ALL {
            let folder = tempfile::tempdir().unwrap();
            let root = Url::from_directory_path(folder.path()).unwrap();
            let tables = contents(&plan, &root, &events, way, seed)
                .await
                .unwrap_or_else(|e| panic!("seed {seed}, {way:?}: {e:?}"));
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
                assert_eq!(rows, &expected[name], "seed {seed}, table {name}: {way:?} differs from one shot");
            }
        }
    }
}

/// A scheduler starts a retry in the very millisecond in which the attempt before it ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_without_a_pause_stays_open() {
    let plan = Plan::compile(tidegate_lake::shipped::shipped()).await.unwrap();
    let events = retried_without_a_pause();
    let mut found = Vec::new();
    for way in [Way::OneShot, Way::WindowByWindow] {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        found.push(contents(&plan, &root, &events, way, 0).await.unwrap());
    }
    for (name, rows) in &found[0] {
        assert_eq!(rows, &found[1][name], "table {name}");
    }
}

/// Long form: TIDEGATE_SEEDS=200.
pub fn seeds() -> u64 {
    std::env::var("TIDEGATE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

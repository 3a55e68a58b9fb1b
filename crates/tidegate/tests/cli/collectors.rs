//! Collectors and tables agree on names.

use std::collections::BTreeSet;

use tidegate_collect::Metric;
use tidegate_lake::raw::samples::metrics::METRICS;

/// The two crates are independent: the names are their contract.
#[test]
fn every_metric_of_the_agent_has_a_column_and_no_other_has() {
    let reported: BTreeSet<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
    let columns: BTreeSet<&str> = METRICS.iter().map(|(name, _)| *name).collect();
    assert_eq!(reported, columns);
}

//! The pipelines that come with the binary: every `pipelines/SUBJECT/NAME.sql` of the repository.

use crate::pipeline::definition::Pipeline;

macro_rules! files {
    ($($subject:literal / [$($name:literal),* $(,)?]),* $(,)?) => {
        &[$($((
            concat!("pipelines/", $subject, "/", $name, ".sql"),
            include_str!(concat!("../../../../pipelines/", $subject, "/", $name, ".sql")),
        )),*),*]
    };
}

/// File, as messages name it, and text of each.
const FILES: &[(&str, &str)] = files![
    "jobs"
        / [
            "allocations",
            "attempt_models",
            "attempts",
            "job_ends",
            "job_facts",
            "job_intervals",
            "job_steps",
            "jobs",
            "queue_delay_1d",
            "usage_1d",
            "usage_1h",
        ],
    "queue"
        / [
            "classified_waits",
            "eligible_waits",
            "first_in_line",
            "fragmentation",
            "lasting_waits",
            "newest_pending_day",
            "pending",
            "pending_days",
            "pool_fit",
            "quota_use",
            "waits",
        ],
    "nodes"
        / [
            "capacity",
            "collectors",
            "free_spans",
            "node_capacity",
            "node_faults",
            "node_free",
            "node_holds",
            "node_places",
            "node_states",
            "nodes",
            "pool_usage_1h",
            "reservations",
            "topology",
        ],
    "gpu"
        / [
            "device_faults",
            "device_holds",
            "device_peaks",
            "gpu_1h",
            "gpu_1m",
            "gpu_holds",
            "gpu_spans",
            "growth_minutes",
            "held_devices_1m",
            "interference",
            "lasting_holds",
            "lasting_jobs",
            "memory_growth",
            "right_size",
            "shared_devices",
            "sharing",
            "xids",
        ],
    "training"
        / [
            "attempt_steps",
            "bottleneck_1m",
            "checkpoint_advice",
            "gang_spread",
            "goodput",
            "goodput_attempts",
            "job_counters_1m",
            "mfu_1m",
            "mfu_jobs",
            "step_parts",
            "step_time_1m",
            "step_waits_1m",
            "training_1m",
        ],
    "ledger"
        / [
            "commitments",
            "device_ledger_1m",
            "known_models",
            "ledger_1d",
            "ledger_1h",
            "ledger_1m",
            "ledger_racks_1h",
            "ledger_stretches",
            "occupancy_1m",
            "occupancy_facts",
            "sample_intervals",
            "stretch_facts",
            "watched",
        ],
    "cost"
        / [
            "attempt_costs",
            "idle_costs",
            "job_costs",
            "job_energy",
            "price_of",
            "prices",
            "run_costs",
            "token_costs",
        ],
    "signals"
        / ["forecast_coverage", "forecast_scores", "node_health", "scaling_curves", "sizing", "stragglers",],
    "audit" / ["audit"],
    "autopilot" / ["actions", "decisions", "plans", "prediction_scores",],
    "catalog"
        / ["gpu_peaks", "ledger_classes", "link_peaks", "mig_profiles", "pending_reasons", "xid_catalog",],
];

/// Folders of `pipelines/` in the order of the documentation, and what each holds.
pub const SUBJECTS: [(&str, &str); 11] = [
    ("jobs", "Jobs, their attempts to run, and the GPU time that they held and waited for."),
    ("queue", "Why jobs wait: reasons, quotas, free nodes and the place in line."),
    ("nodes", "Nodes: capacity, state, faults, location, and which jobs hold what of them."),
    ("gpu", "Devices: samples, holds, faults, sharing and memory."),
    ("training", "Training steps: throughput, goodput, FLOP utilisation and bottlenecks."),
    ("ledger", "The ledger: each GPU-ms of a cluster in exactly one class."),
    ("cost", "Prices, costs and energy."),
    ("signals", "Forecasts, advice and detections that Tidegate publishes."),
    ("audit", "What people did; for administrators."),
    ("autopilot", "Plans, decisions and actions of the autopilot."),
    ("catalog", "Reference data from CSV files in `schemas/`."),
];

fn parse((file, text): &(&str, &str)) -> Pipeline {
    Pipeline::parse(file, text).expect("shipped pipelines parse; the tests below ensure it")
}

/// The shipped pipelines, sorted by name.
pub fn shipped() -> Vec<Pipeline> {
    let mut pipelines: Vec<_> = FILES.iter().map(parse).collect();
    pipelines.sort_by(|a, b| a.name.cmp(&b.name));
    pipelines
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};

    use super::*;
    use crate::pipeline::plan::Plan;

    /// Folders of `pipelines/` that hold pipelines, and the files of each, sorted.
    fn files_of_the_folder() -> Vec<String> {
        let mut found = Vec::new();
        for subject in std::fs::read_dir("../../pipelines").unwrap() {
            let subject = subject.unwrap();
            assert!(subject.path().is_dir(), "{subject:?}: a pipeline stands in the folder of its subject");
            for file in std::fs::read_dir(subject.path()).unwrap() {
                let name = file.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".sql") {
                    found.push(format!("pipelines/{}/{name}", subject.file_name().to_str().unwrap()));
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn every_folder_is_described() {
        let described: std::collections::BTreeSet<_> = SUBJECTS.iter().map(|(subject, _)| *subject).collect();
        let pipelines = shipped();
        assert_eq!(
            pipelines.iter().filter_map(Pipeline::subject).collect::<std::collections::BTreeSet<_>>(),
            described
        );
    }

    #[test]
    fn every_file_of_the_folder_is_listed() {
        let mut listed: Vec<_> = FILES.iter().map(|(file, _)| *file).collect();
        listed.sort_unstable();
        assert_eq!(listed, files_of_the_folder());
    }

    /// A catalogue in `schemas/` is the only source of its rows: the table has the same rows in the
    /// same order, cell by cell.
    async fn is_that_of_the_contract(name: &str) {
        let pipeline = shipped().into_iter().find(|p| p.name == name).unwrap();
        let ctx = datafusion::prelude::SessionContext::new();
        let table = ctx.sql(&pipeline.sql).await.unwrap().collect().await.unwrap();
        let table = arrow::compute::concat_batches(&table[0].schema(), &table).unwrap();
        let cells: Vec<_> = (table.columns().iter())
            .map(|column| arrow::compute::cast(column, &arrow::datatypes::DataType::Utf8).unwrap())
            .collect();
        let mut file = csv::Reader::from_path(format!("../../schemas/{name}.csv")).unwrap();
        let columns: Vec<String> = file.headers().unwrap().iter().map(str::to_owned).collect();
        let named: Vec<String> = table.schema().fields().iter().map(|f| f.name().clone()).collect();
        assert_eq!(named[..columns.len()], columns);
        let mut rows = 0;
        for (row, record) in file.records().enumerate() {
            for (column, expected) in record.unwrap().iter().enumerate() {
                let cell = cells[column].as_string::<i32>();
                let found = if cell.is_null(row) { "" } else { cell.value(row) };
                assert_eq!(found, expected, "{name}, row {row}, {}", columns[column]);
            }
            rows += 1;
        }
        assert_eq!(rows, table.num_rows(), "{name}");
    }

    #[tokio::test]
    async fn the_catalogues_are_those_of_the_contract() {
        let names =
            ["gpu_peaks", "ledger_classes", "link_peaks", "mig_profiles", "pending_reasons", "xid_catalog"];
        for name in names {
            is_that_of_the_contract(name).await;
        }
    }

    /// Class and formula of each row of a CSV file.
    fn classes_in(file: &std::path::Path) -> std::collections::BTreeSet<(String, String)> {
        let mut csv = csv::Reader::from_path(file).unwrap();
        let columns = csv.headers().unwrap().clone();
        let place = |name| columns.iter().position(|column| column == name).unwrap();
        let (class, formula) = (place("class"), place("formula"));
        csv.records()
            .map(|row| row.unwrap())
            .map(|row| (row[class].to_owned(), row[formula].to_owned()))
            .collect()
    }

    #[test]
    fn the_catalogue_has_every_class_that_golden_cases_of_the_ledger_produce() {
        let catalogue = classes_in(std::path::Path::new("../../schemas/ledger_classes.csv"));
        let mut produced = std::collections::BTreeSet::new();
        for case in std::fs::read_dir("../../pipelines/tests").unwrap() {
            let case = case.unwrap();
            let name = case.file_name().into_string().unwrap();
            if name.starts_with("ledger_") {
                produced.extend(classes_in(&case.path().join("expected.csv")));
            }
        }
        assert!(produced.len() > 15, "{produced:?}");
        assert_eq!(produced.difference(&catalogue).collect::<Vec<_>>(), [] as [&(String, String); 0]);
    }

    #[tokio::test]
    async fn shipped_pipelines_compile_and_are_named_as_their_files() {
        let pipelines = shipped();
        assert!(pipelines.iter().all(|p| p.file.ends_with(&format!("/{}.sql", p.name))));
        Plan::compile(pipelines).await.unwrap();
    }
}

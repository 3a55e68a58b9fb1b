//! The pipelines that come with the binary: every `pipelines/*.sql` of the repository.

use crate::pipeline::definition::Pipeline;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$((concat!("pipelines/", $name, ".sql"), include_str!(concat!("../../../../pipelines/", $name, ".sql")))),*]
    };
}

/// File (as messages name it) and text of each.
const FILES: &[(&str, &str)] = files![
    "actions",
    "allocations",
    "attempt_steps",
    "attempts",
    "bottleneck_1m",
    "capacity",
    "checkpoint_advice",
    "collectors",
    "commitments",
    "decisions",
    "device_faults",
    "device_ledger_1m",
    "device_peaks",
    "first_in_line",
    "forecast_coverage",
    "forecast_scores",
    "fragmentation",
    "gang_spread",
    "goodput",
    "goodput_attempts",
    "gpu_1h",
    "gpu_1m",
    "gpu_holds",
    "gpu_peaks",
    "gpu_spans",
    "idle_costs",
    "interference",
    "job_costs",
    "job_ends",
    "job_energy",
    "job_facts",
    "job_intervals",
    "job_steps",
    "jobs",
    "ledger_1d",
    "ledger_1h",
    "ledger_1m",
    "ledger_racks_1h",
    "ledger_stretches",
    "link_peaks",
    "memory_growth",
    "mfu_1m",
    "mfu_jobs",
    "mig_profiles",
    "node_capacity",
    "node_faults",
    "node_free",
    "node_health",
    "node_holds",
    "node_places",
    "node_states",
    "nodes",
    "occupancy_1m",
    "occupancy_facts",
    "pending",
    "pending_reasons",
    "plans",
    "pool_fit",
    "pool_usage_1h",
    "prediction_scores",
    "price_of",
    "prices",
    "queue_delay_1d",
    "quota_use",
    "reservations",
    "right_size",
    "run_costs",
    "scaling_curves",
    "shared_devices",
    "sharing",
    "sizing",
    "step_parts",
    "step_time_1m",
    "stragglers",
    "token_costs",
    "topology",
    "training_1m",
    "usage_1d",
    "usage_1h",
    "waits",
    "watched",
    "xid_catalog",
    "xids",
];

fn parse((file, text): &(&str, &str)) -> Pipeline {
    Pipeline::parse(file, text).expect("shipped pipelines parse, as the tests below see to")
}

/// The shipped pipelines, in order of their names.
pub fn shipped() -> Vec<Pipeline> {
    FILES.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::plan::Plan;

    #[test]
    fn every_file_of_the_folder_is_listed() {
        let names = std::fs::read_dir("../../pipelines").unwrap();
        let names = names.map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> =
            names.filter(|n| n.ends_with(".sql")).map(|n| format!("pipelines/{n}")).collect();
        names.sort();
        let listed: Vec<_> = FILES.iter().map(|(file, _)| *file).collect();
        assert_eq!(listed, names);
    }

    /// A catalogue in `schemas/` is the one place where codes are described; `types` are those of
    /// its columns.
    fn is_that_of_the_contract(name: &str, types: &[(&str, &str)], header: &str) {
        let mut rows = csv::Reader::from_path(format!("../../schemas/{name}.csv")).unwrap();
        let columns: Vec<String> = rows.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(columns, types.iter().map(|(column, _)| *column).collect::<Vec<_>>());
        let literal = |(text, (_, data_type)): (&str, &(&str, &str))| match *data_type {
            "BIGINT" => text.parse::<u64>().unwrap().to_string(),
            _ => format!("'{}'", text.replace('\'', "''")),
        };
        let row = |row: csv::StringRecord| {
            format!("    ({})", row.iter().zip(types).map(literal).collect::<Vec<_>>().join(", "))
        };
        let values: Vec<String> = rows.records().map(|r| row(r.unwrap())).collect();
        let select = |(n, (column, data_type)): (usize, &(&str, &str))| match *data_type {
            "BIGINT" => format!("CAST(column{} AS BIGINT) AS {column}", n + 1),
            _ => format!("column{} AS {column}", n + 1),
        };
        let selected: Vec<String> = types.iter().enumerate().map(select).collect();
        let expected = format!(
            "{header}SELECT {},\n       {}\nFROM (VALUES\n{}\n)\n",
            selected[..4].join(", "),
            selected[4..].join(", "),
            values.join(",\n")
        );
        let file = format!("../../pipelines/{name}.sql");
        if std::env::var_os("TIDEGATE_BLESS").is_some_and(|v| v == "1") {
            std::fs::write(&file, &expected).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == expected, "{file} does not say what the CSV says; TIDEGATE_BLESS=1 writes it");
    }

    #[test]
    fn the_catalogues_are_those_of_the_contract() {
        let text = "TEXT";
        let xids = [
            ("code", "BIGINT"),
            ("name", text),
            ("severity", text),
            ("cause", text),
            ("action", text),
            ("meaning", text),
        ];
        is_that_of_the_contract("xid_catalog", &xids, XID_HEADER);
        let reasons = [
            ("scheduler", text),
            ("reason", text),
            ("layer", "BIGINT"),
            ("constraint", text),
            ("meaning", text),
            ("starts_when", text),
        ];
        is_that_of_the_contract("pending_reasons", &reasons, REASONS_HEADER);
        let profiles = [
            ("model", text),
            ("profile", text),
            ("compute_slices", "BIGINT"),
            ("memory_slices", "BIGINT"),
            ("multiprocessors", "BIGINT"),
            ("memory_bytes", "BIGINT"),
            ("gpu_compute_slices", "BIGINT"),
            ("gpu_memory_slices", "BIGINT"),
            ("gpu_multiprocessors", "BIGINT"),
            ("since", text),
            ("source", text),
        ];
        is_that_of_the_contract("mig_profiles", &profiles, MIG_HEADER);
    }

    const XID_HEADER: &str = r#"--! name    = "xid_catalog"
--! doc     = "What the XID error codes of NVIDIA's driver say: schemas/xid_catalog.csv as a table."
--! question = "What does an XID code mean, and what helps?"
--! example  = "SELECT code, name, severity, cause, action, meaning FROM xid_catalog WHERE code IN (48, 63, 79, 94) ORDER BY code"
--! sources = []
--! [columns]
--! code     = "XID error code."
--! name     = "Name of the code."
--! severity = "How grave it is."
--! cause    = "Where it mostly comes from."
--! action   = "What helps."
--! meaning  = "What it says."
"#;

    const REASONS_HEADER: &str = r#"--! name    = "pending_reasons"
--! doc     = "Why jobs wait: reasons of schedulers, and what Tidegate itself finds: schemas/pending_reasons.csv as a table."
--! question = "What does a scheduler's reason for a wait mean, and what ends the wait?"
--! example  = "SELECT reason, layer, constraint, meaning, starts_when FROM pending_reasons WHERE scheduler = 'slurm' AND reason LIKE 'QOS%' ORDER BY reason"
--! sources = []
--! [columns]
--! scheduler   = "Whose reason it is: slurm; tidegate for what is found from capacity, quotas and shapes."
--! reason      = "The reason as the scheduler names it."
--! layer       = "1 reservation or quota, 2 provisioning, 3 scheduling, 4 workload."
--! constraint  = "What binds, by a name of ours."
--! meaning     = "What it says."
--! starts_when = "What would start the job."
"#;

    const MIG_HEADER: &str = r#"--! name    = "mig_profiles"
--! doc     = "MIG profiles by GPU model, what a slice of each has: schemas/mig_profiles.csv as a table. Drivers differ a little; the least is here. A model that is not here has no known profiles."
--! question = "Into which MIG slices can a GPU model be cut, and what has each?"
--! example  = "SELECT model, profile, compute_slices, multiprocessors, memory_bytes / 1073741824 AS memory_gib FROM mig_profiles ORDER BY model, memory_bytes"
--! sources = []
--! [columns]
--! model               = "Model as NVML names it; % stands for any text."
--! profile             = "Name of the profile."
--! compute_slices      = "Compute slices that it takes."
--! memory_slices       = "Memory slices that it takes."
--! multiprocessors     = "Multiprocessors that it has. They are not in proportion to compute_slices on all models."
--! memory_bytes        = "Device memory that it has, bytes."
--! gpu_compute_slices  = "Compute slices of the whole GPU."
--! gpu_memory_slices   = "Memory slices of the whole GPU."
--! gpu_multiprocessors = "Multiprocessors of the whole GPU without MIG."
--! since               = "Version of this table from which on the row is as it is, a date."
--! source              = "Where the figures are from."
"#;

    #[tokio::test]
    async fn shipped_pipelines_compile_and_are_named_as_their_files() {
        let pipelines = shipped();
        assert!(pipelines.iter().all(|p| p.file == format!("pipelines/{}.sql", p.name)));
        Plan::compile(pipelines).await.unwrap();
    }
}

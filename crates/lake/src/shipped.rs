//! The pipelines that come with the binary: every `pipelines/*.sql` of the repository.

use crate::pipeline::Pipeline;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$((concat!("pipelines/", $name, ".sql"), include_str!(concat!("../../../pipelines/", $name, ".sql")))),*]
    };
}

/// File (as messages name it) and text of each.
const FILES: &[(&str, &str)] = files![
    "allocations",
    "attempts",
    "capacity",
    "collectors",
    "device_faults",
    "gpu_1h",
    "gpu_1m",
    "gpu_holds",
    "job_facts",
    "job_intervals",
    "job_steps",
    "jobs",
    "node_faults",
    "node_states",
    "nodes",
    "pool_usage_1h",
    "queue_delay_1d",
    "reservations",
    "training_1m",
    "usage_1d",
    "usage_1h",
    "xid_catalog",
    "xids",
];

/// The shipped pipelines, in order of their names.
pub fn shipped() -> Vec<Pipeline> {
    let parse = |(file, text): &(&str, &str)| {
        Pipeline::parse(file, text).expect("shipped pipelines parse, as the test below sees to")
    };
    FILES.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn every_file_of_the_folder_is_shipped() {
        let folder = std::path::Path::new("../../pipelines");
        let names = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> =
            names.filter(|n| n.ends_with(".sql")).map(|n| format!("pipelines/{n}")).collect();
        names.sort();
        let shipped: Vec<_> = FILES.iter().map(|(file, _)| *file).collect();
        assert_eq!(shipped, names);
    }

    /// `schemas/xid_catalog.csv` is the one place where codes are described.
    #[test]
    fn the_xid_catalog_is_that_of_the_contract() {
        let mut rows = csv::Reader::from_path("../../schemas/xid_catalog.csv").unwrap();
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let row = |row: csv::StringRecord| {
            let texts: Vec<String> = row.iter().skip(1).map(quoted).collect();
            format!("    ({}, {})", row[0].parse::<u32>().unwrap(), texts.join(", "))
        };
        let values: Vec<String> = rows.records().map(|r| row(r.unwrap())).collect();
        let columns: Vec<String> = rows.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(columns, ["code", "name", "severity", "cause", "action", "meaning"]);
        let expected = format!(
            "{XID_HEADER}SELECT CAST(column1 AS BIGINT) AS code, column2 AS name, column3 AS severity, column4 AS cause,\n       \
             column5 AS action, column6 AS meaning\nFROM (VALUES\n{}\n)\n",
            values.join(",\n")
        );
        let file = "../../pipelines/xid_catalog.sql";
        if std::env::var_os("TIDEGATE_BLESS").is_some_and(|v| v == "1") {
            std::fs::write(file, &expected).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap();
        assert!(written == expected, "{file} does not say what the CSV says; TIDEGATE_BLESS=1 writes it");
    }

    const XID_HEADER: &str = r#"--! name    = "xid_catalog"
--! doc     = "What the XID error codes of NVIDIA's driver say: schemas/xid_catalog.csv as a table."
--! sources = []
--! [columns]
--! code     = "XID error code."
--! name     = "Name of the code."
--! severity = "How grave it is."
--! cause    = "Where it mostly comes from."
--! action   = "What helps."
--! meaning  = "What it says."
"#;

    #[tokio::test]
    async fn shipped_pipelines_compile_and_are_named_as_their_files() {
        let pipelines = shipped();
        assert!(pipelines.iter().all(|p| p.file == format!("pipelines/{}.sql", p.name)));
        Plan::compile(pipelines).await.unwrap();
    }
}

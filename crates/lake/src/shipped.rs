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
    "gpu_1h",
    "gpu_1m",
    "job_facts",
    "job_intervals",
    "job_steps",
    "jobs",
    "node_faults",
    "nodes",
    "pool_usage_1h",
    "queue_delay_1d",
    "usage_1d",
    "usage_1h",
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

    #[tokio::test]
    async fn shipped_pipelines_compile_and_are_named_as_their_files() {
        let pipelines = shipped();
        assert!(pipelines.iter().all(|p| p.file == format!("pipelines/{}.sql", p.name)));
        Plan::compile(pipelines).await.unwrap();
    }
}

//! The history that a run appends: generated from its seed, the same in every process.

use std::fs::File;
use std::io::{BufWriter, Write};

use tidegate_collect::generate::{self, SacctFile};
use tidegate_collect::{ImportOptions, Mapping, Source};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Record, partition_for};

use crate::commands::CommandError;
use crate::commands::import::{one_partition, to_events};

/// Topic of the history.
pub const TOPIC: &str = SchemaId::JobEvent.topic();
const CLUSTER_GPUS: u32 = 128;
const DAYS: u32 = 20;

/// What a run's history follows from.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub jobs: u64,
    pub partitions: u32,
}

/// Records of each partition, in order of event time.
pub fn records(plan: Plan) -> Result<Vec<Vec<Record>>, CommandError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("jobs.sacct");
    let mut out = BufWriter::new(File::create(&file)?);
    let year = SacctFile::year(plan.seed, plan.jobs, CLUSTER_GPUS);
    generate::sacct(&mut out, &SacctFile { days: DAYS, steps: true, ..year })?;
    out.flush()?;
    let options =
        ImportOptions { cluster: Some("chaos".into()), topics: one_partition(), ..ImportOptions::default() };
    let (mut events, _) = to_events(Source::File(file), &Mapping::load("sacct")?, &options)?;
    events.retain(|event| event.schema().topic() == TOPIC);
    events.sort_by_key(Event::event_time_ms);
    let mut partitions = vec![Vec::new(); plan.partitions as usize];
    for mut event in events {
        let key = event.key();
        let place = partition_for(key.as_bytes(), plan.partitions);
        // A heartbeat goes to every partition.
        let here = if key.ends_with('/') { 0..plan.partitions } else { place..place + 1 };
        for partition in here {
            let records = &mut partitions[partition as usize];
            event.envelope_mut().seq = records.len() as u64;
            records.push(event.record()?.into());
        }
    }
    Ok(partitions)
}

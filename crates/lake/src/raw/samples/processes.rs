//! Processes of a device, as JSON text.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_events::v1::GpuSampleBatch;
use tidegate_events::v1::gpu_sample_batch::Process;
use tidegate_events::v1::gpu_sample_batch::process::Kind;

/// Text of `processes` by row, sorted: a JSON array on the row of each process's first tick.
pub(super) fn texts(batch: &GpuSampleBatch, first_row: u32) -> impl Iterator<Item = (u32, String)> {
    let ticks = batch.tick_delta_ms.len() as u32 + 1;
    let mut of_row: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in &batch.processes {
        let row = first_row + process.device * ticks + process.first_tick;
        of_row.entry(row).or_default().push(process);
    }
    of_row.into_iter().map(|(row, mut processes)| {
        // The text must not depend on the agent's order.
        processes.sort_by_key(|p| (p.pid, p.kind, p.last_tick));
        let described: Vec<Described<'_>> = processes.into_iter().map(Described::from).collect();
        (row, serde_json::to_string(&described).expect("text and whole numbers"))
    })
}

/// A process; unknown fields are left out.
#[derive(Serialize)]
struct Described<'a> {
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a str>,
    ticks: u32,
}

impl<'a> From<&'a Process> for Described<'a> {
    fn from(process: &'a Process) -> Self {
        Self {
            pid: process.pid,
            kind: match process.kind() {
                Kind::Unspecified => None,
                kind => Some(kind.as_str_name()),
            },
            memory_bytes: process.memory_bytes,
            name: process.name.as_deref(),
            job: process.job_id.as_deref(),
            ticks: process.last_tick - process.first_tick + 1,
        }
    }
}

//! The built-in mappings on the public traces: counts and GPU time against sums of the columns.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use crate::support::{Imported, MemoryLog, gpu_ms, run, trace};
use arrow::array::{Array, ArrayRef, Float64Array, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tidegate_events::{Event, v1};
use tidegate_import::{ImportSummary, Mapping, Source};

/// Imports the trace with the mapping's name; `None` if it is absent.
fn imported(name: &str) -> Option<(MemoryLog, ImportSummary, Columns)> {
    let path = trace(&format!("{name}.parquet"))?;
    let (log, summary) = run(Source::File(path.clone()), &Mapping::load(name).unwrap()).unwrap();
    assert_eq!(summary.rejected(), 0, "{summary:?}");
    Some((log, summary, Columns::read(&path)))
}

/// A Parquet file, column by column.
struct Columns(BTreeMap<String, Vec<ArrayRef>>);

impl Columns {
    fn read(path: &Path) -> Self {
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
        let mut columns: BTreeMap<String, Vec<ArrayRef>> = BTreeMap::new();
        for batch in reader {
            let batch = batch.unwrap();
            for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
                columns.entry(field.name().clone()).or_default().push(array.clone());
            }
        }
        Self(columns)
    }

    fn rows(&self) -> u64 {
        self.0.values().next().unwrap().iter().map(|array| array.len() as u64).sum()
    }

    fn cast(&self, name: &str, to: &DataType) -> Vec<ArrayRef> {
        self.0[name].iter().map(|array| cast(array, to).unwrap()).collect()
    }

    fn ints(&self, name: &str) -> Vec<Option<i64>> {
        let arrays = self.cast(name, &DataType::Int64);
        arrays.iter().flat_map(|array| array.as_any().downcast_ref::<Int64Array>().unwrap().iter()).collect()
    }

    fn floats(&self, name: &str) -> Vec<Option<f64>> {
        let arrays = self.cast(name, &DataType::Float64);
        arrays
            .iter()
            .flat_map(|array| array.as_any().downcast_ref::<Float64Array>().unwrap().iter())
            .collect()
    }

    fn millis(&self, name: &str) -> Vec<Option<i64>> {
        let millis = self.cast(name, &DataType::Timestamp(TimeUnit::Millisecond, None));
        let ints = millis.iter().map(|array| cast(array, &DataType::Int64).unwrap());
        ints.flat_map(|array| array.as_any().downcast_ref::<Int64Array>().unwrap().iter().collect::<Vec<_>>())
            .collect()
    }
}

fn of_kind(jobs: &[v1::JobEvent], kind: v1::JobEventKind) -> usize {
    jobs.iter().filter(|job| job.kind() == kind).count()
}

fn sum(parts: impl Iterator<Item = i64>) -> i128 {
    parts.map(i128::from).sum()
}

#[test]
fn ms_itp_jobs_keep_every_gpu_second() {
    let Some((log, summary, columns)) = imported("ms_itp_jobs") else { return };
    let (gpus, seconds) = (columns.ints("num_gpu"), columns.ints("duration"));
    let expected =
        sum(gpus.iter().zip(&seconds).map(|(gpus, seconds)| gpus.unwrap() * seconds.unwrap() * 1000));
    let jobs = log.jobs();
    assert_eq!(gpu_ms(&jobs), expected);
    assert_eq!(summary.rows_accepted, columns.rows());
    assert_eq!(jobs.len() as u64, 3 * columns.rows());
    assert_eq!(summary.clusters.len(), 6);
}

#[test]
fn philly_attempts_keep_every_gpu_second_and_their_order() {
    let Some((log, summary, columns)) = imported("philly_multigpu_attempts") else { return };
    let (starts, ends) = (columns.millis("start_time"), columns.millis("end_time"));
    let gpus = columns.ints("num_gpus");
    let times: Vec<_> =
        (0..gpus.len()).map(|row| gpus[row].unwrap() * (ends[row].unwrap() - starts[row].unwrap())).collect();
    let jobs = log.jobs();
    assert_eq!(gpu_ms(&jobs), sum(times.iter().copied()));
    assert_eq!(summary.rows_accepted, columns.rows());
    let (attempts, of) = (columns.ints("attempt"), columns.ints("n_attempts"));
    let followed = (0..gpus.len()).filter(|row| attempts[*row].unwrap() + 1 < of[*row].unwrap()).count();
    let requeued = jobs.iter().filter(|job| job.final_state.as_deref() == Some("REQUEUED")).count();
    assert_eq!(requeued, followed);
    assert!(followed > 0);
    assert!(jobs.iter().all(|job| job.envelope.as_ref().unwrap().cluster == "philly"));
}

#[test]
fn philly_jobs_end_after_their_duration() {
    let Some((log, summary, columns)) = imported("philly_jobs") else { return };
    let (gpus, seconds) = (columns.ints("num_gpus"), columns.floats("duration"));
    let parts = gpus
        .iter()
        .zip(&seconds)
        .map(|(gpus, seconds)| gpus.unwrap() * (seconds.unwrap() * 1000.0).round() as i64);
    assert_eq!(gpu_ms(&log.jobs()), sum(parts));
    assert_eq!(summary.rows_accepted, columns.rows());
}

#[test]
fn openb_pods_hold_parts_of_gpus() {
    let Some((log, summary, columns)) = imported("alibaba_openb_pods") else { return };
    let (gpus, milli) = (columns.ints("num_gpu"), columns.ints("gpu_milli"));
    let (from, to) = (columns.floats("scheduled_time"), columns.ints("deletion_time"));
    let scheduled = (0..gpus.len()).filter(|row| from[*row].is_some_and(|from| !from.is_nan()));
    let parts = scheduled
        .clone()
        .map(|row| gpus[row].unwrap() * milli[row].unwrap() * (to[row].unwrap() - from[row].unwrap() as i64));
    let jobs = log.jobs();
    assert_eq!(gpu_ms(&jobs), sum(parts));
    assert_eq!(of_kind(&jobs, v1::JobEventKind::Started), scheduled.count());
    assert_eq!(of_kind(&jobs, v1::JobEventKind::Ended) as u64, columns.rows());
    assert_eq!(summary.rows_accepted, columns.rows());
}

#[test]
fn mit_supercloud_jobs_keep_every_gpu_second() {
    let Some((log, summary, columns)) = imported("mit_supercloud_slurm_sample") else { return };
    let (from, to, gpus) = (columns.ints("time_start"), columns.ints("time_end"), columns.ints("gpus_alloc"));
    let parts =
        (0..gpus.len()).map(|row| gpus[row].unwrap() * 1000 * (to[row].unwrap() - from[row].unwrap()));
    let jobs = log.jobs();
    assert_eq!(gpu_ms(&jobs), sum(parts));
    assert_eq!(summary.rows_accepted, columns.rows());
    let nodes = jobs.iter().filter_map(|job| Some((job.nodes.as_deref()?, job.node_count?)));
    for (nodes, count) in nodes {
        assert_eq!(nodes.split(',').count() as u32, count, "{nodes}");
        assert!(!nodes.contains(['[', '\'', ' ']), "{nodes}");
    }
}

#[test]
fn openb_nodes_are_registered() {
    let Some((log, _, columns)) = imported("alibaba_openb_nodes") else { return };
    let nodes: Vec<_> = log.events("nodes").into_iter().map(node).collect();
    let gpus_milli: u64 = nodes.iter().filter_map(|node| node.gpus_milli).sum();
    assert_eq!(i128::from(gpus_milli), sum(columns.ints("gpu").into_iter().map(|gpus| gpus.unwrap() * 1000)));
    assert_eq!(nodes.len() as u64, columns.rows());
    let bytes: u64 = nodes.iter().filter_map(|node| node.memory_bytes).sum();
    assert_eq!(i128::from(bytes), sum(columns.ints("memory_mib").into_iter().map(|mib| mib.unwrap() << 20)));
}

fn node(event: Event) -> v1::NodeEvent {
    match event {
        Event::Node(node) => node,
        other => panic!("not a node event: {other:?}"),
    }
}

#[test]
fn stepfun_faults_start_and_end() {
    let Some((log, _, columns)) = imported("stepfun_node_faults") else { return };
    let nodes: Vec<_> = log.events("nodes").into_iter().map(node).collect();
    assert_eq!(nodes.len() as u64, 2 * columns.rows());
    let signed = |node: &v1::NodeEvent| {
        let time_ms = node.envelope.as_ref().unwrap().event_time_ms;
        if node.kind() == v1::NodeEventKind::FaultEnded { time_ms } else { -time_ms }
    };
    let days =
        |name: &str| columns.floats(name).into_iter().map(|day| (day.unwrap() * 86_400_000.0).round() as i64);
    assert_eq!(sum(nodes.iter().map(signed)), sum(days("fault_end_day")) - sum(days("fault_start_day")));
}

#[test]
fn helios_quotas_begin_at_midnight_in_china() {
    let Some((log, summary, columns)) = imported("helios_vc_gpus_daily") else { return };
    let events = log.events("capacity");
    assert_eq!(events.len() as u64, columns.rows());
    assert!(summary.clusters.contains_key("Venus") && summary.clusters.contains_key("Earth"));
    let mut gpus_milli = 0;
    for event in events {
        let Event::Capacity(quota) = event else { panic!("not a quota: {event:?}") };
        assert_eq!((quota.envelope.unwrap().event_time_ms + 8 * 3_600_000) % 86_400_000, 0);
        gpus_milli += i128::from(quota.gpus_milli.unwrap());
    }
    assert_eq!(gpus_milli, sum(columns.ints("gpus").into_iter().map(|gpus| gpus.unwrap() * 1000)));
}

#[test]
fn helios_minutes_are_kept_as_reported() {
    let Some((log, _, columns)) = imported("helios_earth_vc_1min") else { return };
    let samples: Vec<_> = log
        .events("capacity")
        .into_iter()
        .map(|event| match event {
            Event::PoolSample(sample) => sample,
            other => panic!("not a sample: {other:?}"),
        })
        .collect();
    assert_eq!(samples.len() as u64, columns.rows());
    assert!(samples.iter().all(|sample| sample.interval_ms == 60_000));
    for (column, field) in [
        ("running_gpu_num", (|sample| sample.held_gpus_milli) as fn(&v1::PoolSample) -> Option<u64>),
        ("pending_gpu_num", |sample| sample.queued_gpus_milli),
        ("total_gpu_num", |sample| sample.quota_gpus_milli),
    ] {
        let expected = sum(columns.ints(column).into_iter().map(|gpus| gpus.unwrap() * 1000));
        assert_eq!(
            samples.iter().map(|sample| i128::from(field(sample).unwrap())).sum::<i128>(),
            expected,
            "{column}"
        );
    }
}

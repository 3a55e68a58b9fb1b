//! Verdict on a run: looks for every acknowledged record and compares every table.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use arrow::array::RecordBatch;
use arrow::row::{OwnedRow, RowConverter, SortField};
use tidegate_events::SchemaId;
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_lake::testing::equivalence::{TableContents, read_tables};
use tidegate_lake::testing::histories::Records;
use tidegate_log::tail::Cursor;
use tidegate_log::{
    Batch, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};
use url::Url;

use super::history;
use super::processes::Processes;
use tidegate_workspace::{CommandError, block_on_one_thread, folder_url};

const READ_BYTES: usize = 8 << 20;

/// Result of a run.
#[derive(Debug, Default)]
pub struct Verdict {
    pub acknowledged: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub table_rows: u64,
    /// Tables that differ from the undisturbed ones.
    pub differences: Vec<String>,
}

/// Checks a finished run. The undisturbed tables are computed below `folder`, from generated
/// records that were never on the log.
pub fn verify(run: &Processes, folder: &Path) -> Result<Verdict, CommandError> {
    let records = history::records(run.plan)?;
    let mut verdict = Verdict::default();
    {
        let data = DataDir::open_beside(&run.data)?;
        let log: Arc<dyn EventLog> = match &run.log {
            Some(log) => Arc::new(log.place.open_kafka(log.kafka().ok_or("a log without an address")?)?),
            None => Arc::new(EmbeddedLog::open(data.log(), EmbeddedOptions::default())?),
        };
        let acknowledged = run.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, records) in &records {
            let acknowledged = acknowledged.get(at).copied().unwrap_or(0) as usize;
            count(log.as_ref(), at, records, acknowledged, &mut verdict)?;
        }
    }
    let (found, expected) = block_on_one_thread(async {
        let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await?;
        let expected = undisturbed(folder, records, run.plan.partitions, &plan).await?;
        let lake = folder_url(&run.data.join("lake"))?;
        Ok::<_, CommandError>((contents(&lake, &plan).await?, expected))
    })??;
    for (table, rows) in &expected {
        verdict.table_rows += rows.num_rows() as u64;
        let found = &found[table];
        let is_same = match (table.as_str(), &run.log) {
            // On Kafka, transaction markers take offsets.
            ("dead_letters", Some(_)) => without_offsets(found)? == without_offsets(rows)?,
            _ => found == rows,
        };
        if !is_same {
            let (found, rows) = (found.num_rows(), rows.num_rows());
            verdict.differences.push(format!("table {table} differs: {found} rows, undisturbed {rows}"));
        }
    }
    Ok(verdict)
}

/// Rows without the column `offset`, sorted.
fn without_offsets(rows: &RecordBatch) -> Result<Vec<OwnedRow>, CommandError> {
    let mut rows = rows.clone();
    rows.remove_column(rows.schema().index_of("offset")?);
    let fields = rows.schema().fields().iter().map(|f| SortField::new(f.data_type().clone())).collect();
    let converted = RowConverter::new(fields)?.convert_columns(rows.columns())?;
    let mut rows: Vec<OwnedRow> = converted.iter().map(|row| row.owned()).collect();
    rows.sort_unstable();
    Ok(rows)
}

/// Counts acknowledged records that a partition lacks, and records that it has more than once.
/// Records that pipelines append for misplaced ones are ignored.
fn count(
    log: &dyn EventLog,
    at: &TopicPartition,
    records: &[Record],
    acknowledged: usize,
    verdict: &mut Verdict,
) -> Result<(), CommandError> {
    let mut held: HashMap<&[u8], u64> = records.iter().map(|record| (&record.payload[..], 0)).collect();
    let mut cursor = Cursor::at_start(log, at.clone())?;
    loop {
        let read = cursor.read_on(log, READ_BYTES)?;
        if read.is_empty() {
            break;
        }
        for stored in &read {
            if let Some(times) = held.get_mut(&stored.record.payload[..]) {
                *times += 1;
            }
        }
    }
    verdict.acknowledged += acknowledged as u64;
    let is_lost = |record: &&Record| held[&record.payload[..]] == 0;
    verdict.lost += records[..acknowledged].iter().filter(is_lost).count() as u64;
    verdict.duplicated += held.values().map(|times| times.saturating_sub(1)).sum::<u64>();
    Ok(())
}

async fn undisturbed(
    folder: &Path,
    records: Records,
    partitions: u32,
    plan: &Plan,
) -> Result<TableContents, CommandError> {
    let data = DataDir::open(folder)?;
    let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(data.log(), EmbeddedOptions::default())?);
    for topic in SchemaId::ALL.map(SchemaId::topic) {
        log.create_topic(topic, TopicConfig { partitions, retain_ms: None, retain_bytes: None })?;
    }
    for (at, records) in records {
        let producer = Producer { source: "undisturbed".into(), epoch: 0 };
        log.append(&at, Batch { producer, first_seq: 0, records })?;
    }
    let url = folder_url(&data.lake())?;
    let lake = Lake::open(&url, plan.clone(), Limits::default(), Sharing::Exclusive).await?;
    Runner::start_exclusive(log, lake, Pace::default()).await?.catch_up(&mut |_| {}).await?;
    contents(&url, plan).await
}

async fn contents(lake: &Url, plan: &Plan) -> Result<TableContents, CommandError> {
    Ok(read_tables(&committed_catalog(lake, plan, Limits::default()).await?).await?)
}

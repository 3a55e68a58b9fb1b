//! What a run came to: every acknowledged record looked for, every table compared.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use tidegate_events::Event;
use tidegate_lake::exec::Limits;
use tidegate_lake::lake::{Lake, Sharing, committed_catalog};
use tidegate_lake::plan::Plan;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_lake::ways::{Contents, read_all};
use tidegate_log::{
    Batch, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};
use url::Url;

use super::history::{self, TOPIC};
use super::processes::Processes;
use crate::commands::{CommandError, block_on_one_thread, folder_url};

const READ_BYTES: usize = 8 << 20;

/// What came of a run.
#[derive(Debug, Default)]
pub struct Verdict {
    pub acknowledged: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub table_rows: u64,
    /// Tables that are not as they should be.
    pub differences: Vec<String>,
}

/// Looks at a finished run. The undisturbed tables are computed below `folder`, from records that were never on the log.
pub fn judge(run: &Processes, folder: &Path) -> Result<Verdict, CommandError> {
    let records = history::records(run.plan)?;
    let mut verdict = Verdict::default();
    {
        let data = DataDir::open_beside(&run.data)?;
        let log: Arc<dyn EventLog> = match &run.log {
            Some(log) => Arc::new(log.place.open_kafka(log.kafka().ok_or("a log without an address")?)?),
            None => Arc::new(EmbeddedLog::open(data.log(), EmbeddedOptions::default())?),
        };
        let acknowledged = run.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        for (partition, records) in (0..).zip(&records) {
            let acknowledged = acknowledged.get(&partition).copied().unwrap_or(0);
            count(log.as_ref(), partition, &records[..acknowledged as usize], &mut verdict)?;
        }
    }
    let (found, expected) = block_on_one_thread(async {
        let plan = Plan::compile(tidegate_lake::shipped::shipped()).await?;
        let expected = undisturbed(folder, records, &plan).await?;
        let lake = folder_url(&run.data.join("lake"))?;
        Ok::<_, CommandError>((contents(&lake, &plan).await?, expected))
    })??;
    for (table, rows) in &expected {
        verdict.table_rows += rows.num_rows() as u64;
        let found = &found[table];
        if found != rows {
            let (found, rows) = (found.num_rows(), rows.num_rows());
            verdict.differences.push(format!("table {table} differs: {found} rows, undisturbed {rows}"));
        }
    }
    Ok(verdict)
}

/// Counts acknowledged records that the partition does not hold, and records that it holds more than once.
fn count(
    log: &dyn EventLog,
    partition: u32,
    acknowledged: &[Record],
    verdict: &mut Verdict,
) -> Result<(), CommandError> {
    let at = TopicPartition { topic: TOPIC.into(), partition };
    let mut held: HashMap<u64, u64> = HashMap::new();
    let mut next = log.extent(&at)?.start;
    loop {
        let records = log.read(&at, next, READ_BYTES)?;
        let Some(last) = records.last() else { break };
        next = last.offset + 1;
        for stored in &records {
            *held.entry(number(&stored.record)?).or_default() += 1;
        }
    }
    verdict.acknowledged += acknowledged.len() as u64;
    for record in acknowledged {
        verdict.lost += u64::from(!held.contains_key(&number(record)?));
    }
    verdict.duplicated += held.values().map(|times| times - 1).sum::<u64>();
    Ok(())
}

/// The record's number in its partition.
fn number(record: &Record) -> Result<u64, CommandError> {
    let event = Event::decode(record.schema, &record.payload)?;
    Ok(event.envelope().ok_or("a record without an envelope")?.seq)
}

async fn undisturbed(
    folder: &Path,
    records: Vec<Vec<Record>>,
    plan: &Plan,
) -> Result<Contents, CommandError> {
    let data = DataDir::open(folder)?;
    let log: Arc<dyn EventLog> = Arc::new(EmbeddedLog::open(data.log(), EmbeddedOptions::default())?);
    let partitions = records.len() as u32;
    log.create_topic(TOPIC, TopicConfig { partitions, retain_ms: None, retain_bytes: None })?;
    for (partition, records) in (0..).zip(records) {
        let at = TopicPartition { topic: TOPIC.into(), partition };
        let producer = Producer { source: "undisturbed".into(), epoch: 0 };
        log.append(&at, Batch { producer, first_seq: 0, records })?;
    }
    let url = folder_url(&data.lake())?;
    let lake = Lake::open(&url, plan.clone(), Limits::default(), Sharing::Alone).await?;
    Runner::start_alone(log, lake, Pace::default()).await?.catch_up(&mut |_| {}).await?;
    contents(&url, plan).await
}

async fn contents(lake: &Url, plan: &Plan) -> Result<Contents, CommandError> {
    Ok(read_all(&committed_catalog(lake, plan, Limits::default()).await?).await?)
}

//! Who still needs the log: how far tables and snapshots have come, and which of them keeps the log
//! from dropping records.

use std::collections::BTreeMap;

use indicatif::HumanCount;
use serde::Serialize;
use tidegate_log::{EventLog, LogError, TopicPartition, snapshot};
use tidegate_workspace::SNAPSHOTS;

use super::{CommandError, DataDir, Row};

/// How far a reader of the log has come in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Reader {
    /// Consumer group, or reader of a snapshot.
    pub reader: String,
    pub topic: String,
    pub partition: u32,
    /// Offset of the next record that it needs.
    pub next: u64,
    /// Records behind the end of the log; of the tables, where the log cannot be asked.
    pub behind: u64,
    /// No other reader needs older records of this partition: the log drops nothing from here on,
    /// however old it is.
    pub holds: bool,
}

/// All readers, by partition. The log knows them; where another process has it, tables and
/// snapshots say how far they are.
pub(super) fn readers(
    log: Option<&dyn EventLog>,
    folder: &DataDir,
    rows: &[Row],
) -> Result<Vec<Reader>, CommandError> {
    let mut passed = match log {
        Some(log) => by_log(log, rows)?,
        None => by_files(folder, rows)?,
    };
    passed.retain(|_, readers| !readers.is_empty());
    let end = |at: &TopicPartition| {
        let row = rows.iter().find(|row| (&row.topic, row.partition) == (&at.topic, at.partition));
        row.map_or(0, |row| row.end.unwrap_or(row.tables))
    };
    let mut found = Vec::new();
    for (at, readers) in passed {
        let (least, end) = (readers.values().copied().min().unwrap_or(0), end(&at));
        found.extend(readers.into_iter().map(|(reader, next)| Reader {
            reader,
            topic: at.topic.clone(),
            partition: at.partition,
            next,
            behind: end.saturating_sub(next),
            holds: next == least && next < end,
        }));
    }
    Ok(found)
}

type Passed = BTreeMap<TopicPartition, BTreeMap<String, u64>>;

fn place(row: &Row) -> TopicPartition {
    TopicPartition { topic: row.topic.clone(), partition: row.partition }
}

fn by_log(log: &dyn EventLog, rows: &[Row]) -> Result<Passed, LogError> {
    let readers = |row: &Row| {
        let at = place(row);
        let readers = log.consumers(&at)?.into_iter().collect();
        Ok((at, readers))
    };
    rows.iter().map(readers).collect()
}

fn by_files(folder: &DataDir, rows: &[Row]) -> Result<Passed, CommandError> {
    let tables = |row: &Row| (place(row), BTreeMap::from([("tables".to_owned(), row.tables)]));
    let mut passed: Passed = rows.iter().map(tables).collect();
    for stored in snapshot::stored(&folder.path().join(SNAPSHOTS))? {
        for position in stored.positions {
            let readers = passed.entry(position.at()).or_default();
            // Of two snapshots the older one counts: the log must do for it too.
            let next = readers.entry(stored.reader.clone()).or_insert(position.next);
            *next = position.next.min(*next);
        }
    }
    Ok(passed)
}

/// Prints the readers that hold records back, the furthest behind first.
pub(super) fn print(readers: &[Reader]) {
    let mut holding: Vec<&Reader> = readers.iter().filter(|reader| reader.holds).collect();
    holding.sort_by_key(|reader| std::cmp::Reverse(reader.behind));
    if holding.is_empty() {
        return;
    }
    say!("\nThe log keeps these records, however old, until their reader has passed them:");
    say!("{:<14}{:>5}{:>14}{:>14}  READER", "TOPIC", "PART", "FROM", "RECORDS");
    for Reader { reader, topic, partition, next, behind, .. } in holding.into_iter().take(SHOWN) {
        let (from, records) = (HumanCount(*next).to_string(), HumanCount(*behind).to_string());
        say!("{topic:<14}{partition:>5}{from:>14}{records:>14}  {reader}");
    }
    say!("A reader that is gone for good lets go with `tidegate log release READER`.");
}

/// Rows that are printed; `--json` has all.
const SHOWN: usize = 12;

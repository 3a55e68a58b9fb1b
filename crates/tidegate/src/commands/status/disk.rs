//! What a site takes on disk, and what bounds each part of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use chrono::{DateTime, Utc};
use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;
use tidegate_lake::catalog::disk::disk_use;
use tidegate_lake::delta::TableDisk;
use tidegate_lake::pipeline::Plan;
use tidegate_log::{DataDir, EmbeddedLog, TopicDisk, noted_disk_use};

use super::lake_url;
use crate::commands::CommandError;

#[derive(Debug, Serialize)]
pub(super) struct SiteDisk {
    /// Everything in the data folder.
    bytes: u64,
    log: LogUse,
    tables: Vec<TableUse>,
    /// What else is in the data folder, by name.
    others: Vec<Other>,
}

#[derive(Debug, Serialize)]
struct LogUse {
    /// The folder of the embedded log. A log on Kafka is kept by its brokers.
    bytes: u64,
    /// When topics took what is said here, ms since the epoch; `None` if nobody said it yet.
    at_ms: Option<i64>,
    topics: Vec<TopicDisk>,
}

#[derive(Debug, Serialize)]
struct TableUse {
    table: String,
    live_bytes: u64,
    live_files: u64,
    dead_bytes: u64,
    dead_files: u64,
    delta_log_bytes: u64,
    delta_log_files: u64,
    /// How long rows stay; NULL if for ever.
    keep_rows: Option<String>,
    /// How long replaced files and versions of the Delta log stay; NULL before the first
    /// checkpoint.
    keep_replaced: Option<String>,
    keep_delta_log: Option<String>,
}

#[derive(Debug, Serialize)]
struct Other {
    name: String,
    bytes: u64,
    files: u64,
}

impl From<TableDisk> for TableUse {
    fn from(disk: TableDisk) -> Self {
        Self {
            table: disk.table,
            live_bytes: disk.live.bytes,
            live_files: disk.live.files,
            dead_bytes: disk.dead.bytes,
            dead_files: disk.dead.files,
            delta_log_bytes: disk.log.bytes,
            delta_log_files: disk.log.files,
            keep_rows: disk.keep_rows,
            keep_replaced: disk.keep_replaced,
            keep_delta_log: disk.keep_log,
        }
    }
}

impl SiteDisk {
    /// Looks through the data folder. `log` is the embedded log if this process has it open.
    pub(super) async fn read(
        folder: &DataDir,
        plan: &Plan,
        log: Option<&EmbeddedLog>,
    ) -> Result<Self, CommandError> {
        let tables: Vec<TableUse> =
            disk_use(&lake_url(folder)?, plan).await?.into_iter().map(TableUse::from).collect();
        let noted = match log {
            Some(log) => Some(log.disk_use(Utc::now().timestamp_millis())?),
            None => noted_disk_use(&folder.log()),
        };
        let known: BTreeSet<&str> = tables.iter().map(|table| table.table.as_str()).collect();
        let mut others = below(&folder.lake(), "lake/", |name| !known.contains(name));
        others.extend(below(folder.path(), "", |name| !["log", "lake"].contains(&name)));
        let (log_bytes, _) = size_of(&folder.log());
        let of_tables = |t: &TableUse| t.live_bytes + t.dead_bytes + t.delta_log_bytes;
        Ok(Self {
            bytes: log_bytes
                + tables.iter().map(of_tables).sum::<u64>()
                + others.iter().map(|other| other.bytes).sum::<u64>(),
            log: LogUse {
                bytes: log_bytes,
                at_ms: noted.as_ref().map(|noted| noted.at_ms),
                topics: noted.map(|noted| noted.topics).unwrap_or_default(),
            },
            tables,
            others,
        })
    }

    pub(super) fn print(&self) {
        say!("\ndisk     {}", bytes(self.bytes));
        self.print_log();
        let sum = |of: fn(&TableUse) -> u64| bytes(self.tables.iter().map(of).sum());
        say!(
            "\n{:<28}{:>12}{:>12}{:>12}{:>9}  KEPT: ROWS, REPLACED FILES, LOG",
            "TABLE",
            "LIVE",
            "DEAD",
            "DELTA LOG",
            "FILES"
        );
        for table in self.tables.iter().filter(|t| t.live_files + t.dead_files > 0) {
            let files = table.live_files + table.dead_files + table.delta_log_files;
            let kept = |keep: &Option<String>, without: &str| keep.clone().unwrap_or_else(|| without.into());
            say!(
                "{:<28}{:>12}{:>12}{:>12}{:>9}  {}, {}, {}",
                table.table,
                bytes(table.live_bytes),
                bytes(table.dead_bytes),
                bytes(table.delta_log_bytes),
                HumanCount(files).to_string(),
                kept(&table.keep_rows, "for ever"),
                kept(&table.keep_replaced, "?"),
                kept(&table.keep_delta_log, "?"),
            );
        }
        let (live, dead) = (sum(|t| t.live_bytes), sum(|t| t.dead_bytes));
        say!("{:<28}{live:>12}{dead:>12}{:>12}", "all tables", sum(|t| t.delta_log_bytes));
        for other in &self.others {
            say!("{:<28}{:>12}", other.name, bytes(other.bytes));
        }
        say!(
            "\n--keep TABLE=DAYS bounds rows, --keep-replaced HOURS dead files, --keep-delta-log HOURS logs; \
             the retention of a topic bounds the event log."
        );
    }

    fn print_log(&self) {
        let LogUse { bytes: all, at_ms, topics } = &self.log;
        let time = at_ms.and_then(DateTime::from_timestamp_millis);
        let time = time.map_or_else(String::new, |time| format!(" ({} UTC)", time.format("%F %T")));
        say!("\n{:<28}{:>12}{:>16}  KEPT{time}", "TOPIC", "BYTES", "RECORDS");
        for topic in topics.iter().filter(|topic| topic.records > 0) {
            let days = topic.retain_ms.map(|ms| format!("{} days", ms / 86_400_000));
            let size = topic.retain_bytes.map(|size| format!("{} a partition", bytes(size)));
            let kept: Vec<String> = days.into_iter().chain(size).collect();
            let kept = if kept.is_empty() { "for ever".into() } else { kept.join(", ") };
            let records = HumanCount(topic.records).to_string();
            say!("{:<28}{:>12}{records:>16}  {kept}", topic.topic, bytes(topic.bytes));
        }
        say!("{:<28}{:>12}", "whole log, with its journal", bytes(*all));
    }
}

fn bytes(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

/// What the wanted folders and files directly below a folder take, in order of their names.
fn below(folder: &Path, prefix: &str, is_wanted: impl Fn(&str) -> bool) -> Vec<Other> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut others = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_wanted(&name) {
            let (bytes, files) = size_of(&entry.path());
            others.push(Other { name: format!("{prefix}{name}"), bytes, files });
        }
    }
    others.sort_by(|a, b| a.name.cmp(&b.name));
    others
}

/// Bytes and number of the files at or below a path. What vanishes meanwhile does not count.
fn size_of(path: &Path) -> (u64, u64) {
    let (mut bytes, mut files, mut open) = (0, 0, vec![path.to_path_buf()]);
    while let Some(path) = open.pop() {
        match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => {
                open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
            }
            Ok(meta) => (bytes, files) = (bytes + meta.len(), files + 1),
            Err(_) => {}
        }
    }
    (bytes, files)
}

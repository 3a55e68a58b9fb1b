//! What an import is told beside its mapping.

use chrono::DateTime;
use chrono_tz::Tz;
use tidegate_log::TopicConfig;

use crate::fleet::Fleet;
use crate::mapping::Mapping;
use crate::time::TimeReader;

/// Options beside the mapping.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Cluster of all rows; overrides the file.
    pub cluster: Option<String>,
    /// Time zone of wall times; overrides the mapping.
    pub timezone: Option<Tz>,
    /// Layout of topics that the log lacks.
    pub topics: TopicConfig,
    /// Nodes declared for a history without node events.
    pub fleet: Fleet,
    /// How the file is read.
    pub format: FileFormat,
    /// Time that a row of samples stands for, ms; overrides the mapping.
    pub interval_ms: Option<u64>,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FileFormat {
    /// A table: CSV, CSV.gz or Parquet.
    #[default]
    Table,
    /// Pages of a dcgm-exporter as text, each after a comment with its time. They are rows as
    /// `dcgm_long` maps them.
    DcgmText,
}

impl Default for ImportOptions {
    fn default() -> Self {
        let topics = TopicConfig { partitions: 8, retain_ms: None, retain_bytes: None };
        Self {
            cluster: None,
            timezone: None,
            topics,
            fleet: Fleet::default(),
            format: FileFormat::Table,
            interval_ms: None,
        }
    }
}

/// The reader of the times of a mapping.
pub(crate) fn time_reader(mapping: &Mapping, options: &ImportOptions) -> TimeReader {
    TimeReader::new(zone(mapping, options), base_ms(mapping))
}

/// Zone and base were validated when the mapping was loaded.
fn zone(mapping: &Mapping, options: &ImportOptions) -> Tz {
    let stated = mapping.time.zone.as_ref().and_then(|zone| zone.parse().ok());
    options.timezone.or(stated).unwrap_or(Tz::UTC)
}

fn base_ms(mapping: &Mapping) -> i64 {
    let base = mapping.time.base.as_ref().and_then(|base| DateTime::parse_from_rfc3339(base).ok());
    base.map_or(0, |base| base.timestamp_millis())
}

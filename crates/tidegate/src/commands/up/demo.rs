//! The demo: replays a bundled real trace into the log, in order of event time and faster.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use tidegate_events::{Event, SchemaId};
use tidegate_import::{ImportOptions, Mapping, Source};
use tidegate_lake::pipeline::parse_duration_ms;
use tidegate_log::{Batch, EventLog, LogError, Producer, Record, TopicPartition, partition_for};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::commands::CommandError;
use crate::commands::import::{one_partition, to_events};

/// Default duration of a replay.
const DEFAULT_LENGTH: Duration = Duration::from_secs(25);
const MOST_PER_BATCH: usize = 4096;
const TICK: Duration = Duration::from_millis(20);

/// What `--demo` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A simulated site with a past, whose present goes on
    Cluster,
    /// Three months of a real trace of jobs, replayed
    Philly,
}

/// A bundled trace. Sources and licences: demo/ATTRIBUTION.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Trace {
    /// Microsoft Philly 2017: jobs of 4 and more GPUs with every attempt (CC BY 4.0)
    PhillyMultigpuAttempts,
    /// Microsoft ITP 2021: two clusters (MIT)
    MsItpJobs,
}

impl Trace {
    /// Name of the trace and of its import mapping.
    pub fn name(self) -> &'static str {
        match self {
            Self::PhillyMultigpuAttempts => "philly_multigpu_attempts",
            Self::MsItpJobs => "ms_itp_jobs",
        }
    }

    /// Its Parquet file.
    pub fn parquet(self) -> &'static [u8] {
        match self {
            Self::PhillyMultigpuAttempts => include_bytes!("../../../demo/philly_multigpu_attempts.parquet"),
            Self::MsItpJobs => include_bytes!("../../../demo/ms_itp_jobs.parquet"),
        }
    }
}

/// Writes the traces of the simulated cluster into a folder, under their published names.
pub fn bundle(folder: &Path) -> std::io::Result<()> {
    let jobs = Trace::MsItpJobs;
    std::fs::write(folder.join(format!("{}.parquet", jobs.name())), jobs.parquet())?;
    let demand = include_bytes!("../../../demo/servegen_load_10min.parquet");
    std::fs::write(folder.join("servegen_load_10min.parquet"), demand)
}

/// Simulated time per real time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// As fast as the log accepts.
    Max,
    /// Simulated ms per real second.
    MsPerSecond(i64),
}

impl Speed {
    /// Parses `6h/s`, `1d` (also per second) or `max`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let ms = parse_duration_ms(text.trim_end_matches("/s")).map_err(|_| {
            format!("{text:?} is not a speed; write simulated time per second, e.g. 6h/s or 1d/s, or max")
        })?;
        if ms == 0 {
            return Err("at this speed the replay would never end".into());
        }
        Ok(Self::MsPerSecond(ms))
    }

    /// Simulated ms that pass in a real duration.
    pub fn covers_ms(self, real: Duration) -> i64 {
        match self {
            Self::Max => i64::MAX,
            Self::MsPerSecond(ms) => i64::try_from(real.as_millis() * ms as u128 / 1000).unwrap_or(i64::MAX),
        }
    }
}

/// The records of a trace in order of event time, ready to be appended.
pub struct Demo {
    trace: Trace,
    records: Vec<Record>,
}

/// Records of one log partition, and how many of them the log has.
struct Lane {
    at: TopicPartition,
    records: Vec<Record>,
    next: usize,
}

impl Demo {
    /// Converts the bundled file into events, like `tidegate import`.
    pub fn load(trace: Trace) -> Result<Self, CommandError> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join(format!("{}.parquet", trace.name()));
        std::fs::write(&file, trace.parquet())?;
        let options = ImportOptions { topics: one_partition(), ..ImportOptions::default() };
        let (mut events, _) = to_events(Source::File(file), &Mapping::load(trace.name())?, &options)?;
        // The row of every attempt repeats the submission of its job.
        let mut seen = HashSet::new();
        events.retain(|event| seen.insert(event.content_id()));
        events.sort_by_key(Event::event_time_ms);
        let records = events.into_iter().enumerate().map(|(seq, event)| record(trace, seq as u64, event));
        Ok(Self { trace, records: records.collect::<Result<_, _>>()? })
    }

    /// Event times of the first and the last record, ms since the epoch.
    pub fn span_ms(&self) -> (i64, i64) {
        let time = |record: Option<&Record>| record.map_or(0, |r| r.event_time_ms);
        (time(self.records.first()), time(self.records.last()))
    }

    /// The speed at which the whole trace takes [`DEFAULT_LENGTH`].
    pub fn default_speed(&self) -> Speed {
        let (first, last) = self.span_ms();
        Speed::MsPerSecond(((last - first) / DEFAULT_LENGTH.as_secs() as i64).max(1))
    }

    /// Appends missing records, each when its time has come. Returns `false` if stopped before the
    /// end.
    pub async fn replay(
        &self,
        log: &dyn EventLog,
        speed: Speed,
        mut stop: watch::Receiver<bool>,
    ) -> Result<bool, CommandError> {
        let mut lanes = self.lanes(log)?;
        let next_ms = |lanes: &[Lane]| {
            lanes.iter().filter_map(|lane| Some(lane.records.get(lane.next)?.event_time_ms)).min()
        };
        let Some(begin_ms) = next_ms(&lanes) else { return Ok(true) };
        let begun = Instant::now();
        while let Some(next_ms) = next_ms(&lanes) {
            if *stop.borrow_and_update() {
                return Ok(false);
            }
            let now_ms = begin_ms.saturating_add(speed.covers_ms(begun.elapsed()));
            if next_ms > now_ms {
                tokio::select! {
                    () = tokio::time::sleep(TICK) => {}
                    _ = stop.changed() => {}
                }
                continue;
            }
            for lane in &mut lanes {
                let due = lane.records[lane.next..].partition_point(|r| r.event_time_ms <= now_ms);
                if due > 0 {
                    let end = lane.next + due.min(MOST_PER_BATCH);
                    tokio::task::block_in_place(|| self.append(log, lane, lane.next..end))?;
                    lane.next = end;
                }
            }
        }
        Ok(true)
    }

    /// Splits the records by log partition, each at the position that the log has reached.
    fn lanes(&self, log: &dyn EventLog) -> Result<Vec<Lane>, LogError> {
        let topic = SchemaId::JobEvent.topic();
        let partitions =
            log.topics()?.iter().find(|(name, _)| name == topic).map_or(1, |(_, config)| config.partitions);
        let lane = |partition| {
            let here = |record: &&Record| partition_for(&record.key, partitions) == partition;
            let at = TopicPartition { topic: topic.into(), partition };
            Lane { at, records: self.records.iter().filter(here).cloned().collect(), next: 0 }
        };
        let mut lanes: Vec<Lane> = (0..partitions).map(lane).collect();
        for lane in &mut lanes {
            lane.next = self.resume_at(log, lane)?;
        }
        Ok(lanes)
    }

    /// Index of the first record that the log lacks.
    ///
    /// Offered the last record, the log reports a duplicate or the sequence number that it expects.
    fn resume_at(&self, log: &dyn EventLog, lane: &Lane) -> Result<usize, LogError> {
        let Some(last) = lane.records.len().checked_sub(1) else { return Ok(0) };
        match self.append(log, lane, last..lane.records.len()) {
            Ok(()) => Ok(lane.records.len()),
            Err(LogError::SequenceGap { expected, .. }) => Ok(expected as usize),
            Err(e) => Err(e),
        }
    }

    fn append(&self, log: &dyn EventLog, lane: &Lane, range: std::ops::Range<usize>) -> Result<(), LogError> {
        let producer = Producer { source: source(self.trace), epoch: 0 };
        let batch = Batch { producer, first_seq: range.start as u64, records: lane.records[range].to_vec() };
        log.append(&lane.at, batch).map(|_| ())
    }
}

fn source(trace: Trace) -> String {
    format!("demo/{}", trace.name())
}

/// Stamps an event as the demo's. Its content, and so its id, stays the same.
fn record(trace: Trace, seq: u64, mut event: Event) -> Result<Record, CommandError> {
    let envelope = event.envelope_mut();
    envelope.source = source(trace);
    envelope.epoch = 0;
    envelope.seq = seq;
    Ok(event.record()?.into())
}

#[cfg(test)]
mod tests {
    use tidegate_log::{EmbeddedLog, TopicConfig};

    use super::*;

    #[test]
    fn speeds_are_simulated_time_per_second() {
        assert_eq!(Speed::parse("max"), Ok(Speed::Max));
        assert_eq!(Speed::parse("1d/s"), Ok(Speed::MsPerSecond(86_400_000)));
        assert_eq!(Speed::parse("6h"), Speed::parse("360m/s"));
        assert_eq!(Speed::parse("1d/s").unwrap().covers_ms(Duration::from_millis(500)), 43_200_000);
        for wrong in ["", "fast", "0s", "1d/h", "-1d"] {
            assert!(Speed::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn traces_are_replayed_in_order_of_time_and_once() {
        for trace in Trace::value_variants() {
            assert_eq!(trace.to_possible_value().unwrap().get_name(), trace.name());
            let demo = Demo::load(*trace).unwrap();
            assert!(demo.records.is_sorted_by_key(|r| r.event_time_ms));
            let ids: HashSet<_> = demo
                .records
                .iter()
                .map(|r| Event::decode(r.schema, &r.payload).unwrap().content_id())
                .collect();
            assert_eq!(ids.len(), demo.records.len());
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn goes_on_where_it_was_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(folder.path(), Default::default()).unwrap();
        let demo = Demo::load(Trace::PhillyMultigpuAttempts).unwrap();
        log.create_topic("jobs", TopicConfig { partitions: 3, ..one_partition() }).unwrap();
        let (_stop, stopped) = watch::channel(false);
        for already in [1, 100, 1000] {
            let lane = &demo.lanes(&log).unwrap()[1];
            demo.append(&log, lane, lane.next..already).unwrap();
            assert_eq!(demo.lanes(&log).unwrap()[1].next, already);
        }
        assert!(demo.replay(&log, Speed::Max, stopped).await.unwrap());
        let lanes = demo.lanes(&log).unwrap();
        assert_eq!(lanes.iter().map(|lane| lane.records.len()).sum::<usize>(), demo.records.len());
        for lane in lanes {
            assert_eq!(log.extent(&lane.at).unwrap().end, lane.records.len() as u64);
            assert_eq!(lane.next, lane.records.len());
        }
    }
}

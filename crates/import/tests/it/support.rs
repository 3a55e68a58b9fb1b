//! Imports into a log in memory, and what they wrote.

use std::collections::HashMap;
use std::path::PathBuf;

use tidegate_events::{Event, v1};
use tidegate_import::{ImportError, ImportOptions, ImportSummary, Mapping, Source, import};
pub use tidegate_testing::MemoryLog;
use tidegate_testing::needs;

/// What an import has written.
pub trait Imported {
    /// Job events without the heartbeats, by time, then kind.
    fn jobs(&self) -> Vec<v1::JobEvent>;

    /// Dead letters by line.
    fn dead_letters(&self) -> Vec<v1::DeadLetter>;
}

impl Imported for MemoryLog {
    fn jobs(&self) -> Vec<v1::JobEvent> {
        let mut jobs: Vec<_> = self
            .events("jobs")
            .into_iter()
            .filter_map(|event| match event {
                Event::Job(job) if job.kind() != v1::JobEventKind::Observed => Some(job),
                _ => None,
            })
            .collect();
        jobs.sort_by_key(|job| (job.envelope.as_ref().unwrap().event_time_ms, job.kind));
        jobs
    }

    fn dead_letters(&self) -> Vec<v1::DeadLetter> {
        let letters = self.events("dead-letters").into_iter().map(|event| match event {
            Event::DeadLetter(letter) => letter,
            other => panic!("not a dead letter: {other:?}"),
        });
        let mut letters: Vec<_> = letters.collect();
        letters.sort_by_key(|letter| letter.line);
        letters
    }
}

/// A text as a source.
pub fn text(name: &str, content: impl Into<Vec<u8>>) -> Source {
    Source::Reader { name: name.into(), reader: Box::new(std::io::Cursor::new(content.into())) }
}

/// Imports into a new log with default options.
pub fn run(source: Source, mapping: &Mapping) -> Result<(MemoryLog, ImportSummary), ImportError> {
    let log = MemoryLog::default();
    let summary = import(source, mapping, &ImportOptions::default(), &log, &mut |_| {})?;
    Ok((log, summary))
}

/// GPU time of STARTED..ENDED pairs in GPU × ms, without steps.
pub fn gpu_ms(jobs: &[v1::JobEvent]) -> i128 {
    let mut starts = HashMap::new();
    let mut total = 0;
    for job in jobs.iter().filter(|job| job.step_id.is_none()) {
        let time_ms = job.envelope.as_ref().unwrap().event_time_ms;
        let attempt = (job.envelope.as_ref().unwrap().cluster.clone(), job.job_id.clone(), job.attempt_id);
        match job.kind() {
            v1::JobEventKind::Started => {
                starts.insert(attempt, (time_ms, job.gpus_milli.unwrap_or(0)));
            }
            v1::JobEventKind::Ended if job.attempt_id.is_some() => {
                let (start_ms, gpus_milli) = starts.remove(&attempt).expect("an end follows its start");
                total += i128::from(gpus_milli) * i128::from(time_ms - start_ms) / 1000;
            }
            _ => {}
        }
    }
    total
}

/// A file of the public traces, if they are next to the repository; otherwise the test is skipped.
pub fn trace(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TIDEGATE_SHARED_DATA")
        .map_or_else(|| PathBuf::from("../../../shared/data"), PathBuf::from);
    let path = Some(folder.join(name)).filter(|path| path.exists());
    if path.is_none() {
        needs::note(&format!("the public trace {name} is not in TIDEGATE_SHARED_DATA"));
    }
    path
}

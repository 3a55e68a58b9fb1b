//! Appends events of whole hours, and dead letters of what is no sample.

use std::collections::BTreeMap;

use tidegate_events::SchemaId;
use tidegate_log::{EventLog, TopicConfig};

use super::held::{HOUR_MS, HeldSamples};
use super::readings::events;
use crate::error::{ImportError, Reject};
use crate::outbox::{Outbox, Place};

const DAY_MS: i64 = 24 * HOUR_MS;

/// Writes hours of samples, in order of time.
pub(crate) struct SampleWriter<'a> {
    out: Outbox<'a>,
    day: Option<i64>,
    /// Readings written, and time of the first and the last of each cluster.
    pub readings: u64,
    pub clusters: BTreeMap<String, (i64, i64)>,
    /// Dead letters, by code.
    pub rejected: BTreeMap<&'static str, u64>,
}

impl<'a> SampleWriter<'a> {
    pub(crate) fn new(log: &'a dyn EventLog, name: &str, topics: TopicConfig) -> Result<Self, ImportError> {
        let mut out = Outbox::new(log, name, topics);
        for schema in [SchemaId::GpuSampleBatch, SchemaId::NodeEvent, SchemaId::DeadLetter] {
            out.prepare(schema)?;
        }
        let (clusters, rejected) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { out, day: None, readings: 0, clusters, rejected })
    }

    /// Takes an hour out of what is held and writes it. `interval_ms`: what each sample stands for.
    /// With `goes_on`, counters grow from the tick one interval before the hour, if it is held.
    pub(crate) fn hour(
        &mut self,
        held: &mut HeldSamples,
        hour_ms: i64,
        interval_ms: i64,
        goes_on: bool,
    ) -> Result<(), ImportError> {
        let interval_us = interval_ms.saturating_mul(1_000);
        // A chunk ends with its day, so that the whole days of two imports are the same chunks.
        if self.day.replace(hour_ms.div_euclid(DAY_MS)).is_some_and(|day| day != hour_ms.div_euclid(DAY_MS)) {
            self.out.flush_all()?;
        }
        let names: Vec<_> = held.hour(hour_ms).into_iter().flat_map(|nodes| nodes.keys().cloned()).collect();
        for name in names {
            let earlier = held.hour(hour_ms - HOUR_MS).and_then(|nodes| nodes.get_mut(&name));
            let mut before = match earlier {
                Some(node) if goes_on => node.readings(interval_us),
                _ => Vec::new(),
            };
            before.retain(|reading| reading.tick_ms == hour_ms - interval_ms);
            let node = held.hour(hour_ms).and_then(|nodes| nodes.get_mut(&name));
            let readings = node.map(|node| node.readings(interval_us)).unwrap_or_default();
            self.readings += readings.len() as u64;
            for reading in &readings {
                let span = self.clusters.entry(name.0.clone()).or_insert((reading.tick_ms, reading.tick_ms));
                *span = (span.0.min(reading.tick_ms), span.1.max(reading.tick_ms));
            }
            for mut event in events(&name, &before, readings, interval_ms) {
                if let Err(reject) = self.out.add(&mut event) {
                    self.out.drop_row();
                    let (cluster, origin) = (name.0.as_str(), name.1.as_str());
                    let at_ms = event.event_time_ms();
                    self.reject(reject, Place { cluster, origin, line: None, at_ms, raw: Vec::new() })?;
                }
                self.out.accept_row()?;
            }
        }
        held.take(if goes_on { hour_ms - HOUR_MS } else { hour_ms });
        Ok(())
    }

    /// Writes a dead letter.
    pub(crate) fn reject(&mut self, reject: Reject, place: Place<'_>) -> Result<(), ImportError> {
        *self.rejected.entry(reject.code.as_str()).or_default() += 1;
        self.out.dead_letter(reject, place)
    }

    /// Appends what is left; returns the events written, and those that the log had.
    pub(crate) fn finish(&mut self) -> Result<(u64, u64), ImportError> {
        self.out.flush_all()?;
        Ok((self.out.written, self.out.already_present))
    }
}

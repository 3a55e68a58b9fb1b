//! Readings of every device each second, batched by the agent's own code.

use std::collections::BTreeMap;

use tidegate_collect::agent::SampleBatcher;
use tidegate_events::Event;
use tidegate_events::v1::GpuSampleBatch;

use super::{Damage, Emitted, Emitter, SourcedEvent, agent};
use crate::bench::ledger::day::{Day, Incident};
use crate::bench::ledger::fleet::Span;
use crate::bench::ledger::readings::Watched;
use tidegate_demo::draw::Draw;
use tidegate_workspace::CommandError;

const TICK_MS: i64 = 1_000;
/// Span of a batch.
const BATCH_MS: i64 = 10_000;
/// Largest delay of a late batch.
const LATEST_MS: i64 = 3_600_000;

/// The agent of a node.
struct Feed<'a> {
    node: usize,
    next_ms: i64,
    devices: Vec<Watched<'a>>,
    batches: SampleBatcher,
    /// Completed batches over all its lives.
    completed: u64,
    /// When it neither reads nor sends.
    away: Vec<Span>,
}

pub(super) fn emit(
    day: &Day,
    damage: Damage,
    emitter: &mut Emitter<'_>,
    emitted: &mut Emitted,
) -> Result<(), CommandError> {
    let mut feeds: Vec<Feed<'_>> = (0..day.fleet.nodes.len()).map(|node| Feed::new(day, node)).collect();
    let draw = day.draw.of(9);
    emitted.unseen = (0..feeds.len()).map(|node| day.unseen(node).collect()).collect();
    let mut late: BTreeMap<(i64, usize, u64), Event> = BTreeMap::new();
    let mut until_ms = day.span.from_ms;
    while until_ms < day.span.to_ms {
        until_ms = (until_ms + BATCH_MS).min(day.span.to_ms);
        for feed in &mut feeds {
            for batch in feed.read_until(day, until_ms) {
                feed.completed += 1;
                let chance = draw.of(feed.node as u64).of(feed.completed);
                if chance.of(1).is_ppm(damage.missing_ppm) {
                    emitted.missing_batches += 1;
                    emitted.unseen[feed.node].push(spoken_of(&batch));
                    continue;
                }
                emitted.note(&batch);
                let event = emitter.seal(said(day, feed.node, batch));
                if chance.of(2).is_ppm(damage.duplicate_ppm) {
                    emitted.duplicate_batches += 1;
                    emitter.append(event.clone())?;
                }
                if chance.of(3).is_ppm(damage.late_ppm) {
                    emitted.late_batches += 1;
                    let due_ms = until_ms + chance.of(4).whole(BATCH_MS, LATEST_MS);
                    late.insert((due_ms, feed.node, feed.completed), event);
                } else {
                    emitter.append(event)?;
                }
            }
        }
        while let Some(due) = late.first_entry().filter(|due| due.key().0 <= until_ms) {
            emitter.append(due.remove())?;
        }
    }
    late.into_values().try_for_each(|event| emitter.append(event))
}

fn said(day: &Day, node: usize, mut batch: GpuSampleBatch) -> SourcedEvent {
    batch.node.clone_from(&day.fleet.nodes[node].name);
    let last_ms = batch.first_tick_ms + batch.tick_delta_ms.iter().sum::<i64>();
    SourcedEvent { source: agent(day, node), at_ms: last_ms, event: Event::GpuSamples(batch) }
}

/// Time covered by a batch.
fn spoken_of(batch: &GpuSampleBatch) -> Span {
    let to_ms = batch.first_tick_ms + batch.tick_delta_ms.iter().sum::<i64>();
    Span { from_ms: batch.first_tick_ms - TICK_MS, to_ms }
}

impl Emitted {
    fn note(&mut self, batch: &GpuSampleBatch) {
        let ticks = batch.tick_delta_ms.len() + 1;
        self.batches += 1;
        self.samples += (batch.devices.len() * ticks) as u64;
        // An interval is never 0; 0 means that nothing could be read.
        let Some(interval) = batch.columns.iter().find(|column| column.name == "interval_us") else { return };
        for device in interval.value_delta.chunks(ticks) {
            self.us_sampled += device
                .iter()
                .scan(0, |value, delta| {
                    *value += delta;
                    Some(*value)
                })
                .sum::<i64>();
        }
        for missing in &interval.missing {
            let range = missing.first as usize..(missing.first + missing.count) as usize;
            let value_at = |at: usize| interval.value_delta[at / ticks * ticks..=at].iter().sum::<i64>();
            self.us_sampled -= range.map(value_at).sum::<i64>();
        }
    }
}

impl<'a> Feed<'a> {
    fn new(day: &'a Day, node: usize) -> Self {
        let it = &day.fleet.nodes[node];
        let away = |what: Incident| what == Incident::Down(node) || what == Incident::Silent(node);
        let devices = (0..it.gpus.len()).flat_map(|gpu| Watched::all_of(day, node, gpu)).collect();
        Self {
            node,
            next_ms: it.registered.from_ms + it.phase_ms,
            devices,
            batches: SampleBatcher::new(BATCH_MS),
            completed: 0,
            away: day.conditions.iter().filter(|c| away(c.what)).map(|c| c.span).collect(),
        }
    }

    /// Reads until a time; returns completed batches.
    fn read_until(&mut self, day: &Day, until_ms: i64) -> Vec<GpuSampleBatch> {
        let mut completed = Vec::new();
        let there = day.fleet.nodes[self.node].registered;
        while self.next_ms < until_ms.min(there.to_ms) {
            let tick_ms = self.next_ms;
            self.next_ms += TICK_MS;
            if self.away.iter().any(|span| span.contains(tick_ms)) {
                completed.extend(self.begin_anew());
                self.devices.iter_mut().for_each(|device| device.skip_to(tick_ms));
                continue;
            }
            let noise = Draw::new(tick_ms.unsigned_abs());
            for device in &mut self.devices {
                completed.extend(self.batches.add(device.read(tick_ms, TICK_MS, noise)));
            }
        }
        if until_ms >= there.to_ms.min(day.span.to_ms) {
            completed.extend(self.batches.close());
        }
        completed
    }

    /// Flushes the open batch; counters start without a predecessor.
    fn begin_anew(&mut self) -> Vec<GpuSampleBatch> {
        let completed = self.batches.close();
        if !completed.is_empty() {
            self.batches = SampleBatcher::new(BATCH_MS);
        }
        completed
    }
}

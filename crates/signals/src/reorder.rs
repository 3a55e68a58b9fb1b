//! Event-time reordering: events in any order in, publications in order of event time out.
//!
//! An event waits in a buffer until the watermark passes it, and is then applied to the detectors
//! in order of event time. Between events a clock ticks every ten seconds of event time. So neither
//! the interleaving of partitions nor the pace of the watermark changes the output. An event that
//! comes after the watermark has passed it is applied at once, and affects only later output.
//!
//! Step reports alone do not wait for the watermark ([`bypass`]).

mod buffer;
mod bypass;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, Micros, Millis};
use tidegate_log::poison::{Place, die_for_test};

use crate::budget::{MemoryUse, Shares};
use crate::detectors::{Detectors, JobKey};
use crate::device::WINDOW_US;
use crate::input::Input;
use crate::publication::Publication;
use crate::watch::Watch;
use buffer::Buffer;

/// Interval of the clock, µs: device windows close and detectors move on.
const TICK_US: i64 = WINDOW_US;
/// An event further ahead of the time it was observed at is rejected, as the tables do.
const MAX_FUTURE_MS: i64 = 86_400_000;
/// The years 1970 to 9999, ms.
const VALID_TIMES_MS: std::ops::Range<i64> = 0..253_402_300_800_000;
/// Events with a longer name of a cluster, job or node are rejected.
const MAX_NAME_BYTES: usize = 256;

/// Events by outcome. None is dropped without being counted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events applied.
    pub used: u64,
    /// Of these, events that came after the watermark had passed them.
    pub late: u64,
    /// Events with an impossible time or too long a name.
    pub rejected: u64,
}

/// Reorder buffer, clock and detectors. Knows neither the log it is fed from nor the log its output
/// goes to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Reorder {
    buffer: Buffer,
    /// The last tick: everything up to it was applied.
    tick_us: Option<i64>,
    detectors: Detectors,
    #[serde(skip)]
    counts: Counts,
    /// Waiting events that were dropped over the limit of memory.
    #[serde(skip)]
    refused_waiting: u64,
    /// Events of jobs, nodes and prices that were applied before their turn over the limit.
    #[serde(skip)]
    early: u64,
    #[serde(skip)]
    watch: Watch,
}

impl Reorder {
    /// Forecasts learn from hours that begin at `learn_from_us` or later.
    pub fn new(learn_from_us: i64) -> Self {
        Self {
            buffer: Buffer::default(),
            tick_us: None,
            detectors: Detectors::new(learn_from_us),
            counts: Counts::default(),
            refused_waiting: 0,
            early: 0,
            watch: Watch::default(),
        }
    }

    /// Notes what is worked on from now on.
    pub fn watched_by(&mut self, watch: Watch) {
        self.watch = watch;
    }

    /// Sets the limit of memory, bytes.
    pub fn limit_memory(&mut self, bytes: usize) {
        self.detectors.limit_memory(bytes);
    }

    /// Memory that the state takes, and what was left out for its sake.
    pub fn memory(&self) -> MemoryUse {
        let state = self.detectors.memory();
        MemoryUse {
            held_bytes: state.held_bytes + self.buffer.bytes() as u64,
            waiting_bytes: self.buffer.bytes() as u64,
            early: self.early,
            refused: state.refused + self.refused_waiting,
            ..state
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sets from when on forecasts learn, for clusters that no event was seen of yet.
    pub fn learn_from(&mut self, from_us: i64) {
        self.detectors.learn_from(from_us);
    }

    /// Buffers an event. Returns how far it shows that time has come, µs since 1970: its place in
    /// event time, and never more than when it was observed, because anybody can date a report
    /// ahead. `None` if it shows nothing: no detector uses it, or it may apply to a time yet to
    /// come, as a price does. `now_ms` is the caller's clock.
    pub fn push(&mut self, event: Event, now_ms: i64) -> Option<i64> {
        let envelope = event.envelope()?;
        let id = envelope.event_id.first_chunk().map_or(0, |id| u128::from_be_bytes(*id));
        let (cluster, observed_ms) = (envelope.cluster.clone(), envelope.observed_time_ms);
        let event_ms = event.event_time_ms();
        let name_bytes = cluster.len().max(event.key().len() - cluster.len());
        let (order, at_us, input) = Input::from_event(event)?;
        let at_ms = Micros(at_us).floor_millis().0;
        let observed_ms = if observed_ms > 0 { observed_ms.min(now_ms) } else { now_ms };
        let is_valid = VALID_TIMES_MS.contains(&at_ms) && VALID_TIMES_MS.contains(&event_ms);
        let is_future = at_ms.saturating_sub(observed_ms) > MAX_FUTURE_MS;
        let advances_time = input.advances_time();
        if !is_valid || is_future && advances_time || name_bytes > MAX_NAME_BYTES {
            self.counts.rejected += 1;
            return None;
        }
        self.buffer.insert((at_us, order, id), cluster, input);
        self.refused_waiting +=
            self.buffer.shrink_streams(Shares::of(self.detectors.memory().limit_bytes).streams);
        // An observation of a millisecond vouches for all of it.
        let observed_us = Millis(observed_ms.saturating_add(1)).to_micros().0 - 1;
        advances_time.then_some(at_us.min(observed_us))
    }

    /// Whether state and waiting events take more than the limit: reading more has to wait until
    /// [`make_room`](Self::make_room) has made some.
    pub fn is_full(&self) -> bool {
        let memory = self.memory();
        memory.held_bytes > memory.limit_bytes && self.buffer.has_history()
    }

    /// Applies the oldest events, though older ones may still come, until an eighth of the limit is
    /// free; none later than `until_us`. First, events dated after `newest_us` are dropped, which
    /// nothing has shown to be the present: they would take the clock with them. Once everything up
    /// to `newest_us` is applied, so are prices for times yet to come.
    pub fn make_room(&mut self, until_us: i64, newest_us: i64) {
        let memory = self.memory();
        let shares = Shares::of(memory.limit_bytes);
        let state = usize::try_from(memory.held_bytes - memory.waiting_bytes).unwrap_or(usize::MAX);
        let others = shares.state + shares.windows + shares.streams;
        let most = others.saturating_sub(state);
        self.refused_waiting += self.buffer.shrink_history(most, newest_us, false);
        if let Some(oldest_us) = self.buffer.time_of_bytes(most) {
            let until_us = oldest_us.min(until_us).min(newest_us);
            self.early += self.buffer.history_until(until_us);
            self.advance(until_us);
        }
        if until_us >= newest_us {
            self.refused_waiting += self.buffer.shrink_history(most, newest_us, true);
        }
    }

    /// Applies everything up to `watermark_us`: all events up to then were pushed. A watermark
    /// below the last one changes nothing.
    pub fn advance(&mut self, watermark_us: i64) {
        while let Some(key) = self.buffer.first_key() {
            let at_us = key.0;
            if at_us > watermark_us {
                break;
            }
            // Before the event leaves the buffer: at ticks, jobs process steps ahead of it.
            self.pass_ticks(at_us);
            let Some((cluster, input)) = self.buffer.remove(key) else { break };
            let late = self.tick_us.is_some_and(|tick_us| at_us <= tick_us);
            self.counts.used += 1;
            self.counts.late += u64::from(late);
            let closed_us = self.tick_us.unwrap_or(i64::MIN);
            if !self.watch.enter_event(key.2) && !self.skips_step(&cluster, &input) {
                die_for_test("signals", || format!("{cluster}/{}", input.ordered_job().unwrap_or_default()));
                self.detectors.apply(cluster, input, (at_us, closed_us), late);
            }
        }
        self.watch.leave();
        if self.tick_us.is_some() {
            self.pass_ticks(watermark_us.saturating_add(1));
        }
        self.detectors.advance_fleets(watermark_us);
        let mut jobs: BTreeSet<JobKey> = std::mem::take(&mut self.buffer.received);
        jobs.append(&mut self.detectors.take_changed_jobs());
        for job in jobs {
            self.process_early_steps(&job, watermark_us);
        }
        self.detectors.advance_clusters(watermark_us);
    }

    /// Hands over the output since the last call, in the order it was produced.
    pub fn take(&mut self) -> Vec<Publication> {
        self.detectors.take()
    }

    /// Runs the ticks before `before_us`. While nothing is monitored the clock jumps.
    fn pass_ticks(&mut self, before_us: i64) {
        let last_us = (before_us - 1).div_euclid(TICK_US) * TICK_US;
        let mut tick_us = self.tick_us.unwrap_or(last_us);
        while tick_us < last_us {
            if self.detectors.is_idle() {
                self.detectors.skip(tick_us, last_us);
                tick_us = last_us;
                break;
            }
            tick_us += TICK_US;
            self.tick(tick_us);
        }
        self.tick_us = Some(tick_us);
    }

    fn tick(&mut self, now_us: i64) {
        self.detectors.begin_tick(now_us);
        for job in self.detectors.active_jobs() {
            self.process_early_steps(&job, now_us);
            if self.watch.enter_job(&job) {
                self.detectors.forget_job(&job);
            } else {
                self.detectors.tick_job(&job, now_us);
            }
        }
        self.watch.leave();
        self.detectors.end_tick(now_us);
    }

    /// Whether an event is a step of a job that is set aside.
    fn skips_step(&self, cluster: &str, input: &Input) -> bool {
        let Input::Step { report, .. } = input else { return false };
        let watch = self.watch.lock().filter(|watch| watch.skips_any());
        watch.is_some_and(|watch| watch.skips(&Place::Job(cluster.to_owned(), report.job_id.clone())))
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! The spool writer: seals and numbers queued events and writes them to the spool.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_events::{Event, EventRecord};
use tidegate_log::{MAX_RECORD_BYTES, Record};

use super::losses::Dropped;
use super::spool::{Position, Spool};
use super::write_queue::WriteQueue;
use super::{Shared, events, lock};

/// How often to check the wall clock, ms.
const CLOCK_CHECK_MS: i64 = 1_000;
/// Events that nobody waits for are written together, at most this long after the previous write,
/// ms.
const TOGETHER_MS: i64 = 200;

/// Runs until the agent ends and everything is written.
pub(super) fn run(shared: &Shared) {
    let mut written_ms = 0;
    loop {
        let (events, ending) = wait(shared, written_ms);
        write(shared, events);
        written_ms = shared.options.clock.steady_ms();
        if ending && lock(&shared.queue).events.is_empty() {
            return;
        }
    }
}

/// Blocks until there is something to write or the agent ends. Checks the clock meanwhile.
fn wait(shared: &Shared, written_ms: i64) -> (Vec<Event>, bool) {
    let clock = &shared.options.clock;
    let mut queue = lock(&shared.queue);
    let mut check_ms = clock.steady_ms();
    loop {
        let now_ms = clock.steady_ms();
        if now_ms >= check_ms {
            shared.check_clock(&mut queue);
            check_ms = now_ms + CLOCK_CHECK_MS;
        }
        queue.close_due(now_ms);
        if queue.ending {
            queue.close_all(now_ms);
            return (queue.drain(), true);
        }
        let together_ms = written_ms + TOGETHER_MS;
        let is_time = queue.is_urgent || queue.waiting > 0 || now_ms >= together_ms;
        if !queue.events.is_empty() && is_time {
            return (queue.drain(), false);
        }
        let mut until_ms = check_ms.min(queue.batcher.due_ms().unwrap_or(i64::MAX));
        if !queue.events.is_empty() {
            until_ms = until_ms.min(together_ms);
        }
        // A test's clock may stand still; a real one advances while this waits.
        let pause = Duration::from_millis((until_ms - now_ms).clamp(1, CLOCK_CHECK_MS).unsigned_abs());
        queue = shared.queued.wait_timeout(queue, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Writes events to the spool and wakes the deliverer.
fn write(shared: &Shared, events: Vec<Event>) {
    let count = events.len();
    let mut spool = lock(&shared.spool);
    for event in events {
        push(shared, &mut spool, event);
    }
    let synced = spool.sync();
    let dropped = spool.take_dropped();
    drop(spool);
    if let Err(error) = &synced {
        tracing::error!("{error}; what is collected is kept in memory as far as it fits, and sent on");
    }
    let mut queue = lock(&shared.queue);
    queue.note_stored(count, synced.err().map(|error| error.to_string()));
    report_losses(shared, &mut queue, &dropped);
    drop(queue);
    shared.queued.notify_all();
    lock(&shared.progress).written += 1;
    shared.advanced.notify_all();
}

/// Queues reports of lost records.
fn report_losses(shared: &Shared, queue: &mut WriteQueue, dropped: &[Dropped]) {
    let now_ms = shared.options.clock.wall_ms();
    for dropped in dropped {
        shared.counters.dropped.fetch_add(dropped.count, Ordering::Relaxed);
        queue.take_event(dropped.to_event(now_ms));
    }
    let overrun = queue.overrun - queue.overrun_reported;
    if overrun > 0 {
        queue.overrun_reported = queue.overrun;
        let why = "events arrived faster than they could be written".to_owned();
        queue.take_event(Dropped { count: overrun, why, ..Dropped::default() }.to_event(now_ms));
    }
}

/// Seals and spools the event. An invalid event becomes a dead letter.
fn push(shared: &Shared, spool: &mut Spool, mut event: Event) {
    let now_ms = shared.options.clock.wall_ms();
    let reason = match seal(shared, &mut event, spool.next(), now_ms) {
        Ok(record) => return push_record(shared, spool, record),
        Err(reason) => reason,
    };
    tracing::warn!(schema = event.schema().name(), "an event is refused: {reason}");
    shared.counters.dead_letters.fetch_add(1, Ordering::Relaxed);
    let mut letter = events::dead_letter(now_ms, &shared.options.source, &event, reason);
    match seal(shared, &mut letter, spool.next(), now_ms) {
        Ok(record) => push_record(shared, spool, record),
        Err(reason) => tracing::error!("a dead letter is refused: {reason}"),
    }
}

fn push_record(
    shared: &Shared,
    spool: &mut Spool,
    EventRecord { key, schema, event_time_ms, payload }: EventRecord,
) {
    spool.push(Record { key, schema, event_time_ms, payload });
    shared.counters.records.fetch_add(1, Ordering::Relaxed);
}

/// Fills in what the source left open and encodes the event.
fn seal(shared: &Shared, event: &mut Event, at: Position, now_ms: i64) -> Result<EventRecord, String> {
    let options = &shared.options;
    match event {
        Event::Node(event) if event.node.is_empty() => event.node.clone_from(&options.node),
        Event::GpuSamples(batch) if batch.node.is_empty() => batch.node.clone_from(&options.node),
        _ => {}
    }
    let envelope = event.envelope_mut();
    if envelope.cluster.is_empty() {
        envelope.cluster.clone_from(&options.cluster);
    }
    envelope.source.clone_from(&options.source);
    (envelope.epoch, envelope.seq) = (at.epoch, at.seq);
    if envelope.observed_time_ms == 0 {
        envelope.observed_time_ms = now_ms;
    }
    let record = event.record().map_err(|error| error.to_string())?;
    let bytes = record.key.len() + record.payload.len();
    if bytes > MAX_RECORD_BYTES {
        return Err(format!("it has {bytes} bytes, more than {MAX_RECORD_BYTES}; report less at once"));
    }
    Ok(record)
}

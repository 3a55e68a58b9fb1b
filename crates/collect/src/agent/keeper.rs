//! The keeper: seals what was told, numbers it and writes it to the spool.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_events::{Event, EventRecord};
use tidegate_log::{MAX_RECORD_BYTES, Record};

use super::intake::Intake;
use super::spool::{Dropped, Position, Spool};
use super::{Shared, lock, notes};

/// How often the clock is looked at, ms.
const LOOK_MS: i64 = 1_000;
/// Events that nobody waits for are written together, this long after the last ones, ms.
const TOGETHER_MS: i64 = 200;

/// Runs until the end has come and all is written.
pub(super) fn run(shared: &Shared) {
    let mut written_ms = 0;
    loop {
        let (events, ending) = wait(shared, written_ms);
        keep(shared, events);
        written_ms = shared.options.clock.steady_ms();
        if ending && lock(&shared.intake).events.is_empty() {
            return;
        }
    }
}

/// Waits until there is something to write, or the end has come. Looks at the clock in between.
fn wait(shared: &Shared, written_ms: i64) -> (Vec<Event>, bool) {
    let clock = &shared.options.clock;
    let mut intake = lock(&shared.intake);
    let mut look_ms = clock.steady_ms();
    loop {
        let now_ms = clock.steady_ms();
        if now_ms >= look_ms {
            shared.look_at_clock(&mut intake);
            look_ms = now_ms + LOOK_MS;
        }
        intake.close_due(now_ms);
        if intake.ending {
            intake.close_all(now_ms);
            return (intake.drain(), true);
        }
        let together_ms = written_ms + TOGETHER_MS;
        let is_time = intake.is_urgent || intake.waiting > 0 || now_ms >= together_ms;
        if !intake.events.is_empty() && is_time {
            return (intake.drain(), false);
        }
        let mut until_ms = look_ms.min(intake.gatherer.due_ms().unwrap_or(i64::MAX));
        if !intake.events.is_empty() {
            until_ms = until_ms.min(together_ms);
        }
        // A test's clock may stand still; a real one runs on while this waits.
        let pause = Duration::from_millis((until_ms - now_ms).clamp(1, LOOK_MS).unsigned_abs());
        intake = shared.told.wait_timeout(intake, pause).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Writes events to the spool, and tells the deliverer.
fn keep(shared: &Shared, events: Vec<Event>) {
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
    let mut intake = lock(&shared.intake);
    intake.note_stored(count, synced.err().map(|error| error.to_string()));
    tell_losses(shared, &mut intake, &dropped);
    drop(intake);
    shared.told.notify_all();
    lock(&shared.progress).written += 1;
    shared.moved.notify_all();
}

/// Records what was lost, with the next events.
fn tell_losses(shared: &Shared, intake: &mut Intake, dropped: &[Dropped]) {
    let now_ms = shared.options.clock.wall_ms();
    for dropped in dropped {
        shared.counters.dropped.fetch_add(dropped.count, Ordering::Relaxed);
        intake.take_event(notes::dropped(now_ms, dropped));
    }
    let overrun = intake.overrun - intake.overrun_told;
    if overrun > 0 {
        intake.overrun_told = intake.overrun;
        let why = "more was told than could be written".to_owned();
        intake.take_event(notes::dropped(now_ms, &Dropped { count: overrun, why, ..Dropped::default() }));
    }
}

/// Gives the event its place; one that is none becomes a dead letter.
fn push(shared: &Shared, spool: &mut Spool, mut event: Event) {
    let now_ms = shared.options.clock.wall_ms();
    let reason = match seal(shared, &mut event, spool.next(), now_ms) {
        Ok(record) => return push_record(shared, spool, record),
        Err(reason) => reason,
    };
    tracing::warn!(schema = event.schema().name(), "an event is refused: {reason}");
    shared.counters.dead_letters.fetch_add(1, Ordering::Relaxed);
    let mut letter = notes::dead_letter(now_ms, &shared.options.source, &event, reason);
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

/// Fills in what the source left to us, and makes a record of the event.
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

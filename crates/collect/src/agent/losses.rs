//! Records lost before delivery, and the `RECORDS_DROPPED` events that report them.
//!
//! A loss report waits in the spool like any other record and can be lost too. [`Dropped`]
//! therefore reads the counts and times back out of the reports that it drops, so that no loss goes
//! uncounted.

use tidegate_events::v1::{NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_log::Record;

use super::events::node_event;

/// Precedes the event times in the description of a loss report.
const TIMES: &str = "event times ";

/// Records that will never reach the log from this spool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Records dropped now, loss reports included.
    pub count: u64,
    /// Earlier losses whose reports are among the dropped records.
    pub reported_before: u64,
    /// Oldest and newest event time, ms since the epoch, of records that could still be read.
    pub times_ms: Option<(i64, i64)>,
    /// Reason, for the operator.
    pub why: String,
}

impl Dropped {
    pub(super) fn add(&mut self, record: &Record) {
        self.count += 1;
        let times_ms = match parse_report(record) {
            Some((count, times_ms)) => {
                self.reported_before += count;
                times_ms
            }
            None => Some((record.event_time_ms, record.event_time_ms)),
        };
        for time_ms in times_ms.into_iter().flat_map(|(oldest, newest)| [oldest, newest]) {
            let (oldest, newest) = self.times_ms.get_or_insert((time_ms, time_ms));
            (*oldest, *newest) = ((*oldest).min(time_ms), (*newest).max(time_ms));
        }
    }

    /// The `RECORDS_DROPPED` event. Its count includes losses whose reports were lost.
    pub(super) fn to_event(&self, at_ms: i64) -> Event {
        let times = match self.times_ms {
            Some((oldest, newest)) => format!("{TIMES}{oldest} to {newest} ms"),
            None => "their times are not known".into(),
        };
        Event::Node(NodeEvent {
            count: Some(self.count + self.reported_before),
            description: Some(format!("{}; {times}", self.why)),
            ..node_event(NodeEventKind::RecordsDropped, at_ms)
        })
    }
}

/// Count and event times of a loss report; `None` for any other record.
fn parse_report(record: &Record) -> Option<(u64, Option<(i64, i64)>)> {
    if SchemaId::from_number(record.schema) != Ok(SchemaId::NodeEvent) {
        return None;
    }
    let Ok(Event::Node(event)) = Event::decode(record.schema, &record.payload) else { return None };
    if event.kind() != NodeEventKind::RecordsDropped {
        return None;
    }
    let times = event.description.as_deref().and_then(|text| text.split_once(TIMES));
    let times = times.and_then(|(_, times)| times.strip_suffix(" ms")?.split_once(" to "));
    let times = times.and_then(|(oldest, newest)| Some((oldest.parse().ok()?, newest.parse().ok()?)));
    Some((event.count?, times))
}

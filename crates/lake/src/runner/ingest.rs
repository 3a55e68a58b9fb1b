//! Records become rows, or go elsewhere: to dead letters, or to the partition of their key.

use tidegate_events::Event;
use tidegate_log::poison::{CODE, die_for_test};
use tidegate_log::{StoredRecord, TopicPartition};

use super::dead_letter::RecordRouter;
use super::{Runner, poison, time_guard};
use crate::error::Result;
use crate::raw::samples::weight;

impl Runner {
    /// Takes in records of a partition, up to `end`.
    pub(super) fn ingest(
        &mut self,
        at: &TopicPartition,
        mut records: Vec<StoredRecord>,
        end: u64,
    ) -> Result<()> {
        let most = self.watch.as_ref().map_or(usize::MAX, |watch| watch.piece(at));
        while records.len() > most {
            let rest = records.split_off(most);
            self.ingest_piece(at, std::mem::replace(&mut records, rest), None)?;
        }
        self.ingest_piece(at, records, Some(end))
    }

    /// Takes records in; `end` is where the next ones begin, if that is not after the last.
    fn ingest_piece(
        &mut self,
        at: &TopicPartition,
        records: Vec<StoredRecord>,
        end: Option<u64>,
    ) -> Result<()> {
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            let intake = self.lake.intake(&at.topic, at.partition);
            return end.map_or(Ok(()), |end| self.lake.absorb(intake, end));
        };
        let (from, to) = (first.offset, last.offset + 1);
        let mut intake = self.lake.intake(&at.topic, at.partition);
        let now_ms = chrono::Utc::now().timestamp_millis();
        let mut router = RecordRouter::new(at, self.partitions.get(&at.topic).copied().unwrap_or(1));
        for StoredRecord { offset, record } in records {
            if let Some(why) = poison::enter(self.watch.as_mut(), at, offset) {
                let at_ms = Some(record.event_time_ms);
                router.dead_letter(offset, record, at_ms, CODE, &why)?;
                continue;
            }
            match Event::decode(record.schema, &record.payload) {
                Ok(event) if let Some(why) = time_guard::check_time(&event, now_ms, self.pace.oldest_ms) => {
                    router.dead_letter(offset, record, None, why.code, &why.reason)?;
                }
                Ok(event) if router.belongs_here(&event) => {
                    die_for_test(poison::READER, || event.key());
                    intake.push(offset, &event);
                    self.unflushed += weight(&event);
                }
                Ok(event) => router.misplaced(offset, &event, record),
                Err(e) => {
                    let at_ms = Some(record.event_time_ms);
                    router.dead_letter(offset, record, at_ms, "UNDECODABLE", &e.to_string())?;
                }
            }
        }
        self.progress.undecodable += router.dead;
        self.progress.misplaced += router.misplaced;
        router.append(self.log.as_ref())?;
        poison::enter_all(self.watch.as_mut(), at, (from, to));
        self.lake.absorb(intake, end.unwrap_or(to))?;
        poison::leave(self.watch.as_mut());
        Ok(())
    }
}

//! Who entered prices, on the topic `audit` of the same log, before they are entered.

use std::time::Instant;

use tidegate_collect::log_sink::LogSink;
use tidegate_events::v1::{AuditEvent, AuditEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, Producer, TopicPartition, partition_for};
use tidegate_server::audit::{Actor, Outcome, Text, ended, new_id, recorded, show_price, source};

use crate::commands::{CommandError, user_name};

/// The records of one entry of prices: that it is about to be made, and how it ended.
pub struct Record<'a> {
    log_sink: &'a dyn LogSink,
    at: TopicPartition,
    source: String,
    actor: Actor,
    id: String,
    began: Instant,
}

impl<'a> Record<'a> {
    /// Appends that these prices are about to be entered.
    ///
    /// # Errors
    /// The log does not take the record, so that nothing may be entered.
    pub fn begin(log_sink: &'a dyn LogSink, prices: &[Event]) -> Result<Self, CommandError> {
        let topic = SchemaId::AuditEvent.topic().to_owned();
        let source = source();
        let partition = partition_for(source.as_bytes(), log_sink.partitions(&topic)?);
        let (actor, id) = (Actor::at_keyboard(user_name()), new_id());
        let at = TopicPartition { topic, partition };
        let record = Self { log_sink, at, source, actor, id, began: Instant::now() };
        let (mut text, mut cluster) = (Text::default(), "");
        for price in prices {
            if let Event::Capacity(price) = price {
                text.push(&show_price(price));
            }
            cluster = price.envelope().map_or("", |envelope| &envelope.cluster);
        }
        record.append(0, recorded(AuditEventKind::PricesSent, &record.id, &record.actor, cluster, text))?;
        Ok(record)
    }

    /// Appends how it ended.
    ///
    /// # Errors
    /// The log does not take the record. What was entered stays.
    pub fn end(self, outcome: &Outcome<'_>) -> Result<(), CommandError> {
        let Self { id, actor, began, .. } = &self;
        self.append(1, ended(AuditEventKind::PricesEnded, id, actor.door, outcome, began.elapsed()))
    }

    fn append(&self, seq: u64, event: AuditEvent) -> Result<(), CommandError> {
        let mut event = Event::Audit(event);
        let envelope = event.envelope_mut();
        envelope.source.clone_from(&self.source);
        envelope.seq = seq;
        let producer = Producer { source: self.source.clone(), epoch: 0 };
        let records = vec![event.record()?.into()];
        self.log_sink.append(&self.at, Batch { producer, first_seq: seq, records })?;
        Ok(())
    }
}

//! Columns of raw tables: name, how it is read from an event, and documentation.

pub(super) mod audit;
pub(super) mod autopilot;
pub(super) mod dead_letter;
pub(super) mod insight;
pub(super) mod scheduler;
pub(super) mod sizing;
pub(super) mod step;

use arrow::datatypes::DataType;
use tidegate_events::v1::Envelope;

use crate::table::{Column, timestamp_type};

/// How a column is read from an event.
pub(super) enum Read<E> {
    Text(fn(&E) -> Option<&str>),
    /// Several texts, joined with `; `; NULL if there are none.
    Lines(fn(&E) -> &[String]),
    Int(fn(&E) -> Option<i64>),
    /// Milliseconds since the epoch, stored in microseconds.
    Time(fn(&E) -> Option<i64>),
}

pub(super) type Columns<E> = &'static [(&'static str, Read<E>, &'static str)];

pub(super) fn documented<E>(columns: Columns<E>) -> Vec<Column> {
    let column = |(name, read, doc): &(&str, Read<E>, &str)| Column {
        name: (*name).to_owned(),
        data_type: match read {
            Read::Text(_) | Read::Lines(_) => DataType::Utf8View,
            Read::Int(_) => DataType::Int64,
            Read::Time(_) => timestamp_type(),
        },
        doc: (*doc).to_owned(),
    };
    columns.iter().map(column).collect()
}

fn env(envelope: &Option<Envelope>) -> Option<&Envelope> {
    envelope.as_ref()
}

fn int(value: Option<u64>) -> Option<i64> {
    value.and_then(|v| i64::try_from(v).ok())
}

const CLUSTER_DOC: &str = "Cluster the event is about.";
const TIME_DOC: &str = "When it happened.";
const SOURCE_DOC: &str = "Source that observed it.";
const EPOCH_DOC: &str = "Epoch of the source: rises with each restart of its numbering.";
const SEQ_DOC: &str = "Sequence number of the event within the epoch; a gap is a loss.";

//! The flat table to which every format of GPU samples is decoded.

use std::{iter::repeat_n, sync::Arc};

use arrow::{
    array::{ArrayRef, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray},
    datatypes::Int32Type,
    error::ArrowError,
};

use super::{METRICS, NodeBatch, Width};

const LABELS: [&str; 4] = ["cluster", "node", "uuid", "model"];

/// Representation of labels that repeat from row to row.
#[derive(Clone, Copy)]
pub enum Labels {
    Plain,
    Dictionary,
}

/// Builds one table of several devices: time, labels, metrics.
pub struct FlatBuilder {
    times_ms: Vec<i64>,
    labels: [LabelColumn; LABELS.len()],
    metrics: Vec<Ints>,
}

/// Row `i` has the label `values[keys[i]]`.
#[derive(Default)]
struct LabelColumn {
    values: Vec<String>,
    keys: Vec<i32>,
}

enum Ints {
    Narrow(Vec<i32>),
    Wide(Vec<i64>),
}

impl Default for FlatBuilder {
    fn default() -> Self {
        let metrics = METRICS.map(|(_, width)| match width {
            Width::Narrow32 => Ints::Narrow(Vec::new()),
            Width::Wide64 => Ints::Wide(Vec::new()),
        });
        Self { times_ms: Vec::new(), labels: Default::default(), metrics: metrics.into() }
    }
}

impl FlatBuilder {
    /// Adds the rows of one device; [`Self::values`] adds its values, in the same order of devices.
    pub fn device(&mut self, cluster: &str, node: &str, uuid: &str, model: &str, ticks_ms: &[i64]) {
        self.times_ms.extend_from_slice(ticks_ms);
        for (column, label) in self.labels.iter_mut().zip([cluster, node, uuid, model]) {
            column.push(label, ticks_ms.len());
        }
    }

    /// Adds the values of one device and metric.
    pub fn values(&mut self, metric: usize, values: impl Iterator<Item = i64>) {
        match &mut self.metrics[metric] {
            Ints::Narrow(column) => column.extend(values.map(|value| value as i32)),
            Ints::Wide(column) => column.extend(values),
        }
    }

    pub fn finish(self, labels: Labels) -> Result<RecordBatch, ArrowError> {
        let mut columns: Vec<(&str, ArrayRef)> = vec![("time_ms", Arc::new(Int64Array::from(self.times_ms)))];
        for (name, column) in LABELS.into_iter().zip(self.labels) {
            columns.push((name, column.finish(labels)?));
        }
        for ((name, _), column) in METRICS.into_iter().zip(self.metrics) {
            columns.push(match column {
                Ints::Narrow(values) => (name, Arc::new(Int32Array::from(values))),
                Ints::Wide(values) => (name, Arc::new(Int64Array::from(values))),
            });
        }
        RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, column)| (name, column, false)),
        )
    }
}

impl LabelColumn {
    /// Compares with the previous label only: a hash per device would gain little.
    fn push(&mut self, label: &str, rows: usize) {
        if self.values.last().is_none_or(|last| last != label) {
            self.values.push(label.to_owned());
        }
        self.keys.extend(repeat_n(self.values.len() as i32 - 1, rows));
    }

    fn finish(self, labels: Labels) -> Result<ArrayRef, ArrowError> {
        Ok(match labels {
            Labels::Plain => {
                let rows = self.keys.iter().map(|key| &self.values[*key as usize]);
                Arc::new(StringArray::from_iter_values(rows))
            }
            Labels::Dictionary => {
                let values = Arc::new(StringArray::from_iter_values(self.values));
                Arc::new(DictionaryArray::<Int32Type>::try_new(self.keys.into(), values)?)
            }
        })
    }
}

/// The table as a producer builds it from its own memory.
pub fn flat(nodes: &[NodeBatch], labels: Labels) -> Result<RecordBatch, ArrowError> {
    let mut rows = FlatBuilder::default();
    for node in nodes {
        for uuid in &node.uuids {
            rows.device(node.cluster, &node.node, uuid, node.model, &node.ticks_ms);
        }
        for (metric, values) in node.columns.iter().enumerate() {
            rows.values(metric, values.iter().copied());
        }
    }
    rows.finish(labels)
}

//! GPU samples: one message per node and ten seconds, a flat table with a row per GPU and second.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray},
    buffer::OffsetBuffer,
    datatypes::{Field, Int64Type},
    error::ArrowError,
};
use prost::Message;
use tidegate_events::v1::{Envelope, GpuSampleBatch, gpu_sample_batch as pb};

use super::formats::{ArrowIpc, Avro, NamedCodecs, Protobuf};

mod flat;
mod samples;

pub use flat::{Labels, flat};
pub use samples::{DEVICES, Device, FIRST_TICK_MS, NodeBatch, TICKS, generate};

use flat::FlatBuilder;

/// The format that writes a message per row.
pub const AVRO_ROWS: &str = "avro row per sample";

/// Column width of a metric.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Narrow32,
    Wide64,
}

/// Metrics that a collector reads each second, in stored units.
pub const METRICS: [(&str, Width); 24] = [
    ("sm_active_ppm", Width::Narrow32),
    ("sm_occupancy_ppm", Width::Narrow32),
    ("tensor_active_ppm", Width::Narrow32),
    ("dram_active_ppm", Width::Narrow32),
    ("fp64_active_ppm", Width::Narrow32),
    ("fp32_active_ppm", Width::Narrow32),
    ("fp16_active_ppm", Width::Narrow32),
    ("graphics_active_ppm", Width::Narrow32),
    ("gpu_util_ppm", Width::Narrow32),
    ("interval_us", Width::Narrow32),
    ("power_mw", Width::Narrow32),
    ("gpu_temp_celsius", Width::Narrow32),
    ("memory_temp_celsius", Width::Narrow32),
    ("sm_clock_mhz", Width::Narrow32),
    ("memory_clock_mhz", Width::Narrow32),
    ("process_count", Width::Narrow32),
    ("ecc_corrected_count", Width::Narrow32),
    ("framebuffer_used_bytes", Width::Wide64),
    ("pcie_tx_bytes", Width::Wide64),
    ("pcie_rx_bytes", Width::Wide64),
    ("nvlink_tx_bytes", Width::Wide64),
    ("nvlink_rx_bytes", Width::Wide64),
    ("energy_mj", Width::Wide64),
    ("power_throttled_us", Width::Wide64),
];

/// The formats. Protobuf and columnar Avro have the same content: envelope, labels once per device,
/// deltas. The row formats have no envelope, which favours them.
pub fn codecs() -> Result<NamedCodecs<NodeBatch>, ArrowError> {
    let plain: fn(&[NodeBatch]) -> Result<RecordBatch, ArrowError> = |nodes| flat(nodes, Labels::Plain);
    let dictionary: fn(&[NodeBatch]) -> Result<RecordBatch, ArrowError> =
        |nodes| flat(nodes, Labels::Dictionary);
    let (plain_schema, dictionary_schema) = (plain(&[])?.schema(), dictionary(&[])?.schema());
    let columns_schema = avro_columns(&[])?.schema();
    Ok(vec![
        ("protobuf columns", Box::new(Protobuf { encode: |node| protobuf(node).encode_to_vec(), decode })),
        ("avro columns", Box::new(Avro::new(&columns_schema, 1, avro_columns, flat_avro_columns)?)),
        (AVRO_ROWS, Box::new(Avro::new(&plain_schema, 1, plain, Ok)?)),
        ("arrow-ipc stream", Box::new(ArrowIpc::streams(dictionary_schema, dictionary))),
        ("arrow-ipc bare batch", Box::new(ArrowIpc::bare(plain_schema, plain)?)),
    ])
}

/// The first value, then deltas.
fn deltas(values: &[i64]) -> impl Iterator<Item = i64> {
    let previous = std::iter::once(0).chain(values.iter().copied());
    values.iter().zip(previous).map(|(value, previous)| value.wrapping_sub(previous))
}

/// Inverse of [`deltas`].
fn sums(deltas: &[i64]) -> impl Iterator<Item = i64> {
    deltas.iter().scan(0_i64, |sum, delta| {
        *sum = sum.wrapping_add(*delta);
        Some(*sum)
    })
}

pub fn protobuf(node: &NodeBatch) -> GpuSampleBatch {
    let device = |(index, uuid): (usize, &String)| pb::DeviceInfo {
        uuid: uuid.clone(),
        index: index as u32,
        model: node.model.into(),
        mig_uuid: None,
    };
    let column = |((name, _), values): (&(&str, Width), &Vec<i64>)| pb::Column {
        name: (*name).into(),
        value_delta: values.chunks(node.ticks_ms.len()).flat_map(deltas).collect(),
        missing: Vec::new(),
        first_growth: Vec::new(),
    };
    GpuSampleBatch {
        envelope: Some(Envelope {
            event_id: node.event_id.to_vec(),
            cluster: node.cluster.into(),
            source: node.node.clone(),
            epoch: node.epoch,
            seq: node.seq,
            event_time_ms: node.ticks_ms[0],
            observed_time_ms: node.observed_ms,
        }),
        node: node.node.clone(),
        devices: node.uuids.iter().enumerate().map(device).collect(),
        first_tick_ms: node.ticks_ms[0],
        tick_delta_ms: deltas(&node.ticks_ms).skip(1).collect(),
        columns: METRICS.iter().zip(&node.columns).map(column).collect(),
        processes: Vec::new(),
    }
}

fn decode(messages: &[&[u8]]) -> Result<RecordBatch, ArrowError> {
    let mut rows = FlatBuilder::default();
    for message in messages {
        let batch =
            GpuSampleBatch::decode(*message).map_err(|e| ArrowError::from_external_error(Box::new(e)))?;
        let cluster = batch.envelope.as_ref().map_or("", |envelope| &envelope.cluster);
        let first_tick = std::iter::once(batch.first_tick_ms);
        let ticks: Vec<i64> =
            first_tick.chain(sums(&batch.tick_delta_ms).map(|d| batch.first_tick_ms + d)).collect();
        for device in &batch.devices {
            rows.device(cluster, &batch.node, &device.uuid, &device.model, &ticks);
        }
        for column in &batch.columns {
            let metric = METRICS.iter().position(|(name, _)| *name == column.name);
            let metric =
                metric.ok_or_else(|| ArrowError::SchemaError(format!("unknown metric {}", column.name)))?;
            column.value_delta.chunks(ticks.len()).for_each(|device| rows.values(metric, sums(device)));
        }
    }
    rows.finish(Labels::Dictionary)
}

/// The same message as an Avro record: each repeated field is an array.
fn avro_columns(nodes: &[NodeBatch]) -> Result<RecordBatch, ArrowError> {
    let longs = |field: fn(&NodeBatch) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(nodes.iter().map(field)))
    };
    let texts = |field: fn(&NodeBatch) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(nodes.iter().map(field)))
    };
    let uuids: Vec<&String> = nodes.iter().flat_map(|node| &node.uuids).collect();
    let uuids = StringArray::from_iter_values(uuids);
    let ids = BinaryArray::from_iter_values(nodes.iter().map(|node| node.event_id));
    let mut columns: Vec<(&str, ArrayRef)> = vec![
        ("event_id", Arc::new(ids)),
        ("cluster", texts(|node| node.cluster)),
        ("source", texts(|node| &node.node)),
        ("epoch", longs(|node| node.epoch as i64)),
        ("seq", longs(|node| node.seq as i64)),
        ("event_time_ms", longs(|node| node.ticks_ms[0])),
        ("observed_time_ms", longs(|node| node.observed_ms)),
        ("node", texts(|node| &node.node)),
        ("model", texts(|node| node.model)),
        ("uuid", list(nodes.iter().map(|node| node.uuids.len()), Arc::new(uuids))?),
        ("tick_ms", list_of_deltas(nodes, |node| &node.ticks_ms)?),
    ];
    for (metric, (name, _)) in METRICS.iter().enumerate() {
        columns.push((name, list_of_deltas(nodes, |node| &node.columns[metric])?));
    }
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, false)))
}

/// One list of deltas per node; each device begins anew.
fn list_of_deltas<'a>(
    nodes: &'a [NodeBatch],
    field: impl Fn(&'a NodeBatch) -> &'a Vec<i64>,
) -> Result<ArrayRef, ArrowError> {
    let values: Vec<i64> =
        nodes.iter().flat_map(|node| field(node).chunks(node.ticks_ms.len()).flat_map(deltas)).collect();
    list(nodes.iter().map(|node| field(node).len()), Arc::new(Int64Array::from(values)))
}

fn list(lengths: impl Iterator<Item = usize>, items: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let field = Arc::new(Field::new(Field::LIST_FIELD_DEFAULT_NAME, items.data_type().clone(), false));
    Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), items, None)?))
}

fn flat_avro_columns(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let named = |name: &str| {
        let column = batch.column_by_name(name);
        column.ok_or_else(|| ArrowError::SchemaError(format!("no column {name}")))
    };
    let (clusters, nodes) = (named("cluster")?.as_string::<i32>(), named("node")?.as_string::<i32>());
    let (models, uuids) = (named("model")?.as_string::<i32>(), named("uuid")?.as_list::<i32>());
    let tick_deltas = named("tick_ms")?.as_list::<i32>();
    let metrics: Vec<_> = METRICS.iter().map(|(name, _)| named(name)).collect::<Result<_, _>>()?;
    let mut rows = FlatBuilder::default();
    for row in 0..batch.num_rows() {
        let ticks: Vec<i64> = sums(tick_deltas.value(row).as_primitive::<Int64Type>().values()).collect();
        for uuid in uuids.value(row).as_string::<i32>().iter().flatten() {
            rows.device(clusters.value(row), nodes.value(row), uuid, models.value(row), &ticks);
        }
        for (metric, column) in metrics.iter().enumerate() {
            let values = column.as_list::<i32>().value(row);
            let values = values.as_primitive::<Int64Type>().values();
            values.chunks(ticks.len()).for_each(|device| rows.values(metric, sums(device)));
        }
    }
    rows.finish(Labels::Dictionary)
}

//! Maps rows to values of GPU samples: a column per metric, or a row per metric.

use std::hash::Hasher;
use std::sync::Arc;

use tidegate_readings::dcgm::fields::{self, Named};
use tidegate_readings::{Device, Metric, Value};
use xxhash_rust::xxh3::Xxh3;

use super::held::{NodeName, Quantity};
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, NumberField, Row, TextField, TimeField, missing};
use crate::mapping::Unit;
use crate::time::TimeReader;

/// Longest text that names something, bytes.
const MOST_NAME_BYTES: usize = 256;

/// Columns of samples.
pub(super) struct SampleMapper {
    cluster: TextField,
    node: TextField,
    gpu_uuid: TextField,
    mig_uuid: TextField,
    gpu_instance: TextField,
    gpu_model: TextField,
    gpu_index: Option<NumberField>,
    time: TimeField,
    values: Values,
}

enum Values {
    /// A column per metric.
    Wide(Vec<(Metric, NumberField)>),
    /// The metric's name, and its number.
    Long { metric: TextField, value: TextField, base_units: bool },
}

/// What a row says.
pub(super) struct SampleRow {
    pub node: NodeName,
    pub device: Arc<Device>,
    pub tick_ms: i64,
    pub values: Vec<(Quantity, Value)>,
    /// Hash of what the row describes; none where several rows may describe it, as lines of an
    /// exporter do for pods that share a GPU.
    pub identity: Option<u64>,
}

impl SampleMapper {
    pub(super) fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        let values = if binder.mapping.columns.contains_key("metric") {
            let base_units = binder.mapping.dcgm_base_units;
            Values::Long { metric: binder.text("metric")?, value: binder.text("value")?, base_units }
        } else {
            let mut columns = Vec::new();
            for metric in Metric::ALL {
                if let Some(number) = binder.number(metric.name(), Unit::of_metric(metric.name()))? {
                    columns.push((*metric, number));
                }
            }
            if columns.is_empty() {
                return Err(binder.missing("of a metric", "samples"));
            }
            Values::Wide(columns)
        };
        Ok(Self {
            cluster,
            node: binder.text("node")?,
            gpu_uuid: binder.text("gpu_uuid")?,
            mig_uuid: binder.text("mig_uuid")?,
            gpu_instance: binder.text("gpu_instance")?,
            gpu_model: binder.text("gpu_model")?,
            gpu_index: binder.number("gpu_index", Unit::Count)?,
            time: binder.required_time("time")?,
            values,
        })
    }

    /// The row's values; none if its metric is one of DCGM's without a metric here.
    pub(super) fn row(&self, row: Row<'_>, times: &mut TimeReader) -> Result<Option<SampleRow>, Reject> {
        let tick_ms = self.time.read(row, times)?.ok_or_else(|| missing("time"))?;
        let name = |field: &TextField, what: &str| short(field.required(what, row)?.into_owned(), what);
        let node = (name(&self.cluster, "cluster")?, name(&self.node, "node")?);
        let Some((values, by_dcgm)) = self.values(row)? else {
            return Ok(None);
        };
        let device = Arc::new(self.device(row)?);
        let mut identity = Xxh3::new();
        for text in [&node.0, &node.1, &device.uuid, device.mig_uuid.as_ref().unwrap_or(&String::new())] {
            identity.write(text.as_bytes());
            identity.write_u8(0);
        }
        identity.write_i64(tick_ms);
        if let (Values::Long { .. }, Some((Quantity::Metric(metric), _))) = (&self.values, values.first()) {
            identity.write_u8(*metric as u8);
        }
        let identity = (!by_dcgm).then(|| identity.finish());
        Ok(Some(SampleRow { node, device, tick_ms, values, identity }))
    }

    fn device(&self, row: Row<'_>) -> Result<Device, Reject> {
        let uuid = short(self.gpu_uuid.required("gpu_uuid", row)?.into_owned(), "gpu_uuid")?;
        let text =
            |field: &TextField| field.read(row).map(|text| text.into_owned()).filter(|text| !text.is_empty());
        let mig_uuid = match (text(&self.mig_uuid), text(&self.gpu_instance)) {
            (Some(mig_uuid), _) => Some(short(mig_uuid, "mig_uuid")?),
            // As the agent names the instances of a dcgm-exporter.
            (None, Some(instance)) => Some(short(format!("MIG-{uuid}/{instance}"), "gpu_instance")?),
            (None, None) => None,
        };
        let index = self.gpu_index.as_ref().map_or(Ok(None), |index| index.read(row))?.unwrap_or(0);
        let index = u32::try_from(index).map_err(|_| {
            Reject::new(RejectCode::BadNumber, format!("gpu_index is {index}, which no GPU has"))
        })?;
        let model = short(text(&self.gpu_model).unwrap_or_default(), "gpu_model")?;
        Ok(Device { uuid, index, model, mig_uuid })
    }

    /// The values, and whether an exporter named them.
    #[allow(clippy::type_complexity, reason = "the pair has no other user")]
    fn values(&self, row: Row<'_>) -> Result<Option<(Vec<(Quantity, Value)>, bool)>, Reject> {
        match &self.values {
            Values::Wide(columns) => {
                let mut values = Vec::with_capacity(columns.len());
                for (metric, column) in columns {
                    if let Some(value) = column.read(row)? {
                        values.push((Quantity::Metric(*metric), Value::Is(possible(*metric, value)?)));
                    }
                }
                if values.is_empty() {
                    return Err(missing("every metric"));
                }
                Ok(Some((values, false)))
            }
            Values::Long { metric, value, base_units } => {
                let name = metric.required("metric", row)?;
                let text = value.required("value", row)?;
                if let Some(dcgm) = name.strip_prefix("DCGM_FI_") {
                    return Ok(Named::of(dcgm).map(|named| {
                        let value = fields::value(text.trim(), named.unit(), *base_units);
                        (vec![(named.into(), value)], true)
                    }));
                }
                let Some(metric) = Metric::ALL.iter().find(|metric| metric.name() == name) else {
                    let reason =
                        format!("{} is neither a metric of DCGM nor a column of gpu_samples", clip(&name));
                    return Err(Reject::new(RejectCode::UnknownMetric, reason));
                };
                let number = text.trim().parse::<i64>().map_err(|_| {
                    Reject::new(
                        RejectCode::BadNumber,
                        format!("value is {}, which is no whole number", clip(&text)),
                    )
                })?;
                Ok(Some((vec![(Quantity::Metric(*metric), Value::Is(possible(*metric, number)?))], false)))
            }
        }
    }
}

/// A number in the range that its metric can have.
fn possible(metric: Metric, value: i64) -> Result<i64, Reject> {
    let name = metric.name();
    let range = match name {
        // Profiling counters are sampled one after the other, so a ratio may slightly exceed 1.
        _ if name.ends_with("_ppm") => 0..=1_050_000,
        _ if name.ends_with("_celsius") => -100..=1_000,
        _ => 0..=i64::MAX,
    };
    if range.contains(&value) {
        return Ok(value);
    }
    let reason = format!("{name} is {value}, which is impossible; does the mapping name the column's unit?");
    Err(Reject::new(RejectCode::BadNumber, reason))
}

fn short(text: String, field: &str) -> Result<String, Reject> {
    if text.len() <= MOST_NAME_BYTES {
        return Ok(text);
    }
    let reason = format!("{field} has more than {MOST_NAME_BYTES} bytes: {}", clip(&text));
    Err(Reject::new(RejectCode::BadName, reason))
}

fn clip(text: &str) -> String {
    text.chars().take(64).collect()
}

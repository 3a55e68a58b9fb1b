//! Validates a mapping beyond its syntax. Every message names the key and what would be right.

use std::sync::LazyLock;

use tidegate_events::FinalState;
use tidegate_readings::Metric;

use super::column::{Decode, Dimension, FieldSpec, Unit};
use super::{Kind, Mapping};
use crate::error::MappingError;

/// Longest name, bytes: it is part of every event's source and producer.
const MAX_NAME_BYTES: usize = 64;
/// Longest time that a sample stands for: 31 days.
const MOST_INTERVAL_MS: u64 = 31 * 86_400_000;

/// Type of an event field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldKind {
    Text,
    Time,
    Number(Dimension),
}

use FieldKind::{Number, Text, Time};

const GPUS: FieldKind = Number(Dimension::Gpus);
const COUNT: FieldKind = Number(Dimension::Count);

const JOBS: &[(&str, FieldKind)] = &[
    ("cluster", Text),
    ("job_id", Text),
    ("step_id", Text),
    ("array_job_id", Text),
    ("array_task_id", COUNT),
    ("team", Text),
    ("user_name", Text),
    ("pool", Text),
    ("qos", Text),
    ("job_name", Text),
    ("gpus", GPUS),
    ("gpus_held", GPUS),
    ("gpu_model", Text),
    ("nodes", Text),
    ("node_count", COUNT),
    ("time_limit", Number(Dimension::Time)),
    ("reason", Text),
    ("state", Text),
    ("exit_code", COUNT),
    ("priority", COUNT),
    ("attempt", COUNT),
    ("attempts", COUNT),
    ("submit_time", Time),
    ("eligible_time", Time),
    ("start_time", Time),
    ("end_time", Time),
];
const QUOTAS: &[(&str, FieldKind)] = &[
    ("cluster", Text),
    ("owner", Text),
    ("pool", Text),
    ("gpu_model", Text),
    ("gpus", GPUS),
    ("time", Time),
];
const POOL_SAMPLES: &[(&str, FieldKind)] = &[
    ("cluster", Text),
    ("owner", Text),
    ("pool", Text),
    ("time", Time),
    ("quota_gpus", GPUS),
    ("held_gpus", GPUS),
    ("queued_gpus", GPUS),
    ("running_jobs", COUNT),
    ("pending_jobs", COUNT),
];
const NODES: &[(&str, FieldKind)] = &[
    ("cluster", Text),
    ("node", Text),
    ("pool", Text),
    ("gpu_model", Text),
    ("gpus", GPUS),
    ("cpus", Number(Dimension::Cpus)),
    ("memory", Number(Dimension::Memory)),
    ("time", Time),
];
const NODE_FAULTS: &[(&str, FieldKind)] = &[
    ("cluster", Text),
    ("node", Text),
    ("kind", Text),
    ("gpu_uuid", Text),
    ("mig_uuid", Text),
    ("gpu_index", COUNT),
    ("pci_bus_id", Text),
    ("xid", COUNT),
    ("fault_id", Text),
    ("fault_level", Text),
    ("fault_class", Text),
    ("description", Text),
    ("start_time", Time),
    ("end_time", Time),
];

/// Who and when; the metrics follow, by their names in `gpu_samples`, or `metric` and `value`.
const GPU_SAMPLES: &[(&str, FieldKind)] = &[
    ("cluster", Text),
    ("node", Text),
    ("gpu_uuid", Text),
    ("mig_uuid", Text),
    ("gpu_instance", Text),
    ("gpu_model", Text),
    ("gpu_index", COUNT),
    ("time", Time),
    ("metric", Text),
    ("value", Text),
];
static GPU_SAMPLES_AND_METRICS: LazyLock<Vec<(&str, FieldKind)>> = LazyLock::new(|| {
    let number = |metric: &Metric| (metric.name(), Number(Unit::of_metric(metric.name()).dimension()));
    GPU_SAMPLES.iter().copied().chain(Metric::ALL.iter().map(number)).collect()
});

/// Required fields of a kind. The cluster may come from `--cluster` instead.
fn required_cells(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Jobs => &["job_id", "submit_time", "gpus"],
        Kind::Quotas => &["owner", "time", "gpus"],
        Kind::PoolSamples => &["owner", "time"],
        Kind::Nodes => &["node", "time"],
        Kind::NodeFaults => &["node", "start_time"],
        Kind::GpuSamples => &["node", "gpu_uuid", "time"],
    }
}

fn fields(kind: Kind) -> &'static [(&'static str, FieldKind)] {
    match kind {
        Kind::Jobs => JOBS,
        Kind::Quotas => QUOTAS,
        Kind::PoolSamples => POOL_SAMPLES,
        Kind::Nodes => NODES,
        Kind::NodeFaults => NODE_FAULTS,
        Kind::GpuSamples => &GPU_SAMPLES_AND_METRICS,
    }
}

fn field_kind(kind: Kind, field: &str) -> Option<FieldKind> {
    fields(kind).iter().find(|(name, _)| *name == field).map(|(_, kind)| *kind)
}

/// Fields that a decoder applies to.
fn decodes(decode: Decode) -> &'static [&'static str] {
    match decode {
        Decode::SlurmJobId => &["job_id"],
        Decode::SlurmTresGpus => &["gpus", "gpus_held"],
        Decode::SlurmHostlist | Decode::QuotedList => &["nodes"],
        Decode::SlurmExitCode | Decode::WaitStatus => &["exit_code"],
        Decode::SlurmTimeLimit => &["time_limit"],
    }
}

impl Mapping {
    pub(super) fn check(&self, file: &str) -> Result<(), MappingError> {
        let invalid = |key: String, what: String| MappingError::Invalid { file: file.into(), key, what };
        if !(1..=MAX_NAME_BYTES).contains(&self.name.len())
            || !self.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        {
            return Err(invalid("name".into(), "must be 1 to 64 letters, digits, _ and -".into()));
        }
        if !self.csv.delimiter.is_ascii() {
            return Err(invalid("csv.delimiter".into(), "must be one ASCII character".into()));
        }
        for (field, spec) in &self.columns {
            let key = format!("columns.{field}");
            let Some(kind) = field_kind(self.kind, field) else {
                return Err(invalid(key, format!("no such field; allowed are {}", names(self.kind))));
            };
            check_spec(field, kind, spec).map_err(|what| invalid(key, what))?;
        }
        for field in self.defaults.keys() {
            if field_kind(self.kind, field) != Some(Text) {
                return Err(invalid(
                    format!("defaults.{field}"),
                    "only text fields can have a default".into(),
                ));
            }
        }
        for field in required_cells(self.kind) {
            if !self.columns.contains_key(*field) {
                return Err(invalid(format!("columns.{field}"), "is required for this kind".into()));
            }
        }
        let is_sample = matches!(self.kind, Kind::PoolSamples | Kind::GpuSamples);
        if is_sample && !self.interval_ms.is_some_and(|ms| (1..=MOST_INTERVAL_MS).contains(&ms)) {
            let what = format!("a sample needs the time that it stands for, from 1 to {MOST_INTERVAL_MS} ms");
            return Err(invalid("interval_ms".into(), what));
        }
        if self.columns.contains_key("metric") != self.columns.contains_key("value") {
            return Err(invalid("columns.metric".into(), "use together with value".into()));
        }
        if self.columns.contains_key("metric")
            && let Some(metric) = Metric::ALL.iter().find(|metric| self.columns.contains_key(metric.name()))
        {
            let what = "is only for files with a column per metric, without columns.metric";
            return Err(invalid(format!("columns.{}", metric.name()), what.into()));
        }
        if !self.reasons_before_eligible.is_empty() && !self.columns.contains_key("reason") {
            return Err(invalid(
                "reasons_before_eligible".into(),
                "needs a column for the field reason".into(),
            ));
        }
        self.check_states().map_err(|(key, what)| invalid(key, what))?;
        self.check_time().map_err(|(key, what)| invalid(key.into(), what))
    }

    fn check_states(&self) -> Result<(), (String, String)> {
        let outcomes = [("final_state", &self.final_state), ("non_final_state", &self.non_final_state)];
        for (key, state) in outcomes {
            if let Some(state) = state {
                state.parse::<FinalState>().map_err(|error| (key.to_owned(), error.to_string()))?;
            }
        }
        for (name, state) in &self.states {
            if state != "PENDING" && state != "RUNNING" {
                let wrong = |error| (format!("states.\"{name}\""), format!("{error}, PENDING or RUNNING"));
                state.parse::<FinalState>().map_err(wrong)?;
            }
        }
        Ok(())
    }

    fn check_time(&self) -> Result<(), (&'static str, String)> {
        if let Some(base) = &self.time.base {
            chrono::DateTime::parse_from_rfc3339(base).map_err(|error| {
                ("time.base", format!("{base} is not a time like 2021-03-04T00:00:00Z: {error}"))
            })?;
        }
        if let Some(zone) = &self.time.zone {
            zone.parse::<chrono_tz::Tz>()
                .map_err(|_| ("time.zone", format!("{zone} is not an IANA zone such as Europe/Berlin")))?;
        }
        Ok(())
    }
}

fn names(kind: Kind) -> String {
    fields(kind).iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn check_spec(field: &str, kind: FieldKind, spec: &FieldSpec) -> Result<(), String> {
    let origins = [
        spec.column.is_some(),
        spec.template.is_some(),
        spec.value.is_some(),
        spec.product.is_some(),
        spec.sum.is_some(),
    ];
    if origins.into_iter().filter(|given| *given).count() != 1 {
        return Err("give exactly one of column, template, value, product, sum".into());
    }
    let only = |wrong: bool, key: &str, place: &str| {
        if wrong { Err(format!("{key} is only for {place}")) } else { Ok(()) }
    };
    let number = matches!(kind, Number(_));
    only(spec.template.is_some() && kind != Text, "template", "text fields")?;
    only(spec.value.is_some() && number, "value", "text and time fields")?;
    only((spec.product.is_some() || spec.sum.is_some()) && !number, "product or sum", "number fields")?;
    only((spec.plus.is_some() || spec.format.is_some()) && kind != Time, "plus or format", "time fields")?;
    only(spec.plus.is_some() != spec.plus_unit.is_some(), "plus_unit", "use together with plus")?;
    if let Some(unit) = spec.unit {
        let fits = matches!(kind, Number(dimension) if dimension == unit.dimension());
        only(!fits, "this unit", "fields that measure the same thing")?;
    }
    if let Some(unit) = spec.plus_unit {
        only(unit.dimension() != Dimension::Time, "plus_unit", "durations: ms, s, min, h, days")?;
    }
    if let Some(decode) = spec.decode {
        only(!decodes(decode).contains(&field), "this decode", &decodes(decode).join(", "))?;
        only(spec.column.is_none(), "decode", "a field with a column")?;
    }
    Ok(())
}

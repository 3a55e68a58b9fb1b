//! Schema numbers: which message a payload is, in which version, on which topic.

/// One schema of the contract. Numbers are stored with every record and are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum SchemaId {
    /// [`v1::JobEvent`](crate::v1::JobEvent).
    JobEvent = 1,
    /// [`v1::CapacityEvent`](crate::v1::CapacityEvent).
    CapacityEvent = 2,
    /// [`v1::PoolSample`](crate::v1::PoolSample).
    PoolSample = 3,
    /// [`v1::NodeEvent`](crate::v1::NodeEvent).
    NodeEvent = 4,
    /// [`v1::DeadLetter`](crate::v1::DeadLetter).
    DeadLetter = 5,
    /// [`v1::GpuSampleBatch`](crate::v1::GpuSampleBatch).
    GpuSampleBatch = 6,
    /// [`v1::StepReport`](crate::v1::StepReport).
    StepReport = 7,
    /// [`v1::StragglerSignal`](crate::v1::StragglerSignal).
    StragglerSignal = 8,
    /// [`v1::NodeSignal`](crate::v1::NodeSignal).
    NodeSignal = 9,
    /// [`v1::Forecast`](crate::v1::Forecast).
    Forecast = 10,
    /// [`v1::AutopilotEvent`](crate::v1::AutopilotEvent).
    AutopilotEvent = 11,
    /// [`v1::CoverageSignal`](crate::v1::CoverageSignal).
    CoverageSignal = 12,
    /// [`v1::JobEndSignal`](crate::v1::JobEndSignal).
    JobEndSignal = 13,
    /// [`v1::ScalingCurve`](crate::v1::ScalingCurve).
    ScalingCurve = 14,
    /// [`v1::SizingAdvice`](crate::v1::SizingAdvice).
    SizingAdvice = 15,
    /// [`v1::AuditEvent`](crate::v1::AuditEvent).
    AuditEvent = 16,
}

/// A record names a schema that this build does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown schema {id} version {version} (number {number}): {}", mend(*.id))]
pub struct UnknownSchema {
    /// Number of the record, `id << 16 | version`.
    pub number: u32,
    /// Its upper half: the schema.
    pub id: u16,
    /// Its lower half: the version.
    pub version: u16,
}

fn mend(id: u16) -> &'static str {
    match id {
        0 => {
            "no event has this number, so another program wrote this; let it write the numbers of schemas/README.md, e.g. 65537 for a job event"
        }
        _ => "written by a newer tidegate? upgrade this reader",
    }
}

impl SchemaId {
    /// All schemas, by number.
    pub const ALL: [Self; 16] = [
        Self::JobEvent,
        Self::CapacityEvent,
        Self::PoolSample,
        Self::NodeEvent,
        Self::DeadLetter,
        Self::GpuSampleBatch,
        Self::StepReport,
        Self::StragglerSignal,
        Self::NodeSignal,
        Self::Forecast,
        Self::AutopilotEvent,
        Self::CoverageSignal,
        Self::JobEndSignal,
        Self::ScalingCurve,
        Self::SizingAdvice,
        Self::AuditEvent,
    ];

    /// Name of the schema's file in `schemas/`, without its ending; also of its folder of fixtures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JobEvent => "job_event",
            Self::CapacityEvent => "capacity_event",
            Self::PoolSample => "pool_sample",
            Self::NodeEvent => "node_event",
            Self::DeadLetter => "dead_letter",
            Self::GpuSampleBatch => "gpu_sample_batch",
            Self::StepReport => "step_report",
            Self::StragglerSignal => "straggler_signal",
            Self::NodeSignal => "node_signal",
            Self::Forecast => "forecast",
            Self::AutopilotEvent => "autopilot_event",
            Self::CoverageSignal => "coverage_signal",
            Self::JobEndSignal => "job_end_signal",
            Self::ScalingCurve => "scaling_curve",
            Self::SizingAdvice => "sizing_advice",
            Self::AuditEvent => "audit_event",
        }
    }

    /// The version that this build writes. It grows by one with every change of the schema.
    pub const fn version(self) -> u16 {
        match self {
            Self::PoolSample
            | Self::DeadLetter
            | Self::Forecast
            | Self::CoverageSignal
            | Self::JobEndSignal
            | Self::ScalingCurve
            | Self::SizingAdvice => 1,
            Self::GpuSampleBatch | Self::StragglerSignal | Self::NodeSignal | Self::AuditEvent => 2,
            Self::JobEvent | Self::NodeEvent => 3,
            Self::CapacityEvent | Self::StepReport => 4,
            Self::AutopilotEvent => 6,
        }
    }

    /// The topic that events of this schema are written to, without a configured prefix.
    pub const fn topic(self) -> &'static str {
        match self {
            Self::JobEvent => "jobs",
            Self::CapacityEvent | Self::PoolSample => "capacity",
            Self::NodeEvent => "nodes",
            Self::DeadLetter => "dead-letters",
            Self::GpuSampleBatch => "gpu-samples",
            Self::StepReport => "steps",
            Self::StragglerSignal
            | Self::NodeSignal
            | Self::CoverageSignal
            | Self::JobEndSignal
            | Self::ScalingCurve
            | Self::SizingAdvice => "signals",
            Self::Forecast => "forecasts",
            Self::AutopilotEvent => "autopilot",
            Self::AuditEvent => "audit",
        }
    }

    /// What the keys of its events are made of, see [`Event::key`](crate::Event::key).
    pub const fn key(self) -> &'static str {
        match self {
            Self::JobEvent | Self::StepReport | Self::StragglerSignal | Self::JobEndSignal => {
                "cluster/job_id"
            }
            Self::CapacityEvent | Self::PoolSample => "cluster/owner",
            Self::NodeEvent | Self::GpuSampleBatch | Self::NodeSignal => "cluster/node",
            Self::Forecast | Self::CoverageSignal | Self::SizingAdvice => "cluster/name",
            Self::ScalingCurve => "cluster/family",
            Self::DeadLetter => "origin",
            Self::AutopilotEvent => "cluster",
            Self::AuditEvent => "source",
        }
    }

    /// Days that the log keeps records of the schema's topic at least, unless a site chooses
    /// otherwise. Samples and step reports are most of a log, and their rows are in the tables.
    pub const fn retained_days(self) -> u64 {
        match self {
            Self::GpuSampleBatch | Self::StepReport => 7,
            _ => 400,
        }
    }

    /// What a record carries: `id << 16 | version`.
    pub const fn number(self) -> u32 {
        (self as u32) << 16 | self.version() as u32
    }

    /// Finds the schema of a record's number.
    ///
    /// Any version of a known schema is accepted: fields are only ever added, and Protobuf skips
    /// those it does not know.
    ///
    /// # Errors
    /// [`UnknownSchema`] if no schema of this build has the number's id.
    pub fn from_number(number: u32) -> Result<Self, UnknownSchema> {
        let (id, version) = ((number >> 16) as u16, number as u16);
        let known = Self::ALL.into_iter().find(|schema| *schema as u16 == id);
        known.ok_or(UnknownSchema { number, id, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_part_of_the_contract() {
        let numbers: Vec<u32> = SchemaId::ALL.into_iter().map(SchemaId::number).collect();
        assert_eq!(
            numbers,
            [
                0x1_0003, 0x2_0004, 0x3_0001, 0x4_0003, 0x5_0001, 0x6_0002, 0x7_0004, 0x8_0002, 0x9_0002,
                0xa_0001, 0xb_0006, 0xc_0001, 0xd_0001, 0xe_0001, 0xf_0001, 0x10_0002
            ]
        );
    }

    #[test]
    fn any_version_of_a_known_schema_is_found() {
        for schema in SchemaId::ALL {
            assert_eq!(SchemaId::from_number(schema.number()), Ok(schema));
            assert_eq!(SchemaId::from_number(schema.number() + 41), Ok(schema));
        }
    }

    #[test]
    fn an_unknown_schema_is_named_in_the_error() {
        let error = SchemaId::from_number(0xff_0002).unwrap_err();
        assert_eq!(error, UnknownSchema { number: 0xff_0002, id: 255, version: 2 });
        assert!(error.to_string().contains("schema 255 version 2"), "{error}");
        assert!(error.to_string().contains("upgrade this reader"), "{error}");
        let error = SchemaId::from_number(0).unwrap_err();
        assert!(error.to_string().contains("another program wrote this"), "{error}");
    }
}

//! Bounds of each schema's fields.

use super::{Field, Kind, Shape};
use crate::{SchemaId, v1};

/// Most samples (devices × ticks) of one batch: an hour of a node with 16 GPUs at 1 Hz.
///
/// It bounds what a reader allocates. A batch of a few bytes may claim any number of ticks and
/// devices for columns that it does not hold.
pub const MAX_SAMPLES: usize = 1 << 16;
/// Longest name of a cluster, source, job, node or device, bytes.
const NAME_BYTES: usize = 4_096;
/// Longest body of an entry of the journal, bytes: the largest record.
const BODY_BYTES: usize = 8 << 20;
/// Devices of a batch: a node has at most 16, each of seven slices.
const DEVICES: usize = 4_096;
/// Columns of a batch; NVML and GPM have some hundred metrics.
const COLUMNS: usize = 512;
/// Values of all columns: those of a hundred metrics of the largest batch.
const VALUES: usize = 100 * MAX_SAMPLES;
/// Runs of missing values in all columns.
const MISSING: usize = 1 << 18;
/// Processes of a batch.
const PROCESSES: usize = 1 << 16;
/// Lines of evidence, rules, signers.
const LINES: usize = 1_024;
/// Quantiles of a forecast.
const LEVELS: usize = 1_024;
/// Longest text of an audit record, bytes: what its writer keeps of one, and room for more.
const AUDITED_BYTES: usize = 64 << 10;

/// What a record of the schema may hold.
pub fn shape_of(schema: SchemaId) -> &'static Shape {
    match schema {
        SchemaId::JobEvent => &JOB,
        SchemaId::CapacityEvent => &CAPACITY,
        SchemaId::PoolSample => &POOL_SAMPLE,
        SchemaId::NodeEvent => &NODE,
        SchemaId::DeadLetter => &DEAD_LETTER,
        SchemaId::GpuSampleBatch => &SAMPLES,
        SchemaId::StepReport => &STEP,
        SchemaId::StragglerSignal => &STRAGGLER,
        SchemaId::NodeSignal => &NODE_SIGNAL,
        SchemaId::Forecast => &FORECAST,
        SchemaId::AutopilotEvent => &AUTOPILOT,
        SchemaId::CoverageSignal => &COVERAGE,
        SchemaId::JobEndSignal => &JOB_END,
        SchemaId::ScalingCurve => &SCALING,
        SchemaId::SizingAdvice => &SIZING,
        SchemaId::AuditEvent => &AUDIT,
    }
}

const fn field(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind }
}

const fn name(number: u32, name: &'static str) -> Field {
    field(number, name, Kind::Text(NAME_BYTES))
}

const ENVELOPE: Field = field(1, "envelope", Kind::Message(&ENVELOPE_SHAPE));
static ENVELOPE_SHAPE: Shape =
    Shape { bytes: 0, fields: &[name(1, "event_id"), name(2, "cluster"), name(3, "source")] };

static JOB: Shape = Shape {
    bytes: size_of::<v1::JobEvent>(),
    fields: &[
        ENVELOPE,
        name(3, "job_id"),
        name(5, "step_id"),
        name(6, "array_job_id"),
        name(8, "team"),
        name(9, "user_name"),
        name(10, "pool"),
        name(24, "hold_id"),
        name(25, "node"),
        name(26, "gpu_uuid"),
        name(27, "mig_uuid"),
    ],
};
static CAPACITY: Shape = Shape {
    bytes: size_of::<v1::CapacityEvent>(),
    fields: &[ENVELOPE, name(3, "owner"), name(4, "pool"), name(5, "gpu_model"), name(7, "name")],
};
static POOL_SAMPLE: Shape =
    Shape { bytes: size_of::<v1::PoolSample>(), fields: &[ENVELOPE, name(2, "owner"), name(3, "pool")] };
static NODE: Shape = Shape {
    bytes: size_of::<v1::NodeEvent>(),
    fields: &[
        ENVELOPE,
        name(3, "node"),
        name(4, "pool"),
        name(5, "gpu_model"),
        name(9, "fault_id"),
        name(13, "gpu_uuid"),
        name(14, "mig_uuid"),
    ],
};
static DEAD_LETTER: Shape =
    Shape { bytes: size_of::<v1::DeadLetter>(), fields: &[ENVELOPE, name(2, "origin"), name(6, "code")] };
static STEP: Shape = Shape {
    bytes: size_of::<v1::StepReport>(),
    fields: &[
        ENVELOPE,
        name(2, "job_id"),
        name(14, "flops_convention"),
        name(15, "precision"),
        name(17, "node"),
        name(18, "gpu_uuid"),
    ],
};

static SAMPLES: Shape = Shape {
    bytes: size_of::<v1::GpuSampleBatch>(),
    fields: &[
        ENVELOPE,
        name(2, "node"),
        field(3, "devices", Kind::Messages(DEVICES, &DEVICE)),
        field(5, "tick_delta_ms", Kind::Numbers(MAX_SAMPLES)),
        field(6, "columns", Kind::Messages(COLUMNS, &COLUMN)),
        field(7, "processes", Kind::Messages(PROCESSES, &PROCESS)),
    ],
};
static DEVICE: Shape = Shape {
    bytes: size_of::<v1::gpu_sample_batch::DeviceInfo>(),
    fields: &[name(1, "uuid"), name(3, "model"), name(4, "mig_uuid")],
};
static COLUMN: Shape = Shape {
    bytes: size_of::<v1::gpu_sample_batch::Column>(),
    fields: &[
        name(1, "name"),
        field(2, "value_delta", Kind::Numbers(VALUES)),
        field(3, "missing", Kind::Messages(MISSING, &MISSING_RUN)),
        field(4, "first_growth", Kind::Numbers(COLUMNS * DEVICES)),
    ],
};
static MISSING_RUN: Shape = Shape { bytes: size_of::<v1::gpu_sample_batch::Missing>(), fields: &[] };
static PROCESS: Shape = Shape {
    bytes: size_of::<v1::gpu_sample_batch::Process>(),
    fields: &[name(6, "name"), name(7, "job_id")],
};

static STRAGGLER: Shape = Shape {
    bytes: size_of::<v1::StragglerSignal>(),
    fields: &[
        ENVELOPE,
        name(3, "job_id"),
        name(8, "node"),
        name(9, "gpu_uuid"),
        field(20, "evidence", Kind::Texts(LINES)),
    ],
};
static NODE_SIGNAL: Shape = Shape {
    bytes: size_of::<v1::NodeSignal>(),
    fields: &[ENVELOPE, name(3, "node"), name(5, "gpu_uuid"), field(7, "evidence", Kind::Texts(LINES))],
};
static FORECAST: Shape = Shape {
    bytes: size_of::<v1::Forecast>(),
    fields: &[
        ENVELOPE,
        name(3, "name"),
        field(7, "level_ppm", Kind::Numbers(LEVELS)),
        field(8, "gpus_milli", Kind::Numbers(LEVELS)),
    ],
};
static AUTOPILOT: Shape = Shape {
    bytes: size_of::<v1::AutopilotEvent>(),
    fields: &[
        ENVELOPE,
        name(4, "holder"),
        field(34, "body", Kind::Text(BODY_BYTES)),
        field(35, "signed_by", Kind::Texts(LINES)),
        field(36, "widens", Kind::Texts(LINES)),
    ],
};
static COVERAGE: Shape =
    Shape { bytes: size_of::<v1::CoverageSignal>(), fields: &[ENVELOPE, name(3, "name")] };
static JOB_END: Shape = Shape {
    bytes: size_of::<v1::JobEndSignal>(),
    fields: &[
        ENVELOPE,
        name(2, "job_id"),
        name(7, "node"),
        name(8, "gpu_uuid"),
        field(14, "evidence", Kind::Texts(LINES)),
    ],
};
static SCALING: Shape = Shape {
    bytes: size_of::<v1::ScalingCurve>(),
    fields: &[ENVELOPE, field(2, "family", Kind::Text(4 * NAME_BYTES)), name(7, "job_id")],
};
static SIZING: Shape = Shape {
    bytes: size_of::<v1::SizingAdvice>(),
    fields: &[
        ENVELOPE,
        name(3, "name"),
        field(43, "regret_rule", Kind::Texts(LINES)),
        field(44, "regret_ppm", Kind::Numbers(LINES)),
    ],
};
static AUDIT: Shape = Shape {
    bytes: size_of::<v1::AuditEvent>(),
    fields: &[
        ENVELOPE,
        name(3, "id"),
        name(4, "principal"),
        name(5, "role"),
        name(6, "teams"),
        name(7, "peer"),
        name(8, "door"),
        field(9, "text", Kind::Text(AUDITED_BYTES)),
        name(11, "text_sha256"),
        name(12, "object"),
        name(13, "code"),
    ],
};

#[cfg(test)]
mod tests {
    use prost_reflect::{Kind as ProtoKind, MessageDescriptor};

    use super::*;

    /// Fields of the descriptor that are repeated have a bound here, under their number and name.
    fn check(message: &MessageDescriptor, shape: &Shape) {
        for of in message.fields() {
            let here = shape.fields.iter().find(|here| here.number == of.number());
            if let Some(here) = here {
                assert_eq!(here.name, of.name(), "{}", message.full_name());
            }
            match (of.is_list(), of.kind(), here.map(|here| &here.kind)) {
                (true, ProtoKind::Message(inner), Some(Kind::Messages(_, shape))) => check(&inner, shape),
                (true, ProtoKind::String | ProtoKind::Bytes, Some(Kind::Texts(_))) => {}
                (true, ProtoKind::Message(_) | ProtoKind::String | ProtoKind::Bytes, _) => {
                    panic!("{} has no bound", of.full_name())
                }
                (true, _, kind) => assert!(matches!(kind, Some(Kind::Numbers(_))), "{}", of.full_name()),
                (false, ProtoKind::Message(inner), Some(Kind::Message(shape))) => check(&inner, shape),
                (false, ProtoKind::Message(_), _) => panic!("{} has no bound", of.full_name()),
                (false, ProtoKind::String | ProtoKind::Bytes, kind) => {
                    assert!(matches!(kind, None | Some(Kind::Text(_))), "{}", of.full_name());
                }
                (false, _, kind) => assert!(kind.is_none(), "{}", of.full_name()),
            }
        }
    }

    #[test]
    fn every_repeated_field_of_the_contract_has_a_bound() {
        let pool = crate::contract::built_in();
        for schema in SchemaId::ALL {
            let title: String =
                schema.name().split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
            let message = pool.get_message_by_name(&format!("tidegate.v1.{title}"));
            check(&message.unwrap_or_else(|| panic!("{title}")), shape_of(schema));
        }
    }
}

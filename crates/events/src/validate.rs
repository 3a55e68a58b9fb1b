//! What a message must hold to be an event. Protobuf itself requires nothing.

mod samples;

pub use samples::MAX_SAMPLES;

use crate::{EVENT_ID_BYTES, Event, v1};

/// What a message lacks to be an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEvent {
    #[error("it has no envelope; fill in cluster, source and event_time_ms")]
    MissingEnvelope,
    #[error("event_id has {len} bytes instead of 16; let Event::seal fill it in")]
    EventIdLength { len: usize },
    #[error("`{field}` is empty; fill it in")]
    MissingField { field: &'static str },
    #[error(
        "kind {kind} is unspecified or of a newer version; set a kind of the schema or upgrade this reader"
    )]
    UnknownKind { kind: i32 },
    #[error(
        "column `{column}` has {values} values instead of {devices} devices × {ticks} ticks; \
         send one value per device and tick, or none"
    )]
    ColumnLength { column: String, values: usize, devices: usize, ticks: usize },
    #[error(
        "column `{column}` has {values} values of first_growth for {devices} devices; send one per device, or none"
    )]
    GrowthLength { column: String, values: usize, devices: usize },
    #[error(
        "column `{column}` marks values {first}..{end} as missing but has only {values}; \
         keep each run inside the column"
    )]
    MissingOutOfRange { column: String, first: u64, end: u64, values: usize },
    #[error("column `{column}` marks value {at} as missing twice; give it one reason")]
    MissingTwice { column: String, at: usize },
    #[error("column `{column}` marks value {at} as missing but holds one there; write a difference of 0")]
    MissingHasValue { column: String, at: usize },
    #[error(
        "{name:?} is no name of a metric; use at most 64 lower-case letters, digits and underscores, with the unit at the \
         end, e.g. power_mw"
    )]
    ColumnName { name: String },
    #[error("column `{column}` stands twice in the batch; send one of them")]
    ColumnTwice { column: String },
    #[error("device `{device}` stands twice in the batch; send each device once, with all its ticks")]
    DeviceTwice { device: String },
    #[error("tick {tick} is at {at_ms} ms since 1970, outside the years 1 to 9999; correct the node's clock")]
    TickOutOfRange { tick: usize, at_ms: i64 },
    #[error("process {pid} was on a device or at a tick that the batch does not have; number both from 0")]
    ProcessOutside { pid: u32 },
    #[error(
        "{levels} levels and {values} values; send one value for each level, and levels that rise from 1 to 999999"
    )]
    ForecastLevels { levels: usize, values: usize },
    #[error("{rules} rules and {values} regrets; send one value for each rule")]
    Regrets { rules: usize, values: usize },
    #[error("{devices} devices × {ticks} ticks are more than {MAX_SAMPLES} samples; send smaller batches")]
    TooManySamples { devices: usize, ticks: usize },
}

impl Event {
    /// Checks what [`Event::decode`] and [`Event::record`] promise of an event.
    ///
    /// # Errors
    /// [`InvalidEvent`] with the first thing that is missing.
    pub fn validate(&self) -> Result<(), InvalidEvent> {
        let envelope = self.envelope().ok_or(InvalidEvent::MissingEnvelope)?;
        if envelope.event_id.len() != EVENT_ID_BYTES {
            return Err(InvalidEvent::EventIdLength { len: envelope.event_id.len() });
        }
        // A dead letter may come from input whose cluster nobody could tell.
        if !matches!(self, Self::DeadLetter(_)) {
            filled("envelope.cluster", &envelope.cluster)?;
        }
        match self {
            Self::Job(job)
                if known_kind(job.kind, v1::JobEventKind::try_from)? == v1::JobEventKind::Observed =>
            {
                Ok(())
            }
            Self::Job(job) => filled("job_id", &job.job_id),
            Self::Capacity(capacity) => {
                known_kind(capacity.kind, v1::CapacityEventKind::try_from)?;
                filled("owner", &capacity.owner)
            }
            Self::PoolSample(sample) => filled("owner", &sample.owner),
            Self::Node(node) => {
                known_kind(node.kind, v1::NodeEventKind::try_from)?;
                filled("node", &node.node)
            }
            Self::DeadLetter(letter) => filled("origin", &letter.origin).and(filled("code", &letter.code)),
            Self::Step(step) => filled("job_id", &step.job_id),
            Self::Straggler(signal) => {
                known_kind(signal.state, v1::SignalState::try_from)?;
                filled("job_id", &signal.job_id)
            }
            Self::NodeHealth(signal) => {
                known_kind(signal.state, v1::NodeHealthState::try_from)?;
                filled("node", &signal.node)
            }
            Self::Forecast(forecast) => {
                known_kind(forecast.kind, v1::SeriesKind::try_from)?;
                filled("name", &forecast.name)?;
                forecast_fits(forecast)
            }
            Self::Coverage(signal) => {
                known_kind(signal.kind, v1::SeriesKind::try_from)?;
                known_kind(signal.reach, v1::ForecastReach::try_from)?;
                known_kind(signal.state, v1::CoverageState::try_from)?;
                filled("name", &signal.name)
            }
            Self::JobEnd(signal) => filled("job_id", &signal.job_id),
            Self::Autopilot(event) => {
                use v1::AutopilotEventKind as Kind;
                filled("holder", &event.holder)?;
                match known_kind(event.kind, Kind::try_from)? {
                    Kind::LeaseTaken | Kind::PolicyTaken | Kind::Alert | Kind::Cycles => Ok(()),
                    Kind::Planned => filled("plan", event.plan.as_deref().unwrap_or_default()),
                    Kind::ShadowPolicy => {
                        filled("policy_hash", event.policy_hash.as_deref().unwrap_or_default())
                    }
                    Kind::ShadowPlanned => filled("plan", event.plan.as_deref().unwrap_or_default())
                        .and(filled("beside_plan", event.beside_plan.as_deref().unwrap_or_default())),
                    Kind::CanaryBegan | Kind::CanaryEnded => {
                        filled("canary", event.canary.as_deref().unwrap_or_default())
                    }
                    _ => filled("action", event.action.as_deref().unwrap_or_default()),
                }
            }
            Self::Sizing(advice) => {
                known_kind(advice.kind, v1::SeriesKind::try_from)?;
                filled("name", &advice.name).and(filled("term", &advice.term))?;
                match advice.regret_rule.len() == advice.regret_ppm.len() {
                    true => Ok(()),
                    false => Err(InvalidEvent::Regrets {
                        rules: advice.regret_rule.len(),
                        values: advice.regret_ppm.len(),
                    }),
                }
            }
            Self::Scaling(curve) => filled("family", &curve.family).and(filled("unit", &curve.unit)),
            Self::GpuSamples(batch) => filled("node", &batch.node).and_then(|()| samples::fits(batch)),
        }
    }
}

/// Readers pair levels with values and interpolate between them.
fn forecast_fits(forecast: &v1::Forecast) -> Result<(), InvalidEvent> {
    let (levels, values) = (&forecast.level_ppm, &forecast.gpus_milli);
    let rises = levels.windows(2).all(|pair| pair[0] < pair[1]);
    let inside = levels.iter().all(|level| (1..1_000_000).contains(level));
    match !levels.is_empty() && levels.len() == values.len() && rises && inside {
        true => Ok(()),
        false => Err(InvalidEvent::ForecastLevels { levels: levels.len(), values: values.len() }),
    }
}

fn filled(field: &'static str, value: &str) -> Result<(), InvalidEvent> {
    if value.is_empty() { Err(InvalidEvent::MissingField { field }) } else { Ok(()) }
}

/// Kind 0 is Protobuf's "not set" in each of the enums.
fn known_kind<K, E>(kind: i32, parse: impl Fn(i32) -> Result<K, E>) -> Result<K, InvalidEvent> {
    parse(kind).ok().filter(|_| kind != 0).ok_or(InvalidEvent::UnknownKind { kind })
}

//! Validation: what a message must hold to be an event. Protobuf itself requires nothing.

mod samples;

use crate::invalid::{InvalidEvent, filled};
use crate::{EVENT_ID_BYTES, Event, v1};

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
        // A dead letter may come from input without a known cluster, and a query is of none.
        if !matches!(self, Self::DeadLetter(_) | Self::Audit(_)) {
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
                    Kind::LeaseTaken
                    | Kind::PolicyTaken
                    | Kind::Alert
                    | Kind::Cycles
                    | Kind::Measured
                    | Kind::Switched
                    | Kind::EntryRefused => Ok(()),
                    Kind::Promise => filled("object", event.object.as_deref().unwrap_or_default()),
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
            Self::Audit(event) => {
                known_kind(event.kind, v1::AuditEventKind::try_from)?;
                filled("envelope.source", &envelope.source)?;
                filled("id", &event.id).and(filled("door", &event.door))
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

/// Kind 0 is Protobuf's "not set" in each of the enums.
fn known_kind<K, E>(kind: i32, parse: impl Fn(i32) -> Result<K, E>) -> Result<K, InvalidEvent> {
    parse(kind).ok().filter(|_| kind != 0).ok_or(InvalidEvent::UnknownKind { kind })
}

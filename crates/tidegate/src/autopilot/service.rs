//! Wires the autopilot's service to this program: past demand from the tables, status to metrics
//! and to those who steer, lines to standard output.

use std::sync::Arc;
use std::thread::JoinHandle;

use serde::Deserialize;
use tidegate_autopilot::slo::ObjectiveStatus;
use tidegate_control::service::{DemandHour, Hooks, Service, ServiceStatus};
use tidegate_server::{AutopilotKept, Metrics, ObjectiveKept, QueryService};
use tokio::sync::watch;

use super::steering::LastStep;
use crate::commands::{CommandError, ask, chain, quoted};

/// Days of history that the forecast learns from when it starts.
const LEARNED_DAYS: u32 = 28;

/// Lets the forecast learn from the tables, if they hold anything. Failure is logged: the forecast
/// then starts empty.
pub async fn learn_from(service: &mut Service, tables: &QueryService) {
    match past_demand(service.cluster(), tables).await {
        Ok(hours) => {
            service.learn(&hours);
            tracing::info!("the forecast has learned from {} hours of teams and pools", hours.len());
        }
        Err(error) => tracing::warn!("the forecast begins with nothing: {}", chain(error.as_ref())),
    }
}

async fn past_demand(cluster: &str, tables: &QueryService) -> Result<Vec<DemandHour>, CommandError> {
    #[derive(Deserialize)]
    struct Hour {
        at_us: i64,
        pool: String,
        team: String,
        gpus: f64,
    }
    let cluster = quoted(cluster);
    let hours: Vec<Hour> = ask(
        tables,
        &format!(
            "SELECT CAST(window_start AS BIGINT) AS at_us, pool, team, \
             CAST(sum(gpu_ms_held + gpu_ms_queued) AS DOUBLE) / 3600000 AS gpus FROM usage_1h \
             WHERE cluster = {cluster} AND pool IS NOT NULL AND team IS NOT NULL \
             AND window_start >= now() - INTERVAL '{LEARNED_DAYS} days' GROUP BY window_start, pool, team ORDER BY 1, 2, 3"
        ),
    )
    .await?;
    let hour = |Hour { at_us, pool, team, gpus }| DemandHour { at_us, pool, team, gpus };
    Ok(hours.into_iter().map(hour).collect())
}

/// Runs the service until told to stop; with `once`, makes a single step.
///
/// # Errors
/// As for [`Service::run`].
pub fn run(
    service: Service,
    stopped: &watch::Receiver<bool>,
    once: bool,
    metrics: &Metrics,
    last_step: &LastStep,
) -> Result<(), CommandError> {
    let hooks = Hooks {
        stopped: &|| *stopped.borrow(),
        line: &|line| say!("{line}"),
        status: &|status| {
            metrics.observe_autopilot(&gauges(&status));
            last_step.set(Some(status));
        },
    };
    let ended = service.run(once, &hooks);
    last_step.set(None);
    ended
}

/// Runs the service on a thread of its own. If it fails, that is logged and stops nothing else.
pub fn spawn(
    service: Service,
    stopped: watch::Receiver<bool>,
    metrics: Arc<Metrics>,
    last_step: Arc<LastStep>,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        if let Err(error) = run(service, &stopped, false, &metrics, &last_step) {
            tracing::error!("the autopilot has stopped, all else goes on: {}", chain(error.as_ref()));
        }
    })
}

fn gauges(status: &ServiceStatus) -> AutopilotKept {
    let objective = |standing: &ObjectiveStatus| ObjectiveKept {
        objective: standing.series.objective.name(),
        kind: standing.series.kind.map_or("all", |kind| kind.name()),
        attained_ppm: standing.attained_ppm,
        budget_left_ppm: standing.budget_left_ppm,
        burn_rate_milli: standing.burn_rate_milli,
        alerts: standing.burning.iter().map(|burn| burn.severity()).collect(),
    };
    AutopilotKept {
        objectives: status.objectives.iter().map(objective).collect(),
        cluster: status.cluster.clone(),
        stepped_s: status.stepped_s,
        acts: status.leads,
    }
}

//! `tidegate autopilot slo`: how well the autopilot itself does, from its journal.

use serde::Serialize;
use tidegate_autopilot::executor::{ExecutorState, JournalEntry};
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_autopilot::slo::{Alert, ObjectiveStatus};
use tidegate_control::PlanArchive;

use crate::commands::{CommandError, DataArgs, block_on, committed};

/// Everything the autopilot wrote but its plans, which are large and count for nothing here.
const COUNTED: &str = "kind NOT IN ('PLANNED', 'LEASE_TAKEN', 'SCORED')";

/// What is said of the autopilot itself.
#[derive(Debug, Serialize)]
struct SloReport {
    objectives: Vec<ObjectiveStatus>,
    /// Alerts that stand.
    alerts: Vec<Alert>,
    /// Kinds that may go less far while an alert stands.
    stepped_down: Vec<(String, String)>,
}

/// `policy`: whose objectives and promises count.
pub(super) fn run(policy: &Policy, json: bool, data: &DataArgs) -> Result<(), CommandError> {
    let entries: Vec<JournalEntry> = block_on(async {
        let service = committed(data).await?;
        let archive = PlanArchive::in_data(&data.data);
        crate::autopilot::record::entries(&service, &archive, COUNTED).await
    })??;
    // The time of what it says of itself: a simulated cluster has a time of its own.
    let Some(now_us) = entries.iter().map(|entry| entry.at_us).max() else {
        say!("the autopilot has not run yet");
        return Ok(());
    };
    let mut known = ExecutorState::default();
    known.policy = Some(policy.clone());
    entries.into_iter().for_each(|entry| known.fold(entry));
    known.slo.tallies.expire(now_us);
    let stepped = known.slo.steps_down(&policy.slo);
    let mode = |kind| policy.modes.get(&kind).copied().unwrap_or(Mode::Observe).down();
    let report = SloReport {
        objectives: known.slo.status(&policy.slo, now_us),
        alerts: known.slo.firing().cloned().collect(),
        stepped_down: stepped
            .map(|(kind, _)| (kind.name().to_owned(), mode(kind).name().to_owned()))
            .collect(),
    };
    if json {
        say!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    if report.objectives.is_empty() {
        say!("nothing was counted yet, or the policy asks for no objectives");
    }
    report.objectives.iter().for_each(|standing| say!("{}", line(standing)));
    for alert in &report.alerts {
        say!("alert   {} {}: {}", alert.burn.severity(), alert.burn.name(), alert.why);
    }
    for (kind, mode) in &report.stepped_down {
        say!("lowered {kind} may {mode} until that is over");
    }
    Ok(())
}

fn line(standing: &ObjectiveStatus) -> String {
    let share =
        |ppm: Option<u64>| ppm.map_or_else(|| "-".to_owned(), |ppm| format!("{:.2} %", ppm as f64 / 1e4));
    let what = match standing.series.kind {
        Some(kind) => format!("{} {kind}", standing.series.objective.name()),
        None => standing.series.objective.name().to_owned(),
    };
    let left =
        standing.budget_left_ppm.map_or_else(|| "-".to_owned(), |ppm| format!("{:.0} %", ppm as f64 / 1e4));
    let rate =
        standing.burn_rate_milli.map_or_else(|| "-".to_owned(), |milli| format!("{:.1}", milli as f64 / 1e3));
    format!(
        "{what:28} {} of {} over {} days ({} of {} well), {left} of the error budget left, burning {rate} times as fast as it may in the last hour",
        share(standing.attained_ppm),
        share(Some(standing.objective_ppm)),
        standing.window_days,
        standing.counts.good,
        standing.counts.all(),
    )
}

//! `tidegate explain decision`: reasons, alternatives and result of a decision, replayed from the
//! journal.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tidegate_autopilot::action::{Adjustment, Change};
use tidegate_autopilot::dry_run::{Compared, Expected};
use tidegate_autopilot::executor::{JournalEvent, PlanRecord};
use tidegate_autopilot::intent::Transition;
use tidegate_autopilot::planner::{Considered, Decision};
use tidegate_autopilot::rollout::shadow::ID_PREFIX;
use tidegate_autopilot::scorecard::{Interval, Score};
use tidegate_autopilot::state::ForecastOrigin;
use tidegate_control::PlanArchive;
use tidegate_server::QueryService;

use crate::autopilot::record::{ActionStep, entries, has_inputs, plan, steps};
use crate::commands::rollout::{ReplayedShadow, replay_shadow};
use crate::commands::{CommandError, CommandResult, DataArgs, ask, block_on, committed, quoted};

/// Number of other objects of the same kind that are shown.
const OTHERS: usize = 8;

/// Explain why the autopilot decided on an action, its alternatives, and the result
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate sql \"SELECT decided_time, action, object, state FROM decisions ORDER BY decided_time DESC LIMIT 10\"
  tidegate explain decision lend-1b491e8c244329c8

The explanation comes from the autopilot's journal. The plan is computed again from its recorded
inputs, which gives the same bytes.")]
pub(super) struct DecisionArgs {
    /// Id of the action, as in the table `decisions`
    action: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// Explanation of a decision.
#[derive(Debug, Serialize)]
struct Explanation {
    action: String,
    plan: String,
    /// Name of the policy that decided it.
    policy: String,
    /// base: acts; canary: acts for some owners; shadow: only plans.
    role: &'static str,
    decision: Decision,
    /// What was considered for its object, with alternatives.
    considered: Option<Considered>,
    /// What was considered for other objects of the kind.
    others: Vec<Considered>,
    /// Origin of the demand forecast, if recorded.
    #[serde(rename = "foreseen")]
    forecast_origin: Option<ForecastOrigin>,
    /// Whether the replayed plan equals the recorded one byte for byte; `None` if its inputs are
    /// not recorded.
    same_bytes: Option<bool>,
    steps: Vec<ActionStep>,
    /// What the dry run expected when it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    expected: Option<Expected>,
    /// What was observed of that after it was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<Compared>,
    score: Option<Score>,
}

pub(super) fn run(args: &DecisionArgs) -> CommandResult {
    let explanation = block_on(explain(args))??;
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&explanation)?),
        false => print(&explanation),
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn as_json(data: &DataArgs, action: &str) -> Result<String, CommandError> {
    let args = DecisionArgs { action: action.to_owned(), json: true, data: data.clone() };
    Ok(serde_json::to_string(&explain(&args).await?)?)
}

async fn explain(args: &DecisionArgs) -> Result<Explanation, CommandError> {
    let service = committed(&args.data).await?;
    let archive = PlanArchive::in_data(&args.data.data);
    if let Some(id) = args.action.strip_prefix(ID_PREFIX) {
        return shadow_decision(&service, &archive, &args.action, id).await;
    }
    let of = format!("action = {}", quoted(&args.action));
    let mut proposed = None;
    let (mut score, mut expected, mut compared) = (None, None, None);
    let kinds = "('PROPOSED', 'SCORED', 'EXPECTED', 'COMPARED')";
    for entry in entries(&service, &archive, &format!("{of} AND kind IN {kinds}")).await? {
        match entry.event {
            JournalEvent::Step(step) => {
                if let Transition::Proposed { decision, plan, .. } = step.transition {
                    proposed = Some((*decision, plan));
                }
            }
            JournalEvent::Scored(scored) => score = Some(scored),
            JournalEvent::Expected(of_action) => expected = Some(*of_action),
            JournalEvent::Compared(of_action) => compared = Some(*of_action),
            _ => {}
        }
    }
    let Some((decision, plan_id)) = proposed else { return Err(unknown(&service, &args.action).await?) };
    let planned = plan(&service, &archive, &plan_id)
        .await?
        .ok_or_else(|| format!("plan {plan_id} of {} is not on record any more", args.action))?;
    let parent = match &planned.plan.parent {
        Some(id) => plan(&service, &archive, id).await?,
        None => None,
    };
    let same_bytes = made_again(&planned, parent.as_ref())?;
    let forecast_origin = forecast_origin(&planned, &decision.action.change);
    let (own, others): (Vec<Considered>, Vec<Considered>) = (planned.report.considered.into_iter())
        .filter(|considered| considered.kind == decision.kind)
        .partition(|considered| considered.action.as_deref() == Some(&*args.action));
    Ok(Explanation {
        action: args.action.clone(),
        plan: plan_id,
        policy: decision.canary.clone().unwrap_or_else(|| planned.plan.policy.clone()),
        role: if decision.canary.is_some() { "canary" } else { "base" },
        considered: own.into_iter().next(),
        others: others.into_iter().take(OTHERS).collect(),
        decision,
        forecast_origin,
        same_bytes,
        steps: steps(&service, &args.action).await?,
        expected,
        compared,
        score,
    })
}

/// Explains a decision of a shadow. Its plan is replayed, since it is not recorded in full.
async fn shadow_decision(
    service: &QueryService,
    archive: &PlanArchive,
    action: &str,
    id: &str,
) -> Result<Explanation, CommandError> {
    let made_it = format!(
        "plan = (SELECT max(plan) FROM autopilot_events WHERE kind = 'SHADOW_DECIDED' AND action = {})",
        quoted(action)
    );
    let Ok(ReplayedShadow { shadowed, beside, plan, report, same_bytes }) =
        replay_shadow(service, archive, &made_it).await
    else {
        return Err(unknown(service, action).await?);
    };
    let decision = plan.decisions.iter().find(|decision| decision.action.id == id).cloned();
    let decision = decision.ok_or_else(|| {
        format!(
            "plan {}, made again from the record, does not hold {action}: was it made by another version?",
            shadowed.plan
        )
    })?;
    let (own, others): (Vec<Considered>, Vec<Considered>) = (report.considered.into_iter())
        .filter(|considered| considered.kind == decision.kind)
        .partition(|considered| considered.action.as_deref() == Some(id));
    Ok(Explanation {
        action: action.to_owned(),
        plan: shadowed.plan,
        policy: shadowed.policy,
        role: "shadow",
        considered: own.into_iter().next(),
        others: others.into_iter().take(OTHERS).collect(),
        forecast_origin: forecast_origin(&beside, &decision.action.change),
        decision,
        same_bytes,
        steps: steps(service, action).await?,
        expected: None,
        compared: None,
        score: None,
    })
}

/// Whether replaying gives the same plan.
fn made_again(planned: &PlanRecord, parent: Option<&PlanRecord>) -> Result<Option<bool>, CommandError> {
    if !has_inputs(planned) || planned.plan.parent.is_some() != parent.is_some() {
        return Ok(None);
    }
    let (plan, report) = planned.replay(parent.map(|parent| &parent.plan));
    let same = serde_json::to_vec(&plan)? == serde_json::to_vec(&planned.plan)?
        && serde_json::to_vec(&report)? == serde_json::to_vec(&planned.report)?;
    Ok(Some(same))
}

fn forecast_origin(planned: &PlanRecord, change: &Change) -> Option<ForecastOrigin> {
    let (owner, pool) = match change {
        Change::Lend { from, pool, .. } => (from, pool),
        Change::AdjustReservation(Adjustment::Quota { owner, pool, .. }) => (owner, pool),
        Change::Reclaim { loan, .. } => {
            let loan = planned.state.loans.get(loan)?;
            (&loan.from, &loan.pool)
        }
        _ => return None,
    };
    planned.state.forecast_origins.get(owner)?.get(pool).cloned()
}

async fn unknown(service: &QueryService, action: &str) -> Result<CommandError, CommandError> {
    #[derive(serde::Deserialize)]
    struct Row {
        action: String,
    }
    let newest: Vec<Row> = ask(
        service,
        "SELECT action FROM decisions WHERE role <> 'shadow' ORDER BY decided_time DESC LIMIT 3",
    )
    .await?;
    let newest: Vec<&str> = newest.iter().map(|row| &*row.action).collect();
    let hint = match newest.is_empty() {
        true => "nothing was decided yet".to_owned(),
        false => format!("the newest are {}", newest.join(", ")),
    };
    Ok(format!("there is no decision {action}; {hint}").into())
}

fn print(explanation: &Explanation) {
    let Explanation { decision, considered, others, same_bytes, steps, score, .. } = explanation;
    let hours = |gpu_ms: i64| gpu_ms as f64 / 3.6e6;
    let predicted = &decision.predicted;
    say!("{}  {} of {}", explanation.action, decision.kind, decision.action.change.object());
    say!("why     {}", decision.reason);
    say!(
        "worth   {:+.1} GPU-hours net over {} min ({:.1} gained, {:.1} lost; at the cautious ends {:+.1})",
        hours(predicted.net_gpu_ms()),
        predicted.over_ms / 60_000,
        hours(predicted.benefit_gpu_ms),
        hours(predicted.cost_gpu_ms),
        hours(predicted.net_low_gpu_ms()),
    );
    let role = match explanation.role {
        "shadow" => " (a shadow, which only plans: this is never done)",
        "canary" => " (a canary, which acts for some owners)",
        _ => "",
    };
    say!("policy  {}{role}, mode {}", explanation.policy, decision.mode.name());
    let alternatives = considered.iter().flat_map(|considered| &considered.alternatives);
    for (at, other) in alternatives.enumerate() {
        let head = if at == 0 { "instead" } else { "       " };
        say!("{head} {}: {:+.1} GPU-hours, {}", other.what, hours(other.net_gpu_ms), other.why_not);
    }
    match &explanation.forecast_origin {
        Some(ForecastOrigin::Published { series, issued_us, off, .. }) => {
            let issued = chrono::DateTime::from_timestamp_micros(*issued_us).unwrap_or_default();
            let held = if off.is_empty() { "its bounds hold" } else { "its bounds do not hold" };
            say!("demand  predicted by {series} on the log, issued {}; {held}", issued.format("%FT%TZ"));
        }
        Some(ForecastOrigin::Past { why, .. }) => say!("demand  predicted from its own past: {why}"),
        Some(ForecastOrigin::Nobody { why }) => say!("demand  not predicted: {why}"),
        None => {}
    }
    for (at, other) in others.iter().enumerate() {
        let head = if at == 0 { "others " } else { "       " };
        let object = other.object.as_ref().map_or_else(|| "all".to_owned(), ToString::to_string);
        say!("{head} {object}: {}", other.reason);
    }
    let told = steps.iter().filter(|step| !matches!(step.kind.as_str(), "EXPECTED" | "COMPARED"));
    for (at, step) in told.enumerate() {
        let head = if at == 0 { "steps  " } else { "       " };
        let rule = step.rule.as_ref().map_or_else(String::new, |rule| format!(" [{rule}]"));
        let because = step.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        let why = match step.kind.as_str() {
            "PROPOSED" => String::new(),
            "APPROVED" => format!(" by {}", step.holder),
            "APPROVAL_REFUSED" => format!(" of {}{because}", step.holder),
            "REJECTED" => format!(" by {}{because}", step.holder),
            _ => because,
        };
        say!("{head} {}  {}{rule}{why}", step.event_time, step.kind.to_lowercase());
    }
    if let Some(expected) = &explanation.expected {
        say!("tried   on a copy of the cluster: {expected}");
    }
    if let Some(compared) = &explanation.compared {
        say!("found   {compared}");
    }
    if let Some(score) = score {
        let point = score.realised_gpu_ms.map(|gpu_ms| format!("{:+.1}", hours(gpu_ms)));
        let realised = match score.interval {
            Some(Interval { low_gpu_ms, high_gpu_ms }) => {
                let point = point.map_or_else(String::new, |point| format!(", most likely {point}"));
                let (low, high) = (hours(low_gpu_ms), hours(high_gpu_ms));
                format!("came to between {low:+.1} and {high:+.1} GPU-hours net{point}")
            }
            None => point.map_or_else(
                || "what it came to cannot be said".to_owned(),
                |point| format!("came to {point} GPU-hours net"),
            ),
        };
        say!("score   {realised}; {:+.1} were predicted", hours(score.predicted_gpu_ms));
        if let Some(without) = &score.without {
            say!("without {without}");
        }
    }
    say!(
        "again   {}",
        match same_bytes {
            Some(true) => "made again from the record, the plan is the same, byte for byte",
            Some(false) => "made again from the record, the plan is ANOTHER: was it made by another version?",
            None =>
                "the plan's inputs are not on record (the process that planned keeps the newest in autopilot/plans of its data folder), so it cannot be made again",
        }
    );
}

//! `tidegate plan`: shows plans of the autopilot, their reasons, and differences of two plans.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::PlanRecord;
use tidegate_autopilot::planner::{Advice, Considered, Decision};
use tidegate_control::PlanArchive;
use tidegate_server::QueryService;

use super::{CommandError, CommandResult, DataArgs, ask, block_on, committed, rollout};
use crate::autopilot::record;

/// Show plans of the autopilot, and why
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate plan show
  tidegate plan why n017
  tidegate plan diff 0123456789abcdef fedcba9876543210
  tidegate plan diff --shadow

The journal has every plan that decided something new, and otherwise one plan every ten minutes.
Times are UTC.")]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the decisions of a plan, and the reasons against others
    #[command(after_help = "Examples:
  tidegate plan show
  tidegate plan show 0123456789abcdef --json")]
    Show {
        /// The plan [default: the newest recorded]
        plan: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Show what was considered for a node, job, owner, pool, loan or reservation, newest plan
    /// first
    #[command(after_help = "Examples:
  tidegate plan why n017")]
    Why {
        /// Name of the object
        object: String,
        #[command(flatten)]
        common: Common,
    },
    /// Show decisions of one plan that another does not make
    #[command(after_help = "Examples:
  tidegate plan diff
  tidegate plan diff 0123456789abcdef fedcba9876543210
  tidegate plan diff --shadow")]
    Diff {
        /// The earlier plan [default: the one recorded before the later]
        from: Option<String>,
        /// The later plan [default: the newest recorded]
        to: Option<String>,
        /// Compare the acting plan with the shadow's of the same cycle: of the plan named, or the
        /// newest
        #[arg(long, conflicts_with = "to")]
        shadow: bool,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// Number of plans searched for an object.
const LOOK_BACK: usize = 20;

#[derive(Debug, Deserialize)]
struct Made {
    plan: String,
    made_time: String,
}

pub fn run(args: PlanArgs) -> CommandResult {
    block_on(async {
        match &args.command {
            Command::Show { plan, common } => show(plan.as_deref(), common).await,
            Command::Why { object, common } => why(object, common).await,
            Command::Diff { from, shadow: true, common, .. } => {
                let service = committed(&common.data).await?;
                rollout::diff(&service, &archive(common), from.as_deref(), common.json).await
            }
            Command::Diff { from, to, common, .. } => diff(from.as_deref(), to.as_deref(), common).await,
        }
    })??;
    Ok(ExitCode::SUCCESS)
}

async fn made(service: &QueryService, limit: usize) -> Result<Vec<Made>, CommandError> {
    let newest: Vec<Made> = ask(
        service,
        &format!("SELECT plan, made_time FROM plans WHERE role <> 'shadow' ORDER BY made_time DESC, generation DESC LIMIT {limit}"),
    )
    .await?;
    match newest.is_empty() {
        true => Err(
            "no plan is in the tables: `tidegate autopilot run` makes plans, `tidegate pipeline run` brings them from the log into the tables, and \
             `tidegate up --demo` shows how"
                .into(),
        ),
        false => Ok(newest),
    }
}

/// Inputs and reasons of the plans that this data folder's process made.
fn archive(common: &Common) -> PlanArchive {
    PlanArchive::in_data(&common.data.data)
}

async fn load(service: &QueryService, archive: &PlanArchive, id: &str) -> Result<PlanRecord, CommandError> {
    let planned = record::plan(service, archive, id).await?;
    if planned.as_ref().is_some_and(|planned| !record::has_inputs(planned)) {
        tracing::warn!(
            "plan {id} is on record without its inputs and reasons: the process that planned keeps the newest, in \
             autopilot/plans of its data folder"
        );
    }
    planned.ok_or_else(|| {
        format!(
            "there is no plan {id} on record; `tidegate sql \"SELECT plan, made_time FROM plans\"` lists them"
        )
        .into()
    })
}

async fn show(plan: Option<&str>, common: &Common) -> Result<(), CommandError> {
    let service = committed(&common.data).await?;
    let id = match plan {
        Some(id) => id.to_owned(),
        None => made(&service, 1).await?.remove(0).plan,
    };
    let planned = load(&service, &archive(common), &id).await?;
    if common.json {
        #[derive(Serialize)]
        struct Shown<'a> {
            plan: &'a tidegate_autopilot::planner::Plan,
            considered: &'a [Considered],
            advice: &'a [Advice],
        }
        let shown = Shown {
            plan: &planned.plan,
            considered: &planned.report.considered,
            advice: &planned.report.advice,
        };
        say!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    let plan = &planned.plan;
    say!(
        "plan {} of cluster {}, policy {}: {} decisions",
        plan.id,
        plan.cluster,
        plan.policy,
        plan.decisions.len()
    );
    plan.decisions.iter().for_each(say_decision);
    let nothing = planned.report.considered.iter().filter(|considered| considered.action.is_none());
    for considered in nothing {
        let object = considered.object.as_ref().map_or_else(String::new, |object| format!(" {object}"));
        say!("  nothing  {}{object}: {}", considered.kind, considered.reason);
    }
    for advice in &planned.report.advice {
        say!("  advice   {}: {}", advice.object, advice.reason);
    }
    Ok(())
}

fn say_decision(decision: &Decision) {
    say!(
        "  {:8} {} of {}, {} GPUs, {:+.1} GPU-hours: {}  [{}]",
        decision.mode.name(),
        decision.kind,
        decision.action.change.object(),
        decision.gpus,
        decision.predicted.net_gpu_ms() as f64 / 3.6e6,
        decision.reason,
        decision.action.id
    );
}

async fn why(object: &str, common: &Common) -> Result<(), CommandError> {
    #[derive(Serialize)]
    struct ShadowResult {
        plan: String,
        made_time: String,
        #[serde(flatten)]
        considered: Considered,
    }
    let service = committed(&common.data).await?;
    let mut shadow_results = Vec::new();
    for Made { plan, made_time } in made(&service, LOOK_BACK).await? {
        let planned = load(&service, &archive(common), &plan).await?;
        let about = |considered: &Considered| {
            considered
                .object
                .as_ref()
                .is_some_and(|of| of.to_string().split_once(' ').is_some_and(|(_, name)| name == object))
        };
        let own = planned.report.considered.into_iter().filter(about);
        shadow_results.extend(own.map(|considered| ShadowResult {
            plan: plan.clone(),
            made_time: made_time.clone(),
            considered,
        }));
    }
    if common.json {
        say!("{}", serde_json::to_string_pretty(&shadow_results)?);
        return Ok(());
    }
    if shadow_results.is_empty() {
        return Err(format!("none of the last {LOOK_BACK} plans on record considered {object}").into());
    }
    for ShadowResult { made_time, considered, .. } in &shadow_results {
        let did = considered.action.as_deref().unwrap_or("nothing");
        say!("{made_time}  {}: {did}, {}", considered.kind, considered.reason);
        for other in &considered.alternatives {
            say!(
                "    instead {}: {:+.1} GPU-hours, {}",
                other.what,
                other.net_gpu_ms as f64 / 3.6e6,
                other.why_not
            );
        }
    }
    Ok(())
}

async fn diff(from: Option<&str>, to: Option<&str>, common: &Common) -> Result<(), CommandError> {
    #[derive(Serialize)]
    struct Diff<'a> {
        from: &'a str,
        to: &'a str,
        policy_changed: bool,
        state_changed: bool,
        gone: Vec<&'a Decision>,
        new: Vec<&'a Decision>,
        same: usize,
    }
    let service = committed(&common.data).await?;
    let to = match to {
        Some(id) => load(&service, &archive(common), id).await?,
        None => load(&service, &archive(common), &made(&service, 1).await?.remove(0).plan).await?,
    };
    let before = from.or(to.plan.parent.as_deref());
    let before = before.ok_or_else(|| format!("{} is the first plan on record: name two", to.plan.id))?;
    let from = load(&service, &archive(common), before).await?;
    let by_id = |planned: &PlanRecord| -> BTreeMap<String, Decision> {
        planned.plan.decisions.iter().map(|decision| (decision.action.id.clone(), decision.clone())).collect()
    };
    let (old, new) = (by_id(&from), by_id(&to));
    let diff = Diff {
        from: &from.plan.id,
        to: &to.plan.id,
        policy_changed: from.plan.policy_hash != to.plan.policy_hash,
        state_changed: from.plan.state_hash != to.plan.state_hash,
        gone: old.iter().filter(|(id, _)| !new.contains_key(*id)).map(|(_, decision)| decision).collect(),
        new: new.iter().filter(|(id, _)| !old.contains_key(*id)).map(|(_, decision)| decision).collect(),
        same: new.keys().filter(|id| old.contains_key(*id)).count(),
    };
    if common.json {
        say!("{}", serde_json::to_string_pretty(&diff)?);
        return Ok(());
    }
    let changed = |changed: bool| if changed { "another" } else { "the same" };
    say!(
        "from {} to {}: {} policy, {} state, {} decisions stand",
        diff.from,
        diff.to,
        changed(diff.policy_changed),
        changed(diff.state_changed),
        diff.same
    );
    for (sign, decisions) in [("-", &diff.gone), ("+", &diff.new)] {
        for decision in decisions {
            say!(
                "{sign} {} of {}, {} GPUs: {}  [{}]",
                decision.kind,
                decision.action.change.object(),
                decision.gpus,
                decision.reason,
                decision.action.id
            );
        }
    }
    Ok(())
}

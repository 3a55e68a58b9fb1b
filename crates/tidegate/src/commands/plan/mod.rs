//! `tidegate plan`: shows plans of the autopilot, their reasons, and differences of two plans.

mod made;
mod newest;
mod show;
mod why;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::PlanRecord;
use tidegate_autopilot::planner::Decision;
use tidegate_control::PlanArchive;
use tidegate_server::QueryService;

use super::{CommandError, CommandResult, DataArgs, ask, block_on, committed, rollout};
use crate::autopilot::record;

/// Show plans of the autopilot, and why
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate plan show
  tidegate plan why
  tidegate plan why n017
  tidegate plan diff 0123456789abcdef fedcba9876543210
  tidegate plan diff --shadow

The journal has every plan that decided something new, those that say something else than the one
before (six at once, then one in ten minutes), and one every ten minutes. The newest plan is in the
data folder of the autopilot whether or not it is in the journal. Times are UTC.")]
pub struct PlanArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the decisions of a plan, the reasons against others, and what it was made from
    #[command(after_help = "Examples:
  tidegate plan show
  tidegate plan show 0123456789abcdef --json")]
    Show {
        /// The plan [default: the newest there is]
        plan: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Show why something is or is not done for a node, job, owner, pool, loan or reservation
    #[command(after_help = "Examples:
  tidegate plan why
  tidegate plan why n017
  tidegate plan why --json

Without a name: every job, node and owner of the newest plan, one line each, with the setting,
comment or data that would change it. With one: all of it for each kind of action, and what the
newest plans considered.")]
    Why {
        /// Name of the object [default: all of them]
        object: Option<String>,
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

/// The newest plan there is. `None`: nothing has planned here, or it cannot be read.
pub(super) async fn newest_plan(data: &DataArgs) -> Option<PlanRecord> {
    let common = Common { json: false, data: data.clone() };
    newest::find(None, &common).await.ok().map(|found| found.planned)
}

/// A plan of the tables.
#[derive(Debug, Deserialize)]
struct Made {
    plan: String,
    made_time: String,
    holder: Option<String>,
    generation: Option<u64>,
}

pub fn run(args: PlanArgs) -> CommandResult {
    block_on(async {
        match &args.command {
            Command::Show { plan, common } => show::run(plan.as_deref(), common).await,
            Command::Why { object: None, common } => why::all(common).await,
            Command::Why { object: Some(object), common } => why::one(object, common).await,
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
        &format!("SELECT plan, made_time, holder, generation FROM plans WHERE role <> 'shadow' ORDER BY made_time DESC, generation DESC LIMIT {limit}"),
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

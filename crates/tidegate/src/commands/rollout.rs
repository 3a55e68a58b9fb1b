//! Reports on shadows and canaries, from the autopilot's journal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tidegate_autopilot::executor::{JournalEntry, JournalEvent, PlanRecord};
use tidegate_autopilot::planner::{Decision, Plan, Report};
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::rollout::shadow::{ID_PREFIX, ShadowEvent, ShadowPlan};
use tidegate_autopilot::rollout::summary::{KindComparison, ShadowSummary, summary};
use tidegate_autopilot::rollout::{Canaries, CanaryEvent};
use tidegate_autopilot::scorecard::Score;
use tidegate_control::authority::{self, ApprovalStatement, SignedText};
use tidegate_control::{ControlFolder, PlanArchive};
use tidegate_server::QueryService;

use super::{CommandError, DataArgs, ask, block_on, committed, quoted};
use crate::autopilot::record::{entries, has_inputs, plan};

/// Compare a shadow with the acting policy.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate autopilot shadow
  tidegate autopilot shadow --days 30 --policy careful --json

A decision that recurs from plan to plan counts once every ten minutes. Decisions that both policies
made, and that were carried out, are scored. The effect of decisions that only the shadow made
cannot be measured on one cluster; `tidegate backtest` estimates it.")]
pub struct ShadowArgs {
    /// Days before the newest journal entry
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Name of the shadow's policy [default: the newest]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

/// Show canaries, and restart one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate autopilot canary
  tidegate autopilot canary --restart

A canary that was rolled back stays rolled back when the autopilot restarts. It begins again with
--restart, or when its policy, owners or rules in the policy file change.")]
pub struct CanaryArgs {
    /// Restart the canary that was rolled back last
    #[arg(long)]
    restart: bool,
    /// SSH key to sign the restart with, if the site requires signatures; the public key for a key
    /// in an agent or on a security key
    #[arg(long, value_name = "FILE", env = "TIDEGATE_APPROVE_KEY")]
    key: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "restart")]
    json: bool,
    #[command(flatten)]
    data: DataArgs,
}

fn shadow_events(entries: Vec<JournalEntry>) -> Vec<ShadowEvent> {
    let of = |entry: JournalEntry| match entry.event {
        JournalEvent::Shadow(event) => Some(*event),
        _ => None,
    };
    entries.into_iter().filter_map(of).collect()
}

pub fn shadow(args: &ShadowArgs) -> Result<(), CommandError> {
    let since = format!(
        "event_time >= (SELECT max(event_time) FROM autopilot_events) - INTERVAL '{} days'",
        args.days
    );
    let (events, scored) = block_on(async {
        let service = committed(&args.data).await?;
        let archive = PlanArchive::in_data(&args.data.data);
        let kinds = "kind IN ('SHADOW_PLANNED', 'SHADOW_DECIDED')";
        let events = entries(&service, &archive, &format!("{kinds} AND {since}")).await?;
        let scored = entries(&service, &archive, &format!("kind = 'SCORED' AND {since}")).await?;
        Ok::<_, CommandError>((shadow_events(events), scored))
    })??;
    let newest = events.iter().rev().find_map(|event| match event {
        ShadowEvent::Planned(planned) => Some(planned.policy.clone()),
        _ => None,
    });
    let Some(policy) = args.policy.clone().or(newest) else {
        return Err(format!(
            "no shadow planned in the last {} days: name one in the policy's [shadow] or by `tidegate autopilot run --shadow FILE`",
            args.days
        )
        .into());
    };
    let scores: Vec<Score> = scored
        .into_iter()
        .filter_map(|entry| match entry.event {
            JournalEvent::Scored(score) => Some(score),
            _ => None,
        })
        .collect();
    let found = summary(&policy, events.iter(), scores.iter());
    if args.json {
        say!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(());
    }
    print_shadow(&policy, args.days, &found);
    Ok(())
}

fn print_shadow(policy: &str, days: u32, found: &ShadowSummary) {
    say!(
        "shadow {policy}, {days} days: {} plans made by both and on record, {} of them alike",
        found.plans,
        found.alike
    );
    let hours = |gpu_ms: i64| gpu_ms as f64 / 3.6e6;
    for (kind, side) in &found.kinds {
        let KindComparison { both, scored, only_acting, only_shadow, .. } = side;
        say!(
            "{:18} both {both:4} ({:+.1} GPU-hours predicted), only acting {only_acting:4} ({:+.1}), only shadow {only_shadow:4} ({:+.1})",
            kind.name(),
            hours(side.both_net_gpu_ms),
            hours(side.only_acting_net_gpu_ms),
            hours(side.only_shadow_net_gpu_ms),
        );
        if *scored > 0 {
            say!("{:18} {scored} of both are scored: {:+.1} GPU-hours", "", hours(side.realised_gpu_ms));
        }
        for (rule, times) in &side.refused {
            let rule = serde_json::to_value(rule).ok().and_then(|name| Some(name.as_str()?.to_owned()));
            say!("{:18} the guard would refuse {times} by {}", "", rule.unwrap_or_default());
        }
    }
}

/// State of a canary.
#[derive(Debug, Serialize)]
struct Line {
    canary: String,
    policy: String,
    owners: Vec<String>,
    acts: bool,
    rolled_back: bool,
    why: Option<String>,
    began_us: i64,
    #[serde(skip)]
    beginning: String,
}

pub fn canary(args: &CanaryArgs, by: &str) -> Result<(), CommandError> {
    let events: Vec<(i64, CanaryEvent)> = block_on(async {
        let service = committed(&args.data).await?;
        let archive = PlanArchive::in_data(&args.data.data);
        let found = entries(&service, &archive, "kind IN ('CANARY_BEGAN', 'CANARY_ENDED')").await?;
        let of = |entry: JournalEntry| match entry.event {
            JournalEvent::Canary(event) => Some((entry.at_us, *event)),
            _ => None,
        };
        Ok::<_, CommandError>(found.into_iter().filter_map(of).collect())
    })??;
    let lines = canary_lines(&events);
    if args.restart {
        let ended = lines.iter().filter(|line| line.rolled_back).max_by_key(|line| line.began_us);
        let Some(line) = ended else { return Err("no canary was ended by its record".into()) };
        let signed = args.key.as_deref().map(|key| sign_restart(key, line, &args.data)).transpose()?;
        ControlFolder::in_data(&args.data.data).approve(&line.canary, by, signed.as_ref())?;
        say!(
            "{} acts for {} again from the next look on, if the policy still names it",
            line.policy,
            line.owners.join(", ")
        );
        return Ok(());
    }
    if args.json {
        say!("{}", serde_json::to_string_pretty(&lines)?);
        return Ok(());
    }
    if lines.is_empty() {
        say!("no canary was ever begun: name one in the policy's [canary]");
    }
    for line in &lines {
        let stands = if line.acts { "acts" } else { "has ended" };
        let why = line.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        say!("{}  {} for {} {stands}{why}", line.canary, line.policy, line.owners.join(", "));
    }
    Ok(())
}

/// Signs one restart of a canary on its cluster.
fn sign_restart(key: &Path, line: &Line, data: &DataArgs) -> Result<SignedText, CommandError> {
    #[derive(Deserialize)]
    struct Of {
        cluster: String,
    }
    let found: Vec<Of> = block_on(async {
        let sql =
            format!("SELECT DISTINCT cluster FROM autopilot_events WHERE canary = {}", quoted(&line.canary));
        ask(&committed(data).await?, &sql).await
    })??;
    let Some(of) = found.first() else { return Err(format!("{} is of no cluster", line.canary).into()) };
    let now = chrono::Utc::now();
    let statement = ApprovalStatement::given(&of.cluster, &line.canary, &line.beginning, now);
    Ok(SignedText::by_key(key, authority::APPROVE, statement.text())?)
}

/// State of every canary, by id.
fn canary_lines(events: &[(i64, CanaryEvent)]) -> Vec<Line> {
    let mut canaries = Canaries::default();
    let mut owners: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (at_us, event) in events {
        canaries.fold(event, *at_us);
        if let CanaryEvent::Began { canary: what, .. } = event {
            owners.insert(what.id(), what.owners.iter().cloned().collect());
        }
    }
    let line = |(id, stands): (&String, &tidegate_autopilot::rollout::CanaryStatus)| Line {
        canary: id.clone(),
        policy: stands.policy.clone(),
        owners: owners.get(id).cloned().unwrap_or_default(),
        acts: stands.ended.is_none(),
        rolled_back: stands.ended.as_ref().is_some_and(|(_, _, by_record)| *by_record),
        why: stands.ended.as_ref().map(|(_, why, _)| why.clone()),
        began_us: stands.began_us,
        beginning: stands.beginning(),
    };
    canaries.all().map(line).collect()
}

/// A shadow plan, replayed from the journal.
pub struct ReplayedShadow {
    /// The journaled record.
    pub shadowed: ShadowPlan,
    /// The acting plan of the same cycle.
    pub beside: PlanRecord,
    /// The plan itself.
    pub plan: Plan,
    /// The reasons.
    pub report: Report,
    /// Whether it equals the recorded plan byte for byte; `None` if its inputs were not recorded.
    pub same_bytes: Option<bool>,
}

/// Replays the newest shadow plan that matches `condition`.
///
/// # Errors
/// There is none, or its inputs are not recorded any more.
pub async fn replay_shadow(
    service: &QueryService,
    archive: &PlanArchive,
    condition: &str,
) -> Result<ReplayedShadow, CommandError> {
    #[derive(Deserialize)]
    struct Row {
        plan: String,
    }
    let newest: Vec<Row> = ask(
        service,
        &format!(
            "SELECT plan FROM autopilot_events WHERE kind = 'SHADOW_PLANNED' AND {condition} ORDER BY epoch DESC, seq DESC LIMIT 1"
        ),
    )
    .await?;
    let Some(Row { plan: id }) = newest.into_iter().next() else {
        return Err("no such plan of a shadow is on record: `tidegate sql \"SELECT plan, made_time FROM plans WHERE role = 'shadow'\"` lists them".into());
    };
    let found =
        entries(service, archive, &format!("kind = 'SHADOW_PLANNED' AND plan = {}", quoted(&id))).await?;
    let shadowed = shadow_events(found).into_iter().find_map(|event| match event {
        ShadowEvent::Planned(planned) => Some(*planned),
        _ => None,
    });
    let shadowed = shadowed.ok_or_else(|| format!("plan {id} is not on record any more"))?;
    let hash = quoted(&shadowed.policy_hash);
    let found =
        entries(service, archive, &format!("kind = 'SHADOW_POLICY' AND policy_hash = {hash}")).await?;
    let policy: Option<Policy> = shadow_events(found).into_iter().find_map(|event| match event {
        ShadowEvent::Policy { policy, .. } => Some(*policy),
        _ => None,
    });
    let policy =
        policy.ok_or_else(|| format!("policy {} of {id} is not on record any more", shadowed.policy))?;
    let beside = plan(service, archive, &shadowed.acting_plan).await?;
    let beside = beside
        .ok_or_else(|| format!("plan {} beside {id} is not on record any more", shadowed.acting_plan))?;
    let (plan, report) = shadowed.replay(&policy, &beside);
    let same_bytes = has_inputs(&beside).then(|| shadowed.matches(&plan, &report));
    Ok(ReplayedShadow { shadowed, beside, plan, report, same_bytes })
}

/// `tidegate plan diff --shadow`: compares the acting plan of a cycle with the shadow's.
pub async fn diff(
    service: &QueryService,
    archive: &PlanArchive,
    plan: Option<&str>,
    json: bool,
) -> Result<(), CommandError> {
    #[derive(Serialize)]
    struct Diff<'a> {
        acting: &'a str,
        shadow: &'a str,
        policy: &'a str,
        only_acting: Vec<&'a Decision>,
        only_shadow: Vec<&'a Decision>,
        same: usize,
    }
    let condition = plan.map_or_else(
        || "plan IS NOT NULL".to_owned(),
        |plan| format!("(plan = {0} OR beside_plan = {0})", quoted(plan)),
    );
    let ReplayedShadow { shadowed, beside, plan, same_bytes, .. } =
        replay_shadow(service, archive, &condition).await?;
    if same_bytes.is_none() {
        return Err(format!(
            "the state that {} was made from is not on record, so it cannot be made again",
            shadowed.plan
        )
        .into());
    }
    let (acting, shadow) = (&beside.plan.decisions, &plan.decisions);
    let lacks = |others: &[Decision], own: &Decision| !others.iter().any(|other| other.is_same(own));
    let only_acting: Vec<&Decision> = acting.iter().filter(|own| lacks(shadow, own)).collect();
    let only_shadow: Vec<&Decision> = shadow.iter().filter(|own| lacks(acting, own)).collect();
    let same = shadow.len() - only_shadow.len();
    let diff = Diff {
        acting: &beside.plan.id,
        shadow: &shadowed.plan,
        policy: &shadowed.policy,
        only_acting,
        only_shadow,
        same,
    };
    if json {
        say!("{}", serde_json::to_string_pretty(&diff)?);
        return Ok(());
    }
    say!("from {} to {}, shadow {}: {same} decisions are the same", diff.acting, diff.shadow, diff.policy);
    for (sign, mark, decisions) in [("-", "", &diff.only_acting), ("+", ID_PREFIX, &diff.only_shadow)] {
        for decision in decisions {
            let Decision { kind, action, gpus, reason, .. } = decision;
            say!("{sign} {kind} of {}, {gpus} GPUs: {reason}  [{mark}{}]", action.change.object(), action.id);
        }
    }
    Ok(())
}

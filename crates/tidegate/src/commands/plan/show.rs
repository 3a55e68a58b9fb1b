//! `tidegate plan show`: one plan, what it was made from, its decisions, and the reasons against
//! others.

use serde::Serialize;
use tidegate_autopilot::planner::{Advice, Considered, Decision, Plan};

use super::Common;
use super::made::{MadeBy, MadeFrom, span};
use super::newest::{Found, find};
use crate::commands::CommandError;

#[derive(Serialize)]
struct Shown<'a> {
    plan: &'a Plan,
    made: MadeBy,
    made_from: Option<MadeFrom>,
    considered: &'a [Considered],
    advice: &'a [Advice],
}

pub(super) async fn run(plan: Option<&str>, common: &Common) -> Result<(), CommandError> {
    let found = find(plan, common).await?;
    let now_us = chrono::Utc::now().timestamp_micros();
    let (made, made_from) = (MadeBy::of(&found, now_us), MadeFrom::of(&found));
    let planned = &found.planned;
    if common.json {
        let shown = Shown {
            plan: &planned.plan,
            made,
            made_from,
            considered: &planned.report.considered,
            advice: &planned.report.advice,
        };
        say!("{}", serde_json::to_string_pretty(&shown)?);
        return Ok(());
    }
    say!("{}", heading(&found, now_us));
    made.lines(&found).iter().for_each(|line| say!("  {line}"));
    made_from.iter().flat_map(MadeFrom::lines).for_each(|line| say!("  {line}"));
    planned.plan.decisions.iter().for_each(say_decision);
    let nothing = planned.report.considered.iter().filter(|considered| considered.action.is_none());
    for considered in nothing {
        let object = considered.object.as_ref().map_or_else(String::new, |object| format!(" {object}"));
        say!("  nothing  {}{object}: {}", considered.kind, considered.reason);
    }
    for advice in &planned.report.advice {
        say!("  advice   {}: {}", advice.object, advice.reason);
    }
    if plan.is_none() {
        say!("`tidegate plan why` says where each job, node and owner stands");
    }
    Ok(())
}

/// The line that names a plan, with its time and age.
pub(super) fn heading(found: &Found, now_us: i64) -> String {
    let plan = &found.planned.plan;
    let made = MadeBy::of(found, now_us);
    format!(
        "plan {} of cluster {}, made {} ({} ago), policy {} ({}): {} decisions",
        plan.id,
        plan.cluster,
        super::made::time(plan.made_us),
        span(made.age_s()),
        plan.policy,
        plan.policy_hash,
        plan.decisions.len()
    )
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

//! `tidegate plan why`: where jobs, nodes and owners stand with each kind of action, and what would
//! change that.

use serde::Serialize;
use tidegate_autopilot::planner::Considered;
use tidegate_autopilot::state::Object;
use tidegate_control::{Eligibility, Standing, eligibility};

use super::made::time;
use super::newest::{Found, find};
use super::show::heading;
use super::{Common, archive, load, made};
use crate::autopilot::record::has_inputs;
use crate::commands::{CommandError, committed};

/// Number of plans searched for an object.
const LOOK_BACK: usize = 20;

/// Every job, node and owner, one line each.
pub(super) async fn all(common: &Common) -> Result<(), CommandError> {
    let found = find(None, common).await?;
    if !has_inputs(&found.planned) {
        return Err(format!(
            "plan {} is on record without the state it was made from, so it does not say which objects there were: run this \
             where the autopilot runs, or name an object",
            found.planned.plan.id
        )
        .into());
    }
    let standings = eligibility(&found.planned);
    if common.json {
        return say_json(&found, &standings, &[]);
    }
    say!("{}", heading(&found, chrono::Utc::now().timestamp_micros()));
    let mut last: Option<&Object> = None;
    for standing in &standings {
        if last != Some(&standing.object) {
            say!("{}", line(standing));
            last = Some(&standing.object);
        }
    }
    if last.is_none() {
        say!("there is no job, node or owner on the cluster: check the pools of the deployment file");
    }
    say!(
        "`tidegate plan why NAME` tells all of one; jobs that wait for a person, another job or a time are not planned for"
    );
    Ok(())
}

/// What a plan of the record considered about an object.
#[derive(Serialize)]
struct ThenConsidered {
    plan: String,
    made_time: String,
    #[serde(flatten)]
    considered: Considered,
}

/// All of one object.
pub(super) async fn one(object: &str, common: &Common) -> Result<(), CommandError> {
    let found = find(None, common).await?;
    let named = |of: &Object| of.to_string().split_once(' ').is_some_and(|(_, name)| name == object);
    let mut standings = eligibility(&found.planned);
    standings.retain(|standing| named(&standing.object));
    let earlier = earlier(&named, &found, common).await?;
    if standings.is_empty() && earlier.is_empty() {
        return Err(format!(
            "neither the newest plan of {} nor the last {LOOK_BACK} on record know {object}: `tidegate plan why` lists what the \
             newest knows; jobs that wait for a person, another job or a time are not planned for",
            time(found.planned.plan.made_us)
        )
        .into());
    }
    if common.json {
        return say_json(&found, &standings, &earlier);
    }
    if !standings.is_empty() {
        say!("{}", heading(&found, chrono::Utc::now().timestamp_micros()));
        standings.iter().for_each(|standing| say!("{}", line(standing)));
    }
    for ThenConsidered { made_time, considered, .. } in &earlier {
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

/// What the newest plans considered about an object, the newest plan first. Without tables, that
/// one alone.
async fn earlier(
    named: &impl Fn(&Object) -> bool,
    found: &Found,
    common: &Common,
) -> Result<Vec<ThenConsidered>, CommandError> {
    let newest = &found.planned;
    let mut plans =
        vec![(newest.plan.id.clone(), time(newest.plan.made_us), newest.report.considered.clone())];
    if let Ok(service) = committed(&common.data).await {
        for made in made(&service, LOOK_BACK).await.unwrap_or_default() {
            if made.plan != newest.plan.id {
                let planned = load(&service, &archive(common), &made.plan).await?;
                plans.push((made.plan, made.made_time, planned.report.considered));
            }
        }
    }
    let mut earlier = Vec::new();
    for (plan, made_time, all) in plans {
        let about = all.into_iter().filter(|considered| considered.object.as_ref().is_some_and(named));
        earlier.extend(about.map(|considered| ThenConsidered {
            plan: plan.clone(),
            made_time: made_time.clone(),
            considered,
        }));
    }
    Ok(earlier)
}

fn say_json(
    found: &Found,
    standings: &[Eligibility],
    considered: &[ThenConsidered],
) -> Result<(), CommandError> {
    #[derive(Serialize)]
    struct Why<'a> {
        plan: &'a str,
        made_time: String,
        standings: &'a [Eligibility],
        considered: &'a [ThenConsidered],
    }
    let plan = &found.planned.plan;
    let why = Why { plan: &plan.id, made_time: time(plan.made_us), standings, considered };
    say!("{}", serde_json::to_string_pretty(&why)?);
    Ok(())
}

fn line(standing: &Eligibility) -> String {
    let Eligibility { object, kind, standing, reason, change, .. } = standing;
    let kind = kind.map_or_else(String::new, |kind| format!("{kind} "));
    let change = match (standing, change) {
        (Standing::Decided, Some(change)) => format!("; {change}"),
        (_, Some(change)) => format!(" (would change it: {change})"),
        (_, None) => String::new(),
    };
    format!("{object}: {kind}{}: {reason}{change}", standing.name())
}

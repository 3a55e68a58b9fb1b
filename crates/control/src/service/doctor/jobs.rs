//! Checks of the jobs in the queue: what they declare, and what is not known of them.

use tidegate_autopilot::state::{GrowBy, JobKind};

use super::knowledge::SiteKnowledge;
use super::{Check, listed};
use crate::service::config::ServiceConfig;
use crate::slurm::{Survey, SurveyedJob};

/// Checks the jobs that hold or ask for GPUs.
pub(super) fn check(
    config: &ServiceConfig,
    survey: &Survey,
    known: Option<&SiteKnowledge>,
    checks: &mut Vec<Check>,
) {
    let jobs = &survey.jobs;
    declared(config, jobs, checks);
    let endless = listed(jobs.iter().filter(|job| !job.has_time_limit).map(|job| &job.id));
    checks.push(match endless.is_empty() {
        true => Check::ok("time limits", "every job has one"),
        false => Check::warning(
            "time limits",
            format!(
                "jobs {endless} have none: when they end is not known, so no node is drained for slowing them"
            ),
            "--time of the job, or DefaultTime of its partition",
        ),
    });
    let waits = |job: &SurveyedJob| {
        let reason = job.waits_for.as_deref()?;
        Some(format!("{} ({})", job.id, if reason.is_empty() { "held" } else { reason }))
    };
    let waiting = listed(jobs.iter().filter_map(waits));
    if !waiting.is_empty() {
        let found =
            format!("jobs {waiting} wait for a person, another job or a time: they are not planned for");
        checks.push(Check::ok("waiting", found));
    }
    if let Some(known) = known {
        elastic(known, checks);
    }
}

fn declared(config: &ServiceConfig, jobs: &[SurveyedJob], checks: &mut Vec<Check>) {
    let wrong: Vec<(&str, &str)> =
        jobs.iter().filter_map(|job| Some((job.id.as_str(), job.problem.as_deref()?))).collect();
    for (id, problem) in wrong.iter().take(super::LISTED) {
        let fix = format!("scontrol update JobId={id} Comment=tidegate:…");
        checks.push(Check::warning("comments", format!("job {id}: {problem}"), fix));
    }
    if wrong.len() > super::LISTED {
        let found = format!("{} more jobs declare wrongly", wrong.len() - super::LISTED);
        checks.push(Check::warning("comments", found, "--json does not list them either: mend these first"));
    }
    let count = jobs.iter().filter(|job| job.declares).count();
    let by_qos = config
        .slurm
        .as_ref()
        .is_some_and(|slurm| !(slurm.opt_in_qos.is_empty() && slurm.preemptible_qos.is_empty()));
    let found = format!("{count} of {} jobs declare something in their comment", jobs.len());
    checks.push(match count == 0 && !jobs.is_empty() && !by_qos {
        true => Check::warning(
            "comments",
            format!("{found}: no running job may be touched"),
            "sbatch --comment=tidegate:elastic,min=8,max=32,grow=requeue or tidegate:preemptible,notice; or opt_in_qos of [slurm]",
        ),
        false => Check::ok("comments", found),
    });
}

/// Elastic jobs that cannot be resized for want of a curve.
fn elastic(known: &SiteKnowledge, checks: &mut Vec<Check>) {
    let elastic = known.state.jobs.iter().filter_map(|(id, job)| match job.kind {
        JobKind::Elastic { grow, .. } => Some((id, job, grow)),
        JobKind::Gang | JobKind::Service { .. } => None,
    });
    let elastic: Vec<_> = elastic.collect();
    let blind = listed(elastic.iter().filter(|(_, job, _)| job.curve.is_none()).map(|(id, ..)| id));
    let stuck = listed(elastic.iter().filter(|(_, _, grow)| *grow == GrowBy::Never).map(|(id, ..)| id));
    if !blind.is_empty() {
        let steps = if known.has_steps { "" } else { "; no job reports steps" };
        checks.push(Check::warning(
            "scaling",
            format!("elastic jobs {blind} do not grow: how they scale is not known{steps}"),
            "step reports of the job's family at two sizes (guide/agents.md), and the signals on the log",
        ));
    }
    if !stuck.is_empty() {
        checks.push(Check::warning(
            "scaling",
            format!("elastic jobs {stuck} only shrink"),
            "grow=requeue or grow=satellites in their comments, if they can",
        ));
    }
    if blind.is_empty() && stuck.is_empty() {
        let found = match elastic.is_empty() {
            true => "no job is elastic".to_owned(),
            false => format!("of {} elastic jobs the scaling is known", elastic.len()),
        };
        checks.push(Check::ok("scaling", found));
    }
}

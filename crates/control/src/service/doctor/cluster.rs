//! Checks of the scheduler: what it is, what we may do there, pools and owners.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::rollout::Rollout;

use super::knowledge::SiteKnowledge;
use super::{Check, listed};
use crate::eligibility::map_account;
use crate::service::config::ServiceConfig;
use crate::slurm::{SlurmConfig, Survey};

/// Checks the scheduler against the deployment file.
pub(super) fn check(
    config: &ServiceConfig,
    policy: Option<&Policy>,
    survey: &Survey,
    known: Option<&SiteKnowledge>,
    checks: &mut Vec<Check>,
) {
    let slurm = config.slurm.clone().unwrap_or_default();
    if let Some(known) = known {
        scheduler(config, known, checks);
        rights(survey, known, checks);
    }
    pools(&slurm, survey, checks);
    owners(&slurm, survey, checks);
    if let Some(policy) = policy {
        named(policy, None, &slurm, survey, checks);
    }
    notices(&slurm, survey, checks);
}

/// Checks the names in the policies that run beside the acting one.
pub(super) fn candidates(
    config: &ServiceConfig,
    rollout: &Rollout,
    survey: &Survey,
    checks: &mut Vec<Check>,
) {
    let slurm = config.slurm.clone().unwrap_or_default();
    if let Some(canary) = &rollout.canary {
        let owners = known_owners(&slurm, survey);
        for owner in canary.owners.iter().filter(|owner| !owners.contains(owner)) {
            let found = format!("canary.owners names {owner:?}, and the autopilot does not start with it");
            checks.push(Check::missing("policy", found, one_of(&listed(&owners))));
        }
        named(&canary.policy, Some("canary"), &slurm, survey, checks);
    }
    if let Some(shadow) = &rollout.shadow {
        named(shadow, Some("shadow"), &slurm, survey, checks);
    }
}

fn scheduler(config: &ServiceConfig, known: &SiteKnowledge, checks: &mut Vec<Check>) {
    let state = &known.state;
    let gpus: u32 = state.nodes.values().map(|node| node.gpus).sum();
    checks.push(Check::ok(
        "scheduler",
        format!(
            "{}: {} nodes with {gpus} GPUs in {} pools, {} jobs to plan for",
            known.capabilities.name,
            state.nodes.len(),
            state.pools.len(),
            state.jobs.len()
        ),
    ));
    if state.cluster != config.cluster() {
        let found = format!(
            "the deployment file says cluster = {:?}, Slurm is {:?}: signals and forecasts of {:?} are read",
            config.cluster(),
            state.cluster,
            config.cluster()
        );
        checks.push(Check::warning(
            "scheduler",
            found,
            "the name that the watcher and the agents report under",
        ));
    }
}

fn rights(survey: &Survey, known: &SiteKnowledge, checks: &mut Vec<Check>) {
    let kinds = &known.capabilities.kinds;
    let missing = listed(Kind::ALL.into_iter().filter(|kind| !kinds.contains(kind)));
    let can = listed(kinds.iter());
    let raise = "rights.md has the least rights for each kind";
    checks.push(match (kinds.is_empty(), missing.is_empty()) {
        (true, _) => Check::missing("rights", format!("{} may only look", survey.user), raise),
        (_, true) => Check::ok("rights", format!("{} may {can}", survey.user)),
        (_, false) => Check::warning("rights", format!("{} may {can}; not {missing}", survey.user), raise),
    });
    for lacking in &survey.lacking {
        // What is lacking, and why or how to get it.
        let (what, why) = lacking.split_once(": ").unwrap_or((lacking, "see rights.md"));
        checks.push(Check::warning("lacks", what, why));
    }
}

/// Partitions without a pool, and pools without nodes.
fn pools(slurm: &SlurmConfig, survey: &Survey, checks: &mut Vec<Check>) {
    let mut found = Vec::new();
    let outside: Vec<&String> =
        survey.partitions.keys().filter(|name| slurm.pool_of(name).is_none()).collect();
    for partition in &outside {
        let jobs = survey.jobs.iter().filter(|job| job.partitions.contains(*partition)).count();
        let what = format!(
            "partition {partition} with {} GPUs and {jobs} jobs belongs to no pool: nothing there is planned for",
            survey.partitions[*partition]
        );
        let fix = format!("[slurm.pools.{partition}], or nothing if it is to be left alone");
        found.push(Check::warning("pools", what, fix));
    }
    for pool in slurm.pools.keys() {
        let partition = slurm.partition(pool);
        if !survey.partitions.contains_key(partition) {
            let what = format!("pool {pool} is partition {partition}, which has no GPUs in Slurm");
            let fix = format!(
                "partition = … in [slurm.pools.{pool}]; Slurm has {}",
                listed(survey.partitions.keys())
            );
            found.push(Check::missing("pools", what, fix));
        }
    }
    if found.is_empty() {
        let by = if slurm.pools.is_empty() { "each partition is one" } else { "each has its partition" };
        found.push(Check::ok("pools", format!("{}: {by}", listed(survey.partitions.keys()))));
    }
    checks.append(&mut found);
}

/// Accounts that no owner maps, and owners whose shares name what is not there.
fn owners(slurm: &SlurmConfig, survey: &Survey, checks: &mut Vec<Check>) {
    let before = checks.len();
    let mut unmapped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for job in survey.jobs.iter().filter(|job| !slurm.owners.contains_key(&job.owner)) {
        unmapped.entry(&job.account).or_default().push(&job.id);
    }
    for (account, jobs) in &unmapped {
        if account.is_empty() {
            let what = format!("jobs {} have no account, so no owner has them", listed(jobs));
            checks.push(Check::warning("owners", what, "accounts need slurmdbd; submit with --account"));
            continue;
        }
        let what = format!(
            "no owner maps account {account:?}, of {} jobs ({}): nothing is kept, lent or foreseen for it",
            jobs.len(),
            listed(jobs)
        );
        checks.push(Check::warning("owners", what, map_account(account)));
    }
    let pools = known_pools(slurm, survey);
    for (owner, of) in &slurm.owners {
        for pool in of.shares.keys().filter(|pool| !pools.contains(*pool)) {
            let what = format!("owner {owner} has a share of pool {pool}, which has no nodes with GPUs");
            let fix = format!("[slurm.owners.{owner}.shares.POOL]; there are {}", listed(&pools));
            checks.push(Check::missing("owners", what, fix));
        }
        if of.shares.is_empty() {
            let fix = format!("[slurm.owners.{owner}.shares.POOL]");
            checks.push(Check::warning("owners", format!("owner {owner} has no share of any pool"), fix));
        }
    }
    if slurm.owners.is_empty() {
        let fix = "[slurm.owners.NAME] with its accounts and shares: without owners nothing is lent or kept";
        checks.push(Check::warning("owners", "the deployment file names none", fix));
    } else if checks.len() == before {
        let found = format!("{}: every account of a job has one", listed(slurm.owners.keys()));
        checks.push(Check::ok("owners", found));
    }
}

/// Owners and pools that a policy names and the site does not have. `role` is that of a candidate.
fn named(policy: &Policy, role: Option<&str>, slurm: &SlurmConfig, survey: &Survey, checks: &mut Vec<Check>) {
    let of = role.map_or_else(String::new, |role| format!("{role} {}: ", policy.name));
    let (owners, pools) = (known_owners(slurm, survey), known_pools(slurm, survey));
    // An account without jobs may be right, so this is no more than a warning.
    for (key, owner) in policy.named_owners().into_iter().filter(|(_, owner)| !owners.contains(owner)) {
        let found =
            format!("{of}{key} names {owner:?}, which is no owner of the deployment file and has no job");
        checks.push(Check::warning("policy", found, one_of(&listed(slurm.owners.keys()))));
    }
    for (key, pool) in policy.named_pools().into_iter().filter(|(_, pool)| !pools.contains(*pool)) {
        let found = format!("{of}{key} names pool {pool:?}, which this site does not have");
        checks.push(Check::missing("policy", found, one_of(&listed(&pools))));
    }
}

/// Owners of the deployment file, and accounts of jobs that it maps to nobody.
fn known_owners<'a>(slurm: &'a SlurmConfig, survey: &'a Survey) -> BTreeSet<&'a String> {
    slurm.owners.keys().chain(survey.jobs.iter().map(|job| &job.owner)).collect()
}

fn known_pools(slurm: &SlurmConfig, survey: &Survey) -> BTreeSet<String> {
    survey.partitions.keys().filter_map(|name| slurm.pool_of(name)).collect()
}

fn one_of(there: &str) -> String {
    match there.is_empty() {
        true => "remove it".to_owned(),
        false => format!("one of {there}, or remove it"),
    }
}

/// How jobs are notified before they are disturbed.
fn notices(slurm: &SlurmConfig, survey: &Survey, checks: &mut Vec<Check>) {
    let notice = &slurm.notice;
    let asking = listed(survey.jobs.iter().filter(|job| job.wants_notice).map(|job| &job.id));
    let ways: Vec<String> = [
        notice.signal.as_ref().map(|signal| format!("signal {signal}")),
        notice.folder.as_ref().map(|folder| format!("folder {}", folder.display())),
        notice.url.as_ref().map(|_| "an address".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    checks.push(match (ways.is_empty(), asking.is_empty()) {
        (true, true) => Check::warning(
            "notices",
            "no way is set, so a job that can save its work is stopped without",
            "signal = \"USR1\" or folder = … in [slurm.notice], and `notice` in the comments of jobs",
        ),
        (true, false) => Check::missing(
            "notices",
            format!("jobs {asking} ask to be notified, and no way is set"),
            "signal = \"USR1\" or folder = … in [slurm.notice]",
        ),
        (false, true) => Check::ok("notices", format!("{}; no job asks for it", ways.join(", "))),
        (false, false) => Check::ok("notices", format!("{}; jobs {asking} ask for it", ways.join(", "))),
    });
    if let Some(folder) = notice.folder.as_ref().filter(|folder| !folder.is_dir()) {
        let what = format!("{} is no folder on this machine", folder.display());
        checks.push(Check::missing(
            "notices",
            what,
            "make it, where jobs see it and the autopilot may write",
        ));
    } else if let Some(folder) = &notice.folder
        && nix::unistd::access(folder, nix::unistd::AccessFlags::W_OK).is_err()
    {
        let what = format!("{} {} cannot write {}", "user", survey.user, folder.display());
        checks.push(Check::missing("notices", what, "give the autopilot's user the folder"));
    }
}

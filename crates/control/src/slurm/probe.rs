//! Probes version, configuration and our rights when the target is opened.

use std::collections::BTreeSet;

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::target::{Capabilities, TargetError};
use tidegate_events::Millis;
use tidegate_slurm::sacctmgr::AdminLevel;
use tidegate_slurm::scontrol::ClusterConfig;

use super::ask::{Slurm, unanswered, unknown, unreachable};
use super::config::{LendBy, ShareConfig, SlurmConfig};
use super::inventory;
use super::notes::NotesAccess;

/// Rights of a user in Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rights {
    /// Its own jobs only.
    User,
    /// Jobs of others, reservations, limits of accounts; not the `AdminComment` of a job.
    Operator,
    /// Also nodes, partitions and QOS.
    Administrator,
}

/// Result of the probe.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub cluster: String,
    pub version: String,
    /// There is slurmdbd.
    pub accounting: bool,
    pub rights: Rights,
    /// User that we act as.
    pub user: String,
    /// Only root submits jobs for other users.
    pub is_root: bool,
    pub notes_access: NotesAccess,
    pub lacking: Vec<String>,
}

/// Probes Slurm.
pub(super) fn probe(slurm: &Slurm, config: &SlurmConfig) -> Result<Setup, TargetError> {
    slurm.reach()?;
    let cluster_config = slurm.client.config().map_err(unanswered)?;
    let cluster =
        cluster_config.cluster_name().ok_or_else(|| unknown("scontrol show config names no ClusterName"))?;
    let accounting = cluster_config.has_slurmdbd();
    let user = whoami()?;
    let mut setup = Setup {
        cluster: cluster.to_owned(),
        version: cluster_config.version().unwrap_or("unknown").to_owned(),
        accounting,
        rights: Rights::User,
        user: user.clone(),
        is_root: nix::unistd::Uid::effective().is_root(),
        notes_access: NotesAccess::default(),
        lacking: Vec::new(),
    };
    let slurm_user = cluster_config.slurm_user();
    setup.rights = rights(slurm, &user, slurm_user, accounting)?;
    setup.notes_access = NotesAccess {
        as_administrator: setup.rights == Rights::Administrator,
        trusted: trusted(slurm, &user, slurm_user, accounting)?,
    };
    setup.lacking = lacking(&setup, &cluster_config);
    if setup.rights >= Rights::Operator {
        keeps_its_nodes(slurm, config, &mut setup)?;
    }
    Ok(setup)
}

fn whoami() -> Result<String, TargetError> {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
    user.ok().flatten().map(|user| user.name).ok_or_else(|| unreachable("this process' user has no name"))
}

fn rights(
    slurm: &Slurm,
    user: &str,
    slurm_user: Option<&str>,
    accounting: bool,
) -> Result<Rights, TargetError> {
    if user == "root" || slurm_user == Some(user) {
        return Ok(Rights::Administrator);
    }
    if !accounting {
        return Ok(Rights::User);
    }
    Ok(match slurm.client.admin_level(user).map_err(unanswered)? {
        AdminLevel::Administrator => Rights::Administrator,
        AdminLevel::Operator => Rights::Operator,
        AdminLevel::None => Rights::User,
    })
}

/// Users whose notes are trusted: those who may change jobs of others anyway, and we.
fn trusted(
    slurm: &Slurm,
    user: &str,
    slurm_user: Option<&str>,
    accounting: bool,
) -> Result<BTreeSet<String>, TargetError> {
    let own = [Some(user), Some("root"), slurm_user].into_iter().flatten();
    let mut trusted: BTreeSet<String> = own.map(str::to_owned).collect();
    if accounting {
        let levels = slurm.client.admin_levels().map_err(unanswered)?;
        let may = levels.into_iter().filter(|(_, level)| *level > AdminLevel::None);
        trusted.extend(may.map(|(name, _)| name));
    }
    Ok(trusted)
}

/// What no Slurm can do.
pub(super) const NEVER: [&str; 2] = [
    "growth of a running job: Slurm refuses it for jobs with GPUs; a job that declares grow=requeue starts again larger, one \
     that declares grow=satellites is joined by jobs of one node",
    "part of a node: a running job's GPUs on a node cannot be changed",
];

fn lacking(setup: &Setup, config: &ClusterConfig) -> Vec<String> {
    let mut lacking: Vec<String> = NEVER.map(str::to_owned).into();
    let user = &setup.user;
    match setup.rights {
        Rights::Administrator => {}
        Rights::Operator => lacking.push(format!(
            "drain_node and return_node, and limits of QOS: {user} is Operator, and for `scontrol update NodeName=` Slurm says \
             \"Invalid user id\", for `sacctmgr modify qos` \"Your user doesn't have privilege to perform this action\"; sacctmgr \
             modify user {user} set adminlevel=Administrator"
        )),
        Rights::User => lacking.push(format!(
            "everything but looking: {user} has no rights over others' jobs; sacctmgr modify user {user} set \
             adminlevel=Operator"
        )),
    }
    if !setup.is_root {
        lacking.push(format!(
            "grow=satellites for jobs of others than {user}: sbatch says \"--uid only permitted by root user\""
        ));
    }
    if !setup.accounting {
        lacking.push("quotas, and a second resize of a job: there is no slurmdbd".to_owned());
    }
    let select = config.select_type().unwrap_or("unknown");
    if select != "select/cons_tres" {
        lacking.push(format!("GPUs as such: SelectType is {select}, not select/cons_tres"));
    }
    if !config.requeues_jobs() {
        lacking.push("preempt and growth of jobs without --requeue: JobRequeue is 0".to_owned());
    }
    if let Some(minutes) = config.reservation_overrun() {
        lacking.push(format!("loans that end at their end: ResvOverRun lets jobs go on for {minutes}"));
    }
    lacking
}

/// A loan gives nodes back at its end only if a standing reservation keeps them for the owner:
/// reports nodes without one.
fn keeps_its_nodes(slurm: &Slurm, config: &SlurmConfig, setup: &mut Setup) -> Result<(), TargetError> {
    let (nodes, reservations) = (inventory::nodes(slurm)?, inventory::reservations(slurm)?);
    for (owner, configured) in &config.owners {
        let accounts: BTreeSet<String> = config.accounts(owner).into_iter().collect();
        let by_nodes = |share: &ShareConfig| share.lendable && share.lend_by == LendBy::Reservation;
        for pool in configured.shares.iter().filter(|(_, share)| by_nodes(share)).map(|(pool, _)| pool) {
            let partition = config.partition(pool).to_owned();
            let of_pool = nodes.iter().filter(|(_, node)| node.partitions.contains(&partition));
            let missing: Vec<&str> = of_pool
                .map(|(name, _)| name.as_str())
                .filter(|name| {
                    !reservations.values().any(|r| {
                        r.nodes.contains(*name) && r.accounts == accounts && !r.flags.contains("OVERLAP")
                    })
                })
                .collect();
            if !missing.is_empty() {
                setup.lacking.push(format!(
                    "no standing reservation keeps {} of pool {pool} for {owner}: who may use the partition may use them \
                     without a loan (scontrol create reservation ReservationName={owner} Accounts={} Nodes=… StartTime=now \
                     Duration=UNLIMITED Flags=MAGNETIC)",
                    missing.join(","),
                    config.accounts(owner).join(",")
                ));
            }
        }
    }
    Ok(())
}

/// What the target can do on this Slurm.
pub(super) fn capabilities(setup: &Setup, config: &SlurmConfig) -> Capabilities {
    let mut kinds = BTreeSet::new();
    let on_nodes = |kind: &Kind| matches!(kind, Kind::DrainNode | Kind::ReturnNode);
    match setup.rights {
        Rights::Administrator => kinds.extend(Kind::ALL),
        Rights::Operator => kinds.extend(Kind::ALL.into_iter().filter(|kind| !on_nodes(kind))),
        Rights::User => {}
    }
    Capabilities {
        name: format!("Slurm {} ({})", setup.version, setup.cluster),
        kinds,
        grow_in_place: false,
        grow_by_satellites: setup.is_root,
        shrink_by_nodes: true,
        shrink_within_node: false,
        native_expiry: true,
        lend_nodes: true,
        requeue_delay_ms: Millis::from_secs(i64::from(config.restart_after_s)).0,
        lacking: setup.lacking.clone(),
    }
}

//! Open loans: what stands in Slurm, compared with what we noted.
//!
//! A loan by reservation is one of named nodes for the borrower's accounts, with an end. `OVERLAP`
//! lets it lie over the standing reservation by which the owner keeps its nodes, and `MAGNETIC`
//! gives its nodes to jobs that do not name it. Slurm ends it without us: it stops what runs there,
//! and the owner's reservation applies again. Loans by QOS are in `by_qos`.

mod by_qos;
mod noted;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::action::Change;
use tidegate_autopilot::state::{Loan, LoanId, Writer};
use tidegate_events::Micros;

use super::config::SlurmConfig;
use super::inventory::SlurmReservation;
use super::marker;
use super::snapshot::Snapshot;

pub(super) use noted::{LoanNotes, reservation};

/// Those of the nodes on which a job of another owner than `owner` holds anything.
pub(super) fn occupied<'a>(
    config: &SlurmConfig,
    snapshot: &Snapshot,
    owner: &str,
    nodes: impl IntoIterator<Item = &'a String>,
) -> BTreeSet<String> {
    let foreign = |node: &&String| snapshot.jobs_on(node).any(|job| config.owner_of(&job.account) != owner);
    nodes.into_iter().filter(foreign).cloned().collect()
}

/// Open loans, by the id of the action that opened each.
pub(super) fn open(config: &SlurmConfig, snapshot: &Snapshot) -> BTreeMap<LoanId, Loan> {
    let mut loans = by_qos::open(config, snapshot);
    for (name, shown) in &snapshot.reservations {
        let Some((id, generation)) = marker::loan_of(name) else { continue };
        let noted = LoanNotes::for_loan(snapshot, id);
        let loan = loan(config, snapshot, shown, &noted, generation);
        if loan.gpus > 0 {
            loans.insert(id.to_owned(), loan);
        }
    }
    loans
}

fn loan(
    config: &SlurmConfig,
    snapshot: &Snapshot,
    shown: &SlurmReservation,
    noted: &LoanNotes<'_>,
    generation: u64,
) -> Loan {
    let pool = shown.nodes.iter().find_map(|node| snapshot.pool_of(config, node)).unwrap_or_default();
    let lender =
        config.owners.iter().find(|(_, owner)| owner.shares.get(&pool).is_some_and(|share| share.lendable));
    let (from, to, pool, reclaim_within_ms) = match noted.lend.map(|entry| &entry.change) {
        Some(Change::Lend { from, to, pool, reclaim_within_ms, .. }) => {
            (from.clone(), to.clone(), pool.clone(), *reclaim_within_ms)
        }
        // Our notes are lost: the loan is shown as it stands, and only a person may change it.
        _ => {
            let to = shown.accounts.iter().next().map(|account| config.owner_of(account));
            (lender.map(|(name, _)| name.clone()).unwrap_or_default(), to.unwrap_or_default(), pool, 0)
        }
    };
    let leaving = occupied(config, snapshot, &from, &noted.called);
    let stays = shown.nodes.iter().filter(|node| !noted.called.contains(*node));
    let nodes: BTreeSet<String> = stays.chain(&leaving).cloned().collect();
    let jobs = nodes.iter().flat_map(|node| snapshot.jobs_on(node)).map(|job| job.id.clone());
    let reclaiming_gpus = snapshot.gpus(&leaving);
    Loan {
        gpus: snapshot.gpus(&nodes),
        jobs: jobs.collect(),
        nodes,
        since_us: Micros::from_secs(shown.start_s).0,
        expires_us: Micros::from_secs(shown.end_s).0,
        reclaim_within_ms,
        reclaiming_since_us: noted.called_since_us.filter(|_| !leaving.is_empty()),
        reclaiming_gpus,
        reclaiming_nodes: leaving,
        writer: match noted.writer(config, shown) {
            Writer::Autopilot { generation: noted } => {
                Writer::Autopilot { generation: noted.max(generation) }
            }
            Writer::Other => Writer::Other,
        },
        from,
        to,
        pool,
    }
}

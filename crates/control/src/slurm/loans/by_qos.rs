//! Open loans of a number of GPUs, by the limit of the borrower's QOS.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::action::Change;
use tidegate_autopilot::state::{Loan, LoanId, Writer};
use tidegate_events::Micros;

use super::noted::LoanNotes;
use crate::slurm::config::{LendBy, ShareConfig, SlurmConfig};
use crate::slurm::qos_loans::{QosLoan, QosLoans};
use crate::slurm::queue::QueueJob;
use crate::slurm::snapshot::Snapshot;

/// Jobs of a QOS that hold GPUs, with their number, the last started first.
fn holding<'a>(snapshot: &'a Snapshot, qos: &str) -> Vec<(&'a QueueJob, u32)> {
    let of_qos = snapshot.jobs.iter().filter(|job| job.qos == qos && job.is_open());
    let held = |job: &QueueJob| match &job.placement {
        Some(held) => held.values().sum(),
        // What it holds is not known; its request is.
        None => job.asked_gpus.unwrap_or(0),
    };
    let mut jobs: Vec<_> = of_qos.map(|job| (job, held(job))).filter(|(_, held)| *held > 0).collect();
    jobs.sort_by(|a, b| b.0.start_ms.cmp(&a.0.start_ms).then(b.0.id.cmp(&a.0.id)));
    jobs
}

/// Open loans by QOS.
pub(super) fn open(config: &SlurmConfig, snapshot: &Snapshot) -> BTreeMap<LoanId, Loan> {
    let mut loans = BTreeMap::new();
    for (qos, limit) in &snapshot.limits.qos {
        let Some(lent) = QosLoans::parse(&limit.description) else { continue };
        let mut jobs = holding(snapshot, qos).into_iter().peekable();
        let held: u32 = holding(snapshot, qos).iter().map(|(_, gpus)| gpus).sum();
        let (mut over, mut beyond) = (held.saturating_sub(lent.limit()), held.saturating_sub(lent.base));
        // Loans being called back are charged first with the jobs that started last.
        let mut order: Vec<(&LoanId, &QosLoan)> = lent.loans.iter().collect();
        order.sort_by_key(|(id, word)| (word.to_gpus == word.gpus, *id));
        for (id, word) in order {
            let reclaiming_gpus = word.gpus.saturating_sub(word.to_gpus).min(over);
            over -= reclaiming_gpus;
            let gpus = word.to_gpus.saturating_add(reclaiming_gpus);
            let mut used = BTreeSet::new();
            let mut left = beyond.min(gpus);
            beyond -= left;
            while let Some((job, held)) = jobs.next_if(|_| left > 0) {
                used.insert(job.id.clone());
                left = left.saturating_sub(held);
            }
            if gpus > 0 {
                let is_ours = limit.gpus == Some(lent.limit());
                loans.insert(
                    id.clone(),
                    loan(config, snapshot, qos, (id, word), is_ours, reclaiming_gpus, used),
                );
            }
        }
    }
    loans
}

fn loan(
    config: &SlurmConfig,
    snapshot: &Snapshot,
    qos: &str,
    (id, word): (&LoanId, &QosLoan),
    is_ours: bool,
    reclaiming_gpus: u32,
    jobs: BTreeSet<String>,
) -> Loan {
    let noted = LoanNotes::for_loan(snapshot, id);
    let (from, to, pool, reclaim_within_ms) = match noted.lend.map(|entry| &entry.change) {
        Some(Change::Lend { from, to, pool, reclaim_within_ms, .. }) => {
            (from.clone(), to.clone(), pool.clone(), *reclaim_within_ms)
        }
        // Our notes are lost: the description alone says what stands.
        _ => {
            let (to, pool) =
                config.of_qos(qos).map(|(to, pool)| (to.clone(), pool.clone())).unwrap_or_default();
            let lends = |share: &ShareConfig| share.lendable && share.lend_by == LendBy::Qos;
            let from = config.owners.iter().find(|(_, of)| of.shares.get(&pool).is_some_and(lends));
            (from.map(|(from, _)| from.clone()).unwrap_or_default(), to, pool, 0)
        }
    };
    let is_ours = is_ours && (noted.lend.is_none() || noted.may_end(word.end_s));
    Loan {
        from,
        to,
        pool,
        gpus: word.to_gpus.saturating_add(reclaiming_gpus),
        nodes: BTreeSet::new(),
        since_us: noted.lend.and_then(|entry| entry.begun_us).unwrap_or(snapshot.at_us),
        expires_us: Micros::from_secs(word.end_s).0,
        reclaim_within_ms,
        reclaiming_since_us: noted.called_since_us.filter(|_| reclaiming_gpus > 0),
        reclaiming_gpus,
        reclaiming_nodes: BTreeSet::new(),
        writer: if is_ours { Writer::Autopilot { generation: word.generation } } else { Writer::Other },
        jobs,
    }
}

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
///
/// A job that holds an unknown number counts as if it used up every loan: what was called back
/// counts as returned only when that is certain.
fn holding<'a>(snapshot: &'a Snapshot, qos: &str) -> Vec<(&'a QueueJob, u32)> {
    let of_qos = snapshot.jobs.iter().filter(|job| job.qos == qos && job.is_open());
    let held = |job: &QueueJob| match &job.placement {
        Some(held) => held.values().sum(),
        None => job.asked_gpus.unwrap_or(u32::MAX),
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
        let held = holding(snapshot, qos).iter().fold(0_u32, |sum, (_, gpus)| sum.saturating_add(*gpus));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::inventory::{Limits, QosLimit};
    use crate::slurm::notes::Notes;
    use crate::slurm::queue;

    /// GPUs still out of a loan of 8 that was called back whole, and the jobs that have them. The
    /// borrower has 8 of its own, and one job.
    fn still_out(job: &str) -> Option<(u32, BTreeSet<String>)> {
        let answer = format!(
            r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 1, "submit_time": 5, "start_time": 6,
                "job_state": "RUNNING", "nodes": "n1", "qos": "night", {job}}}]}}"#
        );
        let description = "tidegate:base:8 tidegate:lend-1:0:8:1795379790:4".to_owned();
        let snapshot = Snapshot {
            at_us: 7,
            jobs: queue::read(answer.as_bytes()).unwrap(),
            nodes: BTreeMap::new(),
            reservations: BTreeMap::new(),
            limits: Limits {
                qos: [("night".to_owned(), QosLimit { gpus: Some(8), description })].into(),
                ..Limits::default()
            },
            notes: Notes::default(),
        };
        let loan = open(&SlurmConfig::default(), &snapshot).remove("lend-1")?;
        Some((loan.reclaiming_gpus, loan.jobs))
    }

    #[test]
    fn a_loan_is_back_only_once_that_is_certain() {
        let by = |id: &str| BTreeSet::from([id.to_owned()]);
        let shown =
            |gpus| format!(r#""tres_per_socket": "gres:gpu:4", "gres_detail": ["gpu:h200:{gpus}(IDX:0)"]"#);
        assert_eq!(still_out(&shown(8)), None, "8 are its own");
        assert_eq!(still_out(&shown(12)), Some((4, by("1"))));
        // Right after slurmctld has restarted it does not show what a job holds.
        let requested = r#""tres_per_job": "gres:gpu:12", "gres_detail": []"#;
        assert_eq!(still_out(requested), Some((4, by("1"))), "its request is known");
        let by_socket = r#""tres_per_socket": "gres:gpu:4", "gres_detail": []"#;
        assert_eq!(still_out(by_socket), Some((8, by("1"))), "it may hold all of it");
        let none = r#""gres_detail": []"#;
        assert_eq!(still_out(none), None, "it asked for no GPUs");
    }
}

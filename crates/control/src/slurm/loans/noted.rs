//! What our notes say of a loan, and the reservation that carries it.

use std::collections::BTreeSet;

use tidegate_autopilot::action::Change;
use tidegate_autopilot::state::Writer;
use tidegate_events::Micros;

use crate::slurm::config::SlurmConfig;
use crate::slurm::inventory::SlurmReservation;
use crate::slurm::marker;
use crate::slurm::notes::Entry;
use crate::slurm::qos_loans;
use crate::slurm::snapshot::Snapshot;

/// The reservation of a loan: its name and present form.
pub(in crate::slurm) fn reservation<'a>(
    snapshot: &'a Snapshot,
    loan: &str,
) -> Option<(&'a String, &'a SlurmReservation)> {
    snapshot.reservations.iter().find(|(name, _)| marker::loan_of(name).is_some_and(|(id, _)| id == loan))
}

/// What our notes say of a loan.
#[derive(Debug, Default)]
pub(in crate::slurm) struct LoanNotes<'a> {
    /// The action that opened it.
    pub lend: Option<&'a Entry>,
    /// Nodes it was opened with.
    lent: BTreeSet<String>,
    /// Nodes called back, by any action that began.
    pub called: BTreeSet<String>,
    /// Nodes called back by actions that are noted as done.
    called_for_sure: BTreeSet<String>,
    pub called_since_us: Option<i64>,
    /// Ends that it may have by what we wrote, seconds since 1970.
    ends_s: BTreeSet<i64>,
    generation: u64,
}

impl<'a> LoanNotes<'a> {
    /// Collects what the notes say of `loan`.
    pub(in crate::slurm) fn for_loan(snapshot: &'a Snapshot, loan: &str) -> Self {
        let mut noted = Self::default();
        let begun = snapshot.notes.actions.iter().filter(|(_, entry)| entry.begun_us.is_some());
        let mut newest = None;
        for (id, entry) in begun {
            match &entry.change {
                Change::Lend { nodes, extends: None, expires_us, .. } if id == loan => {
                    noted.lent = nodes.iter().chain(&entry.nodes).cloned().collect();
                    noted.lend = Some(entry);
                    newest = newest.max(Some((entry.begun_us, *expires_us)));
                }
                Change::Lend { extends: Some(of), expires_us, .. } if of == loan => {
                    newest = newest.max(Some((entry.begun_us, *expires_us)));
                    if entry.done_us.is_none() {
                        // Until its outcome is known, the end before it is ours too.
                        noted.ends_s.extend(reservation(snapshot, loan).map(|(_, shown)| shown.end_s));
                        noted.ends_s.extend(
                            qos_loans::of_loan(snapshot, loan).map(|(.., lent)| lent.loans[loan].end_s),
                        );
                    }
                }
                Change::Reclaim { loan: of, nodes, to_gpus, .. } if of == loan => {
                    let all = nodes.is_empty() && *to_gpus == 0;
                    let nodes = if all { entry.nodes.iter().cloned().collect() } else { nodes.clone() };
                    noted.called_since_us = noted.called_since_us.min(entry.begun_us).or(entry.begun_us);
                    if entry.done_us.is_some() {
                        noted.called_for_sure.extend(nodes.iter().cloned());
                    }
                    noted.called.extend(nodes);
                }
                _ => continue,
            }
            noted.generation = noted.generation.max(entry.generation);
        }
        noted.ends_s.extend(newest.map(|(_, expires_us)| Micros(expires_us).floor_secs()));
        noted
    }

    /// Whether all of its nodes are called back.
    pub(in crate::slurm) fn is_over(&self) -> bool {
        !self.lent.is_empty() && self.lent.is_subset(&self.called)
    }

    /// Whether this end is one that we wrote.
    pub(in crate::slurm) fn may_end(&self, end_s: i64) -> bool {
        self.ends_s.contains(&end_s)
    }

    pub(in crate::slurm) fn writer(&self, config: &SlurmConfig, shown: &SlurmReservation) -> Writer {
        let Some(Change::Lend { to, .. }) = self.lend.map(|entry| &entry.change) else {
            return Writer::Other;
        };
        let left = |called: &BTreeSet<String>| -> BTreeSet<String> {
            self.lent.difference(called).cloned().collect()
        };
        let accounts: BTreeSet<String> = config.accounts(to).into_iter().collect();
        let as_lent = shown.accounts == accounts
            && (shown.nodes == left(&self.called)
                || shown.nodes == left(&self.called_for_sure)
                || self.lent.is_empty());
        // A loan called back as a whole is closed to all until the last job has left.
        let closed = self.is_over() && shown.nodes.is_subset(&self.lent);
        if (as_lent || closed) && self.may_end(shown.end_s) {
            Writer::Autopilot { generation: self.generation }
        } else {
            Writer::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::slurm::inventory::Limits;
    use crate::slurm::notes::Notes;

    #[test]
    fn slurm_ends_a_loan_at_the_whole_second() {
        let change = Change::Lend {
            from: "a".into(),
            to: "b".into(),
            pool: "p".into(),
            gpus: 8,
            nodes: BTreeSet::from(["n1".to_owned()]),
            expires_us: 1_795_379_790_999_999,
            reclaim_within_ms: 0,
            extends: None,
        };
        let entry = Entry {
            generation: 4,
            begun_us: Some(1),
            done_us: Some(2),
            expires_us: 9,
            change,
            restarts: None,
            nodes: Vec::new(),
            notified_us: None,
            ready_by_us: None,
        };
        let mut notes = Notes::default();
        notes.actions.insert("lend-1".into(), entry);
        let snapshot = Snapshot {
            at_us: 7,
            jobs: Vec::new(),
            nodes: BTreeMap::new(),
            reservations: BTreeMap::new(),
            limits: Limits::default(),
            notes,
        };
        let noted = LoanNotes::for_loan(&snapshot, "lend-1");
        assert!(noted.may_end(1_795_379_790), "as `time` writes it");
        assert!(!noted.may_end(1_795_379_791));
    }
}

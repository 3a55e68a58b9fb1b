//! Loans by reservation: opened, extended by a later end, called back node by node.

use std::collections::BTreeSet;

use tidegate_autopilot::action::Change;
use tidegate_autopilot::target::TargetError;
use tidegate_events::Micros;

use super::capacity::time;
use super::{Act, Before};
use crate::slurm::ask::{ChangeError, Slurm, unknown};
use crate::slurm::config::SlurmConfig;
use crate::slurm::inventory;
use crate::slurm::loans::{self, LoanNotes};
use crate::slurm::marker;
use crate::slurm::notes::Entry;
use crate::slurm::qos_loans;
use crate::slurm::snapshot::Snapshot;

impl Act<'_> {
    pub(super) fn check_lend(&self, snapshot: &Snapshot) -> Result<Before, TargetError> {
        let Change::Lend { from, to, pool, gpus, nodes, extends, .. } = &self.action.change else {
            return Err(self.refuse("it is not a loan"));
        };
        let before = Before { restarts: None, nodes: nodes.iter().cloned().collect() };
        if let Some(loan) = extends {
            if let Some((qos, limit, _)) = qos_loans::of_loan(snapshot, loan) {
                if !LoanNotes::for_loan(snapshot, loan).called.is_empty() {
                    return Err(self.refuse(format!("loan {loan} is being taken back")));
                }
                return self.check_reclaim_limit((qos, limit), &BTreeSet::new());
            }
            let (name, _) = loans::reservation(snapshot, loan)
                .ok_or_else(|| self.refuse(format!("there is no reservation of loan {loan}")))?;
            if LoanNotes::for_loan(snapshot, loan).called.is_empty() {
                return Ok(before);
            }
            return Err(self.refuse(format!("loan {loan} ({name}) is being taken back")));
        }
        if let Some(qos) = self.lends_by(from, to, pool)? {
            return self.check_lend_by_limit(snapshot, qos, *gpus);
        }
        self.words(nodes.iter().chain(&self.config.accounts(to)).chain(&self.config.accounts(from)))?;
        let wrong = nodes.iter().find(|node| snapshot.pool_of(self.config, node).as_ref() != Some(pool));
        if let Some(node) = wrong {
            return Err(self.refuse(format!("node {node} is not of pool {pool}")));
        }
        if nodes.is_empty() {
            self.nodes_of(snapshot, pool, *gpus)?;
        } else if snapshot.gpus(nodes) != *gpus {
            return Err(self.refuse(format!("these nodes have {} GPUs, not {gpus}", snapshot.gpus(nodes))));
        }
        let busy = loans::occupied(self.config, snapshot, "", nodes);
        if !busy.is_empty() {
            return Err(self.refuse(format!("jobs hold {busy:?}")));
        }
        Ok(before)
    }

    pub(super) fn lend(&self, snapshot: &Snapshot, entry: &mut Entry) -> Result<String, TargetError> {
        let Change::Lend { from, to, pool, gpus, nodes, expires_us, .. } = &self.action.change else {
            return Err(self.refuse("it is not a loan"));
        };
        if let Some(qos) = self.lends_by(from, to, pool)? {
            return self.lend_by_limit(qos, *gpus, *expires_us);
        }
        let name = match loans::reservation(snapshot, &self.action.id) {
            Some((name, _)) => name.clone(),
            None => {
                let name = marker::loan_name(&self.action.id, self.action.generation);
                let mut values = vec![
                    format!("ReservationName={name}"),
                    "StartTime=now".to_owned(),
                    format!("EndTime={}", time(*expires_us)?),
                    format!("Accounts={}", self.config.accounts(to).join(",")),
                ];
                if nodes.is_empty() {
                    let count = self.nodes_of(snapshot, pool, *gpus)?;
                    values.push(format!("NodeCnt={count}"));
                    values.push(format!("PartitionName={}", self.config.partition(pool)));
                    values.push("Flags=MAGNETIC".to_owned());
                } else {
                    values.push(format!("Nodes={}", nodes.iter().cloned().collect::<Vec<_>>().join(",")));
                    values.push("Flags=MAGNETIC,OVERLAP".to_owned());
                }
                self.create(&name, &values)?;
                name
            }
        };
        let made = inventory::reservations(self.slurm)?;
        let made = made
            .get(&name)
            .ok_or_else(|| unknown(format!("reservation {name} was made and is not there")))?;
        entry.nodes = made.nodes.iter().cloned().collect();
        Ok(format!("reservation {name} of {}", entry.nodes.join(",")))
    }

    pub(super) fn extend(
        &self,
        snapshot: &Snapshot,
        loan: &str,
        expires_us: i64,
    ) -> Result<String, TargetError> {
        if qos_loans::of_loan(snapshot, loan).is_some() {
            return self.extend_limit(snapshot, loan, expires_us);
        }
        let found = |shown: &std::collections::BTreeMap<String, inventory::SlurmReservation>| {
            let found =
                shown.iter().find(|(name, _)| marker::loan_of(name).is_some_and(|(id, _)| id == loan));
            found.map(|(name, shown)| (name.clone(), shown.end_s))
        };
        let (name, _) = found(&inventory::reservations(self.slurm)?)
            .ok_or_else(|| self.refuse(format!("loan {loan} is over")))?;
        self.update(&[format!("ReservationName={name}"), format!("EndTime={}", time(expires_us)?)])?;
        match found(&inventory::reservations(self.slurm)?) {
            Some((_, end_s)) if end_s == Micros(expires_us).floor_secs() => {
                Ok(format!("{name} ends at {end_s}"))
            }
            other => Err(unknown(format!("loan {loan} was extended, but Slurm shows {other:?}"))),
        }
    }

    pub(super) fn check_reclaim(
        &self,
        snapshot: &Snapshot,
        loan: &str,
        to_gpus: u32,
        nodes: &BTreeSet<String>,
    ) -> Result<Before, TargetError> {
        if let Some((qos, limit, _)) = qos_loans::of_loan(snapshot, loan) {
            return self.check_reclaim_limit((qos, limit), nodes);
        }
        let (_, shown) = loans::reservation(snapshot, loan)
            .ok_or_else(|| self.refuse(format!("there is no reservation of loan {loan}")))?;
        self.words(nodes)?;
        if nodes.is_empty() && to_gpus > 0 {
            return Err(self.refuse("name the nodes that come back: which ones is not ours to choose"));
        }
        let lent: BTreeSet<String> = shown
            .nodes
            .iter()
            .cloned()
            .chain(LoanNotes::for_loan(snapshot, loan).called.iter().cloned())
            .collect();
        if !nodes.is_subset(&lent) {
            return Err(self.refuse(format!("{nodes:?} are not all of loan {loan}")));
        }
        let back = if nodes.is_empty() { &shown.nodes } else { nodes };
        Ok(Before { restarts: None, nodes: back.iter().cloned().collect() })
    }

    /// Removes nodes from the reservation at once: their jobs go on, and nothing of the borrower
    /// starts there. The last node cannot leave a reservation: while a job uses it, the reservation
    /// is closed to all.
    pub(super) fn reclaim(
        &self,
        snapshot: &Snapshot,
        loan: &str,
        to_gpus: u32,
    ) -> Result<String, TargetError> {
        if qos_loans::of_loan(snapshot, loan).is_some() {
            return self.reclaim_limit(snapshot, loan, to_gpus);
        }
        let Some((name, shown)) = loans::reservation(snapshot, loan) else {
            return Ok(format!("loan {loan} is over"));
        };
        let noted = LoanNotes::for_loan(snapshot, loan);
        let kept: Vec<String> = shown.nodes.difference(&noted.called).cloned().collect();
        if !kept.is_empty() {
            if kept.len() < shown.nodes.len() {
                self.update(&[format!("ReservationName={name}"), format!("Nodes={}", kept.join(","))])?;
            }
            return Ok(format!("{name} keeps {}", kept.join(",")));
        }
        let owner = self.lender(snapshot, loan);
        match close(self.slurm, self.config, snapshot, &owner, name, shown, &self.setup.user) {
            Ok(done) => Ok(done),
            Err(failed) => Err(failed.as_error(&self.action.id)),
        }
    }

    fn lender(&self, snapshot: &Snapshot, loan: &str) -> String {
        match snapshot.notes.actions.get(loan).map(|entry| &entry.change) {
            Some(Change::Lend { from, .. }) => from.clone(),
            _ => String::new(),
        }
    }
}

/// Ends a loan that is called back as a whole: deletes its reservation, or while jobs use it,
/// closes it and leaves it their nodes. Slurm stops jobs that still run at its end.
pub(in crate::slurm) fn close(
    slurm: &Slurm,
    config: &SlurmConfig,
    snapshot: &Snapshot,
    owner: &str,
    name: &str,
    shown: &inventory::SlurmReservation,
    user: &str,
) -> Result<String, ChangeError> {
    let gone = slurm.run("scontrol", &["delete", &format!("ReservationName={name}")]);
    match gone {
        Ok(_) => return Ok(format!("scontrol delete reservation {name}")),
        Err(failed @ (ChangeError::Unreachable(_) | ChangeError::Unknown(_))) => return Err(failed),
        Err(ChangeError::Rejected(_)) => {}
    }
    let busy = loans::occupied(config, snapshot, owner, &shown.nodes);
    let mut values = vec!["update".to_owned(), format!("ReservationName={name}")];
    if !shown.accounts.is_empty() {
        values.push(format!("Users={user}"));
        values.push("Accounts=".to_owned());
        values.push("Flags-=MAGNETIC".to_owned());
    }
    if !busy.is_empty() && busy != shown.nodes {
        values.push(format!("Nodes={}", busy.iter().cloned().collect::<Vec<_>>().join(",")));
    }
    if values.len() > 2 {
        let args: Vec<&str> = values.iter().map(String::as_str).collect();
        slurm.run("scontrol", &args)?;
    }
    Ok(format!("{name} is closed; jobs are on {busy:?}"))
}

//! Loans as reservations: what stands in Slurm, held against what we noted that we wrote.
//!
//! A loan is a reservation of named nodes for the borrower's accounts, with its end. `OVERLAP` lets
//! it lie over the standing reservation by which the owner keeps its nodes, and `MAGNETIC` gives
//! its nodes to jobs that do not name it. When it ends by itself, with nobody doing anything, Slurm
//! stops what runs on it, and the owner's own reservation is there again.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::action::Change;
use tidegate_autopilot::state::{Loan, LoanId, Writer};

use super::config::SlurmConfig;
use super::inventory::SlurmReservation;
use super::lent;
use super::marker;
use super::notes::Entry;
use super::observe::Look;

/// The reservation that is a loan: its name and what it is now.
pub(super) fn reservation<'a>(look: &'a Look, loan: &str) -> Option<(&'a String, &'a SlurmReservation)> {
    look.reservations.iter().find(|(name, _)| marker::loan_of(name).is_some_and(|(id, _)| id == loan))
}

/// What we noted of a loan.
#[derive(Debug, Default)]
pub(super) struct Noted<'a> {
    /// The action that opened it.
    pub lend: Option<&'a Entry>,
    /// Nodes it was made of.
    lent: BTreeSet<String>,
    /// Those called back, and since when; of actions that are noted as done, and of all.
    pub called: BTreeSet<String>,
    called_for_sure: BTreeSet<String>,
    pub called_since_us: Option<i64>,
    /// Ends that it may have by what we wrote, seconds.
    ends_s: BTreeSet<i64>,
    generation: u64,
}

impl<'a> Noted<'a> {
    /// What is noted of `loan`.
    pub(super) fn of(look: &'a Look, loan: &str) -> Self {
        let mut noted = Self::default();
        let begun = look.notes.actions.iter().filter(|(_, entry)| entry.begun_us.is_some());
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
                        // Until it is known what became of it, the end before is ours too.
                        noted.ends_s.extend(reservation(look, loan).map(|(_, told)| told.end_s));
                        noted
                            .ends_s
                            .extend(lent::of_loan(look, loan).map(|(.., lent)| lent.loans[loan].end_s));
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
        noted.ends_s.extend(newest.map(|(_, expires_us)| expires_us / 1_000_000));
        noted
    }

    /// Whether all of it is called back.
    pub(super) fn is_over(&self) -> bool {
        !self.lent.is_empty() && self.lent.is_subset(&self.called)
    }

    /// Whether it ends then by what we wrote.
    pub(super) fn may_end(&self, end_s: i64) -> bool {
        self.ends_s.contains(&end_s)
    }

    fn writer(&self, config: &SlurmConfig, told: &SlurmReservation) -> Writer {
        let Some(Change::Lend { to, .. }) = self.lend.map(|entry| &entry.change) else {
            return Writer::Other;
        };
        let left = |called: &BTreeSet<String>| -> BTreeSet<String> {
            self.lent.difference(called).cloned().collect()
        };
        let accounts: BTreeSet<String> = config.accounts(to).into_iter().collect();
        let as_lent = told.accounts == accounts
            && (told.nodes == left(&self.called)
                || told.nodes == left(&self.called_for_sure)
                || self.lent.is_empty());
        // What is called back as a whole is closed to everybody until the last job has left.
        let closed = self.is_over() && told.nodes.is_subset(&self.lent);
        if (as_lent || closed) && self.may_end(told.end_s) {
            Writer::Autopilot { generation: self.generation }
        } else {
            Writer::Other
        }
    }
}

/// Nodes of `nodes` on which a job of somebody else than `owner` holds anything.
pub(super) fn occupied<'a>(
    config: &SlurmConfig,
    look: &Look,
    owner: &str,
    nodes: impl IntoIterator<Item = &'a String>,
) -> BTreeSet<String> {
    let foreign = |node: &&String| look.jobs_on(node).any(|job| config.owner_of(&job.account) != owner);
    nodes.into_iter().filter(foreign).cloned().collect()
}

/// Loans that are open, by the id of the action that opened each.
pub(super) fn open(config: &SlurmConfig, look: &Look) -> BTreeMap<LoanId, Loan> {
    let mut loans = lent::open(config, look);
    for (name, told) in &look.reservations {
        let Some((id, generation)) = marker::loan_of(name) else { continue };
        let noted = Noted::of(look, id);
        let loan = loan(config, look, told, &noted, generation);
        if loan.gpus > 0 {
            loans.insert(id.to_owned(), loan);
        }
    }
    loans
}

fn loan(
    config: &SlurmConfig,
    look: &Look,
    told: &SlurmReservation,
    noted: &Noted<'_>,
    generation: u64,
) -> Loan {
    let pool = told.nodes.iter().find_map(|node| look.pool_of(config, node)).unwrap_or_default();
    let lender =
        config.owners.iter().find(|(_, owner)| owner.shares.get(&pool).is_some_and(|share| share.lendable));
    let (from, to, pool, reclaim_within_ms) = match noted.lend.map(|entry| &entry.change) {
        Some(Change::Lend { from, to, pool, reclaim_within_ms, .. }) => {
            (from.clone(), to.clone(), pool.clone(), *reclaim_within_ms)
        }
        // Our notes are lost: what stands is told, and is nobody's to change but a person's.
        _ => {
            let to = told.accounts.iter().next().map(|account| config.owner_of(account));
            (lender.map(|(name, _)| name.clone()).unwrap_or_default(), to.unwrap_or_default(), pool, 0)
        }
    };
    let leaving = occupied(config, look, &from, &noted.called);
    let stays = told.nodes.iter().filter(|node| !noted.called.contains(*node));
    let nodes: BTreeSet<String> = stays.chain(&leaving).cloned().collect();
    let jobs = nodes.iter().flat_map(|node| look.jobs_on(node)).map(|job| job.id.clone());
    let reclaiming_gpus = look.gpus(&leaving);
    Loan {
        gpus: look.gpus(&nodes),
        jobs: jobs.collect(),
        nodes,
        since_us: told.start_s * 1_000_000,
        expires_us: told.end_s * 1_000_000,
        reclaim_within_ms,
        reclaiming_since_us: noted.called_since_us.filter(|_| !leaving.is_empty()),
        reclaiming_gpus,
        reclaiming_nodes: leaving,
        writer: match noted.writer(config, told) {
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

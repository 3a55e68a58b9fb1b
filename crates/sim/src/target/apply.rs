//! Applies actions at most once and reads their effects back.

use std::collections::BTreeSet;

use rand::Rng;
use tidegate_autopilot::{
    action::{Action, Adjustment, Change, Kind},
    target::{Effect, Receipt, TargetError},
};

use super::{AppliedEffect, OpenLoan, SimTarget};
use crate::{JobState, PPM, Place, nodes::Held};

impl SimTarget {
    /// Refuses generations older than the highest seen.
    pub(super) fn fence(&mut self, action: &Action) -> Result<(), TargetError> {
        if action.generation < self.generation {
            return Err(TargetError::StaleGeneration {
                generation: action.generation,
                seen: self.generation,
            });
        }
        self.generation = action.generation;
        Ok(())
    }

    pub(super) fn apply_once(&mut self, action: &Action) -> Result<Receipt, TargetError> {
        self.fence(action)?;
        let at_us = self.sim.spec().epoch_us + self.sim.now_us();
        let receipt =
            |already, done: &str| Receipt { action: action.id.clone(), at_us, already, done: done.into() };
        if self.applied.contains_key(&action.id) {
            return Ok(receipt(true, "done before"));
        }
        let refuse =
            |target: String, why: String| TargetError::Refused { target, action: action.id.clone(), why };
        if at_us > action.expires_us {
            return Err(refuse(self.name(), "the action has expired".into()));
        }
        let state = self.scheduler_state();
        action
            .preconditions
            .iter()
            .try_for_each(|fact| fact.check(&state))
            .map_err(TargetError::Precondition)?;
        if self.chance(self.control.refuse_ppm) {
            return Err(refuse(self.name(), "requested operation is not permitted now".into()));
        }
        if self.chance(self.control.lie_ppm) {
            return Ok(receipt(false, "done"));
        }
        if self.chance(self.control.unknown_ppm) {
            if self.rng.random_range(0..PPM) < PPM / 2 {
                // The caller does not learn whether it was applied.
                let _lost = self.carry_out(action).is_ok();
            }
            return Err(TargetError::Unknown {
                target: self.name(),
                why: "connection reset while waiting".into(),
            });
        }
        if self.control.slow_us > 0 {
            self.applied.insert(action.id.clone(), self.sim.now_us());
            self.slow.push((self.sim.now_us() + self.control.slow_us, action.clone()));
            return Ok(receipt(false, "queued"));
        }
        self.carry_out(action).map_err(|why| refuse(self.name(), why))?;
        Ok(receipt(false, "done"))
    }

    /// Applies due delayed actions. Impossible ones are dropped; reading back shows it.
    pub(super) fn apply_delayed(&mut self) {
        let now_us = self.sim.now_us();
        let (due, later) =
            std::mem::take(&mut self.slow).into_iter().partition(|s: &(i64, Action)| s.0 <= now_us);
        self.slow = later;
        for (_, action) in due {
            // The write is conditional: on its generation and its preconditions.
            let (old, state) = (action.generation < self.generation, self.scheduler_state());
            let holds = action.preconditions.iter().all(|fact| fact.check(&state).is_ok());
            if old || !holds || self.carry_out(&action).is_err() {
                self.applied.remove(&action.id);
            }
        }
    }

    fn carry_out(&mut self, action: &Action) -> Result<(), String> {
        if self.is_over(&action.change) {
            self.applied.insert(action.id.clone(), self.sim.now_us());
            return Ok(());
        }
        let (counts_as, early_us) = (self.counts_as(action), self.early_us(action));
        match &action.change {
            Change::ResizeJob { job, to_gpus, keep_nodes, .. } => self.resize(job, *to_gpus, keep_nodes)?,
            Change::Lend { .. } => self.lend(action)?,
            Change::Reclaim { loan, to_gpus, nodes, .. } => {
                self.reclaim(loan, *to_gpus, nodes)?;
            }
            Change::AdjustReservation(Adjustment::Quota { owner, to_gpus, .. }) => {
                let team = self.team(owner).ok_or_else(|| format!("no team {owner}"))?;
                self.sim.set_limit(team, Some(*to_gpus));
            }
            Change::AdjustReservation(Adjustment::Reservation { .. }) => self.reserve(action)?,
            Change::AdjustReservation(Adjustment::Commitment { .. }) => {
                return Err("what is bought for a term is a person's to decide".into());
            }
            Change::DrainNode { node, .. } => {
                let number = self.node_number(node).ok_or_else(|| format!("no node {node}"))?;
                if self.drains.contains_key(&number) {
                    return Err(format!("{node} is drained by somebody else"));
                }
                self.sim.set_drained(number, true);
                self.drains.insert(number, Some((action.id.clone(), action.generation)));
            }
            Change::ReturnNode { node, drained_by } => {
                let number = self.node_number(node).ok_or_else(|| format!("no node {node}"))?;
                let ours = |by: &Option<(String, u64)>| by.as_ref().is_some_and(|by| by.0 == *drained_by);
                if !self.drains.get(&number).is_some_and(ours) {
                    return Err(format!("{node} was not drained by {drained_by}"));
                }
                self.sim.set_drained(number, false);
                self.drains.remove(&number);
            }
            Change::Preempt { job, .. } => {
                let number = self.job_number(job).filter(|j| self.sim.is_steady(*j));
                self.sim.evict(number.ok_or_else(|| format!("{job} does not run"))?, false);
            }
        }
        let at_us = self.sim.now_us();
        let asked_us = *self.applied.entry(action.id.clone()).or_insert(at_us);
        let (kind, generation) = (action.change.kind(), action.generation);
        let action = action.id.clone();
        self.effects.push(AppliedEffect { at_us, asked_us, action, generation, kind, counts_as, early_us });
        Ok(())
    }

    /// Whether there is nothing to do: the loan is over, or the node is back already.
    fn is_over(&self, change: &Change) -> bool {
        match change {
            Change::Reclaim { loan, .. } => !self.loans.contains_key(loan),
            Change::ReturnNode { node, .. } => {
                self.node_number(node).is_some_and(|node| !self.drains.contains_key(&node))
            }
            _ => false,
        }
    }

    fn early_us(&self, action: &Action) -> Option<i64> {
        let Change::Lend { extends: Some(id), .. } = &action.change else { return None };
        let now_us = self.sim.spec().epoch_us + self.sim.now_us();
        self.loans.get(id).map(|loan| loan.expires_us - now_us - 2 * loan.reclaim_within_ms * 1_000)
    }

    fn counts_as(&self, action: &Action) -> Option<Kind> {
        if matches!(action.change, Change::Lend { extends: Some(_), .. }) {
            return None;
        }
        let called = |h: &(u32, u32)| matches!(self.sim.nodes()[h.0 as usize].place, Place::Called { .. });
        let job = action.change.job().and_then(|id| self.job_number(id));
        let leaves = job.is_some_and(|job| self.sim.jobs()[job as usize].held.iter().any(called));
        Some(if leaves { Kind::Reclaim } else { action.change.kind() })
    }

    fn resize(&mut self, id: &str, to_gpus: u32, keep_nodes: &BTreeSet<String>) -> Result<(), String> {
        let job = self.job_number(id).ok_or_else(|| format!("no job {id}"))?;
        let j = &self.sim.jobs()[job as usize];
        if to_gpus > j.gpus() {
            return self.sim.grow(job, to_gpus).map_err(|e| e.to_string());
        }
        let names = &self.sim.spec().nodes;
        let keep: Held =
            j.held.iter().filter(|h| keep_nodes.contains(&names[h.0 as usize].name)).copied().collect();
        if keep.iter().map(|h| h.1).sum::<u32>() != to_gpus {
            return Err(format!("{id} does not hold {to_gpus} GPUs on the nodes it shall keep"));
        }
        self.sim.shrink(job, keep, false).map_err(|e| e.to_string())
    }

    fn lend(&mut self, action: &Action) -> Result<(), String> {
        let Change::Lend { from, to, pool, gpus, nodes, extends, expires_us, reclaim_within_ms } =
            &action.change
        else {
            return Err("no loan".into());
        };
        if let Some(id) = extends {
            let loan = self.loans.get_mut(id).ok_or_else(|| format!("no loan {id} is open"))?;
            if loan.is_ending || loan.reclaiming_since_us.is_some() {
                return Err(format!("loan {id} is being taken back"));
            }
            (loan.expires_us, loan.generation) = (*expires_us, action.generation);
            return Ok(());
        }
        let team = self.team(to).ok_or_else(|| format!("no team {to} to lend to"))?;
        let to_pool = self.sim.spec().teams[team].pool;
        let mut loan = OpenLoan {
            from: from.clone(),
            to: to.clone(),
            pool: pool.clone(),
            generation: action.generation,
            nodes: BTreeSet::new(),
            gpus: 0,
            since_us: self.sim.now_us(),
            expires_us: *expires_us,
            reclaim_within_ms: *reclaim_within_ms,
            reclaiming_since_us: None,
            is_ending: false,
        };
        if let Some(owner) = self.team(from) {
            let (a, b) = (self.sim.limit_gpus(owner), self.sim.limit_gpus(team));
            let a = a.ok_or_else(|| format!("{from} has no quota to lend of"))?;
            self.sim.set_limit(owner, Some(a.checked_sub(*gpus).ok_or("more than its quota")?));
            self.sim.set_limit(team, b.map(|b| b + gpus));
            loan.gpus = *gpus;
        } else {
            let numbers: Option<BTreeSet<u32>> = nodes.iter().map(|n| self.node_number(n)).collect();
            loan.nodes = numbers.ok_or("a node of the loan is not there")?;
            let ready = |n: &u32| {
                let node = &self.sim.nodes()[*n as usize];
                node.place == Place::Home && node.up && !node.drained
            };
            // All or none: a loan of half its nodes was never decided.
            if loan.nodes.is_empty() || !loan.nodes.iter().all(ready) {
                return Err("name the nodes; each must be at home, up and not drained".into());
            }
            for node in loan.nodes.clone() {
                self.sim.lend(node, to_pool).map_err(|e| e.to_string())?;
            }
        }
        self.loans.insert(action.id.clone(), loan);
        Ok(())
    }

    fn reclaim(&mut self, id: &str, to_gpus: u32, nodes: &BTreeSet<String>) -> Result<(), String> {
        let now_us = self.sim.now_us();
        let named: BTreeSet<u32> = nodes.iter().filter_map(|n| self.node_number(n)).collect();
        let (from, to) =
            self.loans.get(id).map(|l| (self.team(&l.from), self.team(&l.to))).unwrap_or_default();
        let loan = self.loans.get_mut(id).ok_or_else(|| format!("no loan {id} is open"))?;
        loan.reclaiming_since_us.get_or_insert(now_us);
        if loan.gpus > 0 {
            let back = loan.gpus.saturating_sub(to_gpus);
            loan.gpus -= back;
            for (team, sign) in [(from, 1i64), (to, -1)].into_iter().filter_map(|(t, s)| Some((t?, s))) {
                let limit = self.sim.limit_gpus(team).map(|l| (i64::from(l) + sign * i64::from(back)).max(0));
                self.sim.set_limit(team, limit.map(|l| l as u32));
            }
            return Ok(());
        }
        if !named.is_subset(&loan.nodes) || (named.is_empty() && to_gpus > 0) {
            return Err("name nodes of the loan".into());
        }
        let called = if named.is_empty() { loan.nodes.clone() } else { named };
        for node in called {
            // One that was called back before, or broke down on its way, stays where it is.
            let _on_its_way = self.sim.call_back(node).is_err();
        }
        Ok(())
    }

    fn reserve(&mut self, action: &Action) -> Result<(), String> {
        let Change::AdjustReservation(Adjustment::Reservation {
            name,
            owner,
            pool,
            from_gpus,
            to_gpus,
            start_us,
            end_us,
        }) = &action.change
        else {
            return Err("no reservation".into());
        };
        let team = self.team(owner).ok_or_else(|| format!("no team {owner}"))?;
        let spec = self.sim.spec();
        if spec.pools[spec.teams[team].pool].name != *pool {
            return Err(format!("{owner} runs nothing in {pool}"));
        }
        match (self.sim.reservations().contains_key(name), *from_gpus) {
            (true, 0) => return Err(format!("there is a reservation {name} already")),
            (false, 1..) => return Err(format!("there is no reservation {name}")),
            _ => {}
        }
        let (start_us, end_us) = (start_us - spec.epoch_us, end_us - spec.epoch_us);
        self.sim.reserve(name, team, *to_gpus, start_us, end_us).map_err(|refused| refused.to_string())?;
        self.reserved_by.insert(name.clone(), action.generation);
        Ok(())
    }

    /// Loans whose nodes are all at home are over; those whose time has come are ended by the
    /// cluster itself, with nobody asking: jobs on them get their notice and go.
    pub(super) fn settle_loans(&mut self) {
        let (now_us, epoch_us) = (self.sim.now_us(), self.sim.spec().epoch_us);
        let ids: Vec<String> = self.loans.keys().cloned().collect();
        for id in ids {
            let Some(mut loan) = self.loans.remove(&id) else { continue };
            let expired = loan.expires_us - epoch_us <= now_us;
            loan.is_ending |= expired;
            if expired && loan.gpus > 0 {
                self.loans.insert(id.clone(), loan);
                let _open = self.reclaim(&id, 0, &BTreeSet::new()).is_ok();
                self.loans.remove(&id);
                self.ended.push((id, now_us));
                continue;
            }
            for node in loan.nodes.clone() {
                match self.sim.nodes()[node as usize].place {
                    Place::Home => {
                        loan.nodes.remove(&node);
                    }
                    Place::Lent { .. } | Place::Leaving { .. } if expired => {
                        loan.reclaiming_since_us.get_or_insert(now_us);
                        let _called = self.sim.clear_and_call_back(node, true).is_ok();
                    }
                    Place::Called { .. } if expired => self.sim.clear(node, true),
                    _ => {}
                }
            }
            let out = |n: &u32| {
                matches!(self.sim.nodes()[*n as usize].place, Place::Lent { .. } | Place::Leaving { .. })
            };
            if loan.nodes.iter().all(out) {
                loan.reclaiming_since_us = None;
            }
            if loan.nodes.is_empty() && loan.gpus == 0 {
                self.ended.push((id, now_us));
            } else {
                self.loans.insert(id, loan);
            }
        }
    }

    pub(super) fn effect(&self, action: &Action) -> Effect {
        let Some(at_us) = self.applied.get(&action.id) else { return Effect::Absent };
        let done = Effect::Done { at_us: self.sim.spec().epoch_us + at_us };
        let partial = |missing: &str| Effect::Partial { missing: missing.into() };
        let found = |found: String| Effect::Overridden { found };
        if self.slow.iter().any(|s| s.1.id == action.id) {
            return partial("the scheduler has not done it yet");
        }
        match &action.change {
            Change::Lend { extends: Some(id), expires_us, .. } => match self.loans.get(id) {
                Some(loan) if loan.expires_us >= *expires_us => done,
                _ => found("the loan has another end".into()),
            },
            Change::Lend { .. } => match self.loans.get(&action.id) {
                Some(loan) if loan.nodes.iter().any(|n| self.is_leaving(*n)) => {
                    partial("nodes are being handed over")
                }
                Some(_) => done,
                None => found("the loan is over".into()),
            },
            Change::Reclaim { loan, to_gpus, .. } => match self.loans.get(loan) {
                Some(loan) if self.loan_gpus(loan) > *to_gpus => partial("GPUs are not free yet"),
                _ => done,
            },
            Change::ResizeJob { job, to_gpus, .. } => match self.job_number(job) {
                Some(j) if self.sim.jobs()[j as usize].gpus() == *to_gpus => done,
                Some(j) if self.is_closing(j) => partial("the job is being stopped"),
                _ => found("the job has another size, or is gone".into()),
            },
            Change::Preempt { job, .. } => match self.job_number(job) {
                Some(j) if self.is_closing(j) => partial("the job is being stopped"),
                _ => done,
            },
            Change::DrainNode { node, .. } => {
                let by = self.node_number(node).and_then(|n| self.drains.get(&n));
                match by {
                    Some(Some(by)) if by.0 == action.id => done,
                    by => found(format!("{by:?}")),
                }
            }
            Change::ReturnNode { node, .. } => match self.node_number(node).and_then(|n| self.drains.get(&n))
            {
                None => done,
                by => found(format!("{by:?}")),
            },
            Change::AdjustReservation(Adjustment::Quota { owner, to_gpus, .. }) => {
                let limit = self.team(owner).and_then(|team| self.sim.limit_gpus(team));
                if limit == Some(*to_gpus) { done } else { found(format!("{limit:?}")) }
            }
            Change::AdjustReservation(Adjustment::Reservation { name, to_gpus, end_us, .. }) => {
                let is_over = *end_us <= self.sim.spec().epoch_us + self.sim.now_us();
                let gpus = self.sim.reservations().get(name).map_or(0, |found| self.reserved_gpus(found));
                if gpus == *to_gpus || is_over { done } else { found(format!("{gpus} GPUs are reserved")) }
            }
            Change::AdjustReservation(Adjustment::Commitment { .. }) => Effect::Absent,
        }
    }

    fn is_leaving(&self, node: u32) -> bool {
        matches!(self.sim.nodes()[node as usize].place, Place::Leaving { .. })
    }

    fn is_closing(&self, job: u32) -> bool {
        self.sim.jobs()[job as usize].state == JobState::Running && !self.sim.is_steady(job)
    }
}

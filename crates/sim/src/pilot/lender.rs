//! A plain lender, for checking the checks: it lends what a service does not need at the moment, takes back when it does, and
//! keeps floors and one budget. It forecasts nothing.

use std::collections::BTreeSet;

use tidegate_autopilot::{
    action::{Action, Change, Fact},
    state::{ClusterState, JobState, Loan},
};

use super::Decide;
use crate::{HOUR_US, MINUTE_US};

/// Lends node by node.
#[derive(Debug, Clone)]
pub struct Lender {
    /// GPUs kept beyond demand.
    pub buffer_gpus: u32,
    /// Length of a loan.
    pub term_us: i64,
    /// Loans begun in an hour.
    pub per_hour: usize,
    /// Ignores floors: a broken lender, to see that it is caught.
    pub ignores_floors: bool,
    began_us: Vec<i64>,
    /// Tells its actions from those of another life.
    pub life: u64,
}

impl Lender {
    /// A lender of that life.
    pub fn new(life: u64) -> Self {
        Self {
            buffer_gpus: 16,
            term_us: 2 * HOUR_US,
            per_hour: 6,
            ignores_floors: false,
            began_us: Vec::new(),
            life,
        }
    }
}

impl Decide for Lender {
    fn name(&self) -> String {
        "lender".into()
    }

    fn decide(&mut self, state: &ClusterState, now_us: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        for (owner, entry) in &state.owners {
            for (pool, share) in entry.shares.iter().filter(|(_, s)| s.lendable && s.limit_gpus.is_none()) {
                let Some(demand) = share.demand_gpus else { continue };
                let floor = if self.ignores_floors { 0 } else { share.floor_gpus };
                let keep = (demand + self.buffer_gpus).max(floor);
                let lent = state.lent_gpus(owner, pool);
                let have = share.quota_gpus.saturating_sub(lent);
                if have < demand + self.buffer_gpus / 2 {
                    let mine = state
                        .loans
                        .iter()
                        .filter(|(_, l)| l.from == *owner && l.reclaiming_since_us.is_none());
                    actions.extend(mine.flat_map(|(id, loan)| self.take_back(state, id, loan, now_us)));
                } else if have > keep {
                    actions.extend(self.lend(state, owner, pool, have - keep, lent, now_us));
                }
            }
        }
        actions
    }

    fn permit(&mut self, action: &Action, _state: &ClusterState, now_us: i64) -> bool {
        if !matches!(action.change, Change::Lend { .. }) {
            return true;
        }
        self.began_us.retain(|at| now_us - at < HOUR_US);
        let room = self.began_us.len() < self.per_hour;
        if room {
            self.began_us.push(now_us);
        }
        room
    }
}

impl Lender {
    fn lend(
        &self,
        state: &ClusterState,
        owner: &str,
        pool: &str,
        most: u32,
        lent: u32,
        now_us: i64,
    ) -> Option<Action> {
        let to = state.jobs.values().find(|j| j.pending_since_us().is_some() && j.preemptible)?.owner.clone();
        let busy: BTreeSet<&String> = state.jobs.values().flat_map(|j| j.placement.keys()).collect();
        let away: BTreeSet<&String> = state.loans.values().flat_map(|l| &l.nodes).collect();
        let free = |(name, n): &(&String, &tidegate_autopilot::state::Node)| {
            n.pool == pool && n.takes_jobs() && n.gpus <= most && !busy.contains(name) && !away.contains(name)
        };
        let (name, node) = state.nodes.iter().rfind(free)?;
        let nodes: BTreeSet<String> = [name.clone()].into();
        let change = Change::Lend {
            from: owner.to_owned(),
            to,
            pool: pool.to_owned(),
            gpus: node.gpus,
            nodes: nodes.clone(),
            extends: None,
            expires_us: now_us + self.term_us,
            reclaim_within_ms: 600_000,
        };
        let facts = vec![
            Fact::NodesFree { nodes },
            Fact::LentIs { owner: owner.to_owned(), pool: pool.to_owned(), gpus: lent },
        ];
        Some(self.action(format!("lend-{name}-{}", now_us / MINUTE_US), change, facts, now_us, 0))
    }

    fn take_back(&self, state: &ClusterState, id: &str, loan: &Loan, now_us: i64) -> Vec<Action> {
        let change = Change::Reclaim {
            loan: id.to_owned(),
            from_gpus: loan.gpus,
            to_gpus: 0,
            nodes: loan.nodes.clone(),
        };
        let reclaim = self.action(format!("reclaim-{id}"), change, Vec::new(), now_us, 0);
        let after = vec![reclaim.id.clone()];
        let mut actions = vec![reclaim];
        for job in &loan.jobs {
            if !matches!(state.jobs.get(job).map(|j| j.state), Some(JobState::Running { .. })) {
                continue;
            }
            let change = Change::Preempt { job: job.clone(), frees_gpus: loan.gpus };
            let id = format!("preempt-{job}-{id}");
            actions.push(Action {
                after: after.clone(),
                ..self.action(id, change, Vec::new(), now_us, 120_000)
            });
        }
        actions
    }

    fn action(
        &self,
        id: String,
        change: Change,
        preconditions: Vec<Fact>,
        now_us: i64,
        notice_ms: i64,
    ) -> Action {
        Action {
            id: format!("{}-{id}", self.life),
            generation: 0,
            change,
            preconditions,
            inverse: None,
            expires_us: now_us + 15 * MINUTE_US,
            effect_ends_us: None,
            notice_ms,
            after: Vec::new(),
        }
    }
}

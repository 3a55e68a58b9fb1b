//! The simulated cluster as the autopilot's observed state: what a scheduler shows, and what the
//! log says beside it. Nothing else of the simulation is in it.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::state::{
    Checkpoint, ClusterState, Drain, DrainedBy, GrowBy, Health, Job, JobKind, JobState as State, Loan, Node,
    NodeState, Owner, Pool, Reservation, Share, Source, Writer,
};

use super::{OpenLoan, SimTarget};
use crate::{JobState, Place};

impl SimTarget {
    /// The observed state now, without delay or loss.
    pub fn state(&self) -> ClusterState {
        let mut state = self.scheduler_state();
        self.reporter.enrich(&self.sim, &mut state);
        state
    }

    /// What the scheduler shows, as Slurm does: no end, no progress, no curve, no health, no rack.
    pub(super) fn scheduler_state(&self) -> ClusterState {
        let at_us = self.sim.spec().epoch_us + self.sim.now_us();
        let spec = self.sim.spec();
        let source = Source { last_event_us: Some(at_us) };
        ClusterState {
            cluster: spec.name.clone(),
            at_us,
            nodes: self.nodes(),
            pools: spec
                .pools
                .iter()
                .map(|p| (p.name.clone(), Pool { floor_gpus: p.floor_gpus, ..Pool::default() }))
                .collect(),
            owners: self.owners(),
            jobs: self.jobs_and_services(),
            loans: self.loans.iter().map(|(id, loan)| (id.clone(), self.loan(loan))).collect(),
            reservations: self.reservations(),
            sources: ["scheduler", "services"].map(|name| (name.to_owned(), source)).into(),
            disagreements: Vec::new(),
            corrections_ppm: BTreeMap::new(),
            forecast_origins: BTreeMap::new(),
        }
    }

    /// Index of a job, by its id.
    pub(super) fn job_number(&self, id: &str) -> Option<u32> {
        let number = self.sim.spec().job_of_id(id)?;
        ((number as usize) < self.sim.jobs().len()).then_some(number)
    }

    /// Index of a node, by its name.
    pub(super) fn node_number(&self, name: &str) -> Option<u32> {
        self.sim.spec().nodes.iter().position(|n| n.name == name).map(|n| n as u32)
    }

    pub(super) fn team(&self, name: &str) -> Option<usize> {
        self.sim.spec().teams.iter().position(|t| t.name == name)
    }

    /// GPUs of a loan that are still out.
    pub(super) fn loan_gpus(&self, loan: &OpenLoan) -> u32 {
        loan.gpus + loan.nodes.iter().map(|n| self.sim.nodes()[*n as usize].gpus).sum::<u32>()
    }

    fn nodes(&self) -> BTreeMap<String, Node> {
        let spec = self.sim.spec();
        let nodes = self.sim.nodes().iter().enumerate();
        let node = |(i, n): (usize, &crate::Node)| {
            let drain = self.drains.get(&(i as u32)).map(|by| Drain {
                by: by.clone().map_or(DrainedBy::Other, |(action, generation)| DrainedBy::Autopilot {
                    action,
                    generation,
                }),
                since_us: None,
                reason: by.as_ref().map_or("by hand".into(), |by| format!("tidegate {} g{}", by.0, by.1)),
            });
            let state = Node {
                pool: spec.pools[n.pool].name.clone(),
                rack: None,
                gpu_model: spec.models[usize::from(n.model)].clone(),
                gpus: n.gpus,
                state: if n.up { NodeState::Up } else { NodeState::Down },
                health: Health::default(),
                drain,
                do_not_disrupt: false,
            };
            (spec.nodes[i].name.clone(), state)
        };
        nodes.map(node).collect()
    }

    /// Teams, and each service as an owner named after its pool.
    fn owners(&self) -> BTreeMap<String, Owner> {
        let spec = self.sim.spec();
        let mut demand: Vec<u32> = (0..spec.teams.len()).map(|t| self.sim.held_gpus(t)).collect();
        for job in self.sim.waiting() {
            let spec = &self.sim.jobs()[job as usize].spec;
            demand[spec.team] += spec.gpus;
        }
        let mut owners: BTreeMap<String, Owner> = BTreeMap::new();
        for (t, team) in spec.teams.iter().enumerate() {
            let share = Share {
                quota_gpus: team.quota_gpus.unwrap_or_else(|| spec.pool_gpus(team.pool)),
                limit_gpus: self.sim.limit_gpus(t),
                floor_gpus: 0,
                lendable: team.quota_gpus.is_some(),
                demand_gpus: Some(demand[t]),
                reclaim_took_ms: None,
            };
            let shares = [(spec.pools[team.pool].name.clone(), share)].into();
            owners.insert(team.name.clone(), Owner { shares, ..Owner::default() });
        }
        for (s, service) in self.sim.services().iter().enumerate() {
            let pool = &spec.pools[service.pool];
            let share = Share {
                quota_gpus: spec.pool_gpus(service.pool),
                limit_gpus: None,
                floor_gpus: pool.floor_gpus,
                lendable: true,
                demand_gpus: Some(self.sim.demand_gpus(s)),
                reclaim_took_ms: None,
            };
            owners.insert(
                pool.name.clone(),
                Owner { shares: [(pool.name.clone(), share)].into(), ..Owner::default() },
            );
        }
        owners
    }

    fn jobs_and_services(&self) -> BTreeMap<String, Job> {
        let on_loan: BTreeMap<u32, &String> =
            self.loans.iter().flat_map(|(id, loan)| loan.nodes.iter().map(move |n| (*n, id))).collect();
        let jobs = self.sim.running().chain(self.sim.waiting()).map(|job| self.job(job, &on_loan));
        let services = (0..self.sim.services().len()).map(|s| self.service(s));
        jobs.chain(services).collect()
    }

    fn job(&self, number: u32, on_loan: &BTreeMap<u32, &String>) -> (String, Job) {
        let spec = self.sim.spec();
        let j = &self.sim.jobs()[number as usize];
        let s = &j.spec;
        let running = j.state == JobState::Running;
        let at = |us: i64| spec.epoch_us + us;
        let state = match (running, self.sim.is_steady(number)) {
            (false, _) => State::Pending { since_us: at(j.queued_us) },
            (true, true) => State::Running { since_us: at(j.started_us) },
            (true, false) => State::Changing { since_us: at(j.started_us) },
        };
        let elastic = |e: crate::Elastic| JobKind::Elastic {
            min_gpus: e.min_gpus,
            max_gpus: e.max_gpus,
            sizes: Vec::new(),
            grow: if s.checkpoint.is_some() { GrowBy::Resize } else { GrowBy::Never },
        };
        let checkpoint = Checkpoint {
            requeue_ms: Some(spec.latency.kill_us / 1_000),
            on_notice: s.checkpoint.is_some_and(|c| c.on_notice),
            ..Checkpoint::default()
        };
        let job = Job {
            owner: spec.teams[s.team].name.clone(),
            pool: spec.pools[self.sim.pool_of(number)].name.clone(),
            queue: None,
            priority: i64::from(s.priority),
            kind: s.elastic.map_or(JobKind::Gang, elastic),
            gpus: s.gpus,
            state,
            placement: j.held.iter().map(|h| (spec.nodes[h.0 as usize].name.clone(), h.1)).collect(),
            anchor_node: None,
            restarts: j.attempts.saturating_sub(u32::from(running)),
            loan: j.held.iter().find_map(|h| on_loan.get(&h.0)).map(|id| (*id).clone()),
            preemptible: s.loan,
            // As on Slurm, which does not record why a job was stopped.
            preemptions_24h: j.attempts.saturating_sub(u32::from(running)),
            checkpoint,
            remaining_work_ms: None,
            curve: None,
            expected_end_us: None,
            end_within_us: None,
            resized_us: None,
            opt_in: s.loan || s.elastic.is_some(),
            do_not_disrupt: false,
        };
        (spec.job_id(number), job)
    }

    /// A service holds the first whole nodes at home that cover its demand, in one job that nobody
    /// may touch.
    fn service(&self, s: usize) -> (String, Job) {
        let (spec, service) = (self.sim.spec(), &self.sim.services()[s]);
        let name = &spec.pools[service.pool].name;
        let needed = self.sim.demand_gpus(s);
        let mut left = needed;
        let mut placement = BTreeMap::new();
        for (i, n) in self.sim.nodes().iter().enumerate() {
            if n.pool == service.pool && n.place == Place::Home && n.up && left > 0 {
                left = left.saturating_sub(n.gpus);
                placement.insert(spec.nodes[i].name.clone(), n.gpus);
            }
        }
        let job = Job {
            owner: name.clone(),
            pool: name.clone(),
            queue: None,
            priority: i64::from(i32::MAX),
            kind: JobKind::Gang,
            gpus: placement.values().sum(),
            state: State::Running { since_us: spec.epoch_us },
            placement,
            anchor_node: None,
            restarts: 0,
            loan: None,
            preemptible: false,
            preemptions_24h: 0,
            checkpoint: Checkpoint::default(),
            curve: None,
            remaining_work_ms: None,
            expected_end_us: None,
            end_within_us: None,
            resized_us: None,
            opt_in: false,
            do_not_disrupt: true,
        };
        (format!("service-{name}"), job)
    }

    fn reservations(&self) -> BTreeMap<String, Reservation> {
        let spec = self.sim.spec();
        let reservation = |(name, found): (&String, &crate::Reservation)| {
            let team = &spec.teams[found.team];
            let by = self.reserved_by.get(name);
            let reservation = Reservation {
                owner: team.name.clone(),
                pool: spec.pools[team.pool].name.clone(),
                gpus: self.reserved_gpus(found),
                nodes: found.nodes.iter().map(|n| spec.nodes[*n as usize].name.clone()).collect(),
                start_us: spec.epoch_us + found.start_us,
                end_us: Some(spec.epoch_us + found.end_us),
                writer: by.map_or(Writer::Other, |generation| Writer::Autopilot { generation: *generation }),
            };
            (name.clone(), reservation)
        };
        self.sim.reservations().iter().map(reservation).collect()
    }

    /// GPUs of the nodes of a reservation.
    pub(super) fn reserved_gpus(&self, reservation: &crate::Reservation) -> u32 {
        reservation.nodes.iter().map(|n| self.sim.nodes()[*n as usize].gpus).sum()
    }

    fn loan(&self, loan: &OpenLoan) -> Loan {
        let spec = self.sim.spec();
        let jobs: BTreeSet<String> = loan
            .nodes
            .iter()
            .flat_map(|n| &self.sim.nodes()[*n as usize].jobs)
            .map(|job| spec.job_id(*job))
            .collect();
        let back = |n: &&u32| {
            !matches!(self.sim.nodes()[**n as usize].place, Place::Lent { .. } | Place::Leaving { .. })
        };
        let reclaiming: Vec<u32> = loan.nodes.iter().filter(back).copied().collect();
        Loan {
            reclaiming_gpus: reclaiming.iter().map(|n| self.sim.nodes()[*n as usize].gpus).sum(),
            reclaiming_nodes: reclaiming.iter().map(|n| spec.nodes[*n as usize].name.clone()).collect(),
            from: loan.from.clone(),
            to: loan.to.clone(),
            pool: loan.pool.clone(),
            gpus: self.loan_gpus(loan),
            nodes: loan.nodes.iter().map(|n| spec.nodes[*n as usize].name.clone()).collect(),
            since_us: spec.epoch_us + loan.since_us,
            expires_us: loan.expires_us,
            reclaim_within_ms: loan.reclaim_within_ms,
            reclaiming_since_us: loan.reclaiming_since_us.map(|us| spec.epoch_us + us),
            writer: Writer::Autopilot { generation: loan.generation },
            jobs,
        }
    }
}

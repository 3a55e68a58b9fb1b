//! The simulated cluster as the autopilot's observed state.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::state::{
    Checkpoint, ClusterState, Drain, DrainedBy, GrowBy, Health, Job, JobKind, JobState as State, Loan, Node,
    NodeState, Owner, Pool, Share, Source, Writer,
};

use super::{OpenLoan, SimTarget, TOOK_ENOUGH};
use crate::{JobState, PPM, Place};

impl SimTarget {
    /// The observed state now, without delay or loss.
    pub fn state(&self) -> ClusterState {
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
                .map(|p| (p.name.clone(), Pool { floor_gpus: p.floor_gpus, price_micros_per_gpu_hour: None }))
                .collect(),
            owners: self.owners(),
            jobs: self.jobs_and_services(),
            loans: self.loans.iter().map(|(id, loan)| (id.clone(), self.loan(loan))).collect(),
            reservations: BTreeMap::new(),
            sources: ["scheduler", "services"].map(|name| (name.to_owned(), source)).into(),
            disagreements: Vec::new(),
            forecast_origins: BTreeMap::new(),
        }
    }

    /// Index of a job, by its id.
    pub(super) fn job_number(&self, id: &str) -> Option<u32> {
        let number = id.strip_prefix("job-")?.parse().ok()?;
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

    /// Longest recent reclaim time of nodes with jobs, ms; `None` if there were too few.
    fn reclaim_took_ms(&self) -> Option<i64> {
        let longest_us = self.took_us.iter().max().filter(|_| self.took_us.len() >= TOOK_ENOUGH)?;
        Some(longest_us / 1_000)
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
            let slow = n.speed_ppm < PPM;
            let health = Health {
                bad_ppm: Some(if slow { 970_000 } else { 10_000 }),
                families: if slow { vec!["straggler".into(), "thermal".into()] } else { Vec::new() },
                fatal: false,
                slowdown_ppm: slow.then(|| PPM - n.speed_ppm),
                checked_good_us: (drain.is_some() && n.up && !slow)
                    .then(|| spec.epoch_us + self.sim.now_us()),
            };
            let state = Node {
                pool: spec.pools[n.pool].name.clone(),
                rack: Some(format!("rack-{}", n.rack)),
                gpu_model: spec.models[usize::from(n.model)].clone(),
                gpus: n.gpus,
                state: if n.up { NodeState::Up } else { NodeState::Down },
                health,
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
            owners.insert(team.name.clone(), Owner { shares });
        }
        for (s, service) in self.sim.services().iter().enumerate() {
            let pool = &spec.pools[service.pool];
            let share = Share {
                quota_gpus: spec.pool_gpus(service.pool),
                limit_gpus: None,
                floor_gpus: pool.floor_gpus,
                lendable: true,
                demand_gpus: Some(self.sim.demand_gpus(s)),
                reclaim_took_ms: self.reclaim_took_ms(),
            };
            owners.insert(pool.name.clone(), Owner { shares: [(pool.name.clone(), share)].into() });
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
        let curve = s.elastic.map(|e| spec.curves[e.curve].clone());
        let left_ms = |c: &tidegate_autopilot::state::ScalingCurve| {
            let (left_us, rate) = (self.sim.remaining_us(number, s.gpus), c.rate_ppm(s.gpus));
            (i128::from(left_us) * i128::from(rate) / i128::from(PPM) / 1_000) as i64
        };
        let latency = spec.latency;
        let risk_us = (j.at_risk_gpu_us(self.sim.now_us()) / i128::from(j.gpus().max(1))) as i64;
        let restart_ms = (s.restart_us + latency.start_us) / 1_000;
        let checkpoint = Checkpoint {
            last_us: (running && s.checkpoint.is_some()).then(|| at(self.sim.now_us() - risk_us)),
            save_ms: s.checkpoint.map(|_| latency.checkpoint_us / 1_000),
            restart_ms: Some(restart_ms),
            requeue_ms: Some(latency.kill_us / 1_000),
            resize_ms: s.elastic.map(|_| (latency.checkpoint_us + s.restart_us) / 1_000),
            on_notice: s.checkpoint.is_some_and(|c| c.on_notice),
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
            preemptions_24h: 0,
            checkpoint,
            remaining_work_ms: curve.as_ref().map(left_ms),
            curve,
            expected_end_us: running.then(|| at(j.started_us + s.estimate_us)),
            resized_us: None,
            opt_in: s.loan || s.elastic.is_some(),
            do_not_disrupt: false,
        };
        (format!("job-{number}"), job)
    }

    /// A service holds the first whole nodes at home that cover its demand.
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
            kind: JobKind::Service { needed_gpus: Some(needed) },
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
            resized_us: None,
            opt_in: false,
            do_not_disrupt: true,
        };
        (format!("service-{name}"), job)
    }

    fn loan(&self, loan: &OpenLoan) -> Loan {
        let spec = self.sim.spec();
        let jobs: BTreeSet<String> = loan
            .nodes
            .iter()
            .flat_map(|n| &self.sim.nodes()[*n as usize].jobs)
            .map(|job| format!("job-{job}"))
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
